//! What each engine's acceptance figure means, and the accept length it stands for.
//!
//! The one currency is the accept length: tokens per target forward, bonus token included.

use super::chain::Chain;
use super::posterior::{Evidence, check_rates};
use crate::error::AcceptanceError;

/// A figure as an engine, a paper or a benchmark prints it.
#[derive(Debug, Clone, PartialEq)]
pub enum Metric {
    /// SGLang `accept len`; also the accept_length of its benchmarks and of SpecForge.
    SglangAcceptLen(f64),
    /// SGLang `accept rate` as older releases print it: accept length / draft tokens.
    SglangAcceptRateOld {
        /// The rate.
        rate: f64,
        /// `--speculative-num-draft-tokens`, root included.
        draft_tokens: u32,
    },
    /// SGLang `accept rate` as newer releases print it: accepted / drafted.
    SglangAcceptRateNew {
        /// The rate.
        rate: f64,
        /// `--speculative-num-draft-tokens`, root included.
        draft_tokens: u32,
    },
    /// vLLM "Mean acceptance length".
    VllmMeanAcceptanceLength(f64),
    /// vLLM "Avg Draft acceptance rate", as a fraction: accepted / drafted.
    VllmDraftAcceptanceRate {
        /// The rate, 0 to 1.
        rate: f64,
        /// `num_speculative_tokens`.
        num_speculative_tokens: u32,
    },
    /// vLLM "Per-position acceptance rate": cumulative.
    VllmPositionRates(Vec<f64>),
    /// vLLM counters: drafts, accepted tokens by position.
    VllmCounts {
        /// `num_drafts`: verify passes.
        drafts: u64,
        /// `num_accepted_tokens_per_pos`.
        accepted: Vec<u64>,
    },
    /// TensorRT-LLM's acceptance length.
    TrtllmAcceptanceLength(f64),
    /// Tokens per forward without the bonus: TensorRT-LLM's forcing switch, the EAGLE
    /// repository's counter, some reports.
    WithoutBonus(f64),
    /// llama.cpp: accepted of drafted tokens in a number of cycles.
    LlamaCpp {
        /// `n_accept`.
        accepted: u64,
        /// Cycles (verify passes).
        cycles: u64,
    },
    /// llama.cpp's rate with the mean number of drafts a cycle (varies when p-min stops early).
    LlamaCppRate {
        /// accepted / drafted.
        rate: f64,
        /// Drafted tokens per cycle.
        drafts_per_cycle: f64,
    },
    /// Conditional acceptance by position (the papers' n-alpha).
    ConditionalAlphas(Vec<f64>),
    /// One stream's tokens per second and its cycle time.
    StreamRate {
        /// Tokens per second of one sequence.
        tok_s: f64,
        /// One cycle, ms.
        cycle_ms: f64,
    },
}

/// Which meaning SGLang's `accept rate` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SglangRate {
    /// accept length / draft tokens.
    Old,
    /// (accept length - 1) / (draft tokens - 1).
    New,
}

/// The meaning by release: old seen to 0.5.3, new seen from 0.5.11; in between, and where the
/// version cannot be read, unknown (recompute from `accept len` instead).
pub fn sglang_rate_meaning(version: &str) -> Option<SglangRate> {
    let mut parts = version
        .trim()
        .trim_start_matches('v')
        .split(['.', '+', '-', 'r', 'p'])
        .map(str::parse::<u32>);
    let mut next = || parts.next().and_then(Result::ok);
    let major = next()?;
    let minor = next().unwrap_or(0);
    let patch = next().unwrap_or(0);
    match (major, minor, patch) {
        v if v <= (0, 5, 3) => Some(SglangRate::Old),
        v if v >= (0, 5, 11) => Some(SglangRate::New),
        _ => None,
    }
}

