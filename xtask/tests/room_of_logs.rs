//! What the end of a log's server proves of the room beside its pool, and what `plan` and `predict` make of
//! it.

mod common;

use common::{SGLANG_LOG, answers, with_log};

/// A plain vLLM server of four RTX 3090 until its graphs are there.
const CAPTURED: &str = "\
(EngineCore pid=2) INFO 11-29 19:02:28 [core.py:105] Initializing a V1 LLM engine (v0.20.1) with config: model='Qwen/Qwen3-32B-AWQ', speculative_config=None, max_seq_len=16384, tensor_parallel_size=4, quantization=awq_marlin, kv_cache_dtype=auto, gpu_memory_utilization=0.94, max_num_seqs=64, max_num_batched_tokens=2048
(Worker_TP0 pid=3) INFO 11-29 19:02:53 [gpu_model_runner.py:4820] Model loading took 4.59 GiB memory and 12.917354 seconds
(Worker_TP0 pid=3) INFO 11-29 19:03:38 [gpu_worker.py:436] Available KV cache memory: 16.46 GiB
(EngineCore pid=2) INFO 11-29 19:03:38 [kv_cache_utils.py:1319] GPU KV cache size: 269,664 tokens
(EngineCore pid=2) INFO 11-29 19:03:38 [kv_cache_utils.py:1324] Maximum concurrency for 16,384 tokens per request: 16.46x
(Worker_TP0 pid=3) INFO 11-29 19:03:46 [gpu_model_runner.py:6046] Graph capturing finished in 8 secs, took 0.31 GiB
";

/// And that it came up.
const READY: &str = "(EngineCore pid=2) INFO 11-29 19:03:46 [core.py:283] init engine (profile, create kv cache, warmup model) took 53.12 seconds\n";

