//! Rows of `decode.from_scratch`: measured servers with what is known of each.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

use super::super::json_lines;
use crate::step_time::Engine;

/// How the measured figure was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Load {
    /// A steady decode step, all sequences decoding.
    Decode,
    /// Time per output token of clients with prompts and answers of so many tokens.
    Serving { input: f64, output: f64 },
}

/// One measured server at one load.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Where from; rows of one source share a box.
    pub(crate) source: String,
    /// Catalogue name of the model.
    pub(crate) model: String,
    /// Precision, by a name of the catalogue.
    pub(crate) quant: String,
    /// Catalogue name of the GPU.
    pub(crate) gpu: String,
    pub(crate) tp: u64,
    pub(crate) ep: u64,
    pub(crate) dcp: u64,
    pub(crate) engine: Engine,
    pub(crate) version: Option<String>,
    pub(crate) kv_fp8: bool,
    /// Sequences at a time.
    pub(crate) concurrency: f64,
    /// Mean cached tokens per sequence.
    pub(crate) context: f64,
    /// Share of the context that is one prefix common to all sequences.
    pub(crate) shared_prefix: f64,
    pub(crate) load: Load,
    /// Step or time per output token, ms.
    pub(crate) measured_ms: f64,
    /// AIConfigurator's figure for the same row, ms.
    pub(crate) aic_ms: Option<f64>,
}

/// Largest concurrency that is scored.
const LARGEST_LOAD: f64 = 64.0;

/// Rows and why others were left out.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Row>,
    pub(crate) skipped: BTreeMap<String, usize>,
}

impl Rows {
    fn skip(&mut self, why: &str) {
        *self.skipped.entry(why.to_string()).or_default() += 1;
    }
}

/// Names in the data against catalogue names, and precisions.
pub(crate) struct Names {
    names: HashMap<(String, String), (String, String)>,
}

impl Names {
    /// Reads `names.tsv`.
    pub(crate) fn read(data: &Path) -> anyhow::Result<Self> {
        let text = crate::input::read_text(&data.join("names.tsv"))?;
        let names = text
            .lines()
            .skip(1)
            .filter_map(|line| {
                let cells: Vec<&str> = line.split('\t').collect();
                match cells.as_slice() {
                    [kind, shown, name, rest @ ..] => Some((
                        (kind.to_string(), shown.to_string()),
                        (name.to_string(), rest.first().unwrap_or(&"").to_string()),
                    )),
                    _ => None,
                }
            })
            .collect();
        Ok(Self { names })
    }

    /// Catalogue name and precision; names that are no special case are taken as they are.
    pub(crate) fn find(&self, kind: &str, shown: &str) -> (String, String) {
        self.names
            .get(&(kind.to_string(), shown.to_string()))
            .cloned()
            .unwrap_or_else(|| (shown.to_string(), String::new()))
    }
}

/// A CSV as one map per line; quoted cells may hold commas.
pub(crate) fn csv(path: &Path) -> anyhow::Result<Vec<HashMap<String, String>>> {
    let text = crate::input::read_text(path)?;
    let mut lines = text.lines();
    let header = cells(lines.next().unwrap_or_default());
    Ok(lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| header.iter().cloned().zip(cells(line)).collect())
        .collect())
}

fn cells(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            _ => {
                if let Some(cell) = out.last_mut() {
                    cell.push(c);
                }
            }
        }
    }
    out
}

fn number(row: &HashMap<String, String>, key: &str) -> Option<f64> {
    row.get(key)?
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|v| v.is_finite())
}

/// Servers of `end_to_end/`: clean rows with the sample's own precision, concurrency up to 64.
pub(crate) fn end_to_end(data: &Path, names: &Names) -> anyhow::Result<Rows> {
    let folder = data.join("end_to_end");
    let mut out = Rows::default();
    let peer = folder.join("aic_0.12.0_vs_silicon_agg.csv");
    let sample = folder.join("silicon_sample_e2e.csv");
    if !peer.is_file() || !sample.is_file() {
        return Ok(out);
    }
    let measured: HashMap<String, HashMap<String, String>> = csv(&sample)?
        .into_iter()
        .filter_map(|row| Some((row.get("id")?.clone(), row)))
        .collect();
    for row in csv(&peer)? {
        let text = |key: &str| row.get(key).map(String::as_str).unwrap_or_default();
        if text("clean") != "1" {
            out.skip("layout mislabelled (not clean)");
        } else if text("quant_mode") != "as in sample" {
            out.skip("precision chosen by the peer, not the sample's");
        } else {
            match served(&row, measured.get(text("id")), names) {
                Some(row) if row.concurrency <= LARGEST_LOAD => out.rows.push(row),
                Some(_) => out.skip("concurrency over 64"),
                None => out.skip("a field is missing"),
            }
        }
    }
    Ok(out)
}

