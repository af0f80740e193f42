//! Names asked of servers that the operator names, instead of the system's.
//!
//! Both kinds of addresses are asked for, aliases are followed, and every address
//! that any answer has is handed on to be judged. Nothing is kept: no answer, good
//! or bad, outlives the send that asked for it, whatever it says of how long it
//! holds. (Two sends that ask for one name at the same moment may be told by one
//! answer; each judges it.) The machine's hosts file and search domains have no part
//! in it. `localhost` is this machine without a question (RFC 6761 §6.3).
//!
//! Not checked: that an answer is true. It comes over plain UDP, or TCP where it is
//! long; a random port and number are what keeps strangers from answering. That the
//! right server is behind an address, only TLS says.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::Name;

use super::connect::{Resolver, SystemResolver};

/// How long all servers together may take. Chosen: it leaves time for a connection
/// within the default of five seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// The resolver of a host that was told to ask these servers; the system's if it was
/// told of none.
///
/// # Errors
/// Whatever keeps the client from being made.
pub fn resolver(servers: &[SocketAddr]) -> io::Result<Arc<dyn Resolver>> {
    Ok(match servers {
        [] => Arc::new(SystemResolver),
        servers => Arc::new(NameServers::new(servers)?),
    })
}

/// Clients of these servers. Asked one at a time, for what is asked is nobody else's
/// business: the next one where one says nothing, or that it cannot say. The one that
/// answered last is asked first; that much is remembered.
#[derive(Debug)]
pub struct NameServers {
    servers: Vec<TokioResolver>,
    first: AtomicUsize,
}

impl NameServers {
    /// Clients of these, at least one.
    ///
    /// # Errors
    /// Whatever keeps one from being made.
    pub fn new(servers: &[SocketAddr]) -> io::Result<NameServers> {
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1);
        // A single one is asked twice: a packet may be lost.
        let rounds = if count == 1 { 2 } else { 1 };
        let servers = servers.iter().map(|at| client(*at, rounds, PATIENCE / count.max(rounds)));
        Ok(NameServers { servers: servers.collect::<io::Result<_>>()?, first: AtomicUsize::new(0) })
    }
}

/// A client of one server, which is asked up to `rounds` times, each for `patience`.
fn client(server: SocketAddr, rounds: u32, patience: Duration) -> io::Result<TokioResolver> {
    let at = |mut connection: ConnectionConfig| {
        connection.port = server.port();
        connection
    };
    let ways = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
    let server = NameServerConfig::new(server.ip(), true, ways);
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut options = ResolverOpts::default();
    options.timeout = patience;
    // Those after the first.
    options.attempts = rounds.saturating_sub(1) as usize;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    // Either of these is enough: a cache without room takes nothing in, and what
    // is in it is old at once.
    options.cache_size = 0;
    options.positive_max_ttl = Some(Duration::ZERO);
    options.negative_max_ttl = Some(Duration::ZERO);
    let provider = TokioRuntimeProvider::default();
    let built = TokioResolver::builder_with_config(config, provider).with_options(options).build();
    built.map_err(io::Error::other)
}

#[async_trait]
impl Resolver for NameServers {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // The dot at the end: this name, and not one below some domain.
        let name = Name::from_ascii(format!("{host}.")).map_err(|_| io::ErrorKind::InvalidInput)?;
        let first = self.first.load(Ordering::Relaxed);
        // The texts of errors are not passed on: they may hold anything that a server said.
        let mut worst = io::ErrorKind::TimedOut;
        for index in (0..self.servers.len()).map(|n| (first + n) % self.servers.len()) {
            match self.servers[index].lookup_ip(name.clone()).await {
                Ok(found) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(in_turn(found.iter()));
                }
                Err(NetError::Dns(DnsError::NoRecordsFound(_))) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Err(io::ErrorKind::NotFound.into());
                }
                Err(NetError::Timeout) => {}
                Err(_) => worst = io::ErrorKind::NotFound,
            }
        }
        Err(worst.into())
    }
}

/// One of each kind in turn, as long as there are both (RFC 8305 §4): only the first
/// few are tried, and a machine may have a way to one kind only.
fn in_turn(found: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let (four, six): (Vec<IpAddr>, Vec<IpAddr>) = found.partition(IpAddr::is_ipv4);
    let (mut four, mut six) = (four.into_iter(), six.into_iter());
    let mut all = Vec::with_capacity(four.len() + six.len());
    loop {
        let before = all.len();
        all.extend(four.next());
        all.extend(six.next());
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_kept_and_neither_kind_crowds_out_the_other() {
        let ips = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let found = ips(&["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"]);
        let expected = ips(&["192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3"]);
        assert_eq!(in_turn(found.into_iter()), expected);
        assert_eq!(in_turn(ips(&["2001:db8::1"]).into_iter()), ips(&["2001:db8::1"]));
        assert!(in_turn(std::iter::empty()).is_empty());
    }

    #[tokio::test]
    async fn no_server_named_is_the_systems_resolver() {
        let found = resolver(&[]).unwrap().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback));
        let named = resolver(&["127.0.0.1:1".parse().unwrap()]).unwrap();
        // Nobody is asked about this one.
        assert!(named.resolve("localhost").await.unwrap().iter().all(IpAddr::is_loopback));
        assert!(named.resolve("nowhere.invalid").await.is_err());
    }
}
