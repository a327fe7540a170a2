//! SGLang's kernels of dense multi-head latent attention that read no FP8 cache: they cast each layer's
//! whole pool to bf16 in every pass, whatever the load.
//!
//! Source, read in the wheels 0.4.9 to 0.5.23. What runs by itself: `model_specific_adjustment` of
//! model_runner.py, later `_get_default_attn_backend` and the overrides of DeepSeek-V3 in server_args.py and
//! arg_groups. What casts: `get_key_buffer(layer_id).to(q.dtype)` in `forward_decode` and `forward_extend` of
//! flashattention_backend.py (its query goes to FP8 up to 256 elements a head; absorbed it has 576) and of
//! flashinfer_mla_backend.py. flashmla_backend.py and trtllm_mla_backend.py cast the query instead, in a verify
//! too; Triton, which runs on all other cards, widens what it loads. vLLM's backends (0.10.2 to 0.33.0) read
//! FP8 as it is or refuse it.

use kvplan::{Attention, KvDtype, Mla, Version};
use spec_decode::HeadKind;

use super::answer::Assumption;
use super::flags::Setting;
use crate::explain::carried::ATTENTION;
use crate::scenario::{E5M2, EngineChoice, EngineKind, Scenario};
use crate::step_time::{Server, copy_us};
use crate::table::thousands;

/// The flag of the draft's own kernels (from 0.5.7 on).
const DRAFT_ATTENTION: &str = "--speculative-draft-attention-backend";
/// Bytes read and written of an element that is cast.
const CAST_BYTES: f64 = 3.0;
/// Bytes of an element in bf16.
const BF16_BYTES: f64 = 2.0;

/// A kernel that reads FP8, and the draft's own beside it where that has other attention.
type Instead = (&'static str, Option<&'static str>);

/// A server that casts.
pub(crate) struct PoolCast<'a> {
    scenario: &'a Scenario,
    /// The kernel.
    by: &'static str,
    instead: Option<Instead>,
    /// Whether the pasted line names that one: not where a log or a sweep is of a server as it is.
    named: bool,
    /// Elements of a token in a layer.
    width: f64,
}

impl<'a> PoolCast<'a> {
    /// Whether an engine casts an FP8 cache of this scenario by itself.
    pub(crate) fn of(scenario: &'a Scenario, engine: &EngineChoice) -> Option<Self> {
        let mla = dense_latent(scenario)?;
        if engine.kind != EngineKind::Sglang || scenario.dcp > 1 {
            return None;
        }
        let rules = Rules::new(scenario, engine);
        let own = scenario.engine.kind == EngineKind::Sglang;
        let told = scenario.ran.carried.value(ATTENTION).filter(|_| own);
        let by = match told {
            Some("fa3") => "fa3",
            Some("flashinfer") => "flashinfer",
            Some(_) => return None,
            None => rules.by_itself()?,
        };
        let swept = scenario.baseline.is_some() && scenario.swept_kv_dtype == KvDtype::Fp8;
        let as_it_is = own && (!scenario.ran.file.is_empty() || swept);
        let instead = rules.instead();
        Some(Self {
            scenario,
            by,
            named: instead.is_some() && !as_it_is,
            instead,
            width: (mla.kv_lora_rank + mla.qk_rope_head_dim) as f64,
        })
    }

    /// Time of one layer's cast, us.
    fn layer_us(&self, tokens: f64) -> f64 {
        copy_us(self.scenario.gpu, CAST_BYTES * self.width * tokens)
    }

    /// What it takes of every pass, in words.
    fn pass(&self, tokens: u64) -> String {
        let layers = self.scenario.model.layers.len() as f64;
        let ms = layers * self.layer_us(tokens as f64) * 1e-3;
        format!("{ms:.1} ms for {} tokens", thousands(tokens as f64))
    }

    /// What one layer's copy takes, in words.
    fn room(&self, tokens: u64) -> String {
        let gib = tokens as f64 * self.width * BF16_BYTES / (1_u64 << 30) as f64;
        format!("{gib:.2} GiB")
    }

    /// What does not cast.
    fn way_out(&self) -> String {
        match self.instead {
            Some((kernel, _)) => format!("{ATTENTION} {kernel} reads fp8 as it is"),
            _ => "no kernel that comes with it is known to read fp8 here with this draft; a cache in bf16 is not \
                  cast"
                .to_string(),
        }
    }

    /// What a pool of so many tokens in FP8 costs, beside the pool that is planned.
    pub(crate) fn of_other(&self, tokens: u64) -> String {
        format!(
            "; SGLang's own {} casts each layer's whole pool to bf16 in every pass, {}: {}",
            self.by,
            self.pass(tokens),
            self.way_out()
        )
    }

    /// The same of the pool that is planned.
    pub(crate) fn of_own(&self, tokens: u64) -> String {
        format!(
            "SGLang's {} casts each layer's whole fp8 pool to bf16 in every pass, {}, and {} for it that no line \
             below has: {}",
            self.by,
            self.pass(tokens),
            self.room(tokens),
            self.way_out()
        )
    }
}

/// What SGLang runs, by card, release and model.
struct Rules<'a> {
    scenario: &'a Scenario,
    version: Option<Version>,
    major: Option<u64>,
}

impl<'a> Rules<'a> {
    fn new(scenario: &'a Scenario, engine: &EngineChoice) -> Self {
        Self {
            scenario,
            version: engine.version.as_deref().and_then(Version::find),
            major: scenario.gpu.compute_major(),
        }
    }

    fn since(&self, number: (u32, u32, u32), date: (u32, u32)) -> bool {
        self.version
            .is_none_or(|version| version.since(number, date))
    }

