//! Warnings that the engines print themselves and that weigh on speed, by their own words; and how
//! many other lines of a log call themselves a warning or an error.

use super::facts::Facts;
use super::overlap::{DRAFT_WAITS, OFF_BY_DRAFT};
use super::text::{Doc, leading_number};

/// What is said of a request that is too long: by vLLM, serving_*.py, and by SGLang, tokenizer_manager.py
/// (`The input (9000 tokens) is longer than the model's context`).
pub(super) const REFUSED: [&str; 3] = [
    "your request has",
    "However, you requested",
    "is longer than the model's context length",
];

/// What an engine prints, and the fact that it is kept as.
const PHRASES: [(&str, &str); 17] = [
    // vLLM and SGLang, fused_moe.py; SGLang says "kernel" since 2025.
    ("Using default MoE config.", "moe_config_missing"),
    ("Using default MoE kernel config.", "moe_config_missing"),
    // vLLM, topk_topp_sampler.py.
    (
        "FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p",
        "sampler_fallback",
    ),
    // SGLang, flashinfer_comm_fusion.py, where the import fails.
    ("flashinfer.comm is not available", "no_flashinfer_comm"),
    // vLLM, platforms/cuda.py: the reason follows.
    ("Cannot use FlashAttention", "attention_fallback"),
    ("Cannot use FlashInfer", "attention_fallback"),
    (OFF_BY_DRAFT[0], DRAFT_WAITS),
    (OFF_BY_DRAFT[1], DRAFT_WAITS),
    // vLLM, config.py and model.py; the method stands before it.
    (
        "quantization is not fully optimized yet.",
        "slow_quantization",
    ),
    // vLLM, marlin_utils_fp8.py and _fp4.py.
    (
        "Your GPU does not have native support for",
        "no_native_format",
    ),
    // vLLM V0, scheduler.py.
    ("is preempted by PreemptionMode", "preempted_requests"),
    (REFUSED[0], "rejected_requests"),
    (REFUSED[1], "rejected_requests"),
    (REFUSED[2], "rejected_requests"),
    // SGLang, model_config.py: `(131072) is greater than the derived context_length (2048)`.
    ("Target model's context_length (", "draft_max_model_len"),
    // Both print their arguments.
    ("cpu_offload_gb=", "cpu_offload_gb"),
    ("'cpu_offload_gb': ", "cpu_offload_gb"),
];

/// How releases of vLLM say again that their arguments ask for no graphs, which is a finding.
const EAGER: [&str; 3] = [
    "Enforce eager set",
    "under eager mode",
    "enforce-eager is enabled",
];

/// Reads them, of the start that the facts are of; nothing where the text is no engine's log.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    if facts.text("engine").is_none() {
        return;
    }
    let phrases = PHRASES.map(|(phrase, _)| phrase);
    let mut counted: Vec<(&'static str, f64, usize)> = Vec::new();
    let mut refused = super::refused::Longest::default();
    let mut judged: Vec<usize> = Vec::new();
    for (start, end, index) in doc.find_all(&phrases) {
        let line = doc.line_at(end);
        let Some((_, name)) = PHRASES.get(index).filter(|_| line >= facts.run_line) else {
            continue;
        };
        let rest = doc.window(end, 700);
        match *name {
            "cpu_offload_gb" => {
                let size = leading_number(rest).map(|(gib, _)| gib);
                if let Some(gib) = size.filter(|gib| *gib > 0.0) {
                    facts.set_if_absent(name, gib, line);
                }
                continue;
            }
            "draft_max_model_len" => {
                let (_, reach) = rest
                    .split_once("derived context_length (")
                    .unwrap_or(("", ""));
                if let Some((tokens, _)) = leading_number(reach) {
                    facts.set_if_absent(name, tokens, line);
                }
            }
            "preempted_requests" | "rejected_requests" => {
                if *name == "rejected_requests" {
                    refused.read(doc, (start, end), line);
                }
                match counted.iter_mut().find(|(known, _, _)| known == name) {
                    // One request is logged by the server and by its client's handler.
                    Some(entry) if entry.2 == line => {}
                    Some(entry) => *entry = (name, entry.1 + 1.0, entry.2),
                    None => counted.push((name, 1.0, line)),
                }
            }
            "moe_config_missing" => facts.set_if_absent(name, tuning_file(rest), line),
            _ if facts.get(name).is_none() => facts.set(name, sentence(doc, end), line),
            _ => {}
        }
        judged.push(line);
    }
    for (name, count, line) in counted {
        facts.set_if_absent(name, count, line);
    }
    refused.put(facts);
    super::refused::with_tracebacks(doc, &mut judged);
    not_judged(doc, &judged, facts);
}

/// The name of the tuning file that was not found: `E=128,N=768,device_name=…`.
fn tuning_file(rest: &str) -> String {
    let from = rest.find("E=").and_then(|at| rest.get(at..)).unwrap_or("");
    let end = from.find(".json").unwrap_or(0);
    from.get(..end).unwrap_or("").to_string()
}

/// The line that a phrase ends in, from its message on.
fn sentence(doc: &Doc, end: usize) -> String {
    let number = doc.line_at(end);
    let line = doc.lines.binary_search_by_key(&number, |(n, _)| *n);
    let line = line.ok().and_then(|at| doc.lines.get(at));
    let text = line.map_or("", |(_, text)| text.as_str());
    let text = text.split_once("] ").map_or(text, |(_, message)| message);
    super::text::cut(text.trim(), 160).to_string()
}

