//! Numbers and text, as the picture has them.

/// Nanoseconds with a unit: `12.3 ms`.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 1e12 => format!("{:.2} s", ns / 1e9),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

/// A share in percent: `12.3 %`.
pub(super) fn share(share: f64) -> String {
    if share > 0.0 && share < 0.000_5 {
        String::from("< 0.1 %")
    } else {
        format!("{:.1} %", share * 100.0)
    }
}

/// For XML text and attributes. XML cannot hold control characters at all, and a noncharacter
/// would make the file unreadable.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// In lines of at most so many characters, if words allow it.
pub(super) fn wrapped(text: &str, characters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { continue };
        if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= characters {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
}

/// Cut to so many characters, with dots in place of the end; nothing if not even three fit.
pub(super) fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    if characters < 3 {
        return String::new();
    }
    text.chars().take(characters - 1).chain(['…']).collect()
}
