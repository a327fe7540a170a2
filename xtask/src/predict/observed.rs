//! What was observed, beside what is computed for it.

pub(super) mod by_log;
pub(super) mod by_sweep;

use super::answer::{Memory, Observed};
use super::costs::{Costs, all_reduces};
use super::links::{Choice, Links};
use super::points::{best, try_depths};
use crate::scenario::Scenario;
use crate::scenario::file::{Figure, PublicKind};

/// One row a figure of the scenario file.
pub(super) fn rows(
    scenario: &Scenario,
    links: &Links<'_>,
    memory: &Memory,
) -> anyhow::Result<Vec<Observed>> {
    let seen = &scenario.observed;
    let mut rows = Vec::new();
    if let Some(figure) = &seen.weights_gib {
        // The ledger's own lines, without the one that closes the gap to what was observed.
        let computed = memory
            .ledger
            .iter()
            .filter(|l| l.item.starts_with("weights") && !l.item.contains("observed"))
            .map(|l| l.gib)
            .sum::<f64>();
        rows.push(row("weights of one GPU", figure, Some(computed), "GiB", ""));
    }
    let own = scenario.has_own_steps();
    if let Some(figure) = &seen.verify_ms {
        let tokens = figure.tokens.unwrap_or(1);
        let with = figure.allreduce.as_deref().unwrap_or("nccl");
        let all_reduce = all_reduces(scenario, links, Choice::parse(with)?);
        let costs = Costs::new(scenario, &all_reduce, links)?;
        rows.push(row(
            &format!("verify of {tokens} tokens, {with}"),
            figure,
            Some(costs.unpinned_verify_ms(1, tokens, scenario.observed_context)),
            "ms",
            match own {
                true if scenario.served.is_some() => "not used beside the steps of a stand-in",
                true => "the observed figure is used; what your plain steps make it stands beside",
                false => "the observed figure is used; the model's own stands beside",
            },
        ));
    }
    if let Some(figure) = &seen.spec_tok_s {
        let with = figure.allreduce.as_deref().unwrap_or("nccl");
        rows.push(row(
            &format!("speculative, one user, {with} forced"),
            figure,
            spec_tok_s(scenario, links, with, true)?,
            "tok/s",
            match own {
                true => "from your plain steps, the observed verify and the difference of the two all-reduces",
                false => "from the observed verify and the difference of the two all-reduces",
            },
        ));
    }
    rows.extend(from_scratch(scenario, links)?);
    rows.extend(by_log::rows(scenario, links)?);
    rows.extend(by_sweep::rows(scenario, links)?);
    Ok(rows)
}

fn row(
    what: &str,
    figure: &Figure,
    computed: Option<f64>,
    unit: &'static str,
    note: &str,
) -> Observed {
    Observed {
        what: what.to_string(),
        observed: figure.value,
        computed,
        computed_low: None,
        computed_high: None,
        unit,
        source: figure.source.clone(),
        note: note.to_string(),
    }
}

/// Public figures for the class of box, beside the answer without the pinned verify.
fn from_scratch(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Vec<Observed>> {
    // With steps of one's own nothing is computed from scratch.
    let public = scenario.observed.public.as_ref();
    let Some(public) = public.filter(|_| !scenario.has_own_steps()) else {
        return Ok(Vec::new());
    };
    let all_reduce = all_reduces(scenario, links, Choice::parse(&scenario.allreduce)?);
    let costs = Costs::new(scenario, &all_reduce, links)?;
    let mut rows = Vec::new();
    for figure in public {
        let (what, computed) = match figure.what {
            PublicKind::PlainTokS => (
                "plain, one user, public figure",
                Some(1000.0 / costs.cycle(1, scenario.context, 1, 2).plain_ms),
            ),
            PublicKind::SpecTokS => (
                "speculative, one user, public figure",
                spec_tok_s(scenario, links, &scenario.allreduce, false)?,
            ),
        };
        rows.push(Observed {
            what: what.to_string(),
            observed: figure.value,
            computed,
            computed_low: None,
            computed_high: None,
            unit: "tok/s",
            source: figure.source.clone(),
            note: "computed from scratch, without the observed verify".to_string(),
        });
    }
    Ok(rows)
}

fn spec_tok_s(
    scenario: &Scenario,
    links: &Links<'_>,
    with: &str,
    pinned: bool,
) -> anyhow::Result<Option<f64>> {
    let all_reduce = all_reduces(scenario, links, Choice::parse(with)?);
    let mut costs = Costs::new(scenario, &all_reduce, links)?;
    if pinned {
        costs.pin = super::pin(scenario, links)?;
    }
    let tried = try_depths(scenario, &costs, 1, scenario.context);
    Ok(best(&tried).map(|b| 1000.0 / b.cost.plain_ms * b.speedup))
}
