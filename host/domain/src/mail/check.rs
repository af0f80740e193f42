//! The rules for a mail: who may get it, and which characters may stand where.
//!
//! The rule behind all of them: what is left after this check means the same to
//! the approver's screen, to the mail server and to the reader's program. So an
//! address is one mailbox ([`EmailAddress`]); whatever becomes part of a header
//! has no line break, no control character and none that turns text around; and
//! bodies are text, whose lines end in one way.

use super::{Attachment, Mailbox, OutboundMail};
use crate::effect::Refusal;
use crate::grant::{EmailAddress, EmailGrant};

/// Recipients of one mail. RFC 5321 §4.5.3.1.8: servers take at least so many.
pub const MAX_RECIPIENTS: usize = 100;
/// Attachments of one mail. Chosen: more than a person looks at.
pub const MAX_ATTACHMENTS: usize = 32;
/// Bytes of a subject or display name, UTF-8. Chosen: a line on a screen, not a
/// page; encoded and folded it stays far from any server's limit.
const MAX_LINE_BYTES: usize = 500;
/// Bytes of an attachment's name: what file systems take.
const MAX_NAME_BYTES: usize = 255;

/// A mail that may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Whose mail it is.
    pub from: EmailAddress,
    /// Where answers go, if not to `from`.
    pub reply_to: Option<EmailAddress>,
    /// Main recipients.
    pub to: Vec<Recipient>,
    /// Recipients of a copy.
    pub cc: Vec<Recipient>,
    /// Recipients of a hidden copy.
    pub bcc: Vec<Recipient>,
    /// One line of text.
    pub subject: String,
    /// The body as plain text; lines end in `\r\n`.
    pub text: Option<String>,
    /// The body as HTML; lines end in `\r\n`.
    pub html: Option<String>,
    /// In this order.
    pub attachments: Vec<Attachment>,
}

/// A recipient that the grant permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// One line of text without an address in it.
    pub name: Option<String>,
    /// One mailbox.
    pub address: EmailAddress,
}

impl Mail {
    /// Everybody who gets it, each once, in the order in which they stand there.
    pub fn recipients(&self) -> Vec<&EmailAddress> {
        let mut all: Vec<&EmailAddress> = Vec::new();
        for recipient in [&self.to, &self.cc, &self.bcc].into_iter().flatten() {
            if !all.contains(&&recipient.address) {
                all.push(&recipient.address);
            }
        }
        all
    }
}

/// Checks a mail against a grant. A pure function: a replay comes to the same.
///
/// # Errors
/// [`Refusal::InvalidMail`] says where and what; [`Refusal::RecipientNotGranted`]
/// and [`Refusal::BodyTooLarge`] what the grant does not allow.
pub fn check(mail: &OutboundMail, grant: &EmailGrant) -> Result<Mail, Refusal> {
    let count = mail.to.len() + mail.cc.len() + mail.bcc.len();
    if count == 0 {
        return Err(invalid("it has no recipient"));
    }
    if count > MAX_RECIPIENTS {
        return Err(invalid(format!("it has {count} recipients; {MAX_RECIPIENTS} is the most")));
    }
    let recipients = |field: &str, boxes: &[Mailbox]| -> Result<Vec<Recipient>, Refusal> {
        boxes.iter().enumerate().map(|(n, one)| recipient(&format!("{field}[{n}]"), one, grant)).collect()
    };
    let (to, cc, bcc) =
        (recipients("to", &mail.to)?, recipients("cc", &mail.cc)?, recipients("bcc", &mail.bcc)?);
    line("subject", &mail.subject, MAX_LINE_BYTES)?;
    if mail.text.is_none() && mail.html.is_none() {
        return Err(invalid("it has neither a text nor an HTML body"));
    }
    if mail.attachments.len() > MAX_ATTACHMENTS {
        let count = mail.attachments.len();
        return Err(invalid(format!("it has {count} attachments; {MAX_ATTACHMENTS} is the most")));
    }
    for (n, file) in mail.attachments.iter().enumerate() {
        attachment(&format!("attachments[{n}]"), file)?;
    }
    let bodies = [&mail.text, &mail.html].into_iter().flatten().map(String::len);
    let files = mail.attachments.iter().map(|file| file.content.len());
    if bodies.chain(files).sum::<usize>() as u64 > grant.size {
        return Err(Refusal::BodyTooLarge(grant.size));
    }
    let body = |field: &str, body: &Option<String>| body.as_deref().map(|b| lines(field, b)).transpose();
    Ok(Mail {
        from: grant.from.clone(),
        reply_to: grant.reply_to.clone(),
        to,
        cc,
        bcc,
        subject: mail.subject.clone(),
        text: body("text", &mail.text)?,
        html: body("html", &mail.html)?,
        attachments: mail.attachments.clone(),
    })
}

