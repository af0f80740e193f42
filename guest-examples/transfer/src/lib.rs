//! A bank transfer in five calls: one read (a quote) and four writes (reserve,
//! transfer, post to the ledger, notify), each of which needs the answer of the
//! one before. The bank knows no idempotency keys but can be asked what became of
//! one, which is what `reconcile` does.
//!
//! It keeps no state and undoes nothing. Killed between two calls, it is run again
//! from its start, and the host answers the calls that were already made.

mod bank;

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "reconcilable-tool", generate_all });
}

use bank::Bank;
use bindings::countersign::tool::context;
use bindings::exports::countersign::tool::{reconciler, tool};
use guest_http::money;
use serde::Deserialize;
use serde_json::json;
use tool::{DeclaredEffect, Failure, Manifest, PreviewField, ToolPreview};

/// The arguments. The host has already checked them against `input.schema.json`.
#[derive(Deserialize)]
struct Arguments {
    from: String,
    to: String,
    amount: u64,
    currency: String,
    memo: Option<String>,
    api_base: Option<String>,
}

impl Arguments {
    fn parse(text: &str) -> Result<Arguments, Failure> {
        let parsed: Arguments =
            serde_json::from_str(text).map_err(|e| Failure::InvalidArguments(e.to_string()))?;
        if parsed.amount == 0 {
            return Err(Failure::InvalidArguments("`amount` must be at least 1".to_owned()));
        }
        if parsed.from == parsed.to {
            return Err(Failure::InvalidArguments("`from` and `to` are the same".to_owned()));
        }
        Ok(parsed)
    }

    fn bank(&self) -> Bank {
        Bank::at(self.api_base.as_deref())
    }
}

struct Transfer;
bindings::export!(Transfer with_types_in bindings);

impl tool::Guest for Transfer {
    fn describe() -> Manifest {
        let effect = |method: &str, why: &str| DeclaredEffect {
            host: bank::HOST.to_owned(),
            methods: vec![method.to_owned()],
            why: why.to_owned(),
        };
        Manifest {
            name: "transfer".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: "Transfer money".to_owned(),
            description: "Moves money between two accounts of the bank: asks for a quote, \
                reserves the amount, transfers it, posts it to the ledger and notifies the \
                recipient. Amounts are in the currency's minor unit."
                .to_owned(),
            input_schema: include_str!("input.schema.json").to_owned(),
            output_schema: Some(include_str!("output.schema.json").to_owned()),
            effects: vec![
                effect("GET", "Asks for a quote (/quote), and later what became of a write (/lookup)."),
                effect("POST", "Reserves, transfers, posts to the ledger, notifies."),
            ],
        }
    }

    fn preview(arguments: String) -> Result<ToolPreview, Failure> {
        let arguments = Arguments::parse(&arguments)?;
        let field = |label: &str, value: String| PreviewField { label: label.to_owned(), value };
        let mut fields = vec![
            field("From", arguments.from),
            field("To", arguments.to),
            field("Amount", money(arguments.amount, &arguments.currency)),
        ];
        fields.extend(arguments.memo.map(|memo| field("Memo", memo)));
        fields.extend(arguments.api_base.map(|base| field("Bank", base)));
        Ok(ToolPreview { title: "Bank transfer".to_owned(), fields })
    }

    fn invoke(arguments: String) -> Result<String, Failure> {
        let arguments = Arguments::parse(&arguments)?;
        let bank = arguments.bank();
        let Arguments { from, to, amount, currency, memo, .. } = &arguments;

        let quote = bank.quote(from, to, *amount, currency)?;

        context::progress(20, "reserving");
        let reservation = bank.create(
            "/reserve",
            &json!({ "from": from, "amount": amount, "currency": currency, "quote": quote }),
        )?;

        context::progress(40, "transferring");
        let mut order = json!({
            "reservation": reservation, "from": from, "to": to,
            "amount": amount, "currency": currency,
        });
        if let Some(memo) = memo {
            order["memo"] = json!(memo);
        }
        let transfer = bank.create("/transfers", &order)?;

        context::progress(60, "posting to the ledger");
        let entry = json!({
            "transfer": transfer, "debit": from, "credit": to,
            "amount": amount, "currency": currency,
        });
        let ledger = bank.create("/ledger", &entry)?;

        context::progress(80, "notifying");
        bank.tell("/notify", &json!({ "account": to, "transfer": transfer, "ledger": ledger }))?;

        let result = json!({
            "transfer_id": transfer, "quote": quote, "ledger_id": ledger, "notified": true,
        });
        Ok(result.to_string())
    }
}

impl reconciler::Guest for Transfer {
    fn reconcile(arguments: String, effect: reconciler::RecordedEffect) -> reconciler::Verdict {
        match Arguments::parse(&arguments) {
            Ok(arguments) => arguments.bank().lookup(&effect.provider_key),
            Err(_) => reconciler::Verdict::Unknown,
        }
    }
}
