//! `memory.*`: questions from engine logs, readers of configs, weights and pools of whole servers.

mod cards;
mod refit;

use std::path::Path;

use kvplan::{
    Engine, EngineKind, Known, KvDtype, KvLayout, Model, Observed, Quant, Setup, Sharding,
    SpecKind, Speculation, Version, catalog,
};
use serde_json::{Value, json};

use super::{Area, json_lines, mean, quantile};
use cards::card_gib;
use refit::Refits;

/// Scores the four areas.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let mut areas = vec![cases(data)?, configs(data)?];
    areas.extend(scenarios(data)?);
    Ok(areas)
}

// ---- memory.cases -------------------------------------------------------------------------------

fn cases(data: &Path) -> anyhow::Result<Area> {
    let mut area = Area::new("memory.cases");
    let mut right = 0usize;
    for row in json_lines(&data.join("memory/questions.jsonl"))? {
        let (expect, tolerance) = (number(&row["expect"]), number(&row["tolerance"]));
        let (Some(expect), Some(tolerance)) = (expect, tolerance) else {
            area.skipped += 1;
            continue;
        };
        area.n += 1;
        match answer(&row) {
            Some(got) if (got - expect).abs() <= tolerance + 1e-9 => right += 1,
            got => area
                .notes
                .push(format!("{}: {got:?}, expected {expect}", row["id"])),
        }
    }
    area.right = fraction(right, area.n);
    Ok(area)
}

/// The library's answer to one question.
fn answer(row: &Value) -> Option<f64> {
    let given = &row["given"];
    let get = |name: &str| number(&given[name]);
    let known = Known {
        free_before_gib: get("free_before_gib"),
        free_after_gib: get("free_after_gib"),
        pool_gib: get("pool_gib"),
        fraction: get("fraction"),
        bytes_per_token: get("kv_bytes_per_token_per_rank"),
        ..Known::default()
    };
    let page = get("page_size").or(get("block_size")).unwrap_or(1.0) as u64;
    match row["question"].as_str()? {
        "kv_bytes_per_token_per_rank" => bytes_per_token(given),
        "pool_gib" => match get("utilization") {
            Some(utilisation) => Some(kvplan::pool_of_utilisation(
                get("total_gib")?,
                utilisation,
                get("weights_gib")?,
                get("activation_gib")?,
                get("non_torch_gib")?,
            )),
            None => known.infer().known.pool_gib,
        },
        "inferred_fraction" => known.infer().known.fraction,
        "fraction_min" => known.infer().fraction_min,
        "kv_tokens" | "longest_context" => {
            let pool = known.infer().known.pool_gib?;
            Some(kvplan::tokens_in_pool(pool, known.bytes_per_token?, page) as f64)
        }
        "kv_needed_gib" => Some(known.bytes_per_token? * get("max_model_len")? / kvplan::GIB),
        "max_concurrency" => Some(get("kv_tokens")? / get("max_model_len")?),
        _ => None,
    }
}

/// Bytes a token takes, through the config reader.
fn bytes_per_token(given: &Value) -> Option<f64> {
    let mut config = json!({
        "architectures": ["Question"], "hidden_size": 1024, "vocab_size": 1024,
        "num_attention_heads": 128, "num_hidden_layers": given["layers"],
    });
    for (from, to) in [
        ("kv_heads", "num_key_value_heads"),
        ("head_dim", "head_dim"),
        ("kv_lora_rank", "kv_lora_rank"),
        ("qk_rope_head_dim", "qk_rope_head_dim"),
    ] {
        config[to] = given[from].clone();
    }
    config["qk_nope_head_dim"] = json!(128);
    config["v_head_dim"] = if given["kv_lora_rank"].is_null() {
        Value::Null
    } else {
        json!(128)
    };
    let model = Model::from_config_json(&config.to_string(), "question").ok()?;
    let layout = KvLayout::new(KvDtype::parse(given["kv_dtype"].as_str()?)?);
    let sharding = Sharding::tp(given["tp"].as_u64()?);
    Some(model.kv_bytes_per_token(&sharding, &layout) as f64)
}

// ---- memory.configs -----------------------------------------------------------------------------

