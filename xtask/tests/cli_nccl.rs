//! How NCCL runs: its version, the CPU that its search depends on, and between which GPUs it goes
//! directly.

mod common;

use common::{answers, refusal};
use serde_json::Value;

/// Eight cards on the root ports of two sockets, as `nvidia-smi topo -m` prints them.
fn two_sockets() -> String {
    let names: Vec<String> = (0..8).map(|gpu| format!("GPU{gpu}")).collect();
    let mut text = format!("\t{}\tCPU Affinity\tNUMA Affinity\n", names.join("\t"));
    for (a, name) in names.iter().enumerate() {
        let cells = (0..8).map(|b| match (a == b, a / 4 == b / 4) {
            (true, _) => " X ",
            (_, true) => "NODE",
            _ => "SYS",
        });
        let cells: Vec<&str> = cells.collect();
        let node = a / 4;
        text.push_str(&format!("{name}\t{}\t{node}\t{node}\n", cells.join("\t")));
    }
    text
}

/// The host's CPU doubles NCCL's time on two sockets (AMD's Turin: it finds no ring), and was taken for
/// another without a word; the listing that would settle it did not.
#[test]
fn the_cpu_that_nccls_search_depends_on_is_assumed_aloud_and_lscpu_or_lspci_settles_it() {
    let flags = "predict --model qwen3-235b-a22b --quant int4 --gpu rtx-pro-6000-server --gpus 8 --engine \
                 vllm@0.22 --draft eagle3";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let told = answers(&flags);
    assert!(told.contains("a CPU for which NCCL finds a ring"), "{told}");
    let drawn = answers(&["simulate", "--gpu", "rtx-pro-6000-server", "--gpus", "8"]);
    assert!(
        drawn.contains("a CPU for which NCCL finds a ring"),
        "{drawn}"
    );
    let with = |behind: &str| {
        let name = format!("two-sockets-{}-{}", behind.len(), std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, two_sockets() + behind).expect("a topology");
        let shown = path.display().to_string();
        let drawn = [
            "simulate",
            "--gpu",
            "rtx-pro-6000-server",
            "--bytes",
            "8192",
        ];
        let text = answers(&[&drawn[..], &["--topology", &shown]].concat());
        let told = answers(&[&flags[..], &["--topology", &shown]].concat());
        let assumed = |text: &str| text.contains("a CPU for which NCCL finds a ring");
        assert_eq!(assumed(&text), assumed(&told), "{told}");
        std::fs::remove_file(path).ok();
        text
    };
    assert!(with("").contains("a CPU for which NCCL finds a ring"));
    for (cpu, plan) in [
        (
            "Model name:    AMD EPYC 9575F 64-Core Processor\n",
            "  nccl-ring-simple ",
        ),
        (
            "model name\t: AMD EPYC 9654 96-Core Processor\n",
            "  nccl-ring-simple ",
        ),
        (
            "Model name:  Intel(R) Xeon(R) Platinum 8480+\n",
            "  nccl-ring-ll ",
        ),
    ] {
        let said = with(&format!("\nArchitecture:  x86_64\n{cpu}"));
        assert!(said.contains(plan), "{cpu} {said}");
        assert!(!said.contains("a CPU for which"), "{cpu} {said}");
        // What a CPU without a ring leaves open is the version.
        let open = said.contains("NCCL before 2.30, which finds no ring");
        assert_eq!(open, cpu.contains("EPYC"), "{cpu} {said}");
    }
    // One socket, or a group of one: nothing hangs on it.
    let four = [&flags[..], &["--tp", "4"]].concat();
    assert!(!answers(&four).contains("a CPU for which"));
}

/// A CPU that `lscpu` said to be Turin settled half of it: that NCCL finds a ring there since 2.30 went
/// unsaid, though plain speed and the depth hang on it.
#[test]
fn which_nccl_is_taken_to_run_on_two_turin_is_said_where_the_cpu_is_known() {
    let path = std::env::temp_dir().join(format!("turin-{}", std::process::id()));
    let cpu = "\nArchitecture:  x86_64\nModel name:  AMD EPYC 9475F 48-Core Processor\n";
    std::fs::write(&path, two_sockets() + cpu).expect("a topology");
    let shown = path.display().to_string();
    let flags = "predict --model glm-4.6 --quant fp8 --gpu rtx-pro-6000 --gpus 8 --engine sglang@0.5.16 \
                 --draft mtp --context 16k --concurrency 1 --topology";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let told = |tp: &str| answers(&[&flags[..], &[&shown, "--tp", tp]].concat());
    let (eight, four) = (told("8"), told("4"));
    std::fs::remove_file(path).ok();
    let line = "NCCL before 2.30, which finds no ring on two AMD sockets with such cards: 2.30 or newer finds one";
    assert!(eight.contains(line), "{eight}");
    assert!(!four.contains(line), "{four}");
    // The simpler cure went unnamed in the advice.
    let cure = "run NCCL 2.30 or newer, or give the older one a graph file (NCCL_GRAPH_FILE)";
    assert!(eight.contains(cure), "{eight}");
}

