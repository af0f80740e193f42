//! Text from outside, made safe to look at. Everything a caller, a tool or a
//! provider wrote passes through here before it reaches a terminal or a page:
//! what would move, hide, colour or reorder anything is written as `\u{…}`.
//!
//! What comes out holds no control character, no invisible one, and no
//! backslash that was not written by this file or doubled by it: two different
//! texts never look the same because of what is escaped. Letters of different
//! scripts can still look alike; [`warnings`] says where that may matter.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use icu_normalizer::ComposingNormalizerBorrowed;
use icu_properties::props::{
    BidiClass, DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup, Script,
};
use icu_properties::{CodePointMapData, CodePointSetData, PropertyNamesLong};

/// Marks that may follow one letter before the rest are escaped. Two is what
/// Thai and Vietnamese need; two hundred would paint over the lines above.
const MARKS_IN_A_ROW: usize = 2;

/// Warnings listed about one text before the rest is only counted.
const WARNINGS: usize = 5;

/// The text with everything that does not show as itself escaped. For use
/// between other words; see [`quoted`] for values.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    escape(text, &mut out);
    out
}

/// The text in double quotes, so that its ends are seen, escaped like
/// [`plain`], inner quotes as `\"`.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let mut first = true;
    for part in text.split('"') {
        if !std::mem::take(&mut first) {
            out.push_str("\\\"");
        }
        escape(part, &mut out);
    }
    out.push('"');
    out
}

fn escape(text: &str, out: &mut String) {
    // A text in another normal form than NFC looks like its NFC twin, so there
    // every combining part is shown for what it is.
    let composed = text.is_ascii() || ComposingNormalizerBorrowed::new_nfc().is_normalized(text);
    // A mark at the start would sit on whatever was printed before it.
    let mut marks = MARKS_IN_A_ROW;
    for c in text.chars() {
        if is_mark(c) {
            marks += 1;
            if !composed || marks > MARKS_IN_A_ROW || !shows_as_itself(c) {
                number(c, out);
            } else {
                out.push(c);
            }
            continue;
        }
        marks = 0;
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if !shows_as_itself(c) || (!composed && combines(c)) => number(c, out),
            c => out.push(c),
        }
        if c == '\n' || !shows_as_itself(c) {
            // After an escape a mark would sit on the escape's last letter.
            marks = MARKS_IN_A_ROW;
        }
    }
}

fn number(c: char, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
}

fn is_mark(c: char) -> bool {
    !c.is_ascii()
        && matches!(
            CodePointMapData::<GeneralCategory>::new().get(c),
            GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark
        )
}

/// Whether a reader sees the character, and sees it where it stands.
fn shows_as_itself(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(c);
    let seen = GeneralCategoryGroup::Letter
        .union(GeneralCategoryGroup::Mark)
        .union(GeneralCategoryGroup::Number)
        .union(GeneralCategoryGroup::Punctuation)
        .union(GeneralCategoryGroup::Symbol);
    seen.contains(category)
        // Fillers, joiners and variation selectors are letters and marks by
        // category, and invisible. So is the blank Braille pattern.
        && !CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
        && c != '\u{2800}'
}

/// Whether the character is one that NFC writes differently, or joins with its
/// neighbours: singletons such as the Ångström sign, and Hangul Jamo.
fn combines(c: char) -> bool {
    if c.is_ascii() {
        return false;
    }
    let mut buffer = [0; 4];
    matches!(c, '\u{1100}'..='\u{11ff}')
        || !ComposingNormalizerBorrowed::new_nfc().is_normalized(c.encode_utf8(&mut buffer))
}

/// What a careful reader should know about how a text looks: words that mix
/// scripts, and names of hosts that are not ASCII. Already safe to print.
///
/// Not checked: a whole word of one foreign script that looks like a Latin one,
/// outside of a host name.
pub fn warnings(text: &str) -> Vec<String> {
    if text.is_ascii() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for word in text.split(|c: char| !(c.is_alphanumeric() || is_mark(c))) {
        if let Some(scripts) = mixed_scripts(word) {
            found.push(format!("{} mixes {scripts} letters", quoted(&start(word))));
        }
    }
    for name in text.split(|c: char| !(c.is_alphanumeric() || is_mark(c) || matches!(c, '.' | '-' | '_'))) {
        let name = name.trim_matches('.');
        // 253 octets is the longest name DNS has (RFC 1035).
        if name.is_ascii() || !name.contains('.') || name.len() > 253 {
            continue;
        }
        if let Ok(ascii) = idna::domain_to_ascii(name)
            && ascii != name
        {
            found.push(format!("{} as a host name is {}", quoted(name), plain(&ascii)));
        }
    }
    // Marks that reorder are escaped; letters that do so by nature are not.
    let classes = CodePointMapData::<BidiClass>::new();
    if text.chars().any(|c| matches!(classes.get(c), BidiClass::RightToLeft | BidiClass::ArabicLetter)) {
        found.push("some of it is written from right to left, and may be shown in another order".to_owned());
    }
    found.dedup();
    if found.len() > WARNINGS {
        let rest = found.len() - WARNINGS;
        found.truncate(WARNINGS);
        found.push(format!("and {rest} more things of this kind"));
    }
    found
}

