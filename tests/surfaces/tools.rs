//! What is uploaded and is no tool, and grants that are none.

use serde_json::json;

use crate::support::stage::multipart;
use crate::support::{Stage, Told, grants, guests};

fn upload(stage: &Stage, parts: &[(&str, &[u8])]) -> Told {
    let operator = stage.host.operator();
    let (media_type, body) = multipart(parts);
    operator.send(operator.request("POST", "/v1/tools").body(&media_type, body))
}

fn component(stage: &Stage, bytes: &[u8]) -> Told {
    let operator = stage.host.operator();
    operator.send(operator.request("POST", "/v1/tools").body("application/wasm", bytes))
}

fn built(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn what_is_no_component_is_422_and_says_what_it_is_instead() {
    let stage = Stage::set();
    let tools = stage.host.agent().get("/v1/tools").expect(200).json["tools"].as_array().map(Vec::len);
    let mut cut = guests::PROBE.clone();
    cut.truncate(cut.len() / 2);
    let mut broken = guests::PROBE.clone();
    for byte in broken.iter_mut().skip(5000).take(64) {
        *byte ^= 0xff;
    }
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "empty"),
        (b"hello".to_vec(), "not a WebAssembly component"),
        (b"(component)".to_vec(), "text format"),
        (built("(module)"), "core WebAssembly module"),
        (b"\0asm\x0e\0\x01\0".to_vec(), "not known here"),
        (b"\x7fELF\x02\x01\x01".to_vec(), "machine code"),
        (cut, "component"),
        (broken, ""),
        (built("(component)"), "countersign:tool"),
    ];
    for (bytes, part) in cases {
        let said = component(&stage, &bytes).refused(422, "component_refused");
        assert!(said.contains(part), "{part}: {said}");
    }
    let after = stage.host.agent().get("/v1/tools").expect(200).json["tools"].as_array().map(Vec::len);
    assert_eq!(after, tools);
}

#[test]
fn a02_and_a17_a_forbidden_import_or_feature_is_named() {
    let stage = Stage::set();
    let import = |name: &str| built(&format!("(component (import \"{name}\" (instance)))"));
    for name in [
        "evil:pkg/iface@1.0.0",
        "wasi:keyvalue/store@0.2.0",
        "wasi:http/outgoing-handler@0.3.0",
        "wasi:http/types@0.2.0-rc-2023-11-10",
        "countersign:tool/email@0.2.0",
        "countersign:tool/secrets@0.1.0",
    ] {
        let said = component(&stage, &import(name)).refused(422, "component_refused");
        assert!(said.contains(name), "{said}");
    }
    let core = |module: &str| built(&format!("(component (core module {module}))"));
    for (module, feature) in [
        ("(memory i64 1)", "memory64"),
        ("(type (struct))", "gc"),
        ("(tag)", "exception"),
        ("(memory 1 1 shared)", "thread"),
        ("(memory 1) (memory 1)", "memor"),
        ("(func $f return_call $f)", "tail"),
    ] {
        let said = component(&stage, &core(module)).refused(422, "component_refused").to_lowercase();
        assert!(said.contains(feature), "{module}: {said}");
    }
}

#[test]
fn a_grant_that_is_none_is_422_with_line_problem_and_remedy_and_installs_nothing() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let good = grants::refund(port);
    let before = stage.host.operator().get("/v1/tools/refund").expect(200);
    for (grant, parts) in [
        ("colour = \"red\"".to_owned(), ["line 1", "colour", "known here"]),
        ("[limits]\nmemroy = \"64MiB\"".to_owned(), ["line 2", "memroy", "did you mean"]),
        ("[approval]\nrequired = 9".to_owned(), ["line 2", "required", "5"]),
        ("required = ".to_owned(), ["line 1", "column", "grant"]),
        (good.replace("\"POST\"", "\"CONNECT\""), ["CONNECT", "methods", "line"]),
        (good.replace("allow_private = true\n", ""), ["http", "allow_private", "line"]),
        (good.replace("127.0.0.1", "*"), ["host", "line", "*"]),
        (good.replace("provider-idempotent", "whenever"), ["recovery", "verifiable", "line"]),
        (good.replace("Authorization =", "Host ="), ["Host", "line", "host"]),
        ("[limits]\nmemory = \"4GiB\"".to_owned(), ["memory", "4GiB", "at most"]),
        ("[limits]\nmemory = \"1GiB\"".to_owned(), ["memory", "at most", "512MiB"]),
        ("[approval]\nexpires_after = \"25h\"".to_owned(), ["expires_after", "line 2", "24h"]),
    ] {
        for told in [
            upload(&stage, &[("component", &guests::REFUND), ("grant", grant.as_bytes())]),
            stage.put_grant("refund", &grant),
        ] {
            let said = told.refused(422, "invalid_grant");
            assert!(parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
        }
    }
    let after = stage.host.operator().get("/v1/tools/refund").expect(200);
    assert_eq!(after.text("/grant_digest"), before.text("/grant_digest"));
    let told = upload(&stage, &[("component", &guests::REFUND), ("grant", b"\xff\xfe")]);
    told.refused(422, "invalid_grant");
    let told = stage.put_grant("refund", &format!("# {}", "x".repeat(300 << 10)));
    told.refused(413, "too_large");
    stage.put_grant("no-such-tool", &good).refused(404, "not_found");
}

