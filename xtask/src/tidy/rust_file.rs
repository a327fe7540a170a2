//! Just enough of Rust's layout, as rustfmt writes it, to find functions and test modules.

/// A function and its size.
pub(super) struct Function {
    pub(super) name: String,
    /// Line of the signature, from 1.
    pub(super) line: usize,
    /// Lines from the signature to the closing brace.
    pub(super) lines: usize,
}

/// A source file, split into lines, with what the rules need to know of it.
pub(super) struct RustFile<'a> {
    lines: Vec<&'a str>,
    pub(super) functions: Vec<Function>,
}

impl<'a> RustFile<'a> {
    /// Finds the functions. Relies on rustfmt: the closing brace of a function stands alone at the
    /// indent of its signature.
    pub(super) fn parse(text: &'a str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let mut functions = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else {
                continue;
            };
            let indent = line.len() - line.trim_start().len();
            // A one-line function or a declaration without a body.
            if line.ends_with('}') || line.ends_with(';') {
                continue;
            }
            let closing = format!("{}}}", " ".repeat(indent));
            if let Some(length) = lines[index..].iter().position(|l| *l == closing) {
                functions.push(Function {
                    name,
                    line: index + 1,
                    lines: length + 1,
                });
            }
        }
        Self { lines, functions }
    }

    /// Lines outside `#[cfg(test)]` items and comments, with their number from 1. A line under a
    /// `// INVARIANT:` comment is left out too: there a panic is argued to be impossible.
    pub(super) fn production_lines(&self) -> Vec<(usize, &'a str)> {
        let mut kept = Vec::new();
        let mut skip_until: Option<String> = None;
        let mut test_next = false;
        let mut invariant = false;
        for (index, line) in self.lines.iter().enumerate() {
            if let Some(end) = &skip_until {
                if line == end {
                    skip_until = None;
                }
                continue;
            }
            let trimmed = line.trim_start();
            if trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[cfg(all(test") {
                test_next = true;
                continue;
            }
            if test_next && !trimmed.starts_with('#') {
                test_next = false;
                if line.ends_with('{') {
                    let indent = line.len() - trimmed.len();
                    skip_until = Some(format!("{}}}", " ".repeat(indent)));
                }
                continue;
            }
            if trimmed.starts_with("//") {
                invariant |= trimmed.contains("INVARIANT:");
                continue;
            }
            if invariant {
                // The comment covers the statement below it, to the line that ends it.
                invariant =
                    !(trimmed.ends_with(';') || trimmed.ends_with('}') || trimmed.ends_with(','));
                continue;
            }
            let code = line.split(" // ").next().unwrap_or(line);
            kept.push((index + 1, code));
        }
        kept
    }
}

/// The name in a line that begins a function, if it does.
fn function_name(line: &str) -> Option<String> {
    let mut rest = line.trim_start();
    if rest.starts_with("//") {
        return None;
    }
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
        "extern \"C\" ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name: String = rest
        .strip_prefix("fn ")?
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}
