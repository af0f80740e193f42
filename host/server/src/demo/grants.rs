//! The grants under which the demo's tools run, against a provider on loopback.

/// Refunds at the local provider; one approver; `sk_demo` as its secret.
pub fn refund(port: u16) -> String {
    format!(
        r#"show = ["/amount", "/currency", "/payment_intent"]

[approval]
required = 1
expires_after = "15m"

[[http]]
host = "127.0.0.1"
port = {port}
scheme = "http"
allow_private = true
methods = ["POST"]
path = "/v1/refunds"
recovery = "provider-idempotent"
idempotency_header = "Idempotency-Key"
replay_header = "Idempotent-Replayed"
reference = "/id"
significant_headers = ["Stripe-Version"]
[http.headers]
Authorization = "Bearer {{{{secret:provider_key}}}}"
"#
    )
}

/// A transfer: one read, then four writes, of which approvers see the first and
/// are told of the other three.
pub fn transfer(port: u16) -> String {
    let route = |methods: &str, path: &str, rest: &str| {
        format!(
            r#"
[[http]]
host = "127.0.0.1"
port = {port}
scheme = "http"
allow_private = true
methods = ["{methods}"]
path = "{path}"
{rest}
"#
        )
    };
    let write = "recovery = \"provider-idempotent\"\nidempotency_header = \"Idempotency-Key\"\nreplay_header = \"Idempotent-Replayed\"";
    let mut grant = String::from("show = [\"/amount\", \"/currency\", \"/from\", \"/to\"]\n");
    grant.push_str(&route("GET", "/quote", "recovery = \"read\""));
    grant.push_str(&route("POST", "/reserve", write));
    for path in ["/transfers", "/ledger", "/notify"] {
        grant.push_str(&route("POST", path, &format!("{write}\nunplanned = 1")));
    }
    grant
}

/// What the misbehaving tool may do: post to one path, once. One approver.
pub fn probe(port: u16) -> String {
    format!(
        r#"show = ["/mode", "/url"]

[[http]]
host = "127.0.0.1"
port = {port}
scheme = "http"
allow_private = true
methods = ["POST"]
path = "/any/probe"
recovery = "provider-idempotent"
idempotency_header = "Idempotency-Key"
[http.headers]
Authorization = "Bearer {{{{secret:provider_key}}}}"
"#
    )
}
