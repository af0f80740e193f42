//! Names asked of a real server of names that lies: what it says is judged, once per connection,
//! and nothing of it is kept.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use countersign_domain::effect::Refusal;

use super::dns::{Dns, Says, at};
use super::rig::*;
use crate::dispatch::{Dispatched, Dispatcher, DispatcherConfig, NameServers, Outgoing, Secrets};

const GOOD: &str = "93.184.216.34";

fn asking(servers: &[&Dns], config: DispatcherConfig) -> Dispatcher {
    let servers: Vec<_> = servers.iter().map(|dns| dns.address()).collect();
    let names = NameServers::new(&servers).unwrap();
    Dispatcher::new(config, Arc::new(names), Arc::new(Secrets::default())).unwrap()
}

/// A post to this name at the upstream's port: in the clear where private addresses are open.
fn to(name: &str, port: u16, allow_private: bool) -> Outgoing {
    let scheme = if allow_private { "http" } else { "https" };
    let grant = format!(
        "[limits]\nsend = \"20s\"\n[[http]]\nhost = \"{name}\"\nport = {port}\nscheme = \"{scheme}\"\n\
         methods = [\"POST\"]\npath = \"/**\"\nallow_private = {allow_private}\n"
    );
    outgoing(&grant, "POST", &format!("{scheme}://{name}:{port}/"), &[], b"x")
}

fn is_prohibited(sent: &Dispatched) -> bool {
    matches!(sent, Dispatched::Refused(Refusal::AddressProhibited(_)))
}

#[tokio::test]
async fn b01_a_name_that_alternates_with_each_question_reaches_nobody_inside_in_a_thousand_calls() {
    let inside = Upstream::answering(OK).await;
    let dns = Arc::new(Dns::start());
    // Whether anybody answers at the good address is not what this is about.
    let config = DispatcherConfig { connect: Duration::from_millis(300), ..config() };
    let sender = asking(&[&dns], config);
    // Lanes with names of their own: two that ask for one name at once may share an answer.
    let lanes = (0..20).map(|lane| {
        let (sender, dns, port) = (sender.clone(), dns.clone(), inside.port());
        async move {
            let name = format!("n{lane}.example");
            dns.in_turn(&name, vec![at(&[GOOD]), at(&["127.0.0.1"])]);
            let mut refused = 0;
            for round in 0..50 {
                let sent = send(&sender, to(&name, port, false)).await;
                match fate(&sent) {
                    "refused" => refused += usize::from(is_prohibited(&sent)),
                    other => assert_eq!(other, "not sent", "lane {lane}, round {round}"),
                }
            }
            assert!(dns.asked(&name) >= 50, "each call asked: {}", dns.asked(&name));
            refused
        }
    });
    let refused: usize = futures::future::join_all(lanes).await.into_iter().sum();
    assert!((10..=990).contains(&refused), "both answers came, again and again: {refused} of 1,000");
    assert_eq!(inside.seen.connections(), 0);
}

#[tokio::test]
async fn b01_one_bad_address_anywhere_in_what_a_server_says_refuses_the_name() {
    let inside = Upstream::answering(OK).await;
    let dns = Dns::start();
    let sender = asking(&[&dns], config());
    dns.say("inside.example", at(&["127.0.0.1"]));
    dns.say("metadata.example", at(&["169.254.169.254"]));
    let mut thousand: Vec<IpAddr> =
        (0..999).map(|n| IpAddr::from([93, 184, (n / 250) as u8, (n % 250) as u8])).collect();
    thousand.push(IpAddr::from([127, 0, 0, 1]));
    for (what, says) in [
        ("alone", at(&["127.0.0.1"])),
        ("first", at(&["127.0.0.1", GOOD])),
        ("last", at(&[GOOD, "127.0.0.1"])),
        ("of the other kind", at(&[GOOD, "::1"])),
        ("mapped", at(&[GOOD, "::ffff:127.0.0.1"])),
        ("behind an alias", Says::Alias("inside.example")),
        ("behind an alias that has to be asked for", Says::BareAlias("inside.example")),
        ("behind an alias, metadata", Says::BareAlias("metadata.example")),
        (
            "in the part that UDP had no room for",
            Says::CutShort(vec![GOOD.parse().unwrap(), IpAddr::from([127, 0, 0, 1])]),
        ),
        ("the last of a thousand", Says::At(thousand)),
    ] {
        dns.say("a.example", says);
        let sent = send(&sender, to("a.example", inside.port(), false)).await;
        assert!(is_prohibited(&sent), "{what}: {sent:?}");
    }
    assert!(dns.asked_over_tcp("a.example") >= 2, "long answers came whole");
    assert_eq!(inside.seen.connections(), 0);
}

