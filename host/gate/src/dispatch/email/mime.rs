//! A mail as it goes over the wire (RFC 5322, RFC 2045–2047, RFC 2231).
//!
//! Everything that is not one of our own words is encoded: bodies and files as
//! base64, always, texts in headers wherever they are more than plain words. So
//! no text of a component can be a line of the mail's own, let alone of SMTP:
//! base64 has neither dots nor dashes, and the borders between parts have
//! characters that it has not. The same mail gives the same bytes but for its
//! date.
//!
//! Not checked: what the texts say. That they have no line breaks where they
//! must not was checked when the mail was resolved; [`is_clean`] looks once more
//! at the whole.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use countersign_domain::grant::EmailAddress;
use countersign_domain::mail::{Attachment, Mail, Recipient};
use countersign_domain::time::Timestamp;

/// Bytes of a line without its end: RFC 5322 §2.1.1.
const MAX_LINE: usize = 998;
/// Bytes of text in one encoded word: 52 characters of base64, so that a line with
/// the frame and a header's name stays under 78 (RFC 5322 §2.1.1).
const WORD_BYTES: usize = 39;
/// Bytes of plain text that stand in a header as they are.
const PLAIN_BYTES: usize = 60;
/// Last second that a date can be written for: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// Borders. Base64 has no `_`.
const MIXED: &str = "=_mixed_";
const ALTERNATIVE: &str = "=_alternative_";

/// The whole mail; every line ends with `\r\n`.
pub(super) fn write(mail: &Mail, message_id: &str, date: Timestamp) -> Vec<u8> {
    let mut out = String::new();
    header(&mut out, "Date", &when(date));
    header(&mut out, "From", &mailbox(None, &mail.from));
    if let Some(reply_to) = &mail.reply_to {
        header(&mut out, "Reply-To", &mailbox(None, reply_to));
    }
    // Who gets a hidden copy stands in no header: SMTP alone is told.
    match (mail.to.is_empty(), mail.cc.is_empty()) {
        (true, true) => header(&mut out, "To", "undisclosed-recipients:;"),
        (no_to, no_cc) => {
            if !no_to {
                header(&mut out, "To", &mailboxes(&mail.to));
            }
            if !no_cc {
                header(&mut out, "Cc", &mailboxes(&mail.cc));
            }
        }
    }
    header(&mut out, "Message-ID", message_id);
    header(&mut out, "Subject", &text(&mail.subject));
    header(&mut out, "MIME-Version", "1.0");
    if mail.attachments.is_empty() {
        bodies(&mut out, mail);
    } else {
        header(&mut out, "Content-Type", &format!("multipart/mixed;\r\n boundary=\"{MIXED}\""));
        out.push_str(&format!("\r\n--{MIXED}\r\n"));
        bodies(&mut out, mail);
        for file in &mail.attachments {
            out.push_str(&format!("--{MIXED}\r\n"));
            attached(&mut out, file);
        }
        out.push_str(&format!("--{MIXED}--\r\n"));
    }
    out.into_bytes()
}

/// Whether these bytes can be handed to a server as they are.
pub(super) fn is_clean(text: &[u8]) -> bool {
    text.is_ascii()
        && text.ends_with(b"\r\n")
        && text.split_inclusive(|b| *b == b'\n').all(|line| {
            line.strip_suffix(b"\r\n").is_some_and(|line| {
                line.len() <= MAX_LINE && !line.iter().any(|b| matches!(b, b'\r' | b'\n' | 0))
            })
        })
}

fn bodies(out: &mut String, mail: &Mail) {
    let (plain, html) = ("text/plain; charset=utf-8", "text/html; charset=utf-8");
    match (&mail.text, &mail.html) {
        (Some(text), Some(page)) => {
            header(out, "Content-Type", &format!("multipart/alternative;\r\n boundary=\"{ALTERNATIVE}\""));
            out.push_str(&format!("\r\n--{ALTERNATIVE}\r\n"));
            part(out, plain, text.as_bytes());
            out.push_str(&format!("--{ALTERNATIVE}\r\n"));
            part(out, html, page.as_bytes());
            out.push_str(&format!("--{ALTERNATIVE}--\r\n"));
        }
        (None, Some(page)) => part(out, html, page.as_bytes()),
        (text, None) => part(out, plain, text.as_deref().unwrap_or_default().as_bytes()),
    }
}

