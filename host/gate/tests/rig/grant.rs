//! Grants as texts, put together from what a test is about.

/// A grant in the making. By default nobody has to approve.
#[derive(Clone)]
pub struct GrantText {
    top: String,
    approval: String,
    limits: String,
    routes: Vec<String>,
}

impl Default for GrantText {
    fn default() -> GrantText {
        GrantText {
            top: String::new(),
            approval: "required = 0".into(),
            limits: String::new(),
            routes: vec![],
        }
    }
}

impl GrantText {
    pub fn top(mut self, text: &str) -> GrantText {
        self.top.push_str(text);
        self
    }

    /// Replaces the `[approval]` section.
    pub fn approval(mut self, text: &str) -> GrantText {
        self.approval = text.into();
        self
    }

    pub fn limits(mut self, text: &str) -> GrantText {
        self.limits = text.into();
        self
    }

    /// Adds a route: method, path, recovery class, and more lines.
    pub fn route(mut self, method: &str, path: &str, recovery: &str, more: &str) -> GrantText {
        self.routes.push(format!(
            "[[http]]\nhost = \"127.0.0.1\"\nport = PORT\nscheme = \"http\"\nallow_private = true\n\
             methods = [\"{method}\"]\npath = \"{path}\"\nrecovery = \"{recovery}\"\n{more}\n"
        ));
        self
    }

    pub fn text(&self, port: u16) -> String {
        let routes = self.routes.concat().replace("PORT", &port.to_string());
        format!("{}\n[approval]\n{}\n[limits]\n{}\n{routes}", self.top, self.approval, self.limits)
    }
}

/// One keyed write route for everything, reads beside it.
pub fn keyed() -> GrantText {
    GrantText::default().route("GET", "/**", "read", "").route(
        "POST",
        "/**",
        "provider-idempotent",
        "unplanned = 8\nreplay_header = \"Idempotent-Replayed\"",
    )
}

/// The same with a class whose writes carry no key.
pub fn unkeyed(recovery: &str) -> GrantText {
    GrantText::default().route("GET", "/**", "read", "").route("POST", "/**", recovery, "unplanned = 8")
}

/// By class.
pub fn of_class(recovery: &str) -> GrantText {
    if recovery == "provider-idempotent" { keyed() } else { unkeyed(recovery) }
}
