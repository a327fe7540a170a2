//! Suffix decoding: copied from trees over prompts and earlier outputs, to a depth of its own at every step. It is
//! not modelled.

use super::Notes;
use super::merge::Given;
use crate::explain::LogScenario;
use crate::input;

/// Name of the input that says which draft of a log is not modelled.
pub(crate) const NOT_MODELLED: &str = "draft_not_modelled";

/// Whether an algorithm is that one (`method` of vLLM's speculative config).
pub(crate) fn is_suffix(algorithm: &str) -> bool {
    algorithm.trim().eq_ignore_ascii_case("suffix")
}

/// Whether a log's server drafts by it: the depth that it was told is the most at any step.
pub(crate) fn drafts(log: &LogScenario) -> bool {
    let named = log.spec_algorithm.as_ref();
    named.is_some_and(|(name, _)| is_suffix(name))
}

/// Refused where it is asked for; a log of it is answered without a draft.
pub(super) fn left_out(given: &Given<String>, notes: &mut Notes) -> anyhow::Result<()> {
    if given.source.starts_with("--") {
        return Err(input::error(format!(
            "{} {}: suffix decoding is not modelled (its depth is another at every step); --draft ngram is look-up \
             at a fixed depth, --draft none the plain server",
            given.source,
            given.value.trim()
        )));
    }
    let said = format!("{}: suffix decoding", given.source);
    notes.input("method", "none", given.source.clone());
    notes.input(NOT_MODELLED, said.clone(), given.source.clone());
    notes.assume(
        format!(
            "{said} is not modelled: the answer is of this server without a draft, and what was accepted is left \
             aside, by --draft ngram too, which answers for look-up at a fixed depth"
        ),
        "",
    );
    Ok(())
}
