//! Stops an attempt at a named point so that a test can kill the process there.
//! Silent unless armed, and not in release builds at all.
//!
//! `COUNTERSIGN_HALT_AT=after-write-claim` or `=after-write-claim:2` (only at
//! that effect's ordinal). When an attempt gets there, it says so on standard
//! error and in the file that `COUNTERSIGN_HALT_FILE` names, and waits forever;
//! or, the first time, until there is a file that `COUNTERSIGN_HALT_UNTIL`
//! names, and every other time not at all. `COUNTERSIGN_PANIC_AT` panics there
//! instead: what a panic shows of a request that is about to go out.

use std::sync::Arc;

use countersign_gate::Signals;

#[cfg(debug_assertions)]
use crate::config::variable;

/// What the environment asks for; nothing in a release build.
///
/// # Errors
/// If it asks for a point that does not exist.
#[cfg(not(debug_assertions))]
pub fn from_environment() -> anyhow::Result<Option<Arc<dyn Signals>>> {
    Ok(None)
}

/// What the environment asks for.
///
/// # Errors
/// If it asks for a point that does not exist.
#[cfg(debug_assertions)]
pub fn from_environment() -> anyhow::Result<Option<Arc<dyn Signals>>> {
    if let Some(at) = variable("COUNTERSIGN_PANIC_AT") {
        return Ok(Some(Arc::new(armed::Halt::parse(&at, None)?.by_a_panic())));
    }
    let Some(at) = variable("COUNTERSIGN_HALT_AT") else { return Ok(None) };
    let halt = armed::Halt::parse(&at, variable("COUNTERSIGN_HALT_FILE").map(Into::into))?;
    Ok(Some(Arc::new(halt.until(variable("COUNTERSIGN_HALT_UNTIL").map(Into::into)))))
}

#[cfg(debug_assertions)]
mod armed {
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use countersign_domain::id::Ordinal;
    use countersign_gate::{Point, Signals};

    /// One point to stop at.
    pub struct Halt {
        point: Point,
        ordinal: Option<Ordinal>,
        file: Option<PathBuf>,
        until: Option<PathBuf>,
        halted: AtomicBool,
        panics: bool,
    }

    impl Halt {
        /// Goes on when there is this file, and does not halt again.
        pub fn until(self, until: Option<PathBuf>) -> Halt {
            Halt { until, ..self }
        }

        /// Ends the attempt's task, and says so as panics do.
        pub fn by_a_panic(self) -> Halt {
            Halt { panics: true, ..self }
        }

        pub fn parse(at: &str, file: Option<PathBuf>) -> anyhow::Result<Halt> {
            let (name, ordinal) = match at.split_once(':') {
                None => (at, None),
                Some((name, ordinal)) => (name, Some(Ordinal(ordinal.parse()?))),
            };
            let point = Point::ALL.iter().copied().find(|point| point.name() == name).ok_or_else(|| {
                let known: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
                anyhow::anyhow!(
                    "COUNTERSIGN_HALT_AT={at:?}: there is no such point; there are {}",
                    known.join(", ")
                )
            })?;
            Ok(Halt { point, ordinal, file, until: None, halted: AtomicBool::new(false), panics: false })
        }

        fn say(&self) -> std::io::Result<()> {
            let line = format!("halted at {}\n", self.point.name());
            if let Some(file) = &self.file {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
                file.write_all(line.as_bytes())?;
            }
            std::io::stderr().write_all(line.as_bytes())
        }
    }

    #[async_trait]
    impl Signals for Halt {
        async fn reached(&self, point: Point, ordinal: Option<Ordinal>) {
            if point != self.point || (self.ordinal.is_some() && self.ordinal != ordinal) {
                return;
            }
            assert!(!self.panics, "at {}, as a test asked", self.point.name());
            if self.halted.swap(true, Ordering::Relaxed) && self.until.is_some() {
                return;
            }
            if let Err(error) = self.say() {
                tracing::error!(%error, "a test cannot be told of its halt");
            }
            let Some(until) = &self.until else { return std::future::pending().await };
            while !until.exists() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_is_armed_by_its_name_and_perhaps_an_ordinal() {
            let halt = Halt::parse("after-answer:4", None).expect("a point");
            assert_eq!((halt.point, halt.ordinal), (Point::AfterAnswer, Some(Ordinal(4))));
            assert!(Halt::parse("after-lunch", None).is_err());
            assert!(Halt::parse("after-answer:x", None).is_err());
        }
    }
}
