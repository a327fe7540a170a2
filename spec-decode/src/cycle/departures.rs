//! Where the cycle law does not hold, told from figures when they are given.

use std::fmt;

use super::{DraftStep, Speculation, Sweep, cycle};

/// What was measured at one operating point with speculation on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Where.
    pub speculation: Speculation,
    /// Candidates kept per position; 1 is a chain.
    pub topk: u32,
    /// Tokens a second of all sequences; `None` where not measured.
    pub spec_tok_s: Option<f64>,
    /// Accept length, bonus token included; `None` where not measured.
    pub accept_length: Option<f64>,
    /// Whether the verify replays a CUDA graph; `None` where unknown.
    pub verify_in_graphs: Option<bool>,
}

/// A way in which the law fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Departure {
    /// A tree of many nodes: its verify is cheaper than as many sequences.
    WideTree {
        /// Nodes verified per sequence.
        verified_tokens: f64,
    },
    /// The verify does not replay a CUDA graph: every kernel is launched anew.
    VerifyOutsideGraphs {
        /// Measured cycle over the law's, where measured.
        ratio: Option<f64>,
    },
    /// The attention kernel reads a sequence's KV once per verified token.
    KvReadRepeatedly {
        /// How often it is read, of at most the verified tokens.
        multiplier: f64,
    },
    /// Measured cycles exceed the law for a reason that the figures do not show.
    SlowerThanLaw {
        /// Measured cycle over the law's, median.
        ratio: f64,
    },
    /// Measured cycles stay below the law: the accept length is too high, or the plain sweep too
    /// slow.
    FasterThanLaw {
        /// Measured cycle over the law's, median.
        ratio: f64,
    },
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WideTree { verified_tokens } => write!(
                f,
                "a tree of {verified_tokens} nodes: the law overstates its verify by up to 60 %; \
                 measure it or use a chain (topk 1)"
            ),
            Self::VerifyOutsideGraphs { ratio: Some(r) } => write!(
                f,
                "the verify runs outside CUDA graphs and costs {r:.2} times the law; \
                 raise the capture size or choose an attention backend with full graphs"
            ),
            Self::VerifyOutsideGraphs { ratio: None } => write!(
                f,
                "the verify runs outside CUDA graphs, which the law does not cover; \
                 reports show 1.5 to 4 times the cost"
            ),
            Self::KvReadRepeatedly { multiplier } => write!(
                f,
                "the verify reads the KV {multiplier:.1} times: the kernel treats drafted tokens as \
                 separate sequences; expect losses at long context"
            ),
            Self::SlowerThanLaw { ratio } => write!(
                f,
                "measured cycles cost {ratio:.2} times the law: look for a verify outside graphs, \
                 another all-reduce at the larger payload, or a slow draft"
            ),
            Self::FasterThanLaw { ratio } => write!(
                f,
                "measured cycles cost only {ratio:.2} of the law: check the accept length and that \
                 the plain sweep was taken with the same settings"
            ),
        }
    }
}

/// Nodes from which a tree's verify is cheaper than the law says. Source: Qwen3-30B-A3B on H100,
/// 16 nodes, law 40 to 60 % too dear; chains to 6 tokens hold.
const WIDE_TREE_NODES: f64 = 16.0;

/// Ratio of measured to predicted cycle from which the law is said to fail: beyond the band of
/// 9 in 10 points inside a sweep, twice over.
const RATIO_LIMIT: f64 = 1.25;

/// KV readings per verify from which a kernel is called slow.
const MULTIPLIER_LIMIT: f64 = 1.8;

/// Least share of KV in a plain step at which a multiplier can be told.
const KV_SHARE: f64 = 0.1;

/// Departures shown by the figures, the gravest first; none where they agree with the law or say
/// nothing.
pub fn departures(plain: &Sweep, draft: DraftStep, figures: &[Figures]) -> Vec<Departure> {
    let mut found = Vec::new();
    let outside = figures.iter().any(|f| f.verify_in_graphs == Some(false));
    let ratios: Vec<f64> = figures
        .iter()
        .filter_map(|f| measured_ms(f).map(|ms| ms / law_ms(plain, draft, f)))
        .filter(|r| r.is_finite())
        .collect();
    let ratio = median(&ratios);
    if outside {
        found.push(Departure::VerifyOutsideGraphs { ratio });
    }
    let multipliers: Vec<f64> = figures
        .iter()
        .filter_map(|f| kv_multiplier(plain, draft, f))
        .collect();
    match (median(&multipliers), ratio) {
        (Some(multiplier), Some(r)) if multiplier > MULTIPLIER_LIMIT && r > 1.0 => {
            found.push(Departure::KvReadRepeatedly { multiplier });
        }
        (_, Some(ratio)) if ratio > RATIO_LIMIT && !outside => {
            found.push(Departure::SlowerThanLaw { ratio });
        }
        (_, Some(ratio)) if ratio < 1.0 / RATIO_LIMIT => {
            found.push(Departure::FasterThanLaw { ratio });
        }
        _ => {}
    }
    let widest = figures
        .iter()
        .filter(|f| f.topk > 1)
        .map(|f| f.speculation.verified_tokens)
        .fold(0.0, f64::max);
    if widest >= WIDE_TREE_NODES {
        found.push(Departure::WideTree {
            verified_tokens: widest,
        });
    }
    found
}

/// Cycle that speed and accept length imply, ms.
fn measured_ms(figures: &Figures) -> Option<f64> {
    let (tok_s, accept_length) = (figures.spec_tok_s?, figures.accept_length?);
    let usable = tok_s.is_finite() && tok_s > 0.0 && accept_length.is_finite();
    (usable && accept_length >= 1.0)
        .then(|| 1000.0 * figures.speculation.concurrency * accept_length / tok_s)
}

fn law_ms(plain: &Sweep, draft: DraftStep, figures: &Figures) -> f64 {
    cycle(plain, draft, &figures.speculation).total_ms()
}

/// KV readings that the measured cycle implies, where KV is known and weighs enough.
fn kv_multiplier(plain: &Sweep, draft: DraftStep, figures: &Figures) -> Option<f64> {
    let measured = measured_ms(figures)?;
    let law = cycle(plain, draft, &figures.speculation);
    let kv = plain.kv();
    let once_ms = kv.ms_per_sequence * figures.speculation.concurrency;
    if once_ms < KV_SHARE * law.plain_ms {
        return None;
    }
    let excess_ms = measured - law.total_ms();
    let most = figures.speculation.verified_tokens.max(1.0);
    Some((kv.verify_multiplier + excess_ms / once_ms).clamp(0.0, most))
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some((upper + lower) / 2.0)
}
