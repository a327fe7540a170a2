//! Text as pasted by people: colour codes, quote marks, odd blanks. Line numbers are kept.

/// The first `limit` bytes, cut at a character.
pub(super) fn head(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

/// Whether a line starts with `key =`.
pub(super) fn has_key(text: &str, key: &str) -> bool {
    text.lines().any(|line| {
        line.trim_start()
            .strip_prefix(key)
            .is_some_and(|rest| rest.trim_start().starts_with('='))
    })
}

/// Lines without colour codes, mail quote marks, byte order mark and no-break spaces.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.trim_start_matches('\u{feff}')
        .lines()
        .map(line)
        .collect()
}

fn line(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // CSI: ESC [ parameters, up to a letter. Other escapes: the next character.
                if chars.next() == Some('[') {
                    for d in chars.by_ref() {
                        if ('@'..='~').contains(&d) {
                            break;
                        }
                    }
                }
            }
            '\u{a0}' | '\u{3000}' => out.push(' '),
            '\r' => {}
            other => out.push(other),
        }
    }
    let mut rest = out.as_str();
    while let Some(inner) = rest.strip_prefix('>') {
        rest = inner.strip_prefix(' ').unwrap_or(inner);
    }
    rest.to_string()
}
