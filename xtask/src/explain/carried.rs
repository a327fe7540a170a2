//! Settings of a server's printed arguments that a start line of the same engine takes over: those
//! that change speed or memory and that the tool has no flag of its own for.

use super::args::flag_number;
use super::facts::Facts;
use super::text::Doc;

/// Flags of a printed argument list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Flags to paste, each with its values.
    pub(crate) flags: Vec<Vec<String>>,
    /// Names of what was given besides and is not pasted.
    pub(crate) left: Vec<String>,
    /// Variables of its environment that its memory depends on, as `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    /// All that was given was printed: what is not there is the engine's default.
    pub(crate) whole: bool,
}

/// The flag of the attention's kernels.
pub(crate) const ATTENTION: &str = "--attention-backend";
/// vLLM's of its longest pass.
pub(crate) const PASS: &str = "--max-num-batched-tokens";

impl Carried {
    /// The value of a flag that is pasted.
    pub(crate) fn value(&self, flag: &str) -> Option<&str> {
        let found = self
            .flags
            .iter()
            .find(|words| words[..].first().is_some_and(|word| word == flag));
        found?.get(1).map(String::as_str)
    }
}

/// How an argument is typed.
#[derive(Clone, Copy)]
enum Form {
    /// `--name value`; the values that say nothing.
    Value(&'static [&'static str]),
    /// `--name` where it is true.
    Switch,
    /// `--name` or `--no-name`.
    Both,
    /// `--name a b`, where it is not the model's own.
    Names,
    /// `--name '{"key": value}'` of a printed dictionary.
    Object,
}

use Form::{Both, Names, Object, Switch, Value};

const VLLM: &[(&str, Form)] = &[
    ("trust_remote_code", Switch),
    ("dtype", Value(&["auto"])),
    ("quantization", Value(&[])),
    ("attention_backend", Value(&["auto"])),
    ("moe_backend", Value(&["auto"])),
    ("all2all_backend", Value(&[])),
    ("max_num_batched_tokens", Value(&[])),
    ("enable_chunked_prefill", Both),
    ("enable_prefix_caching", Both),
    ("async_scheduling", Both),
    ("block_size", Value(&[])),
    ("max_cudagraph_capture_size", Value(&[])),
    ("enable_expert_parallel", Switch),
    ("kv_cache_memory_bytes", Value(&[])),
    ("hf_overrides", Object),
    ("mamba_cache_mode", Value(&[])),
    ("served_model_name", Names),
];

/// What the paste says by itself, as far as it holds.
const VLLM_OWN: &[&str] = &[
    "model",
    "model_tag",
    "tensor_parallel_size",
    "decode_context_parallel_size",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_dtype",
    "speculative_config",
    "disable_custom_all_reduce",
];

const SGLANG: &[(&str, Form)] = &[
    ("trust_remote_code", Switch),
    ("dtype", Value(&["auto"])),
    ("quantization", Value(&[])),
    ("attention_backend", Value(&["auto"])),
    ("prefill_attention_backend", Value(&[])),
    ("decode_attention_backend", Value(&[])),
    ("moe_runner_backend", Value(&["auto"])),
    ("moe_a2a_backend", Value(&["none"])),
    ("ep_size", Value(&["1", "0"])),
    ("chunked_prefill_size", Value(&["-1", "0"])),
    ("cuda_graph_max_bs", Value(&["0"])),
    ("cuda_graph_max_bs_decode", Value(&["0"])),
    ("max_total_tokens", Value(&[])),
    ("mamba_full_memory_ratio", Value(&["0.9"])),
    ("swa_full_tokens_ratio", Value(&["0.8"])),
    ("enable_mixed_chunk", Switch),
    ("enable_torch_compile", Switch),
    ("disable_radix_cache", Switch),
    ("served_model_name", Names),
];

/// Of SGLang all arguments are printed, given or not: these are off by themselves.
const SGLANG_LEFT: &[(&str, &[&str])] = &[
    ("tool_call_parser", &[]),
    ("reasoning_parser", &[]),
    ("chat_template", &[]),
    ("json_model_override_args", &["{}"]),
    ("lora_paths", &[]),
    ("dp_size", &["1"]),
    ("pp_size", &["1"]),
    ("enable_dp_attention", &["False"]),
    ("disable_cuda_graph", &["False"]),
    ("disable_decode_cuda_graph", &["False"]),
    ("cpu_offload_gb", &["0"]),
    ("enable_hierarchical_cache", &["False"]),
    ("enable_two_batch_overlap", &["False"]),
];

