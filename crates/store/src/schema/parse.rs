//! From a component's SQL text to its migrations.

use super::Component;
use crate::Error;

const HEADING: &str = "-- migration ";

/// One numbered step, with its placeholders still in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Migration {
    pub(super) version: u32,
    pub(super) description: String,
    pub(super) statements: Vec<String>,
}

/// The component's migrations. They must be numbered 1, 2, 3, …
pub(super) fn migrations(component: &Component) -> Result<Vec<Migration>, Error> {
    let malformed =
        |reason: String| Error::BadMigrations { component: component.name.to_owned(), reason };
    let mut migrations: Vec<(Migration, String)> = Vec::new();
    for line in component.sql.lines() {
        if let Some(heading) = line.strip_prefix(HEADING) {
            let migration = parse_heading(heading)
                .ok_or_else(|| malformed(format!("'{line}' is not '{HEADING}N: description'")))?;
            if migration.version as usize != migrations.len() + 1 {
                return Err(malformed(format!("migration {} is out of order", migration.version)));
            }
            migrations.push((migration, String::new()));
        } else if let Some((_, body)) = migrations.last_mut() {
            body.push_str(line);
            body.push('\n');
        } else if !line.trim().is_empty() && !line.starts_with("--") {
            return Err(malformed(format!("'{line}' stands before the first migration")));
        }
    }
    if migrations.is_empty() {
        return Err(malformed("there are none".to_owned()));
    }
    migrations
        .into_iter()
        .map(|(migration, body)| {
            let statements = statements(&body);
            if statements.is_empty() {
                let reason = format!("migration {} has no statement", migration.version);
                return Err(malformed(reason));
            }
            Ok(Migration { statements, ..migration })
        })
        .collect()
}

fn parse_heading(heading: &str) -> Option<Migration> {
    let (version, description) = heading.split_once(':')?;
    let description = description.trim().to_owned();
    Some(Migration { version: version.trim().parse().ok()?, description, statements: Vec::new() })
}

/// Splits at every `;` outside of quotes and comments, and drops comments.
fn statements(body: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut quote = None;
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        match quote {
            None if c == '-' && chars.peek() == Some(&'-') => {
                while chars.peek().is_some_and(|&next| next != '\n') {
                    chars.next();
                }
                continue;
            }
            None if c == ';' => {
                statements.push(String::new());
                continue;
            }
            None if matches!(c, '\'' | '`' | '"') => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ => {}
        }
        if let Some(statement) = statements.last_mut() {
            statement.push(c);
            if quote.is_some() && c == '\\' {
                statement.extend(chars.next());
            }
        }
    }
    statements.iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(sql: &'static str) -> Result<Vec<Migration>, Error> {
        migrations(&Component { name: "x", sql })
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes() {
        let sql = "-- migration 1: first\n\
                   A ';' \"a;\" `b;` 'it''s; \\';'; -- why; not\nB;\n\
                   -- migration 2: second: more\nC";
        let parsed = parse(sql).unwrap();
        assert_eq!(parsed[0].statements, ["A ';' \"a;\" `b;` 'it''s; \\';'", "B"]);
        assert_eq!(parsed[1].statements, ["C"]);
        assert_eq!(parsed[1].description, "second: more");
    }

    #[test]
    fn malformed_texts_are_refused() {
        for (sql, reason) in [
            ("", "there are none"),
            ("CREATE TABLE t;\n-- migration 1: x\nA", "before the first"),
            ("-- migration 2: x\nA", "migration 2 is out of order"),
            ("-- migration 1: x\nA;\n-- migration 1: y\nB", "migration 1 is out of order"),
            ("-- migration one: x\nA", "is not '-- migration N"),
            ("-- migration 1: x\n-- nothing\n;", "migration 1 has no statement"),
        ] {
            let error = parse(sql).unwrap_err().to_string();
            assert!(error.contains(reason), "{sql}: {error}");
        }
    }
}
