//! The command line: one definition for parsing, help and completions.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod nccl;

pub(crate) use nccl::NcclArgs;

/// The shortest way to an answer, for each kind of question.
const EXAMPLES: &str = "\
Examples:
  cargo xtask predict                                            the built-in case
  cargo xtask predict --model qwen3-32b --gpu rtx-5090 --gpus 2 --quant fp8
  cargo xtask predict --model ./config.json --gpu h200 --gpus 8 --topology topo.txt --accept 2.3@3
  cargo xtask plan --free-before-gib 94 --free-after-gib 21.7 --kv-gib 10.42 --mem-fraction 0.55
  cargo xtask explain server.log
Exit codes: 0 answered, 2 the input is at fault (one line says how to mend it), 1 a fault of ours.";

/// Does speculative decoding pay off on this box, for this model, with which settings?
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    version,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say whether speculation pays, with which settings, and how sure that is
    Predict(Box<PredictArgs>),
    /// The memory ledger alone: what fits, legal fractions, KV tokens with and without speculation
    Plan(Box<PlanArgs>),
    /// The links alone: how long a collective takes on a box, and which link is the bottleneck
    Simulate(SimulateArgs),
    /// Acceptance alone: accept length by depth from what was measured
    Accept(AcceptCommandArgs),
    /// Read engine logs and bench outputs: what they say, what is wrong, what to change
    Explain(ExplainArgs),
    /// Measure this machine, predict, compare
    VerifyHw(Box<VerifyHwArgs>),
    /// Error of every model against measured data
    Score(ScoreArgs),
    /// The project's own rules
    Tidy(TidyArgs),
    /// One step of `verify-hw`, in its own process
    #[command(hide = true)]
    VerifyHwJob,
    /// Print a completion script for a shell, for the installed binary `xtask`
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// What is served, where, and how: the same flags for every command that needs a scenario.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Scenario")]
pub(crate) struct ScenarioArgs {
    /// A built-in scenario or a scenario file [default: kimi-k2.5-8x-rtx-pro-6000 when neither
    /// --model nor --from-log is given]
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub(crate) scenario: Option<String>,
    /// A catalogue model, a config.json, or a folder that holds one; `list` names those known
    #[arg(long, value_name = "NAME|config.json|DIR")]
    pub(crate) model: Option<String>,
    /// Weight format, where the config does not say (bf16, fp8, int4, nvfp4, mxfp4, …)
    #[arg(long)]
    pub(crate) quant: Option<String>,
    /// What drafts: `mtp`, `eagle3`, a head's config.json or repository name, a small model of the
    /// catalogue, `ngram` (prompt look-up), or `none`
    #[arg(long, value_name = "NAME|config.json|mtp|none")]
    pub(crate) draft: Option<String>,
    /// A catalogue box or a box file; `list` names those known
    #[arg(long = "box", value_name = "NAME|FILE.toml", conflicts_with_all = ["gpu", "gpus"])]
    pub(crate) box_name: Option<String>,
    /// GPU model, for a box that is not in the catalogue; `list` names those known
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Number of GPUs in the box
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<u32>,
    /// The wiring: what `nvidia-smi topo -m` prints (best with `topo -p2p r` and `nvidia-smi -q` behind it), `lspci -vv` or
    /// `lspci -tv`, NCCL's topology XML, or a box file
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,
    /// Tensor-parallel size [default: all GPUs]
    #[arg(
        long,
        aliases = ["tensor-parallel-size", "tp-size"],
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub(crate) tp: Option<u32>,
    /// Ranks that whole experts are spread over: SGLang's --ep-size; in vLLM all or none
    /// (--enable-expert-parallel) [default: the log's, else 1: every expert cut over all ranks]
    #[arg(
        long,
        aliases = ["ep-size", "expert-parallel-size"],
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub(crate) ep: Option<u32>,
    /// Serving engine, with its version where it matters
    #[arg(long, value_name = "sglang|vllm|trtllm|llamacpp[@VERSION]")]
    pub(crate) engine: Option<String>,
    /// Memory fraction (SGLang --mem-fraction-static, vLLM --gpu-memory-utilization)
    #[arg(
        long,
        aliases = ["gpu-memory-utilization", "mem-fraction-static"],
        value_name = "F",
        allow_negative_numbers = true
    )]
    pub(crate) mem_fraction: Option<f64>,
    /// KV cache dtype (bf16, fp8, fp4, or a GGUF type)
    #[arg(long, aliases = ["kv-cache-dtype"], value_name = "DTYPE")]
    pub(crate) kv_dtype: Option<String>,
    /// Attention kernels that the engine is told to run, by its own name (vLLM FLASHINFER, SGLang triton, …)
    /// [default: the log's, else the engine's own choice]
    #[arg(long, value_name = "NAME")]
    pub(crate) attention_backend: Option<String>,
    /// Decode context parallel size
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) dcp: Option<u32>,
    /// Tokens of context a request holds while decoding (`32k` is 32768)
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) context: Option<String>,
    /// Requests at a time, a list; with shares of time (1:60,8:30,64:10) a distribution of load
    #[arg(long, value_name = "1,2,4,…", allow_hyphen_values = true)]
    pub(crate) concurrency: Option<String>,
    /// Fix the number of draft steps instead of searching
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) steps: Option<u32>,
    /// Fix the tree width
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) topk: Option<u32>,
    /// Fix the number of tokens the target verifies per sequence
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) draft_tokens: Option<u32>,
    /// What was measured of acceptance: `2.3@3` (accept length at a depth, bonus token included),
    /// `rates:.65,.40,.24` (cumulative by position), a log, or bench outputs that print an accept length
    /// (`FILE[,FILE…]@DEPTH` where they do not say their depth; another than theirs is refused); speeds
    /// in these, beside a --baseline measured alike, are the answer of their load
    #[arg(long, value_name = "LEN@DEPTH|rates:…|LOG|BENCH[,BENCH…]@DEPTH")]
    pub(crate) accept: Option<String>,
    /// Whether that is of another draft than is asked for (`--compare`).
    #[arg(skip)]
    pub(crate) accept_is_of_another: bool,
    /// Whether --baseline ran on another box than is asked for (`--compare`).
    #[arg(skip)]
    pub(crate) baseline_is_of_another_box: bool,
    /// The KV format of the log's server, where --kv-dtype stands beside one that only its pool shows.
    #[arg(skip)]
    pub(crate) kv_dtype_of_log: Option<kvplan::KvDtype>,
    /// The release of the answer that this one stands beside (`--compare`).
    #[arg(skip)]
    pub(crate) at_release: Option<String>,
    /// What the requests are (chat, code, math, translation, …): sets the acceptance prior, where
    /// no accept length is given
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Sampling temperature
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) temperature: Option<f64>,
    /// Your own plain sweep: `concurrency,tok_s` (over all users) as CSV, or bench outputs
    #[arg(long, value_name = "FILE[,FILE…]")]
    pub(crate) baseline: Option<PathBuf>,
    /// Tokens of context that the requests of that sweep held, where its file does not say
    /// [default: that of --context]
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) baseline_context: Option<String>,
    /// All-reduce algorithm, with `@BYTES` a kernel up to that size and NCCL above (`one-shot@64k`)
    /// [default: engine, the engine's own choice by size and wiring]
    #[arg(
        long,
        value_name = "nccl|engine|one-shot|one-shot-push|two-shot|island|host-staged|auto"
    )]
    pub(crate) allreduce: Option<String>,
    /// Your own all-reduce times: `bytes,time_us` as CSV, or the table of all_reduce_perf
    #[arg(long, value_name = "FILE")]
    pub(crate) allreduce_table: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nccl: NcclArgs,
    /// Take what a log says as flags
    #[arg(long, value_name = "LOG")]
    pub(crate) from_log: Option<PathBuf>,
    /// Seed of everything random: the load and text of `verify-hw`; `predict` and `plan` draw
    /// nothing and only show it
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

