//! From what a component asked for to what the grant makes of it: a pure
//! function of request and grant, so that a replay comes to the same result.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::effect::{Effect, EffectKind, OutboundRequest, RecordedRequest, Refusal, Terms};
use countersign_domain::egress::{Method, Target};
use countersign_domain::fingerprint;
use countersign_domain::grant::{Grant, HttpRoute, KeyFormat, On5xx, RecoveryClass};
use countersign_domain::id::EffectFingerprint;
use countersign_domain::mail::{self, Mail, OutboundMail, RecordedMail};
use countersign_domain::retry::key_window;

/// What was asked for, resolved against a grant.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// What it is compared by.
    pub fingerprint: EffectFingerprint,
    /// What is shown and kept.
    pub recorded: RecordedRequest,
    /// Which import.
    pub kind: EffectKind,
    /// Where it may leave, or why nowhere.
    pub outlet: Result<Outlet, Refusal>,
}

/// The outlet that a grant opens to an effect.
#[derive(Debug, Clone)]
pub enum Outlet {
    /// One of its routes.
    Http(Route),
    /// Its section for mail.
    Mail(MailRoute),
}

/// A mail that may be sent, and on which terms.
#[derive(Debug, Clone)]
pub struct MailRoute {
    /// Checked.
    pub mail: Arc<Mail>,
    /// Fixed in the effect's row.
    pub terms: Terms,
}

/// Where a request may go, and on which terms.
#[derive(Debug, Clone)]
pub struct Route {
    /// Position of the route in the grant.
    pub index: usize,
    /// Checked and rebuilt.
    pub target: Target,
    /// Checked.
    pub method: Method,
    /// Fixed in the effect's row.
    pub terms: Terms,
}

impl Outlet {
    /// The terms of a claim.
    pub fn terms(&self) -> &Terms {
        match self {
            Outlet::Http(route) => &route.terms,
            Outlet::Mail(route) => &route.terms,
        }
    }

    /// Position of the route in the grant; `None`: the section for mail.
    pub fn index(&self) -> Option<usize> {
        match self {
            Outlet::Http(route) => Some(route.index),
            Outlet::Mail(_) => None,
        }
    }

    /// Writes beyond the planned one that may leave here.
    pub(crate) fn unplanned(&self, grant: &Grant) -> u32 {
        match self {
            Outlet::Http(route) => grant.http().get(route.index).map_or(0, |route| route.unplanned),
            Outlet::Mail(_) => grant.email().map_or(0, |email| email.unplanned),
        }
    }

    /// The shape of the key that a write gets here.
    pub(crate) fn key_format(&self, grant: &Grant) -> KeyFormat {
        match self {
            Outlet::Http(route) => grant.http().get(route.index).map_or(KeyFormat::Plain, |r| r.key_format),
            Outlet::Mail(_) => KeyFormat::Plain,
        }
    }
}

impl Resolved {
    /// May change something outside. What was refused and is no plain look
    /// counts as a write, too.
    pub fn is_write(&self) -> bool {
        match &self.outlet {
            Ok(outlet) => outlet.terms().class != RecoveryClass::Read,
            Err(_) => !self.recorded.method.parse::<Method>().is_ok_and(Method::is_safe),
        }
    }
}

/// Resolves an effect against a grant.
pub fn resolve(grant: &Grant, effect: &Effect) -> Resolved {
    match effect {
        Effect::Http(request) => http(grant, request),
        Effect::Email(mail) => email(grant, mail),
    }
}

fn email(grant: &Grant, asked: &OutboundMail) -> Resolved {
    let recorded = RecordedMail::of(asked, grant.email()).to_request();
    let fingerprint = fingerprint::email_effect(&recorded.body);
    let outlet = match grant.email() {
        None => Err(Refusal::NotGranted("the grant has no section [email]".to_owned())),
        Some(granted) => mail::check(asked, granted).map(|mail| {
            Outlet::Mail(MailRoute { mail: Arc::new(mail), terms: mail_terms(grant, granted.recovery) })
        }),
    };
    Resolved { fingerprint, recorded, kind: EffectKind::Email, outlet }
}

fn http(grant: &Grant, request: &OutboundRequest) -> Resolved {
    let scheme = request.scheme.as_deref().unwrap_or("https").to_ascii_lowercase();
    let authority = request.authority.as_deref().unwrap_or_default();
    let path = request.path_with_query.as_deref().unwrap_or("/");
    let target = Target::parse(&scheme, authority, path);
    let method = request.method.parse::<Method>();
    let url = match &target {
        Ok(target) => target.to_string(),
        Err(_) => format!("{scheme}://{authority}{path}"),
    };
    let recorded = RecordedRequest {
        method: request.method.clone(),
        url,
        headers: request.headers.clone(),
        body: request.body.clone(),
    };
    let (target, method) = match (target, method) {
        (Ok(target), Ok(method)) => (target, method),
        (Err(refusal), _) | (_, Err(refusal)) => {
            let fingerprint =
                fingerprint::malformed_effect(&request.method, &scheme, authority, path, &request.body);
            let outlet = Err(Refusal::NotGranted(refusal.to_string()));
            return Resolved { fingerprint, recorded, kind: EffectKind::Http, outlet };
        }
    };
    let found = grant.route(method, &target);
    let significant = match &found {
        Ok((_, route)) => significant(route, request),
        Err(_) => Vec::new(),
    };
    let fingerprint = fingerprint::http_effect(method.as_str(), &target, &significant, &request.body);
    let outlet = match found {
        Err(refusal) => Err(Refusal::NotGranted(refusal.to_string())),
        Ok((_, route)) if request.body.len() as u64 > route.request_body => {
            Err(Refusal::BodyTooLarge(route.request_body))
        }
        Ok((index, route)) => Ok(Outlet::Http(Route { index, target, method, terms: terms(grant, route) })),
    };
    Resolved { fingerprint, recorded, kind: EffectKind::Http, outlet }
}

