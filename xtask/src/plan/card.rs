//! Whether what a log shows of memory can be of the server that is asked about: its card, its weights.

use kvplan::{Plan, Setup, SpeculationCost};

use crate::scenario::{EngineKind, OWN_POOL, Scenario};

/// Free before the weights, of the card: above it the card is another one, not the same with ECC off.
const MOST_FREE: f64 = 1.08;

/// Below it as well: seldom does another program hold so much beside a server.
const LEAST_FREE: f64 = 0.6;

/// What estimates have too much at most, of the card: beyond it no server ran with these lines.
const ESTIMATES_OFF: f64 = 0.1;

/// What a pool falls short of that of its own flags at most, of the card: pools are known to a few
/// hundredths, the profile run of a vision model takes a tenth more than is reckoned.
const POOL_SHORT: f64 = 0.15;

/// And at most so many GiB, which such a run takes on small cards too.
const POOL_SHORT_GIB: f64 = 6.0;

/// Cards of one name that differ by less are one: speeds of two editions.
const SAME_CARD: f64 = 0.02;

/// Weights that a server loaded, over those computed: formats lie a factor of 1.8 and more apart, the
/// worst of the servers met is 1.24 (docs/kvplan.md).
pub(crate) const WEIGHTS_OFF: f64 = 1.33;

/// And at least so far apart, GiB: below it tables and tilings decide.
const WEIGHTS_APART_GIB: f64 = 1.0;

/// Formats this close to the nearest, ln, are one: scales and an engine's own tables lie between them.
const SAME_FORMAT: f64 = 0.02;

/// Of formats from the usual ones on, each with how far its weights are off (ln): the first that is as near as
/// any.
pub(crate) fn usual_of_the_nearest<T>(formats: Vec<(T, f64)>) -> Option<T> {
    let nearest = formats.iter().map(|(_, off)| *off).fold(f64::MAX, f64::min);
    let mut formats = formats.into_iter();
    let usual = formats.find(|(_, off)| *off <= nearest + SAME_FORMAT);
    usual.map(|(format, _)| format)
}

/// What the server of a log had otherwise, and by which figures that shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Otherwise {
    /// Another card: nothing of its memory holds.
    Card(String),
    /// Other weights on the same card.
    Weights(String),
}

/// What the server of the scenario's log had otherwise than the one asked about; `None` where it may
/// have been this one.
pub(crate) fn not_of_this_server(scenario: &Scenario) -> Option<Otherwise> {
    if scenario.ran.file.is_empty() {
        return None;
    }
    named_otherwise(scenario)
        .map(Otherwise::Card)
        .or_else(|| of_other_memory(scenario))
}

/// The log names another card.
fn named_otherwise(scenario: &Scenario) -> Option<String> {
    let (said, at) = scenario.ran.card.as_ref()?;
    let (own, asked) = (crate::gpus::find(said).ok()?, scenario.gpu);
    let near = |a: f64, b: f64| (a - b).abs() <= SAME_CARD * b;
    let same =
        near(own.memory_gib, asked.memory_gib) && near(own.bandwidth_gb_s, asked.bandwidth_gb_s);
    (!same).then(|| format!("it ran on {said} ({at}), this answer is of {}", asked.name))
}

fn of_other_memory(scenario: &Scenario) -> Option<Otherwise> {
    let ran = &scenario.ran;
    let mut setup = super::setup(scenario, None).ok()?;
    // Who asked for it is not known yet.
    setup.kv_dtype = Some(scenario.kv_dtype);
    let card = setup.card_gib;
    let name = &scenario.gpu.name;
    let has = format!(
        "{} has {card:.1}",
        if name.is_empty() { "this one" } else { name }
    );
    if let Some(free) = ran.free_before_gib {
        // Of unified memory the system holds its share, and a line that says the total says what else
        // holds the card.
        let total = ran.too_little_free.map(|(_, total, _)| total);
        let own =
            total.is_some_and(|total| (total - scenario.gpu.memory_gib).abs() < SAME_CARD * total);
        let little = free < LEAST_FREE * card && !setup.unified_memory && !own;
        if free > MOST_FREE * card || little {
            let why = format!("{free:.1} GiB were free before the weights, {has}");
            return Some(Otherwise::Card(why));
        }
    }
    let plan = kvplan::plan(&setup).ok()?;
    if let Some(why) = other_weights(scenario, &plan) {
        return Some(Otherwise::Weights(why));
    }
    let over = plan.ledger.over_the_card_gib();
    if over > ESTIMATES_OFF * card {
        return Some(Otherwise::Card(format!(
            "its pool and the weights take {over:.1} GiB more than {name} has, {card:.1}"
        )));
    }
    let (seen, reckoned) = pools(scenario, setup)?;
    (reckoned - seen > POOL_SHORT_GIB.max(POOL_SHORT * card)).then(|| {
        Otherwise::Card(format!(
            "its pool is {seen:.1} GiB, its flags give one of {reckoned:.1} on {name}"
        ))
    })
}

