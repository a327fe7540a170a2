//! The one depth of an answer: which loads are listed does not choose it, and no row of it is worse than
//! its tolerance without saying so.

mod common;

use common::answers;
use serde_json::Value;

fn json(server: &str, loads: &str) -> Value {
    let run = format!("predict {server} --concurrency {loads} --json");
    serde_json::from_str(&answers(&run.split_whitespace().collect::<Vec<_>>())).expect("JSON")
}

const SERVERS: [&str; 10] = [
    "--model llama-3.3-70b --quant fp8 --gpu h100 --gpus 4 --engine sglang@0.5.9 --context 4k",
    "--model llama-3.3-70b --quant fp8 --gpu l40s --gpus 4 --engine sglang --context 4k",
    "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --engine sglang",
    "--model qwen3-32b --gpu h100 --engine vllm@0.24.0 --accept 2.9@3",
    "--model qwen3-235b-a22b-fp8 --gpu h100 --gpus 8 --engine vllm@0.24.0",
    "--model qwen3-30b-a3b --gpu rtx-pro-6000 --gpus 2 --engine sglang",
    "--model glm-5.1 --quant nvfp4 --gpu rtx-pro-6000 --gpus 8 --engine sglang",
    "--model gpt-oss-120b --gpu h200-sxm --gpus 2 --engine vllm@0.28.0",
    "--model kimi-k2.5 --gpu rtx-pro-6000 --gpus 8 --engine vllm@0.24.0",
    "--model qwen3-8b --gpu rtx-4090 --engine sglang --accept 2.2@3",
];

/// 1,16,64 users took 3 steps and 1,4,16,32,64 took 4.
#[test]
fn a_load_listed_between_two_others_changes_no_depth() {
    for server in SERVERS {
        let steps = |loads: &str| json(server, loads)["best"]["steps"].clone();
        let ends = steps("1,64");
        for loads in ["1,16,64", "1,4,16,32,64", "1,3,7,50,64"] {
            assert_eq!(steps(loads), ends, "{server} {loads}");
        }
    }
}

/// The table of depths by load has the pasted one where that serves all.
#[test]
fn the_depth_table_has_the_pasted_depth() {
    for server in SERVERS {
        let answer = json(server, "1,2,4");
        let context = &answer["points"][0]["context"];
        let rows = answer["depth_table"].as_array().expect("rows");
        let own: Vec<&Value> = rows
            .iter()
            .filter(|r| r["context_to"] == *context)
            .collect();
        if let [row] = own.as_slice() {
            let told = [&answer["best"]["steps"], &Value::from(0)];
            assert!(told.contains(&&row["steps"]), "{server} {rows:?}");
        }
    }
}
