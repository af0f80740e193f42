//! A bank of sorts: a quote to read, four writes that make a transfer, and a lookup by key.
//!
//! With the mode `ignores` it is the provider that has no idempotency keys but can say what it
//! has done: every write is remembered for `GET /lookup`, none is deduplicated.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::business::{Ids, Outcome};
use super::message::{Answer, Received};
use super::stripe::fields;

/// The four writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `POST /reserve`
    Reserve,
    /// `POST /transfers`
    Transfer,
    /// `POST /ledger`
    Ledger,
    /// `POST /notify`
    Notify,
}

impl Write {
    /// The write behind a path.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/reserve" => Some(Self::Reserve),
            "/transfers" => Some(Self::Transfer),
            "/ledger" => Some(Self::Ledger),
            "/notify" => Some(Self::Notify),
            _ => None,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Reserve => "rsv",
            Self::Transfer => "trf",
            Self::Ledger => "led",
            Self::Notify => "ntf",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Reserve => "reservation",
            Self::Transfer => "transfer",
            Self::Ledger => "ledger-entry",
            Self::Notify => "notice",
        }
    }
}

/// Does one of the four: the answer is what was sent, with an id, what it is, and a status.
pub fn write(write: Write, request: &Received, ids: &mut Ids) -> Outcome {
    let fields = match serde_json::from_slice::<Value>(&request.body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Outcome::refused(error(400, "not_an_object", "the body must be an object")),
        Err(e) => return Outcome::refused(error(400, "not_json", &format!("the body: {e}"))),
    };
    if let Some(amount) = fields.get("amount")
        && amount.as_i64().is_none_or(|amount| amount < 1)
    {
        let message = "`amount` must be a whole number of minor units, from 1";
        return Outcome::refused(error(400, "invalid_amount", message));
    }
    let id = ids.next(write.prefix());
    let mut body = Map::new();
    body.insert("id".into(), id.as_str().into());
    body.insert("object".into(), write.kind().into());
    body.insert("status".into(), "done".into());
    for (name, value) in fields {
        body.entry(name).or_insert(value);
    }
    let answer = Answer::json(200, &Value::Object(body));
    Outcome::acted(answer, id, write.kind())
}

/// `GET /quote?from=&to=&amount=&currency=`: the same question has the same answer.
pub fn quote(request: &Received) -> Outcome {
    let query = request.query.as_deref().unwrap_or_default();
    let Some(asked) = fields(query.as_bytes()) else {
        return Outcome::refused(error(400, "invalid_query", "the query is not valid UTF-8"));
    };
    let field = |name: &str| {
        asked.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.clone())
    };
    let mut parts = Vec::new();
    for name in ["from", "to", "amount", "currency"] {
        match field(name) {
            Some(value) => parts.push(value),
            None => {
                let message = format!("`{name}` is missing from the query");
                return Outcome::refused(error(400, "missing_parameter", &message));
            }
        }
    }
    let amount = match parts.get(2).and_then(|text| text.parse::<u64>().ok()) {
        Some(amount) if amount > 0 => amount,
        _ => {
            let message = "`amount` must be a whole number of minor units, from 1";
            return Outcome::refused(error(400, "invalid_amount", message));
        }
    };
    let digest = hex::encode(Sha256::digest(parts.join("\n")));
    let (short, _) = digest.split_at(12);
    Outcome::refused(Answer::json(
        200,
        // A flat fee and a tenth of a per cent; one currency, so the rate is one.
        &json!({ "quote": format!("q_{short}"), "rate": 1, "fee": 25 + amount / 1000 }),
    ))
}

/// An error in the bank's shape.
pub fn error(status: u16, code: &str, message: &str) -> Answer {
    Answer::json(status, &json!({ "error": code, "message": message }))
}