fn served(
    row: &HashMap<String, String>,
    sample: Option<&HashMap<String, String>>,
    names: &Names,
) -> Option<Row> {
    let text = |key: &str| row.get(key).map(String::as_str).unwrap_or_default();
    let sampled = |key: &str| {
        sample
            .and_then(|s| s.get(key))
            .map(String::as_str)
            .unwrap_or_default()
    };
    let concurrency = sampled("silicon_data_source")
        .split("silicon_concurrency=")
        .nth(1)
        .and_then(|rest| rest.split(';').next())
        .and_then(|n| n.trim().parse::<f64>().ok())
        .or_else(|| number(row, "batch_size"))?;
    let engine = Engine::parse(text("backend"))?;
    let (model, _) = names.find("model", text("model_path"));
    let quant = precision(
        sampled("gemm_quant_mode"),
        sampled("moe_quant_mode"),
        &model,
    );
    let (input, output) = (number(row, "isl")?, number(row, "osl")?);
    Some(Row {
        source: format!("{} {} {}", text("system"), text("backend"), model),
        // NVFP4 checkpoints ask for an fp8 cache, and TensorRT-LLM's runs use one.
        kv_fp8: engine == Engine::Trtllm || (quant == "nvfp4" && model.starts_with("kimi")),
        model: model.rsplit('/').next().unwrap_or_default().to_lowercase(),
        quant,
        gpu: names.find("gpu", text("system")).0,
        tp: number(row, "tp_size")?.max(1.0) as u64,
        ep: number(row, "moe_ep_size").unwrap_or(1.0).max(1.0) as u64,
        dcp: 1,
        engine,
        version: Some(text("backend_version").to_string()),
        concurrency,
        context: input + output / 2.0,
        shared_prefix: 0.0,
        load: Load::Serving { input, output },
        measured_ms: number(row, "silicon_tpot_ms").filter(|v| *v > 0.0)?,
        aic_ms: number(row, "aic_tpot_ms").filter(|v| *v > 0.0),
    })
}

/// The sample's labels as one precision of ours. An empty label is 16 bits.
fn precision(gemm: &str, moe: &str, model: &str) -> String {
    match (gemm, moe) {
        // The sample calls gpt-oss nvfp4; its checkpoints are mxfp4 in the experts alone.
        _ if model.contains("gpt-oss") => "mxfp4-experts",
        ("nvfp4", _) | (_, "nvfp4") => "nvfp4",
        ("fp8_block", _) | (_, "fp8_block") => "fp8-block",
        ("fp8", _) => "fp8",
        ("int4_wo", _) | (_, "int4_wo") => "int4-experts",
        _ => "bf16",
    }
    .to_string()
}

/// Plain points of the speculation sweeps, distinct by (source, model, gpu, tp, context,
/// concurrency).
pub(crate) fn sweeps(data: &Path, names: &Names) -> anyhow::Result<Rows> {
    let mut out = Rows::default();
    let path = data.join("speculation/sweeps.jsonl");
    if !path.is_file() {
        return Ok(out);
    }
    let mut seen = std::collections::HashSet::new();
    for sweep in json_lines(&path)? {
        let points = sweep.get("points").and_then(Value::as_array);
        for point in points.into_iter().flatten() {
            let Some(row) = plain_point(&sweep, point, names) else {
                out.skip("a sweep's model, GPU, tp or context is not given");
                continue;
            };
            if row.concurrency > LARGEST_LOAD {
                out.skip("concurrency over 64");
                continue;
            }
            let key = format!(
                "{} {} {} {} {} {} {}",
                row.source, row.model, row.gpu, row.tp, row.dcp, row.context, row.concurrency
            );
            if seen.insert(key) {
                out.rows.push(row);
            }
        }
    }
    Ok(out)
}

