//! A secret that a command prints: a password manager's, a cloud's. Run once, at
//! start, and never through a shell: what it is given is what stands in the file,
//! word for word.
//!
//! May not: put what the command printed into an error; neither its output nor
//! what it complains about, which may hold the same.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use countersign_domain::secret::MAX_SECRET_BYTES;

/// How long it may take. Chosen: a vault far away answers in a second; a command
/// that asks somebody for a password never does.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a command prints, without white space around it.
///
/// # Errors
/// Why there is no value, and what to do.
pub fn printed(words: &[String], folder: &Path) -> Result<String, String> {
    let Some((program, arguments)) = words.split_first() else {
        return Err("the command has no words; write { command = [\"program\", \"argument\"] }".into());
    };
    within(PATIENCE, program, arguments, folder)
}

fn within(patience: Duration, program: &str, arguments: &[String], folder: &Path) -> Result<String, String> {
    let until = Instant::now() + patience;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the command {program:?} cannot be run: {error}"))?;
    let (read, whole) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::with_capacity(MAX_SECRET_BYTES + 64);
            // A little more, so that too much can be told from just enough.
            let done = output.take(MAX_SECRET_BYTES as u64 + 64).read_to_end(&mut bytes);
            let _ = read.send(done.map(|_| bytes));
        });
    }
    let printed = whole.recv_timeout(patience);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if printed.is_ok() && Instant::now() < until => {
                // It closed its output and is about to end.
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the command {program:?} did not end within {} s", patience.as_secs()));
            }
        }
    };
    if !status.success() {
        return Err(format!(
            "the command {program:?} ended with {status}; run it by hand to see why (what it prints is not shown here)"
        ));
    }
    let bytes = printed.ok().and_then(Result::ok).unwrap_or_default();
    let mut text = String::from_utf8(bytes)
        .map_err(|_| format!("the command {program:?} printed what is no text in UTF-8"))?;
    // In place: there is one copy, and whoever gets it wipes it.
    text.truncate(text.trim_end().len());
    text.drain(..text.len() - text.trim_start().len());
    match text.is_empty() {
        true => Err(format!("the command {program:?} printed nothing")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<String, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        printed(&words, Path::new("/"))
    }

    #[test]
    fn c01_a_command_gives_its_output_without_white_space_and_no_shell_reads_it() {
        assert_eq!(run(&["printf", "  correct horse \n\n"]).as_deref(), Ok("correct horse"));
        assert_eq!(run(&["printf", "%s", "$HOME; `id` | tee x"]).as_deref(), Ok("$HOME; `id` | tee x"));
        assert_eq!(run(&["pwd"]).as_deref(), Ok("/"));
    }

    #[test]
    fn c02_a_command_that_fails_is_named_and_what_it_printed_is_not() {
        let refused = run(&["sh", "-c", "echo sk_canary_1; echo sk_canary_2 >&2; exit 3"]).unwrap_err();
        assert!(
            refused.contains("\"sh\"") && refused.contains('3') && !refused.contains("canary"),
            "{refused}"
        );
        assert!(run(&["no-such-program-at-all"]).unwrap_err().contains("cannot be run"));
        assert!(run(&["true"]).unwrap_err().contains("printed nothing"));
        assert!(run(&["printf", "\\377\\376"]).unwrap_err().contains("UTF-8"));
        assert!(run(&[]).unwrap_err().contains("no words"));
    }

    #[test]
    fn a_command_that_never_ends_is_ended() {
        let patience = Duration::from_millis(100);
        let words = ["600".to_owned()];
        let refused = within(patience, "sleep", &words, Path::new("/")).unwrap_err();
        assert!(refused.contains("did not end"), "{refused}");
    }
}
