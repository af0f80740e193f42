//! Mail: what is approved is what is sent, to those who were shown, once; and a mail whose
//! outcome nobody knows is never sent again without a person's word.

use serde_json::{Value, json};

use crate::on_both_stores;
use crate::support::aiosmtpd::Aiosmtpd;
use crate::support::smtp::{Manner, Smtp};
use crate::support::stage::install;
use crate::support::{Backend, Stage, guests, long};

on_both_stores! {
    k02_a_server_that_hangs_up_after_the_last_dot_has_as_many_mails_as_there_are_unknowns,
    k02_a_host_killed_while_the_server_holds_its_answer_never_sends_the_mail_again,
}

const GRANT: &str = "show = [\"/to\", \"/subject\"]\n[limits]\nsend = \"SEND\"\n[email]\nfrom = \"billing@example.com\"\n\
                     reply_to = \"support@example.com\"\nrecipients = [\"*@example.com\", \"a@b.c\"]\n";

/// A host with a mail server and the mail tool.
fn stage_on(store: Backend, send: &str) -> (Smtp, Stage) {
    let smtp = Smtp::start();
    let toml = format!("{}\n{}", store.lease(), smtp.section());
    let stage = Stage::on_with(store, &toml, store.send());
    stage.install(&guests::SEND_EMAIL, &GRANT.replace("SEND", send)).expect(201);
    (smtp, stage)
}

fn stage() -> (Smtp, Stage) {
    stage_on(Backend::Sqlite, "30s")
}

fn mail(subject: &str) -> Value {
    json!({ "to": ["ada@example.com"], "subject": subject, "text": "Hello" })
}

/// Executes a mail of which nobody learns what came of it.
#[track_caller]
fn lost(stage: &Stage, key: &str) -> String {
    let id = stage.approved("send-email", key, &mail(key));
    stage.execute(&id).refused(409, "execution_in_doubt");
    id
}

fn message_id(id: &str) -> String {
    format!("<tool-action.{id}.1@example.com>")
}

#[test]
fn k01_a_mail_is_shown_whole_approved_and_sent_once_to_those_who_were_shown() {
    let (smtp, stage) = stage();
    let body = "first\n.\nMAIL FROM:<x>\r\nRCPT TO:<x@evil>\n";
    let arguments = json!({
        "to": [{ "name": "Ada Lovelace", "address": "ada@example.com" }], "cc": ["a@b.c"], "bcc": ["hidden@example.com"],
        "subject": "Invoice für März", "text": body, "html": "<p>Hello</p>",
        "attachments": [{ "name": "invoice.pdf", "media_type": "application/pdf", "content_base64": "JVBERi0x" }],
    });
    let proposed = stage.propose("send-email", "whole", &arguments).expect(201);
    let id = proposed.id();
    let shown = &proposed.json["plan"]["first_write"]["mail"];
    assert_eq!(shown["from"], "billing@example.com");
    assert_eq!(shown["reply_to"], "support@example.com");
    assert_eq!(shown["bcc"][0]["address"], "hidden@example.com");
    assert_eq!(shown["text"], body);
    assert_eq!(shown["attachments"][0]["bytes"], 6);
    assert!(shown["attachments"][0]["sha256"].as_str().is_some_and(|digest| digest.len() == 64), "{shown}");
    let page = stage.host.cli(&["show", &id]).out;
    for part in [
        "billing@example.com",
        "support@example.com",
        "ada@example.com, shown as \"Ada Lovelace\"",
        "a@b.c",
        "hidden copy to",
        "hidden@example.com",
        "Invoice für März",
        "MAIL FROM:<x>",
        "<p>Hello</p>",
        "\"invoice.pdf\", application/pdf, 6 bytes",
        shown["attachments"][0]["sha256"].as_str().expect("a digest"),
    ] {
        assert!(page.contains(part), "{part:?} is missing in\n{page}");
    }
    assert!(smtp.talks().is_empty(), "nothing is said to the server before approval");

    stage.approve(&id, &proposed.text("/fingerprint")).expect(200);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.text("/result/message_id"), message_id(&id));
    assert_eq!(told.text("/provider_reference"), message_id(&id));
    assert_eq!(stage.execute(&id).text("/result/message_id"), message_id(&id));
    stage.host.kill_and_wake();
    assert_eq!(stage.execute(&id).text("/result/message_id"), message_id(&id));

    let [talk] = &smtp.talks()[..] else { panic!("{:#?}", smtp.talks()) };
    assert_eq!((talk.count("MAIL"), talk.count("RCPT"), talk.count("DATA")), (1, 3, 1), "{talk:#?}");
    for address in ["ada@example.com", "a@b.c", "hidden@example.com"] {
        assert_eq!(talk.count(&format!("RCPT TO:<{address}>")), 1);
    }
    assert_eq!(talk.header("From"), Some("<billing@example.com>"));
    assert_eq!(talk.header("Reply-To"), Some("<support@example.com>"));
    assert_eq!(talk.header("Message-ID"), Some(&*message_id(&id)));
    assert!(!talk.mail.iter().any(|line| line.contains("hidden") || line.contains("MAIL FROM")));
    let wanted = "first\r\n.\r\nMAIL FROM:<x>\r\nRCPT TO:<x@evil>\r\n";
    assert_eq!(talk.parts(), [wanted.as_bytes(), b"<p>Hello</p>", b"%PDF-1"]);
    stage.facts(&id);
}

