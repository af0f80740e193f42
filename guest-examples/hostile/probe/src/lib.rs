//! Misbehaves on request: one component that does, by its argument `mode`, what a
//! careless or hostile tool would do, so that tests can see what the sandbox and
//! the ledger make of it. It is not an example of how to write a tool.
//!
//! Every mode reads the arguments in the middle column; one that is needed and
//! missing gives `invalid-arguments`. `url` and `fallback_url` are http or https
//! URLs, `n` is a count (its default in brackets), all others are named.
//!
//! | mode | reads | does |
//! |---|---|---|
//! | **endings** | | |
//! | `no-effect` | | returns `{"mode":"no-effect"}` |
//! | `echo` | | returns the arguments |
//! | `invalid-arguments`, `refused`, `broken` | `text` | that failure |
//! | `try-later` | `n` (none) | that failure, with `n` seconds |
//! | `trap` | | traps |
//! | `exit` | `n` (0) | leaves by `wasi:cli/exit` |
//! | `bad-json` | | returns what is not JSON |
//! | `big-result` | `n` | returns a JSON object of `n` bytes (at least 10) |
//! | **calls** | | |
//! | `script` | `steps` | makes the calls `{method, url, headers, body}` in order; returns every answer |
//! | `reads-only` | `url`, `n` (1) | GET, `n` times |
//! | `read-then-write` | `url`, `fallback_url` | GET `url`, POST its body to `fallback_url` (or `url`) |
//! | `writes` | `url`, `bodies` | POSTs the bodies in order |
//! | `second-write` | `url` | POSTs `first`, then `second` |
//! | `same-write-retry` | `url`, `body`, `n` (1) | POST; while the answer is 5xx or 429, the same again, `n` times at most |
//! | `fallback` | `url`, `fallback_url`, `body` | POST `url`; without an answer or with 4xx or 5xx, POST `fallback_url` |
//! | `try-later-after-read` | `url`, `fallback_url`, `n` | GET; if the body contains `wait`, `try-later`; else POST |
//! | `write-then-try-later` | `url`, `body`, `n` | POST; unless the answer is 2xx, `try-later` |
//! | `write-then-trap` | `url`, `body` | POST, waits for the answer, traps |
//! | `write-then-refuse` | `url`, `body`, `text` | POST, waits for the answer, `refused` |
//! | `at-once` | `url`, `bodies` | starts all POSTs before it waits for any |
//! | `random-body` | `url` | POSTs a fresh UUID and both clocks |
//! | **egress** | | |
//! | `forbidden-host` | `url`, `method` | one call; returns the error code it saw |
//! | `forbidden-headers` | `url`, `headers` | tries each name by set, append, from-list, clone; says how it went; POSTs with what was accepted |
//! | `header-bomb` | `n` (32769), `size` | from-list with `n` entries, or one value of `size` bytes |
//! | `trailers` | `url`, `headers` | POST that ends with those trailers |
//! | **half a request** | | |
//! | `truncated-body` | `url`, `n` (8192) | states a length of `n`, sends half of it, traps |
//! | `wrong-length` | `url`, `n`, `body` | states a length of `n`, sends `body`, finishes |
//! | `dont-finish` | `url`, `body` | drops the body unfinished, waits for the answer |
//! | `hold-body` | `url`, `body` | keeps the body open for ever, waits for the answer |
//! | `drop-future` | `url`, `body` | finishes, drops the response future, returns |
//! | `trap-in-flight` | `url`, `body` | finishes, traps without waiting |
//! | `spin-in-flight` | `url`, `body` | finishes, loops for ever without waiting |
//! | **limits** | | |
//! | `spin` | | loops for ever |
//! | `work` | `n` (1000000) | computes for a while, returns |
//! | `recurse` | `n` (for ever) | calls itself |
//! | `grow` | `n` (65536) | grows its memory page by page, touching each; returns the pages gained |
//! | `sleep` | `ns` | waits for a timer |
//! | `poll-clock` | `ns` | reads the clock until that much time is gone; returns the readings |
//! | `poll-nothing` | | polls an empty list |
//! | `many-handles` | `n` | makes `n` header lists and drops none |
//! | `many-pollables` | `n` | makes `n` timers and drops none |
//! | `log-flood` | `n` | `n` bytes to stdout, stderr and the log |
//! | `big-log` | `n` | one log line of `n` bytes |
//! | `log` | `text`, `n` (1) | `text` to the log, stdout and stderr; progress 0 to 100; `n` times |
//! | `empty-writes` | `n` | `n` writes of no byte to stdout and stderr |
//! | `tiny-writes` | `n` | `n` writes of one byte to stdout and stderr |
//! | `random-bomb` | `n` | asks for `n` random bytes at once |
//! | **surroundings** | | |
//! | `env` | | returns variables, arguments, folders, stdin |
//! | `clocks` | `n` (3) | returns `n` readings of both clocks, of randomness, and the context |
//! | `open-file` | `text` | tries to read and to write that path |
//! | `canary` | `text` | fills its memory with it, traps |
//! | `scan` | `text`, `n` (256) | grows by `n` pages, looks for it in all memory; returns the hits |
//!
//! `preview` shows `mode` and `url`, and knows `preview-spin`, `preview-trap`,
//! `preview-write` (POSTs to `url`), `preview-refused` and `preview-big` (`n` bytes);
//! `invoke` takes those as `no-effect`.