impl ScenarioArgs {
    /// What to print where a flag asks for the names known.
    pub(crate) fn list(&self) -> Option<String> {
        crate::scenario::lists::asked(
            self.model.as_deref(),
            self.gpu.as_deref(),
            self.box_name.as_deref(),
        )
    }
}

/// Flags of `predict`.
#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    /// Longest context the engine is told to serve (--context-length, --max-model-len); requests
    /// are taken to hold that many tokens where --context does not say
    #[arg(long, aliases = ["context-length"], value_name = "TOKENS", value_parser = crate::scenario::parse::tokens)]
    pub(crate) max_model_len: Option<u64>,
    /// Requests at once the engine is told to run (--max-running-requests, --max-num-seqs): graphs
    /// and activations follow
    #[arg(
        long,
        aliases = ["max-running-requests", "max-num-seqs"],
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    pub(crate) max_running: Option<u64>,
    /// State slots of hybrids (--max-mamba-cache-size)
    #[arg(
        long,
        aliases = ["max-mamba-cache-size"],
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    pub(crate) state_slots: Option<u64>,
    /// Compare: all-reduce algorithms, boxes or drafts, as one table
    #[arg(long, value_name = "A,B,…")]
    pub(crate) compare: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Print where inputs, observed figures and ledger lines come from (JSON always does)
    #[arg(long)]
    pub(crate) sources: bool,
    /// Exit with 0 when it pays, 10 when it does not, 11 when it must be measured first; with
    /// `--draft none`, 0 when it fits and 10 when it does not
    #[arg(long)]
    pub(crate) exit_code: bool,
}

