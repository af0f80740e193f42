//! Grants for tools that are pointed at a provider on loopback.

/// One `[[http]]` section: where, how, and more lines.
#[derive(Debug, Clone)]
pub struct Route {
    port: u16,
    methods: &'static str,
    path: String,
    recovery: &'static str,
    more: String,
}

impl Route {
    /// Any `POST` below a path that the provider recognises by its key.
    pub fn idempotent(port: u16, path: &str) -> Route {
        let more =
            "idempotency_header = \"Idempotency-Key\"\nreplay_header = \"Idempotent-Replayed\"\n".to_owned();
        Route { port, methods: "\"POST\"", path: path.into(), recovery: "provider-idempotent", more }
    }

    /// A `POST` that nobody may repeat.
    pub fn manual(port: u16, path: &str) -> Route {
        let more = "idempotency_header = \"Idempotency-Key\"\n".to_owned();
        Route { port, methods: "\"POST\"", path: path.into(), recovery: "manual", more }
    }

    /// A `POST` that the provider does not recognise by its key, but can say what became of.
    pub fn verifiable(port: u16, path: &str) -> Route {
        Route { recovery: "verifiable", ..Route::manual(port, path) }
    }

    /// A `GET`.
    pub fn read(port: u16, path: &str) -> Route {
        Route { port, methods: "\"GET\"", path: path.into(), recovery: "read", more: String::new() }
    }

    /// With one more line.
    pub fn with(mut self, line: &str) -> Route {
        self.more.push_str(line);
        self.more.push('\n');
        self
    }

    fn text(&self) -> String {
        let Route { port, methods, path, recovery, more } = self;
        format!(
            "\n[[http]]\nhost = \"127.0.0.1\"\nport = {port}\nscheme = \"http\"\nallow_private = true\n\
             methods = [{methods}]\npath = \"{path}\"\nrecovery = \"{recovery}\"\n{more}"
        )
    }
}

/// What stands before the routes, with the usual approval: one person.
pub fn grant(head: &str, routes: &[Route]) -> String {
    let routes: String = routes.iter().map(Route::text).collect();
    format!("{head}\n{routes}")
}

/// The refund tool's, with the secret that the test host knows.
pub fn refund(port: u16) -> String {
    let route = Route::idempotent(port, "/v1/refunds")
        .with("reference = \"/id\"")
        .with("significant_headers = [\"Stripe-Version\"]")
        .with("[http.headers]\nAuthorization = \"Bearer {{secret:provider_key}}\"");
    grant("show = [\"/amount\", \"/currency\", \"/payment_intent\"]", &[route])
}

/// The transfer tool's: one read, one write that is shown, three that may follow.
pub fn transfer(port: u16) -> String {
    let more = |path| Route::idempotent(port, path).with("unplanned = 1");
    let routes = [
        Route::read(port, "/quote"),
        Route::idempotent(port, "/reserve"),
        more("/transfers"),
        more("/ledger"),
        more("/notify"),
    ];
    grant("show = [\"/amount\", \"/from\", \"/to\"]", &routes)
}

/// The transfer tool's at a bank that honours no keys: what is lost is looked up.
pub fn bank(port: u16) -> String {
    let more = |path| Route::verifiable(port, path).with("unplanned = 1");
    let routes = [
        Route::read(port, "/quote"),
        Route::read(port, "/lookup"),
        Route::verifiable(port, "/reserve"),
        more("/transfers"),
        more("/ledger"),
        more("/notify"),
    ];
    grant("show = [\"/amount\", \"/from\", \"/to\"]", &routes)
}

/// The probe's: any `POST` and `GET` below `/keyed/`, one person, nothing unplanned.
pub fn probe(port: u16) -> String {
    grant("show = [\"/mode\"]", &[Route::idempotent(port, "/keyed/**"), Route::read(port, "/any/**")])
}

/// The same grant, with this as the longest time that a send may take.
pub fn sending_for(grant: &str, send: &str) -> String {
    let at = grant.find("\n[").unwrap_or(grant.len());
    format!("{}\n[limits]\nsend = \"{send}\"\n{}", &grant[..at], &grant[at..])
}
