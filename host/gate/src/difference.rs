//! What another version of a tool, or another grant, would change: for the
//! person who says yes to it. An update that gains rights silently is how a tool
//! that was looked at once becomes one that nobody looked at.
//!
//! Grants are compared in the form that is hashed, so nothing that is approved
//! can differ without being named here. A part that this file does not know
//! counts as asking for more.
//!
//! May not: decide whether the change is a good one, or believe what a component
//! says of itself.

use std::collections::BTreeSet;
use std::time::Duration;

use countersign_domain::canonical::CanonicalJson;
use countersign_domain::grant::{Grant, show_duration, show_size};
use countersign_domain::id::Digest;
use countersign_domain::tool::Inspection;
use serde::Serialize;
use serde_json::{Map, Value};

/// One thing that would differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What: `imports`, `limits.memory`, `POST https://api.example.com/v1/*: unplanned`.
    pub what: String,
    /// As it is; `None`: it is new.
    pub before: Option<String>,
    /// As it would be; `None`: it goes.
    pub after: Option<String>,
    /// It lets the tool do more, or shows people less.
    pub more: bool,
}

/// All that would differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// In the order in which they should be read: more first.
    pub changes: Vec<Change>,
}

impl Difference {
    /// Between what is in force and what would be.
    pub fn between(
        before: (Option<&Inspection>, &Grant),
        after: (Option<&Inspection>, &Grant),
    ) -> Difference {
        let mut changes = Vec::new();
        if let (Some(before), Some(after)) = (before.0, after.0) {
            components(before, after, &mut changes);
        }
        grants(before.1, after.1, &mut changes);
        // Stable: within each half as it was found.
        changes.sort_by_key(|change| !change.more);
        Difference { changes }
    }

    /// Whether anything asks for more than is granted now.
    pub fn asks_for_more(&self) -> bool {
        self.changes.iter().any(|change| change.more)
    }

    /// What asks for more, in a few words.
    pub fn summary(&self) -> String {
        let mut more: Vec<&str> =
            self.changes.iter().filter(|change| change.more).map(|change| change.what.as_str()).collect();
        more.dedup();
        match more.split_at_checked(3) {
            Some((first, rest)) if !rest.is_empty() => {
                format!("{}, and {} more", first.join(", "), rest.len())
            }
            _ => more.join(", "),
        }
    }

    /// What a yes is said to: these changes, leading to this component and this
    /// grant. Another difference has another digest, so no yes fits it.
    pub fn digest(&self, component: &str, grant: &str) -> Digest {
        let said = serde_json::json!({
            "tag": "countersign/difference/1", "component": component, "grant": grant, "changes": self.changes,
        });
        // Texts and booleans only: it has a canonical form.
        Digest::of(
            CanonicalJson::of(&said).map_or_else(|_| said.to_string(), |c| c.as_str().to_owned()).as_bytes(),
        )
    }
}

fn change(what: &str, before: Option<String>, after: Option<String>, more: bool) -> Change {
    Change { what: what.to_owned(), before, after, more }
}

fn components(before: &Inspection, after: &Inspection, out: &mut Vec<Change>) {
    for (what, old, new) in
        [("imports", &before.imports, &after.imports), ("exports", &before.exports, &after.exports)]
    {
        members(
            what,
            &old.iter().cloned().collect(),
            &new.iter().cloned().collect(),
            what == "imports",
            false,
            out,
        );
    }
    // What was installed before they were looked for has none to compare.
    if !before.features.is_empty() {
        let set = |inspection: &Inspection| inspection.features.iter().cloned().collect();
        members("features", &set(before), &set(after), false, false, out);
    }
    let declared = |inspection: &Inspection| -> BTreeSet<String> {
        let effects = inspection.manifest.effects.iter();
        effects.map(|effect| format!("{} {}", effect.methods.join(", "), effect.host)).collect()
    };
    members("declared effects", &declared(before), &declared(after), true, false, out);
    for (what, old, new, more) in [
        // Without it an unknown outcome waits for a person.
        ("can reconcile", before.reconciles.to_string(), after.reconciles.to_string(), before.reconciles),
        ("component", before.digest.to_string(), after.digest.to_string(), false),
        ("size", show_size(before.size), show_size(after.size), false),
        ("version", before.manifest.version.clone(), after.manifest.version.clone(), false),
        ("title", before.manifest.title.clone(), after.manifest.title.clone(), false),
        ("description", before.manifest.description.clone(), after.manifest.description.clone(), false),
        (
            "input schema",
            before.manifest.input_schema.to_string(),
            after.manifest.input_schema.to_string(),
            false,
        ),
    ] {
        if old != new {
            out.push(change(what, Some(old), Some(new), more));
        }
    }
}

