//! Refunds in the shape of Stripe's API: the form, the answers, the errors.
//!
//! Follows <https://docs.stripe.com/api/refunds> and `/api/idempotent_requests` as far as a tool
//! can tell: what is validated before any work stores nothing under the key, what was worked on
//! (a declined card included) does.

use percent_encoding::percent_decode;
use serde_json::{Map, Value, json};

use super::business::{Ids, Outcome};
use super::message::{Answer, Received};

/// Stripe's ceiling for one charge: eight digits.
const AMOUNT_MAX: i64 = 99_999_999;

/// `POST /v1/refunds`.
pub fn refund(request: &Received, ids: &mut Ids) -> Outcome {
    let form = match form_of(request) {
        Ok(form) => form,
        Err(answer) => return Outcome::refused(answer),
    };
    match checked(&form) {
        Err(answer) => Outcome::refused(answer),
        Ok(wanted) if wanted.payment_intent.starts_with("pi_declined") => Outcome {
            // Stripe keeps this answer under the key: the attempt was made.
            answer: declined(),
            effect: None,
            keep: true,
        },
        Ok(wanted) => {
            let id = ids.next("re");
            let body = json!({
                "id": id,
                "object": "refund",
                "amount": wanted.amount,
                "currency": wanted.currency,
                "metadata": wanted.metadata,
                "payment_intent": wanted.payment_intent,
                "reason": wanted.reason,
                "status": "succeeded",
            });
            ids.refunds.insert(id.clone(), body.clone());
            Outcome::acted(Answer::json(200, &body), id, "refund")
        }
    }
}

/// `GET /v1/refunds/{id}`.
pub fn retrieve(id: &str, ids: &Ids) -> Outcome {
    Outcome::refused(match ids.refunds.get(id) {
        Some(refund) => Answer::json(200, refund),
        None => error(
            404,
            "invalid_request_error",
            Some("resource_missing"),
            &format!("No such refund: '{id}'"),
            Some("id"),
        ),
    })
}

/// An error in Stripe's shape.
pub fn error(status: u16, kind: &str, code: Option<&str>, message: &str, param: Option<&str>) -> Answer {
    let mut error = Map::new();
    if let Some(code) = code {
        error.insert("code".into(), code.into());
    }
    error.insert("message".into(), message.into());
    if let Some(param) = param {
        error.insert("param".into(), param.into());
    }
    error.insert("type".into(), kind.into());
    Answer::json(status, &json!({ "error": error }))
}

/// The same key for other parameters.
pub fn key_reused(key: &str) -> Answer {
    error(
        400,
        "idempotency_error",
        None,
        &format!(
            "Keys for idempotent requests can only be used with the same parameters they were \
             first used with. Try using a key other than '{key}' if you meant to execute a \
             different request."
        ),
        None,
    )
}

/// The same key while its first request is still being worked on.
pub fn key_in_use(key: &str) -> Answer {
    error(
        409,
        "idempotency_error",
        Some("idempotency_key_in_use"),
        &format!(
            "There is currently another in-progress request using this idempotency key ('{key}'). \
             Please try again later."
        ),
        None,
    )
}

fn declined() -> Answer {
    let body = json!({ "error": {
        "code": "card_declined",
        "decline_code": "generic_decline",
        "message": "The refund was declined by the card's issuer.",
        "type": "card_error",
    }});
    Answer::json(402, &body)
}

struct Wanted {
    amount: i64,
    currency: String,
    payment_intent: String,
    reason: Value,
    metadata: Map<String, Value>,
}

fn checked(form: &[(String, String)]) -> Result<Wanted, Answer> {
    let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let missing = |param: &str| {
        error(
            400,
            "invalid_request_error",
            Some("parameter_missing"),
            &format!("Missing required param: {param}."),
            Some(param),
        )
    };
    let payment_intent = match field("payment_intent") {
        None | Some("") => return Err(missing("payment_intent")),
        Some(id) if !id.starts_with("pi_") || id.starts_with("pi_missing") => {
            return Err(error(
                404,
                "invalid_request_error",
                Some("resource_missing"),
                &format!("No such payment_intent: '{id}'"),
                Some("payment_intent"),
            ));
        }
        Some(id) => id,
    };
    let text = field("amount").ok_or_else(|| missing("amount"))?;
    let invalid = |code: &str, message: String| {
        error(400, "invalid_request_error", Some(code), &message, Some("amount"))
    };
    let amount: i64 =
        text.parse().map_err(|_| invalid("parameter_invalid_integer", format!("Invalid integer: {text}")))?;
    if amount < 1 {
        return Err(invalid("parameter_invalid_integer", "Invalid positive integer".into()));
    }
    if amount > AMOUNT_MAX {
        return Err(invalid("amount_too_large", "Amount must be no more than 999,999.99".into()));
    }
    let currency = field("currency").unwrap_or("usd").to_ascii_lowercase();
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(error(
            400,
            "invalid_request_error",
            None,
            &format!("Invalid currency: {currency}. It must be a three-letter ISO code."),
            Some("currency"),
        ));
    }
    let metadata = form
        .iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("metadata[")?.strip_suffix(']')?;
            Some((name.to_owned(), Value::from(value.as_str())))
        })
        .collect();
    Ok(Wanted {
        amount,
        currency,
        payment_intent: payment_intent.to_owned(),
        reason: field("reason").map_or(Value::Null, Value::from),
        metadata,
    })
}

/// The body as fields, in order. Anything that is not a form is an error in Stripe's words.
fn form_of(request: &Received) -> Result<Vec<(String, String)>, Answer> {
    let refused = |message: &str| error(400, "invalid_request_error", None, message, None);
    let kind = request.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.is_empty() && !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Err(refused(
            "Invalid request (check that your POST content type is \
             application/x-www-form-urlencoded).",
        ));
    }
    fields(&request.body).ok_or_else(|| refused("Invalid request: the form is not valid UTF-8."))
}

/// Decodes `a=1&b=two+words`, for a form or a query. None where it is not UTF-8.
pub fn fields(text: &[u8]) -> Option<Vec<(String, String)>> {
    let decode = |part: &[u8]| {
        let spaced: Vec<u8> = part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        let decoded = percent_decode(&spaced).decode_utf8().ok()?;
        Some(decoded.into_owned())
    };
    text.split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let mut halves = pair.splitn(2, |byte| *byte == b'=');
            let name = decode(halves.next().unwrap_or_default())?;
            let value = decode(halves.next().unwrap_or_default())?;
            Some((name, value))
        })
        .collect()
}
