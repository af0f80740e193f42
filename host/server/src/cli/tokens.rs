//! Tokens: made, listed, ended. A new one goes to standard output alone, so that
//! it can be caught in a file or a variable; what there is to say about it goes
//! beside.

use http::Method;

use super::args::TokenVerb;
use super::client::{Send, path};
use super::exit::{Exit, Problem, Stop};
use super::json::string;
use super::session::{Session, print, say};
use super::table;
use super::text::plain;

/// `countersign token …`
pub fn run(session: &Session, verb: &TokenVerb) -> Result<Exit, Stop> {
    match verb {
        TokenVerb::Create { name, roles, tenant } => create(session, name, roles, tenant.as_deref()),
        TokenVerb::List => {
            let reply = session.client.get("the tokens could not be listed", &path(&["v1", "tokens"]))?;
            session.print(&reply, || Ok(table::tokens(&reply.json()?, session.paint)))?;
            Ok(Exit::Done)
        }
        TokenVerb::Revoke { id } => {
            let target = path(&["v1", "tokens", id]);
            let within = std::time::Duration::from_secs(60);
            let reply = session.client.call(
                "the token was not revoked",
                Method::DELETE,
                &target,
                &[],
                Send::Nothing,
                within,
            )?;
            session.print(&reply, || Ok(format!("{}  revoked\n", plain(id))))?;
            Ok(Exit::Done)
        }
    }
}

fn create(session: &Session, name: &str, roles: &[String], tenant: Option<&str>) -> Result<Exit, Stop> {
    let what = "no token was made";
    let roles: Vec<String> = roles.iter().map(|role| string(role)).collect();
    let mut body = format!("{{\"name\":{},\"roles\":[{}]", string(name), roles.join(","));
    if let Some(tenant) = tenant {
        body.push_str(&format!(",\"tenant\":{}", string(tenant)));
    }
    body.push('}');
    let reply = session.client.post(what, &path(&["v1", "tokens"]), body)?;
    if session.json {
        session.print(&reply, || Ok(String::new()))?;
        return Ok(Exit::Done);
    }
    let made = reply.json()?;
    let token =
        made.text("token").filter(|token| token.bytes().all(|b| b.is_ascii_graphic())).ok_or_else(|| {
            Problem::here(
                Exit::Other,
                "a token may have been made, but the answer does not hold it",
                "the host's answer has no `token`",
                "look at `countersign token list`, revoke it, and check the address",
            )
        })?;
    say(&format!(
        "Token for {}. It is shown this once and kept nowhere; whoever has it acts as {}.\n",
        plain(name),
        plain(name)
    ))?;
    print(&format!("{token}\n"))?;
    if let Some(id) = made.text("id") {
        say(&format!("To end it: countersign token revoke {}\n", plain(id)))?;
    }
    Ok(Exit::Done)
}
