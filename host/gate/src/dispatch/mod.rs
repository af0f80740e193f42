//! The sender: the only code here that can put a byte on a wire for a tool.
//!
//! It sends what it is given, once, and reports one fact: whether any byte of
//! the request was handed to the kernel, and whether a whole answer came back
//! ([`Transport`]). It claims nothing, records nothing, retries nothing, follows
//! no redirect, and decides nothing about what an answer means.
//!
//! A send runs through the files in this order: `headers` (what the component
//! set, checked), `secrets` (are they all there), `connect` (resolve, judge,
//! connect, TLS), the caller's last look at its lease, `exchange` (write,
//! read) over a `wire` that counts, `answer` (limits, redaction). `pool`
//! says when a connection serves twice; `nameservers` resolves names where the
//! operator says by whom. A mail goes its own way, through `email`, over
//! connections made and judged by the same rules.
//!
//! May not: read a proxy or a trust setting from the environment; show a secret
//! in a text it returns.

mod answer;
mod connect;
mod email;
mod exchange;
mod headers;
mod nameservers;
mod pace;
mod pool;
mod secrets;
mod tls;
mod why;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use countersign_domain::effect::{Effect, Headers, OutboundRequest, Refusal};
use countersign_domain::egress::Scheme;
use countersign_domain::grant::{Grant, HttpRoute, RecoveryClass};
use countersign_domain::id::{TenantId, ToolName};
use countersign_domain::retry::Transport;
use countersign_domain::time::Timestamp;
use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub use connect::{Resolver, SystemResolver};
pub use email::{OutgoingMail, SmtpConfig, SmtpLogin, SmtpSecurity};
pub use nameservers::{NameServers, resolver};
pub use pace::SlowestPace;
pub use secrets::{SecretStore, Secrets};
pub use tls::{Certificate, DispatcherError, certificates};

use crate::request::Outlet;
use connect::NoConnection;
use exchange::{Link, Outcome};
use pace::Pace;
use secrets::{Redactors, Resolved};
use why::NotSent;

/// The shortest wait for a first byte that a component can ask for. A wish of
/// nothing would make every write of its own an unknown one.
const SHORTEST_FIRST_BYTE: Duration = Duration::from_secs(1);

/// Far above what any grant can ask for: only so that sums stay in range.
const LONGEST_SEND: Duration = Duration::from_secs(24 * 3600);

/// How the sender behaves, whatever is sent.
#[derive(Debug, Clone)]
pub struct DispatcherConfig {
    /// Name resolution, connection and TLS together. Chosen: 5 s; a server that
    /// is not there by then is better asked again later.
    pub connect: Duration,
    /// The slowest answer that is waited for.
    pub slowest: SlowestPace,
    /// Roots beside the bundled ones, DER: an operator's own.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Authorities by the names that grants use: a route that names one takes
    /// its certificates and no others.
    pub authorities: BTreeMap<String, Vec<CertificateDer<'static>>>,
    /// Whether connections may serve twice: those of `read` and
    /// `provider-idempotent` routes, within one tool of one tenant, within a
    /// second, if the server has neither closed nor said anything since.
    pub reuse: bool,
    /// The server that mails go through; `None`: this host sends no mail.
    pub smtp: Option<SmtpConfig>,
}

impl Default for DispatcherConfig {
    fn default() -> DispatcherConfig {
        DispatcherConfig {
            connect: Duration::from_secs(5),
            slowest: SlowestPace::default(),
            extra_roots: Vec::new(),
            authorities: BTreeMap::new(),
            reuse: true,
            smtp: None,
        }
    }
}

/// One request, ready but for what only the sender adds.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The grant it goes out under; its route tells headers and limits.
    pub grant: Arc<Grant>,
    /// Where to and how, resolved from that grant.
    pub route: crate::request::Route,
    /// As the component set them.
    pub headers: Headers,
    /// Whole.
    pub body: Bytes,
    /// Goes into the route's idempotency header, if it has one.
    pub provider_key: Option<String>,
    /// Whose call it is; connections are not shared across tenants,
    pub tenant: TenantId,
    /// nor across tools.
    pub tool: ToolName,
    /// The component's wish for the answer's first byte; it can only shorten.
    pub first_byte_timeout: Option<Duration>,
}

/// Whatever can be sent.
#[derive(Debug, Clone)]
pub enum Parcel {
    /// A request.
    Http(Box<Outgoing>),
    /// A mail.
    Mail(OutgoingMail),
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dispatched {
    /// It must not be sent. Known before anything was; a component may be told.
    Refused(Refusal),
    /// It was to be sent.
    Sent {
        /// The one fact.
        transport: Transport,
        /// The provider's wish for when to be asked again.
        retry_after: Option<Duration>,
    },
}

/// The sender. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
}

