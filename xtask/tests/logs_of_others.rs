//! Logs of a server that is not quite the one asked about: another KV format, or one that ran out of memory.

mod common;

use common::{SGLANG_LOG, answers, with_log};

/// A sweep of a bf16 cache was taken for the plain speed of a server with an fp8 one.
#[test]
fn a_sweep_of_another_kv_format_is_moved_by_the_difference_of_the_two() {
    let decode = |running: u32, speed: f64| {
        let line = format!(
            "[2026-07-11 09:20:00 TP0] Decode batch. #running-req: {running}, #token: {}, token usage: 0.50, \
             cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0\n",
            running * 16384
        );
        line.repeat(3)
    };
    let format = |name: &str| {
        let said = format!("[2026-07-11 09:14:38 TP0] Using KV cache dtype: torch.{name}\n");
        format!("{SGLANG_LOG}{said}{}{}", decode(1, 60.0), decode(8, 330.0))
    };
    let rows = |log: &str, kv: &str| {
        let text = with_log("kv", log, |file| {
            let line = format!(
                "predict --from-log {file} --baseline {file} --gpu rtx-6000-ada --draft eagle3 --accept 2.3@3 \
                 --concurrency 8 --kv-dtype {kv}"
            );
            answers(&line.split(' ').collect::<Vec<_>>())
        });
        let row = text.lines().find(|line| line.starts_with("    8 "));
        let plain = row
            .and_then(|row| row.split_whitespace().nth(1))
            .expect("a row");
        (plain.parse::<f64>().expect("a speed"), text)
    };
    let (bf16, fp8) = (format("bfloat16"), format("float8_e4m3fn"));
    for log in [(&bf16, "bf16"), (&fp8, "fp8")] {
        let (plain, text) = rows(log.0, log.1);
        assert!((plain - 330.0).abs() < 2.0, "{text}");
        assert!(!text.contains("the plain sweep is of a KV cache"), "{text}");
    }
    let (faster, text) = rows(&bf16, "fp8");
    assert!(faster > 340.0, "{text}");
    assert!(
        text.contains("the plain sweep is of a KV cache in bf16 ("),
        "{text}"
    );
    let (slower, text) = rows(&fp8, "bf16");
    assert!(slower < 320.0, "{text}");
    assert!(
        text.contains("the plain sweep is of a KV cache in fp8 ("),
        "{text}"
    );
}

/// The fraction of a start that ended in out of memory was pasted again, and what was free before it
/// was said not to be observed.
#[test]
fn a_log_that_ends_in_out_of_memory_keeps_its_figures_and_its_fraction_is_not_pasted() {
    let started: String = SGLANG_LOG
        .lines()
        .take(5)
        .map(|line| format!("{line}\n"))
        .collect();
    let oom = "[2026-07-11 09:14:45 TP0] Scheduler hit an exception: Traceback (most recent call last):\n\
               torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB.\n";
    let log = format!("{started}{oom}");
    let of = |command: &str| {
        with_log("out", &log, |file| {
            let line = format!("{command} --from-log {file} --gpu rtx-6000-ada --draft eagle3");
            answers(&line.split(' ').collect::<Vec<_>>())
        })
    };
    assert!(!of("plan").contains("free memory before weights not observed"));
    let text = of("predict");
    assert!(
        text.contains("at 0.848 the log's server ran out of memory ("),
        "{text}"
    );
    assert!(!text.contains("--mem-fraction-static 0.848"), "{text}");
    assert!(!text.contains("whether it starts and stays up"), "{text}");
}