mod arguments;
mod calls;
mod egress;
mod limits;
mod surroundings;
mod wire;

mod bindings {
    wit_bindgen::generate!({
        path: "../../../wit",
        inline: "
            package countersign:probe;
            world probe {
                include countersign:tool/http-tool@0.1.0;
                import wasi:clocks/wall-clock@0.2.12;
                import wasi:random/random@0.2.12;
                import wasi:cli/stdout@0.2.12;
                import wasi:cli/stderr@0.2.12;
                import wasi:cli/stdin@0.2.12;
                import wasi:cli/environment@0.2.12;
                import wasi:filesystem/preopens@0.2.12;
            }
        ",
        world: "countersign:probe/probe",
        generate_all,
    });
}

use arguments::Arguments;
use bindings::exports::countersign::tool::tool::{
    DeclaredEffect, Failure, Guest, Manifest, PreviewField, ToolPreview,
};
use serde_json::{Value, json};

/// What a mode gives: a JSON value, or the failure to report.
type Outcome = Result<Value, Failure>;

struct Probe;
bindings::export!(Probe with_types_in bindings);

impl Guest for Probe {
    fn describe() -> Manifest {
        Manifest {
            name: "probe".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: "Probe".to_owned(),
            description: "Misbehaves in the way that `mode` names. For tests only.".to_owned(),
            input_schema: include_str!("input.schema.json").to_owned(),
            output_schema: None,
            effects: vec![DeclaredEffect {
                host: "*".to_owned(),
                methods: vec!["GET".to_owned(), "POST".to_owned()],
                why: "Calls whatever its arguments name.".to_owned(),
            }],
        }
    }

    fn preview(arguments: String) -> Result<ToolPreview, Failure> {
        let arguments = Arguments::parse(&arguments)?;
        let mut value = arguments.text("url").unwrap_or("").to_owned();
        match arguments.mode()? {
            "preview-spin" => limits::spin(),
            "preview-trap" => trap(),
            "preview-write" => value = calls::once(&arguments)?.to_string(),
            "preview-refused" => return Err(Failure::Refused("not shown".to_owned())),
            "preview-big" => value = "x".repeat(arguments.count("n")?),
            _ => {}
        }
        let field =
            |label: &str, value: &str| PreviewField { label: label.to_owned(), value: value.to_owned() };
        let fields = vec![field("mode", arguments.mode()?), field("url", &value)];
        Ok(ToolPreview { title: "Probe".to_owned(), fields })
    }

    fn invoke(text: String) -> Result<String, Failure> {
        let a = Arguments::parse(&text)?;
        let value = match a.mode()? {
            "echo" => return Ok(text),
            "bad-json" => return Ok("{\"this is\": not JSON".to_owned()),
            "big-result" => {
                let pad = a.count("n")?.saturating_sub(r#"{"pad":""}"#.len());
                return Ok(format!(r#"{{"pad":"{}"}}"#, "x".repeat(pad)));
            }
            "invalid-arguments" => Err(Failure::InvalidArguments(a.words("not valid"))),
            "refused" => Err(Failure::Refused(a.words("refused on request"))),
            "broken" => Err(Failure::Broken(a.words("broken on request"))),
            "try-later" => Err(Failure::TryLater(a.seconds())),
            "trap" => trap(),
            "exit" => std::process::exit(a.count_or("n", 0) as i32),
            mode if mode == "no-effect" || mode.starts_with("preview-") => Ok(json!({ "mode": mode })),
            mode => calls::run(mode, &a)
                .or_else(|| egress::run(mode, &a))
                .or_else(|| limits::run(mode, &a))
                .or_else(|| surroundings::run(mode, &a))
                .unwrap_or_else(|| Err(Failure::InvalidArguments(format!("`mode`: there is no `{mode}`")))),
        };
        value.map(|value| value.to_string())
    }
}

/// Traps at once, without a panic message.
fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort();
}
