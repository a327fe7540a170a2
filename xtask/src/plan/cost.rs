//! What a draft costs in memory: one figure and one sentence, the same in `plan` and `predict`.

use kvplan::{CostBasis, CostRow, Plan};

use super::instead::Instead;
use super::memory::as_said;
use super::{Report, choice, starts};
use crate::cli::PlanArgs;
use crate::scenario::{EngineKind, Scenario};
use crate::table::thousands;

/// Fractions are printed with three decimals.
pub(super) const SAME: f64 = 0.0006;

/// Pools are of whole blocks: tokens lost may come to so much less than what the lines of a draft do.
const WHOLE_BLOCKS_GIB: f64 = 0.03;

/// Who a fraction is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The engine, of itself.
    Engine,
    /// This tool, where the engine's own or a log's does not do.
    Advice,
    /// A flag, or a log.
    Told,
}

impl By {
    fn words(self, engine: EngineKind) -> String {
        match self {
            Self::Engine => format!(" ({}'s own)", engine.title()),
            Self::Advice => " (advised)".to_string(),
            Self::Told => String::new(),
        }
    }
}

/// A pool and its fraction.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) tokens: u64,
    pub(super) fraction: f64,
    pub(super) by: By,
}

impl At {
    pub(super) fn of(plan: &Plan, by: By) -> Self {
        Self {
            tokens: plan.kv_tokens,
            fraction: plan.fraction,
            by,
        }
    }

    pub(super) fn same(self, other: Self) -> bool {
        (self.fraction - other.fraction).abs() <= SAME
    }
}

/// What a draft costs: a pool with it, one without, each at the fraction that it would have.
#[derive(Debug, Clone)]
pub(crate) struct DraftCost {
    pub(super) with: At,
    pub(super) without: At,
    engine: EngineKind,
    pub(super) gib_per_token: f64,
    /// Length of the requests that a hybrid's tokens are counted in.
    in_requests_of: Option<u64>,
    /// Draft steps, where states of drafted tokens make it a matter of them.
    steps: Option<u32>,
    /// By the pools of two logs.
    by_logs: Option<Beside>,
    /// Whether the fractions go without saying: llama.cpp has none, and logs need not print theirs.
    pub(super) unsaid: bool,
    /// A fraction that is clear of the wall with the draft, in the engine's words, and the tokens it holds more.
    pub(super) back: Option<(String, u64)>,
    /// Tokens without the draft at the fraction with it, where the two are of different fractions.
    without_at_one: Option<u64>,
    /// With and without, where SGLang chooses the fraction and a plain server's is kept.
    otherwise: Option<[At; 2]>,
    /// What the server takes more with the draft than without, by row of the ledger.
    rows: Vec<CostRow>,
    /// Requests at once that the engine allows, with and without.
    at_once: [u64; 2],
    /// Whether the target's graphs count in the fraction beside this draft alone: vLLM's two runners differ.
    graphs_inside: bool,
}

/// What two logs tell of the memory beside their pools.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    /// GiB of the graphs with the draft and without, which is all that lies there (vLLM).
    Graphs([f64; 2]),
    /// Not enough.
    Unknown,
}

impl Beside {
    fn of(scenario: &Scenario, with: &Plan) -> Self {
        let plain = scenario.ran.plain_pool.as_ref();
        let plain = plain.and_then(|pool| pool.graph_gib);
        let printed = scenario.ran.graph_gib.zip(plain);
        let rows = [
            "target: graphs",
            "draft: graphs",
            "graphs of target and draft",
        ];
        let own = rows.map(|row| with.ledger.gib_of(row)).iter().sum();
        match printed.filter(|_| scenario.engine.kind == EngineKind::Vllm) {
            Some((_, plain)) => Self::Graphs([own, plain]),
            None => Self::Unknown,
        }
    }
}

impl DraftCost {
    /// Tokens with the draft and without.
    pub(crate) fn tokens(&self) -> [u64; 2] {
        [self.with.tokens, self.without.tokens]
    }

    /// Fractions with the draft and without.
    pub(crate) fn fractions(&self) -> [f64; 2] {
        [self.with.fraction, self.without.fraction]
    }

    pub(crate) fn lost(&self) -> u64 {
        self.without.tokens.saturating_sub(self.with.tokens)
    }

    /// GiB of the tokens lost.
    pub(crate) fn pool_gib(&self) -> f64 {
        self.lost() as f64 * self.gib_per_token
    }