fn recipient(field: &str, given: &Mailbox, grant: &EmailGrant) -> Result<Recipient, Refusal> {
    let address: EmailAddress = given
        .address
        .parse()
        .map_err(|why| invalid(format!("{field}: {} is no address: {why}", short(&given.address))))?;
    if let Some(name) = &given.name {
        line(&format!("{field}, its name"), name, MAX_LINE_BYTES)?;
        // Readers' programs show the name and hide the address.
        if name.contains(['<', '>', '@']) {
            return Err(invalid(format!("{field}: its name {} looks like an address", short(name))));
        }
    }
    if !grant.permits(&address) {
        return Err(Refusal::RecipientNotGranted(address.to_string()));
    }
    Ok(Recipient { name: given.name.clone().filter(|name| !name.trim().is_empty()), address })
}

fn attachment(field: &str, file: &Attachment) -> Result<(), Refusal> {
    line(&format!("{field}, its name"), &file.name, MAX_NAME_BYTES)?;
    let name = file.name.trim();
    if matches!(name, "" | "." | "..") || file.name.contains(['/', '\\', '"']) {
        let why = "it is a file's name without a folder and without quotes";
        return Err(invalid(format!("{field}: {} cannot be its name: {why}", short(&file.name))));
    }
    // RFC 6838 §4.2; parameters are not taken, they could name another charset
    // or boundary than the one in use.
    let restricted = |part: &str| {
        (1..=127).contains(&part.len())
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    let parts = file.media_type.split_once('/').filter(|(kind, sub)| restricted(kind) && restricted(sub));
    let Some((kind, _)) = parts else {
        let given = short(&file.media_type);
        return Err(invalid(format!("{field}: {given} is no media type such as application/pdf")));
    };
    // Whole mails inside a mail: they may not be encoded (RFC 2046 §5), and a
    // reader's program would look for more parts in them.
    if kind.eq_ignore_ascii_case("multipart") || kind.eq_ignore_ascii_case("message") {
        let given = short(&file.media_type);
        return Err(invalid(format!("{field}: {given} cannot be attached; application/octet-stream can")));
    }
    Ok(())
}

/// A text that becomes part of a header.
fn line(field: &str, text: &str, most: usize) -> Result<(), Refusal> {
    if crate::planted::on("mail-lines-unchecked") {
        return Ok(());
    }
    if text.len() > most {
        return Err(invalid(format!("{field} has {} bytes; {most} is the most", text.len())));
    }
    match text.chars().find(|c| c.is_control() || turns_or_hides(*c)) {
        None => Ok(()),
        Some(c) => Err(invalid(format!(
            "{field} holds U+{:04X}, which cannot stand in a line of text",
            u32::from(c)
        ))),
    }
}

/// Characters that change what a line looks like without being seen: those of
/// Unicode's property Bidi_Control, line and paragraph separators, and those of
/// no width.
fn turns_or_hides(c: char) -> bool {
    matches!(
        c,
        '\u{061C}'
            | '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{FEFF}'
            | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0000}'..='\u{E007F}'
    )
}

