//! The human text of `explain`: findings first, then facts file by file, then what to run.

use super::facts::{Fact, Facts, Value};
use super::findings::{Finding, Severity};
use super::next::Next;

/// Facts shown in text; all others are in `--json`.
const SHOWN: &[&str] = &[
    "engine",
    "engine_version",
    "engine_version_range",
    "model",
    "model_class",
    "quant",
    "gpu",
    "gpus",
    "tp",
    "pp",
    "tp_hosts",
    "mem_fraction",
    "mem_fraction_in_use",
    "mem_fraction_min",
    "gpu_memory_utilization",
    "free_before_gib",
    "weights_gib",
    "draft_weights_gib",
    "free_after_gib",
    "kv_gib",
    "draft_kv_gib",
    "kv_tokens",
    "kv_needed_gib",
    "kv_budget_gib",
    "kv_fraction_of_free",
    "mamba_state_gib",
    "mamba_cache_mode",
    "longest_context",
    "gpu_blocks",
    "max_concurrency",
    "free_after_pool_gib",
    "cuda_graphs",
    "graph_gib",
    "draft_graph_gib",
    "prefill_graph_gib",
    "free_when_ready_gib",
    "max_running_requests",
    "context_len",
    "max_model_len",
    "chunked_prefill_size",
    "kv_dtype",
    "spec_algorithm",
    "draft_model",
    "spec_steps",
    "spec_tokens",
    "spec_topk",
    "spec_draft_tokens",
    "accept_length",
    "gen_tok_s",
    "most_running",
    "kv_usage_percent",
    "held_tokens_per_request",
    "prefix_hit_percent",
    "concurrency",
    "output_tok_s",
    "requests_per_s",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "median_ttft_ms",
    "median_tpot_ms",
    "op",
    "ranks",
    "distinct_gpus",
    "avg_busbw_gb_s",
    "max_busbw_gb_s",
    "smallest_bytes",
    "smallest_time_us",
    "decode_size_bytes",
    "decode_size_time_us",
    "nccl_p2p_links",
    "nccl_shm_links",
    "nccl_net_links",
    "nccl_channels",
    "nccl_choice",
    "nccl_network",
    "custom_all_reduce_disabled",
    "all_reduce_switches",
    "custom_all_reduce",
    "custom_all_reduce_max_bytes",
    "custom_all_reduce_max_rows",
    "unidirectional_gb_s",
    "bidirectional_gb_s",
    "p2p_latency_us",
    "slowest_pair_gb_s",
    "p2p",
    "p2p_groups",
    "d2d_read_gb_s",
    "d2d_write_gb_s",
    "h2d_gb_s",
    "d2h_gb_s",
    "farthest_link",
    "nvlink",
    "memory_mib",
    "bar1_mib",
    "iommu",
    "layers",
    "kv_heads",
    "head_dim",
    "kv_bytes_per_token",
    "sliding_window",
    "draft_vocab",
    "error",
    "error_at",
    "error_kind",
    "ready",
];

/// The whole text.
pub(crate) fn text(
    files: &[Facts],
    findings: &[Finding],
    ratios: &[String],
    next: Option<&Next>,
) -> String {
    let mut out = String::new();
    for finding in findings {
        let word = match finding.severity {
            Severity::Broken => "WRONG",
            Severity::Costly => "COSTS",
            Severity::Note => "note ",
        };
        out.push_str(&format!("{word}  {}   [{}]\n", finding.what, finding.place));
        wrap(&mut out, "       why  ", &finding.why);
        wrap(&mut out, "       do   ", &finding.mend);
    }
    if findings.is_empty() {
        out.push_str(
            "no fault found among those that explain looks for (docs/explain.md lists them)\n",
        );
    }
    for facts in files {
        if let Some((lines, fact)) = facts
            .number("warnings_not_judged")
            .zip(facts.get("warnings_not_judged"))
        {
            let (s, say, are) = if lines == 1.0 {
                ("", "says", "is")
            } else {
                ("s", "say", "are")
            };
            out.push_str(&format!(
                "{lines} line{s} of {} {say} WARNING or ERROR and {are} not judged, the first is line {}\n",
                facts.file, fact.line
            ));
        }
    }
    for facts in files {
        out.push('\n');
        file(&mut out, facts);
    }
    for (index, ratio) in ratios.iter().enumerate() {
        if index == 0 {
            out.push('\n');
        }
        let head = if index == 0 { "speed  " } else { "       " };
        wrap(&mut out, head, ratio);
    }
    if let Some(next) = next {
        out.push_str(&format!("\nnext   {}\n", next.command));
        if !next.fill_in.is_empty() {
            wrap(
                &mut out,
                "       ",
                &format!("with {}", next.fill_in.join(", ")),
            );
        }
        for what in &next.provided {
            wrap(&mut out, "       ", what);
        }
        for what in &next.left_out {
            wrap(&mut out, "       ", &format!("left out: {what}"));
        }
    }
    out
}

fn file(out: &mut String, facts: &Facts) {
    let kinds = if facts.kinds.is_empty() {
        "not recognised".to_string()
    } else {
        facts.kinds.join(", ")
    };
    out.push_str(&format!("{}   ({kinds})\n", facts.file));
    for note in &facts.notes {
        wrap(out, "  note  ", note);
    }
    for name in SHOWN {
        // The class stands for a name that the file does not say.
        if *name == "model_class" && facts.get("model").is_some() {
            continue;
        }
        if let Some(fact) = facts.get(name) {
            line(out, fact);
        }
    }
}

fn line(out: &mut String, fact: &Fact) {
    let value = match &fact.value {
        Value::Number(number) => plain(*number),
        Value::Text(text) => text.clone(),
    };
    let how = fact
        .how
        .as_ref()
        .map_or(String::new(), |how| format!("  ({how})"));
    out.push_str(&format!(
        "  {:<22} {value:<18} line {}{how}\n",
        fact.name, fact.line
    ));
}

/// At most five significant decimals, none where there are none.
fn plain(number: f64) -> String {
    let text = format!("{number:.5}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" {
        "0".to_string()
    } else {
        text.to_string()
    }
}

/// Words of `text` behind `head`, later lines indented to it, 100 columns.
fn wrap(out: &mut String, head: &str, text: &str) {
    let mut column = head.chars().count();
    out.push_str(head);
    let indent = column;
    // A command between backticks is pasted: it stays in one line.
    let mut quoted = false;
    let words = text.split(|c: char| {
        quoted ^= c == '`';
        c.is_whitespace() && !quoted
    });
    for (index, word) in words.filter(|word| !word.is_empty()).enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > 100 {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}
