//! Texts that nobody meant: the readers must answer on anything, in linear time.

use std::path::PathBuf;
use std::time::Instant;

use proptest::prelude::*;

use super::{accept_from_log, facts_from_text, findings, next, ratios, render, scenario_from_log};
use crate::bench_input::{points_from_text, sweep_from_text};

/// One line or table of every kind that is read.
const SEEDS: &[&str] = &[
    "[2025-09-11 10:25:33 TP0] Load weight begin. avail mem=94.00 GB\n\
     [2025-09-11 10:25:33 TP0] Load weight end. type=X, avail mem=21.70 GB, mem usage=72.30 GB.\n\
     [2025-09-11 10:25:43 DP0 TP1 EP1] KV Cache is allocated. #tokens: 903439, K size: 13.79 GB, \
     V size: 13.79 GB\n[x] Memory pool end. avail mem=11.22 GB\n\
     [x] max_total_num_tokens=1, chunked_prefill_size=8192, max_running_requests=3, context_len=7, \
     available_gpu_mem=1.0 GB\n",
    "server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.55, tp_size=8, \
     speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_eagle_topk=1)\n\
     Decode batch. #running-req: 1, #token: 84, accept len: 2.10, cuda graph: False, gen \
     throughput (token/s): 98.94, #queue-req: 0,\n\
     ValueError: Loaded weights leave no GPU memory for the KV cache under \
     --mem-fraction-static=0.94. Raise above 0.942 (minimum viable = 1 - available/pre = 0.9411).\n",
    "(EngineCore pid=1) INFO 06-19 [x.py:1] non-default args: {'model': 'm', 'speculative_config': \
     {'method': 'eagle3', 'model': 'd', 'num_speculative_tokens': 3}, 'max_model_len': 10240}\n\
     Model loading took 15.0 GiB and 2.2 seconds\nAvailable KV cache memory: -2.16 GiB\n\
     GPU KV cache size: 891,872 tokens\nMaximum concurrency for 10,240 tokens per request: 87.10x\n",
    "SpecDecoding metrics: Mean acceptance length: 3.03, Accepted: 5 tokens, Drafted: 20 tokens, \
     Per-position acceptance rate: 0.706, 0.488, 0.328, Avg Draft acceptance rate: 40.5%\n\
     Speculative metrics: Draft acceptance rate: 0.0, System efficiency: 0.250, Number of \
     speculative tokens: 3, Number of accepted tokens: 0, Number of draft tokens: 483, Number of \
     emitted tokens: 161.\n",
    "ValueError: To serve at least one request with the model's max seq len (1048576), (4.78 GiB \
     KV cache is needed, which is larger than the available KV cache memory (4.0 GiB). Based on \
     the available memory, the estimated maximum model length is 849536.\n\
     Free memory on device cuda:0 (2.6/121.63 GiB) on startup is less than desired GPU memory \
     utilization (0.08, 9.73 GiB)\n",
    "============ Serving Benchmark Result ============\nSuccessful requests:     20\n\
     Max request concurrency:  8\nOutput token throughput (tok/s):  95.62\nAccept length:  2.46\n\
     Mean TPOT (ms):  8.82\n==================================================\n",
    "│ ctx \\ conc │ 1 │ 2 │\n│ 0 │ 59.0 │ 92.4 │\n│ 16k │ 57.0 (2/2) │ ∅ │\n\
     ┃ Metric ┃ avg ┃\n│ Time to First Token (ms) │ 18.26 │\n│ Output Token Throughput \
     (tokens/sec) │ 10,944.03 │\n| test | t/s |\n| tg128 | 17.22 ± 0.05 |\n",
    "{\"max_concurrency\": 16, \"output_throughput\": 403.58, \"mean_tpot_ms\": 6.2}\n\
     {\"a\": [{\"concurrency\": 1, \"aggregate_tps\": 1e309}]}",
    "#  Rank  0 Group  0 Pid 52 on host device  0 [0000:18:00] NVIDIA H200\n\
     #  Rank 23 Group  0 Pid 52 on host device  1 [0000:18:00] NVIDIA H200\n\
     #  size count type redop root time algbw busbw #wrong\n\
     1048576 262144 float sum -1 4366.46 0.24 0.24 0 4365.21 0.24 0.24 0\n\
     1_073_741_824  8203.9  130.88  229.04\n# Avg bus bandwidth    : 1.57614\n\
     n:1:1 [3] NCCL INFO Channel 02/0 : 3[3] -> 0[0] via SHM/direct/direct\n",
    "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 \
     800.15  26.32\n     1  26.32 831.12\nnvbandwidth\nmemcpy CE GPU(row) -> GPU(column) bandwidth \
     (GB/s)\n           0         1\n 0       N/A    395.08\n 1    395.08       N/A\n",
    "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tSYS\t X \t0-55\n\
     index, name, memory.total [MiB]\n0, NVIDIA RTX A4000, 16376 MiB\n\
     | N/A 31C P0 | 0MiB / 81559MiB | 0% |\n15:01.0 PCI bridge: Intel\n\tACSCtl: SrcValid+ \
     ReqRedir+\n<system version=\"1\">\n<gpu dev=\"0\"/>\nAttached GPUs : 8\nFB Memory Usage\n Total : 9 MiB\n",
    "Qwen3Config {\n\"num_hidden_layers\": 64, \"num_attention_heads\": 64, \"hidden_size\": 5120,\n\
     \"num_key_value_heads\": 8, \"layer_types\": [\"full_attention\"], \"sliding_window\": null}\n",
    "[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)\n\
     llama_kv_cache_unified: CUDA0 KV buffer size = 1536.00 MiB\nn_ctx = 4096\n\u{1b}[36m(A)\u{1b}[0m \
     \u{1b}]0;title\u{7} [31m x 100%|██| 23/23\r 5%",
];

