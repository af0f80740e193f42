//! What a component says of itself, held to bounds before anybody sees it. The
//! words stay a stranger's: they are checked for what could deceive a reader or
//! break a page, not for what they claim.

use countersign_domain::canonical::{CanonicalJson, Limits};
use countersign_domain::id::ToolName;
use countersign_domain::tool::{DeclaredEffect, Manifest, Preview, PreviewField};

use crate::bindings::tool::exports::countersign::tool::tool as wit;
use crate::error::SandboxError;

const TITLE_CHARS: usize = 200;
const DESCRIPTION_BYTES: usize = 2 << 10;
const SCHEMA_BYTES: usize = 64 << 10;
const EFFECTS: usize = 32;
const METHODS: usize = 16;
const HOST_BYTES: usize = 253;
const FIELDS: usize = 64;
const LABEL_CHARS: usize = 200;
const VALUE_BYTES: usize = 4 << 10;

/// Checks a manifest.
pub(crate) fn manifest(said: wit::Manifest) -> Result<Manifest, SandboxError> {
    if said.name.parse::<ToolName>().is_err() {
        return Err(refuse("name", "it must be 1–128 characters of A–Z, a–z, 0–9, _, . and -"));
    }
    if said.version.len() > 64 || !is_semver(&said.version) {
        return Err(refuse("version", "it must be a semantic version like 1.2.0"));
    }
    line("title", &said.title, TITLE_CHARS)?;
    text("description", &said.description, DESCRIPTION_BYTES)?;
    let input_schema = schema("input-schema", &said.input_schema)?;
    let output_schema = match &said.output_schema {
        Some(text) => Some(schema("output-schema", text)?),
        None => None,
    };
    if said.effects.len() > EFFECTS {
        return Err(refuse("effects", &format!("it has {}; {EFFECTS} is the most", said.effects.len())));
    }
    let effects = said.effects.into_iter().map(effect).collect::<Result<_, _>>()?;
    Ok(Manifest {
        name: said.name,
        version: said.version,
        title: said.title,
        description: said.description,
        input_schema,
        output_schema,
        effects,
    })
}

fn effect(said: wit::DeclaredEffect) -> Result<DeclaredEffect, SandboxError> {
    let visible = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if said.host.len() > HOST_BYTES || !visible(&said.host) {
        return Err(refuse("effects.host", "it must be a host name in ASCII, or `*`"));
    }
    let token =
        |m: &String| m.len() <= 32 && !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
    if said.methods.len() > METHODS || !said.methods.iter().all(token) {
        return Err(refuse("effects.methods", "they must be HTTP methods in upper case, 16 at most"));
    }
    line("effects.why", &said.why, TITLE_CHARS)?;
    Ok(DeclaredEffect { host: said.host, methods: said.methods, why: said.why })
}

fn schema(part: &str, text: &str) -> Result<serde_json::Value, SandboxError> {
    let json =
        CanonicalJson::parse(text, Limits::bytes(SCHEMA_BYTES)).map_err(|e| refuse(part, &e.to_string()))?;
    let value = json.value();
    if value.is_object() { Ok(value) } else { Err(refuse(part, "it must be a JSON object")) }
}

/// Major, minor, patch, then what semver allows after them.
fn is_semver(text: &str) -> bool {
    let (core, build) = text.split_once('+').map_or((text, None), |(core, build)| (core, Some(build)));
    let (core, pre) = core.split_once('-').map_or((core, None), |(core, pre)| (core, Some(pre)));
    let number = |n: &str| {
        !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) && (n.len() == 1 || !n.starts_with('0'))
    };
    let identifier = |i: &str| !i.is_empty() && i.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let numeric_is_canonical = |i: &str| !i.bytes().all(|b| b.is_ascii_digit()) || number(i);
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|pre| pre.split('.').all(|i| identifier(i) && numeric_is_canonical(i)))
        && build.is_none_or(|build| build.split('.').all(identifier))
}

/// What an operator should know before saying yes. `exports` and `imports` are
/// the component's.
pub(crate) fn warnings(manifest: &Manifest, imports: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if imports.iter().any(|i| i.starts_with("wasi:sockets/")) {
        warnings
            .push("it imports sockets (some toolchains always do); any use of one ends the call".to_owned());
    }
    if manifest.output_schema.is_none() {
        warnings.push("it declares no output schema, so its results are not checked against one".to_owned());
    }
    if manifest.effects.iter().any(|e| e.host.contains('*')) {
        warnings.push("its arguments decide which host it calls; the grant should name hosts".to_owned());
    }
    if manifest.effects.is_empty() && imports.iter().any(|i| i.starts_with("wasi:http/outgoing-handler")) {
        warnings.push("it can make HTTP calls and declares none".to_owned());
    }
    if manifest.description.contains(['<', '>']) {
        warnings.push("its description contains markup; read it before a model does".to_owned());
    }
    warnings
}

