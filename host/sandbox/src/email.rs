//! `countersign:tool/email`, ours: a mail becomes an effect, and the component
//! waits for what the gate says about it.
//!
//! Calling `send` is waiting, so what the component finished before is answered
//! first: the order of its effects is the order of its calls.
//!
//! Not checked here: anything about the mail. Its texts are the component's.

use countersign_domain::effect::{Answer, Effect, Refusal};
use countersign_domain::mail::{Attachment, MESSAGE_ID, Mailbox, OutboundMail};

use crate::bindings::tool::countersign::tool::email as wit;
use crate::state::State;

impl wit::Host for State {
    async fn send(&mut self, message: wit::Message) -> wasmtime::Result<Result<wit::Receipt, wit::Refusal>> {
        self.settle().await?;
        let answer = self.pass(Effect::Email(mail(message))).await?;
        // `describe` and `preview`: nothing is granted, and nobody is asked.
        Ok(answer.map_or(Err(wit::Refusal::NotGranted), |answer| match answer {
            Ok(answer) => receipt(answer),
            Err(refused) => Err(refusal(refused)),
        }))
    }
}

fn mail(message: wit::Message) -> OutboundMail {
    let mailboxes = |list: Vec<wit::Mailbox>| {
        list.into_iter().map(|one| Mailbox { name: one.name, address: one.address }).collect()
    };
    let attachment = |one: wit::Attachment| Attachment {
        name: one.name,
        media_type: one.media_type,
        content: one.content,
    };
    OutboundMail {
        to: mailboxes(message.to),
        cc: mailboxes(message.cc),
        bcc: mailboxes(message.bcc),
        subject: message.subject,
        text: message.text,
        html: message.html,
        attachments: message.attachments.into_iter().map(attachment).collect(),
    }
}

/// What the server answered to the whole mail. It took it, or it did not.
fn receipt(answer: Answer) -> Result<wit::Receipt, wit::Refusal> {
    if answer.is_success() {
        return Ok(wit::Receipt { message_id: answer.header(MESSAGE_ID).unwrap_or_default().to_owned() });
    }
    let text = String::from_utf8_lossy(&answer.body);
    Err(wit::Refusal::Rejected(format!("{} {text}", answer.status).trim_end().to_owned()))
}

/// What a component is told about a refusal: the kind, and of the texts only
/// those that speak of its own mail or are the server's own words about it.
fn refusal(refusal: Refusal) -> wit::Refusal {
    match refusal {
        Refusal::NotGranted(_) | Refusal::AddressProhibited(_) | Refusal::TooMany(_) => {
            wit::Refusal::NotGranted
        }
        Refusal::BodyTooLarge(limit) => wit::Refusal::TooLarge(limit),
        Refusal::MayHaveHappened(_) => wit::Refusal::AlreadyTried,
        Refusal::RecipientNotGranted(address) => wit::Refusal::RecipientNotGranted(address),
        Refusal::InvalidMail(why) => wit::Refusal::Invalid(why),
        Refusal::Rejected(why) => wit::Refusal::Rejected(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_told_the_kind_of_a_refusal_and_no_text_of_the_hosts_own() {
        let host = || "10.0.0.5 is private".to_owned();
        for kept in [Refusal::NotGranted(host()), Refusal::AddressProhibited(host())] {
            assert!(matches!(refusal(kept), wit::Refusal::NotGranted));
        }
        assert!(matches!(refusal(Refusal::MayHaveHappened(host())), wit::Refusal::AlreadyTried));
        assert!(matches!(refusal(Refusal::BodyTooLarge(7)), wit::Refusal::TooLarge(7)));
        let wit::Refusal::Rejected(why) = refusal(Refusal::Rejected("550 no".into())) else { panic!() };
        assert_eq!(why, "550 no");
    }

    #[test]
    fn only_a_success_is_a_receipt() {
        let answer = |status| Answer {
            status,
            headers: vec![(MESSAGE_ID.to_owned(), "<a@b>".to_owned())],
            body: b"words".to_vec(),
        };
        assert_eq!(receipt(answer(250)).unwrap().message_id, "<a@b>");
        for status in [451, 552] {
            let Err(wit::Refusal::Rejected(why)) = receipt(answer(status)) else { panic!("{status}") };
            assert_eq!(why, format!("{status} words"));
        }
    }
}
