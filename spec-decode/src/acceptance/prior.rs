//! What is known before anything is measured: level and slope by head kind, task, temperature
//! and context, from `catalog/acceptance.toml`.

use super::catalogue::{catalogue, head_entry, task_entry};
use super::chain::Chain;
pub use super::task::Task;
use crate::head::HeadKind;

/// Mean and standard deviation of a logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation between curves.
    pub sd: f64,
}

/// What decides the prior. `None` where unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorQuery {
    /// The head kind.
    pub head: HeadKind,
    /// The task.
    pub task: Option<Task>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Tokens of context while decoding.
    pub context_tokens: Option<f64>,
    /// Longest context that the head was trained on.
    pub trained_context_tokens: Option<f64>,
    /// Positions that the head was trained to draft from its own states ([`trained_steps`]).
    pub trained_steps: Option<u32>,
}

impl PriorQuery {
    /// Only the head kind is known.
    pub fn of(head: HeadKind) -> Self {
        Self {
            head,
            task: None,
            temperature: None,
            context_tokens: None,
            trained_context_tokens: None,
            trained_steps: None,
        }
    }
}

/// Level and slope before a measurement, with what was assumed.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptancePrior {
    /// Logit of the first position.
    pub level: Spread,
    /// Change of the logit per position.
    pub slope: Spread,
    /// Where the figures come from and what was assumed, one line each.
    pub sources: Vec<String>,
}

/// Positions that a model's own head was trained to draft, where the catalogue knows: one reused
/// past them has never seen its own states and falls fast.
pub fn trained_steps(head: HeadKind, model: &str) -> Option<u32> {
    let lower = model.to_ascii_lowercase();
    let has = |parts: &[String]| parts.iter().any(|part| lower.contains(part.as_str()));
    let entries = catalogue().trained.iter();
    entries
        .filter(|e| e.head == head.name())
        .find(|e| has(&e.models) && !has(&e.but_not))
        .map(|e| e.steps)
}

/// Slope of a head kind over all tasks: mean and spread between drafts.
pub fn slope_of_head(head: HeadKind) -> Spread {
    slope_of(&PriorQuery::of(head))
}

/// Slope of a head on a task: mean and spread between drafts.
pub fn slope_of(query: &PriorQuery) -> Spread {
    let (mean, sd) = head_entry(query.head, query.trained_steps)
        .map_or((-0.5, 0.2), |entry| (entry.slope, entry.slope_sd));
    let offset = query.task.and_then(task_entry);
    Spread {
        mean: mean + offset.map_or(0.0, |entry| entry.slope_offset),
        sd,
    }
}

/// Level offset of a task: mean, and what is open of it beside a pair's own level. Of an unknown one
/// the mean over chat, code, math, questions, summaries, and the spread between tasks. One that few
/// pairs measured is drawn to that mean: what one pair gains by a task another may not.
fn task_level(task: Option<Task>) -> Spread {
    let spread = &catalogue().spread;
    let common = [
        Task::Chat,
        Task::Code,
        Task::Math,
        Task::HardQa,
        Task::Summary,
    ];
    let of_task = |t: Task| task_entry(t).map_or(0.0, |e| e.level_offset);
    let usual = common.iter().map(|&t| of_task(t)).sum::<f64>() / common.len() as f64;
    let Some(entry) = task.and_then(task_entry) else {
        return Spread {
            mean: usual,
            sd: spread.task_unknown_sd,
        };
    };
    let Some(pairs) = entry.pairs else {
        return Spread {
            mean: entry.level_offset,
            sd: 0.0,
        };
    };
    let (between, within) = (spread.task_sd.powi(2), spread.task_pair_sd.powi(2) / pairs);
    let kept = between / (between + within);
    Spread {
        mean: usual + kept * (entry.level_offset - usual),
        sd: (kept * within).sqrt(),
    }
}

/// Trained lengths over which a head's gain falls to 1/e (the catalogue's `[context]`).
const DECAY_RATIO: f64 = 3.0;

/// Hotter than this is taken as this hot.
pub const HOTTEST: f64 = 2.0;

