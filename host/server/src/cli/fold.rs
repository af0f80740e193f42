//! Long things made short without hiding that they are long: what is folded
//! says its length and its SHA-256, shows how it ends as well as how it begins,
//! and opens with `--full`. Nothing is ever cut without saying so.

use countersign_domain::id::Digest;

use super::json::Json;
use super::text::{plain, quoted, warnings, width};

/// Longest value shown whole, in characters: two lines of a usual terminal.
const VALUE: usize = 160;
/// What is shown of a folded value: its beginning and its end.
const HEAD: usize = 80;
const TAIL: usize = 40;
/// Values shown of a large object before the rest is folded.
const ROWS: usize = 60;
/// Lines shown of a body before the rest is folded, and after it.
const LINES: usize = 40;
const LAST_LINES: usize = 5;
/// Columns of a body's line; longer ones are wrapped, not folded.
const COLUMNS: usize = 96;

/// Folds, unless everything is to be shown, and counts what it folded.
#[derive(Debug, Default)]
pub struct Folder {
    /// Fold nothing.
    pub full: bool,
    /// How many things were folded.
    pub folded: usize,
}

impl Folder {
    /// A text value, in quotes.
    pub fn text(&mut self, text: &str) -> String {
        // Escapes make a value longer, so that the escaped form counts too.
        let shown = quoted(text);
        if self.full || shown.chars().count() <= VALUE {
            return shown;
        }
        self.folded += 1;
        let head: String = within(text.chars(), HEAD);
        let tail: String = within(text.chars().rev(), TAIL).chars().rev().collect();
        format!("{} … {}  [{}]", quoted(&head), quoted(&tail), measure(text.as_bytes()))
    }

    /// Any value on one line.
    pub fn value(&mut self, value: &Json) -> String {
        match value {
            Json::String(text) => self.text(text),
            Json::Array(items) if items.is_empty() => "[]".to_owned(),
            Json::Object(members) if members.is_empty() => "{}".to_owned(),
            other => {
                let text = other.to_string();
                match other {
                    Json::Array(_) | Json::Object(_) => self.text(&text),
                    _ => plain(&text),
                }
            }
        }
    }

    /// All values inside a value, one per line, each named by its JSON Pointer.
    pub fn rows(&mut self, value: &Json) -> Vec<Row> {
        self.rows_at("", value)
    }

    /// The same, for a value that stands at `pointer` in a larger one.
    pub fn rows_at(&mut self, pointer: &str, value: &Json) -> Vec<Row> {
        let mut leaves = Vec::new();
        collect(value, pointer.to_owned(), &mut leaves);
        let all = leaves.len();
        let shown = if self.full || all <= ROWS { all } else { ROWS };
        let mut rows: Vec<Row> = leaves[..shown]
            .iter()
            .map(|(pointer, leaf)| Row {
                name: name(pointer),
                value: self.value(leaf),
                notes: notes(pointer, leaf),
            })
            .collect();
        if shown < all {
            self.folded += 1;
            rows.push(Row {
                name: "…".to_owned(),
                value: format!(
                    "{} more values  [in all {}]",
                    all - shown,
                    measure(value.to_string().as_bytes())
                ),
                notes: Vec::new(),
            });
        }
        rows
    }

    /// A text of many lines, such as a body, each marked: `| ` begins a line,
    /// `: ` continues one that is too long for a terminal. A line feed at the
    /// end shows as a last, empty line.
    pub fn lines(&mut self, text: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for line in text.split('\n') {
            wrap(&plain(line), &mut lines);
        }
        if self.full || lines.len() <= LINES + LAST_LINES {
            return lines;
        }
        self.folded += 1;
        let rest = lines.len() - LINES - LAST_LINES;
        let last = lines.split_off(lines.len() - LAST_LINES);
        lines.truncate(LINES);
        lines.push(format!("… {rest} more lines  [in all {}]", measure(text.as_bytes())));
        lines.extend(last);
        lines
    }
}

/// One named value.
#[derive(Debug)]
pub struct Row {
    /// Safe to print.
    pub name: String,
    /// Safe to print.
    pub value: String,
    /// What to know about how it looks.
    pub notes: Vec<String>,
}

impl Row {
    /// A row with nothing to note.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Row {
        Row { name: name.into(), value: value.into(), notes: Vec::new() }
    }
}

/// Rows as lines, values in one column, notes under their value.
pub fn aligned(rows: &[Row], indent: &str) -> String {
    // One very long name does not push all the values away.
    let column = rows.iter().map(|row| width(&row.name)).filter(|w| *w <= 32).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        let pad = " ".repeat(column.saturating_sub(width(&row.name)));
        out.push_str(format!("{indent}{}{pad}  {}", row.name, row.value).trim_end());
        out.push('\n');
        for note in &row.notes {
            out.push_str(&format!("{indent}{}  look twice: {note}\n", " ".repeat(column)));
        }
    }
    out
}

