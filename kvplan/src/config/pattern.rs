//! Module-name patterns of quantisation blocks: plain names, globs, and the small part of regular
//! expressions that compressed-tensors configs use.

use std::collections::{HashMap, HashSet};

/// A pattern that names modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    /// A full name, a leading part of it, or one of its segments.
    Plain(String),
    /// `*` matches anything, over the whole name.
    Glob(String),
    /// `re:` of compressed-tensors; searched from the start of the name.
    Regex(Vec<Token>),
}

/// One element of the regular expressions understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// One character.
    Char(char),
    /// `.`
    Any,
    /// `.*`, `.+`, `[^…]*`, `\d+`: any run.
    Run,
    /// `(a|b|c)` of plain texts.
    OneOf(Vec<String>),
}

/// Prefixes that differ between a checkpoint's module tree and the canonical names used here.
const PREFIXES: [&str; 6] = [
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.model.",
    "model.",
];

/// A module name without the wrapper of a multimodal model: `layers.3.self_attn.q_proj`.
pub(super) fn bare(name: &str) -> &str {
    PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

/// Patterns that are asked about many modules: plain names are looked up, and what begins with
/// `layers.7.` is held against modules of that layer alone.
#[derive(Debug, Default)]
pub(super) struct PatternSet {
    plain: HashSet<String>,
    of_layer: HashMap<String, Vec<Pattern>>,
    anywhere: Vec<Pattern>,
}

impl PatternSet {
    pub(super) fn parse(texts: &[&str]) -> Self {
        let mut set = Self::default();
        for text in texts {
            match Pattern::parse(text) {
                Pattern::Plain(name) => {
                    set.plain.insert(name);
                }
                pattern => match pattern.layer() {
                    Some(layer) => set.of_layer.entry(layer).or_default().push(pattern),
                    None => set.anywhere.push(pattern),
                },
            }
        }
        set
    }

    /// Whether one of the patterns names `module`, given as [`bare`] names are.
    pub(super) fn matches(&self, module: &str) -> bool {
        self.names_plainly(module)
            || self.anywhere.iter().any(|pattern| pattern.matches(module))
            || layer_of(module)
                .and_then(|layer| self.of_layer.get(layer))
                .is_some_and(|patterns| patterns.iter().any(|p| p.matches(module)))
    }

    /// A full name, a leading part of it that ends at a dot, or one of its segments.
    fn names_plainly(&self, module: &str) -> bool {
        if self.plain.is_empty() {
            return false;
        }
        let leads = module.match_indices('.').map(|(dot, _)| &module[..dot]);
        leads
            .chain([module])
            .chain(module.split('.'))
            .any(|name| self.plain.contains(name))
    }
}

/// The number in `layers.7.…`, as text.
fn layer_of(name: &str) -> Option<&str> {
    let (number, _) = name.strip_prefix("layers.")?.split_once('.')?;
    let whole = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    whole.then_some(number)
}

impl Pattern {
    /// The layer whose modules alone can match, where the pattern begins with its full name.
    fn layer(&self) -> Option<String> {
        match self {
            Self::Plain(name) | Self::Glob(name) => layer_of(name).map(str::to_string),
            Self::Regex(tokens) => {
                let literal = tokens.iter().map_while(|token| match token {
                    Token::Char(c) => Some(*c),
                    _ => None,
                });
                let literal: String = literal.collect();
                layer_of(literal.strip_prefix("model.")?).map(str::to_string)
            }
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        if let Some(regex) = text.strip_prefix("re:") {
            Self::Regex(tokens(regex))
        } else if text.contains('*') {
            Self::Glob(bare(text).to_string())
        } else {
            Self::Plain(bare(text).to_string())
        }
    }

    /// Whether the pattern names `module`, given as [`bare`] names are.
    pub(super) fn matches(&self, module: &str) -> bool {
        match self {
            Self::Plain(name) => {
                let leads = module
                    .strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
                leads || (!name.contains('.') && module.split('.').any(|part| part == name))
            }
            Self::Glob(glob) => {
                let full: Vec<char> = glob.chars().collect();
                let text: Vec<char> = module.chars().collect();
                // `model.layers.*.self_attn` also covers what lies below it.
                glob_matches(&full, &text)
                    || (!glob.ends_with('*')
                        && glob_matches(&[&full[..], &['.', '*']].concat(), &text))
            }
            Self::Regex(tokens) => regex_matches(tokens, &format!("model.{module}")),
        }
    }
}

/// `*` matches any run, the rest matches itself; linear in memory, greedy with one backtrack point.
fn glob_matches(glob: &[char], text: &[char]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        if g < glob.len() && glob[g] == '*' {
            back = Some((g, t));
            g += 1;
        } else if g < glob.len() && glob[g] == text[t] {
            g += 1;
            t += 1;
        } else if let Some((star, from)) = back {
            g = star + 1;
            t = from + 1;
            back = Some((star, from + 1));
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

fn tokens(regex: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = regex.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '^' | '$' => {}
            '\\' => match chars.next() {
                Some('d' | 'w') => out.push(Token::Run),
                Some(literal) => out.push(Token::Char(literal)),
                None => {}
            },
            '.' => out.push(Token::Any),
            '*' | '+' | '?' => {
                out.pop();
                out.push(Token::Run);
            }
            '[' => {
                for inner in chars.by_ref() {
                    if inner == ']' {
                        break;
                    }
                }
                out.push(Token::Any);
            }
            '(' => {
                let inner: String = chars.by_ref().take_while(|c| *c != ')').collect();
                let plain = inner.trim_start_matches("?:").replace('\\', "");
                out.push(Token::OneOf(plain.split('|').map(str::to_string).collect()));
            }
            other => out.push(Token::Char(other)),
        }
    }
    out
}

/// Whether the tokens match from the start of `text`; what follows them does not matter.
fn regex_matches(tokens: &[Token], text: &str) -> bool {
    // Positions reached after each token: a set, so no input makes it exponential.
    let bytes: Vec<(usize, char)> = text.char_indices().collect();
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        match token {
            Token::Run => {
                let mut any = false;
                for (position, slot) in next.iter_mut().enumerate() {
                    any = any || reached[position];
                    *slot = any;
                }
            }
            Token::OneOf(choices) => {
                for (position, _) in reached.iter().enumerate().filter(|(_, on)| **on) {
                    for choice in choices {
                        if text
                            .get(position..)
                            .is_some_and(|rest| rest.starts_with(choice.as_str()))
                        {
                            next[position + choice.len()] = true;
                        }
                    }
                }
            }
            Token::Any | Token::Char(_) => {
                for (position, c) in &bytes {
                    let fits = match token {
                        Token::Char(wanted) => wanted == c,
                        _ => true,
                    };
                    if reached[*position] && fits {
                        next[position + c.len_utf8()] = true;
                    }
                }
            }
        }
        reached = next;
    }
    reached.iter().any(|on| *on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_real_configs_name_what_they_mean() {
        let shared = Pattern::parse("re:.*shared_experts.*");
        assert!(shared.matches("layers.3.mlp.shared_experts.gate_proj"));
        assert!(!shared.matches("layers.3.mlp.experts.0.gate_proj"));
        let dense = Pattern::parse(r"re:.*mlp\.(gate|up|gate_up|down)_proj.*");
        assert!(dense.matches("layers.0.mlp.gate_proj"));
        assert!(!dense.matches("layers.3.mlp.experts.0.gate_proj"));
        assert!(!dense.matches("layers.3.mlp.shared_experts.gate_proj"));
        let layer = Pattern::parse("model.layers.61*");
        assert!(layer.matches("layers.61.self_attn.q_a_proj"));
        assert!(!layer.matches("layers.6.self_attn.q_a_proj"));
        let any = Pattern::parse("model.layers.*.self_attn");
        assert!(any.matches("layers.7.self_attn.q_proj"));
        let gate = Pattern::parse("gate");
        assert!(gate.matches("layers.7.block_sparse_moe.gate"));
        assert!(!gate.matches("layers.7.mlp.gate_proj"));
    }
}