fn configs(data: &Path) -> anyhow::Result<Area> {
    let folder = data.join("hf_configs");
    let index = crate::input::read_text(&folder.join("index.tsv"))?;
    let mut lines = index.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    let column = |name: &str| header.iter().position(|h| *h == name);
    let (kv, indexer, kv_heads) = (
        column("kv_bytes_per_token_bf16_tp1"),
        column("indexer_bytes_per_token"),
        column("kv_heads"),
    );
    let mut area = Area::new("memory.configs");
    let mut right = 0usize;
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let Some(file) = cells.first() else { continue };
        let expected = |column: Option<usize>| cells.get(column?)?.parse::<u64>().ok();
        let text = crate::input::read_text(&folder.join(file))?;
        if let Some(why) = contradiction(&text, expected(kv_heads)) {
            area.skipped += 1;
            area.notes.push(format!("{file}: skipped, {why}"));
            continue;
        }
        area.n += 1;
        match Model::from_config_json(&text, file) {
            Err(error) => area.notes.push(error.to_string()),
            Ok(model) => {
                let layout = KvLayout::new(KvDtype::Bf16);
                let bytes = model.kv_bytes_per_token(&Sharding::tp(1), &layout);
                let index_bytes = model.index_bytes_per_token();
                let agrees = expected(kv).is_none_or(|e| e == bytes)
                    && expected(indexer).is_none_or(|e| e == index_bytes);
                if agrees {
                    right += 1;
                } else {
                    area.notes.push(format!(
                        "{file}: {bytes} bytes a token, index bytes {index_bytes}"
                    ));
                }
            }
        }
    }
    area.right = fraction(right, area.n);
    Ok(area)
}

/// Where a row of the index does not say what its own file says, and so judges nothing: grouped
/// queries are on in the file (ChatGLM's spelling, which vLLM, SGLang and MLC all follow) and the
/// row counts other KV heads.
fn contradiction(config: &str, kv_heads: Option<u64>) -> Option<String> {
    let config: Value = serde_json::from_str(config).ok()?;
    let groups = config["multi_query_group_num"].as_u64()?;
    let counted = kv_heads?;
    (config["multi_query_attention"] == true && counted != groups).then(|| {
        format!("the index counts {counted} KV heads, the file has multi_query_group_num {groups}")
    })
}

// ---- memory.weights, memory.from_flags ----------------------------------------------------------

fn scenarios(data: &Path) -> anyhow::Result<Vec<Area>> {
    let mut weights = Errors::new("memory.weights", 0.02);
    let mut flags = Errors::new("memory.from_flags", 0.06);
    let mut refits = Refits::new(data)?;
    for row in json_lines(&data.join("memory/scenarios.jsonl"))? {
        let id = row["id"].as_str().unwrap_or("?").to_string();
        let Some(scenario) = Scenario::read(data, &row) else {
            weights.skip(&id, "model or engine not placed");
            flags.skip(&id, "model or engine not placed");
            continue;
        };
        let plan = match scenario.plan() {
            Ok(plan) => plan,
            Err(error) => {
                flags.skip(&id, &error.to_string());
                continue;
            }
        };
        let expect = &row["expect"];
        let draft_gib = plan.ledger.draft_loaded_gib();
        refits.add(&id, &scenario, &plan);
        let loaded = plan.computed_weights_gib
            + if scenario.engine.kind == EngineKind::Vllm {
                draft_gib
            } else {
                0.0
            };
        if let Some(measured) = number(&expect["weights_gib"]) {
            weights.add(&id, "weights GiB", loaded, measured);
        }
        if let Some(measured) = number(&expect["kv_gib"]) {
            flags.add(&id, "pool GiB", pool_with_draft(&plan), measured);
        }
        if let Some(measured) = number(&expect["kv_tokens"]) {
            let printed = plan.printed_tokens(scenario.engine);
            flags.add(&id, "tokens", printed as f64, measured);
        }
    }
    let mut flags = flags.area();
    flags.notes.push(
        "partly in-sample: the sampler's bytes a logit and SGLang's first kernels are fitted on rows \
         of this table"
            .to_string(),
    );
    flags.notes.extend(refits.note());
    Ok(vec![weights.area(), flags])
}

