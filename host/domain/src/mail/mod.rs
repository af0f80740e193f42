//! Mail: what a component asks to be sent, what a grant makes of it, and how it
//! stands in the ledger.
//!
//! A mail is shown, hashed and kept as one JSON text ([`RecordedMail`]), sender
//! and attachments included. What is put on the wire is made from the checked
//! form ([`Mail`], see `check`), in which no text is left that a mail server or
//! a reader could take for something else.
//!
//! May not: write a byte of a mail's transport form. That is the sender's.

mod check;

use serde::{Deserialize, Serialize};

use crate::effect::{Answer, EffectRecord, RecordedRequest, base64_bytes};
use crate::grant::EmailGrant;
use crate::id::Digest;

pub use check::{MAX_ATTACHMENTS, MAX_RECIPIENTS, Mail, Recipient, check};

/// Stands where an HTTP request has its method. No component can name a method
/// of its own like this together with a `mailto:` URL that has no `//`.
const METHOD: &str = "MAIL";

/// The status of a mail that a server took (RFC 5321 §4.2.3).
const ACCEPTED: u16 = 250;

/// The header of an answer that carries the mail's `Message-ID`.
pub const MESSAGE_ID: &str = "message-id";

/// A mailbox as the component gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    /// What people see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the mail server sees.
    pub address: String,
}

/// A file that travels along, as the component gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Without a folder.
    pub name: String,
    /// For instance `application/pdf`.
    pub media_type: String,
    /// Whole.
    #[serde(with = "base64_bytes")]
    pub content: Vec<u8>,
}

/// A mail that a component asks the host to send: untrusted, as it gave it. It
/// has no say in who sends it and where answers go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundMail {
    /// Main recipients.
    pub to: Vec<Mailbox>,
    /// Recipients of a copy.
    pub cc: Vec<Mailbox>,
    /// Recipients of a copy that the others do not see. The approver does.
    pub bcc: Vec<Mailbox>,
    /// One line.
    pub subject: String,
    /// The body as plain text.
    pub text: Option<String>,
    /// The body as HTML.
    pub html: Option<String>,
    /// In this order.
    pub attachments: Vec<Attachment>,
}

/// A mail as it stands in the ledger and as an approver sees it: everything that
/// will be sent, and as whom. Its JSON text is what is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMail {
    /// Whose mail it is; missing where the grant allows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where answers go, if not to `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Main recipients.
    pub to: Vec<Mailbox>,
    /// Recipients of a copy.
    pub cc: Vec<Mailbox>,
    /// Recipients of a hidden copy.
    pub bcc: Vec<Mailbox>,
    /// One line.
    pub subject: String,
    /// The body as plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The body as HTML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// In this order.
    pub attachments: Vec<RecordedAttachment>,
}

/// An attachment with what a person can compare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedAttachment {
    /// Without a folder.
    pub name: String,
    /// For instance `application/pdf`.
    pub media_type: String,
    /// Length of the content.
    pub bytes: u64,
    /// SHA-256 of the content.
    pub sha256: Digest,
    /// Whole.
    #[serde(with = "base64_bytes")]
    pub content: Vec<u8>,
}

impl RecordedMail {
    /// A mail under a grant; `None`: the grant has no section for mail.
    pub fn of(mail: &OutboundMail, grant: Option<&EmailGrant>) -> RecordedMail {
        let attachment = |attachment: &Attachment| RecordedAttachment {
            name: attachment.name.clone(),
            media_type: attachment.media_type.clone(),
            bytes: attachment.content.len() as u64,
            sha256: Digest::of(&attachment.content),
            content: attachment.content.clone(),
        };
        RecordedMail {
            from: grant.map(|grant| grant.from.to_string()),
            reply_to: grant.and_then(|grant| grant.reply_to.as_ref()).map(ToString::to_string),
            to: mail.to.clone(),
            cc: mail.cc.clone(),
            bcc: mail.bcc.clone(),
            subject: mail.subject.clone(),
            text: mail.text.clone(),
            html: mail.html.clone(),
            attachments: mail.attachments.iter().map(attachment).collect(),
        }
    }

    /// The row's form: every recipient in the URL, the whole mail as the body.
    pub fn to_request(&self) -> RecordedRequest {
        let recipients: Vec<String> =
            [&self.to, &self.cc, &self.bcc].into_iter().flatten().map(|one| escaped(&one.address)).collect();
        // Texts, lists and numbers only: nothing that could fail.
        let body = serde_json::to_vec(self)
            .unwrap_or_else(|never| unreachable!("a mail did not become JSON: {never}"));
        RecordedRequest {
            method: METHOD.to_owned(),
            url: format!("mailto:{}", recipients.join(",")),
            headers: Vec::new(),
            body,
        }
    }

