//! What is read, from which texts, and the bounds that a reading keeps.

use std::path::{Path, PathBuf};

use kvplan::{Engine, KvDtype, KvLayout, Model, Observed, Setup, Sharding, SpecKind, Speculation};
use pcie_sim::box_spec::BoxSpec;
use pcie_sim::readers::{self, Hints};

use crate::cli::ScenarioArgs;
use crate::explain::shared_data;
use crate::scenario::Scenario;

/// Texts that a reader is meant for.
pub(super) struct Corpus {
    pub(super) texts: Vec<String>,
}

/// One way in.
pub(super) struct Reader {
    /// Name, for `FUZZ_READER`.
    pub(super) name: &'static str,
    pub(super) corpus: fn() -> anyhow::Result<Corpus>,
    /// Whether the text was read; a broken bound as text.
    pub(super) read: fn(&str) -> Result<bool, String>,
}

pub(super) const READERS: &[Reader] = &[
    Reader {
        name: "config",
        corpus: || {
            folders(
                &[
                    "hf_configs",
                    "hf_configs/mlc_presets",
                    "hf_configs/drafts",
                    "inputs/configs",
                ],
                &[],
            )
        },
        read: config,
    },
    Reader {
        name: "index",
        corpus: || folders(&[], INDEXES),
        read: index,
    },
    Reader {
        name: "topology",
        corpus: || folders(&["topologies", "inputs/topo"], &[]),
        read: topology,
    },
    Reader {
        name: "logs",
        corpus: || {
            folders(
                &["inputs/sglang_logs", "inputs/vllm_logs", "inputs/nccl"],
                &[],
            )
        },
        read: logs,
    },
    Reader {
        name: "bench",
        corpus: || {
            folders(
                &["inputs/bench"],
                &["concurrency,tok_s\n1,50\n8,300.5\n64,1200\n"],
            )
        },
        read: logs,
    },
    Reader {
        name: "box",
        corpus: boxes,
        read: box_file,
    },
    Reader {
        name: "scenario",
        corpus: || folders(&[], SCENARIOS),
        read: scenario,
    },
    Reader {
        name: "metrics",
        corpus: || folders(&[], METRICS),
        read: |text| {
            let _ = crate::verify_hw::metrics::parse(text);
            Ok(true)
        },
    },
];

const INDEXES: &[&str] = &[
    r#"{"metadata": {"total_size": 16060522496}, "weight_map": {"model.embed_tokens.weight": "model-00001-of-00004.safetensors", "lm_head.weight": "model-00004-of-00004.safetensors"}}"#,
    r#"{"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [128256, 4096], "data_offsets": [0, 1050673152]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [1050673152, 16060522496]}}"#,
];

const SCENARIOS: &[&str] = &[
    include_str!("../../catalog/scenarios/kimi-k2.5-8x-rtx-pro-6000.toml"),
    "name = \"small\"\nmodel = \"llama-3.1-8b\"\ngpu = \"rtx-4090\"\ngpus = 2\ntp = 2\nengine = \"vllm@0.11\"\n\
     context = 4096\nconcurrency = [1, 8, 64]\nsteps = 3\ntopk = 1\ndraft_tokens = 4\naccept = \"2.3@3\"\n\
     task = \"chat\"\ntemperature = 0.7\nmem_fraction = 0.9\nkv_dtype = \"fp8\"\ndcp = 1\n",
    "model = \"qwen3-30b-a3b\"\nquant = \"fp8\"\ndraft = \"none\"\nbox = \"2x-rtx-pro-6000\"\nengine = \"sglang@0.5.12\"\n\
     allreduce = \"nccl\"\naccept = \"rates:.65,.40,.24\"\n[observed]\nfree_before_gib = { value = 94.0, source = \"log\" }\n",
];

const METRICS: &[&str] = &[
    "# HELP sglang:gen_throughput x\n# TYPE sglang:gen_throughput gauge\nsglang:gen_throughput{model_name=\"m\",tp_rank=\"0\"} 98.9\n\
     sglang:spec_accept_length{model_name=\"m\"} 2.3\n",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"2\"} 1.5e+03\nvllm:num_requests_running 3\n",
];

