//! Memory: the fraction that was really in use, the wall that was hit, the context that fits.

use super::failed;
use super::pool::{Pool, draft_takes_from_the_pool, fraction_in_use, pool};
use super::{Finding, Severity, any_of, count, fp8_cache, show};
use crate::explain::facts::Facts;
use crate::scenario::EngineKind;
use crate::table::{at_least, at_most};

/// SGLang sizes its pool as free after weights - free before x (1 - fraction); below this much a
/// pool holds nothing useful (a few thousand tokens of a small model).
const USEFUL_POOL_GIB: f64 = 0.5;

/// Above this least fraction nothing is left for graphs and activations either (1.5 % of a 96 GiB
/// card is 1.4 GiB).
const FULL_CARD: f64 = 0.985;

/// Free once ready from which SGLang's guide raises the fraction (hyperparameter tuning: 5 to 8 GB is
/// good, 10 to 20 GB too much).
const MUCH_FREE_GIB: f64 = 10.0;

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let before = found.len();
    match facts.text("engine") {
        Some("vllm") => vllm(facts, found),
        Some(_) | None => sglang(facts, found),
    }
    failed::check(facts, before, found);
    context(facts, found);
    graphs(facts, found);
}

fn sglang(facts: &Facts, found: &mut Vec<Finding>) {
    let flag = facts.number("mem_fraction");
    let Some(pool) = pool(facts) else {
        min_viable_alone(facts, flag, found);
        return;
    };
    let used = fraction_in_use(facts).or_else(|| {
        let earlier = facts.number("earlier_fraction_in_use")?;
        Some((earlier, 0.001))
    });
    if let (Some((fraction, slack)), Some(flag)) = (fraction_in_use(facts), flag)
        && (fraction - flag).abs() > slack + 0.004
        && facts.number("max_total_tokens_flag").is_none()
    {
        other_fraction(facts, &pool, fraction, flag, found);
        return;
    }
    if pool.least() >= FULL_CARD {
        found.push(full_card(facts, &pool));
    } else if let Some(flag) = flag.filter(|flag| *flag <= pool.least()) {
        let what = format!("--mem-fraction-static {flag} can never start here");
        found.push(refusal(facts, &pool, flag, what, used));
    } else if let Some(flag) = flag.filter(|flag| pool.kv(*flag) < USEFUL_POOL_GIB) {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "mem_fraction",
            format!(
                "--mem-fraction-static {flag} leaves a pool of {} GiB",
                show(pool.kv(flag))
            ),
            format!(
                "{} - {} x (1 - {flag})",
                show(pool.after),
                show(pool.before)
            ),
            advice(&pool, used),
        ));
    } else if facts.text("error_kind") == Some("no-memory-for-kv") {
        found.push(Finding::new(
            Severity::Broken,
            facts,
            "error_kind",
            "refused: no memory left for the KV pool",
            format!(
                "{} GiB free before the weights, {} GiB after: the fraction must exceed {}",
                show(pool.before),
                show(pool.after),
                at_most(pool.least(), 4)
            ),
            advice(&pool, used),
        ));
    } else if let (None, Some((fraction, _))) = (flag, fraction_in_use(facts)) {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "kv_gib",
            format!("the memory fraction in use was {fraction:.3}"),
            arithmetic(&pool, fraction),
            "`--from-log` takes it from here; by hand it is --mem-fraction of `plan` and `predict`",
        ));
    }
}

/// What helps where the weights fill the card: engines refuse a --quantization that is another than the
/// checkpoint's own.
pub(super) const LESS_OF_A_CARD: &str = "a checkpoint in a smaller weight format, cards of more memory, or more \
     of them (--tp) where the box has them";

fn full_card(facts: &Facts, pool: &Pool) -> Finding {
    Finding::new(
        Severity::Broken,
        facts,
        "free_after_gib",
        "the weights fill the card: no memory fraction can work",
        format!(
            "{} GiB of {} GiB are free after the weights; the least fraction is {}",
            show(pool.after),
            show(pool.before),
            at_least(pool.least(), 4)
        ),
        LESS_OF_A_CARD,
    )
}