/// Weights of one card that a log's engine prints, GiB; vLLM's hold a draft's.
fn seen_weights(scenario: &Scenario, plan: &Plan) -> Option<f64> {
    match scenario.engine.kind {
        EngineKind::Vllm => scenario.ran.weights_gib,
        EngineKind::Sglang => Some(plan.weights_gib),
        EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
    }
}

/// Weights of one card as computed, nearest to those of the log, and their share of these; `None` where
/// they cannot be the log's.
pub(crate) fn weights_as_loaded(scenario: &Scenario) -> Option<(f64, f64)> {
    let plan = kvplan::plan(&super::setup(scenario, None).ok()?).ok()?;
    let seen = seen_weights(scenario, &plan)?;
    if other_weights(scenario, &plan).is_some() {
        return None;
    }
    let target = plan.computed_weights_gib;
    let with_draft = match scenario.engine.kind {
        EngineKind::Vllm => target + plan.ledger.draft_loaded_gib(),
        _ => target,
    };
    let nearest = seen.clamp(target, with_draft);
    Some((nearest, nearest / seen))
}

/// Why the weights that the server loaded are not those asked about.
fn other_weights(scenario: &Scenario, plan: &Plan) -> Option<String> {
    let seen = seen_weights(scenario, plan)?;
    let target = plan.computed_weights_gib;
    let draft = plan.ledger.draft_loaded_gib();
    let other = seen * WEIGHTS_OFF < target || seen > (target + draft) * WEIGHTS_OFF;
    let computed = if seen < target {
        target
    } else {
        target + draft
    };
    (other && (seen - computed).abs() > WEIGHTS_APART_GIB).then(|| {
        format!(
            "it loaded {seen:.1} GiB on a card, {} as asked for takes {computed:.1}",
            scenario.model.name
        )
    })
}

/// The pool that the log shows and the one that its flags give on this card, GiB, where nothing else
/// says how much of the card was free.
fn pools(scenario: &Scenario, setup: Setup<'_>) -> Option<(f64, f64)> {
    let ran = &scenario.ran;
    let engine = scenario.engine.kind;
    let by_card = matches!(engine, EngineKind::Sglang | EngineKind::Vllm) && !setup.unified_memory;
    let words = || ran.carried.flags.iter().filter_map(|flag| flag.first());
    let told = words().any(|word| OWN_POOL.contains(&word.as_str()));
    if !by_card || told || ran.free_before_gib.is_some() {
        return None;
    }
    let mut bare = setup;
    bare.observed = kvplan::Observed::default();
    Some((ran.kv_gib?, kvplan::plan(&bare).ok()?.pool_gib))
}

/// Weights known from a config are within this of those loaded, as a share (docs/kvplan.md).
const WEIGHTS_KNOWN: f64 = 0.02;

/// What a vLLM log shows of pool and weights beyond the bands of what its own flags give: figures that
/// are kept, but not explained.
pub(super) fn beyond_its_flags(scenario: &Scenario, cost: &SpeculationCost) -> Vec<String> {
    let short = cost.with.ledger.unexplained_line().map(|line| {
        format!(
            "the log's pool is {:.1} GiB ({:.1} to {:.1}) smaller than the flags it shows give: something else took \
             memory while it started (`nvidia-smi` before a start), flags that it does not show, or images \
             that are profiled",
            line.gib, line.low, line.high
        )
    });
    short
        .into_iter()
        .chain(weights_off(scenario, cost))
        .collect()
}

/// Weights that the server loaded beyond what those computed may be off, and by more than that is known
/// to be off.
fn weights_off(scenario: &Scenario, cost: &SpeculationCost) -> Option<String> {
    let ran = &scenario.ran;
    let vllm = scenario.engine.kind == EngineKind::Vllm && !ran.file.is_empty();
    let seen = ran.weights_gib.filter(|_| vllm)?;
    let off = cost.with.ledger.weights_off_line()?.gib;
    let gib = seen - off;
    (off.abs() > WEIGHTS_KNOWN * gib).then(|| {
        format!(
            "the log's server loaded {seen:.2} GiB of weights, {gib:.2} are computed: another checkpoint, \
             adapters, or kernels that keep copies"
        )
    })
}
