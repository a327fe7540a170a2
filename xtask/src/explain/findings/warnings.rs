//! What the engine itself warned of, where it weighs on speed.

use super::{Finding, Severity, count, show};
use crate::explain::facts::{EAGER, Facts};
use crate::explain::overlap::DRAFT_WAITS;

/// How to have graphs again.
pub(super) const WITH_GRAPHS: &str = "remove --enforce-eager or cudagraph_mode NONE (vLLM), or --disable-cuda-graph and --disable-decode-cuda-graph (SGLang)";

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    kernels(facts, found);
    formats(facts, found);
    waits(facts, found);
    requests(facts, found);
    if let Some(gib) = facts.number("cpu_offload_gb").filter(|gib| *gib > 0.0) {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "cpu_offload_gb",
            format!("{} GiB of weights lie in host memory", show(gib)),
            "they cross the host's link in every pass, far below the card's own rate; `predict` does not \
             model it and answers for a server without",
            "a smaller weight format, or more cards",
        ));
    }
}

fn kernels(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(file) = facts.text("moe_config_missing") {
        let of = if file.is_empty() {
            String::new()
        } else {
            format!(" ({file})")
        };
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "moe_config_missing",
            "no tuned kernel for these experts on this card",
            format!("the engine has no tuning file for them{of} and takes default tiles; plain steps and \
                     verifies both pay"),
            "tune it once: benchmarks/kernels/benchmark_moe.py --tune (vLLM), \
             benchmark/kernels/fused_moe_triton (SGLang); or another MoE backend; measure before and \
             after",
        ));
    }
    flashinfer(facts, found);
    if let Some(why) = facts.text("attention_fallback") {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "attention_fallback",
            "attention runs on a fall-back kernel",
            why.to_string(),
            "mend the cause it names; verifies of several tokens suffer most, so measure one",
        ));
    }
    // With speculation or decode lines beside it, the check of those says more.
    let told = ["spec_algorithm", "accept_length", "decode_lines"];
    let eager = facts.eager().is_some();
    if eager && told.iter().all(|name| facts.get(name).is_none()) {
        // What that costs a model of another kind is not known here.
        let (severity, mend) = match facts.denoises() {
            None => (Severity::Costly, WITH_GRAPHS),
            Some(_) => (
                Severity::Note,
                "measure it with graphs and without: nothing here says what they gain for such a model",
            ),
        };
        found.push(Finding::new(
            severity,
            facts,
            EAGER,
            "CUDA graphs are off",
            "every kernel of every step is launched by the host; its speeds are no baseline for a \
             server with graphs",
            mend,
        ));
    }
}

/// What runs without FlashInfer.
fn flashinfer(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.get("sampler_fallback").is_some() {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "sampler_fallback",
            "sampling runs without FlashInfer",
            "top-k and top-p sort the whole vocabulary in PyTorch; greedy decoding does not care",
            "install flashinfer-python where requests sample with top-k or top-p",
        ));
    }
    // One card has nobody to reduce with.
    let several = facts.number("tp").is_none_or(|tp| tp > 1.0);
    if facts.get("no_flashinfer_comm").is_some() && several {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "no_flashinfer_comm",
            "FlashInfer's all-reduce fused with the norm cannot run here",
            "its module flashinfer.comm is not available: all-reduces are the engine's own or NCCL's, whatever \
             the flag says",
            "the flashinfer-python that this release asks for, where predict's all-reduce table says that \
             one-shot-push gains",
        ));
    }
}

/// A draft with which vLLM's scheduler does not work ahead.
fn waits(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(why) = facts.text(DRAFT_WAITS) else {
        return;
    };
    let mend = match facts.text("spec_algorithm") {
        Some("ngram") => {
            "vLLM 0.33.0 keeps it with ngram (ngram_gpu of older releases overlaps and was no faster on one \
             H200, docs/HARDWARE.md)"
        }
        Some("draft_model") => {
            "--async-scheduling, or vLLM 0.28.0, which keeps it with a draft model"
        }
        _ => "compare with a plain run: that hides its host time, this one does not",
    };
    found.push(Finding::new(
        Severity::Costly,
        facts,
        DRAFT_WAITS,
        "with this draft the scheduler does not work ahead of the GPU, as it does without",
        why.to_string(),
        mend,
    ));
}

fn formats(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(why) = facts.text("no_native_format") {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "no_native_format",
            "the card has no arithmetic for this weight format",
            why.to_string(),
            "weights stay small, products run in 16 bits: small loads lose nothing, large verifies do",
        ));
    }
    if let Some(why) = facts.text("slow_quantization") {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "slow_quantization",
            "the engine calls its kernels for this weight format slow",
            why.to_string(),
            "another format of the same size, measured against it",
        ));
    }
}

fn requests(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(times) = facts.number("preempted_requests") {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "preempted_requests",
            format!("the KV pool ran full: {} preemption{}", count(times), plural(times)),
            "what a preempted request had decoded is prefilled once more",
            "fewer requests at once, a shorter context, an fp8 KV cache, or a larger memory fraction \
             where `plan` shows one",
        ));
    }
    too_long(facts, found);
}

/// Requests that were refused as too long, and whether a longer limit would have taken them.
fn too_long(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(times) = facts.number("rejected_requests") else {
        return;
    };
    let told = |limit: &str| facts.number(limit);
    let limit = told("rejected_limit")
        .or(told("max_model_len"))
        .or(told("context_len"));
    let longest = told("rejected_tokens");
    let request = longest.map_or_else(String::new, |tokens| {
        let which = if times == 1.0 {
            "it was of"
        } else {
            "the longest was of"
        };
        format!("{which} {} tokens, ", count(tokens))
    });
    let takes = limit.map_or_else(
        || "more tokens than the server takes".to_string(),
        |limit| format!("the server takes {} tokens", count(limit)),
    );
    let reach = reach(facts);
    let beyond = longest
        .zip(reach)
        .is_some_and(|(longest, reach)| longest > reach);
    let mend = match reach {
        Some(reach) if beyond => format!(
            "shorter requests: the model takes {} tokens, so that no longer limit helps",
            count(reach)
        ),
        _ => "shorter requests, or a longer limit (--max-model-len, --context-length) where `plan` shows \
              that the pool holds it"
            .to_string(),
    };
    found.push(Finding::new(
        Severity::Note,
        facts,
        "rejected_requests",
        format!(
            "{} request{} {} refused as too long",
            count(times),
            plural(times),
            if times == 1.0 { "was" } else { "were" }
        ),
        format!("{request}{takes}"),
        mend,
    ));
}

/// Tokens that the model takes, where the catalogue knows it.
fn reach(facts: &Facts) -> Option<f64> {
    let name = facts.text("model")?.rsplit('/').next()?;
    let found = kvplan::catalog::find(name).ok()?;
    found.model.max_positions.map(|tokens| tokens as f64)
}

fn plural(times: f64) -> &'static str {
    if times == 1.0 { "" } else { "s" }
}
