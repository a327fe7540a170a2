//! `[[served]]` of a saved box file: plain steps that `verify-hw` measured there with a stand-in
//! for one model, so that `predict` answers as it did, on a machine without a GPU. The rest of the
//! file is the box; pcie-sim knows no models, so this part is taken out before it reads it.

use serde::{Deserialize, Serialize};

use crate::input;
use crate::step_time::sweep::Attention;

/// Plain steps of one model's stand-in with one all-reduce.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Served {
    /// The model's catalogue name.
    pub(crate) model: String,
    /// Tensor-parallel size.
    pub(crate) tp: u32,
    /// The all-reduce, by the name of `--allreduce`; `none` on one GPU.
    pub(crate) allreduce: String,
    /// Cached tokens of a sequence while it was measured.
    pub(crate) held_tokens: f64,
    /// Steps by sequences.
    pub(crate) plain_step: Vec<PlainStep>,
    /// Attention alone, over several tokens a sequence.
    #[serde(default)]
    pub(crate) verify_attention: Vec<VerifyAttention>,
}

/// A plain step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlainStep {
    pub(crate) sequences: u32,
    pub(crate) time_ms: f64,
    /// The attention of such a step, measured alone.
    pub(crate) attention_ms: f64,
}

/// The attention of a verify, measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifyAttention {
    pub(crate) sequences: u32,
    /// Tokens verified per sequence.
    pub(crate) tokens: u32,
    pub(crate) time_ms: f64,
}

/// The part of a box file that is kept here.
#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    #[serde(default)]
    served: Vec<Served>,
}

/// Splits the text of a box file into the box alone and what was served on it.
///
/// # Errors
/// What is wrong with a `[[served]]`; other faults are left to the box's own reader.
pub(crate) fn split(text: &str) -> anyhow::Result<(String, Vec<Served>)> {
    let whole = || (text.to_string(), Vec::new());
    let Ok(mut table) = text.parse::<toml::Table>() else {
        return Ok(whole());
    };
    let Some(served) = table.remove("served") else {
        return Ok(whole());
    };
    let served: Vec<Served> = served
        .try_into()
        .map_err(|e: toml::de::Error| input::error(format!("[[served]]: {}", e.message())))?;
    for one in &served {
        one.check()?;
    }
    let rest = toml::to_string(&table).map_err(|e| input::error(e.to_string()))?;
    Ok((rest, served))
}

/// Both parts as one file.
///
/// # Errors
/// Figures that TOML cannot hold.
pub(crate) fn join(box_toml: &str, served: Vec<Served>) -> anyhow::Result<String> {
    let served = toml::to_string(&File { served }).map_err(|e| input::error(e.to_string()))?;
    Ok(format!("{}\n{served}", box_toml.trim_end()))
}

impl Served {
    /// Whether these are steps of this server.
    pub(crate) fn is_of(&self, model: &str, tp: u32) -> bool {
        self.model == model && self.tp == tp
    }

    /// Steps as the law reads them: (sequences, ms).
    pub(crate) fn steps_ms(&self) -> Vec<(u32, f64)> {
        let step = |s: &PlainStep| (s.sequences, s.time_ms);
        self.plain_step.iter().map(step).collect()
    }

    /// The attention in them.
    pub(crate) fn attention(&self) -> Attention {
        let plain = |s: &PlainStep| (s.sequences, s.attention_ms);
        let many = |a: &VerifyAttention| (a.sequences, a.tokens, a.time_ms);
        Attention {
            plain_ms: self.plain_step.iter().map(plain).collect(),
            of_many_ms: self.verify_attention.iter().map(many).collect(),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        let positive = |ms: f64| ms.is_finite() && ms > 0.0;
        let wrong = |what: String| Err(input::error(format!("[[served]] {}: {what}", self.model)));
        if self.plain_step.is_empty() {
            return wrong("no plain_step; run verify-hw --save again".to_string());
        }
        if !(self.held_tokens.is_finite() && self.held_tokens >= 0.0) {
            return wrong(format!("held_tokens {}: give a count", self.held_tokens));
        }
        for step in &self.plain_step {
            let attention = (0.0..step.time_ms).contains(&step.attention_ms);
            if step.sequences == 0 || !positive(step.time_ms) || !attention {
                return wrong(format!(
                    "plain_step of {} sequences: {} ms with {} ms of attention in it; give positive \
                     times, the attention within the step",
                    step.sequences, step.time_ms, step.attention_ms
                ));
            }
        }
        for probe in &self.verify_attention {
            if probe.sequences == 0 || probe.tokens == 0 || !positive(probe.time_ms) {
                return wrong(format!(
                    "verify_attention of {} x {} tokens: {} ms; give positive figures",
                    probe.sequences, probe.tokens, probe.time_ms
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie_sim::box_spec::BoxSpec;

    fn served() -> Served {
        Served {
            model: "Llama-3.1-8B".into(),
            tp: 1,
            allreduce: "none".into(),
            held_tokens: 176.0,
            plain_step: vec![PlainStep {
                sequences: 1,
                time_ms: 4.75,
                attention_ms: 0.21,
            }],
            verify_attention: vec![VerifyAttention {
                sequences: 1,
                tokens: 4,
                time_ms: 0.25,
            }],
        }
    }

    const BOX: &str = "name = \"one\"\np2p = \"on\"\n[[node]]\nid = \"cpu0\"\nkind = \"socket\"\n\
                       [[node]]\nid = \"gpu0\"\nkind = \"gpu\"\nparent = \"cpu0\"\ngen = 5\nlanes = 16\n";

    #[test]
    fn a_box_file_with_served_steps_reads_back_as_the_box_and_the_steps() {
        let text = join(BOX, vec![served()]).expect("a file");
        let (rest, back) = split(&text).expect("reads back");
        assert_eq!(back, vec![served()]);
        assert_eq!(BoxSpec::from_toml(&rest), BoxSpec::from_toml(BOX));
        assert!(BoxSpec::from_toml(BOX).is_ok());
    }

    #[test]
    fn a_plain_box_file_passes_as_it_is_and_faults_of_the_served_part_are_named() {
        assert_eq!(split(BOX).expect("a box"), (BOX.to_string(), Vec::new()));
        assert_eq!(split("not [toml").expect("left to the box").0, "not [toml");
        let mut bad = served();
        bad.plain_step[0].attention_ms = 5.0;
        let text = join(BOX, vec![bad]).expect("a file");
        let why = split(&text)
            .expect_err("more attention than step")
            .to_string();
        assert!(why.contains("plain_step of 1 sequences"), "{why}");
        let why = split(&format!("{BOX}[[served]]\nmodel = \"x\"\n")).expect_err("half");
        assert!(why.to_string().starts_with("[[served]]: missing"), "{why}");
    }
}
