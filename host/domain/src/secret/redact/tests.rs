//! Echoes of a canary in every form that is searched for.

use super::*;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use proptest::prelude::*;

fn redactor(values: &[(&str, &str)]) -> Redactor {
    let owned: Vec<(SecretName, SecretValue)> = values
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), SecretValue::new((*value).to_owned()).unwrap()))
        .collect();
    Redactor::new(owned.iter().map(|(name, value)| (name, value)))
}

/// Holds every kind of character that some encoder treats differently.
const CANARY: &str = r#"sk_l1ve/+~?>"<&'\ %41 é€😀}zz"#;

fn percent(text: &str, keep: impl Fn(u8) -> bool, upper: bool) -> String {
    text.bytes()
        .map(|b| match (keep(b), upper) {
            (true, _) => char::from(b).to_string(),
            (false, true) => format!("%{b:02X}"),
            (false, false) => format!("%{b:02x}"),
        })
        .collect()
}

fn encodings(secret: &str) -> Vec<String> {
    let unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let json = serde_json::to_string(secret).unwrap();
    let json = &json[1..json.len() - 1];
    let utf16: String = secret.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
    let html = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let html_attribute = html.replace('"', "&quot;").replace('\'', "&#x27;");
    vec![
        secret.to_owned(),
        json.to_owned(),
        json.replace('/', "\\/"),
        utf16,
        percent(secret, unreserved, true),
        percent(secret, unreserved, false),
        percent(secret, unreserved, true).replace("%20", "+"),
        percent(secret, |_| false, true),
        html,
        html_attribute,
        hex::encode(secret),
        hex::encode_upper(secret),
    ]
}

#[test]
fn c01_p6_a_secret_is_found_in_every_form_and_nothing_else_is_touched() {
    for secret in [CANARY, "sk_test_4eC39HqLyjWDarjtT1zdp7dc", "12345678", "%%%%%%%%%%%%"] {
        let redactor = redactor(&[("key", secret)]);
        for form in encodings(secret) {
            let page = format!("<p>before \"{form}\", twice {form}!</p>");
            let expected = "<p>before \"[redacted:key]\", twice [redacted:key]!</p>";
            assert_eq!(redactor.redact_text(&page), expected, "{form}");
        }
    }
}

#[test]
fn c01_p6_a_secret_is_found_in_base64_at_every_alignment_and_alphabet() {
    for secret in [CANARY, "sk_test_4eC39HqLyjWDarjtT1zdp7dc", "\u{ff}\u{ff}\u{fe}\u{fb}\u{ff}?", "12345678"]
    {
        let redactor = redactor(&[("key", secret)]);
        for before in ["", "u", "us", "user:", "user1:", "user12:"] {
            for after in ["", ":", ":x", ":xy", ":xyz"] {
                let text = format!("{before}{secret}{after}");
                for encoded in [
                    BASE64_STANDARD.encode(&text),
                    BASE64_STANDARD_NO_PAD.encode(&text),
                    BASE64_URL_SAFE.encode(&text),
                    BASE64_URL_SAFE_NO_PAD.encode(&text),
                    BASE64_STANDARD.encode(&text).replace('/', "\\/"),
                    percent(&BASE64_STANDARD.encode(&text), |b| b.is_ascii_alphanumeric(), true),
                ] {
                    let page = format!("Basic {encoded}; \"next\"");
                    let redacted = redactor.redact_text(&page).into_owned();
                    let (front, back) =
                        redacted.split_once("[redacted:key]").unwrap_or_else(|| panic!("{page}"));
                    // What is left of the text in front is decided by it alone.
                    let left = front.strip_prefix("Basic ").unwrap();
                    assert!(left.len() <= before.len() * 8 / 6, "{left} of {before}");
                    assert!(encoded.starts_with(left));
                    assert!(back.ends_with("; \"next\""), "{back}");
                    if after.is_empty() {
                        assert_eq!(back, "; \"next\"", "{encoded}");
                    }
                }
            }
        }
    }
}

