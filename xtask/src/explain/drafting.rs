//! What other files say of drafting, where the log that the command goes on from does not.

use super::facts::Facts;
use super::scenario::{LogScenario, scenario_from_facts};

/// How much a file says of a server and its drafts; the least name of equals.
fn rank(facts: &Facts) -> impl Ord + use<> {
    let has = |name: &str| facts.get(name).is_some();
    let log = facts.kinds.iter().any(|kind| kind.ends_with("-log"));
    let started = has("tp") || has("model") || has("model_class") || has("kv_tokens");
    let accepts = has("accept_length");
    let measured = accepts && super::forced::words(facts).is_none();
    let drafts = super::findings::drafts(facts);
    let memory = super::servers::memory(facts);
    let file = std::cmp::Reverse(facts.file.clone());
    (log && started, measured, accepts, drafts, memory, file)
}

/// The log to go on from: of several that with an accept length, measured before forced, else one that
/// drafts; the plain one beside it is the baseline.
pub(super) fn leading(files: &[Facts]) -> Option<&Facts> {
    let servers = files.iter().filter(|facts| facts.text("engine").is_some());
    servers.max_by_key(|facts| rank(facts))
}

/// Fills the draft, its depth and its accept length from the other files, a run at a time; says what
/// is left out, and why. Accept lengths of the files that are `pooled` may differ.
pub(super) fn complete(
    said: &mut LogScenario,
    log: Option<&Facts>,
    files: &[Facts],
    pooled: &[&str],
) -> Vec<String> {
    let mut left_out = Vec::new();
    let mut others: Vec<&Facts> = files
        .iter()
        .filter(|facts| !log.is_some_and(|log| std::ptr::eq(log, *facts)))
        .collect();
    // Whatever the order they are given in.
    others.sort_by_key(|facts| std::cmp::Reverse(rank(facts)));
    for facts in others {
        let more = scenario_from_facts(facts);
        if drafts(&more) {
            let pooled = pooled.contains(&facts.file.as_str());
            let apart = || other_length(said, &more).filter(|_| !pooled);
            match contradiction(said, &more).or_else(apart) {
                Some(why) => left_out.push(format!("what {} says of drafting: {why}", facts.file)),
                None => take(said, more),
            }
        }
    }
    if crate::scenario::suffix::drafts(said) {
        (said.steps, said.accept_length, said.accept_rates) = (None, None, None);
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
    None
}

fn other_length(said: &LogScenario, more: &LogScenario) -> Option<String> {
    let (ours, theirs) = (said.accept_length?.0, more.accept_length?.0);
    ((ours - theirs).abs() > 0.005).then(|| {
        format!("accept length {theirs:.2} there, {ours:.2} elsewhere; the latter is taken")
    })
}

fn take(said: &mut LogScenario, more: LogScenario) {
    said.spec_algorithm = said.spec_algorithm.take().or(more.spec_algorithm);
    said.draft = said.draft.take().or(more.draft);
    said.steps = said.steps.or(more.steps);
    said.topk = said.topk.or(more.topk);
    said.draft_tokens = said.draft_tokens.or(more.draft_tokens);
    if said.accept_length.is_none() && more.accept_length.is_some() {
        said.accept_length = more.accept_length;
        said.accept_rates = more.accept_rates;
        said.accept_forced = more.accept_forced;
    }
}