fn start(word: &str) -> String {
    word.chars().take(40).collect()
}

/// The scripts of a word that has more than one writing would mix: the
/// "highly restrictive" rule of UTS 39, without its rarer allowances.
fn mixed_scripts(word: &str) -> Option<String> {
    if word.is_ascii() {
        return None;
    }
    let scripts = CodePointMapData::<Script>::new();
    let used: BTreeSet<Script> = word
        .chars()
        .map(|c| scripts.get(c))
        .filter(|s| ![Script::Common, Script::Inherited, Script::Unknown].contains(s))
        .collect();
    let together = |allowed: &[Script]| used.iter().all(|s| allowed.contains(s));
    if used.len() < 2
        || together(&[Script::Latin, Script::Han, Script::Hiragana, Script::Katakana])
        || together(&[Script::Latin, Script::Han, Script::Hangul])
        || together(&[Script::Latin, Script::Han, Script::Bopomofo])
    {
        return None;
    }
    let names = PropertyNamesLong::<Script>::new();
    let names: Vec<&str> = used.iter().map(|s| names.get(*s).unwrap_or("other")).collect();
    Some(names.join(" and "))
}

/// Columns a text takes on a terminal.
pub fn width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_or_moves_is_shown_as_its_number() {
        for (raw, shown) in [
            ("pay\u{202e}evil", r"pay\u{202e}evil"),
            ("\u{2066}a\u{2069}", r"\u{2066}a\u{2069}"),
            ("a\u{200b}b", r"a\u{200b}b"),
            ("\u{e0041}", r"\u{e0041}"),
            ("\u{e000}\u{378}", r"\u{e000}\u{378}"),
            ("\u{1b}]52;c;x\u{7}", r"\u{1b}]52;c;x\u{7}"),
            ("\u{9b}2J\u{85}", r"\u{9b}2J\u{85}"),
            ("a\u{fe0f}\u{3164}\u{2800}\u{a0}", r"a\u{fe0f}\u{3164}\u{2800}\u{a0}"),
            ("line\none\r\ttwo\u{2028}", r"line\none\r\ttwo\u{2028}"),
            (r"\u{202e}", r"\\u{202e}"),
            ("Grüße 東京 → €5", "Grüße 東京 → €5"),
        ] {
            assert_eq!(plain(raw), shown);
        }
    }

    #[test]
    fn two_texts_never_come_out_the_same() {
        let texts =
            ["é", "e\u{301}", "\u{212b}", "Å", "A\u{30a}", "각", "\u{1100}\u{1161}\u{11a8}", r"e\u{301}"];
        let shown: BTreeSet<String> = texts.iter().map(|t| plain(t)).collect();
        assert_eq!(shown.len(), texts.len(), "{shown:?}");
    }

    #[test]
    fn marks_do_not_pile_up_or_leave_their_text() {
        let pile = format!("a{}", "\u{301}\u{302}".repeat(100));
        let shown = plain(&pile);
        assert!(shown.chars().filter(|c| is_mark(*c)).count() <= MARKS_IN_A_ROW, "{shown}");
        assert_eq!(plain("\u{336}a"), r"\u{336}a");
        assert_eq!(plain("\n\u{336}a"), r"\n\u{336}a");
        assert_eq!(plain("ที่"), "ที่");
    }

    #[test]
    fn every_character_comes_out_visible() {
        // The planes that have characters; between them lie a million unassigned
        // ones, which fare like those inside these ranges.
        let planes = (0..0x3_4000).chain(0xe_0000..0xe_0200).chain(0x10_fff0..=0x10_ffff);
        for c in planes.filter_map(char::from_u32) {
            let shown = plain(&format!("x{c}"));
            assert!(
                shown.chars().all(|c| c == ' ' || (shows_as_itself(c) && !c.is_control())),
                "{:x} came out as {shown:?}",
                u32::from(c)
            );
        }
    }

    #[test]
    fn a_quote_inside_a_value_does_not_end_it() {
        assert_eq!(quoted("a\" amount: \"1"), r#""a\" amount: \"1""#);
    }

    #[test]
    fn look_alike_names_are_pointed_out() {
        assert_eq!(
            warnings("bob@\u{430}pple.com"),
            [
                "\"\u{430}pple\" mixes Cyrillic and Latin letters",
                "\"\u{430}pple.com\" as a host name is xn--pple-43d.com"
            ]
        );
        assert_eq!(warnings("\u{430}\u{440}\u{440}.com").len(), 1);
        assert_eq!(warnings("סך 100").len(), 1);
        let many = warnings("a\u{430} b\u{431} c\u{432} d\u{433} e\u{434} f\u{435} g\u{436}");
        assert_eq!((many.len(), many[5].as_str()), (6, "and 2 more things of this kind"));
        assert!(warnings("東京タワー Tokyo Straße naïve").is_empty());
    }
}
