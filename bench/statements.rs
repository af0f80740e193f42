//! The statements that one action is made of, as the server logged them, turned
//! into a script for `pgbench`: the database's part of the work alone.

use anyhow::Context as _;
use serde_json::Value;

/// From the log of one action: each statement with its own values, but for the
/// action's id and key, which are new each time. `key`: the action's.
pub fn script(log: &[Value], id: &str, key: &str) -> anyhow::Result<(String, usize)> {
    let id = format!("\\x{}", id.replace('-', ""));
    let mut script = String::from("\\set id random(1, 9000000000000000000)\n");
    let mut statements = 0;
    for entry in log {
        let Some(sql) = entry["message"].as_str().and_then(|text| text.split_once(": ")) else { continue };
        let (how, sql) = sql;
        let detail = entry["detail"].as_str().unwrap_or_default();
        // What looks for work, and what wakes other hosts, is not the action's own.
        if !how.starts_with("execute") || !detail.contains(&id) && !sql.contains("from tool_versions") {
            continue;
        }
        let values =
            detail.split_once(": ").map(|(_, values)| parse(values)).transpose()?.unwrap_or_default();
        let sql = fill(sql, &values, &id, key).split_whitespace().collect::<Vec<_>>().join(" ");
        script.push_str(&sql);
        script.push_str(";\n");
        statements += 1;
    }
    anyhow::ensure!(statements >= 5, "only {statements} statements of the action {id} were logged");
    Ok((script, statements))
}

/// `$1 = 'text', $2 = NULL, …`
fn parse(values: &str) -> anyhow::Result<Vec<Option<String>>> {
    let mut all = Vec::new();
    let mut rest = values;
    while let Some((_, value)) = rest.split_once(" = ") {
        if let Some(after) = value.strip_prefix("NULL") {
            all.push(None);
            rest = after;
            continue;
        }
        let mut text = String::new();
        let mut chars = value.strip_prefix('\'').context("a value without a quote")?.char_indices();
        let end = loop {
            match chars.next().context("a value without an end")? {
                (at, '\'') if chars.as_str().starts_with('\'') => {
                    let _ = (at, chars.next());
                    text.push('\'');
                }
                (at, '\'') => break at,
                (_, other) => text.push(other),
            }
        };
        all.push(Some(text));
        rest = &value[end + 2..];
    }
    Ok(all)
}

/// The statement with its values in place of `$1`…; the highest first, so that
/// `$1` is not found in `$12`.
fn fill(sql: &str, values: &[Option<String>], id: &str, key: &str) -> String {
    let mut filled = sql.to_owned();
    for (at, value) in values.iter().enumerate().rev() {
        let literal = match value {
            None => "null".to_owned(),
            Some(text) if text == id => "decode(lpad(to_hex(:id::bigint), 32, '0'), 'hex')".to_owned(),
            Some(text) => {
                // A colon begins a variable of pgbench, so texts with one are put
                // together around it; and so is the key around what makes it new.
                let quoted = text.replace('\'', "''").replace(key, "'||:id||'").replace(':', "'||chr(58)||'");
                let quoted = quoted.replace("'||chr(58)||'id||'", ":id||'");
                if quoted.contains("||") { format!("('{quoted}')") } else { format!("'{quoted}'") }
            }
        };
        filled = filled.replace(&format!("${}", at + 1), &literal);
    }
    filled
}
