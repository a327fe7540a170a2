//! The text as pasted, made searchable: terminal colours removed, carriage returns taken as line
//! ends, every line with its number, and one running form in which a hard-wrapped message reads
//! as it was printed.

mod wrap;

pub(crate) use wrap::by_name;

/// Longest line kept, bytes: what engines print in one line (all arguments, a table pasted on one
/// line) is far below.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Most lines kept of the beginning, and of the end: a start is at the beginning of a log, its
/// load at the end.
const MAX_LINES_AN_END: usize = 1_000_000;

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
    /// What was left out, in words.
    pub(crate) left_out: Vec<String>,
}

impl Doc {
    /// Cleans a text. Linear in its length; lines beyond [`MAX_LINE_BYTES`] are cut and a text of
    /// more than twice [`MAX_LINES_AN_END`] lines loses its middle, both told in `left_out`.
    pub(crate) fn new(text: &str) -> Self {
        let mut left_out = Vec::new();
        let total = text.bytes().filter(|b| *b == b'\n').count() + 1;
        let middle = MAX_LINES_AN_END..total.saturating_sub(MAX_LINES_AN_END).max(MAX_LINES_AN_END);
        if !middle.is_empty() {
            left_out.push(format!(
                "lines {} to {} are not read: a file of {total} lines is read at both ends",
                middle.start + 1,
                middle.end
            ));
        }
        let (mut lines, mut long) = (Vec::new(), (0, 0));
        for (index, physical) in text.split('\n').enumerate() {
            if middle.contains(&index) {
                continue;
            }
            for piece in physical.split('\r') {
                let kept = cut(piece, MAX_LINE_BYTES);
                if kept.len() < piece.len() {
                    long = (long.0 + 1, if long.0 == 0 { index + 1 } else { long.1 });
                }
                let clean = without_entities(strip_escapes(kept));
                if !clean.trim().is_empty() {
                    lines.push((index + 1, clean));
                }
            }
        }
        if long.0 > 0 {
            left_out.push(format!(
                "lines longer than {2} MiB: {0}, the first is line {1}; the rest of each is not read",
                long.0,
                long.1,
                MAX_LINE_BYTES >> 20
            ));
        }
        let lines = wrap::unwrapped(lines);
        let mut flat = String::with_capacity(lines.iter().map(|(_, line)| line.len() + 1).sum());
        let mut starts = Vec::with_capacity(lines.len());
        for (number, line) in &lines {
            starts.push((flat.len(), *number));
            push_words(&mut flat, unquote(line));
        }
        Self {
            lines,
            flat,
            starts,
            left_out,
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

    /// Every occurrence of any of the phrases in `flat`, in order: where it begins, where it ends,
    /// and which it is. One pass for all of them.
    pub(crate) fn find_all(&self, phrases: &[&str]) -> Vec<(usize, usize, usize)> {
        let bytes = self.flat.as_bytes();
        // The first two bytes decide for nearly all places, and which phrases are compared there.
        let mut begins = vec![0_u8; 1 << 16];
        let mut buckets: Vec<Vec<usize>> = vec![Vec::new()];
        let pair = |a: u8, b: u8| usize::from(a) << 8 | usize::from(b);
        for (index, phrase) in phrases.iter().enumerate() {
            let [a, b, ..] = phrase.as_bytes() else {
                continue;
            };
            let known = &mut begins[pair(*a, *b)];
            if *known == 0 {
                *known = u8::try_from(buckets.len()).unwrap_or(u8::MAX);
                buckets.resize(buckets.len().max(usize::from(*known) + 1), Vec::new());
            }
            buckets[usize::from(*known)].push(index);
        }
        let mut found = Vec::new();
        for (at, two) in bytes.windows(2).enumerate() {
            let bucket = begins[pair(two[0], two[1])];
            if bucket == 0 {
                continue;
            }
            let rest = bytes.get(at..).unwrap_or(&[]);
            for index in buckets.get(usize::from(bucket)).into_iter().flatten() {
                let Some(phrase) = phrases.get(*index) else {
                    continue;
                };
                if rest.starts_with(phrase.as_bytes()) {
                    found.push((at, at + phrase.len(), *index));
                }
            }
        }
        found
    }

    /// At most `limit` bytes of `flat` from `offset`, cut at a character.
    pub(crate) fn window(&self, offset: usize, limit: usize) -> &str {
        let rest = self.flat.get(offset..).unwrap_or("");
        cut(rest, limit)
    }
}

/// Behind `Custom allreduce is disabled because` or `… due to`, as both engines print it.
pub(crate) fn custom_all_reduce_off(doc: &Doc) -> Option<usize> {
    doc.after_all("Custom allreduce is disabled because")
        .next()
        .or_else(|| doc.after_all("Custom allreduce is disabled due to").next())
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

/// The words of a line, each with a blank behind it.
fn push_words(flat: &mut String, line: &str) {
    if line.is_ascii() {
        for word in line.split_ascii_whitespace() {
            flat.push_str(word);
            flat.push(' ');
        }
    } else {
        for word in line.split_whitespace() {
            flat.push_str(word);
            flat.push(' ');
        }
    }
}

/// Removes terminal escapes (`ESC [ … letter`, `ESC ] … BEL`), also where a paste has lost the
/// escape byte itself and only `[0m`-like remains are left, and other control characters.
fn strip_escapes(text: &str) -> String {
    // 0xC2 leads the control characters beyond ASCII.
    let special = |b: &u8| (*b < 0x20 && *b != b'\t') || matches!(*b, b'[' | 0x7f | 0xc2);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let plain = rest.bytes().position(|b| special(&b));
        let plain = plain.unwrap_or(rest.len());
        out.push_str(rest.get(..plain).unwrap_or(""));
        rest = rest.get(plain..).unwrap_or("");
        let Some(c) = rest.chars().next() else {
            break;
        };
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
        if !c.is_control() {
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
            // A sequence that was cut takes nothing along.
            let end = end.map_or(1, |i| i + 2);
            text.get(end..).unwrap_or("")
        }
        Some(b']') => {
            let end = bytes.iter().take(256).position(|b| *b == 7);
            text.get(end.map_or(1, |i| i + 1)..).unwrap_or("")
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

/// Text copied out of a page's source: `&gt;`, `&#39;`, `&quot;`. `&amp;` comes last.
fn without_entities(line: String) -> String {
    const ENTITIES: [(&str, &str); 9] = [
        ("&gt;", ">"),
        ("&lt;", "<"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&apos;", "'"),
        ("&#34;", "\""),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    if !line.contains('&') {
        return line;
    }
    ENTITIES
        .iter()
        .filter(|(entity, _)| line.contains(entity))
        .fold(line.clone(), |text, (entity, plain)| {
            text.replace(entity, plain)
        })
}

/// Without a mail's or Markdown's quote marks.
fn unquote(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some(inner) = rest.strip_prefix('>') {
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
            b',' if dots == 0 && decimal_comma(bytes, i) => return None,
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
    (value.abs() < NO_LOG_PRINTS).then_some((value, i))
}

/// Beyond all that engines and benches print (2^64 bytes among it), and small enough that sums and
/// products of what is read stay finite.
const NO_LOG_PRINTS: f64 = 1e30;

/// A comma at `i` between a digit and one or two digits that end there, as some languages write
/// `94,00 GB`. No engine prints it; what retyped it may mean either.
fn decimal_comma(bytes: &[u8], i: usize) -> bool {
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let two = digit(i + 2);
    let next = bytes.get(if two { i + 3 } else { i + 2 });
    let ends =
        next.is_none_or(|b| b.is_ascii_whitespace() || b.is_ascii_alphabetic() || *b == b'%');
    i > 0 && digit(i - 1) && digit(i + 1) && ends
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

    /// `Mean acceptance length:1e308`, weighted by its drafts, was infinite.
    #[test]
    fn a_number_that_no_log_prints_is_none() {
        assert_eq!(leading_number("1e308"), None);
        assert_eq!(
            leading_number("18446744073709551616").map(|n| n.0),
            Some(2f64.powi(64))
        );
        let text = "SpecDecoding metrics:Mean acceptance length:1e308";
        crate::explain::hostile::read_all(text);
    }

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
        assert_eq!(number_prefix("94,00 GB"), None);
        assert_eq!(number_prefix("0,5"), None);
        assert_eq!(number_prefix("1,2,4").map(|n| n.0), Some(1.0));
        assert_eq!(number_prefix("GB"), None);
    }

    #[test]
    fn a_wrapped_message_reads_as_printed_and_keeps_its_line() {
        let doc = Doc::new("x\n> Loaded weights leave\n>   no GPU memory");
        let at = doc.flat.find("leave no GPU").expect("joined");
        assert_eq!(doc.line_at(at), 2);
    }
}
