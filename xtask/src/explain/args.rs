//! Settings as engines print them: `ServerArgs(key='value', …)`, `{'key': value}`, `Namespace(…)`,
//! `--flag value`, `--flag=value`.

use super::text::leading_number;

/// The value of `key` in a printed argument list; `None` where it is absent, `None` or empty.
pub(crate) fn argument<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut from = 0;
    while let Some(found) = text.get(from..)?.find(key) {
        let at = from + found;
        from = at + key.len();
        let before = text.get(..at).and_then(|t| t.chars().next_back());
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            continue;
        }
        let rest = text.get(from..)?;
        let rest = rest.strip_prefix(['\'', '"']).unwrap_or(rest);
        let Some(rest) = rest
            .strip_prefix('=')
            .or_else(|| rest.strip_prefix(": "))
            .or_else(|| rest.strip_prefix(':'))
        else {
            continue;
        };
        let value = value_at(rest.trim_start());
        if !value.is_empty() && !matches!(value, "None" | "null") {
            return Some(value);
        }
    }
    None
}

/// A value up to its end: the closing quote, or a comma, bracket or blank.
fn value_at(text: &str) -> &str {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote) {
            return inner.split(quote).next().unwrap_or("");
        }
    }
    text.split([',', ')', '}', ']', ' ', '`'])
        .next()
        .unwrap_or("")
}

/// The number behind `key` in a printed argument list.
pub(crate) fn argument_number(text: &str, key: &str) -> Option<f64> {
    leading_number(argument(text, key)?).map(|(value, _)| value)
}

/// The value of a command-line flag, `--flag value` or `--flag=value`, and its offset; the first
/// that is a value (not another flag, not a placeholder).
pub(crate) fn flag<'a>(text: &'a str, name: &str) -> Option<(&'a str, usize)> {
    let mut from = 0;
    while let Some(found) = text.get(from..)?.find(name) {
        let at = from + found;
        from = at + name.len();
        let rest = text.get(from..)?;
        let Some(rest) = rest.strip_prefix('=').or_else(|| rest.strip_prefix(' ')) else {
            continue;
        };
        let value = value_at(rest.trim_start());
        let value = value.trim_end_matches(['\\', ';', '.']);
        if !value.is_empty() && !value.starts_with(['-', '$', '<', '{']) {
            return Some((value, at));
        }
    }
    None
}

/// The number given to a command-line flag, and its offset.
pub(crate) fn flag_number(text: &str, name: &str) -> Option<(f64, usize)> {
    let mut from = 0;
    // Prose around it (`raise --flag to 0.9`) is passed over.
    while let Some((value, at)) = flag(text.get(from..)?, name) {
        if let Some((number, rest)) = leading_number(value)
            && rest.is_empty()
        {
            return Some((number, from + at));
        }
        from += at + name.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_in_every_print_form() {
        let args = "ServerArgs(speculative_draft_model_path='d', model_path='m/x', tp_size=2, \
                    speculative_algorithm=None)";
        assert_eq!(argument(args, "model_path"), Some("m/x"));
        assert_eq!(argument(args, "speculative_algorithm"), None);
        assert_eq!(argument_number(args, "tp_size"), Some(2.0));
        let dict = "{'mem_fraction_static': 0.95, 'model': 'a'}";
        assert_eq!(argument_number(dict, "mem_fraction_static"), Some(0.95));
        assert_eq!(argument(dict, "model"), Some("a"));
    }

    #[test]
    fn flags_with_blank_and_equals() {
        assert_eq!(flag("x --tp 8 --y", "--tp").map(|f| f.0), Some("8"));
        assert_eq!(
            flag_number("--mem-fraction-static=0.94. Raise", "--mem-fraction-static").map(|f| f.0),
            Some(0.94)
        );
        assert_eq!(flag("--model $MODEL", "--model"), None);
        assert_eq!(
            flag("decrease --mem-fraction-static", "--mem-fraction-static"),
            None
        );
    }
}