/// The pool proves another fraction than the one named.
fn other_fraction(facts: &Facts, pool: &Pool, fraction: f64, flag: f64, found: &mut Vec<Finding>) {
    let refused = flag <= pool.least();
    let tail = if refused {
        format!("; {flag} can never start here")
    } else {
        String::new()
    };
    found.push(Finding::new(
        if refused {
            Severity::Broken
        } else {
            Severity::Costly
        },
        facts,
        "kv_gib",
        format!("{fraction:.2} was in use, not {flag}{tail}"),
        arithmetic(pool, fraction),
        format!(
            "the setting {flag} belongs to another start; look for --mem-fraction-static in what \
             launched this one (absent, the engine chooses by itself)"
        ),
    ));
    if refused {
        let what = format!("--mem-fraction-static {flag} must be refused, by every version");
        found.push(refusal(facts, pool, flag, what, Some((fraction, 0.0))));
    }
}

fn arithmetic(pool: &Pool, fraction: f64) -> String {
    format!(
        "{} - {} x (1 - f) = {} GiB of KV gives f = {fraction:.3}",
        show(pool.after),
        show(pool.before),
        show(pool.kv(fraction)),
    )
}

fn refusal(
    facts: &Facts,
    pool: &Pool,
    flag: f64,
    what: String,
    used: Option<(f64, f64)>,
) -> Finding {
    let short = pool.kv(flag);
    Finding::new(
        Severity::Broken,
        facts,
        if facts.get("mem_fraction").is_some() {
            "mem_fraction"
        } else {
            "free_after_gib"
        },
        what,
        format!(
            "{} - {} x {} = {} GiB: short by {} GiB before the first KV token. Lowering the \
             fraction makes it worse: it is a share of what was free before the weights, weights \
             included",
            show(pool.after),
            show(pool.before),
            show(1.0 - flag),
            format_args!("{short:.1}"),
            format_args!("{:.1}", -short),
        ),
        advice(pool, used),
    )
}

/// What to set: above the least; the fraction proven on this box where there is one.
fn advice(pool: &Pool, used: Option<(f64, f64)>) -> String {
    let first = pool.first_setting();
    match used.filter(|(fraction, _)| *fraction > first) {
        Some((fraction, _)) => format!(
            "anything from {first:.3} starts; {fraction:.2} is proven here ({} GiB of KV), every \
             0.01 above or below it is {} GiB",
            show(pool.kv(fraction)),
            show(pool.before / 100.0),
        ),
        None => format!(
            "--mem-fraction-static above {}: {first:.3} is the first that starts, every 0.01 \
             above it adds {} GiB of KV; leave about {} GiB outside for graphs and activations",
            at_least(pool.least(), 4),
            show(pool.before / 100.0),
            show((0.06 * pool.before).max(2.0)),
        ),
    }
}

/// Only the error line is there: the engine's own least fraction is all there is to go by.
fn min_viable_alone(facts: &Facts, flag: Option<f64>, found: &mut Vec<Finding>) {
    let Some(least) = facts.number("mem_fraction_min") else {
        return;
    };
    let first = ((least * 1000.0).floor() + 1.0) / 1000.0;
    let (what, mend) = if least >= FULL_CARD {
        (
            "the weights fill the card: no memory fraction can work".to_string(),
            LESS_OF_A_CARD.to_string(),
        )
    } else {
        (
            match flag {
                Some(flag) => format!("--mem-fraction-static {flag} cannot start"),
                None => "the memory fraction is too low to start".to_string(),
            },
            format!(
                "at least {first:.3}; the pool is then nearly empty, so aim for 0.02 to 0.05 more \
                 or free memory (fp8 KV does not help before the pool exists)"
            ),
        )
    };
    found.push(Finding::new(
        Severity::Broken,
        facts,
        "error_kind",
        what,
        format!(
            "weights and draft leave {:.2} % of what was free",
            100.0 * (1.0 - least)
        ),
        mend,
    ));
}