/// The meaning that a printed pair shows by itself, given the draft tokens; `None` where both or
/// neither fit within the two or three digits that are printed.
pub fn sglang_rate_meaning_of_pair(
    accept_length: f64,
    rate: f64,
    draft_tokens: u32,
) -> Option<SglangRate> {
    let tokens = f64::from(draft_tokens);
    let old = (rate - accept_length / tokens).abs() < 0.011;
    let new = tokens > 1.0 && (rate - (accept_length - 1.0) / (tokens - 1.0)).abs() < 0.011;
    match (old, new) {
        (true, false) => Some(SglangRate::Old),
        (false, true) => Some(SglangRate::New),
        _ => None,
    }
}

impl Metric {
    /// The accept length that the figure stands for.
    ///
    /// # Errors
    /// [`AcceptanceError`] when the figure cannot be what it is said to be.
    pub fn accept_length(&self) -> Result<f64, AcceptanceError> {
        let length = match self {
            Self::SglangAcceptLen(length)
            | Self::VllmMeanAcceptanceLength(length)
            | Self::TrtllmAcceptanceLength(length) => *length,
            Self::WithoutBonus(accepted) => accepted + 1.0,
            Self::SglangAcceptRateOld { rate, draft_tokens } => {
                probability(*rate)? * f64::from(*draft_tokens)
            }
            Self::SglangAcceptRateNew { rate, draft_tokens } => {
                1.0 + probability(*rate)? * (f64::from(*draft_tokens) - 1.0)
            }
            Self::VllmDraftAcceptanceRate {
                rate,
                num_speculative_tokens,
            } => 1.0 + probability(*rate)? * f64::from(*num_speculative_tokens),
            Self::VllmPositionRates(rates) => {
                check_rates(rates)?;
                1.0 + rates.iter().sum::<f64>()
            }
            Self::VllmCounts { drafts, accepted } => {
                Evidence::PositionCounts {
                    cycles: *drafts,
                    accepted: accepted.clone(),
                }
                .check()?;
                1.0 + accepted.iter().map(|&a| a as f64).sum::<f64>() / *drafts as f64
            }
            Self::LlamaCpp { accepted, cycles } => {
                positive("cycles", *cycles as f64)?;
                1.0 + *accepted as f64 / *cycles as f64
            }
            Self::LlamaCppRate {
                rate,
                drafts_per_cycle,
            } => 1.0 + probability(*rate)? * positive("drafts per cycle", *drafts_per_cycle)?,
            Self::ConditionalAlphas(alphas) => 1.0 + cumulative(alphas)?.iter().sum::<f64>(),
            Self::StreamRate { tok_s, cycle_ms } => {
                positive("tok/s", *tok_s)? * positive("cycle time", *cycle_ms)? / 1000.0
            }
        };
        // Printed figures are rounded: 0.999 is 1.
        if length.is_finite() && length >= 0.995 {
            Ok(length.max(1.0))
        } else {
            Err(AcceptanceError::BelowOne {
                accept_length: length,
            })
        }
    }

