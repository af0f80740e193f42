//! `countersign demo`: the failures, played out loud. The host is this very
//! binary in a process of its own, and so is the provider; every count comes
//! from the provider's log.

mod grants;
mod scenes;
mod stage;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;

use crate::cli::Paint;
use stage::Stage;

/// Options of the demo.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Keep store, logs and provider log in this folder instead of a temporary one.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Switch one protection off in the host: claim, fingerprint or record. The demo must fail then.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "NAME")]
    planted_bug: Option<String>,
}

impl DemoArgs {
    #[cfg(feature = "planted-bugs")]
    fn planted_bug(&self) -> Option<String> {
        self.planted_bug.clone()
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn planted_bug(&self) -> Option<String> {
        None
    }
}

/// Plays all scenes. Success only if every count is right.
///
/// # Errors
/// What kept a scene from being played at all.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let binary = std::env::current_exe().context("this program does not know where it is")?;
    let (folder, temporary) = match &args.keep {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let empty = std::fs::read_dir(folder)?.next().is_none();
            anyhow::ensure!(empty, "{} is not empty: name a new folder", folder.display());
            (folder.clone(), None)
        }
        None => {
            let temporary = temporary_folder()?;
            (temporary.0.clone(), Some(temporary))
        }
    };
    let played = play(&binary, &folder, temporary.is_some(), args.planted_bug());
    drop(temporary);
    played
}

fn play(
    binary: &Path,
    folder: &Path,
    temporary: bool,
    planted_bug: Option<String>,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let paint = Paint::of(&std::io::stdout());
    let mut out = std::io::stdout().lock();
    writeln!(out, "Setting the stage: a provider that logs every request, a host, three tools …")?;
    let stage = Arc::new(Stage::set(binary, folder, planted_bug)?);
    leave_nothing_behind(stage.clone(), temporary.then(|| folder.to_owned()));
    let _curtain = Curtain(stage.clone());
    let mut wrong = 0;
    for (number, play) in (1..).zip(scenes::ALL) {
        let scene = match play(&stage) {
            Ok(scene) => scene,
            // Told, counted as wrong, and on to the next: a reader wants to see
            // them all.
            Err(error) => {
                wrong += 1;
                writeln!(out, "\n{number}. {}", paint.bad(&format!("could not be played: {error:#}")))?;
                continue;
            }
        };
        writeln!(out, "\n{}", paint.bold(&format!("{number}. {}", scene.title)))?;
        for line in &scene.told {
            writeln!(out, "   told     {line}")?;
        }
        for count in &scene.counts {
            let right = count.expected == count.found;
            wrong += usize::from(!right);
            let mark = if right { paint.good("✓") } else { paint.bad("✗") };
            let note =
                if right { String::new() } else { paint.bad(&format!("  expected {}", count.expected)) };
            writeln!(out, "   counted  {mark} {} {}{note}", count.found, count.what)?;
        }
        out.flush()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if wrong == 0 {
        writeln!(out, "\n{} ({seconds:.1} s)", paint.good("Every count is right."))?;
        writeln!(out, "Next: `countersign serve`, and the README's walk through your first own action.")?;
        Ok(ExitCode::SUCCESS)
    } else {
        let verdict = format!("{wrong} of the counts are wrong.");
        writeln!(out, "\n{} ({seconds:.1} s)", paint.bad(&verdict))?;
        Ok(ExitCode::FAILURE)
    }
}

/// Ends the host with the play, however the play ends: the watcher for Ctrl-C
/// holds on to the stage for as long as this process lives.
struct Curtain(Arc<Stage>);

impl Drop for Curtain {
    fn drop(&mut self) {
        let _ = self.0.host.kill();
    }
}

/// On Ctrl-C the host goes, and the folder; the provider ends by itself when
/// this process does.
fn leave_nothing_behind(stage: Arc<Stage>, folder: Option<PathBuf>) {
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_err() {
            return;
        }
        let _ = stage.host.kill();
        if let Some(folder) = folder {
            let _ = std::fs::remove_dir_all(folder);
        }
        std::process::exit(130);
    });
}

/// A folder that goes when this does.
struct Temporary(PathBuf);

fn temporary_folder() -> anyhow::Result<Temporary> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
    let name = format!("countersign-demo-{:016x}", u64::from_le_bytes(random));
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(Temporary(path))
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