fn attached(out: &mut String, file: &Attachment) {
    // RFC 2231 §4 where the name is more than plain characters.
    let plain = file.name.bytes().all(|b| b.is_ascii_alphanumeric() || b" ._-()+,=@".contains(&b));
    let name = if plain && file.name.len() <= PLAIN_BYTES {
        format!("filename=\"{}\"", file.name)
    } else {
        format!("filename*=utf-8''{}", percent(&file.name))
    };
    header(out, "Content-Disposition", &format!("attachment;\r\n {name}"));
    part(out, &file.media_type, &file.content);
}

fn part(out: &mut String, media_type: &str, content: &[u8]) {
    header(out, "Content-Type", media_type);
    header(out, "Content-Transfer-Encoding", "base64");
    out.push_str("\r\n");
    // 57 bytes are 76 characters: RFC 2045 §6.8.
    for line in content.chunks(57) {
        out.push_str(&STANDARD.encode(line));
        out.push_str("\r\n");
    }
}

fn header(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str(": ");
    out.push_str(value);
    out.push_str("\r\n");
}

fn mailboxes(list: &[Recipient]) -> String {
    let all: Vec<String> = list.iter().map(|one| mailbox(one.name.as_deref(), &one.address)).collect();
    all.join(",\r\n ")
}

fn mailbox(name: Option<&str>, address: &EmailAddress) -> String {
    match name {
        None => format!("<{address}>"),
        Some(name) if is_plain(name) && !name.contains(['"', '\\']) => {
            format!("\"{name}\"\r\n <{address}>")
        }
        Some(name) => format!("{}\r\n <{address}>", encoded(name)),
    }
}

/// A text in a header.
fn text(value: &str) -> String {
    if is_plain(value) { value.to_owned() } else { encoded(value) }
}

/// Whether a reader sees these characters if they stand in a header as they are.
fn is_plain(value: &str) -> bool {
    value.len() <= PLAIN_BYTES
        && value.bytes().all(|b| (0x20..=0x7e).contains(&b))
        && value.trim() == value
        // An encoded word is read as what it encodes.
        && !value.contains("=?")
}