#[test]
fn c01_p6_base64_broken_into_lines_is_found() {
    let redactor = redactor(&[("key", "sk_test_4eC39HqLyjWDarjtT1zdp7dc")]);
    let encoded = BASE64_STANDARD.encode("user:sk_test_4eC39HqLyjWDarjtT1zdp7dc");
    for at in 1..encoded.len() {
        for line_break in ["\n", "\r\n", "\\r\\n"] {
            let page = format!("{}{line_break}{}", &encoded[..at], &encoded[at..]);
            assert!(redactor.redact_text(&page).contains("[redacted:key]"), "{page}");
        }
    }
}

#[test]
fn c01_p6_basic_credentials_are_found_decoded() {
    let secret = BASE64_STANDARD.encode("merchant:hunter2hunter2");
    let redactor = redactor(&[("basic", &secret)]);
    for echoed in [secret.as_str(), "merchant:hunter2hunter2"] {
        assert_eq!(redactor.redact_text(echoed), "[redacted:basic]");
    }
    assert_eq!(
        redactor.redact_text("password hunter2hunter2 is wrong"),
        "password [redacted:basic] is wrong"
    );
}

#[test]
fn two_secrets_keep_their_names_and_overlaps_leave_no_rest() {
    let redactor = redactor(&[("first", "aaaabbbbcccc"), ("second", "ccccddddeeee"), ("inner", "bbbbcccc")]);
    assert_eq!(
        redactor.redact_text("x aaaabbbbcccc y ccccddddeeee z bbbbcccc"),
        "x [redacted:first] y [redacted:second] z [redacted:inner]"
    );
    assert_eq!(redactor.redact_text("x aaaabbbbccccddddeeee y"), "x [redacted:first] y");
    let nested = self::redactor(&[("outer", "aaaabbbbbbbbcccc"), ("inner", "bbbbbbbb")]);
    assert_eq!(nested.redact_text("x aaaabbbbbbbbcccc y"), "x [redacted:outer] y");
    // Names of longer secrets win over what they contain.
    assert_eq!(redactor.redact_text("aaaabbbbcccc"), "[redacted:first]");
}

#[test]
fn what_holds_no_secret_is_borrowed() {
    let redactor = redactor(&[("key", "sk_test_4eC39HqLyjWDarjtT1zdp7dc")]);
    let page = b"sk_test_ \xff\x00 4eC39HqLyjWDarjtT1zdp7dc sk_test_4eC39HqLyjWDarjtT1zdp7d";
    assert!(matches!(redactor.redact(page), Cow::Borrowed(same) if same == page));
    assert!(matches!(Redactor::new([]).redact(page), Cow::Borrowed(_)));
    assert!(!format!("{redactor:?}").contains("sk_test"));
}

proptest! {
    #[test]
    fn c01_p6_any_secret_in_any_mixture_of_escapes_is_found(
        secret in "[ -~é€😀]{8,24}",
        choices in prop::collection::vec(0usize..5, 24),
        noise in "[a-z]{0,8}",
    ) {
        let secret = secret.trim().to_owned();
        prop_assume!(secret.len() >= MIN_SECRET_BYTES);
        let mixed: String = secret.chars().zip(&choices).map(|(c, choice)| match choice {
            0 => percent(&c.to_string(), |_| false, true),
            1 => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            2 => format!("&#{};", u32::from(c)),
            _ => c.to_string(),
        }).collect();
        let redactor = redactor(&[("key", &secret)]);
        let page = format!("{noise}\n{mixed}\n{noise}");
        let redacted = redactor.redact_text(&page).into_owned();
        prop_assert!(redacted.contains("[redacted:key]"), "{}", page);
    }

    #[test]
    fn no_buffer_makes_it_panic(buffer in prop::collection::vec(any::<u8>(), 0..64), tail in "[%\\\\&u0-9a-f=/+]{0,16}") {
        let redactor = redactor(&[("key", "%25\\u0041&#x41;AAAA")]);
        let _ = redactor.redact(&[buffer, tail.into_bytes()].concat());
    }
}
