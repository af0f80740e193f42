//! From a target to a connection: the name resolved once, every answer judged,
//! one of the judged addresses connected to, TLS under the target's own name.
//!
//! A name is never resolved a second time, so what was judged is what is
//! connected to. One bad answer among good ones refuses the whole name: it is
//! how a rebinding attack looks, and no honest name has one. No proxy exists
//! here, whatever the environment says.
//!
//! Not checked: who answers for the name. DNS is believed about addresses; that
//! it is the right server, only TLS says.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::effect::Refusal;
use countersign_domain::egress::{HostName, Scheme, Target, address};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::tls;
use super::why::NotSent;
use super::wire::{Meter, Metered, Wire};

/// Addresses that are tried, of however many there are. All are judged.
const MAX_TRIED: u32 = 8;

/// Turns a name into addresses.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// All addresses of the name, in the order in which they should be tried.
    /// Asked once per connection, never for a host that is an address.
    ///
    /// # Errors
    /// Whatever went wrong; only that it did is reported.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver: its hosts file, its search order.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // The port means nothing to the answer; the interface wants one.
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// It must not be made.
    Refused(Refusal),
    /// It did not come about.
    NotSent(NotSent),
}

impl From<Refusal> for NoConnection {
    fn from(refusal: Refusal) -> NoConnection {
        NoConnection::Refused(refusal)
    }
}

impl From<NotSent> for NoConnection {
    fn from(why: NotSent) -> NoConnection {
        NoConnection::NotSent(why)
    }
}

/// A connection over which nothing was said yet.
pub(super) struct Fresh {
    pub(super) wire: Wire,
    pub(super) meter: Arc<Meter>,
    /// A second handle on the socket, to ask the kernel how it stands.
    pub(super) probe: std::net::TcpStream,
}

/// Connects, TLS included, by `deadline`.
pub(super) async fn connect(
    target: &Target,
    allow_private: bool,
    resolver: &dyn Resolver,
    connector: &TlsConnector,
    deadline: Instant,
) -> Result<Fresh, NoConnection> {
    let addresses = addresses(target.host(), resolver, deadline).await?;
    for ip in &addresses {
        if let Some(refusal) = judge(target, *ip, allow_private) {
            return Err(NoConnection::Refused(refusal));
        }
    }
    let tcp = connect_tcp(&addresses, target.port(), deadline).await?;
    // A request is one write; waiting for more to put into its packet only costs.
    tcp.set_nodelay(true).map_err(|_| NotSent::Broken)?;
    let probe = tcp.as_fd().try_clone_to_owned().map_err(|_| NotSent::Broken)?.into();
    let meter = Arc::new(Meter::default());
    let metered = Metered::new(tcp, meter.clone());
    let wire = match target.scheme() {
        Scheme::Http => Wire::Plain(metered),
        Scheme::Https => {
            // Every host name that parses is a server name; were one not, no
            // certificate could be for it.
            let name = tls::server_name(target.host()).ok_or(NotSent::Certificate)?;
            match timeout_at(deadline, connector.connect(name, metered)).await {
                Ok(Ok(stream)) => Wire::Tls(Box::new(stream)),
                Ok(Err(error)) => return Err(handshake_error(&error).into()),
                Err(_) => return Err(NotSent::HandshakeTimeout.into()),
            }
        }
    };
    Ok(Fresh { wire, meter, probe })
}

/// All addresses of a host, from one question.
pub(super) async fn addresses(
    host: &HostName,
    resolver: &dyn Resolver,
    deadline: Instant,
) -> Result<Vec<IpAddr>, NotSent> {
    if let Some(ip) = host.ip() {
        return Ok(vec![ip]);
    }
    let resolved = match timeout_at(deadline, resolver.resolve(host.as_str())).await {
        Ok(Ok(resolved)) => resolved,
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => return Err(NotSent::ResolverTimeout),
        Ok(Err(_)) => return Err(NotSent::NotResolved),
        Err(_) => return Err(NotSent::ResolverTimeout),
    };
    if resolved.is_empty() { Err(NotSent::NotResolved) } else { Ok(resolved) }
}

/// Whether this address must not be connected to. The text is for the ledger
/// and for people; a component is told the variant.
fn judge(target: &Target, ip: IpAddr, allow_private: bool) -> Option<Refusal> {
    let host = target.host();
    if let Some(range) = address::refused(ip, allow_private) {
        return Some(Refusal::AddressProhibited(format!("{host} is at {ip}: {range}")));
    }
    // Without TLS nothing proves who answers, and whoever is on the way reads
    // the secrets: only towards one's own machine or network.
    if target.scheme() == Scheme::Http && address::blocked(ip).is_none() {
        let why = "a public address is called with https only";
        return Some(Refusal::AddressProhibited(format!("{host} is at {ip}: {why}")));
    }
    None
}

/// Tries each address in turn; the time that is left is shared out evenly, so
/// that one dead address does not use up the others' chance.
pub(super) async fn connect_tcp(
    addresses: &[IpAddr],
    port: u16,
    deadline: Instant,
) -> Result<TcpStream, NotSent> {
    let mut last = NotSent::Unreachable;
    let tried = u32::try_from(addresses.len()).map_or(MAX_TRIED, |count| count.min(MAX_TRIED));
    for (left, ip) in (1..=tried).rev().zip(addresses) {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / left;
        if share == Duration::ZERO {
            return Err(NotSent::ConnectTimeout);
        }
        last = match timeout_at(now + share, TcpStream::connect(SocketAddr::new(*ip, port))).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => NotSent::Refused,
            Ok(Err(_)) => NotSent::Unreachable,
            Err(_) => NotSent::ConnectTimeout,
        };
    }
    Err(last)
}

pub(super) fn handshake_error(error: &io::Error) -> NotSent {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_)) => NotSent::Certificate,
        _ => NotSent::Handshake,
    }
}