/// vLLM prints one pool for target and draft layers.
fn pool_with_draft(plan: &kvplan::Plan) -> f64 {
    plan.pool_gib
}

/// One server of the data.
struct Scenario {
    model: Model,
    draft: Option<Model>,
    mtp: bool,
    depth: u64,
    engine: Engine,
    card_gib: f64,
    row: Value,
}

impl Scenario {
    fn read(data: &Path, row: &Value) -> Option<Self> {
        let text = |name: &str| row[name].as_str();
        let version = Version::find(text("engine_version")?);
        let mut engine = Engine::parse(text("engine")?).ok()?;
        if let Some(version) = version {
            engine = Engine::at(engine.kind, version);
        }
        let model = read_model(data, row)?;
        let draft_row = &row["draft"];
        let draft = match draft_row["kind"].as_str() {
            Some("mtp") | None => None,
            Some(_) => Some(read_draft(draft_row, &model)?),
        };
        let stated = number(&row["given"]["total_gib"]).map(|gib| gib + 0.5);
        Some(Self {
            mtp: draft_row["kind"] == "mtp",
            depth: draft_row["depth"].as_u64().unwrap_or(3),
            card_gib: card_gib(text("gpu").unwrap_or_default()).or(stated)?,
            model,
            draft,
            engine,
            row: row.clone(),
        })
    }

    fn plan(&self) -> Result<kvplan::Plan, kvplan::PlanError> {
        let given = &self.row["given"];
        let mut setup = Setup::new(&self.model, self.sharding(), self.engine, self.card_gib);
        self.flags(&mut setup);
        let gpu = self.row["gpu"].as_str().map(str::to_ascii_lowercase);
        let is_one_of = |cards: &[&str]| {
            let gpu = gpu.as_deref()?;
            Some(cards.iter().any(|card| gpu.contains(card)))
        };
        setup.big_card = is_one_of(&["a100", "gb10"]).map(|small| self.card_gib >= 70.0 && !small);
        setup.mxfp4_kernels = is_one_of(&["h100", "h200", "h20", "b200", "b300", "gb200"]);
        setup.unified_memory = is_one_of(&["gb10", "orin", "thor"]) == Some(true);
        setup.observed = Observed {
            free_before_gib: number(&given["free_before_gib"]),
            torch_total_gib: number(&given["total_gib"]),
            pool_gib: number(&given["pool_gib"]),
            pool_with_draft: self.mtp || self.draft.is_some(),
            ..Observed::default()
        };
        if self.mtp || self.draft.is_some() {
            setup.speculation = Some(Speculation {
                kind: if self.mtp {
                    SpecKind::Mtp
                } else {
                    SpecKind::Eagle
                },
                draft: self.draft.as_ref(),
                steps: self.depth,
                topk: 1,
                draft_tokens: self.depth + 1,
            });
        }
        kvplan::plan(&setup)
    }

    /// How the row spreads the model; what it does not name is 1.
    fn sharding(&self) -> Sharding {
        let ways = |name: &str| {
            let beside = [&self.row, &self.row["parallel"], &self.row["flags"]];
            let found = beside.iter().find_map(|place| place[name].as_u64());
            found.unwrap_or(1).max(1)
        };
        Sharding {
            pp: ways("pp"),
            ep: ways("ep"),
            dp_attention: ways("dp_attention"),
            dcp: ways("dcp"),
            ..Sharding::tp(ways("tp"))
        }
    }

    /// The flags of the row, under either engine's names.
    fn flags(&self, setup: &mut Setup<'_>) {
        let flags = &self.row["flags"];
        let whole = |names: &[&str]| names.iter().find_map(|name| flags[*name].as_u64());
        setup.fraction =
            number(&flags["mem_fraction_static"]).or(number(&flags["gpu_memory_utilization"]));
        setup.kv_dtype = flags["kv_dtype"].as_str().and_then(KvDtype::parse);
        // A checkpoint's wish for fp8 KV is not followed unless the flag is given.
        setup.kv_dtype = setup.kv_dtype.or(Some(KvDtype::Bf16));
        setup.context_tokens = whole(&["context_len", "context_length", "max_model_len", "ctx"]);
        setup.max_running = whole(&["max_running_requests", "max_num_seqs"]);
        setup.batched_tokens = whole(&["chunked_prefill_size", "max_num_batched_tokens"]);
        setup.max_total_tokens = whole(&["max_total_tokens"]);
        setup.page_tokens = whole(&["page_size"]);
        setup.state_slots = whole(&["max_mamba_cache_size"]);
        setup.graph_max_batch = whole(&["cuda_graph_max_bs", "max_cudagraph_capture_size"]);
        if flags["enforce_eager"] == true || flags["disable_cuda_graph"] == true {
            setup.graph_max_batch = Some(0);
        }
    }
}