/// Texts of the folders of the measured data (where it is there), and some at hand.
fn folders(folders: &[&str], at_hand: &[&str]) -> anyhow::Result<Corpus> {
    let mut texts: Vec<String> = at_hand.iter().map(|text| (*text).to_string()).collect();
    match shared_data() {
        Some(data) => {
            for folder in folders {
                texts.extend(texts_in(&data.join(folder))?);
            }
        }
        None if !folders.is_empty() => println!("skipped {folders:?}: no ../shared/data"),
        None => {}
    }
    Ok(Corpus { texts })
}

fn texts_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && path.extension().is_none_or(|e| e != "source"))
        .filter(|path| path.metadata().is_ok_and(|meta| meta.len() < 70_000))
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| crate::input::read_text(path))
        .collect()
}

fn boxes() -> anyhow::Result<Corpus> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie-sim/catalog");
    Ok(Corpus {
        texts: texts_in(Path::new(folder))?,
    })
}

/// An error for a user is one line that says something.
fn one_line(error: &dyn std::fmt::Display) -> Result<bool, String> {
    let shown = error.to_string();
    if shown.trim().is_empty() || shown.contains('\n') {
        return Err(format!("an error that is not one line: {shown:?}"));
    }
    Ok(false)
}

fn config(text: &str) -> Result<bool, String> {
    let model = match Model::from_config_json(text, "fuzz") {
        Ok(model) => model,
        Err(error) => return one_line(&error),
    };
    // The same text as the quantisation file beside a sound config.
    const SOUND: &str = r#"{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8, "intermediate_size": 8}"#;
    if let Err(error) = Model::from_config_and_quant(SOUND, Some(text), "fuzz") {
        one_line(&error)?;
    }
    let layout = KvLayout::new(KvDtype::Fp8);
    let one = Sharding::tp(1);
    let whole = model.total_weight_bytes(&one);
    let eighth = model.total_weight_bytes(&Sharding::tp(8));
    if !(whole.is_finite() && eighth.is_finite() && eighth <= whole * (1.0 + 1e-9)) {
        return Err(format!("weights {whole} on one card, {eighth} on eight"));
    }
    if model.active_params() > model.total_params() {
        return Err("more parameters a token than there are".to_string());
    }
    let (_, _) = (
        model.kv_bytes_per_request(100_000, &one, &layout),
        model.state_bytes_per_request(&one),
    );
    plans(&model)?;
    Ok(true)
}

/// Every engine's plan adds up to the card, and speculation never adds tokens.
fn plans(model: &Model) -> Result<(), String> {
    for (name, tp) in [
        ("sglang", 8),
        ("vllm", 1),
        ("trtllm", 2),
        ("llamacpp", 1),
        ("sglang@0.4.1", 1),
    ] {
        let engine = Engine::parse(name)?;
        let mut setup = Setup::new(model, Sharding::tp(tp), engine, 95.6);
        for with_draft in [false, true] {
            setup.speculation = with_draft.then_some(Speculation {
                kind: SpecKind::Mtp,
                draft: None,
                steps: 3,
                topk: 1,
                draft_tokens: 4,
            });
            let plan = match kvplan::plan(&setup) {
                Ok(plan) => plan,
                Err(error) => {
                    one_line(&error)?;
                    continue;
                }
            };
            let sum = plan.ledger.sum();
            if !((sum - 95.6).abs() < 1e-3 || sum.abs() > 1e9) {
                return Err(format!("{name}: the ledger adds up to {sum}"));
            }
            if plan.fraction.is_nan() || plan.pool_gib.is_nan() || plan.max_concurrency.is_nan() {
                return Err(format!("{name}: {plan:?}"));
            }
            // llama.cpp says what the context needs, and refuses.
            if plan.pool_gib > 95.6 && plan.refusal.is_none() {
                return Err(format!("{name}: a pool of {} GiB on 95.6", plan.pool_gib));
            }
        }
    }
    Ok(())
}

