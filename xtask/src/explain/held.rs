//! What the requests of a log held, as a context.

use super::facts::Facts;
use super::scenario::whole;

/// Tokens that a request held.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) tokens: u32,
    pub(crate) line: usize,
    /// How they were read, and what they do not count.
    pub(crate) by: String,
}

/// What requests held.
pub(super) fn held(facts: &Facts) -> Option<Held> {
    let (tokens, line) = whole(facts, "held_tokens_per_request").filter(|(n, _)| *n > 0)?;
    let by = held_by(facts);
    Some(Held { tokens, line, by })
}

/// How the tokens that a request held were read. The engines count a prefix that requests share once.
fn held_by(facts: &Facts) -> String {
    let how = facts
        .get("held_tokens_per_request")
        .and_then(|fact| fact.how.as_deref());
    let of_windows = how.and_then(|how| Some(how.split_once("the middle of ")?.1));
    let lines = of_windows.unwrap_or("its lines");
    let hits = facts
        .number("prefix_hit_percent")
        .map_or_else(String::new, |percent| {
            format!(
                "; shared prefixes count once, and {percent} % of the prompts' tokens were cached: a request's \
                 own context may be longer"
            )
        });
    format!("the middle of {lines}{hits}")
}