/// Length and hash of what is folded.
pub fn measure(bytes: &[u8]) -> String {
    format!("{}, SHA-256 {}", size(bytes.len() as u64), Digest::of(bytes))
}

/// A number of bytes, exact.
pub fn size(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format!("{} bytes", grouped(bytes)) }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A JSON Pointer as a name: quoted if it holds anything that could be taken
/// for the gap before a value, or for a value.
pub fn name(pointer: &str) -> String {
    if pointer.is_empty() {
        return "(whole)".to_owned();
    }
    let simple = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '~' | '.');
    if pointer.chars().all(simple) { pointer.to_owned() } else { quoted(pointer) }
}

/// What to know about how a name and its value look.
pub fn notes(pointer: &str, leaf: &Json) -> Vec<String> {
    let mut found = warnings(pointer);
    if let Json::String(text) = leaf {
        found.extend(warnings(text));
    }
    found
}

fn collect<'a>(value: &'a Json, pointer: String, leaves: &mut Vec<(String, &'a Json)>) {
    match value {
        Json::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                let step = name.replace('~', "~0").replace('/', "~1");
                collect(member, format!("{pointer}/{step}"), leaves);
            }
        }
        Json::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{i}"), leaves);
            }
        }
        leaf => leaves.push((pointer, leaf)),
    }
}

/// As many characters as stay within so many once they are escaped.
fn within(chars: impl Iterator<Item = char>, most: usize) -> String {
    let mut taken = String::new();
    let mut used = 0;
    for c in chars {
        used += plain(c.encode_utf8(&mut [0; 4])).len().max(1);
        if used > most {
            break;
        }
        taken.push(c);
    }
    taken
}

fn wrap(line: &str, lines: &mut Vec<String>) {
    let mut current = "| ".to_owned();
    let mut used = 0;
    for c in line.chars() {
        if used == COLUMNS {
            lines.push(std::mem::replace(&mut current, ": ".to_owned()));
            used = 0;
        }
        current.push(c);
        used += 1;
    }
    lines.push(current);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_says_its_length_and_hash_and_how_it_ends() {
        let text = format!("{}pay mallory", "x".repeat(900 * 1024));
        let mut folder = Folder::default();
        let shown = folder.text(&text);
        assert!(shown.len() < 400, "{shown}");
        assert!(shown.contains("921,611 bytes, SHA-256 "), "{shown}");
        assert!(shown.contains(&Digest::of(text.as_bytes()).to_string()), "{shown}");
        assert!(shown.contains("pay mallory\""), "{shown}");
        assert_eq!(folder.folded, 1);
        let mut open = Folder { full: true, folded: 0 };
        assert_eq!((open.text(&text), open.folded), (quoted(&text), 0));
    }

    #[test]
    fn escapes_count_so_that_nothing_hidden_makes_a_value_endless() {
        let shown = Folder::default().text(&"\u{200b}".repeat(50));
        assert!(shown.contains("150 bytes, SHA-256") && shown.chars().count() < 300, "{shown}");
    }

    #[test]
    fn ten_thousand_members_are_counted_not_cut() {
        let members = (0..10_000).map(|i| (format!("k{i}"), Json::Number("1".into()))).collect();
        let object = Json::Object(members);
        let mut folder = Folder::default();
        let rows = folder.rows(&object);
        assert_eq!((rows.len(), folder.folded), (61, 1));
        assert!(rows[60].value.starts_with("9940 more values  [in all "), "{}", rows[60].value);
        assert_eq!(Folder { full: true, folded: 0 }.rows(&object).len(), 10_000);
    }

    #[test]
    fn five_thousand_line_feeds_do_not_push_the_end_out_of_sight() {
        let body = format!("{}amount=1000000", "\n".repeat(5_000));
        let mut folder = Folder::default();
        let lines = folder.lines(&body);
        assert!(lines.len() <= 46 && folder.folded == 1);
        assert_eq!(lines.last().map(String::as_str), Some("| amount=1000000"));
        assert!(lines.iter().any(|line| line.contains("4956 more lines")), "{lines:?}");
    }

    #[test]
    fn a_wrapped_line_cannot_be_taken_for_two_and_a_last_line_feed_shows() {
        let long = "a".repeat(100);
        let lines = |text: &str| Folder::default().lines(text);
        assert_eq!(lines(&format!("{long}\n")), [format!("| {}", &long[..96]), ": aaaa".into(), "| ".into()]);
        assert_eq!(lines(": b"), ["| : b"]);
    }

    #[test]
    fn a_name_cannot_pass_for_a_value() {
        let object = Json::parse(r#"{"amount   1000":5,"a/b":{"c":[]},"":null}"#).unwrap();
        let shown = aligned(&Folder::default().rows(&object), "");
        assert_eq!(shown, "\"/amount   1000\"  5\n/a~1b/c           []\n/                 null\n");
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!((size(0), size(1), size(999), size(1_000), size(1_234_567)).4, "1,234,567 bytes");
        assert_eq!((size(1), size(1_000)), ("1 byte".into(), "1,000 bytes".into()));
    }
}