fn index(text: &str) -> Result<bool, String> {
    let found = kvplan::catalog::find("llama-3.1-8b").map_err(|error| error.to_string())?;
    match found.model.with_checkpoint(text) {
        Ok(model) => {
            let gib = model.total_weight_bytes(&Sharding::tp(1)) / kvplan::GIB;
            if (7.0..=31.0).contains(&gib) {
                Ok(true)
            } else {
                Err(format!("an 8B of {gib} GiB"))
            }
        }
        Err(error) => one_line(&error),
    }
}

fn topology(text: &str) -> Result<bool, String> {
    let _ = readers::facts(text);
    for gpus in [None, Some(2)] {
        let hints = Hints {
            gpus,
            ..Hints::default()
        };
        match readers::read(text, &hints) {
            Ok(spec) => in_bounds(&spec)?,
            Err(error) => return one_line(&error),
        };
    }
    Ok(true)
}

/// A box that was read can be written, read back, and wired; its links have a rate.
fn in_bounds(spec: &BoxSpec) -> Result<(), String> {
    let written = spec.to_toml().map_err(|error| error.to_string())?;
    let back = BoxSpec::from_toml(&written).map_err(|error| format!("read back: {error}"))?;
    if back != *spec {
        return Err("read back differs".to_string());
    }
    match pcie_sim::Topology::from_spec(spec, pcie_sim::Arch::HOPPER) {
        Ok(topology) if topology.gpu_count() != spec.gpu_count() => {
            Err("GPUs were lost on the way".to_string())
        }
        Ok(_) => Ok(()),
        Err(error) => one_line(&error).map(|_| ()),
    }
}

fn box_file(text: &str) -> Result<bool, String> {
    match BoxSpec::from_toml(text) {
        Ok(spec) => in_bounds(&spec).map(|()| true),
        Err(error) => one_line(&error),
    }
}

fn logs(text: &str) -> Result<bool, String> {
    crate::explain::hostile::read_all(text);
    Ok(!crate::explain::facts_from_text(text, "fuzz").is_empty())
}

/// The scenario file, and as the log, baseline and table that a scenario may name.
fn scenario(text: &str) -> Result<bool, String> {
    let path = std::env::temp_dir().join(format!("fuzz-scenario-{}.toml", std::process::id()));
    std::fs::write(&path, text).map_err(|error| error.to_string())?;
    let args = ScenarioArgs {
        scenario: Some(path.display().to_string()),
        ..ScenarioArgs::default()
    };
    match Scenario::resolve(&args) {
        Ok(scenario) => {
            let plain = scenario.concurrency.iter().all(|c| *c > 0) && scenario.tp > 0;
            // A context of 0 is decoding from an empty prompt, as some benches do.
            if plain {
                Ok(true)
            } else {
                Err("a load or tp of 0 got through".to_string())
            }
        }
        Err(error)
            if error
                .chain()
                .any(|cause| cause.is::<crate::input::InputError>()) =>
        {
            one_line(&error)
        }
        Err(error) => Err(format!("called a fault of ours: {error:#}")),
    }
}

/// Kept here so that the observed figures of a plan are bounded too.
#[test]
fn hostile_observed_figures_give_a_plan_or_one_line() -> Result<(), String> {
    let found = kvplan::catalog::find("qwen3-next-80b-a3b").map_err(|error| error.to_string())?;
    let figures = [
        None,
        Some(0.0),
        Some(-1.0),
        Some(1e-300),
        Some(1e300),
        Some(f64::NAN),
        Some(f64::INFINITY),
    ];
    for name in ["sglang", "vllm", "trtllm", "llamacpp"] {
        for before in figures {
            for after in figures {
                for fraction in figures {
                    let mut setup =
                        Setup::new(&found.model, Sharding::tp(1), Engine::parse(name)?, 80.0);
                    setup.fraction = fraction;
                    setup.observed = Observed {
                        free_before_gib: before,
                        free_after_gib: after,
                        pool_gib: after,
                        torch_total_gib: before,
                        ..Observed::default()
                    };
                    match kvplan::plan(&setup) {
                        Ok(plan) if plan.pool_gib.is_nan() || plan.fraction.is_nan() => {
                            return Err(format!("{name} {before:?} {after:?} {fraction:?}: NaN"));
                        }
                        Ok(_) => {}
                        Err(error) => drop(one_line(&error)?),
                    }
                }
            }
        }
    }
    Ok(())
}
