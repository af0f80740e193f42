//! A secret is on the wire to its provider and nowhere else: not in the ledger, not in a log, not
//! in an answer, not in what the provider sends back.

use serde_json::json;

use super::{contains, files_with};
use crate::support::grants::{Route, grant};
use crate::support::sse::Stream;
use crate::support::{Fault, Mode, Rule, SECRET, Stage};

/// The forms in which an echo is still recognised: as it is, base64, of a user and password,
/// escaped for a URL and in JSON, in hexadecimal.
pub(super) fn forms() -> Vec<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    vec![
        SECRET.to_owned(),
        STANDARD.encode(SECRET),
        STANDARD.encode(format!("user:{SECRET}")),
        URL_SAFE_NO_PAD.encode(SECRET),
        hex::encode(SECRET),
        hex::encode_upper(SECRET),
        SECRET.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        SECRET.bytes().map(|byte| format!("\\u{byte:04x}")).collect(),
    ]
}

fn assert_nowhere(stage: &Stage, ids: &[String]) {
    let agent = stage.host.agent();
    for form in forms() {
        // The file that holds it is the operator's own; nothing that the host writes may have it.
        let found = files_with(stage.host.folder(), &form);
        let others: Vec<_> = found.iter().filter(|path| **path != stage.host.file("provider_key")).collect();
        assert!(others.is_empty(), "{form} is in {others:?}");
        assert!(!stage.host.said().contains(&form), "the host said {form}");
        for id in ids {
            let mut heard = String::new();
            if let Ok(mut stream) =
                Stream::open(&agent, &stage.host.address(), &format!("/v1/actions/{id}/events"), Some("0"))
            {
                // It ends with the action, which is over.
                while let Some(event) = stream.next() {
                    heard.push_str(&event.data.to_string());
                }
            }
            assert!(heard.contains("succeeded") && !heard.contains(&form), "{form} in the stream: {heard}");
            for part in ["", "/effects?history=true", "/events", "/log"] {
                let told = agent.get(&format!("/v1/actions/{id}{part}"));
                assert!(
                    !contains(&told.answer.body, form.as_bytes()),
                    "{form} in {part}: {}",
                    told.answer.text()
                );
            }
        }
        for target in
            ["/v1/actions", "/v1/events?limit=1000", "/v1/tools", "/v1/tools/refund", "/v1/tools/echo"]
        {
            assert!(!contains(&agent.get(target).answer.body, form.as_bytes()), "{form} in {target}");
        }
    }
}

#[test]
fn c01_and_c03_a_secret_is_in_no_file_log_answer_or_event_also_when_the_provider_echoes_it() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let head = "show = [\"/mode\"]";
    let route = Route::manual(port, "/echo").with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"\nX-Key = \"{{secret:provider_key}}\"");
    stage.install_probe("echo", &grant(head, &[route]));
    let mut ids = Vec::new();
    // The provider sends back everything it was sent.
    let id = stage.approved(
        "echo",
        "echo",
        &json!({ "mode": "writes", "url": stage.url("/echo"), "bodies": ["hello"] }),
    );
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    let answer = told.text("/result/answers/0/body");
    assert!(answer.contains("hello") && answer.to_lowercase().contains("x-key"), "it was an echo: {answer}");
    ids.push(id);
    // And in other forms, in the body and in headers.
    for (i, form) in forms().into_iter().enumerate() {
        let headers = std::collections::BTreeMap::from([
            ("Location".to_owned(), format!("https://x.example/?k={form}")),
            ("Set-Cookie".to_owned(), format!("k={form}")),
            ("WWW-Authenticate".to_owned(), format!("Bearer error=\"{form}\"")),
        ]);
        let body = Some(json!(format!("<html>your key {form} is wrong</html>")));
        stage.provider.fault(Rule::once("/echo", Fault::Status { code: 401, headers, body }));
        let key = format!("form-{i}");
        let id = stage.approved(
            "echo",
            &key,
            &json!({ "mode": "writes", "url": stage.url("/echo"), "bodies": [key] }),
        );
        let told = stage.execute(&id);
        assert_eq!(told.outcome(), "succeeded", "{}", told.json);
        assert!(told.text("/result/answers/0/body").contains("your key"), "{}", told.json);
        ids.push(id);
    }
    // Lost replies, refused connections and kills leave none behind either.
    stage.provider.set_mode(Mode::Honours);
    stage.provider.fault(Rule::once("/v1/refunds", Fault::LoseReply));
    let id = stage.approved("refund", "lost", &stage.refund("lost", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    ids.push(id);
    // It did get there: what is held secret is held secret from everybody else.
    let sent = stage.provider.requests("/v1/refunds");
    assert!(sent.iter().all(|line| line.authorization_present) && !sent.is_empty());
    assert_nowhere(&stage, &ids);
    stage.host.kill_and_wake();
    assert_nowhere(&stage, &ids);
    stage.host.stop();
    for form in forms() {
        let found = files_with(stage.host.folder(), &form);
        assert!(found.iter().all(|path| *path == stage.host.file("provider_key")), "{form}: {found:?}");
    }
}

#[test]
fn c04_a_secret_goes_to_the_route_that_names_it_and_to_no_other() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let keyed = Route::manual(port, "/any/with")
        .with("unplanned = 1")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"");
    stage.install_probe(
        "two",
        &grant("", &[keyed, Route::manual(port, "/any/without").with("unplanned = 1")]),
    );
    let steps = json!([
        { "method": "POST", "url": stage.url("/any/with"), "body": "a" },
        { "method": "POST", "url": stage.url("/any/without"), "body": "b" },
    ]);
    let id = stage.approved("two", "two", &json!({ "mode": "script", "steps": steps }));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert!(stage.requests("/any/with", &id)[0].authorization_present);
    assert!(!stage.requests("/any/without", &id)[0].authorization_present);
    assert_eq!(stage.requests("/any/without", &id).len(), 1);
}

