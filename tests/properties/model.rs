//! What may happen to an action, said a second time and much shorter than in the domain: by the
//! names of its events alone. Where the two disagree, one of them is wrong.

/// Where an action is, for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Waiting,
    Approved,
    Running,
    Resting,
    Doubt,
    Ended,
}

/// Follows an action's events; the number of its claims and whether it was approved.
///
/// # Errors
/// The first event that may not follow what came before it.
pub fn follow<'a>(events: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<History, String> {
    use At::*;
    let mut at = Nowhere;
    let mut history = History::default();
    for (number, (event, to)) in (1..).zip(events) {
        let next = match (at, event) {
            (Nowhere, "proposed") => Waiting,
            (Waiting, "approval_required") => Waiting,
            (Waiting, "approved") => Approved,
            (Waiting, "declined") => Ended,
            (Waiting | Approved, "cancelled" | "superseded" | "expired" | "changed") => Ended,
            (Approved | Resting | Doubt, "claimed") => Running,
            (Doubt, "safe_to_repeat") => Doubt,
            (Running, "succeeded" | "failed_terminally" | "stopped_before_writes") => Ended,
            (Running, "failed_retryably" | "worker_lost" | "released") => Resting,
            (Running, "outcome_lost") => Doubt,
            (Resting, "cancelled" | "expired" | "changed" | "retries_exhausted") => Ended,
            (Doubt, "found_done" | "found_not_done") => Resting,
            (Doubt, "given_up") => Ended,
            _ => return Err(format!("event {number}: {event} ({to}) may not come here: {at:?}")),
        };
        history.claims += usize::from(event == "claimed");
        history.approvals += usize::from(event == "approved");
        history.successes += usize::from(event == "succeeded");
        let terminal = ["succeeded", "failed_terminal", "cancelled", "expired"].contains(&to);
        if terminal != (next == Ended) {
            return Err(format!("event {number}: {event} leads to {to}"));
        }
        at = next;
    }
    history.ended = at == Ended;
    Ok(history)
}

/// What the model counted.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct History {
    /// Times it was claimed.
    pub claims: usize,
    /// Times it was approved.
    pub approvals: usize,
    /// Times it succeeded.
    pub successes: usize,
    /// Nothing can follow.
    pub ended: bool,
}

#[test]
fn the_model_itself_notices_what_may_not_be() {
    let told = |text: &'static str| {
        follow(text.split_whitespace().map(|pair| pair.split_once('>').expect("event>state")))
    };
    let whole = "proposed>proposed approval_required>awaiting_approval approved>approved claimed>executing succeeded>succeeded";
    assert_eq!(told(whole), Ok(History { claims: 1, approvals: 1, successes: 1, ended: true }));
    for bad in [
        "claimed>executing",
        "proposed>proposed approval_required>awaiting_approval claimed>executing",
        "proposed>proposed approval_required>awaiting_approval approved>approved claimed>executing claimed>executing",
        "proposed>proposed approval_required>awaiting_approval declined>cancelled approved>approved",
        "proposed>proposed approval_required>awaiting_approval approved>cancelled",
    ] {
        assert!(told(bad).is_err(), "{bad}");
    }
}
