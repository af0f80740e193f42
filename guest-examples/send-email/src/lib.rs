//! Sends one mail through the host's own mail server: one write of class
//! `manual`, because a mail server neither knows idempotency keys nor can be asked
//! what became of a mail.
//!
//! It has no say in who the sender is, where answers go, and who may be written
//! to: that is in the grant. It does not check addresses either; the host does,
//! and says what is wrong with one.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "mailing-tool", generate_all });
}

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bindings::countersign::tool::email;
use bindings::exports::countersign::tool::tool::{Failure, Guest, Manifest, PreviewField, ToolPreview};
use serde::Deserialize;
use serde_json::json;

/// The arguments. The host has already checked them against `input.schema.json`.
#[derive(Deserialize)]
struct Arguments {
    to: Vec<Mailbox>,
    #[serde(default)]
    cc: Vec<Mailbox>,
    #[serde(default)]
    bcc: Vec<Mailbox>,
    subject: String,
    text: Option<String>,
    html: Option<String>,
    #[serde(default)]
    attachments: Vec<Attachment>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Mailbox {
    Address(String),
    Named { name: Option<String>, address: String },
}

#[derive(Deserialize)]
struct Attachment {
    name: String,
    media_type: String,
    content_base64: String,
}

struct SendEmail;
bindings::export!(SendEmail with_types_in bindings);

impl Guest for SendEmail {
    fn describe() -> Manifest {
        Manifest {
            name: "send-email".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: "Send a mail".to_owned(),
            description: "Sends one mail, with attachments if need be, from the address that this tool was \
                given. Use it once per mail. If the outcome is not known, do not send the mail again: a \
                person finds out."
                .to_owned(),
            input_schema: include_str!("input.schema.json").to_owned(),
            output_schema: Some(include_str!("output.schema.json").to_owned()),
            // Those are calls over HTTP. It makes none; its import says the rest.
            effects: vec![],
        }
    }

    fn preview(arguments: String) -> Result<ToolPreview, Failure> {
        let arguments = parse(&arguments)?;
        let field = |label: &str, value: String| PreviewField { label: label.to_owned(), value };
        let mut fields = vec![field("To", list(&arguments.to))];
        for (label, mailboxes) in [("Copy to", &arguments.cc), ("Hidden copy to", &arguments.bcc)] {
            if !mailboxes.is_empty() {
                fields.push(field(label, list(mailboxes)));
            }
        }
        fields.push(field("Subject", arguments.subject));
        fields.extend(arguments.attachments.into_iter().map(|file| field("Attached", file.name)));
        Ok(ToolPreview { title: "Mail".to_owned(), fields })
    }

    fn invoke(arguments: String) -> Result<String, Failure> {
        let message = message(parse(&arguments)?)?;
        let receipt = email::send(&message).map_err(refused)?;
        Ok(json!({ "message_id": receipt.message_id }).to_string())
    }
}

fn parse(arguments: &str) -> Result<Arguments, Failure> {
    serde_json::from_str(arguments).map_err(|e| Failure::InvalidArguments(e.to_string()))
}

fn list(mailboxes: &[Mailbox]) -> String {
    let shown: Vec<&str> = mailboxes
        .iter()
        .map(|mailbox| match mailbox {
            Mailbox::Address(address) | Mailbox::Named { address, .. } => address.as_str(),
        })
        .collect();
    shown.join(", ")
}

fn message(arguments: Arguments) -> Result<email::Message, Failure> {
    let mailboxes = |list: Vec<Mailbox>| {
        list.into_iter()
            .map(|mailbox| match mailbox {
                Mailbox::Address(address) => email::Mailbox { name: None, address },
                Mailbox::Named { name, address } => email::Mailbox { name, address },
            })
            .collect()
    };
    let attachment = |file: Attachment| {
        let content = STANDARD.decode(&file.content_base64).map_err(|why| {
            Failure::InvalidArguments(format!("`content_base64` of {:?} is not base64: {why}", file.name))
        })?;
        Ok(email::Attachment { name: file.name, media_type: file.media_type, content })
    };
    Ok(email::Message {
        to: mailboxes(arguments.to),
        cc: mailboxes(arguments.cc),
        bcc: mailboxes(arguments.bcc),
        subject: arguments.subject,
        text: arguments.text,
        html: arguments.html,
        attachments: arguments.attachments.into_iter().map(attachment).collect::<Result<_, _>>()?,
    })
}

/// In each of these cases no mail was sent.
fn refused(refusal: email::Refusal) -> Failure {
    match refusal {
        email::Refusal::NotGranted => {
            Failure::Refused("this tool may send no mail here; its operator can change that".to_owned())
        }
        email::Refusal::RecipientNotGranted(address) => {
            Failure::Refused(format!("this tool may not write to {address}"))
        }
        email::Refusal::Invalid(why) => Failure::InvalidArguments(why),
        email::Refusal::TooLarge(most) => Failure::InvalidArguments(format!(
            "the mail is too large: bodies and attachments together may have {most} bytes"
        )),
        email::Refusal::Rejected(answer) => {
            Failure::Refused(format!("the mail server did not take it: {answer}"))
        }
        email::Refusal::AlreadyTried => {
            Failure::Refused("an equal mail of this action was not taken before".to_owned())
        }
    }
}