    /// The same kind of figure as the engine would print it for another accept length; `None` for
    /// kinds that a single number does not fix (lists, counts) or that nothing was drafted for.
    pub fn with_accept_length(&self, length: f64) -> Option<Self> {
        match self {
            Self::SglangAcceptRateOld { draft_tokens, .. }
            | Self::SglangAcceptRateNew { draft_tokens, .. }
                if *draft_tokens < 2 =>
            {
                return None;
            }
            Self::VllmDraftAcceptanceRate {
                num_speculative_tokens: 0,
                ..
            } => return None,
            _ => {}
        }
        Some(match self {
            Self::SglangAcceptLen(_) => Self::SglangAcceptLen(length),
            Self::VllmMeanAcceptanceLength(_) => Self::VllmMeanAcceptanceLength(length),
            Self::TrtllmAcceptanceLength(_) => Self::TrtllmAcceptanceLength(length),
            Self::WithoutBonus(_) => Self::WithoutBonus(length - 1.0),
            Self::SglangAcceptRateOld { draft_tokens, .. } => Self::SglangAcceptRateOld {
                rate: length / f64::from(*draft_tokens),
                draft_tokens: *draft_tokens,
            },
            Self::SglangAcceptRateNew { draft_tokens, .. } => Self::SglangAcceptRateNew {
                rate: (length - 1.0) / (f64::from(*draft_tokens) - 1.0),
                draft_tokens: *draft_tokens,
            },
            Self::VllmDraftAcceptanceRate {
                num_speculative_tokens,
                ..
            } => Self::VllmDraftAcceptanceRate {
                rate: (length - 1.0) / f64::from(*num_speculative_tokens),
                num_speculative_tokens: *num_speculative_tokens,
            },
            Self::LlamaCppRate {
                drafts_per_cycle, ..
            } => Self::LlamaCppRate {
                rate: (length - 1.0) / drafts_per_cycle,
                drafts_per_cycle: *drafts_per_cycle,
            },
            Self::StreamRate { cycle_ms, .. } => Self::StreamRate {
                tok_s: 1000.0 * length / cycle_ms,
                cycle_ms: *cycle_ms,
            },
            Self::VllmPositionRates(_)
            | Self::VllmCounts { .. }
            | Self::LlamaCpp { .. }
            | Self::ConditionalAlphas(_) => return None,
        })
    }
}

/// Cumulative rates from conditional ones.
///
/// # Errors
/// [`AcceptanceError`] when the list is empty or a value is no probability.
pub fn cumulative(alphas: &[f64]) -> Result<Vec<f64>, AcceptanceError> {
    if alphas.is_empty() {
        return Err(AcceptanceError::Empty("list of conditional rates"));
    }
    let mut product = 1.0;
    let mut rates = Vec::with_capacity(alphas.len());
    for (index, &alpha) in alphas.iter().enumerate() {
        if !(0.0..=1.0).contains(&alpha) {
            return Err(AcceptanceError::Rate {
                position: index + 1,
                rate: alpha,
            });
        }
        product *= alpha;
        rates.push(product);
    }
    Ok(rates)
}

/// Conditional rates from cumulative ones; a position that is never reached has rate 0.
///
/// # Errors
/// [`AcceptanceError`] when the list is empty, rises, or holds no probabilities.
pub fn conditional(cumulative: &[f64]) -> Result<Vec<f64>, AcceptanceError> {
    check_rates(cumulative)?;
    let mut before = 1.0;
    Ok(cumulative
        .iter()
        .map(|&rate| {
            let alpha: f64 = if before > 0.0 { rate / before } else { 0.0 };
            before = rate;
            alpha.min(1.0)
        })
        .collect())
}

/// Mean accept length that a benchmark of requests with `output_tokens` each prints, when the
/// long-run one is `chain`'s: the last cycle of a request is cut off.
pub fn truncated_by_request_end(chain: &Chain, depth: u32, output_tokens: u32) -> f64 {
    let cycles = crate::montecarlo::expected_cycles(chain, depth, output_tokens);
    f64::from(output_tokens) / cycles
}

fn probability(rate: f64) -> Result<f64, AcceptanceError> {
    if (0.0..=1.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(AcceptanceError::Rate { position: 1, rate })
    }
}