/// The model from the config in the data where it is there, else from the catalogue.
fn read_model(data: &Path, row: &Value) -> Option<Model> {
    let quant = row["quant"].as_str();
    let folder = data.join("hf_configs");
    let file = row["config"].as_str().map(|file| folder.join(file));
    if let Some(file) = file.filter(|file| file.is_file()) {
        let name = file.display().to_string();
        let text = crate::input::read_text(&file).ok()?;
        let beside = name.replace("_config.json", "_hf_quant_config.json");
        let quant_text = crate::input::read_text(Path::new(&beside)).ok();
        let model = Model::from_config_and_quant(&text, quant_text.as_deref(), &name).ok()?;
        let plain = text.find("quantization_config").is_none() && quant_text.is_none();
        return match quant.and_then(Quant::parse) {
            Some(quant) if plain => Some(model.requantised(&quant)),
            _ => Some(model),
        };
    }
    let found = catalog::find_in(row["catalogue"].as_str()?, quant).ok()?;
    Some(found.model)
}

/// A draft head from the figures of a row.
fn read_draft(row: &Value, target: &Model) -> Option<Model> {
    let hidden = row["hidden"].as_u64()?;
    let head_dim = row["head_dim"].as_u64().unwrap_or(128).max(1);
    let config = json!({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "num_hidden_layers": row["layers"], "hidden_size": hidden,
        "num_attention_heads": hidden / head_dim, "num_key_value_heads": row["kv_heads"],
        "head_dim": head_dim, "intermediate_size": row["intermediate"],
        "vocab_size": target.vocab, "draft_vocab_size": row["draft_vocab"],
    });
    Model::from_config_json(&config.to_string(), "draft").ok()
}

/// Collects errors of one area.
struct Errors {
    area: Area,
    errors: Vec<f64>,
    /// A line a row with its error, to print the worst first.
    rows: Vec<(f64, String)>,
    tolerance: f64,
    right: usize,
}

impl Errors {
    fn new(name: &str, tolerance: f64) -> Self {
        Self {
            area: Area::new(name),
            errors: Vec::new(),
            rows: Vec::new(),
            tolerance,
            right: 0,
        }
    }

    fn skip(&mut self, id: &str, why: &str) {
        self.area.skipped += 1;
        self.area.notes.push(format!("{id}: skipped, {why}"));
    }

    fn add(&mut self, id: &str, what: &str, predicted: f64, measured: f64) {
        let error = if predicted > 0.0 && measured > 0.0 {
            (predicted / measured).ln().abs()
        } else {
            f64::INFINITY
        };
        self.errors.push(error);
        let within = (predicted / measured - 1.0).abs() <= self.tolerance;
        self.right += usize::from(within);
        let mark = if within { "" } else { "  <- miss" };
        let line = format!(
            "{id} {what}: {predicted:.2}, measured {measured:.2} ({:+.1} %){mark}",
            (predicted / measured - 1.0) * 100.0
        );
        self.rows.push((error, line));
    }

    fn area(mut self) -> Area {
        let count = self.errors.len();
        self.rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut area = self.area;
        area.notes
            .extend(self.rows.into_iter().map(|(_, line)| line));
        area.n = count;
        area.median_error = quantile(&self.errors, 0.5);
        area.p90_error = quantile(&self.errors, 0.9);
        area.mean_error = mean(
            &self
                .errors
                .iter()
                .copied()
                .filter(|e| e.is_finite())
                .collect::<Vec<_>>(),
        );
        area.right = fraction(self.right, count);
        area
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn fraction(right: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| right as f64 / of as f64)
}
