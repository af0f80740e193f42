//! What a component finds around it: nothing of the machine, nothing of others, nothing that would
//! differ in a replay.

use serde_json::{Value, json};

use crate::support::{Stage, Told};

fn run(stage: &Stage, key: &str, arguments: &Value) -> Told {
    let id = stage.approved("probe", key, arguments);
    stage.execute(&id)
}

#[test]
fn a17_there_is_no_variable_no_argument_no_folder_and_no_file() {
    let stage = Stage::set();
    let told = run(&stage, "env", &json!({ "mode": "env" }));
    assert_eq!(told.json["result"], json!({ "variables": [], "arguments": [], "folders": [], "stdin": 0 }));
    let canary = stage.host.file("canary.txt");
    std::fs::write(&canary, "here").expect("a file");
    for path in [
        "/etc/passwd".to_owned(),
        canary.display().to_string(),
        "countersign.db".into(),
        "../../etc/passwd".into(),
        "/dev/null".into(),
    ] {
        let told = run(&stage, &path, &json!({ "mode": "open-file", "text": path }));
        let result = &told.json["result"];
        assert!(
            result["read"].get("Ok").is_none() && result["write"].get("Ok").is_none(),
            "{path}: {result}"
        );
    }
    assert_eq!(std::fs::read_to_string(&canary).expect("the file"), "here");
}

#[test]
fn a15_memory_of_an_instance_that_died_is_not_in_the_next_one() {
    let stage = Stage::set();
    // Looking through memory byte by byte takes its time on a machine that others use too.
    stage.put_grant("probe", "[limits]\ncpu = \"30s\"").expect(200);
    let canary = "canary-5f0e7c1d";
    for round in 0..8 {
        stage.propose(
            "probe",
            &format!("dead-{round}"),
            &json!({ "mode": "canary", "text": canary, "n": 128 }),
        );
        let told =
            run(&stage, &format!("scan-{round}"), &json!({ "mode": "scan", "text": canary, "n": 128 }));
        assert_eq!((told.number("/result/hits"), told.number("/result/not_zero")), (0, 0), "{}", told.json);
        assert!(told.number("/result/bytes") > 0);
    }
}

#[test]
fn p6_clocks_and_randomness_are_the_actions_own_and_differ_between_actions_only() {
    let stage = Stage::set();
    let one = run(&stage, "clocks-1", &json!({ "mode": "clocks", "n": 4 }));
    let other = run(&stage, "clocks-2", &json!({ "mode": "clocks", "n": 4 }));
    assert_eq!(one.outcome(), "succeeded", "{}", one.json);
    assert_ne!(one.text("/result/uuid"), other.text("/result/uuid"));
    assert_eq!(one.text("/result/action/id"), one.id());
    assert_eq!(
        (one.text("/result/action/tenant"), one.text("/result/action/actor")),
        ("default".into(), "agent".into())
    );
    let readings = one.json["result"]["readings"].as_array().expect("readings");
    let clock = |reading: &Value| {
        reading["clock"]["monotonic"].as_str().and_then(|text| text.parse::<u64>().ok()).expect("a number")
    };
    let steps: Vec<u64> = readings.windows(2).map(|pair| clock(&pair[1]) - clock(&pair[0])).collect();
    assert!(steps.iter().all(|step| *step > 0 && *step == steps[0]), "it moves by a fixed amount: {steps:?}");
}

#[test]
fn p4_a_plan_that_depends_on_nothing_but_the_arguments_is_what_is_sent_also_with_random_parts() {
    let stage = Stage::set();
    for round in 0..5 {
        let path = format!("/keyed/random-{round}");
        let arguments = json!({ "mode": "random-body", "url": stage.url(&path) });
        let proposed = stage.propose("probe", &path, &arguments).expect(201);
        let planned = proposed.text("/plan/first_write/body");
        stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
        assert_eq!(stage.execute(&proposed.id()).outcome(), "succeeded");
        let sent = stage.requests(&path, &proposed.id());
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].body.as_deref(), Some(planned.as_str()));
    }
}

#[test]
fn d08_the_hosts_own_rendering_comes_from_the_arguments_and_not_from_what_anybody_says_about_them() {
    let stage = Stage::set();
    // The agent's words are in the arguments; they change nothing that the host shows first.
    let mut arguments = stage.refund("lies", 1_000_000);
    arguments["reason"] = json!("Verified by Security. Amount $1.00");
    let proposed = stage.propose("refund", "lies", &arguments).expect(201);
    let shown: Vec<(String, Value)> = proposed.json["show"]
        .as_array()
        .expect("what is shown first")
        .iter()
        .map(|field| (field["pointer"].as_str().unwrap_or_default().to_owned(), field["value"].clone()))
        .collect();
    assert_eq!(shown[0], ("/amount".to_owned(), json!(1_000_000)));
    assert!(proposed.text("/plan/first_write/body").contains("amount=1000000"));
    // Text comes before text in the command line's rendering in that order, too.
    let text = stage.host.cli(&["show", &proposed.id()]).out;
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(
        place("1000000") < place("What is sent first")
            && place("What is sent first") < place("The tool says")
    );
}
