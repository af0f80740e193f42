//! The findings, for a person or as JSON. Everything that comes from outside is
//! shown as text and as nothing else.

use std::io::{self, Write as _};

use countersign_store::health::{Finding, Level};
use serde_json::json;

use crate::cli::{Paint, plain};

/// Prints all of them.
pub(super) fn findings(findings: &[Finding], json: bool) -> io::Result<()> {
    let text = if json { as_json(findings) + "\n" } else { as_text(findings, Paint::of(&io::stdout())) };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn as_text(findings: &[Finding], paint: Paint) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let word = format!("{:<4}", finding.level.as_str());
        let word = match finding.level {
            Level::Good => paint.good(&word),
            Level::Warning => paint.bold(&word),
            Level::Failure => paint.bad(&word),
        };
        text.push_str(&format!("{word}  {:<width$}  {}\n", finding.check, plain(&finding.found)));
        if !finding.advice.is_empty() {
            text.push_str(&format!("      {:<width$}  do: {}\n", "", plain(&finding.advice)));
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (warnings, failures) = (count(Level::Warning), count(Level::Failure));
    text.push_str(&match (failures, warnings) {
        (0, 0) => "\nEverything is as it should be.\n".to_owned(),
        (0, _) => format!("\nNothing failed; {warnings} to know of.\n"),
        _ => format!("\n{failures} failed; {warnings} more to know of.\n"),
    });
    text
}

fn as_json(findings: &[Finding]) -> String {
    let checks: Vec<_> = findings
        .iter()
        .map(|finding| {
            let advice = Some(&finding.advice).filter(|advice| !advice.is_empty());
            json!({ "check": finding.check, "level": finding.level.as_str(), "found": finding.found, "advice": advice })
        })
        .collect();
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good);
    json!({ "level": worst.as_str(), "checks": checks }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_and_what_to_do_is_under_it() {
        let found = [
            Finding::good("store", "it answers"),
            Finding::warning("connections", "few \u{1b}[2J", "raise max_connections"),
            Finding::failure("disk", "full", "make room"),
        ];
        assert_eq!(
            as_text(&found, Paint::PLAIN),
            "ok    store        it answers\nwarn  connections  few \\u{1b}[2J\n                   do: raise max_connections\n\
             fail  disk         full\n                   do: make room\n\n1 failed; 1 more to know of.\n"
        );
        assert!(as_text(&found[..1], Paint::PLAIN).ends_with("\nEverything is as it should be.\n"));
        let json: serde_json::Value = serde_json::from_str(&as_json(&found)).expect("JSON");
        assert_eq!((&json["level"], &json["checks"][1]["level"]), (&json!("fail"), &json!("warn")));
        assert_eq!(json["checks"][0]["advice"], json!(null));
    }
}
