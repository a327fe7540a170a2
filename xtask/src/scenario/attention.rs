//! The attention kernels that the engine is told to run.

use kvplan::{Attention, KvDtype, Model, Version};

use super::cache::{self, Serving};
use super::engine::{EngineChoice, EngineKind};
use super::merge::{Given, Merged};
use super::{Notes, Ran};
use crate::explain::carried::ATTENTION;
use crate::gpus::{Family, Gpu};
use crate::input;
use crate::step_time::verify_graphs::{Attends, Seen, VLLM_ATTENTION};

/// vLLM's variable for it before 0.13.0 had the flag.
const VLLM_VARIABLE: &str = "VLLM_ATTENTION_BACKEND";

/// Names that SGLang takes on NVIDIA's cards and that are known here (choices.py of 0.5.23, server_args.py of
/// 0.5.9), each with whether it is one of latent attention alone.
const SGLANG: [(&str, bool); 9] = [
    ("triton", false),
    ("flashinfer", false),
    ("fa3", false),
    ("fa4", false),
    ("trtllm_mha", false),
    ("torch_native", false),
    ("flashmla", true),
    ("cutlass_mla", true),
    ("trtllm_mla", true),
];

/// What a log shows, with the backend that the flag or the scenario asks for in place of its own.
///
/// # Errors
/// A name that the engine does not have, or that it refuses for this model, card or cache.
pub(super) fn asked(
    merged: &Merged,
    mut ran: Ran,
    serving: Serving<'_>,
    notes: &mut Notes,
) -> anyhow::Result<Ran> {
    let Some(given) = &merged.attention_backend else {
        return Ok(ran);
    };
    let (model, engine, gpu) = serving;
    let cache = cache::kv_dtype(merged, serving, &mut Notes::default())?;
    let name = match engine.kind {
        EngineKind::Vllm => of_vllm(&given.value, attends(model, gpu, cache, engine)),
        EngineKind::Sglang => of_sglang(&given.value, model, gpu),
        EngineKind::TrtLlm | EngineKind::LlamaCpp => {
            Err("known here for sglang and vllm alone; leave it out".to_string())
        }
    };
    let name = name.map_err(|why| refused(given, &why))?;
    notes.input("attention_backend", name.clone(), given.source.clone());
    ran.run_by(&name, engine);
    Ok(ran)
}

fn refused(given: &Given<String>, why: &str) -> anyhow::Error {
    input::error(format!("{}: {why}", given.shown(ATTENTION)))
}

fn attends<'a>(
    model: &'a Model,
    gpu: &Gpu,
    cache: KvDtype,
    engine: &'a EngineChoice,
) -> Attends<'a> {
    Attends {
        model,
        family: gpu.family,
        cache,
        version: engine.version.as_deref(),
    }
}

fn of_vllm(given: &str, attends: Attends<'_>) -> Result<String, String> {
    let name = given.trim().to_ascii_uppercase().replace('-', "_");
    let known = VLLM_ATTENTION.contains(&name.as_str());
    let own = attends.backend();
    let why = match known {
        false => Some(format!(
            "vLLM's that are known here: {}",
            VLLM_ATTENTION.join(", ")
        )),
        true => attends
            .refuses(&name)
            .map(|why| format!("{why}; by itself vLLM takes {own}")),
    };
    why.map_or(Ok(name), Err)
}

fn of_sglang(given: &str, model: &Model, gpu: &Gpu) -> Result<String, String> {
    let name = given.trim().to_ascii_lowercase().replace('-', "_");
    let latent = |layer: &kvplan::Layer| matches!(layer.attention, Attention::Mla(_));
    let has_latent = model.layers.iter().any(latent);
    let sinks = crate::step_time::verify_graphs::has_sinks(model);
    let with_sinks = ["triton", "trtllm_mha", "fa3", "fa4"].contains(&name.as_str());
    let old = matches!(gpu.family, Family::Volta | Family::Turing);
    let new = matches!(gpu.family, Family::Blackwell | Family::BlackwellRtx);
    let why = match SGLANG.iter().find(|(known, _)| *known == name) {
        None => {
            let names = SGLANG.map(|(known, _)| known).join(", ");
            format!("SGLang's that are known here: {names}")
        }
        Some((_, true)) if !has_latent => {
            format!("is for latent attention, which {} has not", model.name)
        }
        Some(_) if sinks && !with_sinks => {
            format!(
                "SGLang runs {} by triton, trtllm_mha, fa3 or fa4 alone",
                model.name
            )
        }
        Some(("fa3", _)) if old || new => {
            format!(
                "FlashAttention 3 runs on Ampere, Ada and Hopper, not on {}",
                gpu.name
            )
        }
        Some(_) => return Ok(name),
    };
    Err(why)
}

impl Ran {
    /// As of a server told to run this backend: what it logged of another one's graphs and speeds is left.
    pub(crate) fn run_by(&mut self, backend: &str, engine: &EngineChoice) {
        let seen = self.verify_graphs.as_ref();
        let before = seen.and_then(|seen| seen.backend.as_deref());
        let before = before.or(self.carried.value(ATTENTION));
        if before != Some(backend) {
            self.verify_graphs = Some(Seen {
                whole: None,
                backend: Some(backend.to_string()),
            });
            self.speeds = Vec::new();
            self.outside_graph = 0.0;
        }
        let flags = &mut self.carried.flags;
        flags.retain(|words| words.first().is_none_or(|name| name != ATTENTION));
        let version = engine.version.as_deref().and_then(Version::find);
        let has_flag = version.is_none_or(|version| version.since((0, 13, 0), (2025, 12)));
        match engine.kind == EngineKind::Vllm && !has_flag {
            true => self.carried.env.push(format!("{VLLM_VARIABLE}={backend}")),
            false => flags.push(vec![ATTENTION.to_string(), backend.to_string()]),
        }
    }
}