/// At 16 users, and at 15, which pad to 16, a verify's payload lay 3 % past the size at which NCCL changes its choice, whose place is
/// not known so well, and the depth and the verdict there hung on it without a word.
#[test]
fn a_payload_near_a_change_of_nccls_choice_says_what_the_other_side_costs() {
    let path = std::env::temp_dir().join(format!("step-{}", std::process::id()));
    std::fs::write(&path, two_sockets()).expect("a topology");
    let shown = path.display().to_string();
    let flags = "predict --model glm-4.6 --quant fp8 --gpu rtx-pro-6000 --gpus 8 --engine sglang@0.5.16 \
                 --tp 8 --draft mtp --context 16k --steps 4 --nccl-p2p-level SYS --topology";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let told = |load: &str| answers(&[&flags[..], &[&shown, "--concurrency", load]].concat());
    let (past, before, far) = (told("16"), told("14"), told("1"));
    std::fs::remove_file(path).ok();
    let line = "NCCL leaves ring-ll for tree-simple near ";
    assert_eq!(past.matches(line).count(), 1, "{past}");
    assert!(
        past.contains("the 800 KiB at 16 users take 198 us, not 108"),
        "{past}"
    );
    assert!(
        before.contains(line) && before.contains("at 14 users take 101 us, not 174"),
        "{before}"
    );
    assert!(!far.contains(line), "{far}");
}

/// A box of eight cards on root ports of their own, as the tools print it, on a CPU.
fn root_ports(name: &str, cpu: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let cpu = format!("\nArchitecture:  x86_64\nModel name:  {cpu}\n");
    std::fs::write(&path, two_sockets() + &cpu).expect("a topology");
    path
}

const SERVED: &str = "--model glm-4.6 --quant fp8 --gpu rtx-pro-6000-server --engine vllm@0.27 --draft mtp \
                      --context 8k --concurrency 16,64";

/// What `predict` says of that server on eight cards of a topology's file.
fn served_on(topology: &str, more: &[&str]) -> String {
    let flags: Vec<&str> = SERVED.split_whitespace().collect();
    let on = ["--gpus", "8", "--topology", topology];
    answers(&[&["predict"], &flags[..], &on, more].concat())
}

/// The plain speeds and what else hangs on NCCL were those of a variable that nobody had set: NCCL by itself
/// leaves peer access aside between root ports.
#[test]
fn nccl_goes_through_host_memory_between_root_ports_unless_its_level_says_otherwise() {
    let path = root_ports("levels", "Intel(R) Xeon(R) Platinum 8480+");
    let shown = path.display().to_string();
    let told = |more: &[&str]| served_on(&shown, more);
    let (own, direct) = (told(&[]), told(&["--nccl-p2p-level", "SYS"]));
    let off = told(&["--nccl-p2p-level", "LOC"]);
    std::fs::remove_file(path).ok();
    let assumed = "NCCL goes through host memory between GPUs behind different root ports, as it does by itself";
    assert!(
        own.contains(assumed) && own.contains("tok/s plain, not"),
        "{own}"
    );
    assert!(
        own.contains("%  NCCL_P2P_LEVEL=SYS (in the engine's environment"),
        "{own}"
    );
    assert!(!own.contains("vllm: NCCL_P2P_LEVEL"), "{own}");
    assert!(!direct.contains(assumed), "{direct}");
    assert!(
        direct.contains("vllm: NCCL_P2P_LEVEL=SYS vllm serve"),
        "{direct}"
    );
    // Between root ports nothing is left that LOC could take away.
    let rows = |text: &str| -> Vec<String> {
        let of_load = |line: &&str| line.starts_with("   16 ") || line.starts_with("   64 ");
        text.lines().filter(of_load).map(str::to_string).collect()
    };
    assert_eq!(rows(&own), rows(&off));
    assert_ne!(rows(&own), rows(&direct));
}