/// Encoded words, one per line.
fn encoded(value: &str) -> String {
    let mut words = Vec::new();
    let mut rest = value;
    while !rest.is_empty() {
        // A word holds whole characters: RFC 2047 §5.
        let (word, after) = rest.split_at(rest.floor_char_boundary(WORD_BYTES));
        words.push(format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
        rest = after;
    }
    words.join("\r\n ")
}

fn percent(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// RFC 5322 §3.3, in UTC.
fn when(date: Timestamp) -> String {
    let seconds = u64::try_from(date.as_micros() / 1_000_000).unwrap_or(0).min(LAST_SECOND);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    httpdate::fmt_http_date(at).replace("GMT", "+0000")
}

#[cfg(test)]
mod unit {
    use super::*;

    fn mail() -> Mail {
        let one = |name: Option<&str>, address: &str| Recipient {
            name: name.map(str::to_owned),
            address: address.parse().unwrap(),
        };
        Mail {
            from: "billing@example.com".parse().unwrap(),
            reply_to: Some("support@example.com".parse().unwrap()),
            to: vec![one(Some("Ada Lovelace"), "ada@example.com"), one(None, "b@example.com")],
            cc: vec![one(Some("Jörg \"X\""), "c@example.com")],
            bcc: vec![one(Some("Hidden"), "hidden@example.com")],
            subject: "Überweisung".repeat(20),
            text: Some("\r\n.\r\nMAIL FROM:<x>\r\n".into()),
            html: Some("<p>ä</p>".into()),
            attachments: vec![
                Attachment {
                    name: "Rechnung März.pdf".into(),
                    media_type: "application/pdf".into(),
                    content: (0..=255).collect(),
                },
                Attachment { name: "empty".into(), media_type: "text/plain".into(), content: vec![] },
            ],
        }
    }

    const DATE: Timestamp = Timestamp::from_micros(1_790_000_000_123_456);

    #[test]
    fn k01_every_byte_is_plain_and_no_text_of_a_component_is_a_line_of_the_mail() {
        let written = write(&mail(), "<id@example.com>", DATE);
        assert!(is_clean(&written));
        let text = String::from_utf8(written).unwrap();
        assert!(text.lines().all(|line| line.len() <= 78), "{text}");
        for never in ["MAIL FROM", "hidden@", "Hidden", "Überweisung", "\r\n.\r\n", "\n."] {
            assert!(!text.contains(never), "{never:?} in {text}");
        }
        assert!(text.starts_with("Date: Mon, 21 Sep 2026 14:13:20 +0000\r\nFrom: <billing@example.com>\r\n"));
        assert!(text.contains("To: \"Ada Lovelace\"\r\n <ada@example.com>,\r\n <b@example.com>\r\n"));
        assert!(text.contains("filename*=utf-8''Rechnung%20M%C3%A4rz.pdf"));
        assert_eq!(text, String::from_utf8(write(&mail(), "<id@example.com>", DATE)).unwrap());
    }

    #[test]
    fn only_hidden_recipients_leave_an_empty_group() {
        let mut mail = mail();
        (mail.to, mail.cc) = (vec![], vec![]);
        let text = String::from_utf8(write(&mail, "<id@example.com>", DATE)).unwrap();
        assert!(text.contains("\r\nTo: undisclosed-recipients:;\r\n"));
    }

    #[test]
    fn a_text_that_would_be_read_as_another_is_encoded() {
        assert_eq!(text("Hello, world"), "Hello, world");
        assert_eq!(text("=?utf-8?B?SGk=?="), "=?utf-8?B?PT91dGYtOD9CP1NHaz0/PQ==?=");
        assert_eq!(text(" padded"), "=?utf-8?B?IHBhZGRlZA==?=");
        let split = encoded(&"ä".repeat(40));
        for word in split.split("\r\n ") {
            let inner = word.strip_prefix("=?utf-8?B?").and_then(|w| w.strip_suffix("?=")).unwrap();
            assert!(word.len() <= 75 && String::from_utf8(STANDARD.decode(inner).unwrap()).is_ok());
        }
    }

    #[test]
    fn k01_whatever_passes_the_check_is_written_clean() {
        use countersign_domain::grant::Grant;
        use countersign_domain::mail::{Mailbox, OutboundMail, check};
        let text = "[email]\nfrom = \"b@example.com\"\nrecipients = [\"*@example.com\"]";
        let grant: Grant = text.parse().unwrap();
        let mut passed = 0;
        // All of ASCII and Latin-1, and a sample of everything else.
        let sample = (0..0x100).chain((0x100..0x11_0000).step_by(997)).filter_map(char::from_u32);
        for c in sample {
            let line = format!("{c}a {c}.{c}");
            let asked = OutboundMail {
                to: vec![Mailbox { name: Some(line.clone()), address: "a@example.com".into() }],
                cc: vec![],
                bcc: vec![],
                subject: line.repeat(20),
                text: Some(format!("{line}\r{line}\n.\r\n")),
                html: None,
                attachments: vec![Attachment {
                    name: line.clone(),
                    media_type: "text/plain".into(),
                    content: line.into_bytes(),
                }],
            };
            if let Ok(mail) = check(&asked, grant.email().unwrap()) {
                passed += 1;
                let written = write(&mail, "<id@example.com>", DATE);
                assert!(is_clean(&written), "{c:?}");
                let heads = String::from_utf8(written).unwrap();
                let lines =
                    heads.lines().filter(|line| line.starts_with("Subject:") || line.starts_with("To:"));
                assert_eq!(lines.count(), 2, "{c:?}: {heads}");
            }
        }
        assert!(passed > 1000, "{passed}");
    }

    #[test]
    fn what_is_not_clean_is_seen() {
        assert!(is_clean(b"a\r\n\r\nb\r\n"));
        let long = [vec![b'x'; 999], b"\r\n".to_vec()].concat();
        for bad in [&b"a"[..], b"a\n", b"a\rb\r\n", b"a\r\n.\n\r\n", "ä\r\n".as_bytes(), b"\0\r\n", &long] {
            assert!(!is_clean(bad), "{bad:?}");
        }
    }
}