fn vllm(facts: &Facts, found: &mut Vec<Finding>) {
    let fraction = facts.number("gpu_memory_utilization");
    match facts.text("error_kind") {
        Some("no-memory-for-kv") => {
            let kv = facts.number("kv_gib");
            let why = match (kv, facts.number("weights_gib"), fraction) {
                (Some(kv), Some(weights), Some(f)) => format!(
                    "{} GiB of weights; at {f} the budget ends {} GiB short",
                    show(weights),
                    show(-kv)
                ),
                (Some(kv), _, _) => format!("the budget ends {} GiB short", show(-kv)),
                _ => "weights, activations and graphs exceed the budget".to_string(),
            };
            let mend = match (kv, fraction) {
                (Some(kv), Some(f)) if kv < 0.0 => format!(
                    "raise --gpu-memory-utilization {f} by more than {} GiB of the card, or, where \
                     the card is smaller than that, --tensor-parallel-size or quantised weights; a \
                     shorter --max-model-len does not help before the pool exists",
                    show(-kv)
                ),
                _ => "raise --gpu-memory-utilization, or use more GPUs or smaller weights"
                    .to_string(),
            };
            let what = "no memory for any KV block";
            found.push(Finding::new(
                Severity::Broken,
                facts,
                "error_kind",
                what,
                why,
                mend,
            ));
        }
        Some("context-does-not-fit") => too_long(facts, found),
        Some("too-little-free-at-start") => other_process(facts, fraction, found),
        _ => {}
    }
}

fn too_long(facts: &Facts, found: &mut Vec<Finding>) {
    let asked = facts.number("max_model_len").unwrap_or(0.0);
    let why = match (facts.number("kv_needed_gib"), facts.number("kv_gib")) {
        (Some(needed), Some(had)) => format!(
            "one request of {} tokens needs {} GiB, there are {}",
            count(asked),
            show(needed),
            show(had)
        ),
        _ => format!(
            "the pool holds {} tokens",
            count(facts.number("kv_tokens").unwrap_or(0.0))
        ),
    };
    let fits = facts
        .number("longest_context")
        .or_else(|| facts.number("kv_tokens"));
    let mend = match fits {
        Some(longest) => {
            let doubled =
                fp8_cache(facts).map_or("", |_| "; --kv-cache-dtype fp8 about doubles that");
            format!("--max-model-len {longest:.0} starts as it is{doubled}")
        }
        None => any_of(&[
            Some("a shorter --max-model-len".to_string()),
            fp8_cache(facts).map(|_| "--kv-cache-dtype fp8".to_string()),
            Some("more GPUs".to_string()),
        ]),
    };
    found.push(Finding::new(
        Severity::Broken,
        facts,
        "error_kind",
        format!("a context of {} tokens does not fit", count(asked)),
        why,
        mend,
    ));
}

fn other_process(facts: &Facts, fraction: Option<f64>, found: &mut Vec<Finding>) {
    let (Some(free), Some(total)) = (facts.number("free_before_gib"), facts.number("total_gib"))
    else {
        return;
    };
    let most = if total > 0.0 {
        (free / total * 100.0).floor() / 100.0
    } else {
        0.0
    };
    found.push(Finding::new(
        Severity::Broken,
        facts,
        "error_kind",
        "too little memory is free at the start: something else holds it",
        format!(
            "{} of {} GiB free, {} wanted at {}",
            show(free),
            show(total),
            facts.number("wanted_gib").map_or("more".to_string(), show),
            fraction.map_or("this fraction".to_string(), show)
        ),
        format!(
            "end or shrink the other process (nvidia-smi shows it; on unified memory lower the \
             first server's share); as it is, every fraction above {most} is refused"
        ),
    ));
}