fn of(log: &str, line: &str) -> String {
    with_log("room", log, |file| {
        let (command, flags) = line.split_once(' ').unwrap_or((line, ""));
        let line = format!("{command} --from-log {file} {flags}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    })
}

/// The activation wall: middle, low and high end of its band.
fn wall(plan: &str) -> [f64; 3] {
    let line = plan
        .lines()
        .find(|line| line.contains(", activation wall)"));
    let (rest, _) = line.and_then(|line| line.rsplit_once(',')).expect("walls");
    let (rest, band) = rest.rsplit_once(" (").expect("a band");
    let (low, high) = band.split_once(" to ").expect("two ends");
    let middle = rest.rsplit(' ').next().unwrap_or_default();
    [middle, low, high].map(|figure| figure.parse().unwrap_or_else(|_| panic!("{plan}")))
}

/// A plain server stood at 0.940, and with a draft that adds 0.12 to 0.50 GiB beside the pool the wall
/// began well below; with look-up, which adds nothing, too.
#[test]
fn the_fraction_of_a_plain_server_that_ran_bounds_the_wall_with_a_draft() {
    let log = format!("{CAPTURED}{READY}");
    let plan = |draft: &str| {
        let flags = format!("plan --gpu rtx-3090 --context 8k --draft {draft}");
        of(&log, &flags)
    };
    let plain = wall(&plan("none"));
    assert_eq!(plain, [0.948, 0.940, 0.957]);
    assert_eq!(wall(&plan("ngram")), plain);
    assert!(!plan("none").contains("-0.00"), "{}", plan("none"));
    let text = plan("eagle3");
    let [middle, low, high] = wall(&text);
    let added = |gib: f64| gib / 23.58;
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.0015, "{a} and {b}: {text}");
    near(low, 0.940 - added(0.50));
    near(middle, plain[0] - added(0.31));
    near(high, plain[2] - added(0.12));
    // The ledger ends with the room under that wall.
    let ends = ["free ", "missing (negative)"];
    let free = text
        .lines()
        .find_map(|line| ends.iter().find_map(|end| line.strip_prefix(*end)));
    let free: f64 = free
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .expect("what is free");
    assert!((free - (middle - 0.940) * 23.58).abs() < 0.03, "{text}");
}

/// A fraction at the middle of the wall was "measure first" for memory alone and one just below paid
/// without a word.
#[test]
fn a_fraction_inside_the_band_is_told_with_one_that_is_clear_of_it_in_both_halves() {
    let flags = "--gpu rtx-3090 --context 2k --draft eagle3 --accept 2.9@3 --concurrency 1,2";
    let log = format!("{CAPTURED}{READY}");
    for (fraction, word, half) in [
        (0.925, "PAYS", "inside the band"),
        (0.935, "PAYS", "inside the band"),
        (0.950, "MEASURE FIRST", "above the middle"),
    ] {
        let asked = format!("{flags} --mem-fraction {fraction:.3}");
        let text = of(&log, &format!("predict {asked}"));
        assert!(text.starts_with(word), "{text}");
        let said = format!("{fraction:.3} is {half} of the activation wall");
        for text in [&text, &of(&log, &format!("plan {asked}"))] {
            assert!(
                text.contains(&said) && text.contains("0.918 is clear of it"),
                "{text}"
            );
        }
        let pasted = if half == "above the middle" {
            0.918
        } else {
            fraction
        };
        let flag = format!("--gpu-memory-utilization {pasted:.3}");
        assert!(text.contains(&flag), "{text}");
    }
    let clear = of(&log, &format!("predict {flags} --mem-fraction 0.918"));
    assert!(clear.starts_with("PAYS"), "{clear}");
    assert!(!clear.contains("clear of it"), "{clear}");
}

/// A log that ends with its graphs was taken for one of a server that ran.
#[test]
fn a_log_that_ends_before_its_server_took_requests_proves_no_fraction() {
    let flags = "--gpu rtx-3090 --context 8k --draft none";
    let text = of(CAPTURED, &format!("plan {flags}"));
    assert_eq!(wall(&text), [0.934, 0.911, 0.957], "{text}");
    let text = of(CAPTURED, &format!("predict {flags}"));
    assert!(text.contains("its fraction is not known to hold"), "{text}");
    assert!(!text.contains("that server ran"), "{text}");
    let ready = of(&format!("{CAPTURED}{READY}"), &format!("predict {flags}"));
    assert!(ready.contains("that server ran"), "{ready}");
}

/// `plan` said "may start and then run out" of the fraction at which the log shows it ran out.
#[test]
fn a_log_that_ran_out_is_said_first_and_its_fraction_is_above_the_wall() {
    let started: Vec<&str> = SGLANG_LOG.lines().take(5).collect();
    let log = format!(
        "{}\n[2026-07-11 09:14:45 TP0] Scheduler hit an exception: Traceback (most recent call last):\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB.\n",
        started.join("\n")
    );
    let flags = "plan --gpu rtx-6000-ada --draft none";
    let text = of(&log, flags);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    assert!(
        first.starts_with("DOES NOT FIT --mem-fraction-static 0.848"),
        "{text}"
    );
    let second = lines.next().unwrap_or_default().trim_start();
    assert!(
        second.starts_with("the log's server ran out of memory at 0.848 ("),
        "{text}"
    );
    let [middle, low, high] = wall(&text);
    assert!(low < middle && middle < high && high < 0.848, "{text}");
    let asked = wall(&of(&log, &format!("{flags} --mem-fraction 0.8")));
    assert_eq!(asked, [middle, low, high]);
}

/// `predict` said so, `plan` did not; and of a card that others held more than a third of, both said that
/// it was another card.
#[test]
fn a_start_refused_for_what_else_holds_the_card_is_said_by_plan_and_predict() {
    let (engine, _) = CAPTURED.split_once('\n').expect("lines");
    for free in ["19.02", "9.02"] {
        let log = format!(
            "{engine}\nValueError: Free memory on device cuda:0 ({free}/23.58 GiB) on startup is less than desired \
             GPU memory utilization (0.9, 21.22 GiB). Decrease GPU memory utilization or reduce GPU memory used \
             by other processes.\n"
        );
        for command in ["plan", "predict"] {
            let text = of(&log, &format!("{command} --gpu rtx-3090 --draft none"));
            let said = format!("{free} of 23.58 GiB were free, where fractions above ");
            assert!(text.contains(&said), "{text}");
            assert!(!text.contains("another card"), "{text}");
        }
    }
}

/// 6.6 GiB stood under "driver, CUDA context, NCCL" where another process held five of them.
#[test]
fn what_else_held_the_card_of_a_log_is_not_called_the_drivers() {
    let line = |log: &str| {
        let text = of(log, "plan --gpu rtx-6000-ada --draft none");
        let line = text
            .lines()
            .find(|line| line.starts_with("driver, CUDA context, NCCL"));
        line.unwrap_or_else(|| panic!("{text}")).to_string()
    };
    assert!(!line(SGLANG_LOG).contains("held the card"));
    let shared = SGLANG_LOG
        .replace("mem=46.21", "mem=41.21")
        .replace("mem=30.71", "mem=25.71");
    assert!(line(&shared).contains(", and what else held the card "));
}

/// The pool of an fp8 cache was held against bf16's bytes: "its pool and the weights take 4.4 GiB more
/// than rtx-3090 has".
#[test]
fn a_log_with_an_fp8_cache_is_of_the_card_that_holds_it() {
    let log = SGLANG_LOG
        .replace(
            "context_length",
            "kv_cache_dtype='fp8_e4m3', context_length",
        )
        .replace("388300", "776600");
    let text = of(&log, "plan --gpu rtx-6000-ada --draft none");
    assert!(!text.contains("another card"), "{text}");
    assert!(text.contains("776,600 tokens"), "{text}");
}

/// "Raise to at least 0.590" stood beside no pasted line, where a log that ran out of memory had one.
#[test]
fn a_log_that_was_refused_for_its_fraction_is_answered_for_one_that_starts() {
    let log = "[2026-11-30 10:00:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B-FP8', tp_size=2, \
               context_length=16384, mem_fraction_static=0.55, speculative_algorithm='EAGLE3', \
               speculative_draft_model_path='AngelSlim/Qwen3-32B_eagle3', speculative_num_steps=3, \
               speculative_eagle_topk=1, speculative_num_draft_tokens=4)\n\
               [2026-11-30 10:00:40 TP0] RuntimeError: Not enough memory. Please try to increase \
               --mem-fraction-static. Current value: mem_fraction_static=0.55\n";
    let text = of(
        log,
        "predict --gpu rtx-5090 --engine sglang@0.5.18 --concurrency 1,4",
    );
    let said = text
        .split_once("set --mem-fraction-static ")
        .map(|(_, rest)| &rest[..5]);
    let fraction = said.unwrap_or_else(|| panic!("{text}"));
    assert!(
        text.contains(&format!("--mem-fraction-static {fraction} ")),
        "{text}"
    );
    assert!(text.contains("0.550, as in the log, is refused"), "{text}");
    assert!(!text.contains("does not fit"), "{text}");
}

/// Named where it held a tenth more than the pool and not where that was all that was asked for.
#[test]
fn the_fraction_that_holds_what_was_asked_is_named_however_little_more_that_is() {
    let log = SGLANG_LOG
        .replace("0.848", "0.70")
        .replace("388300", "276022")
        .replace("11.85 GB", "8.42 GB");
    // 276,022 tokens less what the draft takes hold 15 requests of 16,384.
    for (loads, wall) in [
        ("1,8,16", "beyond 15 users the KV pool is full"),
        ("1,8,18", "beyond 15 users the KV pool is full"),
        ("16", "but the KV pool holds fewer than 16 users at once"),
    ] {
        let asked =
            format!("predict --gpu rtx-6000-ada --accept 3@3 --context 16k --concurrency {loads}");
        let text = of(&log, &asked);
        let most = loads.rsplit(',').next().unwrap_or(loads);
        assert!(text.contains(wall), "{text}");
        let named = format!(": the KV pool holds no more ({most} with --mem-fraction-static ");
        let (_, fraction) = text
            .split_once(&named)
            .unwrap_or_else(|| panic!("{named}\n{text}"));
        let fraction = fraction.split(')').next().expect("a fraction");
        let followed = of(&log, &format!("{asked} --mem-fraction {fraction}"));
        assert!(!followed.contains("KV pool is full"), "{followed}");
        assert!(!followed.contains("holds fewer than"), "{followed}");
    }
}