    /// What it takes of what the pool leaves, GiB: graphs, the target's wider ones too, and in older versions of
    /// SGLang the draft itself; negative where more stays free. None of a hybrid in vLLM, all of which is
    /// the pool's (its rows are of the requests at hand, its tokens of the longest: the two do not add up).
    pub(crate) fn beside_pool_gib(&self) -> f64 {
        if self.in_requests_of.is_some() {
            return 0.0;
        }
        let gib = match self.by_logs {
            Some(Beside::Graphs([with, without])) => with - without,
            Some(Beside::Unknown) => 0.0,
            // Rows of one ledger do not add up to the difference of two printed pools.
            None => self.rows.iter().map(|row| row.gib).sum::<f64>() - self.pool_gib(),
        };
        match gib.abs() < WHOLE_BLOCKS_GIB {
            true => 0.0,
            false => gib,
        }
    }

    /// Whether the pools are of two fractions.
    pub(super) fn by_fraction(&self) -> bool {
        !self.with.same(self.without)
    }

    /// What it costs, at which fractions, what gives it back, and what lies beside the pool.
    pub(crate) fn words(&self) -> String {
        let counted = self.in_requests_of.map_or_else(String::new, |of| {
            format!(" in requests of {}", thousands(of as f64))
        });
        let takes = match self.lost() {
            0 => "no KV tokens".to_string(),
            lost => format!(
                "{} of {} KV tokens{counted} ({:.2} GiB)",
                thousands(lost as f64),
                thousands(self.without.tokens as f64),
                self.pool_gib()
            ),
        };
        let basis = match self.by_logs.is_some() {
            true => " by the pools of the two logs",
            false => "",
        };
        let steps = self.steps.map_or_else(String::new, |steps| {
            format!(
                ", with {steps} draft step{}",
                if steps == 1 { "" } else { "s" }
            )
        });
        format!(
            "costs {takes}{basis}{}{}{steps}{}{}{}",
            self.at(),
            self.at_one(),
            self.given_back(),
            self.where_chosen(),
            self.beside()
        )
    }

    fn at(&self) -> String {
        let (with, without) = (self.with, self.without);
        let by = |at: At| at.by.words(self.engine);
        match (with.by, without.by) {
            _ if self.unsaid => String::new(),
            _ if !self.by_fraction() => {
                format!(", at {:.3} with and without it{}", with.fraction, by(with))
            }
            (By::Engine, By::Engine) => format!(
                ": {} chooses {:.3} with it, {:.3} without",
                self.engine.title(),
                with.fraction,
                without.fraction
            ),
            _ => format!(
                ": {:.3} with it{}, {:.3} without{}",
                with.fraction,
                by(with),
                without.fraction,
                by(without)
            ),
        }
    }

    /// What it costs where both run at the fraction that the draft needs: a higher one than the engine's own
    /// hides it, a lower one adds to it.
    fn at_one(&self) -> String {
        let without = self.without_at_one.filter(|_| self.by_fraction());
        without.map_or_else(String::new, |without| {
            format!(
                "; {} of {} where both run at {:.3}",
                thousands(without.saturating_sub(self.with.tokens) as f64),
                thousands(without as f64),
                self.with.fraction
            )
        })
    }

    fn given_back(&self) -> String {
        let back = self.back.as_ref();
        back.map_or_else(String::new, |(setting, tokens)| {
            match *tokens >= self.lost() {
                true => format!("; {setting} gives them back"),
                false => format!("; {setting} gives {} back", thousands(*tokens as f64)),
            }
        })
    }

    fn where_chosen(&self) -> String {
        self.otherwise.map_or_else(String::new, |[with, without]| {
            format!(
                "; {} of {} where SGLang chooses it ({:.3} with, {:.3} without)",
                thousands(without.tokens.saturating_sub(with.tokens) as f64),
                thousands(without.tokens as f64),
                with.fraction,
                without.fraction,
            )
        })
    }

    /// What lies beside the pool, with the rows that the two add up to.
    fn beside(&self) -> String {
        let gib = self.beside_pool_gib();
        if gib == 0.0 {
            return String::new();
        }
        let all = gib + self.pool_gib();
        let in_all = match (self.lost() > 0, gib < 0.0, all < 0.0) {
            (false, _, _) => String::new(),
            (true, false, _) => format!(", in all {all:.2}"),
            (true, true, true) => format!(", in all {:.2} more", -all),
            (true, true, false) => format!(", in all it takes {all:.2}"),
        };
        let beside = match (self.lost() > 0, gib < 0.0) {
            (_, true) => format!("{:.2} GiB more stay free with it", -gib),
            (true, false) => format!("{gib:.2} GiB more"),
            (false, false) => format!("{gib:.2} GiB"),
        };
        let rows = [self.by_row(), self.moved_inside()];
        let rows: Vec<String> = rows.into_iter().filter(|row| !row.is_empty()).collect();
        format!("; beside the pool {beside}{in_all}: {}", rows.join("; "))
    }