struct Inner {
    config: DispatcherConfig,
    resolver: Arc<dyn Resolver>,
    secrets: Arc<dyn SecretStore>,
    connector: TlsConnector,
    authorities: BTreeMap<String, TlsConnector>,
    mailer: Option<email::Mailer>,
    redactors: Redactors,
    pool: pool::Pool,
    user_agent: HeaderValue,
}

impl Parcel {
    /// An effect by the outlet that its grant opens to it. `at`: when this send was
    /// claimed; it is the date of a mail.
    pub(crate) fn new(
        grant: &Arc<Grant>,
        outlet: &Outlet,
        effect: &Effect,
        provider_key: Option<String>,
        at: Timestamp,
        tenant: TenantId,
        tool: ToolName,
    ) -> Parcel {
        match (outlet, effect) {
            (Outlet::Http(route), Effect::Http(request)) => {
                let outgoing = Outgoing::new(grant, route, request, provider_key, tenant, tool);
                Parcel::Http(Box::new(outgoing))
            }
            (Outlet::Mail(route), _) => Parcel::Mail(OutgoingMail {
                mail: route.mail.clone(),
                provider_key: provider_key.unwrap_or_default(),
                date: at,
                send: route.terms.send,
            }),
            (Outlet::Http(_), Effect::Email(_)) => unreachable!("a mail resolves to no route"),
        }
    }
}

impl Outgoing {
    /// A component's request under a grant that allows it by this route.
    pub(crate) fn new(
        grant: &Arc<Grant>,
        route: &crate::request::Route,
        request: &OutboundRequest,
        provider_key: Option<String>,
        tenant: TenantId,
        tool: ToolName,
    ) -> Outgoing {
        Outgoing {
            grant: grant.clone(),
            route: route.clone(),
            headers: request.headers.clone(),
            body: Bytes::copy_from_slice(&request.body),
            provider_key,
            tenant,
            tool,
            first_byte_timeout: request.first_byte_timeout,
        }
    }
}

impl Dispatcher {
    /// A sender with these rules, this resolver and these secrets.
    ///
    /// # Errors
    /// [`DispatcherError`]: a root of the configuration is none.
    pub fn new(
        config: DispatcherConfig,
        resolver: Arc<dyn Resolver>,
        secrets: Arc<dyn SecretStore>,
    ) -> Result<Dispatcher, DispatcherError> {
        let connector = tls::connector(&config.extra_roots)?;
        let pinned = config.authorities.iter();
        let authorities =
            pinned.map(|(name, roots)| Ok((name.clone(), tls::only(roots)?))).collect::<Result<_, _>>()?;
        let mailer = config.smtp.clone().map(email::Mailer::new).transpose()?;
        let inner = Inner {
            config,
            resolver,
            secrets,
            connector,
            authorities,
            mailer,
            redactors: Redactors::default(),
            pool: pool::Pool::default(),
            user_agent: HeaderValue::from_static(concat!("countersign/", env!("CARGO_PKG_VERSION"))),
        };
        Ok(Dispatcher { inner: Arc::new(inner) })
    }

