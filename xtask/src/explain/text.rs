//! The text as pasted, made searchable: terminal colours removed, carriage returns taken as line
//! ends, every line with its number, and one running form in which a hard-wrapped message reads
//! as it was printed.

/// A cleaned text.
#[derive(Debug)]
pub(crate) struct Doc {
    /// Lines without colours; a progress bar's carriage returns end a line too. Beside each the
    /// line number (from 1) of the original text.
    pub(crate) lines: Vec<(usize, String)>,
    /// All lines joined, every run of white space one blank.
    pub(crate) flat: String,
    /// Byte offset in `flat` and the line number that begins there, ascending.
    starts: Vec<(usize, usize)>,
}

impl Doc {
    /// Cleans a text. Linear in its length.
    pub(crate) fn new(text: &str) -> Self {
        let mut lines = Vec::new();
        for (index, physical) in text.split('\n').enumerate() {
            for piece in physical.split('\r') {
                let clean = strip_escapes(piece);
                if !clean.trim().is_empty() {
                    lines.push((index + 1, clean));
                }
            }
        }
        let mut flat = String::with_capacity(text.len());
        let mut starts = Vec::with_capacity(lines.len());
        for (number, line) in &lines {
            starts.push((flat.len(), *number));
            for word in unquote(line).split_whitespace() {
                flat.push_str(word);
                flat.push(' ');
            }
        }
        Self {
            lines,
            flat,
            starts,
        }
    }

    /// The line number (from 1) of a byte offset in `flat`.
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        let index = self.starts.partition_point(|(start, _)| *start <= offset);
        index
            .checked_sub(1)
            .and_then(|i| self.starts.get(i))
            .map_or(1, |(_, line)| *line)
    }

    /// Offsets just behind every occurrence of `phrase` in `flat`.
    pub(crate) fn after_all<'a>(&'a self, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.flat
            .match_indices(phrase)
            .map(move |(at, _)| at + phrase.len())
    }

    /// At most `limit` bytes of `flat` from `offset`, cut at a character.
    pub(crate) fn window(&self, offset: usize, limit: usize) -> &str {
        let rest = self.flat.get(offset..).unwrap_or("");
        cut(rest, limit)
    }
}

/// The first `limit` bytes or fewer, ending at a character.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while end > 0 && !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

/// Removes terminal escapes (`ESC [ … letter`, `ESC ] … BEL`), also where a paste has lost the
/// escape byte itself and only `[0m`-like remains are left, and other control characters.
fn strip_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '\u{1b}' {
            rest = skip_escape(rest.get(1..).unwrap_or(""));
            continue;
        }
        if c == '['
            && let Some(tail) = bare_colour(rest)
        {
            rest = tail;
            continue;
        }
        if c == '\t' || !c.is_control() {
            out.push(c);
        }
        rest = rest.get(c.len_utf8()..).unwrap_or("");
    }
    out
}

/// Behind an escape byte: the text after the sequence.
fn skip_escape(text: &str) -> &str {
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'[') => {
            let end = bytes
                .iter()
                .take(64)
                .skip(1)
                .position(|b| (0x40..=0x7e).contains(b));
            end.and_then(|i| text.get(i + 2..)).unwrap_or("")
        }
        Some(b']') => {
            let end = bytes.iter().take(256).position(|b| *b == 7);
            end.and_then(|i| text.get(i + 1..)).unwrap_or("")
        }
        Some(b) if b.is_ascii() => text.get(1..).unwrap_or(""),
        _ => text,
    }
}

/// `[36m`, `[0;0m`, `[1;33m`: a colour whose escape byte the paste lost.
fn bare_colour(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut i = 1;
    while i < 9
        && bytes
            .get(i)
            .is_some_and(|b| b.is_ascii_digit() || *b == b';')
    {
        i += 1;
    }
    (i > 1 && bytes.get(i) == Some(&b'm'))
        .then(|| text.get(i + 1..))
        .flatten()
}

/// Without a mail's or Markdown's quote marks.
fn unquote(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some(inner) = rest.strip_prefix("> ") {
        rest = inner.trim_start();
    }
    rest
}