/// The same checks over a manifest that was checked somewhere else.
pub(crate) fn checked(said: Manifest) -> Result<Manifest, SandboxError> {
    let effect = |e: DeclaredEffect| wit::DeclaredEffect { host: e.host, methods: e.methods, why: e.why };
    manifest(wit::Manifest {
        name: said.name,
        version: said.version,
        title: said.title,
        description: said.description,
        input_schema: said.input_schema.to_string(),
        output_schema: said.output_schema.map(|schema| schema.to_string()),
        effects: said.effects.into_iter().map(effect).collect(),
    })
}

/// The same checks over a preview that was checked somewhere else.
pub(crate) fn checked_preview(said: Preview) -> Result<Preview, String> {
    let field = |f: PreviewField| wit::PreviewField { label: f.label, value: f.value };
    preview(wit::ToolPreview { title: said.title, fields: said.fields.into_iter().map(field).collect() })
}

/// Checks a preview; the error is for the tool's author.
pub(crate) fn preview(said: wit::ToolPreview) -> Result<Preview, String> {
    let plain = |e: SandboxError| e.to_string();
    line("preview.title", &said.title, TITLE_CHARS).map_err(plain)?;
    if said.fields.len() > FIELDS {
        return Err(format!("preview.fields: it has {}; {FIELDS} is the most", said.fields.len()));
    }
    let mut fields = Vec::with_capacity(said.fields.len());
    for field in said.fields {
        line("preview.label", &field.label, LABEL_CHARS).map_err(plain)?;
        text("preview.value", &field.value, VALUE_BYTES).map_err(plain)?;
        fields.push(PreviewField { label: field.label, value: field.value });
    }
    Ok(Preview { title: said.title, fields })
}

/// One line, short, not empty.
fn line(part: &str, said: &str, chars: usize) -> Result<(), SandboxError> {
    if said.trim().is_empty() {
        return Err(refuse(part, "it is empty"));
    }
    if said.contains(['\n', '\t']) {
        return Err(refuse(part, "it must be one line"));
    }
    if said.chars().count() > chars {
        return Err(refuse(part, &format!("it is longer than {chars} characters")));
    }
    honest(part, said)
}

/// Some lines.
fn text(part: &str, said: &str, bytes: usize) -> Result<(), SandboxError> {
    if said.len() > bytes {
        return Err(refuse(part, &format!("it is longer than {bytes} bytes")));
    }
    honest(part, said)
}

fn honest(part: &str, said: &str) -> Result<(), SandboxError> {
    match said.chars().find(|c| is_deceptive(*c)) {
        Some(c) => Err(refuse(
            part,
            &format!("it contains U+{:04X}, which does not show as what it is", u32::from(c)),
        )),
        None => Ok(()),
    }
}

/// Characters that are invisible, or change how others are shown: control, bidi,
/// zero-width, interlinear, variation selectors, tags.
fn is_deceptive(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn refuse(part: &str, why: &str) -> SandboxError {
    SandboxError::refused(format!("manifest, {part}"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> wit::Manifest {
        wit::Manifest {
            name: "refund".to_owned(),
            version: "1.2.0".to_owned(),
            title: "Refund".to_owned(),
            description: "Two\nlines".to_owned(),
            input_schema: r#"{"type":"object"}"#.to_owned(),
            output_schema: None,
            effects: Vec::new(),
        }
    }

    #[test]
    fn f04_words_that_deceive_are_refused_by_code_point() {
        assert!(manifest(said()).is_ok());
        for bad in
            ["\u{202e}", "\u{200b}", "\u{e0041}", "\u{1b}[2J", "\u{2066}", "\u{fe0f}", "\0", "\u{feff}"]
        {
            let mut m = said();
            m.description = format!("pay{bad}evil");
            let error = manifest(m).unwrap_err().to_string();
            assert!(error.contains("description") && error.contains("U+"), "{error}");
            let mut m = said();
            m.title = format!("pay{bad}evil");
            assert!(manifest(m).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn f04_a_manifest_is_bounded() {
        type Change = fn(&mut wit::Manifest);
        let cases: [(&str, Change); 9] = [
            ("name", |m| m.name = "sеnd".to_owned()),
            ("version", |m| m.version = "1.2".to_owned()),
            ("title", |m| m.title = "x".repeat(201)),
            ("title", |m| m.title = "a\nb".to_owned()),
            ("description", |m| m.description = "x".repeat(2049)),
            ("input-schema", |m| m.input_schema = "true".to_owned()),
            ("input-schema", |m| m.input_schema = r#"{"a":1,"a":2}"#.to_owned()),
            ("output-schema", |m| m.output_schema = Some(format!("{{\"x\":\"{}\"}}", "x".repeat(65_536)))),
            ("effects", |m| {
                let e = wit::DeclaredEffect {
                    host: "x.example".to_owned(),
                    methods: vec!["GET".to_owned()],
                    why: "because".to_owned(),
                };
                m.effects = vec![e; 33];
            }),
        ];
        for (part, change) in cases {
            let mut m = said();
            change(&mut m);
            let error = manifest(m).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_version_is_semver_and_nothing_like_it() {
        for good in ["0.0.0", "1.2.3", "1.0.0-rc.1", "1.0.0-alpha-x+build.5", "10.20.30"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "v1.2.3", "1.2.x"] {
            assert!(!is_semver(bad), "{bad}");
        }
    }
}