/// Lines that say WARNING or ERROR and are read by nothing here.
fn not_judged(doc: &Doc, judged: &[usize], facts: &mut Facts) {
    let ended = facts.text("error").is_some();
    let eager = facts.eager().is_some();
    let (mut count, mut first) = (0.0, 0);
    for (line, text) in &doc.lines {
        let head = super::text::cut(text, 120);
        let warns = head
            .split(|c: char| !c.is_ascii_alphabetic())
            .any(|word| word == "WARNING" || word == "ERROR");
        let known = || {
            // In order, as the hits came; errors are those that ended it.
            judged.binary_search(line).is_ok()
                || (ended && head.contains("ERROR"))
                || text.contains("Custom allreduce is disabled because")
                || text.contains(super::hosts::FEWER)
                || (eager && EAGER.iter().any(|words| text.contains(words)))
        };
        if warns && *line >= facts.run_line && !known() {
            count += 1.0;
            if first == 0 {
                first = *line;
            }
        }
    }
    if count > 0.0 {
        facts.set("warnings_not_judged", count, first);
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts_from_text;
    use super::super::findings::find;

    const PLAIN: &str = "INFO 06-16 14:13:11 [utils.py:328] non-default args: {'model': 'Qwen/Qwen3-30B-A3B'}\n\
        INFO 06-16 14:13:19 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: \
        model='Qwen/Qwen3-30B-A3B', speculative_config=None, tensor_parallel_size=1\n\
        INFO 06-16 14:13:41 [gpu_model_runner.py:2392] Model loading took 56.9342 GiB and 13.4 seconds\n\
        INFO 06-16 14:13:57 [kv_cache_utils.py:864] GPU KV cache size: 94,784 tokens\n\
        INFO 06-16 14:14:04 [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.69 GiB\n";

    /// 300,000 such lines took minutes: each looked through all lines for its own.
    #[test]
    fn a_warning_repeated_without_end_is_read_in_one_pass() {
        let seconds = |lines: usize| {
            let line = "WARNING [x.py:1] Cannot use FlashAttention-2 backend for this card\n";
            let text = format!("{PLAIN}{}", line.repeat(lines));
            let start = std::time::Instant::now();
            facts_from_text(&text, "f.log");
            start.elapsed().as_secs_f64()
        };
        // Eight times the lines in eight times the time, not in 64, however busy the machine is.
        let few = seconds(5_000).max(seconds(5_000));
        let many = seconds(40_000).min(seconds(40_000));
        assert!(many < 24.0 * few, "{few} s, {many} s");
    }

    fn found(more: &str) -> Vec<String> {
        let facts = facts_from_text(&format!("{PLAIN}{more}"), "b.log");
        let findings = find(&[facts]);
        findings
            .into_iter()
            .map(|f| format!("{} [{}]", f.what, f.place))
            .collect()
    }

    #[test]
    fn what_the_engine_itself_warns_of_is_a_finding_with_its_line() {
        for (line, says) in [
            (
                "WARNING 06-16 14:13:55 [fused_moe.py:727] Using default MoE config. Performance might be \
                 sub-optimal! Config file not found at ['/venv/configs/E=128,N=768,device_name=NVIDIA_H100.json']",
                "no tuned kernel for these experts on this card",
            ),
            (
                "WARNING 06-16 14:13:27 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to \
                 the PyTorch-native implementation of top-p & top-k sampling.",
                "sampling runs without FlashInfer",
            ),
            (
                "ERROR 06-16 14:16:20 [serving_chat.py:251] ValueError: This model's maximum context length is \
                 6144 tokens. However, your request has 18244677 input tokens.",
                "1 request was refused as too long",
            ),
            (
                "WARNING 06-16 [scheduler.py:9] Sequence group 5 is preempted by PreemptionMode.RECOMPUTE mode \
                 because there is not enough KV cache space.",
                "1 preemption",
            ),
            (
                "INFO args: cpu_offload_gb=10, x",
                "10 GiB of weights lie in host memory",
            ),
        ] {
            let all = found(line);
            let hit = all
                .iter()
                .any(|f| f.contains(says) && f.ends_with("[b.log:6]"));
            assert!(hit, "{says}: {all:?}");
            assert!(
                !found("").iter().any(|f| f.contains(says)),
                "{says} without it"
            );
        }
        assert!(
            !found("cpu_offload_gb=0,")
                .iter()
                .any(|f| f.contains("host memory"))
        );
    }

    #[test]
    fn a_warning_of_graphs_that_the_arguments_leave_out_is_judged_with_them() {
        let more = "WARNING 06-19 05:50:53 [vllm.py:1067] Enforce eager set, disabling torch.compile and \
                    CUDAGraphs. This is equivalent to setting -cc.mode=none\n\
                    WARNING 06-19 05:51:18 [symm_mem.py:66] SymmMemCommunicator: Device capability 8.6 not \
                    supported, communicator is not available.\n";
        let counted = |text: &str| {
            let facts = facts_from_text(&format!("{text}{more}"), "b.log");
            facts.number("warnings_not_judged")
        };
        let eager = PLAIN.replace(
            "speculative_config=None",
            "enforce_eager=True, speculative_config=None",
        );
        assert_eq!((counted(&eager), counted(PLAIN)), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn lines_that_warn_of_something_else_are_counted_not_judged() {
        let more =
            "WARNING 06-16 [x.py:1] The moon is full.\nERROR 06-16 [y.py:2] So is the disk.\n";
        let facts = facts_from_text(&format!("{PLAIN}{more}"), "b.log");
        let fact = facts.get("warnings_not_judged").expect("counted");
        assert_eq!(
            (facts.number("warnings_not_judged"), fact.line),
            (Some(2.0), 6)
        );
        let text = super::super::render::text(&[facts], &[], &[], None);
        assert!(
            text.starts_with("no fault found among those that explain looks for"),
            "{text}"
        );
        assert!(
            text.contains(
                "2 lines of b.log say WARNING or ERROR and are not judged, the first is line 6"
            ),
            "{text}"
        );
    }
}
