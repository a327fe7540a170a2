//! Requests at once of a vLLM server whose model keeps states: each wants a block of the pool, or it does not
//! start.

use kvplan::{EngineKind, Plan, Setup};

use super::{Report, starts};
use crate::scenario::Scenario;
use crate::table::thousands;

/// Requests at once that vLLM is told where nobody said how many, and why.
#[derive(Debug, Clone)]
pub(crate) struct ToldForStates {
    /// As many as `--max-num-seqs` says.
    pub(crate) requests: u64,
    /// What it takes by itself, and the blocks that it would have.
    pub(crate) why: String,
}

/// What a log's server was told to run at once, where nobody else says so and it captured no graphs: no word
/// on a server that does.
fn without_graphs(scenario: &Scenario, setup: &Setup<'_>) -> Option<u64> {
    let told = scenario.max_running.or(scenario.running_for_loads);
    let open = told.is_none() && setup.gains_graphs();
    scenario.ran.told_running().filter(|_| open)
}

/// Tells a setup how many requests to run at once, where the engine's own default may be refused: no fewer
/// than the heaviest load shown, as far as the pool goes.
pub(super) fn tell(setup: &mut Setup<'_>, scenario: &Scenario) {
    let load = scenario.concurrency.last().copied().map_or(1, u64::from);
    if setup.engine.kind != EngineKind::Vllm {
        return;
    }
    let sure = |plan: Plan| {
        plan.state_blocks
            .is_none_or(|own| own.surely >= own.requests)
    };
    let mut untold = setup.clone();
    if without_graphs(scenario, setup).is_some() && !kvplan::plan(setup).is_ok_and(sure) {
        untold.max_running = None;
    }
    setup.max_running = kvplan::vllm_requests_told(&untold, load).or(setup.max_running);
}

/// What a setup was told so, in words.
pub(super) fn told(scenario: &Scenario, setup: &Setup<'_>) -> Option<ToldForStates> {
    let by_log = without_graphs(scenario, setup);
    let other = scenario.running().is_none() || by_log.is_some() && setup.max_running != by_log;
    let vllm = setup.engine.kind == EngineKind::Vllm && other;
    let requests = setup.max_running.filter(|_| vllm)?;
    let mut untold = setup.clone();
    untold.max_running = by_log;
    let own = kvplan::plan(&untold).ok()?.state_blocks?;
    let figure = |count: u64| thousands(count as f64);
    let band = match own.surely < own.blocks {
        true => format!(", {} at the low end of its band", figure(own.surely)),
        false => String::new(),
    };
    let takes = match by_log {
        Some(_) => "the log's server, without CUDA graphs, took",
        None => "by itself vLLM takes",
    };
    let why = format!(
        "{takes} {} at once{} starts only with a block of the pool for the states of each; there are {}{band}",
        figure(own.requests),
        if by_log.is_some() {
            "; with them vLLM"
        } else {
            " and"
        },
        figure(own.blocks),
    );
    Some(ToldForStates { requests, why })
}

/// The flag without which the server may be refused, and why; or that the number it was told may be.
pub(super) fn to_start(report: &Report) -> Option<String> {
    let told = report
        .for_states
        .as_ref()
        .filter(|_| starts(&report.cost.with));
    let words = |told: &ToldForStates| {
        let (requests, why) = (told.requests, &told.why);
        format!("start with --max-num-seqs {requests}: {why}")
    };
    told.map(words).or_else(|| unsure(report))
}

/// That the requests at once which somebody said may be more than the blocks that the pool gets.
pub(super) fn unsure(report: &Report) -> Option<String> {
    let plan = &report.cost.with;
    let states = plan.state_blocks.filter(|_| starts(plan))?;
    let figure = |count: u64| thousands(count as f64);
    (states.surely < states.requests).then(|| {
        format!(
            "{0} requests at once want {0} blocks of the pool for their states; there are {1}, {2} at the low end of \
             its band: should it be refused, --max-num-seqs {3}",
            figure(states.requests),
            figure(states.blocks),
            figure(states.surely),
            states.advised(),
        )
    })
}

/// The requests at once whose states want the least fraction, where no single request wants more.
pub(super) fn bind(plan: &Plan) -> Option<u64> {
    let states = plan.state_blocks?;
    let binds = states.fraction_min >= plan.interval.min;
    binds.then_some(states.requests)
}

/// What the least fraction holds then.
pub(crate) fn wall(requests: u64) -> String {
    let requests = thousands(requests as f64);
    format!("a block for the states of each of {requests} requests at once")
}
