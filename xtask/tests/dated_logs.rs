//! Logs of SGLang that print no version, and what two logs of one server, with a draft and without, say
//! of its cost.

mod common;

use common::{SGLANG_LOG, answers, refusal, with_log};

/// A plain start that serves, its arguments as a release between 0.5.3 and 0.5.13 prints them.
fn plain() -> String {
    let old = SGLANG_LOG.replace("tp_size=4,", "tp_size=4, cuda_graph_max_bs=512,");
    old + "[2026-07-11 09:16:00 TP0] Decode batch, #running-req: 1, #token: 4000, token usage: 0.01, cuda graph: \
           True, gen throughput (token/s): 60.00, #queue-req: 0,\n\
           [2026-07-11 09:16:05 TP0] Decode batch, #running-req: 1, #token: 4040, token usage: 0.01, cuda graph: \
           True, gen throughput (token/s): 60.00, #queue-req: 0,\n"
}

/// The same with a draft, whose pool is smaller.
fn drafted() -> String {
    plain()
        .replace("speculative_algorithm=None", "speculative_algorithm='EAGLE3', speculative_draft_model_path='AngelSlim/Qwen3-32B_eagle3', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4")
        .replace("0.848", "0.823")
        .replace("388300", "370000")
        .replace("11.85", "11.29")
        .replace("6.99", "8.13")
        .replace(", gen throughput", ", accept len: 2.40, gen throughput")
}

fn next(text: &str) -> String {
    let at = text.find("\nnext").unwrap_or_else(|| panic!("{text}"));
    text[at..].to_string()
}

#[test]
fn a_sglang_log_without_a_version_is_planned_as_its_arguments_date_it_and_else_asks() {
    with_log("dated", &plain(), |log| {
        let text = answers(&["explain", log]);
        assert!(text.contains("0.5.3 or later, before 0.5.14"), "{text}");
        assert!(!next(&text).contains("--engine"), "{text}");
        let text = answers(&[
            "predict",
            "--from-log",
            log,
            "--gpu",
            "rtx-6000-ada",
            "--concurrency",
            "1,1024",
        ]);
        assert!(
            text.contains(
                ":1: prints no version; by its lines sglang 0.5.3 or later, before 0.5.14"
            ),
            "{text}"
        );
        assert!(text.contains("--cuda-graph-max-bs "), "{text}");
        assert!(!text.contains("--cuda-graph-max-bs-decode"), "{text}");
    });
    let any = plain()
        .replace(" cuda_graph_max_bs=512,", "")
        .replace("2026-07", "2026-11");
    with_log("undated", &any, |log| {
        let next = next(&answers(&["explain", log]));
        assert!(next.contains("--engine sglang@VERSION"), "{next}");
        assert!(next.contains("its release for VERSION"), "{next}");
    });
}

#[test]
fn two_logs_give_one_cost_of_the_draft() {
    with_log("plain", &plain(), |plain| {
        with_log("drafted", &drafted(), |drafted| {
            let text = answers(&["explain", plain, drafted]);
            assert!(
                text.contains("the pool holds 18,300 tokens fewer"),
                "{text}"
            );
            let from = [
                "predict",
                "--from-log",
                drafted,
                "--gpu",
                "rtx-6000-ada",
                "--concurrency",
                "1",
            ];
            let both = answers(&[&from[..], &["--baseline", plain]].concat());
            assert!(
                both.contains("costs 18,300 of 388,300 KV tokens (1.12 GiB) by the pools of the two logs: 0.82"),
                "{both}"
            );
            // Of another draft, or without the plain log, it is computed.
            for other in [
                answers(&from),
                answers(&[&from[..], &["--baseline", plain, "--draft", "ngram"]].concat()),
            ] {
                assert!(!other.contains("by the pools of the two logs"), "{other}");
            }
        });
    });
}