fn plain_point(sweep: &Value, point: &Value, names: &Names) -> Option<Row> {
    let text = |key: &str| sweep.get(key).and_then(Value::as_str);
    let whole = |key: &str| sweep.get(key).and_then(Value::as_u64);
    let tok_s = point.get("plain_tok_s")?.as_f64().filter(|v| *v > 0.0)?;
    let concurrency = point.get("concurrency")?.as_f64()?;
    let (model, quant) = names.find("model", text("model")?);
    let (gpu, _) = names.find("gpu", text("gpu")?);
    // A context that is not said is a short one: these are chat and code prompts.
    let context = match sweep.get("context") {
        Some(Value::String(label)) => context_tokens(label)?,
        Some(Value::Number(n)) => n.as_f64()?,
        _ => SHORT_CONTEXT,
    };
    // This benchmark fills every stream's context with one prompt, which is cached once.
    let one_prompt = text("source").is_some_and(|s| s.starts_with("rtx6kpro/"));
    Some(Row {
        source: text("source")?.to_string(),
        model,
        quant,
        gpu,
        tp: whole("tp")?.max(1),
        ep: 1,
        dcp: whole("dcp").unwrap_or(1).max(1),
        engine: Engine::parse(text("engine")?)?,
        version: text("engine_version").map(str::to_string),
        kv_fp8: false,
        concurrency,
        context: context + SWEEP_ANSWER / 2.0,
        shared_prefix: if one_prompt {
            context / (context + SWEEP_ANSWER / 2.0)
        } else {
            0.0
        },
        load: Load::Decode,
        measured_ms: concurrency / tok_s * 1e3,
        aic_ms: None,
    })
}

/// Prompt of a sweep that names none, tokens.
const SHORT_CONTEXT: f64 = 500.0;
/// Tokens generated at a point of a sweep, about.
const SWEEP_ANSWER: f64 = 512.0;

/// `0`, `16k`, `~83k actual (old `128k` label)` as tokens.
pub(crate) fn context_tokens(label: &str) -> Option<f64> {
    let label = label.trim().trim_start_matches('~').to_ascii_lowercase();
    let digits: String = label
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let unit = label.get(digits.len()..).unwrap_or_default();
    let tokens: f64 = digits.parse().ok()?;
    Some(if unit.starts_with('k') {
        tokens * 1024.0
    } else {
        tokens
    })
}

/// Plain rows of `engine/*.jsonl`.
pub(crate) fn engine(data: &Path, names: &Names) -> anyhow::Result<Rows> {
    let mut out = Rows::default();
    let Ok(folder) = std::fs::read_dir(data.join("engine")) else {
        return Ok(out);
    };
    let mut paths: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
    {
        let source = path.file_stem().map(|s| s.to_string_lossy().into_owned());
        for row in json_lines(path)? {
            if row.get("method").and_then(Value::as_str) != Some("none") {
                continue;
            }
            match measured_engine(&row, source.as_deref().unwrap_or("engine"), names) {
                Some(row) if row.concurrency <= LARGEST_LOAD => out.rows.push(row),
                Some(_) => out.skip("concurrency over 64"),
                None => out.skip("a field is missing"),
            }
        }
    }
    Ok(out)
}

fn measured_engine(row: &Value, source: &str, names: &Names) -> Option<Row> {
    let text = |key: &str| row.get(key).and_then(Value::as_str);
    let float = |key: &str| row.get(key).and_then(Value::as_f64);
    let (model, quant) = names.find("model", text("model")?);
    Some(Row {
        source: source.to_string(),
        model,
        quant,
        gpu: names.find("gpu", text("gpu")?).0,
        tp: row.get("tp").and_then(Value::as_u64)?,
        ep: 1,
        dcp: 1,
        engine: Engine::parse(text("engine")?)?,
        version: text("engine_version").map(str::to_string),
        kv_fp8: false,
        concurrency: float("concurrency")?,
        context: float("context")? + float("output_tokens").unwrap_or(0.0) / 2.0,
        shared_prefix: 0.0,
        load: Load::Decode,
        measured_ms: float("ms_per_token_per_sequence").filter(|v| *v > 0.0)?,
        aic_ms: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_labels_are_read() {
        assert_eq!(context_tokens("0"), Some(0.0));
        assert_eq!(context_tokens("16k"), Some(16384.0));
        assert_eq!(
            context_tokens("~83k actual (old `128k` label)"),
            Some(84992.0)
        );
        assert_eq!(context_tokens("mixed"), None);
    }

    #[test]
    fn labels_of_the_sample_become_precisions_of_the_catalogue() {
        for (gemm, moe, model, expected) in [
            ("nvfp4", "nvfp4", "openai/gpt-oss-120b", "mxfp4-experts"),
            ("fp8", "fp8_block", "qwen3.5-397b-a17b", "fp8-block"),
            ("fp8", "fp8", "minimax-m2.5", "fp8"),
            ("", "", "qwen3-32b", "bf16"),
        ] {
            assert_eq!(precision(gemm, moe, model), expected);
        }
    }

    #[test]
    fn quoted_cells_keep_their_commas() {
        assert_eq!(cells("a,\"b,c\",d"), ["a", "b,c", "d"]);
    }
}