    /// The rows, those of the draft alone first.
    fn by_row(&self) -> String {
        if let Some(Beside::Graphs([with, without])) = self.by_logs {
            return format!("graphs of {with:.2} with it, {without:.2} without, as printed");
        }
        let name = |item: &str| {
            let item = item.split_once(": ").map_or(item, |(_, of)| of);
            item.trim_start_matches("its own ").to_string()
        };
        let told = self.rows.iter().filter(|row| row.gib.abs() >= 0.005);
        let (own, others): (Vec<&CostRow>, Vec<&CostRow>) = told.partition(|row| row.of_draft);
        let own = own
            .iter()
            .map(|row| format!("{} {:.2}", name(&row.item), row.gib));
        let own: Vec<String> = own.collect();
        let others = others.iter().map(|row| {
            let item = match row.item.split_once("target: ") {
                Some((_, of)) => format!("the target's {of}"),
                None => row.item.clone(),
            };
            let more = if row.gib < 0.0 { "less" } else { "more" };
            format!("{item} {:.2} {more}", row.gib.abs())
        });
        let own = Some(format!("the draft's {}", own.join(", "))).filter(|_| !own.is_empty());
        let all: Vec<String> = own.into_iter().chain(others).collect();
        format!("{}{}", all.join(", "), self.runs())
    }

    /// Why as much lies in the pool as stays free beside it, or less.
    fn moved_inside(&self) -> String {
        match self.graphs_inside {
            true => "with this draft vLLM's first runner counts the target's graphs inside the fraction, without it \
                     the second counts them outside"
                .to_string(),
            false => String::new(),
        }
    }

    /// Requests at once of the two servers, where these differ and with them tables and graphs.
    fn runs(&self) -> String {
        let [with, without] = self.at_once.map(|most| thousands(most as f64));
        let plural = if self.at_once[0] == 1 { "" } else { "s" };
        let others = |row: &CostRow| !row.of_draft && row.gib.abs() >= 0.005;
        match with != without && self.rows.iter().any(others) {
            true => format!(" ({with} request{plural} at once with it, {without} without)"),
            false => String::new(),
        }
    }
}

/// Whether graphs are captured after the pool, outside the fraction.
fn graphs_outside(plan: &Plan) -> bool {
    let mut lines = plan.ledger.lines.iter();
    lines.any(|line| {
        line.item.ends_with("graphs") && line.source.contains("outside the utilisation")
    })
}

/// Whether states of drafted tokens take memory.
fn keeps_states(plan: &Plan) -> bool {
    let mut lines = plan.ledger.lines.iter();
    lines.any(|line| line.speculation && line.item.contains("states of drafted tokens"))
}

/// What the draft of a plan costs; `None` without one, or where it does not start. `instead` is the
/// plan at the fraction to set, where the engine's own or a log's does not do.
///
/// # Errors
/// As the plan.
pub(super) fn of(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    instead: Option<&Instead>,
) -> anyhow::Result<Option<DraftCost>> {
    let shown = instead.map_or(own, |instead| &instead.report);
    let (with, without) = (&shown.cost.with, &shown.cost.without);
    if !shown.speculates || !starts(with) || without.kv_tokens == 0 {
        return Ok(None);
    }
    let by = match instead {
        Some(_) => By::Advice,
        None if own.told => By::Told,
        None => By::Engine,
    };
    let mut found = DraftCost {
        with: At::of(with, by),
        without: At::of(without, by),
        engine: scenario.engine.kind,
        gib_per_token: without.pool_gib / without.kv_tokens as f64,
        in_requests_of: with.tokens_in_requests_of,
        steps: keeps_states(with).then(|| scenario.steps_for_memory()),
        by_logs: None,
        unsaid: scenario.engine.kind == EngineKind::LlamaCpp,
        back: None,
        without_at_one: None,
        otherwise: None,
        rows: with.ledger.more_than(&without.ledger),
        at_once: [with, without].map(|plan| plan.max_running),
        graphs_inside: graphs_outside(without) && !graphs_outside(with),
    };
    for at in [&mut found.with, &mut found.without] {
        at.fraction = as_said(at.fraction, scenario);
    }
    if let Some(instead) = instead {
        if let Some((at, gib_per_token)) = instead.without {
            found.without = at;
            found.gib_per_token = gib_per_token;
            found.without_at_one = Some(without.kv_tokens);
        }
        return Ok(Some(found));
    }
    let chosen = choice::of(own, scenario, args, &found)?;
    if own.cost.basis == CostBasis::SeenBoth {
        choice::by_both_logs(own, scenario, args, &mut found, chosen)?;
        found.by_logs = Some(Beside::of(scenario, with));
    } else if let Some((chosen, back)) = chosen {
        match (chosen[0].fraction - found.with.fraction).abs() < 0.001 {
            true => {
                [found.with, found.without] = chosen;
                found.back = back;
            }
            false => found.otherwise = Some(chosen),
        }
    }
    Ok(Some(found))
}
