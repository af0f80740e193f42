//! B01 through the whole host: a server of names that lies, named in `egress.dns`. What it says
//! is judged, once per connection; a loopback listener on the very port sees nobody.

use std::net::{IpAddr, TcpListener};

use serde_json::{Value, json};

use crate::support::dns::{Dns, Says, at};
use crate::support::smtp::Smtp;
use crate::support::{Stage, at_once, guests, long};

const GOOD: &str = "93.184.216.34";

/// A host that asks this server.
fn asking(dns: &Dns, more: &str) -> Stage {
    Stage::over(None, &format!("[egress]\ndns = [\"{}\"]\n{more}", dns.address()), "30s")
}

/// Somebody inside, who must not be connected to.
struct Inside(TcpListener);

impl Inside {
    fn listening() -> Inside {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a port that does not wait");
        Inside(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("its address").port()
    }

    #[track_caller]
    fn assert_alone(&self) {
        let heard = self.0.accept();
        assert!(heard.is_err(), "somebody inside was connected to: {heard:?}");
    }
}

/// Routes to these names by TLS, private addresses closed.
fn public(names: &[&str], port: u16) -> String {
    let route = |name: &&str| {
        format!(
            "[[http]]\nhost = \"{name}\"\nport = {port}\nmethods = [\"POST\"]\npath = \"/**\"\nrecovery = \"manual\"\n"
        )
    };
    names.iter().map(route).collect()
}

fn call(url: &str) -> Value {
    json!({ "mode": "forbidden-host", "url": url, "method": "POST", "body": "x" })
}

/// Makes one call: what the component was told, or why there was nothing to tell it.
fn ending(stage: &Stage, tool: &str, key: &str, url: &str) -> String {
    let id = stage.approved(tool, key, &call(url));
    stage.start_execute(&id);
    let told = stage.wait_for(&id, &["succeeded", "failed_retryable", "failed_terminal"]);
    match told.text("/result/error") {
        error if error.is_empty() => told.ending(),
        error => error,
    }
}

const PROHIBITED: &str = "DestinationIpProhibited";

#[test]
fn b01_a_name_that_alternates_with_each_question_reaches_nobody_inside() {
    const LANES: usize = 8;
    let (inside, dns) = (Inside::listening(), Dns::start());
    let names: Vec<String> = (0..LANES).map(|lane| format!("n{lane}.example")).collect();
    for name in &names {
        dns.in_turn(name, vec![at(&[GOOD]), at(&["127.0.0.1"])]);
    }
    let stage = asking(&dns, "");
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    stage.install_probe("out", &public(&known, inside.port()));
    // The thousand in one sitting are the sender's own test.
    let rounds = long(5, 125);
    let endings = at_once(LANES, |lane| {
        let url = format!("https://{}:{}/x", names[lane], inside.port());
        let one = |round| ending(&stage, "out", &format!("{lane}-{round}"), &url);
        (0..rounds).map(one).collect::<Vec<_>>()
    });
    let endings: Vec<String> = endings.into_iter().flatten().collect();
    for told in &endings {
        // A question that is asked again on the way takes the next answer: some calls may meet
        // the good address each time, until they are given up.
        assert!(told == PROHIBITED || told.ends_with(" not_sent"), "{told}");
    }
    assert!(endings.iter().any(|told| told == PROHIBITED), "{endings:?}");
    // Where the good address came first, nothing was sent, and the call was tried again.
    let asked: usize = names.iter().map(|name| dns.asked(name)).sum();
    assert!(asked > endings.len(), "both answers came: {asked} for {}", endings.len());
    inside.assert_alone();
}

#[test]
fn b01_p6_whatever_a_server_of_names_says_only_judged_addresses_are_connected_to() {
    let (inside, dns) = (Inside::listening(), Dns::start());
    dns.say("inside.example", at(&["127.0.0.1"]));
    let good: IpAddr = GOOD.parse().expect("an address");
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let mut thousand = vec![good; 999];
    thousand.push(loopback);
    let not_sent = "failed_retryable not_sent";
    let cases = [
        ("mixed.example", at(&[GOOD, "127.0.0.1"]), PROHIBITED),
        ("alias.example", Says::Alias("inside.example"), PROHIBITED),
        ("bare-alias.example", Says::BareAlias("inside.example"), PROHIBITED),
        ("six.example", at(&[GOOD, "::1"]), PROHIBITED),
        ("cut.example", Says::CutShort(vec![good, loopback]), PROHIBITED),
        ("thousand.example", Says::At(thousand), PROHIBITED),
        ("silent.example", Says::Silence, not_sent),
        ("broken.example", Says::Failure, not_sent),
        ("nowhere.example", Says::BareAlias("not-there.example"), not_sent),
        ("empty.example", Says::At(Vec::new()), not_sent),
    ];
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    let stage = asking(&dns, "");
    stage.install_probe("out", &public(&names, inside.port()));
    for (name, says, _) in &cases {
        dns.say(name, says.clone());
    }
    at_once(cases.len(), |i| {
        let (name, _, expected) = &cases[i];
        let url = format!("https://{name}:{}/x", inside.port());
        assert_eq!(ending(&stage, "out", name, &url), *expected, "{name}");
    });
    assert!(names.iter().all(|name| dns.asked_for_six(name) > 0), "both kinds are asked for");
    assert!(dns.asked_over_tcp("cut.example") > 0 && dns.asked_over_tcp("thousand.example") > 0);
    inside.assert_alone();
    // Nothing that it said of names is shown to anybody but as a host and an address.
    assert!(!stage.host.said().contains("panicked"), "{}", stage.host.said());
}

#[test]
fn b01_what_was_not_sent_for_want_of_an_address_is_sent_once_when_there_is_one() {
    let dns = Dns::start();
    let stage = asking(&dns, "");
    let port = stage.provider.port();
    let grant = format!(
        "[[http]]\nhost = \"api.example\"\nport = {port}\nscheme = \"http\"\nallow_private = true\nmethods = [\"POST\"]\n\
         path = \"/keyed/**\"\nrecovery = \"manual\"\nidempotency_header = \"Idempotency-Key\"\n"
    );
    stage.install_probe("out", &grant);
    dns.say("api.example", Says::Silence);
    // What it says is not kept, even where it says that it may be.
    dns.hold(3600);
    let id = stage.approved("out", "later", &call(&format!("http://api.example:{port}/keyed/later")));
    stage.start_execute(&id);
    let told = stage.wait_for(&id, &["failed_retryable"]);
    assert_eq!(told.text("/error/code"), "not_sent", "{}", told.json);
    assert_eq!(stage.provider.requests("/keyed/later").len(), 0);
    dns.say("api.example", at(&["127.0.0.1"]));
    let told = stage.wait_for(&id, &["succeeded"]);
    assert_eq!(told.number("/result/status"), 200, "{}", told.json);
    assert_eq!(stage.counts("/keyed/later", &id), (1, 1));
    // Where private addresses are open, others are not: the next answer is judged like the first.
    dns.say("api.example", at(&["169.254.169.254"]));
    let url = format!("http://api.example:{port}/keyed/moved");
    assert_eq!(ending(&stage, "out", "moved", &url), PROHIBITED);
    // The examination asks the same server.
    assert!(stage.host.cli(&["doctor"]).out.contains("169.254.169.254"));
    dns.say("api.example", at(&["127.0.0.1"]));
    let told = stage.host.cli(&["doctor"]);
    assert!(told.out.contains(&format!("api.example:{port} (for out) is reached")), "{told:?}");
}

#[test]
fn b01_mail_goes_to_a_judged_address_of_its_server_by_the_same_names() {
    let (dns, smtp) = (Dns::start(), Smtp::start());
    let section = smtp.section().replace("127.0.0.1", "mail.example");
    dns.say("mail.example", at(&["127.0.0.1", "169.254.169.254"]));
    let stage = asking(&dns, &section);
    let grant =
        "[limits]\nsend = \"30s\"\n[email]\nfrom = \"a@example.com\"\nrecipients = [\"*@example.com\"]\n";
    stage.install(&guests::SEND_EMAIL, grant).expect(201);
    let mail = |subject: &str| json!({ "to": ["ada@example.com"], "subject": subject, "text": "Hello" });
    let id = stage.approved("send-email", "mixed", &mail("mixed"));
    let told = stage.execute(&id);
    assert_ne!(told.outcome(), "succeeded", "{}", told.json);
    assert!(smtp.talks().is_empty(), "{:?}", smtp.talks());
    dns.say("mail.example", at(&["127.0.0.1"]));
    let id = stage.approved("send-email", "good", &mail("good"));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(smtp.mails().len(), 1);
}