/// A context that is promised and cannot be held.
fn context(facts: &Facts, found: &mut Vec<Finding>) {
    let promised = facts
        .number("context_len")
        .or_else(|| facts.number("max_model_len"));
    let (Some(tokens), Some(context)) = (facts.number("kv_tokens"), promised) else {
        return;
    };
    if facts.text("error_kind").is_some() || tokens <= 0.0 {
        return;
    }
    let fits = facts.number("max_concurrency").unwrap_or(tokens / context);
    if fits < 1.0 {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "kv_tokens",
            format!(
                "a context of {} is promised, {} tokens fit",
                count(context),
                count(tokens)
            ),
            "one request of full length does not fit the pool and will be cut or refused",
            any_of(&[
                Some(format!("a context length of {tokens:.0} or less")),
                fp8_cache(facts),
                Some("a higher memory fraction".to_string()),
            ]),
        ));
    } else if fits < 4.0 {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "kv_tokens",
            format!(
                "{} requests of full length ({} tokens) fit",
                show(fits),
                count(context)
            ),
            format!("the pool holds {} tokens", count(tokens)),
            more_at_once(facts, fits),
        ));
    }
}

/// What lets more requests run at a time: the setting where that stops them before the pool does,
/// and of what saves room only what this server has not done and its model can.
fn more_at_once(facts: &Facts, fits: f64) -> String {
    let engine = facts.text("engine").and_then(EngineKind::parse);
    if let (Some(told), Some(engine)) = (facts.number("max_running_requests"), engine)
        && told <= fits.floor()
    {
        let flag = engine.running_flag();
        return format!(
            "for more at a time raise {flag}: at {} a further request waits, however short",
            count(told)
        );
    }
    let model = facts.text("model").and_then(|path| {
        let name = path.trim_end_matches('/').rsplit('/').next()?;
        kvplan::catalog::find(name).ok()
    });
    let latent = |layer: &kvplan::Layer| matches!(layer.attention, kvplan::Attention::Mla(_));
    let shared = engine == Some(EngineKind::Vllm)
        && model.is_some_and(|found| found.model.layers.iter().any(latent));
    let room = any_of(&[
        unused(facts),
        fp8_cache(facts),
        Some("a shorter context".to_string()),
        shared.then(|| "decode context parallel".to_string()),
        (super::drafts(facts) && draft_takes_from_the_pool(facts)).then(|| "no draft".to_string()),
    ]);
    format!("for more at a time: {room}")
}

/// A higher fraction, where SGLang leaves more free than it works in.
fn unused(facts: &Facts) -> Option<String> {
    let free = facts.number("free_when_ready_gib")?;
    let fraction = facts.number("mem_fraction_in_use")?;
    (free > MUCH_FREE_GIB).then(|| {
        format!(
            "a higher --mem-fraction-static ({} GiB stay free at {}; `plan` says how far)",
            show(free),
            show(fraction)
        )
    })
}

/// The flag of the largest batch that is captured, as the log's release knows it.
pub(super) fn graph_flag(facts: &Facts) -> String {
    let mut names = ["engine_version", "engine_version_taken"].iter();
    let version = names.find_map(|name| kvplan::Version::find(facts.text(name)?));
    match (facts.text("engine"), version) {
        (Some("vllm"), _) => "--max-cudagraph-capture-size".to_string(),
        (_, Some(version)) => kvplan::sglang_graph_flag(version).to_string(),
        (_, None) => "--cuda-graph-max-bs (--cuda-graph-max-bs-decode from 0.5.14)".to_string(),
    }
}

/// Graphs that cost more than the pool.
fn graphs(facts: &Facts, found: &mut Vec<Finding>) {
    let (Some(graph), Some(kv)) = (facts.number("graph_gib"), facts.number("kv_gib")) else {
        return;
    };
    if kv > 0.0 && graph > kv {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "graph_gib",
            format!("graphs take {} GiB, the KV pool {}", show(graph), show(kv)),
            "every captured batch size keeps its buffers",
            format!("capture fewer sizes ({})", graph_flag(facts)),
        ));
    }
}