/// Flags of `plan`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    /// Observed: free GiB before the weights were loaded
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    pub(crate) free_before_gib: Option<f64>,
    /// Observed: free GiB after the weights were loaded
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    pub(crate) free_after_gib: Option<f64>,
    /// Observed: GiB of the KV pool; of a hybrid without its states
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    pub(crate) kv_gib: Option<f64>,
    /// Observed: GiB of a hybrid's states ("Mamba Cache is allocated") [default: computed from the pool]
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    pub(crate) state_gib: Option<f64>,
    #[command(flatten)]
    pub(crate) knobs: crate::plan::Knobs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print where every line of the ledger comes from (JSON always does)
    #[arg(long)]
    pub(crate) sources: bool,
}

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A catalogue box or a box file [default: the default scenario's box]
    #[arg(long = "box", value_name = "NAME|FILE.toml", conflicts_with_all = ["gpu", "gpus"])]
    pub(crate) box_name: Option<String>,
    /// GPU model, for a box that is not in the catalogue
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Number of GPUs in the box
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<u32>,
    /// The wiring: what `nvidia-smi topo -m` prints (best with `topo -p2p r` and `nvidia-smi -q` behind it), `lspci -vv` or
    /// `lspci -tv`, NCCL's topology XML, or a box file
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nccl: NcclArgs,
    /// GPUs that take part [default: all]
    #[arg(long, value_name = "0,1,…", allow_hyphen_values = true)]
    pub(crate) ranks: Option<String>,
    /// Message sizes in bytes (`64k`, `1.5m` are understood)
    #[arg(
        long,
        value_name = "N,N,…",
        default_value = "1k,4k,14336,57344,256k,1m,16m,64m"
    )]
    pub(crate) bytes: String,
    /// Groups that reduce at once, for the line `groups` [default: pairs in order of number]
    #[arg(long, value_name = "0,2/1,3")]
    pub(crate) groups: Option<String>,
    /// Which algorithms (nccl, engine, one-shot, one-shot-push, two-shot, island, host-staged), or all
    #[arg(long, value_name = "NAME,…|all", default_value = "all")]
    pub(crate) algorithm: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Print where every constant comes from (JSON always does)
    #[arg(long)]
    pub(crate) sources: bool,
}