/// Words that break readers: huge, empty, nested, cut.
const SPLINTERS: &[&str] = &[
    "9999999999999999999999999999999999999999999999999999999999999999999999999999",
    "1e999",
    "-1e-999",
    "NaN",
    "inf",
    "0",
    "-0",
    "1,2,3,4,5",
    "1.2.3.4",
    "[[[[[[[[",
    "{{{{{{{{",
    "\u{1b}[",
    "\u{1b}",
    "\r\r\r",
    "GPU0 GPU1 GPU2",
    "0 1 2 3",
    "=",
    ":",
    "\u{feff}",
    "é漢🦀",
    "\n\n\n",
    " via NET",
    "server_args=",
    "KV Cache is allocated",
    "│││││",
    "18446744073709551616",
];

/// Every way in, on one text.
pub(crate) fn read_all(text: &str) {
    let facts = facts_from_text(text, "f");
    for fact in facts.iter() {
        if let super::Value::Number(number) = fact.value {
            assert!(number.is_finite(), "{} is {number}", fact.name);
        }
        let lines = text.matches('\n').count() + 1;
        assert!(
            (1..=lines).contains(&fact.line),
            "{} at line {}",
            fact.name,
            fact.line
        );
    }
    let files = [facts];
    let found = findings::find(&files);
    let next = next::command_line(&files);
    let _ = render::text(
        &files,
        &found,
        &ratios::lines(&ratios::ratios(&files)),
        next.as_ref(),
    );
    let _ = super::report(&files, &found, next.as_ref());
    let _ = accept_from_log(text, "f");
    let _ = scenario_from_log(text, "f");
    let _ = points_from_text(text);
    let _ = sweep_from_text(text, "f");
}

/// A change to a text.
#[derive(Debug, Clone)]
enum Change {
    Cut(f64, f64),
    Splice(f64, usize),
    Seed(f64, usize),
    Double(f64, f64),
    Chars(f64, String),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0.0..1.0_f64;
    prop_oneof![
        (at.clone(), at.clone()).prop_map(|(a, b)| Change::Cut(a, b)),
        (at.clone(), 0..SPLINTERS.len()).prop_map(|(a, i)| Change::Splice(a, i)),
        (at.clone(), 0..SEEDS.len()).prop_map(|(a, i)| Change::Seed(a, i)),
        (at.clone(), at.clone()).prop_map(|(a, b)| Change::Double(a, b)),
        (at, any::<String>()).prop_map(|(a, s)| Change::Chars(a, s)),
    ]
}