impl AcceptancePrior {
    /// The prior for what is known.
    pub fn new(query: &PriorQuery) -> Self {
        let catalogue = catalogue();
        let mut sources = Vec::new();
        let entry = head_entry(query.head, query.trained_steps);
        let head_level = entry.map_or(0.9, |entry| {
            sources.push(format!("head {}: {}", entry.kind, entry.source));
            entry.level
        });
        if entry.is_some_and(|entry| entry.trained_steps.is_some()) {
            let trained = catalogue.trained.iter();
            let known = trained.filter(|e| e.head == query.head.name());
            sources.extend(known.map(|e| format!("trained positions: {}", e.source)));
        }
        let task = task_level(query.task);
        sources.push(match query.task.and_then(task_entry) {
            Some(entry) => format!("task {}: {}", entry.name, entry.source),
            None => "task not known: between chat, code, math, questions and summaries".into(),
        });
        let temperature = query
            .temperature
            .filter(|t| t.is_finite())
            .unwrap_or(0.0)
            .clamp(0.0, HOTTEST);
        if temperature > 0.0 {
            sources.push(format!("temperature: {}", catalogue.temperature.source));
        }
        sources.push(format!("spread: {}", catalogue.spread.source));
        let slope = slope_of(query);
        let mut level = Spread {
            mean: head_level + task.mean + temperature * catalogue.temperature.level_per_unit,
            sd: catalogue.spread.level_sd.hypot(task.sd),
        };
        if let (Some(context), Some(trained)) = (query.context_tokens, query.trained_context_tokens)
            && context > trained
        {
            // The one head measured: 2.30, 1.40, 1.09 at 1, 5 and 8 times its trained length.
            // Others fall otherwise, so the spread grows as the gain goes.
            let kept = (-(context / trained.max(1.0) - 1.0) / DECAY_RATIO).exp();
            let within = Chain::new(level.mean, slope.mean).accept_length(3);
            let least = catalogue.context.accept_length_beyond.min(within);
            let length = least.max(1.0 + (within - 1.0) * kept);
            if let Ok(chain) = Chain::with_slope(length, 3, slope.mean) {
                let beyond_sd = (1.0 - kept) * catalogue.context.level_sd_beyond;
                level = Spread {
                    mean: chain.level,
                    sd: level.sd.hypot(beyond_sd),
                };
            }
            sources.push(format!(
                "context {context} is beyond the head's trained length {trained}: {}",
                catalogue.context.source
            ));
        }
        Self {
            level,
            slope,
            sources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_trained_for_one_position_falls_faster_when_it_is_reused() {
        let steps = |model| trained_steps(HeadKind::Mtp, model);
        assert_eq!(steps("DeepSeek-V4-Pro"), Some(1));
        assert_eq!(steps("deepseek-ai/DeepSeek-R1"), Some(1));
        assert_eq!(steps("DeepSeek-R1-Distill-Llama-8B"), None);
        assert_eq!(steps("GLM-5.2-FP8"), None);
        assert_eq!(trained_steps(HeadKind::Eagle3, "DeepSeek-V3"), None);
        let mut query = PriorQuery::of(HeadKind::Mtp);
        let usual = slope_of(&query).mean;
        query.trained_steps = Some(1);
        assert!(slope_of(&query).mean < 2.0 * usual);
        let sources = AcceptancePrior::new(&query).sources;
        assert!(
            sources.iter().any(|s| s.contains("DeepSeek")),
            "{sources:?}"
        );
    }

    #[test]
    fn a_task_that_one_pair_measured_is_known_no_better_than_none() {
        let level = |task: Option<Task>| {
            let mut query = PriorQuery::of(HeadKind::Mtp);
            query.task = task;
            AcceptancePrior::new(&query).level
        };
        let none = level(None);
        for (task, up) in [(Task::Tools, true), (Task::Writing, false)] {
            let known = level(Some(task));
            assert!(known.sd >= none.sd, "{task:?}: {known:?} {none:?}");
            assert_eq!(known.mean > none.mean, up, "{task:?}");
            // Nine in ten of the one lie largely within nine in ten of the other.
            assert!((known.mean - none.mean).abs() < 1.645 * none.sd, "{task:?}");
        }
        assert!(level(Some(Task::Code)).sd < none.sd);
    }

    #[test]
    fn one_token_past_the_trained_context_changes_next_to_nothing() {
        let level = |context: f64| {
            let mut query = PriorQuery::of(HeadKind::Eagle3);
            query.trained_context_tokens = Some(2048.0);
            query.context_tokens = Some(context);
            AcceptancePrior::new(&query).level.mean
        };
        assert!((0.0..0.01).contains(&(level(2048.0) - level(2049.0))));
    }

    #[test]
    fn a_head_far_beyond_its_trained_context_is_expected_to_accept_next_to_nothing() {
        let mut query = PriorQuery::of(HeadKind::Eagle3);
        query.context_tokens = Some(40_960.0);
        query.trained_context_tokens = Some(2048.0);
        let prior = AcceptancePrior::new(&query);
        let length = Chain::new(prior.level.mean, prior.slope.mean).accept_length(3);
        assert!((length - 1.1).abs() < 1e-6, "{length}");
        query.trained_context_tokens = Some(32_768.0);
        assert!(AcceptancePrior::new(&query).level.mean > 0.5);
    }
}
