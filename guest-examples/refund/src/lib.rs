//! Refunds a card payment at a Stripe-shaped API: one write, which the provider
//! makes idempotent by a key that the host sends along.
//!
//! It holds no secret and sets no key: both come from the grant.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "http-tool", generate_all });
}

use bindings::countersign::tool::context;
use bindings::exports::countersign::tool::tool::{
    DeclaredEffect, Failure, Guest, Manifest, PreviewField, ToolPreview,
};
use guest_http::{Answer, Problem, form, money, post};
use serde::Deserialize;
use serde_json::{Value, json};

/// Where the real provider answers.
const API: &str = "https://api.stripe.com";
/// The provider's format this tool was written against.
const API_VERSION: &str = "2024-06-20";
/// The reasons the provider knows; any other goes into the metadata.
const KNOWN_REASONS: [&str; 3] = ["duplicate", "fraudulent", "requested_by_customer"];

/// The arguments. The host has already checked them against `input.schema.json`.
#[derive(Deserialize)]
struct Arguments {
    payment_intent: String,
    amount: u64,
    currency: String,
    reason: Option<String>,
    api_base: Option<String>,
}

struct Refund;
bindings::export!(Refund with_types_in bindings);

impl Guest for Refund {
    fn describe() -> Manifest {
        Manifest {
            name: "refund".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: "Refund a card payment".to_owned(),
            description: "Gives back all or part of a card payment. Amounts are in the \
                currency's minor unit: 1250 with EUR is 12.50 EUR. Use it once per refund \
                that the customer is to get."
                .to_owned(),
            input_schema: include_str!("input.schema.json").to_owned(),
            output_schema: Some(include_str!("output.schema.json").to_owned()),
            effects: vec![DeclaredEffect {
                host: "api.stripe.com".to_owned(),
                methods: vec!["POST".to_owned()],
                why: "Creates the refund with POST /v1/refunds.".to_owned(),
            }],
        }
    }

    fn preview(arguments: String) -> Result<ToolPreview, Failure> {
        let arguments = parse(&arguments)?;
        let field = |label: &str, value: String| PreviewField { label: label.to_owned(), value };
        let mut fields = vec![
            field("Amount", money(arguments.amount, &arguments.currency)),
            field("Payment", arguments.payment_intent),
        ];
        fields.extend(arguments.reason.map(|reason| field("Reason", reason)));
        // Said only when it is not the real one: somebody may want to notice.
        fields.extend(arguments.api_base.map(|base| field("Provider", base)));
        Ok(ToolPreview { title: "Refund".to_owned(), fields })
    }

    fn invoke(arguments: String) -> Result<String, Failure> {
        let arguments = parse(&arguments)?;
        let base = arguments.api_base.as_deref().unwrap_or(API).trim_end_matches('/');
        let body = body(&arguments, &context::action().action_id);
        let answer = post(
            &format!("{base}/v1/refunds"),
            "application/x-www-form-urlencoded",
            &[("stripe-version", API_VERSION)],
            body.as_bytes(),
        )
        .map_err(no_answer)?;
        result(&answer)
    }
}

fn parse(arguments: &str) -> Result<Arguments, Failure> {
    let parsed: Arguments =
        serde_json::from_str(arguments).map_err(|e| Failure::InvalidArguments(e.to_string()))?;
    if parsed.amount == 0 {
        return Err(Failure::InvalidArguments("`amount` must be at least 1".to_owned()));
    }
    Ok(parsed)
}

/// The form that the provider expects. The action's id is the same in every run
/// of the action, so it may be part of it; people find the refund by it.
fn body(arguments: &Arguments, action_id: &str) -> String {
    let amount = arguments.amount.to_string();
    let currency = arguments.currency.to_ascii_lowercase();
    let mut pairs = vec![
        ("payment_intent", arguments.payment_intent.as_str()),
        ("amount", &amount),
        ("currency", &currency),
    ];
    if let Some(reason) = arguments.reason.as_deref() {
        let known = KNOWN_REASONS.contains(&reason);
        pairs.push((if known { "reason" } else { "metadata[reason]" }, reason));
    }
    pairs.push(("metadata[action]", action_id));
    form(pairs)
}

fn result(answer: &Answer) -> Result<String, Failure> {
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    match answer.status {
        200..=299 => {
            let refund = body.ok_or_else(|| unexpected("the refund is not JSON"))?;
            // The provider's own words, also for the amount: it may have refunded
            // less than was asked.
            let part = |name: &str| match &refund[name] {
                Value::Null => Err(unexpected(&format!("the refund has no `{name}`"))),
                value => Ok(value.clone()),
            };
            let result = json!({
                "id": part("id")?,
                "status": part("status")?,
                "amount": part("amount")?,
                "currency": part("currency")?,
            });
            Ok(result.to_string())
        }
        408 | 425 | 429 | 500..=599 => Err(Failure::TryLater(answer.retry_after())),
        status @ 400..=499 => {
            let said = body.as_ref().and_then(|b| b["error"]["message"].as_str());
            let said = said.unwrap_or("no reason given");
            Err(Failure::Refused(format!("the provider answered {status}: {said}")))
        }
        status => Err(unexpected(&format!("status {status}"))),
    }
}

fn no_answer(problem: Problem) -> Failure {
    match problem {
        Problem::Network(_) => Failure::TryLater(None),
        Problem::Url(_) => Failure::InvalidArguments(format!("`api_base`: {problem}")),
        Problem::Denied(_) | Problem::Header(_) => Failure::Refused(problem.to_string()),
    }
}

fn unexpected(what: &str) -> Failure {
    Failure::Broken(format!("the provider's answer is not understood: {what}"))
}