/// Flags of `accept`.
#[derive(Debug, Args)]
pub(crate) struct AcceptCommandArgs {
    /// What was measured, again for each measurement: `2.3@3` (accept length at a depth, bonus
    /// token included), `rates:.65,.40,.24` (cumulative), `counts:1000:650,400,240` (cycles,
    /// accepted by position), `alphas:.65,.6`, `no-bonus:1.3@3`, `vllm-rate:.43@3`,
    /// `sglang-rate-old:.54@4` and `sglang-rate-new:.39@4` (rate @ draft tokens),
    /// `llamacpp:36/7@16` (accepted / cycles @ drafts a cycle), a log, or benches
    /// (`FILE[,FILE…]@DEPTH` where they do not say their depth; another than theirs is refused)
    #[arg(long, value_name = "FIGURE|LOG|BENCH[,BENCH…]@DEPTH")]
    pub(crate) accept: Vec<String>,
    /// Verify passes behind the figures that do not say: tightens the band
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) cycles: Option<f64>,
    /// Head kind: eagle3, eagle, mtp, mtp-modules, parallel, draft-model, ngram; where it is not
    /// given, the one that a log names, else eagle3
    #[arg(long, alias = "draft", value_name = "KIND")]
    pub(crate) head: Option<String>,
    /// Target model's name (else the one of a log that names its draft): an MTP module that was
    /// trained for one position falls faster
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// What the requests are (chat, code, math, …, or a data set's name)
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Sampling temperature
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub(crate) temperature: Option<f64>,
    /// Tokens of context while decoding
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) context: Option<String>,
    /// Longest context that the head was trained on
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) trained_context: Option<String>,
    /// Depths to print: a range, or a list such as 1,2,4
    #[arg(
        long,
        value_name = "A..B|1,2,…",
        default_value = "1..8",
        allow_hyphen_values = true
    )]
    pub(crate) depths: String,
    /// Tree width
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) topk: u32,
    /// Tokens verified per sequence, the root included, for a tree
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) draft_tokens: Option<u32>,
    /// Simulate requests of this many output tokens, to see what a benchmark would print
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) simulate: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print where every constant comes from (JSON always does)
    #[arg(long)]
    pub(crate) sources: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Logs, bench outputs, nccl-tests, nvbandwidth, topologies; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `verify-hw`.
#[derive(Debug, Args)]
pub(crate) struct VerifyHwArgs {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    /// Several ranks on one GPU: a mock of tensor parallelism, marked as such
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) ranks_per_gpu: u32,
    /// Write the measured box for `predict --box`; with --engine-url the sweep as CSV for
    /// `--baseline`
    #[arg(long, value_name = "BOX.toml")]
    pub(crate) save: Option<PathBuf>,
    /// Drive a running server (OpenAI API, /metrics) instead of the stand-in model; twice: one
    /// without and one with speculation
    #[arg(long, value_name = "URL")]
    pub(crate) engine_url: Vec<String>,
    /// Under a minute
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

/// Flags of `score`.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Measured data, in the layout of ../shared/data
    #[arg(long, value_name = "DIR", default_value = "../shared/data")]
    pub(crate) data: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Fail when an area misses its threshold
    #[arg(long)]
    pub(crate) check: bool,
    /// Only areas whose name begins so
    #[arg(long, value_name = "PREFIX")]
    pub(crate) only: Option<String>,
    /// Write docs/ACCURACY.md
    #[arg(long, value_name = "FILE.md")]
    pub(crate) write: Option<PathBuf>,
    /// Print each area's notes and its single rows, worst first (areas of times, speedups, rates)
    #[arg(long, value_enum, default_value_t = Rows::None)]
    pub(crate) rows: Rows,
}

/// Which rows `score` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rows {
    /// The table alone.
    None,
    /// The first notes and the ten worst rows of each area.
    Worst,
    /// All notes and rows.
    All,
}

/// Flags of `tidy`.
#[derive(Debug, Args)]
pub(crate) struct TidyArgs {}
