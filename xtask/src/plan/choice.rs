//! What a draft costs by the fraction. SGLang chooses a smaller one beside a draft, and its log prints the
//! one that it chose as if somebody had set it: the log's fraction on both sides would hide what the draft
//! takes.

use kvplan::EngineKind;

use super::wall::typed;
use super::{Report, fraction_flag, report, starts};
use crate::scenario::Scenario;
use crate::table::thousands;

/// Fractions are printed with three decimals.
const SAME: f64 = 0.0006;

/// What a draft costs where the fraction with it is another than without; pairs are with it, without.
#[derive(Debug, Clone)]
pub(crate) struct CostByFraction {
    pub(crate) fractions: [f64; 2],
    pub(crate) tokens: [u64; 2],
    gib_per_token: f64,
    /// SGLang chooses both.
    chosen: bool,
    /// By the pools of two logs.
    by_logs: bool,
    /// A fraction that is clear of the wall with the draft, in the engine's words, and the tokens it holds more.
    back: Option<(String, u64)>,
}

impl CostByFraction {
    pub(crate) fn lost(&self) -> u64 {
        self.tokens[1].saturating_sub(self.tokens[0])
    }

    /// What it costs and what gives it back.
    pub(crate) fn words(&self) -> String {
        let ([with, without], lost) = (self.fractions, self.lost());
        let basis = match self.by_logs {
            true => " by the pools of the two logs",
            false => "",
        };
        let chosen = match self.chosen {
            true => "SGLang chooses ",
            false => "",
        };
        let back = self.back.as_ref();
        let back = back.map_or_else(String::new, |(setting, tokens)| match *tokens >= lost {
            true => format!("; {setting} gives them back"),
            false => format!("; {setting} gives {} back", thousands(*tokens as f64)),
        });
        format!(
            "costs {} of {} KV tokens ({:.2} GiB){basis}: {chosen}{with:.3} with it, {without:.3} without{back}",
            thousands(lost as f64),
            thousands(self.tokens[1] as f64),
            lost as f64 * self.gib_per_token,
        )
    }
}

/// The pools at the fractions that SGLang chooses with the draft and without, where the fraction of
/// the log is the one it chooses for that server, or there is none, and the other differs.
///
/// # Errors
/// As the plan.
pub(super) fn cost(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<CostByFraction>> {
    let cost = &own.cost;
    let sglang = own.engine.kind == EngineKind::Sglang;
    let logged = scenario.by_log("mem_fraction");
    let free = scenario.mem_fraction.is_none() && own.ran.is_none();
    let free = free && scenario.observed.kv_gib.is_none();
    if !sglang || scenario.draft.is_none() || !(logged || free) {
        return Ok(None);
    }
    let drafted = free || scenario.ran.speculates;
    let (ran, other) = if drafted {
        (&cost.with, &cost.without)
    } else {
        (&cost.without, &cost.with)
    };
    let Some((chosen, others)) = ran.automatic_fraction.zip(other.automatic_fraction) else {
        return Ok(None);
    };
    if (chosen - ran.fraction).abs() > SAME || (chosen - others).abs() <= SAME {
        return Ok(None);
    }
    let at = |fraction: f64| -> anyhow::Result<_> {
        let cost = moved(scenario, fraction)?.cost;
        Ok(if drafted { cost.without } else { cost.with })
    };
    // By the difference of the two fractions: a log's figures are rounded, its pool is not planned.
    let others = match free {
        true => (other.fraction, other.kv_tokens),
        false => {
            let (then, now) = (at(others)?, at(ran.fraction)?.kv_tokens);
            let by = then.kv_tokens as i64 - now as i64;
            (then.fraction, other.kv_tokens.saturating_add_signed(by))
        }
    };
    let ran = (ran.fraction, ran.kv_tokens);
    let (with, without) = if drafted {
        (ran, others)
    } else {
        (others, ran)
    };
    let mut found = CostByFraction {
        fractions: [with.0, without.0],
        tokens: [with.1, without.1],
        gib_per_token: gib_per_token(own),
        chosen: true,
        by_logs: false,
        back: None,
    };
    if drafted {
        found.back = back(own, scenario, &found)?;
    }
    Ok(Some(found))
}

/// What the draft of a log costs where SGLang chose another fraction beside it; above both have one.
pub(super) fn of_log(report: &Report, scenario: &Scenario) -> Option<String> {
    let drafted = scenario.ran.speculates && scenario.by_log("mem_fraction");
    let cost = cost(report, scenario).ok().flatten();
    let cost = cost.filter(|_| drafted && starts(&report.cost.with))?;
    Some(format!("the fraction included, the draft {}", cost.words()))
}

/// The same by the pools of two logs, a drafting server's and a plain one's.
///
/// # Errors
/// As the plan.
pub(super) fn of_both_logs(
    own: &Report,
    scenario: &Scenario,
    by_choice: Option<&CostByFraction>,
) -> anyhow::Result<Option<CostByFraction>> {
    let (Some(plain), Some(tokens)) = (&scenario.ran.plain_pool, scenario.ran.kv_tokens) else {
        return Ok(None);
    };
    let (Some(with), Some(without)) = (scenario.ran.fraction, plain.fraction) else {
        return Ok(None);
    };
    if (with - without).abs() <= SAME || tokens >= plain.tokens {
        return Ok(None);
    }
    let close = |choice: &CostByFraction| {
        let [a, b] = choice.fractions;
        (a - with).abs() <= SAME && (b - without).abs() <= SAME
    };
    let mut found = CostByFraction {
        fractions: [with, without],
        tokens: [tokens, plain.tokens],
        gib_per_token: gib_per_token(own),
        chosen: by_choice.is_some_and(close),
        by_logs: true,
        back: None,
    };
    found.back = back(own, scenario, &found)?;
    Ok(Some(found))
}

fn gib_per_token(own: &Report) -> f64 {
    own.cost.without.kv_bytes_per_token / f64::from(1 << 30)
}

/// The scenario at another fraction than its log's.
fn moved(scenario: &Scenario, fraction: f64) -> anyhow::Result<Report> {
    let mut moved = scenario.clone();
    moved.ran = scenario.ran.clone().at_other_fraction(false);
    moved.mem_fraction = Some(fraction);
    report(&moved, None, None)
}

/// The plain server's fraction, where it is clear of the wall with the draft and holds more.
fn back(
    own: &Report,
    scenario: &Scenario,
    cost: &CostByFraction,
) -> anyhow::Result<Option<(String, u64)>> {
    let [with, without] = cost.fractions;
    let clear = |plan: &kvplan::Plan| plan.fraction <= typed(plan.interval.max_low) + SAME;
    if without <= with + SAME {
        return Ok(None);
    }
    let there = moved(scenario, without)?.cost.with;
    if !starts(&there) || !clear(&there) {
        return Ok(None);
    }
    let now = moved(scenario, with)?.cost.with.kv_tokens;
    let gained = there.kv_tokens.saturating_sub(now);
    let lost = cost.lost();
    // A log's free memory is rounded to 0.01 GiB.
    let rounding = (0.02 / cost.gib_per_token.max(f64::MIN_POSITIVE)) as u64;
    let gained = match gained + rounding >= lost {
        true => lost,
        false => gained,
    };
    let setting = format!("{} {without:.3}", fraction_flag(own));
    Ok((gained > 0).then_some((setting, gained)))
}
