//! Approving: the action is shown, a person answers, and what goes to the host
//! with the answer is the fingerprint of exactly what was shown.

use super::actions::{get, status};
use super::args::Approve;
use super::client::{Send, path};
use super::exit::{Exit, Problem, Stop};
use super::json::{Json, string};
use super::session::{Session, ask, print, say};
use super::show;
use super::text::plain;

const WHAT: &str = "the action was not approved";

/// `countersign approve`
pub fn approve(session: &Session, args: &Approve) -> Result<Exit, Stop> {
    let fingerprint = match (&args.fingerprint, args.yes, session.can_ask() && !session.json) {
        // Whoever gives a fingerprint has seen what it stands for.
        (Some(fingerprint), true, _) | (Some(fingerprint), false, false) => fingerprint.clone(),
        (None, true, _) => fingerprint_of(&get(session, &args.id)?.json()?)?,
        (given, false, true) => match seen_and_agreed(session, &args.id, given.as_deref())? {
            Some(fingerprint) => fingerprint,
            None => {
                say("Nothing was approved.\n")?;
                return Ok(Exit::Refused);
            }
        },
        (None, false, false) => {
            return Err(Problem::here(
                Exit::Usage,
                WHAT,
                "there is no terminal to show it on and to ask at",
                "look at it with `countersign show`, then give its --fingerprint",
            ));
        }
    };
    let body = match &args.note {
        Some(note) => format!("{{\"note\":{}}}", string(note)),
        None => "{}".to_owned(),
    };
    let target = path(&["v1", "actions", &args.id, "approve"]);
    let seen = format!("\"{fingerprint}\"");
    let headers = [("if-match", seen.as_str())];
    let within = std::time::Duration::from_secs(60);
    let reply = session.client.call(WHAT, http::Method::POST, &target, &headers, Send::Json(body), within)?;
    session.print(&reply, || {
        let action = reply.json()?;
        let id = plain(action.text("id").unwrap_or_default());
        let missing = action
            .get("approval")
            .map_or(0, |a| a.whole("required").unwrap_or(0).saturating_sub(a.list("given").len() as u64));
        Ok(match (status(&action), missing) {
            ("awaiting_approval", more) => format!("{id}  approved by you; {more} more must approve\n"),
            (state, _) => format!("{id}  {}\n", show::state(state)),
        })
    })?;
    Ok(Exit::Done)
}

/// Shows the action and asks. `None` is a no.
fn seen_and_agreed(session: &Session, id: &str, given: Option<&str>) -> Result<Option<String>, Stop> {
    let action = get(session, id)?.json()?;
    let fingerprint = fingerprint_of(&action)?;
    let shown = show::action(&action, &session.view(false));
    print(&shown.text)?;
    if given.is_some_and(|given| given != fingerprint) {
        return Err(Problem::here(
            Exit::Refused,
            WHAT,
            "it has another fingerprint than the one given: it is not what you saw",
            "read what is shown now, and decide about that",
        ));
    }
    if status(&action) != "awaiting_approval" {
        return Err(Problem::here(
            Exit::Refused,
            WHAT,
            format!("it is {}", show::state(status(&action))),
            "only an action that awaits approval can be approved",
        ));
    }
    if shown.folded > 0 {
        // What is folded has to be opened before it can be approved.
        match ask("\nSome of it is folded. Show all of it? [full/no] ", &["full", "no"])? {
            0 => print(&show::action(&action, &session.view(true)).text)?,
            _ => return Ok(None),
        }
    }
    let agreed = ask("\nApprove exactly this? [yes/no] ", &["yes", "no"])? == 0;
    Ok(agreed.then_some(fingerprint))
}

fn fingerprint_of(action: &Json) -> Result<String, Stop> {
    match action.text("fingerprint") {
        Some(text) if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(text.to_owned()),
        _ => Err(Problem::here(
            Exit::Other,
            WHAT,
            "the host's answer has no fingerprint",
            "check that the address is that of a Countersign host",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_host::{answer, session};

    fn asking(fingerprint: Option<&str>, yes: bool) -> Approve {
        Approve { id: "a1".into(), note: Some("ok\n".into()), fingerprint: fingerprint.map(Into::into), yes }
    }

    #[test]
    fn what_is_approved_is_the_fingerprint_that_was_seen() {
        let (seen, other) = ("a".repeat(64), "b".repeat(64));
        let action =
            format!("{{\"id\":\"a1\",\"status\":\"awaiting_approval\",\"fingerprint\":\"{other}\"}}");
        // Given: nothing is looked up, the given one is sent.
        let (with, served) = session(vec![answer(200, &action)]);
        assert_eq!(approve(&with, &asking(Some(&seen), false)).ok(), Some(Exit::Done));
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("POST /v1/actions/a1/approve "), "{}", asked[0]);
        assert!(asked[0].contains(&format!("if-match: \"{seen}\"")), "{}", asked[0]);
        assert!(asked[0].ends_with("{\"note\":\"ok\\n\"}"), "{}", asked[0]);
        // Not given: the one of the action that was loaded, so that a change in
        // between is refused by the host.
        let (with, served) = session(vec![answer(200, &action), answer(200, &action)]);
        assert_eq!(approve(&with, &asking(None, true)).ok(), Some(Exit::Done));
        assert!(served.join().unwrap()[1].contains(&format!("if-match: \"{other}\"")));
    }

    #[test]
    fn without_anybody_to_ask_nothing_is_sent() {
        let (with, served) = session(Vec::new());
        match approve(&with, &asking(None, false)) {
            Err(Stop::Problem(problem)) => assert_eq!(problem.exit, Exit::Usage),
            other => panic!("{other:?}"),
        }
        assert!(served.join().unwrap().is_empty());
    }
}