#[test]
fn the_engines_own_all_reduce_off_by_flag_is_named_unless_the_cards_meet_over_pcie() {
    let off = plain().replace("tp_size=4,", "tp_size=4, disable_custom_all_reduce=True,");
    let says = "the engine's own all-reduce is off by flag";
    let matrix = |link: &str| {
        let row = |own: usize| {
            let cells = (0..4).map(|at| if at == own { "X" } else { link });
            format!(
                "GPU{own}\t{}\t0-31\t0\n",
                cells.collect::<Vec<_>>().join("\t")
            )
        };
        let rows: String = (0..4).map(row).collect();
        format!("\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n{rows}")
    };
    with_log("off", &off, |log| {
        let text = answers(&["explain", log]);
        assert!(
            text.starts_with(&format!("note   {says}; NCCL does it")),
            "{text}"
        );
        with_log("nv", &matrix("NV18"), |topology| {
            let text = answers(&["explain", log, topology]);
            assert!(text.contains(&format!("COSTS  {says} on NVLink")), "{text}");
        });
        with_log("pcie", &matrix("NODE"), |topology| {
            let text = answers(&["explain", log, topology]);
            assert!(!text.contains(says), "{text}");
        });
    });
    for (card, severity) in [
        ("NVIDIA H100 80GB HBM3", Some("COSTS ")),
        ("NVIDIA GeForce RTX 3090", None),
    ] {
        let table = card.replace(' ', "_");
        let named =
            format!("{off}Using default MoE kernel config: E=8,N=96,device_name={table}.json\n");
        with_log("card", &named, |log| {
            let text = answers(&["explain", log]);
            match severity {
                Some(severity) => {
                    assert!(
                        text.contains(&format!("{severity} {says} on NVLink")),
                        "{text}"
                    );
                    assert!(text.contains(" us by NCCL and "), "{text}");
                }
                None => assert!(!text.contains(says), "{text}"),
            }
        });
    }
    let other = off.replace("tp_size=4,", "tp_size=4, device='npu',");
    with_log("npu", &other, |log| {
        assert!(!answers(&["explain", log]).contains(says));
    });
    with_log("on", &plain(), |log| {
        assert!(!answers(&["explain", log]).contains(says));
    });
}

/// Decode lines of a load, whose accept lengths are given.
fn decoded(running: u32, lengths: &[&str]) -> String {
    let line = |length: &&str| {
        format!(
            "[2026-07-11 09:17:00 TP0] Decode batch, #running-req: {running}, #token: {}, token usage: 0.01, \
             accept len: {length}, cuda graph: True, gen throughput (token/s): {}.00, #queue-req: 0,\n",
            4000 * running,
            100 * running
        )
    };
    lengths.iter().map(line).collect()
}

#[test]
fn an_accept_length_that_no_load_moves_was_set_and_not_measured() {
    let same = ["2.40"; 6];
    let set = drafted() + &decoded(1, &same) + &decoded(8, &same);
    let asked = |log: &str| {
        let words = [
            "predict",
            "--from-log",
            log,
            "--gpu",
            "rtx-6000-ada",
            "--concurrency",
            "1",
        ];
        answers(&words)
    };
    let note = "the accept length 2.4 is not measured: the same in all 14 lines over 2 loads";
    let by_prior = with_log("set", &set, |log| {
        let text = answers(&["explain", log]);
        assert!(text.contains(note), "{text}");
        let text = asked(log);
        assert!(
            text.contains("was forced there, the same in all 14 lines over 2 loads"),
            "{text}"
        );
        text.lines().next().map(str::to_string)
    });
    // One line that differs, one load alone, or nothing but the most that a pass can give.
    let moved =
        drafted() + &decoded(1, &same) + &decoded(8, &["2.40", "2.40", "2.40", "2.40", "2.41"]);
    let one = drafted() + &decoded(1, &["2.40"; 12]);
    let most = set.replace("2.40", "4.00");
    for text in [moved, one, most] {
        with_log("measured", &text, |log| {
            let text = answers(&["explain", log]);
            assert!(!text.contains("not measured"), "{text}");
            assert_ne!(asked(log).lines().next().map(str::to_string), by_prior);
        });
    }
}