/// A body, its lines ended by `\r\n` whatever they ended by before.
fn lines(field: &str, text: &str) -> Result<String, Refusal> {
    let bad = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if let Some(c) = text.chars().find(|c| bad(*c)) {
        return Err(invalid(format!("{field} holds U+{:04X}, which cannot stand in text", u32::from(c))));
    }
    Ok(text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n"))
}

/// What was given, escaped and cut, for a message.
fn short(text: &str) -> String {
    let mut cut: String = text.chars().take(80).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::InvalidMail(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::Grant;

    fn grant() -> EmailGrant {
        let text = "[email]\nfrom = \"billing@example.com\"\nrecipients = [\"*@example.com\", \"a@b.c\"]\nsize = \"1KiB\"";
        text.parse::<Grant>().unwrap().email().unwrap().clone()
    }

    fn to(address: &str) -> OutboundMail {
        OutboundMail {
            to: vec![Mailbox { name: None, address: address.into() }],
            cc: vec![],
            bcc: vec![],
            subject: "Hi".into(),
            text: Some("body".into()),
            html: None,
            attachments: vec![],
        }
    }

    fn refused(mail: &OutboundMail) -> String {
        match check(mail, &grant()) {
            Err(Refusal::InvalidMail(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn named(name: &str) -> OutboundMail {
        let mut mail = to("a@b.c");
        mail.to[0].name = Some(name.into());
        mail
    }

    #[test]
    fn k01_an_address_that_is_more_than_one_mailbox_is_refused() {
        for address in [
            "\"a\r\nRCPT TO:<x@evil>\"@b.c",
            "a@b.c, x@evil",
            "a@b.c\r\nBcc: x@evil",
            "<a@b.c>",
            "Ada <a@b.c>",
            "a@b.c>\r\nRCPT TO:<x@evil",
            "a@b.c\0",
            "",
        ] {
            assert!(refused(&to(address)).contains("to[0]"), "{address:?}");
        }
    }

    #[test]
    fn k01_every_recipient_has_to_be_granted_whichever_list_it_stands_in() {
        let stranger = Mailbox { name: None, address: "x@evil.example".into() };
        let (mut cc, mut bcc) = (to("a@b.c"), to("a@b.c"));
        cc.cc.push(stranger.clone());
        bcc.bcc.push(stranger);
        for mail in [to("x@evil.example"), cc, bcc] {
            let refusal = check(&mail, &grant());
            assert_eq!(refusal, Err(Refusal::RecipientNotGranted("x@evil.example".into())));
        }
    }

    #[test]
    fn k01_nothing_that_becomes_a_header_breaks_a_line_or_turns_it_around() {
        let bad = [
            "Hi\r\nBcc: x@evil",
            "Hi\nBcc: x",
            "Hi\rBcc: x",
            "a\0b",
            "a\u{202e}b",
            "a\u{2066}b",
            "a\u{85}b",
            "a\u{2028}b",
            "a\u{200b}b",
            "a\u{7f}b",
        ];
        for text in bad {
            let mut subject = to("a@b.c");
            subject.subject = text.into();
            assert!(refused(&subject).contains("subject"), "{text:?}");
            assert!(refused(&named(text)).contains("name"), "{text:?}");
            let mut file = to("a@b.c");
            file.attachments =
                vec![Attachment { name: text.into(), media_type: "text/plain".into(), content: vec![] }];
            assert!(refused(&file).contains("attachments[0]"), "{text:?}");
        }
        assert!(refused(&named("Ada <ada@example.com>")).contains("looks like an address"));
        let long = "x".repeat(501);
        assert!(refused(&named(&long)).contains("501 bytes"));
    }

    #[test]
    fn k01_lines_of_a_body_end_in_one_way_and_nothing_else_is_changed() {
        let mut mail = to("a@b.c");
        mail.text = Some("\n.\nMAIL FROM:<x>\r\nQUIT\r.\r\n".into());
        let checked = check(&mail, &grant()).unwrap();
        assert_eq!(checked.text.as_deref(), Some("\r\n.\r\nMAIL FROM:<x>\r\nQUIT\r\n.\r\n"));
        mail.text = Some("a\0b".into());
        assert!(refused(&mail).contains("U+0000"));
    }

    #[test]
    fn an_attachment_is_a_file_with_a_plain_media_type() {
        let with = |name: &str, media_type: &str| {
            let mut mail = to("a@b.c");
            mail.attachments =
                vec![Attachment { name: name.into(), media_type: media_type.into(), content: vec![1] }];
            mail
        };
        assert!(check(&with("Rechnung März.pdf", "application/pdf"), &grant()).is_ok());
        for name in ["", "..", "../x", "a/b", "c:\\x", "a\"b"] {
            refused(&with(name, "text/plain"));
        }
        for kind in
            ["", "text", "text/", "text/plain; charset=x", "multipart/mixed", "message/rfc822", "a/b\r\nX: y"]
        {
            refused(&with("a", kind));
        }
    }

    #[test]
    fn what_is_missing_or_too_much_is_said() {
        let mut none = to("a@b.c");
        none.to.clear();
        assert!(refused(&none).contains("no recipient"));
        let mut many = to("a@b.c");
        many.to = vec![many.to[0].clone(); 101];
        assert!(refused(&many).contains("101 recipients"));
        let mut empty = to("a@b.c");
        empty.text = None;
        assert!(refused(&empty).contains("neither"));
        let mut large = to("a@b.c");
        large.text = Some("x".repeat(1025));
        assert_eq!(check(&large, &grant()), Err(Refusal::BodyTooLarge(1024)));
    }

    #[test]
    fn a_mailbox_named_twice_gets_one_mail() {
        let mut mail = to("a@b.c");
        mail.cc = vec![
            Mailbox { name: Some("A".into()), address: "a@B.C".into() },
            Mailbox { name: None, address: "z@example.com".into() },
        ];
        let checked = check(&mail, &grant()).unwrap();
        let all: Vec<String> = checked.recipients().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["a@b.c", "z@example.com"]);
    }
}
