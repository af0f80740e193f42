//! A mail as an approver or operator reads it: who gets it, as whom it goes out,
//! every word of it, and what each attachment is.

use super::fold::{Folder, Row, aligned, size};
use super::json::Json;
use super::text::{plain, quoted, warnings};

/// The page of a mail: `mail` of a request.
pub fn page(mail: &Json, folder: &mut Folder) -> String {
    let mut rows = Vec::new();
    rows.extend(mail.text("from").map(|from| row("from", plain(from), from)));
    rows.extend(mail.text("reply_to").map(|to| row("answers go to", plain(to), to)));
    // Never folded: who gets it is what counts most.
    for (member, label) in [("to", "to"), ("cc", "copy to"), ("bcc", "hidden copy to")] {
        for mailbox in mail.list(member) {
            let address = mailbox.text("address").unwrap_or("?");
            let (shown, all) = match mailbox.text("name") {
                Some(name) => {
                    (format!("{}, shown as {}", plain(address), quoted(name)), format!("{address} {name}"))
                }
                None => (plain(address), address.to_owned()),
            };
            rows.push(row(label, shown, &all));
        }
    }
    let subject = mail.text("subject").unwrap_or_default();
    rows.push(row("subject", folder.text(subject), subject));
    for file in mail.list("attachments") {
        let name = file.text("name").unwrap_or("?");
        let shown = format!(
            "{}, {}, {}, SHA-256 {}",
            quoted(name),
            plain(file.text("media_type").unwrap_or("?")),
            size(file.whole("bytes").unwrap_or(0)),
            plain(file.text("sha256").unwrap_or("?"))
        );
        rows.push(row("attached", shown, name));
    }
    let mut out = format!("  a mail\n{}", aligned(&rows, "  "));
    for (member, words) in [("text", "text"), ("html", "HTML, as it is sent")] {
        let Some(body) = mail.text(member) else { continue };
        out.push_str(&format!("  {words}, {}:\n", size(body.len() as u64)));
        for line in folder.lines(body) {
            out.push_str(&format!("    {line}\n"));
        }
        for note in warnings(body) {
            out.push_str(&format!("    look twice: {note}\n"));
        }
    }
    out
}

fn row(label: &str, shown: String, looked_at: &str) -> Row {
    Row { name: label.to_owned(), value: shown, notes: warnings(looked_at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k01_every_recipient_stands_on_a_line_of_its_own_hidden_ones_too() {
        let text = r#"{"from":"billing@example.com","to":[{"name":"Ada","address":"ada@example.com"}],
            "cc":[],"bcc":[{"address":"hidden@example.com"}],"subject":"Hi\u001b[2J","text":"one\ntwo",
            "attachments":[{"name":"a.pdf","media_type":"application/pdf","bytes":12,"sha256":"abcd"}]}"#;
        let mail = Json::parse(text).expect("JSON");
        let page = page(&mail, &mut Folder { full: true, folded: 0 });
        for part in [
            "billing@example.com",
            "ada@example.com, shown as \"Ada\"",
            "hidden copy to  hidden@example.com",
            "\"a.pdf\", application/pdf, 12 bytes, SHA-256 abcd",
            "one",
            "two",
        ] {
            assert!(page.contains(part), "{part:?} in {page}");
        }
        assert!(!page.contains('\u{1b}'), "{page}");
    }
}
