//! Published vectors, our own tables of what is accepted and refused, and
//! properties over generated values and bytes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse(text: impl AsRef<[u8]>) -> Result<CanonicalJson, JsonError> {
    CanonicalJson::parse(text, Limits::default())
}

/// `<EF>` in test data stands for the byte 0xEF.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        match rest {
            [b'<', high, low, b'>', ..] => {
                let digits = [*high, *low];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = &rest[4..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

macro_rules! vectors {
    ($($name:literal),*) => {
        [$((
            $name,
            include_str!(concat!("../../testdata/canonical/", $name, ".input.json")),
            include_str!(concat!("../../testdata/canonical/", $name, ".expected.json")),
        )),*]
    };
}

#[test]
fn p4_published_vectors_come_out_byte_for_byte() {
    for (name, input, expected) in vectors!(
        "rfc8785-3.2.2",
        "rfc8785-3.2.3",
        "vector-arrays",
        "vector-french",
        "vector-structures",
        "vector-unicode",
        "vector-values",
        "vector-weird"
    ) {
        let inexact = "333333333.33333329";
        if input.contains(inexact) {
            // Not the decimal value of any double: refused as text, while the
            // form of its nearest double is still the RFC's.
            let error = parse(input).unwrap_err();
            assert_eq!(
                (error.pointer.as_str(), error.reason),
                ("/numbers/0", Refusal::InexactNumber),
                "{name}"
            );
            assert_eq!(&input[error.offset..][..inexact.len()], inexact, "{name}");
        }
        let canonical = parse(input.replace(inexact, "333333333.3333333")).unwrap();
        assert_eq!(canonical.as_str(), expected, "{name}");
        assert_eq!(parse(expected).unwrap(), canonical, "{name}");
    }
}

#[test]
fn p4_appendix_b_numbers_have_their_published_form() {
    for line in include_str!("../../testdata/canonical/numbers.tsv").lines() {
        let (bits, text) = line.split_once('\t').unwrap();
        let value = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        assert_eq!(serde_json_canonicalizer::to_string(&value).unwrap(), text, "{bits}");
        // Read as text, each is either itself or out of the integer range.
        match parse(text) {
            Ok(canonical) => assert_eq!(canonical.as_str(), text),
            Err(error) => {
                assert_eq!(error.reason, Refusal::IntegerOutOfRange, "{text}");
                assert!(value.abs() > 9_007_199_254_740_991.0, "{text}");
            }
        }
    }
}

#[test]
fn p4_accepted_texts_have_one_canonical_form() {
    for line in include_str!("../../testdata/canonical/accepted.tsv").lines() {
        let (text, expected) = line.split_once('\t').unwrap();
        let canonical = parse(bytes(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(canonical.as_str().as_bytes(), bytes(expected), "{text}");
    }
}

#[test]
fn p4_refused_texts_are_refused_with_place_and_reason() {
    for line in include_str!("../../testdata/canonical/refused.tsv").lines() {
        let [reason, pointer, offset, text] = line.splitn(4, '\t').collect::<Vec<_>>().try_into().unwrap();
        let error = parse(bytes(text)).expect_err(text);
        let variant = format!("{:?}", error.reason);
        assert_eq!(variant.split([' ', '(']).next().unwrap(), reason, "{text}");
        assert_eq!((error.pointer.as_str(), error.offset), (pointer, offset.parse().unwrap()), "{text}");
    }
}

#[test]
fn p4_two_arguments_that_serde_json_tells_apart_never_share_a_form() {
    // The form alone maps both to 9007199254740992.
    for text in ["9007199254740992", "9007199254740993"] {
        assert_eq!(parse(text).unwrap_err().reason, Refusal::IntegerOutOfRange);
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(CanonicalJson::from_value(&value).unwrap_err().reason, Refusal::IntegerOutOfRange);
    }
}

#[test]
fn depth_64_passes_and_65_is_refused() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(parse(nested(64)).is_ok());
    assert_eq!(parse(nested(65)).unwrap_err().reason, Refusal::TooDeep { limit: 64 });
    let shallow = Limits { bytes: 100, depth: 1 };
    assert!(CanonicalJson::parse("[1]", shallow).is_ok());
    assert!(CanonicalJson::parse("[[1]]", shallow).is_err());
    // Far beyond any stack, were the reader recursive.
    assert!(parse("[".repeat(1_000_000)).is_err());
}

#[test]
fn size_is_limited_before_and_after_canonicalisation() {
    assert!(CanonicalJson::parse("[1,2]", Limits::bytes(5)).is_ok());
    let error = CanonicalJson::parse("[1, 2]", Limits::bytes(5)).unwrap_err();
    assert_eq!(error.reason, Refusal::TooLarge { bytes: 6, limit: 5 });
    let error = CanonicalJson::parse("9e15", Limits::bytes(10)).unwrap_err();
    assert_eq!(error.reason, Refusal::TooLarge { bytes: 16, limit: 10 });
}

#[test]
fn an_error_says_where_what_and_what_to_do() {
    let error = parse(r#"{"items":[{"amount":9007199254740993}]}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/items/0/amount (byte 20): an integer outside ±9007199254740991 (2^53−1); send it as a string"
    );
    assert_eq!(parse("nul").unwrap_err().to_string(), "at the top (byte 0): expected a JSON value");
}

#[test]
fn a_value_comes_back_as_it_was_written() {
    let canonical = parse(r#"{"b":[1.0,"x"],"a":null}"#).unwrap();
    assert_eq!(canonical.value(), json!({"a": null, "b": [1, "x"]}));
    assert_eq!(CanonicalJson::from_value(&canonical.value()).unwrap(), canonical);
    assert_eq!(CanonicalJson::from_trusted(canonical.as_str().to_owned()), canonical);
    assert_eq!(canonical.to_string(), r#"{"a":null,"b":[1,"x"]}"#);
}

#[test]
fn what_serialises_is_held_to_the_same_rules() {
    #[derive(serde::Serialize)]
    struct Odd {
        n: u64,
    }
    assert_eq!(CanonicalJson::of(&Odd { n: 7 }).unwrap().as_str(), r#"{"n":7}"#);
    let error = CanonicalJson::of(&Odd { n: u64::MAX }).unwrap_err();
    assert_eq!((error.pointer.as_str(), error.reason), ("/n", Refusal::IntegerOutOfRange));
    let no_text_keys = std::collections::BTreeMap::from([(vec![1], 1)]);
    assert_eq!(CanonicalJson::of(&no_text_keys).unwrap_err().reason, Refusal::NotSerialisable);
    assert_eq!(CanonicalJson::from_value(&json!(-0.0)).unwrap_err().reason, Refusal::NegativeZero);
    assert_eq!(CanonicalJson::from_value(&json!("a\0")).unwrap_err().reason, Refusal::Nul);
    // A map with integer keys has text keys in JSON, and keeps all of them.
    let integer_keys = std::collections::BTreeMap::from([(10, "x"), (9, "y"), (1, "z")]);
    assert_eq!(CanonicalJson::of(&integer_keys).unwrap().as_str(), r#"{"1":"z","10":"x","9":"y"}"#);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "not canonical")]
fn trusting_text_that_is_not_canonical_is_noticed_in_tests() {
    let _ = CanonicalJson::from_trusted(r#"{"b":1,"a":2}"#.to_owned());
}

/// Values that canonical JSON can hold, small enough that two of them are often
/// equal.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..3).prop_map(Value::from),
        (-9_007_199_254_740_991i64..=9_007_199_254_740_991).prop_map(Value::from),
        any::<f64>().prop_filter_map("holdable", |n| {
            let integral = n.fract() == 0.0 && n.abs() > 9_007_199_254_740_991.0 && n.abs() < 1e21;
            (n.is_finite() && !(n == 0.0 && n.is_sign_negative()) && !integral).then(|| json!(n))
        }),
        "[ab\u{e9}\u{fb33}\u{1f600}\"\\\\/\n\u{1}]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab\u{20ac}\u{fb33}\u{1f600}\u{e000}\"]{0,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Equality of JSON values: numbers are doubles, objects have no order.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

proptest! {
    #[test]
    fn p4_canonicalising_twice_changes_nothing(value in value()) {
        let once = CanonicalJson::from_value(&value).unwrap();
        let twice = parse(once.as_str()).unwrap();
        prop_assert_eq!(&once, &twice);
        prop_assert!(same(&value, &once.value()));
    }

    #[test]
    fn p4_equal_values_have_equal_texts_and_different_values_do_not(a in value(), b in value()) {
        let (text_a, text_b) = (CanonicalJson::from_value(&a).unwrap(), CanonicalJson::from_value(&b).unwrap());
        prop_assert_eq!(same(&a, &b), text_a == text_b);
    }

    #[test]
    fn white_space_and_escapes_do_not_count(value in value()) {
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let escaped: String = pretty
            .chars()
            .map(|c| if c.is_ascii() { c.to_string() } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect()
            })
            .collect();
        prop_assert_eq!(parse(escaped).unwrap(), CanonicalJson::from_value(&value).unwrap());
    }

    #[test]
    fn the_reader_never_panics_and_accepts_nothing_that_serde_json_refuses(raw in prop::collection::vec(any::<u8>(), 0..64)) {
        if parse(&raw).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&raw).is_ok());
        }
    }

    #[test]
    fn the_reader_never_panics_on_text_made_of_json_pieces(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud83d", "\\ude00", "\\u0000", "0", "-", "1e", "9", ".",
            "a", "é", "\u{1f600}", " ", "\n", "true", "null", "\"a\"", "\"a\":1", "e999999999999999999999", "\u{feff}",
        ]), 0..24),
    ) {
        let text = pieces.concat();
        match parse(&text) {
            Ok(canonical) => {
                let value: Value = serde_json::from_str(&text).unwrap();
                prop_assert!(same(&value, &canonical.value()));
            }
            Err(error) => prop_assert!(error.offset <= text.len()),
        }
    }

    #[test]
    fn one_changed_byte_never_panics(value in value(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut raw = serde_json::to_vec(&value).unwrap();
        let at = at.index(raw.len());
        raw[at] = byte;
        let _ = parse(&raw);
    }
}
