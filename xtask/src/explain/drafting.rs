//! What other files say of drafting, where the log that the command goes on from does not.

use super::facts::Facts;
use super::scenario::{LogScenario, scenario_from_facts};

/// Fills the draft, its depth and its accept length from the other files, a run at a time; says what
/// is left out, and why.
pub(super) fn complete(
    said: &mut LogScenario,
    log: Option<&Facts>,
    files: &[Facts],
) -> Vec<String> {
    let mut left_out = Vec::new();
    let others = files
        .iter()
        .filter(|facts| !log.is_some_and(|log| std::ptr::eq(log, *facts)));
    for facts in others {
        let more = scenario_from_facts(facts);
        if drafts(&more) {
            match contradiction(said, &more) {
                Some(why) => left_out.push(format!("what {} says of drafting: {why}", facts.file)),
                None => take(said, more),
            }
        }
    }
    left_out
}

fn drafts(said: &LogScenario) -> bool {
    said.accept_length.is_some()
        || said.steps.is_some()
        || said.draft.is_some()
        || said.spec_algorithm.is_some()
}

/// Why two files cannot be of one run.
fn contradiction(said: &LogScenario, more: &LogScenario) -> Option<String> {
    let last = |path: &str| {
        path.trim_end_matches('/')
            .rsplit('/')
            .next()
            .map(str::to_lowercase)
    };
    if let (Some((ours, _)), Some((theirs, _))) = (&said.model, &more.model)
        && last(ours) != last(theirs)
    {
        return Some(format!("it serves {theirs}, {} serves {ours}", said.file));
    }
    if let (Some((ours, _)), Some((theirs, _))) = (said.steps, more.steps)
        && ours != theirs
    {
        return Some(format!("{theirs} draft steps there, {ours} elsewhere"));
    }
    let (ours, theirs) = (said.accept_length?.0, more.accept_length?.0);
    ((ours - theirs).abs() > 0.005).then(|| {
        format!("accept length {theirs:.2} there, {ours:.2} elsewhere; the first is taken")
    })
}

fn take(said: &mut LogScenario, more: LogScenario) {
    said.spec_algorithm = said.spec_algorithm.take().or(more.spec_algorithm);
    said.draft = said.draft.take().or(more.draft);
    said.steps = said.steps.or(more.steps);
    said.topk = said.topk.or(more.topk);
    said.draft_tokens = said.draft_tokens.or(more.draft_tokens);
    said.accept_length = said.accept_length.or(more.accept_length);
}