#[test]
fn k01_whatever_would_make_one_mail_two_is_refused_before_anybody_is_asked() {
    let (smtp, stage) = stage();
    let with = |member: &str, value: Value| {
        let mut arguments = mail("Hi");
        arguments[member] = value;
        arguments
    };
    let named = |name: &str| json!([{ "name": name, "address": "ada@example.com" }]);
    let file = |name: &str, kind: &str| json!([{ "name": name, "media_type": kind, "content_base64": "" }]);
    for (n, (arguments, said)) in [
        (with("subject", json!("Hi\r\nBcc: x@evil")), "subject holds U+000D"),
        (with("to", json!(["\"a\r\nRCPT TO:<x@evil>\"@b.c"])), "is no address"),
        (with("to", json!(["a@b.c, x@evil"])), "is no address"),
        (with("to", json!(["a@b.c>\r\nRCPT TO:<x@evil"])), "is no address"),
        (with("to", named("Ada\u{202e}moc.live")), "U+202E"),
        (with("to", named("Ada\r\nBcc: x@evil")), "U+000D"),
        (with("to", named("boss@example.com")), "looks like an address"),
        (with("attachments", file("a\r\nX: y", "text/plain")), "U+000D"),
        (with("attachments", file("a", "text/plain\r\nX: y")), "no media type"),
        (with("text", json!("a\u{8}b")), "text holds U+0008"),
        (with("to", json!([])), "no recipient"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = stage.propose("send-email", &format!("hostile-{n}"), &arguments);
        let refused = told.expect(422).refused(422, "invalid_arguments");
        assert!(refused.contains(said), "{said:?}: {refused}");
    }
    for (n, member) in ["to", "cc", "bcc"].into_iter().enumerate() {
        let told =
            stage.propose("send-email", &format!("stranger-{n}"), &with(member, json!(["x@evil.example"])));
        let refused = told.refused(422, "planning_failed");
        assert!(refused.contains("may not write to x@evil.example"), "{refused}");
    }
    assert!(smtp.talks().is_empty(), "{:#?}", smtp.talks());
}

fn k02_a_server_that_hangs_up_after_the_last_dot_has_as_many_mails_as_there_are_unknowns(store: Backend) {
    let (smtp, stage) = stage_on(store, "2s");
    smtp.behave(Manner::HangsUpAfter);
    let rounds = long(10, 100);
    let ids: Vec<String> = (0..rounds).map(|n| lost(&stage, &format!("lost-{n}"))).collect();
    stage.host.kill_and_wake();
    smtp.behave(Manner::Takes);
    for id in &ids {
        assert_eq!(stage.action(id).outcome(), "outcome_unknown");
        stage.execute(id).refused(409, "execution_in_doubt");
        let effect = &stage.ledger(id)[0];
        assert_eq!(
            (&effect["status"], &effect["kind"], &effect["send"]),
            (&json!("unknown"), &json!("email"), &json!(1))
        );
        stage.facts(id);
    }
    let sent: Vec<String> =
        smtp.mails().iter().filter_map(|talk| talk.header("Message-ID").map(str::to_owned)).collect();
    assert_eq!(sent, ids.iter().map(|id| message_id(id)).collect::<Vec<_>>());
    assert_eq!((smtp.asked(), smtp.talks().len()), (rounds, rounds), "never a second time");
}

fn k02_a_host_killed_while_the_server_holds_its_answer_never_sends_the_mail_again(store: Backend) {
    let (smtp, stage) = stage_on(store, "2s");
    smtp.behave(Manner::Holds);
    let id = stage.approved("send-email", "held", &mail("held"));
    let caller = stage.execute_unheard(&id);
    smtp.wait_mails(1);
    stage.host.kill_and_wake();
    drop(caller);
    smtp.behave(Manner::Takes);
    stage.wait_for(&id, &["outcome_unknown"]);
    stage.execute(&id).refused(409, "execution_in_doubt");
    stage.host.kill_and_wake();
    stage.execute(&id).refused(409, "execution_in_doubt");
    assert_eq!((smtp.asked(), smtp.mails().len()), (1, 1));

    // Somebody finds it in the server's log. A mail's answer needs no writing down.
    let word = json!({ "ordinal": 1, "outcome": "happened", "evidence": "mail.log, 10:42" });
    stage.resolve(&id, word).expect(200);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.text("/result/message_id"), message_id(&id));
    assert_eq!(smtp.mails()[0].header("Message-ID"), Some(&*message_id(&id)));
    assert_eq!((smtp.asked(), smtp.talks().len()), (1, 1));
    assert!(stage.facts(&id).contains(&"found_done".to_owned()));
}