#[test]
fn an_upload_has_its_two_parts_once_each_and_nothing_else() {
    let stage = Stage::set();
    let grant = grants::refund(stage.provider.port());
    let refund: &[u8] = &guests::REFUND;
    upload(&stage, &[("grant", grant.as_bytes())]).refused(400, "invalid_request");
    upload(&stage, &[("component", refund), ("component", refund)]).refused(400, "invalid_request");
    upload(&stage, &[("component", refund), ("grants", grant.as_bytes())]).refused(400, "invalid_request");
    upload(&stage, &[]).refused(400, "invalid_request");
    let operator = stage.host.operator();
    for media_type in ["multipart/form-data", "multipart/form-data; boundary="] {
        let told = operator.send(operator.request("POST", "/v1/tools").body(media_type, "--x\r\n"));
        told.refused(400, "invalid_request");
    }
    for name in ["re%20fund", "%00", "", &"n".repeat(200), "s%D0%B5nd"] {
        let told = operator.send(
            operator.request("POST", &format!("/v1/tools?name={name}")).body("application/wasm", refund),
        );
        assert_eq!(told.status(), 400, "{name}: {}", told.json);
    }
    // Without a grant a tool may reach nothing; it plans nothing it could send.
    let told =
        operator.send(operator.request("POST", "/v1/tools?name=bare").body("application/wasm", refund));
    told.expect(201);
    let told = stage.propose("bare", "bare", &stage.refund("bare", 100));
    assert_eq!(told.outcome(), "planning_failed", "{}", told.json);
    assert_eq!(stage.provider.log().len(), 0);
}

#[test]
fn installing_the_same_again_is_the_same_and_the_same_version_with_other_code_is_refused() {
    let stage = Stage::set();
    let grant = grants::refund(stage.provider.port());
    let waits = stage.approved("refund", "waits", &stage.refund("waits", 100));
    let again = stage.install(&guests::REFUND, &grant);
    assert!([200, 201].contains(&again.status()), "{}", again.json);
    assert_eq!(again.json["versions"].as_array().map(Vec::len), Some(1));
    assert_eq!(stage.execute(&waits).outcome(), "succeeded", "what is the same voids nothing");
    // Other bytes that call themselves 0.1.0: the transfer tool under the refund tool's name.
    let told = crate::support::stage::install(&stage.host, "?name=refund", &guests::TRANSFER, &grant);
    let said = told.refused(409, "invalid_state");
    assert!(said.contains("0.1.0"), "{said}");
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let stage = Stage::set();
    let id = stage.propose("refund", "dry", &stage.refund("dry", 100)).expect(201).id();
    let operator = stage.host.operator();
    let told = operator.send(
        operator.request("POST", "/v1/tools?dry_run=true").body("application/wasm", guests::PROBE.clone()),
    );
    assert_eq!(told.expect(200).json["installed"], false);
    let grant = grants::grant("", &[]);
    let request = operator
        .request("PUT", "/v1/tools/refund/grant?dry_run=true")
        .body("application/toml", grant.clone());
    let told = operator.send(request).expect(200);
    assert_eq!((told.json["same"].clone(), told.json["voids"].clone()), (json!(false), json!([id])));
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
    let same = grants::refund(stage.provider.port());
    let request =
        operator.request("PUT", "/v1/tools/refund/grant?dry_run=true").body("application/toml", same);
    assert_eq!(operator.send(request).expect(200).json["same"], true);
    // Pending actions of other tools are not touched by it.
    let other = stage.propose("transfer", "other", &stage.transfer(100)).expect(201).id();
    let request =
        operator.request("PUT", "/v1/tools/refund/grant?dry_run=true").body("application/toml", grant);
    assert_eq!(operator.send(request).expect(200).json["voids"], json!([id]), "not {other}");
}