    /// The kernel that casts, where it runs by itself.
    fn by_itself(&self) -> Option<&'static str> {
        let typed = self.scenario.input("kv_dtype");
        let e5m2 = typed.is_some_and(|input| input.value == E5M2);
        if !self.since((0, 4, 9), (2025, 7)) {
            return None;
        }
        match self.major {
            // That one goes to Triton.
            Some(9) => (!e5m2).then_some("fa3"),
            Some(10) => (!self.trtllm_by_itself()).then_some("flashinfer"),
            _ => None,
        }
    }

    /// Whether the model is one for which TensorRT-LLM's kernels run on compute capability 10.
    fn trtllm_by_itself(&self) -> bool {
        match self.scenario.model.architecture.as_str() {
            "DeepseekV3ForCausalLM" => self.since((0, 5, 4), (2025, 10)),
            "KimiK25ForConditionalGeneration"
            | "MistralLarge3ForCausalLM"
            | "PixtralForConditionalGeneration" => self.since((0, 5, 9), (2026, 2)),
            "LongcatFlashForCausalLM" => self.since((0, 5, 16), (2026, 7)),
            _ => false,
        }
    }

    /// What comes with the engine: FlashMLA's takes chains alone, and comes with SGLang's kernels since 0.5.4.post3;
    /// TensorRT-LLM's verifies in FP8 since 0.5.2.
    fn instead(&self) -> Option<Instead> {
        let chain = self.scenario.topk.unwrap_or(1) == 1;
        let own = self.draft_is_latent()?;
        match (self.major, own) {
            (Some(9), true) if chain && self.since((0, 5, 5), (2025, 11)) => {
                Some(("flashmla", None))
            }
            (Some(9), false) if chain && self.since((0, 5, 7), (2026, 1)) => {
                Some(("flashmla", Some("fa3")))
            }
            (Some(10), true) if chain && self.since((0, 5, 2), (2025, 9)) => {
                Some(("trtllm_mla", None))
            }
            _ => None,
        }
    }

    /// Whether a draft runs on the target's kernels; `None` for those whose verify is not known to.
    fn draft_is_latent(&self) -> Option<bool> {
        let Some(draft) = &self.scenario.draft else {
            return Some(true);
        };
        match (draft.head, &draft.model) {
            (HeadKind::NGram | HeadKind::Parallel, _) => None,
            (_, None) => Some(true),
            (_, Some(model)) => {
                let latent = |layer: &kvplan::Layer| matches!(layer.attention, Attention::Mla(_));
                Some(model.layers.iter().all(latent))
            }
        }
    }
}

/// The attention of a model whose layers all have a latent cache without an index.
fn dense_latent(scenario: &Scenario) -> Option<Mla> {
    let dense = |layer: &kvplan::Layer| match layer.attention {
        Attention::Mla(mla) => Some(mla).filter(|mla| mla.indexer.is_none()),
        _ => None,
    };
    let layers = &scenario.model.layers;
    layers
        .iter()
        .all(|layer| dense(layer).is_some())
        .then_some(())?;
    layers.first().and_then(dense)
}

/// The server with the cast in its passes, where a cache in this format has it and no pasted flag avoids it.
pub(super) fn on<'a>(server: Server<'a>, scenario: &Scenario, dtype: KvDtype) -> Server<'a> {
    let cast = PoolCast::of(scenario, &scenario.engine);
    let Some(cast) = cast.filter(|cast| dtype == KvDtype::Fp8 && !cast.named) else {
        return server;
    };
    let mut stored = scenario.clone();
    stored.kv_dtype = dtype;
    let memory = crate::plan::memory(&stored).ok();
    let tokens = memory.and_then(|memory| memory.kv_tokens).unwrap_or(0);
    server.with_pool_cast(cast.layer_us(tokens as f64))
}

/// Flags of a line of SGLang that avoid it.
pub(super) fn flags(scenario: &Scenario, engine: &EngineChoice, drafts: bool) -> Vec<String> {
    let cast = PoolCast::of(scenario, engine).filter(|cast| cast.named);
    let fp8 = scenario.kv_dtype == KvDtype::Fp8;
    let Some((target, draft)) = cast.filter(|_| fp8).and_then(|cast| cast.instead) else {
        return Vec::new();
    };
    let flag = |name: &str, kernel: &str| [name.to_string(), kernel.to_string()];
    let draft = draft.filter(|_| drafts);
    let draft = draft.map(|kernel| flag(DRAFT_ATTENTION, kernel));
    let both = [flag(ATTENTION, target)].into_iter().chain(draft);
    both.flatten().collect()
}

/// What an answer with a cache in FP8 says of it.
pub(super) fn told(setting: &Setting<'_>) -> Option<Assumption> {
    let scenario = setting.scenario;
    let fp8 = scenario.kv_dtype == KvDtype::Fp8 && setting.runs;
    let cast = PoolCast::of(scenario, &scenario.engine).filter(|_| fp8)?;
    let tokens = setting.memory.kv_tokens?;
    let (by, pass, room) = (cast.by, cast.pass(tokens), cast.room(tokens));
    let what = match cast.named {
        true => format!(
            "fp8 KV: by itself SGLang runs {by} here, which casts each layer's whole pool to bf16 in every pass \
             ({pass}); {}: it is in the paste, and the figures are of it",
            cast.way_out()
        ),
        false => format!(
            "fp8 KV: SGLang's {by} casts each layer's whole pool to bf16 in every pass, {pass}, which the \
             figures hold, and {room} for it, which the ledger does not; {}",
            cast.way_out()
        ),
    };
    Some(Assumption {
        what,
        settled_by: String::new(),
    })
}