    /// The first authority that a grant names and this host does not have.
    pub fn lacks_authority<'g>(&self, grant: &'g Grant) -> Option<&'g str> {
        grant.authorities().into_iter().find(|name| !self.inner.authorities.contains_key(*name))
    }

    /// Whether there is a server to send mail through.
    pub(crate) fn sends_mail(&self) -> bool {
        self.inner.mailer.is_some()
    }

    /// Says hello to the mail server and good-bye, over TLS where mails go over
    /// TLS: everything but logging in and sending. `None`: there is none.
    ///
    /// # Errors
    /// Why a mail would not be sent now, in words.
    pub async fn greet_mail_server(&self) -> Option<Result<(), String>> {
        Some(self.inner.mailer.as_ref()?.greet(&self.inner).await)
    }

    /// Whether this host has what the outlet needs. Asked before anything is
    /// claimed; whoever is refused here is refused for as long as the host runs.
    pub(crate) fn open<'w>(&self, outlet: &'w Result<Outlet, Refusal>) -> Result<&'w Outlet, Refusal> {
        match outlet {
            Ok(Outlet::Mail(_)) if self.inner.mailer.is_none() => Err(email::no_server()),
            Ok(outlet) => Ok(outlet),
            Err(refusal) => Err(refusal.clone()),
        }
    }

    /// Sends whatever it is, once; see [`Dispatcher::send`].
    pub async fn post<F, Fut>(&self, parcel: Parcel, before_first_byte: F) -> Dispatched
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = bool>,
    {
        match parcel {
            Parcel::Http(outgoing) => self.send(*outgoing, before_first_byte).await,
            Parcel::Mail(mail) => match &self.inner.mailer {
                Some(mailer) => mailer.send(&self.inner, mail, before_first_byte).await,
                None => Dispatched::Refused(email::no_server()),
            },
        }
    }

    /// Sends a request, once.
    ///
    /// `before_first_byte` is asked when the connection stands and the request
    /// is written out in memory, right before its first byte goes; if it says no
    /// (the lease is too short by now, the key's window closed), nothing does.
    ///
    /// Run this in a task of the host's own: dropped in the middle, it cuts the
    /// connection, and nobody learns what came of the request.
    pub async fn send<F, Fut>(&self, outgoing: Outgoing, before_first_byte: F) -> Dispatched
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = bool>,
    {
        match self.try_send(&outgoing, before_first_byte).await {
            Ok((transport, retry_after)) => Dispatched::Sent { transport, retry_after },
            Err(NoConnection::Refused(refusal)) => Dispatched::Refused(refusal),
            Err(NoConnection::NotSent(why)) => {
                Dispatched::Sent { transport: Transport::NotSent(why.to_string()), retry_after: None }
            }
        }
    }

    async fn try_send<F, Fut>(
        &self,
        outgoing: &Outgoing,
        before_first_byte: F,
    ) -> Result<(Transport, Option<Duration>), NoConnection>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = bool>,
    {
        let Inner { config, .. } = &*self.inner;
        let send = outgoing.route.terms.send;
        let started = Instant::now();
        let end = started + send.min(LONGEST_SEND);
        let granted = granted(outgoing)?;
        let from_component = headers::of_the_component(outgoing, granted)?;
        // Not kept: looked up again when there is a connection to use them on.
        self.secrets_of(granted)?;

        let reusable = config.reuse
            && matches!(granted.recovery, RecoveryClass::Read | RecoveryClass::ProviderIdempotent);
        let key = reusable.then(|| pool::Key::of(outgoing, granted));
        let mut link = match key.as_ref().and_then(|key| self.inner.pool.take(key)) {
            Some(link) => link,
            None => {
                let by = end.min(started + config.connect);
                let connector = self.connector_for(granted)?;
                let fresh = connect::connect(
                    &outgoing.route.target,
                    granted.allow_private,
                    &*self.inner.resolver,
                    connector,
                    by,
                );
                Link::over(fresh.await?).await?
            }
        };

        let secrets = self.secrets_of(granted)?;
        let request =
            headers::request(outgoing, granted, from_component, &secrets, &self.inner.user_agent, reusable)?;
        let wish = outgoing.first_byte_timeout.map_or(send, |wish| wish.max(SHORTEST_FIRST_BYTE));
        match timeout_at(end, before_first_byte()).await {
            Ok(true) => {}
            Ok(false) => return Err(NotSent::Withdrawn.into()),
            Err(_) => return Err(NotSent::NoTimeLeft.into()),
        }
        let pace = Pace::new(Instant::now(), config.slowest, end, wish);
        let whole = match link.exchange(request, granted.response_body, pace).await {
            Outcome::NotSent(why) => return Err(why.into()),
            Outcome::Lost(why) => return Ok((Transport::Lost(why.to_string()), None)),
            Outcome::Answered(whole) => whole,
        };
        if let Some(key) = key
            && link.settle().await
        {
            self.inner.pool.put(key, link);
        }
        let redactor = self.inner.redactors.for_answer_to(secrets);
        Ok(match answer::presentable(whole, redactor).await {
            Ok((answer, retry_after)) => (Transport::Answered(answer), retry_after),
            Err(why) => (Transport::Lost(why.to_string()), None),
        })
    }

    fn connector_for(&self, granted: &HttpRoute) -> Result<&TlsConnector, Refusal> {
        let Some(name) = &granted.ca else { return Ok(&self.inner.connector) };
        self.inner.authorities.get(name).ok_or_else(|| {
            Refusal::NotGranted(format!(
                "this host does not have the authority {name:?} ([ca] in countersign.toml)"
            ))
        })
    }

    fn secrets_of(&self, granted: &HttpRoute) -> Result<Resolved, Refusal> {
        let templates = granted.headers.values();
        Resolved::all(templates, &*self.inner.secrets).map_err(|error| Refusal::NotGranted(error.to_string()))
    }
}

/// The grant's route, if the request really is one that it allows. The caller
/// resolved it from the same grant; but this is the last place to be wrong.
fn granted(outgoing: &Outgoing) -> Result<&HttpRoute, Refusal> {
    let Outgoing { grant, route, body, .. } = outgoing;
    let (index, granted) = grant
        .route(route.method, &route.target)
        .map_err(|refusal| Refusal::NotGranted(refusal.to_string()))?;
    if index != route.index {
        return Err(Refusal::NotGranted("another route of the grant comes first".to_owned()));
    }
    if route.target.scheme() == Scheme::Http && !granted.allow_private {
        return Err(Refusal::NotGranted("http without TLS needs allow_private".to_owned()));
    }
    if body.len() as u64 > granted.request_body {
        return Err(Refusal::BodyTooLarge(granted.request_body));
    }
    Ok(granted)
}