#[test]
fn k02_a_mail_that_a_person_says_did_not_arrive_is_sent_once_more_under_the_same_id() {
    let (smtp, stage) = stage_on(Backend::Sqlite, "700ms");
    smtp.behave(Manner::HangsUpIn(3));
    let id = lost(&stage, "half");
    smtp.behave(Manner::Takes);
    let word = json!({ "ordinal": 1, "send": 1, "outcome": "did_not_happen", "evidence": "not in mail.log" });
    let early = stage.resolve(&id, word.clone()).refused(409, "invalid_state");
    assert!(early.contains("too early"), "{early}");
    let settles = stage.ledger(&id)[0]["settles_at"].as_str().expect("a time").to_owned();
    super::expiry::wait_until(&settles);
    stage.resolve(&id, word).expect(200);
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!((smtp.asked(), smtp.mails().len()), (2, 1));
    let talks = smtp.talks();
    assert!(talks[1].mail.contains(&format!("Message-ID: {}", message_id(&id))), "{:#?}", talks[1]);
    assert!(stage.facts(&id).contains(&"found_not_done".to_owned()));
}

#[test]
fn a_recipient_that_the_server_refuses_ends_it_and_nobody_gets_the_mail() {
    let (smtp, stage) = stage();
    smtp.behave(Manner::KnowsNobody);
    let id = stage.approved("send-email", "nobody", &mail("nobody"));
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "failed_terminal", "{}", told.json);
    assert!(told.text("/error/message").contains("550 5.1.1 nobody of that name"), "{}", told.json);
    let effect = &stage.ledger(&id)[0];
    assert_eq!(effect["status"], "failed");
    assert_eq!((smtp.asked(), smtp.mails().len()), (0, 0));
    stage.facts(&id);
}

#[test]
fn a_mail_that_no_server_is_there_for_is_not_sent_and_tried_again() {
    let smtp = Smtp::start();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("its address").port();
    drop(nobody);
    let section =
        format!("[smtp]\nserver = \"smtp://127.0.0.1:{port}\"\ntls = \"off\"\nallow_private = true\n");
    let stage = Stage::on_with(Backend::Sqlite, &section, "30s");
    stage.install(&guests::SEND_EMAIL, &GRANT.replace("SEND", "30s")).expect(201);
    let id = stage.approved("send-email", "later", &mail("later"));
    stage.start_execute(&id);
    assert_eq!(stage.wait_for(&id, &["failed_retryable"]).text("/error/code"), "not_sent");
    // Now there is one.
    stage.host.stop();
    stage.host.configure(&smtp.section());
    stage.host.wake();
    let told = stage.wait_for(&id, &["succeeded"]);
    assert_eq!(told.text("/result/message_id"), message_id(&id));
    assert_eq!((smtp.asked(), smtp.mails().len()), (1, 1));
}

#[test]
fn a_host_without_a_mail_server_says_so_at_install_and_refuses_each_mail() {
    let stage = Stage::set();
    let told = install(&stage.host, "", &guests::SEND_EMAIL, &GRANT.replace("SEND", "30s")).expect(201);
    let warnings = told.json["warnings"].to_string();
    assert!(warnings.contains("this host sends none") && warnings.contains("[smtp]"), "{warnings}");
    let refused = stage.propose("send-email", "none", &mail("none")).refused(422, "planning_failed");
    assert!(refused.contains("may send no mail here"), "{refused}");
}