    /// Back from the row's form; `None` if the request is no mail.
    pub fn read(request: &RecordedRequest) -> Option<RecordedMail> {
        let address = request.url.strip_prefix("mailto:")?;
        // A malformed HTTP request may have any scheme; its URL has slashes.
        if request.method != METHOD || address.starts_with('/') {
            return None;
        }
        serde_json::from_slice(&request.body).ok()
    }
}

/// RFC 6068 §2: what is no plain character of an address is percent-encoded.
fn escaped(address: &str) -> String {
    let mut out = String::with_capacity(address.len());
    for byte in address.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'@' | b'.' | b'-' | b'_' | b'~' | b'+' | b'=' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The `Message-ID` of the mail with this provider key: the same for every send
/// of it, and findable by the action's id in any mail server's log.
pub fn message_id(provider_key: &str, from: &crate::grant::EmailAddress) -> String {
    // The left side is a dot-atom (RFC 5322 §3.6.4); a colon is none.
    let left: String =
        provider_key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '.' }).collect();
    format!("<{left}@{}>", from.domain())
}

/// The answer of a server that took the mail.
pub fn accepted(message_id: &str, said: &str) -> Answer {
    Answer {
        status: ACCEPTED,
        headers: vec![(MESSAGE_ID.to_owned(), message_id.to_owned())],
        body: said.as_bytes().to_vec(),
    }
}

/// The answer that a mail would have had, for one of which a person says that it
/// was sent; `None` if the effect is no mail.
pub fn accepted_by_word(effect: &EffectRecord) -> Option<Answer> {
    let from = RecordedMail::read(&effect.request)?.from?.parse().ok()?;
    Some(accepted(&message_id(effect.provider_key.as_deref()?, &from), ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::Grant;

    fn mail() -> OutboundMail {
        OutboundMail {
            to: vec![Mailbox { name: Some("Ada".into()), address: "ada@example.com".into() }],
            cc: vec![],
            bcc: vec![Mailbox { name: None, address: "//x?y@example.com".into() }],
            subject: "Hello".into(),
            text: Some("text".into()),
            html: None,
            attachments: vec![Attachment {
                name: "a.pdf".into(),
                media_type: "application/pdf".into(),
                content: vec![0, 255],
            }],
        }
    }

    #[test]
    fn p4_the_recorded_mail_is_whole_and_names_every_recipient() {
        let grant: Grant =
            "[email]\nfrom = \"billing@example.com\"\nrecipients = [\"*@example.com\"]".parse().unwrap();
        let recorded = RecordedMail::of(&mail(), grant.email());
        let request = recorded.to_request();
        assert_eq!(request.url, "mailto:ada@example.com,%2F%2Fx%3Fy@example.com");
        assert_eq!(RecordedMail::read(&request).unwrap(), recorded);
        assert_eq!(recorded.from.as_deref(), Some("billing@example.com"));
        let file = &recorded.attachments[0];
        assert_eq!((file.bytes, file.sha256), (2, Digest::of(&[0, 255])));
    }

    #[test]
    fn p4_an_http_request_is_never_taken_for_a_mail() {
        let body = RecordedMail::of(&mail(), None).to_request().body;
        let request = |method: &str, url: &str| RecordedRequest {
            method: method.into(),
            url: url.into(),
            headers: vec![],
            body: body.clone(),
        };
        assert!(RecordedMail::read(&request("MAIL", "mailto:ada@example.com")).is_some());
        assert!(RecordedMail::read(&request("MAIL", "mailto://ada@example.com/")).is_none());
        assert!(RecordedMail::read(&request("POST", "mailto:ada@example.com")).is_none());
        assert!(RecordedMail::read(&request("MAIL", "https://example.com/")).is_none());
    }

    #[test]
    fn k02_a_message_id_follows_from_the_provider_key() {
        let from = "billing@example.com".parse().unwrap();
        let id = |key: &str| message_id(key, &from);
        let key = "tool-action:d8da417d-0178-80f4-ac10-c10bf9e4f03d:1";
        assert_eq!(id(key), "<tool-action.d8da417d-0178-80f4-ac10-c10bf9e4f03d.1@example.com>");
        assert_eq!(id(key), id(key));
        assert_ne!(id(key), id(&key.replace(":1", ":2")));
    }
}