#[tokio::test]
async fn b01_where_private_addresses_are_open_the_judged_one_is_connected_to() {
    let upstream = Upstream::answering(OK).await;
    let port = upstream.port();
    let Ok(other) = tokio::net::TcpListener::bind(("127.0.0.2", port)).await else {
        panic!("127.0.0.2:{port} is taken")
    };
    let dns = Dns::start();
    let sender = asking(&[&dns], config());
    // What the next question would be told leads elsewhere each time.
    dns.in_turn("a.example", vec![at(&["127.0.0.1"]), at(&["169.254.169.254"])]);
    let mut answered = 0;
    for _ in 0..20 {
        let sent = send(&sender, to("a.example", port, true)).await;
        assert!(fate(&sent) == "answered" || is_prohibited(&sent), "{sent:?}");
        answered += usize::from(fate(&sent) == "answered");
        assert_eq!(upstream.seen.connections(), answered);
    }
    assert!((1..20).contains(&answered), "both answers came");
    // One of the two private ones, and that is the one.
    dns.say("b.example", at(&["127.0.0.1"]));
    assert_eq!(fate(&send(&sender, to("b.example", port, true)).await), "answered");
    let heard = tokio::time::timeout(Duration::from_millis(50), other.accept()).await;
    assert!(heard.is_err(), "nobody was told of 127.0.0.2");
    assert!(upstream.seen.text(answered).contains(&format!("\r\nHost: b.example:{port}\r\n")));
}

#[tokio::test]
async fn b01_nothing_that_was_said_of_a_name_is_kept_whatever_it_says_of_how_long_it_holds() {
    let upstream = Upstream::answering(OK).await;
    let port = upstream.port();
    let dns = Dns::start();
    let sender = asking(&[&dns], config());
    dns.hold(3600);
    for round in 1..=5 {
        dns.say("a.example", at(&["127.0.0.1"]));
        assert_eq!(fate(&send(&sender, to("a.example", port, true)).await), "answered", "{round}");
        dns.say("a.example", at(&["169.254.169.254"]));
        assert!(is_prohibited(&send(&sender, to("a.example", port, true)).await), "{round}");
        assert!(dns.asked("a.example") >= 2 * round && dns.asked_for_six("a.example") >= 2 * round);
    }
    // Nor that there is no such name.
    assert_eq!(fate(&send(&sender, to("late.example", port, true)).await), "not sent");
    dns.say("late.example", at(&["127.0.0.1"]));
    assert_eq!(fate(&send(&sender, to("late.example", port, true)).await), "answered");
}

#[tokio::test]
async fn b01_a_server_of_names_that_says_nothing_useful_is_not_sent() {
    let upstream = Upstream::answering(OK).await;
    let dns = Dns::start();
    let sender = asking(&[&dns], config());
    dns.say("silent.example", Says::Silence);
    dns.say("broken.example", Says::Failure);
    dns.say("empty.example", Says::At(vec![]));
    dns.say("loop.example", Says::BareAlias("loop.example"));
    dns.say("dangling.example", Says::Alias("nowhere.example"));
    for (name, reason) in [
        ("silent.example", "the resolver did not answer in time"),
        ("broken.example", "the host's name was not resolved"),
        ("empty.example", "the host's name was not resolved"),
        ("loop.example", "the host's name was not resolved"),
        ("dangling.example", "the host's name was not resolved"),
        ("nowhere.example", "the host's name was not resolved"),
    ] {
        let started = Instant::now();
        let sent = send(&sender, to(name, upstream.port(), true)).await;
        assert_eq!((fate(&sent), why(&sent)), ("not sent", reason), "{name}");
        assert!(started.elapsed() < Duration::from_secs(8), "{name}: {:?}", started.elapsed());
    }
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b01_long_answers_come_over_tcp_and_only_the_first_few_of_a_thousand_are_tried() {
    let upstream = Upstream::answering(OK).await;
    let dns = Dns::start();
    let sender = asking(&[&dns], config());
    let thousand =
        (0..1000).map(|n: u16| IpAddr::from([127, 0, (n / 250) as u8, (n % 250 + 1) as u8])).collect();
    dns.say("many.example", Says::At(thousand));
    assert_eq!(fate(&send(&sender, to("many.example", upstream.port(), true)).await), "answered");
    assert_eq!(upstream.seen.connections(), 1);
    let nobody =
        (0..1000).map(|n: u16| IpAddr::from([127, 1, (n / 250) as u8, (n % 250 + 1) as u8])).collect();
    dns.say("nobody.example", Says::At(nobody));
    let sent = send(&sender, to("nobody.example", upstream.port(), true)).await;
    assert_eq!((fate(&sent), why(&sent)), ("not sent", "the connection was refused"));
    assert!(dns.asked_over_tcp("many.example") > 0 && dns.asked_over_tcp("nobody.example") > 0);
}

#[tokio::test]
async fn a_server_of_names_that_is_down_costs_no_send_while_another_is_there() {
    let upstream = Upstream::answering(OK).await;
    let (bad, dns) = (Dns::start(), Dns::start());
    dns.say("a.example", at(&["127.0.0.1"]));
    for says in [Says::Failure, Says::Silence] {
        bad.say("a.example", says);
        for servers in [[&bad, &dns], [&dns, &bad]] {
            let sender = asking(&servers, config());
            for _ in 0..2 {
                assert_eq!(fate(&send(&sender, to("a.example", upstream.port(), true)).await), "answered");
            }
        }
    }
    // What one says for certain, no other one is asked.
    let before = dns.asked("b.example");
    dns.say("b.example", at(&["127.0.0.1"]));
    let sent = send(&asking(&[&bad, &dns], config()), to("b.example", upstream.port(), true)).await;
    assert_eq!((fate(&sent), dns.asked("b.example")), ("not sent", before));
}