#[test]
fn speeds_of_a_draft_without_an_accept_length_are_refused_with_what_to_give_instead() {
    with_log("sweep", "concurrency,tok_s\n1,118.7\n8,896.1\n", |csv| {
        let accept = format!("{csv}@3");
        let words = [
            "predict",
            "--model",
            "qwen3-32b",
            "--gpu",
            "h200",
            "--accept",
            &accept,
        ];
        let error = refusal(&words);
        assert!(error.contains("speeds without an accept length"), "{error}");
        assert!(
            error.contains("--from-log SPECULATIVE.log --baseline PLAIN.log"),
            "{error}"
        );
    });
}

#[test]
fn flashinfers_all_reduce_is_not_offered_to_a_server_that_says_it_lacks_it() {
    let lacks = "[2026-07-11 09:14:01] flashinfer.comm is not available, falling back to standard implementation\n";
    let asked = |log: &str| {
        let text = answers(&[
            "predict",
            "--from-log",
            log,
            "--gpu",
            "h100",
            "--engine",
            "sglang@0.5.13",
        ]);
        let row = text
            .lines()
            .find(|line| line.starts_with("  one-shot-push"));
        let row = row.unwrap_or_else(|| panic!("{text}")).to_string();
        (row, text)
    };
    with_log("has", &plain(), |log| {
        assert!(
            asked(log)
                .0
                .contains("--enable-flashinfer-allreduce-fusion")
        );
    });
    with_log("lacks", &(lacks.to_string() + &plain()), |log| {
        let (row, text) = asked(log);
        assert!(row.ends_with(" no"), "{row}");
        assert!(
            text.contains(":1: that server has no flashinfer.comm"),
            "{text}"
        );
        assert!(
            !text.contains("--enable-flashinfer-allreduce-fusion"),
            "{text}"
        );
        let text = answers(&["explain", log]);
        assert!(
            text.contains("fused with the norm cannot run here"),
            "{text}"
        );
    });
}

#[test]
fn what_a_draft_takes_beside_the_pool_is_what_the_log_says_was_free_before_it_and_after() {
    let table = SGLANG_LOG.find("[2026-07-11 09:15:05").unwrap_or(0);
    let (before, ready) = SGLANG_LOG.split_at(table);
    // 6.18 free before the draft, 4.63 once all is ready.
    let draft = "\
[2026-07-11 09:14:40 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=6.99 GB
[2026-07-11 09:14:45 TP0] Capture cuda graph end. Time elapsed: 5.0 s. mem usage=0.81 GB. avail mem=6.18 GB.
[2026-07-11 09:14:46 TP0] Load weight begin. avail mem=6.18 GB
[2026-07-11 09:14:47 TP0] Load weight end. type=LlamaForCausalLMEagle3, avail mem=4.18 GB, mem usage=2.00 GB.
[2026-07-11 09:14:47 TP0] KV Cache is allocated. #tokens: 388300, K size: 0.19 GB, V size: 0.18 GB
[2026-07-11 09:14:47 TP0] Memory pool end. avail mem=3.81 GB
[2026-07-11 09:14:48 TP0] Capture draft cuda graph begin. This can take up to several minutes. avail mem=4.17 GB
[2026-07-11 09:14:52 TP0] Capture draft cuda graph end. Time elapsed: 4.0 s. mem usage=-0.46 GB. avail mem=4.63 GB.
";
    let text = format!("{before}{draft}{ready}").replace(
        "speculative_algorithm=None",
        "speculative_algorithm='EAGLE3', speculative_draft_model_path='AngelSlim/Qwen3-32B_eagle3', \
         speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4",
    );
    let text = text.replace("available_gpu_mem=6.18", "available_gpu_mem=4.63");
    with_log("given-back", &text, |log| {
        let said = answers(&["explain", log]);
        assert!(
            said.contains("0.36 of it given back before its graphs"),
            "{said}"
        );
        assert!(said.contains("draft_graph_gib        -0.46"), "{said}");
        let asked = ["plan", "--from-log", log, "--gpu", "rtx-6000-ada"];
        let text = answers(&[&asked[..], &["--engine", "sglang@0.5.13"]].concat());
        assert!(
            text.contains("costs no KV tokens, at 0.848 with and without it; beside the pool 2.01 GiB: the draft's weights 1.64, KV pool 0.37, given back as its graphs are captured -0.46, the target's graphs 0.46 more"),
            "{text}"
        );
    });
}