#[cfg(debug_assertions)]
#[test]
fn k02_killed_at_every_point_of_a_mail_it_is_sent_at_most_once_and_never_after_a_doubt() {
    use countersign_gate::Point;
    let (smtp, stage) = stage();
    for point in Point::ALL {
        stage.host.kill();
        let at = point.name();
        stage.host.wake_armed(at);
        let before = smtp.asked();
        let id = stage.approved("send-email", at, &mail(at));
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| stage.try_execute(&id));
            stage.host.wait_halted();
            stage.host.kill();
            let _ = caller.join();
        });
        stage.host.wake();
        // Known to nobody: sent or not, only the process that died could say.
        let mails = match point {
            Point::AfterWriteClaim | Point::BeforeFirstByte | Point::AfterAnswer => {
                stage.execute(&id).refused(409, "execution_in_doubt");
                usize::from(*point == Point::AfterAnswer)
            }
            _ => {
                assert_eq!(stage.execute(&id).text("/result/message_id"), message_id(&id), "{at}");
                1
            }
        };
        let got = |id: &str| {
            smtp.mails().iter().filter(|m| m.header("Message-ID") == Some(&*message_id(id))).count()
        };
        assert_eq!(got(&id), mails, "{at}");
        // At the last look the server has agreed to take it, and has not been given it.
        let asked = mails + usize::from(*point == Point::BeforeFirstByte);
        assert_eq!(smtp.asked() - before, asked, "{at}");
        stage.facts(&id);
    }
}

#[test]
fn k01_a_server_that_others_wrote_takes_the_mail_and_reads_in_it_what_was_approved() {
    let Some(smtp) = Aiosmtpd::start() else { return };
    let stage = Stage::on_with(Backend::Sqlite, &smtp.section(), "30s");
    stage.install(&guests::SEND_EMAIL, &GRANT.replace("SEND", "30s")).expect(201);
    let text = "first\n.\nMAIL FROM:<x>\n..\n\u{fc}\n";
    let id = stage.approved(
        "send-email",
        "others",
        &json!({
            "to": [{ "name": "Ada M\u{e4}rz", "address": "ada@example.com" }], "bcc": ["hidden@example.com"],
            "subject": "Invoice f\u{fc}r M\u{e4}rz, a long one that has to be folded somewhere before its end, and then on",
            "text": text, "html": "<p>Hello</p>",
            "attachments": [{ "name": "r\u{e9}sum\u{e9}.pdf", "media_type": "application/pdf", "content_base64": "JVBERi0x" }],
        }),
    );
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    let [mail] = &smtp.mails()[..] else { panic!("{:#?}", smtp.mails()) };
    assert_eq!(mail["defects"], json!([]), "{mail:#}");
    let header = |name: &str| {
        let all = mail["headers"].as_array().expect("headers").iter();
        let values: Vec<_> = all.filter(|header| header[0] == name).map(|header| header[1].clone()).collect();
        assert!(values.len() <= 1, "{name}: {values:?}");
        values.first().and_then(|value| value.as_str().map(str::to_owned))
    };
    assert_eq!(header("From").as_deref(), Some("billing@example.com"));
    assert_eq!(header("To").as_deref(), Some("Ada M\u{e4}rz <ada@example.com>"));
    assert_eq!(header("Message-ID"), Some(message_id(&id)));
    assert_eq!(header("Bcc"), None);
    let subject = header("Subject").expect("a subject");
    assert!(
        subject.starts_with("Invoice f\u{fc}r M\u{e4}rz") && subject.ends_with("and then on"),
        "{subject}"
    );
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts: Vec<(&str, &str)> = mail["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .map(|part| (part["type"].as_str().expect("a type"), part["hex"].as_str().expect("bytes")))
        .collect();
    let (text, html, file) =
        (hex(text.replace('\n', "\r\n").as_bytes()), hex(b"<p>Hello</p>"), hex(b"%PDF-1"));
    assert_eq!(parts, [("text/plain", &*text), ("text/html", &*html), ("application/pdf", &*file)]);
    assert_eq!(mail["parts"][2]["name"], "r\u{e9}sum\u{e9}.pdf");
    // Told to the server, and in no header: who got a hidden copy.
    assert!(header("X-RcptTo").is_some_and(|told| told.contains("hidden@example.com")), "{mail:#}");
}