/// Sets: what comes, and what goes.
fn members(
    what: &str,
    before: &BTreeSet<String>,
    after: &BTreeSet<String>,
    coming_is_more: bool,
    going_is_more: bool,
    out: &mut Vec<Change>,
) {
    for new in after.difference(before) {
        out.push(change(what, None, Some(new.clone()), coming_is_more));
    }
    for old in before.difference(after) {
        out.push(change(what, Some(old.clone()), None, going_is_more));
    }
}

fn grants(before: &Grant, after: &Grant, out: &mut Vec<Change>) {
    let (old, new) = (before.effective().value(), after.effective().value());
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
        match (key.as_str(), old, new) {
            ("http", Value::Array(old), Value::Array(new)) => routes(old, new, out),
            (_, Value::Object(old), Value::Object(new)) => object(key, old, new, out),
            _ => value(key, old, new, out),
        }
    }
}

fn object(name: &str, old: &Map<String, Value>, new: &Map<String, Value>, out: &mut Vec<Change>) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => object(&format!("{name} {key}"), old, new, out),
            _ => value(&join(name, key), old, new, out),
        }
    }
}

fn join(name: &str, key: &str) -> String {
    // A route has a sentence for a name.
    if name.contains(' ') { format!("{name}: {key}") } else { format!("{name}.{key}") }
}

/// Routes are the same one if they mean the same place: how, where, which path.
fn routes(old: &[Value], new: &[Value], out: &mut Vec<Change>) {
    let place = |route: &Value| {
        let text = |key: &str| route[key].as_str().unwrap_or_default().to_owned();
        format!("{}://{}:{}{}", text("scheme"), text("host"), route["port"], text("path"))
    };
    let mut kept = Vec::new();
    for (at, route) in new.iter().enumerate() {
        let name = place(route);
        // Of two routes to one place, the first is like the first.
        let nth = new[..at].iter().filter(|other| place(other) == name).count();
        match old.iter().enumerate().filter(|(_, other)| place(other) == name).nth(nth) {
            Some((was, other)) => {
                kept.push(was);
                if let (Some(other), Some(route)) = (other.as_object(), route.as_object()) {
                    object(&format!("route {name}"), other, route, out);
                }
            }
            None => out.push(change("route", None, Some(whole(route, &name)), true)),
        }
    }
    for (was, route) in old.iter().enumerate() {
        if !kept.contains(&was) {
            out.push(change("route", Some(whole(route, &place(route))), None, false));
        }
    }
    if !kept.is_sorted() {
        let names = |routes: &[Value]| routes.iter().map(place).collect::<Vec<_>>().join(", ");
        // The first that fits is the one whose terms hold.
        out.push(change("order of routes", Some(names(old)), Some(names(new)), true));
    }
}

/// A route in a line: what it reaches, on which terms, with which secrets.
fn whole(route: &Value, place: &str) -> String {
    let list = |key: &str| shown("", &route[key]);
    let mut text = format!("{} {place} ({})", list("methods"), list("recovery"));
    if let Some(headers) = route["headers"].as_object().filter(|headers| !headers.is_empty()) {
        let set: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", shown("", value))).collect();
        text.push_str(&format!(" with {}", set.join(", ")));
    }
    for (key, at_rest) in [("unplanned", Value::from(0)), ("allow_private", Value::from(false))] {
        if route[key] != at_rest {
            text.push_str(&format!(", {key} {}", shown(key, &route[key])));
        }
    }
    text
}

fn value(name: &str, old: &Value, new: &Value, out: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let key = name.rsplit([' ', '.']).next().unwrap_or(name);
    if let (Value::Array(old), Value::Array(new)) = (old, new) {
        let set = |items: &[Value]| items.iter().map(|item| shown(key, item)).collect::<BTreeSet<_>>();
        let (old, new) = (set(old), set(new));
        // What people are shown, and what is compared, may grow freely.
        let shows = matches!(key, "show" | "significant_headers");
        if old == new {
            out.push(change(name, None, Some("another order".into()), false));
        }
        members(name, &old, &new, !shows, shows, out);
        return;
    }
    let present = |value: &Value| (!value.is_null()).then(|| shown(key, value));
    out.push(change(name, present(old), present(new), is_more(name, key, old, new)));
}

/// Whether another value lets a tool do more. What is not named here does.
fn is_more(name: &str, key: &str, old: &Value, new: &Value) -> bool {
    let number = |value: &Value| value.as_u64();
    match key {
        "required" => number(new) < number(old),
        "expires_after_ms"
        | "execution_deadline_ms"
        | "key_retention_ms"
        | "unplanned"
        | "request_body"
        | "response_body" => number(new) > number(old),
        _ if name.starts_with("limits.") => number(new) > number(old),
        "planning" => new.as_str() != Some("none"),
        "allow_private" => new == &Value::Bool(true),
        "reference" => false,
        // A header that the host does not set any more says nothing more.
        _ if name.contains(" headers: ") => !new.is_null(),
        // No mail at all any more.
        "email" => !new.is_null(),
        _ => true,
    }
}

fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| shown(key, item)).collect::<Vec<_>>().join(", "),
        Value::Number(number) => match number.as_u64() {
            Some(ms) if key.ends_with("_ms") => show_duration(Duration::from_millis(ms)),
            Some(bytes)
                if matches!(
                    key,
                    "memory" | "arguments" | "result" | "log" | "request_body" | "response_body"
                ) =>
            {
                show_size(bytes)
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "show = [\"/amount\"]\n[limits]\nmemory = \"32MiB\"\n[[http]]\nhost = \"api.example.com\"\n\
        methods = [\"POST\"]\npath = \"/v1/*\"\nrecovery = \"provider-idempotent\"\n";

    fn of(before: &str, after: &str) -> Difference {
        let grant = |text: &str| text.parse::<Grant>().unwrap_or_else(|error| panic!("{error}: {text}"));
        Difference::between((None, &grant(before)), (None, &grant(after)))
    }

    #[test]
    fn j05_everything_that_asks_for_more_is_named_and_what_asks_for_less_is_not_held_against_it() {
        let more = |after: &str| BASE.replace("recovery", &format!("{after}\nrecovery"));
        for (after, named) in [
            (
                format!("{BASE}[[http]]\nhost = \"evil.example\"\nmethods = [\"GET\"]\npath = \"/\"\n"),
                "evil.example",
            ),
            (BASE.replace("[\"POST\"]", "[\"POST\", \"DELETE\"]"), "DELETE"),
            (BASE.replace("provider-idempotent", "manual"), "manual"),
            (BASE.replace("/v1/*", "/**"), "/**"),
            (BASE.replace("api.example.com", "*.example.com"), "*.example.com"),
            (BASE.replace("32MiB", "64MiB"), "64MiB"),
            (BASE.replace("show = [\"/amount\"]", ""), "show"),
            (more("unplanned = 3"), "unplanned"),
            (more("allow_private = true"), "allow_private"),
            (more("response_body = \"64MiB\""), "64MiB"),
            (more("port = 8443"), "8443"),
            (more("on_5xx = \"answer\""), "on_5xx"),
            (
                format!("{BASE}[http.headers]\nAuthorization = \"Bearer {{{{secret:key}}}}\"\n"),
                "{{secret:key}}",
            ),
            (format!("[approval]\nrequired = 0\n{}", BASE.replace("show = [\"/amount\"]\n", "")), "required"),
            (
                format!(
                    "[approval]\nexpires_after = \"24h\"\n{}",
                    BASE.replace("show = [\"/amount\"]\n", "")
                ),
                "24h",
            ),
            (format!("{BASE}[email]\nfrom = \"a@example.com\"\nrecipients = [\"*@example.com\"]\n"), "email"),
        ] {
            let difference = of(BASE, &after);
            assert!(difference.asks_for_more(), "{after}: {difference:?}");
            let said = format!("{difference:?}");
            assert!(said.contains(named), "{named}: {said}");
        }
        for after in [
            BASE.to_owned(),
            BASE.replace("32MiB", "16MiB"),
            BASE.replace("show = [\"/amount\"]", "show = [\"/amount\", \"/to\"]"),
            more("significant_headers = [\"x-version\"]"),
            more("reference = \"/id\""),
            format!("planning = \"none\"\n{BASE}"),
            "show = [\"/amount\"]\n[limits]\nmemory = \"32MiB\"\n".to_owned(),
        ] {
            let difference = of(BASE, &after);
            assert!(!difference.asks_for_more(), "{after}: {difference:?}");
        }
        assert_eq!(of(BASE, &format!("# a comment\n{BASE}")), Difference::default());
    }

    #[test]
    fn j05_routes_in_another_order_ask_for_more_because_the_first_one_counts() {
        let strict =
            "[[http]]\nhost = \"a.example\"\nmethods = [\"POST\"]\npath = \"/pay\"\nrecovery = \"manual\"\n";
        let lax =
            "[[http]]\nhost = \"a.example\"\nmethods = [\"POST\"]\npath = \"/**\"\nrecovery = \"read\"\n";
        assert!(of(&format!("{strict}{lax}"), &format!("{lax}{strict}")).asks_for_more());
        assert!(!of(&format!("{strict}{lax}"), strict).asks_for_more());
    }

    #[test]
    fn j05_a_yes_fits_one_difference_only() {
        let wider = of(BASE, &BASE.replace("32MiB", "64MiB"));
        let widest = of(BASE, &BASE.replace("32MiB", "128MiB"));
        assert_ne!(wider.digest("c", "g"), widest.digest("c", "g"));
        assert_ne!(wider.digest("c", "g"), wider.digest("other", "g"));
        assert_eq!(wider.digest("c", "g"), wider.digest("c", "g"));
    }
}