/// Without a wiring shown the measured servers of such cards decide: NCCL is taken to go directly, the paste
/// says so to NCCL, and the answer says what it would be otherwise.
#[test]
fn where_nobody_showed_the_wiring_nccl_goes_directly_and_the_paste_and_the_assumption_say_so() {
    let flags: Vec<&str> = SERVED.split_whitespace().collect();
    let usual = answers(&[&["predict"], &flags[..], &["--gpus", "8"]].concat());
    assert!(
        usual.contains("NCCL goes directly between all GPUs, as measured servers"),
        "{usual}"
    );
    assert!(
        usual.contains("vllm: NCCL_P2P_LEVEL=SYS vllm serve"),
        "{usual}"
    );
    let said = answers(
        &[
            &["predict"],
            &flags[..],
            &["--gpus", "8", "--nccl-p2p-level", "PXB"],
        ]
        .concat(),
    );
    assert!(!said.contains("as measured servers"), "{said}");
    assert!(!said.contains("vllm: NCCL_P2P_LEVEL"), "{said}");
    let drawn = answers(&["simulate", "--gpu", "rtx-pro-6000-server", "--gpus", "8"]);
    assert!(
        drawn.contains("NCCL goes directly between all GPUs, as measured servers"),
        "{drawn}"
    );
    let error = refusal(&[
        "simulate",
        "--box",
        "4x-rtx-pro-6000",
        "--nccl-p2p-level",
        "NEAR",
    ]);
    assert!(error.contains("LOC, NVL, PIX, PXB, PHB, SYS"), "{error}");
}

/// The answer named the version as what would settle it, and had no way to be told: not by a flag, nor by a
/// log in which the engine prints it.
#[test]
fn nccls_version_is_taken_from_a_flag_or_from_the_log_of_the_server() {
    let path = root_ports("versions", "AMD EPYC 9575F 64-Core Processor");
    let shown = path.display().to_string();
    let told = |more: &[&str]| served_on(&shown, more);
    let open = "NCCL before 2.30, which finds no ring";
    let own = told(&[]);
    assert!(own.contains(open) && own.contains("a speedup of"), "{own}");
    let (old, new) = (
        told(&["--nccl", "2.29.7"]),
        told(&["--nccl", "2.30.5+cuda13.0"]),
    );
    assert!(!old.contains(open) && !new.contains(open), "{old}{new}");
    let rows = |text: &str| text.lines().skip(5).take(4).collect::<String>();
    assert_eq!(rows(&old), rows(&own));
    assert_ne!(rows(&new), rows(&own));
    let log = std::env::temp_dir().join(format!("nccl-{}.log", std::process::id()));
    let lines = "INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version 0.27.1\n\
                 INFO 11-30 10:00:01 [pynccl.py:113] vLLM is using nccl==2.30.5\n\
                 NCCL_P2P_LEVEL=SYS vllm serve zai-org/GLM-4.6-FP8 --tensor-parallel-size 8\n";
    std::fs::write(&log, lines).expect("a log");
    let file = log.display().to_string();
    let by_log = told(&["--from-log", &file, "--json"]);
    std::fs::remove_file(log).ok();
    std::fs::remove_file(path).ok();
    let by_log: Value = serde_json::from_str(&by_log).expect("JSON");
    let inputs = by_log.to_string();
    assert!(
        inputs.contains("\"2.30.5\"") && inputs.contains("NCCL_P2P_LEVEL=SYS"),
        "{inputs}"
    );
    assert!(
        !by_log["assumptions"].to_string().contains(open),
        "{by_log}"
    );
    let error = refusal(&["simulate", "--box", "4x-rtx-pro-6000", "--nccl", "new"]);
    assert!(error.contains("such as 2.29.7"), "{error}");
}

/// They read as two: a sweep was "moved" from one to the other by nothing.
#[test]
fn nccl_by_name_where_it_is_the_engines_own_choice_is_said_to_be_the_same() {
    let box_ = "predict --model llama-3.3-70b --quant int4 --gpu rtx-4090 --gpus 4 --engine vllm --context 2k";
    let of = |box_: &str, more: &str| {
        let line = format!("{box_} {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let same =
        "NCCL is also what vLLM takes here by itself at every size, so nccl and engine are one";
    assert!(of(box_, "--allreduce nccl").contains(&format!("{same}\n")));
    assert!(of(box_, "--compare engine,nccl").contains(&format!("{same}\n")));
    assert!(!of(box_, "").contains(same));
    let sweep = "concurrency,tok_s\n1,58\n4,205\n8,340\n16,520\n";
    common::with_log("one.csv", sweep, |path| {
        let text = of(box_, &format!("--allreduce nccl --baseline {path}"));
        let stands = format!("{same}; the steps of the plain sweep stand as they were measured\n");
        assert!(text.contains(&stands), "{text}");
        assert!(!text.contains("is taken to have run with"), "{text}");
        // Over NVLink the engine's own kernels run.
        let mesh = "predict --model llama-3.3-70b --quant int4 --gpu h100-sxm --gpus 4 --engine vllm --context 2k";
        let text = of(mesh, &format!("--allreduce nccl --baseline {path}"));
        assert!(
            text.contains("is taken to have run with") && !text.contains(same),
            "{text}"
        );
    });
}