/// Of vLLM's `non-default args: {…}`, or of `Namespace(…)` and `EngineArgs(…)`, where what was not
/// given may stand too.
pub(super) fn vllm(arguments: &str, facts: &mut Facts) {
    let given_alone = arguments.trim_start().starts_with('{');
    let entries = entries(arguments);
    let mut found = Carried {
        whole: given_alone,
        ..Carried::default()
    };
    take(VLLM, &entries, &mut found);
    if !given_alone {
        let off = |flag: &Vec<String>| flag.first().is_some_and(|name| name.starts_with("--no-"));
        found.flags.retain(|flag| !off(flag));
    }
    let kept = |name: &str| {
        let flag = format!("--{}", name.replace('_', "-"));
        found.flags.iter().any(|words| words.first() == Some(&flag))
    };
    let known = |name: &str| {
        let listed = VLLM.iter().find(|(own, _)| *own == name);
        VLLM_OWN.contains(&name)
            || listed.is_some_and(|(_, form)| !matches!(form, Object) || kept(name))
    };
    let left = entries
        .iter()
        .filter(|(name, _)| given_alone && !known(name));
    found.left = left.map(|(name, _)| (*name).to_string()).collect();
    facts.carried = found;
}

/// What vLLM says of a variable that keeps its graphs out of the pool's reckoning: "CUDA graph memory
/// profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)".
pub(super) fn environment(doc: &Doc, facts: &mut Facts) {
    let off = doc
        .after_all("CUDA graph memory profiling is disabled (")
        .next();
    let Some(at) = off else {
        return;
    };
    let said = doc.window(at, 60).split(')').next().unwrap_or_default();
    if said == GRAPHS_OUTSIDE {
        facts.carried.env.push(said.to_string());
    }
}

const GRAPHS_OUTSIDE: &str = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0";

/// Of SGLang's `ServerArgs(…)`.
pub(super) fn sglang(arguments: &str, line: usize, facts: &mut Facts) {
    let entries = entries(arguments);
    let mut found = Carried::default();
    take(SGLANG, &entries, &mut found);
    let left = SGLANG_LEFT.iter().filter(|(name, off)| {
        let value = entries.iter().find(|(key, _)| key == name).map(|e| e.1);
        value.is_some_and(|value| says(value) && !off.contains(&unquoted(value)))
    });
    found.left = left.map(|(name, _)| (*name).to_string()).collect();
    facts.carried = found;
    let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
    facts.printed_by = Some((super::arguments::bounds(&names), line));
}

/// Of SGLang's start line, where no arguments were printed: the ranks of whole experts. Of two servers in a
/// text they are those of the one that drafts, as all that is pasted.
pub(super) fn experts_of_a_start(doc: &Doc, text: &str, facts: &mut Facts) {
    let names = ["--ep-size", "--expert-parallel-size", "--ep"];
    let typed = names.iter().find_map(|name| flag_number(text, name));
    let typed = typed.map(|(ranks, at)| (ranks, doc.line_at(at)));
    let typed = match super::starts::drafting_of_two(doc) {
        Some(own) => own.expert_ranks().map(|ranks| (f64::from(ranks), own.line)),
        None => typed,
    };
    let Some((ranks, line)) = typed.filter(|_| facts.get("ep_size").is_none()) else {
        return;
    };
    facts.set("ep_size", ranks, line);
    if ranks > 1.0 {
        let flag = ["--ep-size".to_string(), ranks.to_string()];
        facts.carried.flags.push(flag.to_vec());
    }
}

fn take(table: &[(&str, Form)], entries: &[(&str, &str)], found: &mut Carried) {
    let value = |name: &str| entries.iter().find(|entry| entry.0 == name).map(|e| e.1);
    let model = ["model_path", "model", "model_tag"]
        .into_iter()
        .find_map(value)
        .map(unquoted);
    for (name, form) in table {
        let Some(given) = value(name).filter(|given| says(given)) else {
            continue;
        };
        let word = name.replace('_', "-");
        let on = given.eq_ignore_ascii_case("true");
        found.flags.extend(match form {
            Value(nothing) => {
                let given = unquoted(given);
                (!nothing.contains(&given)).then(|| vec![format!("--{word}"), given.to_string()])
            }
            Switch => on.then(|| vec![format!("--{word}")]),
            Both => Some(vec![format!("--{}{word}", if on { "" } else { "no-" })]),
            Names => {
                let names = given.trim_matches(['[', ']']).split(", ").map(unquoted);
                let names: Vec<&str> = names.filter(|name| Some(*name) != model).collect();
                let flag = [format!("--{word}")].into_iter();
                (!names.is_empty())
                    .then(|| flag.chain(names.iter().map(|n| n.to_string())).collect())
            }
            Object => object(given).map(|object| vec![format!("--{word}"), object]),
        });
    }
}

