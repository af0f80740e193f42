//! The hostile components that are kept as text, each offered to the real host for
//! installation: what is refused is refused with the words that are expected, and whatever comes
//! of it, the host goes on. How those that can run end is held by the sandbox's own tests.

use std::path::Path;

use crate::support::{Stage, root};

/// Name, text and expectation of each.
fn corpus() -> Vec<(String, String, String)> {
    let folder = root().join("guest-examples/hostile");
    let text =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut all: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wat"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, text(&path), text(&path.with_extension("expected")))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a02_a04_a14_a17_a_component_that_breaks_a_rule_is_refused_at_install_by_the_rules_name() {
    let stage = Stage::set();
    let (mut refused, mut others) = (0, 0);
    for (name, text, expected) in corpus() {
        let bytes = wat::parse_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let told = stage.install(&bytes, "");
        assert_eq!(told.status(), 422, "{name}: {}", told.json);
        let detail = told.text("/detail");
        match expected.strip_prefix("refused at install\n") {
            Some(why) => {
                refused += 1;
                assert!(detail.contains(why.trim_end()), "{name}: {detail}");
            }
            // These get through the door, and are no tools.
            None => {
                others += 1;
                assert!(detail.contains("countersign:tool/tool"), "{name}: {detail}");
            }
        }
    }
    assert!(refused >= 18 && others >= 24, "{refused} {others}");
    let id = stage.approved("refund", "after", &stage.refund("after", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
}