/// The number that begins `text` (blanks, `=`, `:` and opening brackets before it are passed
/// over): thousands separators allowed, sign allowed, exponent allowed. Gives the number and what
/// follows it. `1.2.3` is not a number.
pub(crate) fn leading_number(text: &str) -> Option<(f64, &str)> {
    let trimmed = text.trim_start_matches([' ', '\t', '=', ':', '\'', '"', '*', '`', '~']);
    let (value, length) = number_prefix(trimmed)?;
    Some((value, trimmed.get(length..).unwrap_or("")))
}

/// A number at the very beginning of `text`, and its length in bytes.
pub(crate) fn number_prefix(text: &str) -> Option<(f64, usize)> {
    let bytes = text.as_bytes();
    let mut i = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    let mut digits = String::from(if bytes.first() == Some(&b'-') {
        "-"
    } else {
        ""
    });
    let first = i;
    let mut dots = 0;
    while let Some(b) = bytes.get(i) {
        if i - first > 64 {
            return None;
        }
        match b {
            b'0'..=b'9' => digits.push(char::from(*b)),
            b',' | b'_' if dots == 0 && thousands(bytes, i) => {}
            b'.' if dots == 0 && bytes.get(i + 1).is_some_and(u8::is_ascii_digit) => {
                dots = 1;
                digits.push('.');
            }
            b'.' if dots == 1 && bytes.get(i + 1).is_some_and(u8::is_ascii_digit) => return None,
            _ => break,
        }
        i += 1;
    }
    if i == first {
        return None;
    }
    if let Some(exponent) = exponent_prefix(text.get(i..).unwrap_or("")) {
        digits.push_str(exponent);
        i += exponent.len();
    }
    let value: f64 = digits.parse().ok()?;
    value.is_finite().then_some((value, i))
}

/// A separator at `i` between a digit and exactly three digits.
fn thousands(bytes: &[u8], i: usize) -> bool {
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    i > 0 && digit(i - 1) && digit(i + 1) && digit(i + 2) && digit(i + 3) && !digit(i + 4)
}

/// `e-07`, `E+3` at the beginning.
fn exponent_prefix(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    if !matches!(bytes.first(), Some(b'e' | b'E')) {
        return None;
    }
    let mut i = 1 + usize::from(matches!(bytes.get(1), Some(b'-' | b'+')));
    let from = i;
    while i < from + 4 && bytes.get(i).is_some_and(u8::is_ascii_digit) {
        i += 1;
    }
    (i > from).then(|| text.get(..i)).flatten()
}

/// The number behind the first `key` in `text`.
pub(crate) fn number_after(text: &str, key: &str) -> Option<f64> {
    let at = text.find(key)?;
    leading_number(text.get(at + key.len()..)?).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed_with_and_without_their_escape_byte() {
        assert_eq!(strip_escapes("\u{1b}[1;36m(A)\u{1b}[0;0m x"), "(A) x");
        assert_eq!(
            strip_escapes("[36m(A)[0m [2026-10-06] [8, 2m]"),
            "(A) [2026-10-06] [8, 2m]"
        );
    }

    #[test]
    fn numbers_with_separators_signs_and_exponents() {
        assert_eq!(
            number_prefix("2,640,144 tokens").map(|n| n.0),
            Some(2_640_144.0)
        );
        assert_eq!(number_prefix("1_048_576 x").map(|n| n.0), Some(1_048_576.0));
        assert_eq!(number_prefix("5e-07").map(|n| n.0), Some(5e-7));
        assert_eq!(number_prefix("0.706, 0.488").map(|n| n.0), Some(0.706));
        assert_eq!(number_prefix("-24.42 GiB").map(|n| n.0), Some(-24.42));
        assert_eq!(number_prefix("8.18 GB.").map(|n| n.0), Some(8.18));
        assert_eq!(number_prefix("0.24.0"), None);
        assert_eq!(number_prefix("GB"), None);
    }

    #[test]
    fn a_wrapped_message_reads_as_printed_and_keeps_its_line() {
        let doc = Doc::new("x\n> Loaded weights leave\n>   no GPU memory");
        let at = doc.flat.find("leave no GPU").expect("joined");
        assert_eq!(doc.line_at(at), 2);
    }
}