/// The headers that the route names, as the component set them, by name.
fn significant(route: &HttpRoute, request: &OutboundRequest) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = request
        .headers
        .iter()
        .filter(|(name, _)| route.significant_headers.iter().any(|wanted| wanted.eq_ignore_ascii_case(name)))
        .cloned()
        .collect();
    headers.sort();
    headers
}

/// The terms of a claim under this route.
pub fn terms(grant: &Grant, route: &HttpRoute) -> Terms {
    let send = grant.limits().send;
    Terms {
        class: route.recovery,
        key_window: key_window(route.key_retention, send),
        in_flight_status: route.in_flight_status,
        replay_header: route.replay_header.as_ref().map(|name| name.to_ascii_lowercase()),
        on_5xx: route.on_5xx,
        send,
        settle: send * 2,
    }
}

/// Terms for what no route matched: nothing will be sent under them.
pub fn refused_terms(grant: &Grant) -> Terms {
    unkeyed_terms(grant, RecoveryClass::Manual, On5xx::Unknown)
}

/// The terms of a mail. An answer of the server, whichever it is, is about the
/// whole mail and final (RFC 5321 §4.2.5); where there is none, nobody knows.
fn mail_terms(grant: &Grant, class: RecoveryClass) -> Terms {
    unkeyed_terms(grant, class, On5xx::Answer)
}

fn unkeyed_terms(grant: &Grant, class: RecoveryClass, on_5xx: On5xx) -> Terms {
    let send = grant.limits().send;
    Terms {
        class,
        key_window: Duration::ZERO,
        in_flight_status: 409,
        replay_header: None,
        on_5xx,
        send,
        settle: send * 2,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use countersign_domain::mail::{Attachment, Mailbox};

    use super::*;

    fn grant(lines: &str) -> Grant {
        format!("[email]\nfrom = \"billing@example.com\"\nrecipients = [\"*@example.com\"]\n{lines}")
            .parse()
            .unwrap()
    }

    fn mail() -> OutboundMail {
        let to = |address: &str| vec![Mailbox { name: Some("Ada".into()), address: address.into() }];
        OutboundMail {
            to: to("a@example.com"),
            cc: to("b@example.com"),
            bcc: to("c@example.com"),
            subject: "Hi".into(),
            text: Some("text".into()),
            html: Some("html".into()),
            attachments: vec![Attachment {
                name: "a.txt".into(),
                media_type: "text/plain".into(),
                content: vec![1],
            }],
        }
    }

    fn resolved(grant: &Grant, mail: OutboundMail) -> Resolved {
        resolve(grant, &Effect::Email(mail))
    }

    #[test]
    fn p4_every_part_of_a_mail_counts_and_so_does_who_sends_it() {
        let changed = |change: fn(&mut OutboundMail)| {
            let mut other = mail();
            change(&mut other);
            resolved(&grant(""), other).fingerprint
        };
        let all = [
            changed(|_| {}),
            changed(|mail| mail.to[0].address = "x@example.com".into()),
            changed(|mail| mail.to[0].name = None),
            changed(|mail| mail.cc.clear()),
            changed(|mail| std::mem::swap(&mut mail.cc, &mut mail.bcc)),
            changed(|mail| mail.subject.push(' ')),
            changed(|mail| mail.text = None),
            changed(|mail| std::mem::swap(&mut mail.text, &mut mail.html)),
            changed(|mail| mail.attachments[0].name = "b.txt".into()),
            changed(|mail| mail.attachments[0].media_type = "text/html".into()),
            changed(|mail| mail.attachments[0].content = vec![2]),
            changed(|mail| mail.attachments.clear()),
            resolved(&grant("reply_to = \"other@example.com\""), mail()).fingerprint,
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all[0], resolved(&grant(""), mail()).fingerprint);
    }

    #[test]
    fn k02_a_mail_is_a_manual_write_whose_every_answer_is_final() {
        let sent = resolved(&grant("unplanned = 2"), mail());
        let outlet = sent.outlet.as_ref().unwrap();
        assert!(sent.is_write());
        assert_eq!((outlet.terms().class, outlet.terms().on_5xx), (RecoveryClass::Manual, On5xx::Answer));
        assert_eq!((outlet.index(), outlet.unplanned(&grant("unplanned = 2"))), (None, 2));
    }

    #[test]
    fn p6_without_a_section_for_mail_and_to_strangers_nothing_goes() {
        let none: Grant = "".parse().unwrap();
        let refused = resolved(&none, mail());
        assert!(matches!(refused.outlet, Err(Refusal::NotGranted(_))) && refused.is_write());
        let mut stranger = mail();
        stranger.bcc[0].address = "x@evil.example".into();
        let refused = resolved(&grant(""), stranger).outlet;
        assert!(matches!(refused, Err(Refusal::RecipientNotGranted(address)) if address == "x@evil.example"));
    }
}