/// A printed dictionary of Python as JSON; `None` where it holds more than plain values.
fn object(printed: &str) -> Option<String> {
    let words = |text: &str| {
        let text = text.replace("True", "true").replace("False", "false");
        text.replace("None", "null")
    };
    // What stands between quotes is kept as it is.
    let parts = printed.split('\'').enumerate();
    let parts = parts.map(|(at, text)| {
        if at % 2 == 0 {
            words(text)
        } else {
            text.to_string()
        }
    });
    let json = parts.collect::<Vec<_>>().join("\"");
    let value: serde_json::Value = serde_json::from_str(&json).ok()?;
    value.as_object().filter(|object| !object.is_empty())?;
    Some(value.to_string())
}

fn says(value: &str) -> bool {
    !matches!(value, "" | "None" | "null" | "[]" | "''")
}

/// Without quotes; of an enumeration (`<AttentionBackendEnum.FLASHINFER: 'vllm.…'>`) the member.
fn unquoted(value: &str) -> &str {
    let member = value.strip_prefix('<').and_then(|inner| {
        let (name, _) = inner.split_once(':')?;
        name.rsplit('.').next()
    });
    member.unwrap_or(value.trim_matches(['\'', '"']))
}

/// Names and values of a printed list, of its own level alone.
fn entries(text: &str) -> Vec<(&str, &str)> {
    let text = text.trim_start().trim_start_matches(['{', '(']);
    let (mut depth, mut quote, mut from) = (0_usize, None, 0);
    let mut found = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match (byte, quote) {
            (b'\'' | b'"', None) => quote = Some(byte),
            (_, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => {}
            (b'{' | b'(' | b'[' | b'<', None) => depth += 1,
            (b'}' | b')' | b']' | b'>', None) if depth > 0 => depth -= 1,
            (b',' | b'}' | b')', None) if depth == 0 => {
                found.extend(text.get(from..at).and_then(entry));
                from = at + 1;
                if byte != b',' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

/// `'name': value` or `name=value`.
fn entry(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(['=', ':'])?;
    let name = text.get(..end)?.trim().trim_matches(['\'', '"']);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = !name.is_empty() && name.chars().all(plain);
    named.then_some((name, text.get(end + 1..)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(facts: &Facts) -> String {
        facts.carried.flags.concat().join(" ")
    }

    #[test]
    fn what_changes_speed_or_memory_is_taken_over_and_the_rest_is_named() {
        let mut facts = Facts::new("a");
        vllm(
            " {'model_tag': 'a/b', 'model': 'a/b', 'tool_call_parser': 'glm47', 'port': 5264, \
             'trust_remote_code': True, 'max_model_len': 202752, 'served_model_name': ['GLM 5'], \
             'hf_overrides': {'dtype': 'x', 'block_size': 3, 'a': None}, 'attention_backend': \
             <AttentionBackendEnum.FLASHINFER: 'v.F'>, 'enable_prefix_caching': False, \
             'compilation_config': {'mode': <Mode.A: 3>, 'max_cudagraph_capture_size': None}} rest",
            &mut facts,
        );
        assert_eq!(
            line(&facts),
            "--trust-remote-code --attention-backend FLASHINFER --no-enable-prefix-caching \
             --hf-overrides {\"a\":null,\"block_size\":3,\"dtype\":\"x\"} --served-model-name GLM 5"
        );
        let left = ["tool_call_parser", "port", "compilation_config"];
        assert_eq!(facts.carried.left, left);
        vllm(
            "model='a/b', dtype='auto', enable_prefix_caching=False, block_size=16)",
            &mut facts,
        );
        assert_eq!(line(&facts), "--block-size 16");
        // What is more than plain values is named among what is left out.
        vllm("{'hf_overrides': {'a': <Mode.A: 3>}}", &mut facts);
        assert_eq!(facts.carried.left, ["hf_overrides"]);
        sglang(
            "model_path='a/b', dtype='auto', quantization=None, served_model_name='a/b', \
             attention_backend='fa3', chunked_prefill_size=8192, reasoning_parser='qwen3', \
             disable_cuda_graph=False, trust_remote_code=False)",
            1,
            &mut facts,
        );
        assert_eq!(
            line(&facts),
            "--attention-backend fa3 --chunked-prefill-size 8192"
        );
        assert_eq!(facts.carried.left, ["reasoning_parser"]);
        sglang("model_path='a/b, dtype=", 1, &mut facts);
        assert!(facts.carried.flags.is_empty());
    }
}
