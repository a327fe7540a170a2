//! A row that lies off its neighbours says why: a change of NCCL's choice, a padded verify, a list by
//! load that vLLM does not get; and which head the paste's placeholder may be.

mod common;

use common::{answers, with_log};

const LLAMA: &str = "predict --model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --topology \
                     docs/examples/topo-4x3090.txt --draft eagle3 --concurrency 1,2,4,8,12 --engine sglang";
const QWEN: &str = "predict --model qwen3-32b --quant awq --gpu rtx-3090 --gpus 4 --topology \
                    docs/examples/topo-4x3090.txt --draft eagle3 --concurrency 1,2,4,8,12 --engine vllm";

fn run(flags: &str) -> String {
    answers(&flags.split_whitespace().collect::<Vec<_>>())
}

/// The speedup of a load's row.
fn row(text: &str, users: &str) -> f64 {
    let rows = text.lines().skip_while(|line| !line.starts_with("users"));
    let mut words = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = words.find(|words| words.first() == Some(&users));
    let cell = row.and_then(|words| words.get(3)?.parse().ok());
    cell.unwrap_or_else(|| panic!("no row of {users}: {text}"))
}

/// A row beyond the sweep lay under its heavier neighbour by a kernel that NCCL may not take there; the
/// line that says so stood only without a sweep.
#[test]
fn a_change_of_nccls_choice_is_told_of_rows_that_a_sweep_does_not_reach() {
    let sweep = "concurrency,tok_s\n1,43\n2,84\n4,157\n8,275\n12,350\n";
    let longer = format!("{sweep}24,520\n36,640\n");
    let of = |sweep: &str, more: &str| {
        with_log("odd", sweep, |path| {
            run(&format!("{LLAMA} --accept 2.4@3 --baseline {path} {more}"))
        })
    };
    let text = of(sweep, "");
    let line = "NCCL leaves ring-ll for ring-simple near ";
    let told = text.lines().find(|text| text.contains(line));
    let told = told.unwrap_or_else(|| panic!("{text}"));
    let speedups = told.split_once("at 8 users take 69.4 us, not 117, and the speedup is ");
    let there = speedups.and_then(|(_, rest)| rest.split(',').next()?.parse::<f64>().ok());
    let there = there.unwrap_or_else(|| panic!("{told}"));
    assert!(
        there > row(&text, "8") + 0.1 && told.contains(&format!("not {:.2}", row(&text, "8"))),
        "{told}"
    );
    // What nccl-tests would show on that side gives that speedup, and settles it.
    let table = "bytes,time_us\n16384,24.6\n65536,34\n131072,49.5\n196608,66\n393216,69.4\n589824,88.1\n1048576,132\n";
    let settled = with_log("table", table, |path| {
        of(sweep, &format!("--allreduce-table {path}"))
    });
    assert!(!settled.contains(line), "{settled}");
    assert!((row(&settled, "8") - there).abs() < 0.05, "{settled}");
    // A sweep that reaches these verifies rests on no kernel of the model.
    let inside = of(&longer, "");
    assert!(!inside.contains(line), "{inside}");
}

/// Two steps of four users run as eighteen tokens and three as sixteen: the row looked like a fault.
#[test]
fn a_row_that_padding_puts_under_more_steps_says_so() {
    let sweep = "concurrency,tok_s\n1,72\n2,139\n4,262\n8,470\n12,610\n24,1010\n36,1200\n48,1400\n";
    let of = |steps: &str| {
        with_log("padded", sweep, |path| {
            run(&format!("{QWEN} --accept 2.4@3 --baseline {path} {steps}"))
        })
    };
    let (two, three) = (of("--steps 2"), of("--steps 3"));
    assert!(row(&two, "4") < row(&three, "4"), "{two}{three}");
    let line = "a verify is padded to multiples of 1 + steps tokens, in whole CUDA graphs (FLASH_ATTN): 12 \
                tokens of 4 users with 2 steps run as 18, 16 with 3 steps as 16";
    assert!(two.contains(line), "{two}");
    assert!(!three.contains("run as"), "{three}");
}

/// A list by load was pasted at one context and dropped at another without a word.
#[test]
fn a_list_by_load_that_vllm_does_not_get_says_why() {
    let short = run(&format!("{QWEN} --context 2k --accept 2.6@3"));
    assert!(
        short.contains("num_speculative_tokens_per_batch_size\":["),
        "{short}"
    );
    assert!(!short.contains("at every load: "), "{short}");
    let long = run(&format!("{QWEN} --context 1k --accept 2.6@3"));
    assert!(!long.contains("per_batch_size\":["), "{long}");
    let line = "3 steps at every load: with a list by load vLLM would run the verify of 12 users in a graph \
                of another depth, cut at attention";
    assert_eq!(long.matches(line).count(), 1, "{long}");
}

/// `DRAFT_PATH: the head trained for it` left the search for one to the user where the catalogue names it.
#[test]
fn a_public_head_that_the_catalogue_knows_is_named_for_the_placeholder() {
    let head = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B";
    let text = run(LLAMA);
    // A head of its own, not the one that is reckoned with.
    let line = format!(
        "DRAFT_PATH: a head trained for it, such as {head}; the figures above are of another head: --draft \
         with that name gives its own"
    );
    assert!(text.contains(&line), "{text}");
    let taken = run(&LLAMA.replace("--draft eagle3", &format!("--draft {head}")));
    assert!(!taken.contains("DRAFT_PATH"), "{taken}");
    // One that is known to reach 2,048 tokens is not named for more.
    let longer = run(&format!("{LLAMA} --context 4k"));
    assert!(
        longer.contains("DRAFT_PATH: the head trained for it"),
        "{longer}"
    );
    let unknown = run(QWEN);
    assert!(
        unknown.contains("DRAFT_PATH: the head trained for it"),
        "{unknown}"
    );
}
