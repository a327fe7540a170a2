//! The weight format of a log that names a class alone: asked for where no model of that class takes in its usual
//! format what the log's server loaded.

use kvplan::catalog::{Found, find, find_in, names};
use kvplan::{GIB, KvDtype, Sharding};

use super::{LogScenario, Words};
use crate::explain::facts::Facts;
use crate::plan::{WEIGHTS_OFF, usual_of_the_nearest};

/// Beside `--kv-dtype` a sweep that does not say its KV format is of the engine's own, and is moved: that of a log
/// without a name is most likely of the log's.
pub(super) fn of_the_sweep(
    line: &mut Words,
    said: &LogScenario,
    sweep: Option<String>,
    piped: bool,
) {
    let told = said.kv_dtype.as_ref().map(|(dtype, _)| dtype.as_str());
    let other = |dtype: &&str| KvDtype::parse(dtype).is_some_and(|dtype| dtype != KvDtype::Bf16);
    let (Some(dtype), Some(sweep)) = (told.filter(other), sweep) else {
        return;
    };
    let start = match said.engine.as_ref().map(|(engine, _)| engine.as_str()) {
        Some("vllm") => Some("vllm serve"),
        Some("sglang") => Some("sglang.launch_server"),
        _ => None,
    };
    let by_log = piped.then(|| "save what was piped and give it as --from-log".to_string());
    let by_line =
        start.map(|start| format!("write `# {start} --kv-cache-dtype {dtype}` above its speeds"));
    let ways: Vec<String> = by_log.into_iter().chain(by_line).collect();
    if ways.is_empty() {
        return;
    }
    line.provided.push(format!(
        "{sweep} does not say its KV format and is taken to be of the engine's own, its steps moved to {dtype}: if it \
         ran in {dtype}, {}",
        ways.join(", or ")
    ));
}

/// Asks for `--quant`, with the formats that fit.
pub(super) fn ask(line: &mut Words, said: &LogScenario, log: Option<&Facts>) {
    let cut = |name: &str| log.and_then(|log| log.number(name)).unwrap_or(1.0) > 1.0;
    if said.quant.is_some() || ["pp", "dp", "ep"].into_iter().any(cut) {
        return;
    }
    let loaded = log.and_then(|log| Some((log.text("model_class")?, log.number("weights_gib")?)));
    let Some((class, gib)) = loaded.filter(|(_, gib)| *gib > 0.0) else {
        return;
    };
    let tp = said.tp.map_or(1, |(tp, _)| u64::from(tp.max(1)));
    let off = |found: &Found| {
        let bytes = found.model.total_weight_bytes(&Sharding::tp(tp));
        (bytes / GIB / gib).ln().abs()
    };
    let fits = |found: &Found| off(found) < WEIGHTS_OFF.ln();
    let of_class = |name: &&str| find(name).is_ok_and(|found| found.model.architecture == class);
    let named: Vec<&'static str> = names().into_iter().filter(of_class).collect();
    if named
        .iter()
        .any(|name| find(name).is_ok_and(|found| fits(&found)))
    {
        return;
    }
    let nearest = |name: &&'static str| {
        let formats = kvplan::QUANTS.into_iter();
        let found = formats.filter_map(|format| Some((format, find_in(name, Some(format)).ok()?)));
        let found = found.filter(|(_, found)| fits(found));
        let found = found.map(|(format, found)| (format, off(&found)));
        Some((usual_of_the_nearest(found.collect())?, *name))
    };
    let found: Vec<(&str, &str)> = named.iter().filter_map(nearest).collect();
    if found.is_empty() {
        return;
    }
    let pairs = found.chunk_by(|a, b| a.0 == b.0).filter_map(|alike| {
        let names: Vec<&str> = alike.iter().map(|(_, name)| *name).collect();
        Some(format!("{} of {}", alike.first()?.0, names.join(", ")))
    });
    let pairs: Vec<String> = pairs.collect();
    line.gap(
        "--quant",
        "QUANT",
        format!(
            "the format of its weights for QUANT, unless that config.json says it (the {gib:.1} GiB on a card are \
             those of {})",
            pairs.join("; ")
        ),
    );
}
