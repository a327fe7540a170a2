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

    /// Whether the head may have been trained on text that is shorter than the context: an EAGLE head of
    /// which nothing says how long it was, beyond what recipes usually train on.
    pub fn may_be_trained_short(&self) -> bool {
        let eagle = matches!(self.head, HeadKind::Eagle | HeadKind::Eagle3);
        eagle && self.trained_context_tokens.is_none() && self.past_recipes() > 0.0
    }

    /// How far the context lies beyond what recipes usually train on, in the least that they do.
    fn past_recipes(&self) -> f64 {
        let context = &catalogue().context;
        let past = self.context_tokens.unwrap_or(0.0) - context.recipe_usual;
        past.max(0.0) / context.recipe_least
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
/// past them has never seen its own states and falls fast. `model` is the name of a model, or of the
/// architecture in its config where its name says nothing.
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
            level = fallen(level, slope, context / trained.max(1.0) - 1.0);
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

    /// The prior of a head that was trained on short text, where this one may have been. Its fall counts
    /// from the usual length on: what the head measured lost before (2.04 of 2.30 at 4k) is well within
    /// the spread between heads.
    pub fn of_short_training(query: &PriorQuery) -> Option<Self> {
        query.may_be_trained_short().then(|| {
            let prior = Self::new(query);
            Self {
                level: fallen(prior.level, prior.slope, query.past_recipes()),
                ..prior
            }
        })
    }
}

/// The level of a head used that many of its trained lengths beyond the text it was trained on. The one
/// head measured: 2.30, 1.40, 1.09 at 1, 5 and 8 times its trained length. Others fall otherwise, so the
/// spread grows as the gain goes.
fn fallen(level: Spread, slope: Spread, lengths_beyond: f64) -> Spread {
    let entry = &catalogue().context;
    let kept = (-lengths_beyond / DECAY_RATIO).exp();
    let within = Chain::new(level.mean, slope.mean).accept_length(3);
    let least = entry.accept_length_beyond.min(within);
    let length = least.max(1.0 + (within - 1.0) * kept);
    let Ok(chain) = Chain::with_slope(length, 3, slope.mean) else {
        return level;
    };
    Spread {
        mean: chain.level,
        sd: level.sd.hypot((1.0 - kept) * entry.level_sd_beyond),
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

    #[test]
    fn short_training_is_doubted_of_eagle_heads_beyond_what_recipes_train_on() {
        let short = |head: HeadKind, context: f64, trained: Option<f64>| {
            let mut query = PriorQuery::of(head);
            query.context_tokens = Some(context);
            query.trained_context_tokens = trained;
            AcceptancePrior::of_short_training(&query)
        };
        let eagle = |context| short(HeadKind::Eagle3, context, None);
        assert!(eagle(4096.0).is_none() && eagle(4097.0).is_some());
        for head in [HeadKind::Mtp, HeadKind::NGram, HeadKind::DraftModel] {
            assert!(short(head, 16_384.0, None).is_none(), "{head:?}");
        }
        assert!(short(HeadKind::Eagle3, 16_384.0, Some(32_768.0)).is_none());
        // Nothing jumps where the doubt begins.
        let usual = AcceptancePrior::new(&PriorQuery::of(HeadKind::Eagle3)).level;
        let (first, far) = (eagle(4097.0).unwrap().level, eagle(16_384.0).unwrap().level);
        assert!((usual.mean - first.mean).abs() < 1e-3 && (usual.sd - first.sd).abs() < 1e-3);
        assert!(far.mean < usual.mean - 1.0 && far.sd > usual.sd);
    }

    #[test]
    fn the_fall_beyond_the_recipes_is_that_of_the_head_measured_by_context() {
        // speculators#684, Qwen3-8B with a head trained on short text; its depth is not said.
        let at_4k = 2.04;
        for (context, seen) in [
            (6144.0, 1.863),
            (8192.0, 1.687),
            (10_240.0, 1.4),
            (12_288.0, 1.289),
            (14_336.0, 1.161),
            (16_384.0, 1.09),
        ] {
            let mut query = PriorQuery::of(HeadKind::Eagle3);
            query.context_tokens = Some(context);
            let slope = slope_of(&query);
            let chain = Chain::with_slope(at_4k, 3, slope.mean).unwrap();
            let own = Spread {
                mean: chain.level,
                sd: 0.0,
            };
            let level = fallen(own, slope, query.past_recipes());
            let expected = Chain::new(level.mean, slope.mean).accept_length(3);
            assert!(
                (expected - seen).abs() < 0.2,
                "{context}: {expected} {seen}"
            );
        }
    }
}