#[test]
fn a_grant_that_names_a_secret_which_is_not_there_sends_nothing() {
    let stage = Stage::set();
    let route = Route::idempotent(stage.provider.port(), "/keyed/**")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:no_such_key}}\"");
    let told = stage.put_grant("probe", &grant("", &[route]));
    if told.status() == 200 {
        let proposed = stage.propose(
            "probe",
            "no-key",
            &json!({ "mode": "writes", "url": stage.url("/keyed/x"), "bodies": ["x"] }),
        );
        if proposed.status() == 201 {
            stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
            let told = stage.execute(&proposed.id());
            assert!(
                told.answer.text().contains("no_such_key")
                    || told.outcome() != "succeeded"
                    || told.answer.text().contains("Denied"),
                "{}",
                told.json
            );
        }
    } else {
        assert!(told.answer.text().contains("no_such_key"), "{}", told.answer.text());
    }
    assert_eq!(stage.provider.requests("/keyed/x").len(), 0);
}

#[test]
fn c06_a_secret_is_not_in_the_hosts_environment_or_command_line() {
    let stage = Stage::set();
    for part in ["environ", "cmdline"] {
        let bytes = std::fs::read(format!("/proc/{}/{part}", stage.host.pid())).expect("the process");
        assert!(!contains(&bytes, SECRET.as_bytes()), "{part}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", stage.host.pid())).expect("its limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("the limit");
    assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "no core dump: {core}");
}

#[test]
fn c03_a_secret_is_in_no_table_no_file_and_no_log_of_a_database_server() {
    let Some(cluster) = crate::support::postgres::shared() else { return };
    let database = cluster.database();
    let stage = Stage::over(Some(cluster.url(&database)), "", "30s");
    let port = stage.provider.port();
    let route = Route::manual(port, "/echo")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"");
    stage.install_probe("echo", &grant("", &[route]));
    let mut ids = Vec::new();
    for (i, form) in forms().into_iter().enumerate() {
        let headers = std::collections::BTreeMap::from([("Set-Cookie".to_owned(), format!("k={form}"))]);
        let body = Some(json!(format!("your key {form} is wrong")));
        stage.provider.fault(Rule::once("/echo", Fault::Status { code: 401, headers, body }));
        let key = format!("form-{i}");
        let arguments = json!({ "mode": "writes", "url": stage.url("/echo"), "bodies": [key] });
        let id = stage.approved("echo", &key, &arguments);
        assert_eq!(stage.execute(&id).outcome(), "succeeded");
        ids.push(id);
    }
    assert_nowhere(&stage, &ids);
    // All that a dump would have: bytes are in hexadecimal there.
    let tables = cluster.sql(
        &database,
        "select table_name from information_schema.tables where table_schema = current_schema()",
    );
    let tables: Vec<&str> = tables.lines().map(str::trim).filter(|name| !name.is_empty()).collect();
    assert!(tables.contains(&"actions") && tables.contains(&"effects"), "{tables:?}");
    for table in tables {
        let rows = cluster.sql(
            &database,
            &format!("select coalesce(string_agg(to_jsonb(t)::text, e'\\n'), '') from \"{table}\" t"),
        );
        for form in forms() {
            assert!(!rows.contains(&form), "{form} is in {table}");
        }
    }
    let dump = cluster.dump(&database);
    assert!(
        dump.contains("COPY") && dump.contains(&ids[0].replace('-', "")) || dump.contains(&ids[0]),
        "a dump"
    );
    for form in forms() {
        let (text, bytes) = (form.as_str(), hex::encode(&form));
        assert!(!dump.contains(text) && !dump.contains(&bytes), "{form} is in the dump");
    }
    // Its files, its write-ahead log and its own log.
    let folder = cluster.socket().parent().expect("its folder").to_owned();
    for form in forms() {
        let found = std::process::Command::new("grep")
            .args(["-r", "-a", "-l", "-F", "-D", "skip", &form])
            .arg(&folder)
            .output()
            .expect("grep");
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert_eq!(found, "", "{form}");
    }
}