fn apply(text: &str, change: &Change) -> String {
    let chars: Vec<char> = text.chars().take(60_000).collect();
    let place = |share: &f64| (share * chars.len() as f64) as usize;
    let part =
        |from: usize, to: usize| chars[from.min(to)..from.max(to)].iter().collect::<String>();
    let (end, with) = (chars.len(), |at: usize, piece: &str| {
        format!("{}{piece}{}", part(0, at), part(at, chars.len()))
    });
    match change {
        Change::Cut(a, b) => {
            let (a, b) = (place(a).min(place(b)), place(a).max(place(b)));
            format!("{}{}", part(0, a), part(b, end))
        }
        Change::Splice(a, i) => with(place(a), SPLINTERS[*i]),
        Change::Seed(a, i) => with(place(a), SEEDS[*i]),
        Change::Double(a, b) => with(place(b), &part(place(a), place(b))),
        Change::Chars(a, s) => with(place(a), s),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_mutation_of_known_texts_is_answered(
        seed in 0..SEEDS.len(),
        changes in prop::collection::vec(change(), 0..8),
    ) {
        let text = changes.iter().fold(SEEDS[seed].to_string(), |text, c| apply(&text, c));
        read_all(&text);
    }

    #[test]
    fn any_string_is_answered(text in any::<String>()) {
        read_all(&text);
    }
}

/// Few by default; `PROPTEST_CASES` for a long run.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(200)
}

#[test]
fn pasted_samples_survive_cutting_anywhere() -> anyhow::Result<()> {
    let Some(folder) = crate::explain::shared_data().map(|data| data.join("inputs")) else {
        println!("skipped: no ../shared/data");
        return Ok(());
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for kind in std::fs::read_dir(folder)?.flatten() {
        if let Ok(inside) = std::fs::read_dir(kind.path()) {
            files.extend(inside.flatten().map(|entry| entry.path()));
        }
    }
    files.sort();
    for (index, path) in files.iter().enumerate() {
        if path.extension().is_some_and(|e| e == "source") {
            continue;
        }
        let text = crate::input::read_text(path)?;
        let part = text.len() * (index % 7 + 1) / 9;
        let cut = super::text::cut(&text, part);
        read_all(cut);
        let tail = text.get(cut.len()..).unwrap_or("");
        read_all(tail);
    }
    Ok(())
}

#[test]
fn deep_json_and_long_lines_take_linear_time() {
    let texts = |scale: usize| {
        let deep = format!(
            "{}1{}",
            "[".repeat(6_000 * scale),
            "]".repeat(6_000 * scale)
        );
        let nested = format!("{{\"a\": {}", "{\"text_config\": ".repeat(4_000 * scale));
        let long = "Decode batch, #running-req: 1, accept len: 2.0 ".repeat(2_500 * scale);
        let ranks: String = (0..400 * scale)
            .map(|i| format!("[x TP{i}] Load weight end. avail mem=1.0 GB, mem usage=1.0 GB\n"))
            .collect();
        let escapes = "\u{1b}[".repeat(12_000 * scale);
        let braces = "speculative_config ( ".repeat(2_500 * scale);
        [deep, nested, long, ranks, escapes, braces]
    };
    let seconds = |text: &String| {
        let start = Instant::now();
        read_all(text);
        start.elapsed().as_secs_f64()
    };
    for (short, long) in texts(1).iter().zip(&texts(8)) {
        let few = seconds(short).max(seconds(short));
        let many = seconds(long).min(seconds(long));
        // Eight times the text in eight times the time, not in 64, however busy the machine is.
        assert!(
            many < 24.0 * few.max(0.002),
            "{few} s, {many} s: {:.40}",
            short
        );
    }
}
