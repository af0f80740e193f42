//! A server of names that lies on request: what it says of a name can be changed while it runs,
//! and taken in turn; every question is counted. UDP and TCP on one port of 127.0.0.1. What it
//! says may be kept for no time at all, unless a test says otherwise.
//!
//! A name that nobody told it about does not exist.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// What is said of a name.
#[derive(Debug, Clone)]
pub enum Says {
    /// It is at these addresses, each kind to whom asks for it.
    At(Vec<IpAddr>),
    /// It is another name, with all that is known of that one, as servers of others' names say it.
    Alias(&'static str),
    /// It is another name, and no word about that one.
    BareAlias(&'static str),
    /// Over UDP the first address and that there is more; over TCP all of them.
    CutShort(Vec<IpAddr>),
    /// That it cannot be said now.
    Failure,
    /// Nothing at all.
    Silence,
}

/// At these addresses.
pub fn at(addresses: &[&str]) -> Says {
    Says::At(addresses.iter().map(|ip| ip.parse().expect("an address")).collect())
}

/// The server, for as long as the process lives.
pub struct Dns {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

#[derive(Default)]
struct Zone {
    names: HashMap<String, Vec<Says>>,
    asked: HashMap<(String, RecordType), usize>,
    over_tcp: HashMap<String, usize>,
    /// Seconds for which answers hold.
    ttl: u32,
}

impl Dns {
    /// Starts it on a free port.
    pub fn start() -> Dns {
        // Both kinds on one port; whoever took it for the other kind meanwhile has it.
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().expect("its address")) {
                break (tcp, udp);
            }
        };
        let address = tcp.local_addr().expect("its address");
        let zone: Arc<Mutex<Zone>> = Arc::default();
        let known = zone.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                if let Some(answer) = lock(&known).answer(&buffer[..length], false) {
                    let _ = udp.send_to(&answer, from);
                }
            }
        });
        let known = zone.clone();
        std::thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let known = known.clone();
                std::thread::spawn(move || converse(stream, &known));
            }
        });
        Dns { address, zone }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this is said of the name.
    pub fn say(&self, name: &str, what: Says) {
        self.in_turn(name, vec![what]);
    }

    /// From now on these are said of the name, one after the other and then from the start, for
    /// each kind of address by itself.
    pub fn in_turn(&self, name: &str, what: Vec<Says>) {
        assert!(!what.is_empty(), "say something");
        lock(&self.zone).names.insert(name.to_owned(), what);
    }

    /// From now on answers hold for so many seconds.
    pub fn hold(&self, seconds: u32) {
        lock(&self.zone).ttl = seconds;
    }

    /// How often the name's addresses of version 4 were asked for.
    pub fn asked(&self, name: &str) -> usize {
        lock(&self.zone).asked.get(&(name.to_owned(), RecordType::A)).copied().unwrap_or(0)
    }

    /// How often those of version 6 were.
    pub fn asked_for_six(&self, name: &str) -> usize {
        lock(&self.zone).asked.get(&(name.to_owned(), RecordType::AAAA)).copied().unwrap_or(0)
    }

    /// How many questions about the name came over TCP.
    pub fn asked_over_tcp(&self, name: &str) -> usize {
        lock(&self.zone).over_tcp.get(name).copied().unwrap_or(0)
    }
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Over TCP each message has its length before it (RFC 1035 §4.2.2).
fn converse(mut stream: TcpStream, zone: &Mutex<Zone>) {
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        if stream.read_exact(&mut question).is_err() {
            return;
        }
        let answer = lock(zone).answer(&question, true);
        if let Some(answer) = answer {
            let length = u16::try_from(answer.len()).expect("no message is longer").to_be_bytes();
            if stream.write_all(&[&length[..], &answer].concat()).is_err() {
                return;
            }
        }
    }
}

impl Zone {
    fn answer(&mut self, question: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).ok()?;
        let query = question.queries.first()?.clone();
        let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
        let kind = query.query_type();
        *self.over_tcp.entry(name.clone()).or_default() += usize::from(over_tcp);
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        answer.metadata.recursion_desired = question.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.add_query(query);
        self.tell(&name, kind, over_tcp, &mut answer)?;
        let mut bytes = answer.to_vec().expect("a message");
        let most = if over_tcp { 65_535 } else { usize::from(question.max_payload()) };
        if bytes.len() > most {
            answer.answers.clear();
            answer.metadata.truncation = true;
            bytes = answer.to_vec().expect("a message");
        }
        Some(bytes)
    }

    /// Puts into the answer what is said; `None`: nothing is.
    fn tell(&mut self, name: &str, kind: RecordType, over_tcp: bool, answer: &mut Message) -> Option<()> {
        let count = self.asked.entry((name.to_owned(), kind)).or_default();
        let turn = *count;
        *count += 1;
        let Some(says) = self.names.get(name) else {
            answer.metadata.response_code = ResponseCode::NXDomain;
            return Some(());
        };
        let owner = Name::from_ascii(format!("{name}.")).expect("a name");
        let ttl = self.ttl;
        let addresses = |ips: &[IpAddr]| -> Vec<Record> {
            let of_kind = ips.iter().filter(|ip| kind == kind_of(**ip));
            of_kind.map(|ip| Record::from_rdata(owner.clone(), ttl, RData::from(*ip))).collect()
        };
        match says[turn % says.len()].clone() {
            Says::At(ips) => drop(answer.add_answers(addresses(&ips))),
            Says::CutShort(ips) => {
                answer.metadata.truncation = !over_tcp;
                let shown = if over_tcp { &ips[..] } else { &ips[..1] };
                answer.add_answers(addresses(shown));
            }
            Says::Failure => answer.metadata.response_code = ResponseCode::ServFail,
            Says::Silence => return None,
            alias @ (Says::Alias(target) | Says::BareAlias(target)) => {
                let to = Name::from_ascii(format!("{target}.")).expect("a name");
                answer.add_answer(Record::from_rdata(owner, ttl, RData::CNAME(CNAME(to))));
                if matches!(alias, Says::Alias(_)) {
                    self.tell(target, kind, over_tcp, answer)?;
                }
            }
        }
        Some(())
    }
}

fn kind_of(ip: IpAddr) -> RecordType {
    if ip.is_ipv4() { RecordType::A } else { RecordType::AAAA }
}