fn positive(what: &'static str, value: f64) -> Result<f64, AcceptanceError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(AcceptanceError::NotPositive { what, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(metric: &Metric, length: f64) {
        let got = metric.accept_length();
        assert!(
            got.as_ref().is_ok_and(|l| (l - length).abs() < 0.006),
            "{metric:?} gave {got:?}, not {length}"
        );
    }

    #[test]
    fn sglang_accept_len_counts_the_bonus() {
        close(&Metric::SglangAcceptLen(2.17), 2.17);
        close(&Metric::SglangAcceptLen(1.0), 1.0);
    }

    #[test]
    fn sglang_rate_changed_its_meaning() {
        // accept len 2.17 with 4 draft tokens prints 0.54 in old releases, 0.39 in new ones.
        close(
            &Metric::SglangAcceptRateOld {
                rate: 0.5425,
                draft_tokens: 4,
            },
            2.17,
        );
        close(
            &Metric::SglangAcceptRateNew {
                rate: 0.39,
                draft_tokens: 4,
            },
            2.17,
        );
        assert_eq!(sglang_rate_meaning("0.5.3"), Some(SglangRate::Old));
        assert_eq!(sglang_rate_meaning("v0.4.6.post1"), Some(SglangRate::Old));
        assert_eq!(sglang_rate_meaning("0.5.11"), Some(SglangRate::New));
        assert_eq!(sglang_rate_meaning("0.5.7"), None);
        assert_eq!(sglang_rate_meaning("main"), None);
        assert_eq!(
            sglang_rate_meaning_of_pair(2.17, 0.54, 4),
            Some(SglangRate::Old)
        );
        assert_eq!(
            sglang_rate_meaning_of_pair(2.17, 0.39, 4),
            Some(SglangRate::New)
        );
        assert_eq!(sglang_rate_meaning_of_pair(2.17, 0.80, 4), None);
    }

    #[test]
    fn vllm_figures_agree_with_each_other() {
        // vllm#26191: Llama-3.1-8B, MT-bench, K = 7.
        let rates = vec![0.74, 0.54, 0.41, 0.31, 0.23, 0.17, 0.13];
        close(&Metric::VllmPositionRates(rates.clone()), 3.53);
        close(&Metric::VllmMeanAcceptanceLength(3.53), 3.53);
        close(
            &Metric::VllmDraftAcceptanceRate {
                rate: 2.53 / 7.0,
                num_speculative_tokens: 7,
            },
            3.53,
        );
        let counts = rates.iter().map(|r| (r * 10_000.0) as u64).collect();
        close(
            &Metric::VllmCounts {
                drafts: 10_000,
                accepted: counts,
            },
            3.53,
        );
    }

    #[test]
    fn trtllm_prints_with_and_forces_without_the_bonus() {
        close(&Metric::TrtllmAcceptanceLength(2.9), 2.9);
        close(&Metric::WithoutBonus(1.9), 2.9);
    }

    #[test]
    fn llamacpp_needs_the_cycles() {
        // llamacpp#18039: 36 of 112 drafts accepted; at 16 drafts a cycle, 7 cycles.
        close(
            &Metric::LlamaCpp {
                accepted: 36,
                cycles: 7,
            },
            1.0 + 36.0 / 7.0,
        );
        close(
            &Metric::LlamaCppRate {
                rate: 36.0 / 112.0,
                drafts_per_cycle: 16.0,
            },
            1.0 + 36.0 / 7.0,
        );
        assert!(
            Metric::LlamaCpp {
                accepted: 36,
                cycles: 0
            }
            .accept_length()
            .is_err()
        );
    }

    #[test]
    fn papers_conditional_alphas_multiply_up() {
        close(
            &Metric::ConditionalAlphas(vec![0.8, 0.7, 0.6]),
            1.0 + 0.8 + 0.56 + 0.336,
        );
    }

    #[test]
    fn stream_rate_times_cycle_is_the_accept_length() {
        close(
            &Metric::StreamRate {
                tok_s: 120.0,
                cycle_ms: 20.0,
            },
            2.4,
        );
    }

    #[test]
    fn a_rate_in_percent_is_refused() {
        let metric = Metric::VllmDraftAcceptanceRate {
            rate: 36.1,
            num_speculative_tokens: 7,
        };
        assert_eq!(
            metric.accept_length(),
            Err(AcceptanceError::Rate {
                position: 1,
                rate: 36.1
            })
        );
    }
}
