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

/// Of 4 steps one user's 5 tokens run as 5 or as 8, and nothing said which.
#[test]
fn the_padding_of_a_verify_is_told_where_it_matters_and_no_log_tells() {
    let of = |engine: &str| {
        let server = "predict --model qwen3-235b-a22b --quant awq --gpu h100-sxm --gpus 2 \
                      --context 32k --concurrency 1,2,3,4 --engine";
        let words: Vec<&str> = server.split_whitespace().chain([engine]).collect();
        answers(&words)
    };
    let said =
        "a verify is padded to multiples of 1 + steps tokens, in whole CUDA graphs (FLASH_ATTN)";
    assert!(of("vllm").contains(said), "{}", of("vllm"));
    assert!(!of("sglang").contains("is padded"));
}

/// vLLM takes the smallest whole graph that holds a verify, and cuts it where that is another depth's.
#[test]
fn every_load_of_a_list_finds_a_graph_of_its_own_depth() {
    let size = |tokens: u64, each: u64| {
        let sizes = [1, 2, 4].into_iter().chain((1..=64).map(|n| 8 * n));
        let up = sizes.map(|size: u64| size.div_ceil(each) * each);
        up.filter(|size| *size >= tokens).min()
    };
    let mut lists = 0;
    for (server, loads) in SERVERS
        .into_iter()
        .flat_map(|s| ["1,2,3,4", "1,8,64"].map(|l| (s, l)))
    {
        let (server, _) = server.split_once("--engine").unwrap_or((server, ""));
        let answer = json(&format!("{server} --engine vllm"), loads);
        let line = answer["engine_flags"]["vllm"].to_string().replace('\\', "");
        let list = line.split_once("per_batch_size\":").map(|(_, list)| list);
        let Some(list) = list.and_then(|list| list.split_once("]]")) else {
            continue;
        };
        let list: Vec<[u64; 3]> = serde_json::from_str(&format!("{}]]", list.0)).expect("a list");
        lists += 1;
        for users in loads
            .split(',')
            .map(|users| users.parse::<u64>().expect("a load"))
        {
            let row = list.iter().find(|row| row[1] >= users).expect("a row");
            let tokens = users * (row[2] + 1);
            let own = size(tokens, row[2] + 1);
            let least = list
                .iter()
                .filter_map(|other| size(tokens, other[2] + 1))
                .min();
            assert!(own == least || tokens > 512, "{server} {users}: {list:?}");
        }
    }
    assert!(lists > 0);
}

fn depths_advised(server: &str) -> Vec<String> {
    let text = answers(&server.split_whitespace().collect::<Vec<_>>());
    let named = |line: &&str| line.contains(" draft step (") || line.contains(" draft steps (");
    let lines = text.lines().filter(named);
    lines.map(|line| line.trim().to_string()).collect()
}

/// One step surely paid at 8 users where the log's three may not, and only `--concurrency 8` said so.
#[test]
fn a_depth_that_surely_pays_where_the_fixed_one_may_not_is_named_whichever_loads_are_listed() {
    let of = |loads: &str| {
        depths_advised(&format!(
            "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --context 4k --engine sglang --attention-backend fa3 \
             --accept 2.36@3 --steps 3 --concurrency {loads}"
        ))
    };
    let all = of("1,2,4,8,16");
    let turning = "1 draft step (pays at 8 users, which 3 steps may not; -";
    assert!(all.iter().any(|line| line.contains(turning)), "{all:?}");
    for loads in ["1,16", "1,3,16"] {
        assert_eq!(of(loads), all, "{loads}");
    }
}

/// At accept length 1.00 one step was advised, which loses too.
#[test]
fn no_depth_is_advised_that_loses_against_plain_decoding() {
    for accept in ["1.0@3", "1.1@3"] {
        let lines = depths_advised(&format!(
            "predict --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --context 4k \
             --accept {accept} --steps 3 --concurrency 1,4,8"
        ));
        assert_eq!(lines, Vec::<String>::new(), "{accept}");
    }
}

/// Three tokens of four users run as eighteen, and the table had the time of twelve.
#[test]
fn the_all_reduce_table_has_the_sizes_that_padded_passes_send() {
    let server =
        "--model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --context 9k --steps 2 --engine";
    let sizes = |engine: &str| {
        let answer = json(&format!("{server} {engine}"), "4");
        let rows = answer["allreduce"].as_array().expect("rows").iter();
        let mut sizes: Vec<u64> = rows.filter_map(|row| row["bytes"].as_u64()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let token = 2 * 8192;
    assert_eq!(
        sizes("vllm@0.19.0"),
        [1, 3, 18].map(|tokens| tokens * token)
    );
    assert_eq!(sizes("sglang"), [1, 3, 12].map(|tokens| tokens * token));
}

/// "About a chain of 3 steps, whatever their shape" stood beside accept lengths of 2.45 to 3.59.
#[test]
fn a_trees_line_says_how_its_accept_length_is_had_and_how_well_that_is_known() {
    let server = "predict --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --steps 5 --topk 8 --draft-tokens 32";
    let text = answers(&server.split_whitespace().collect::<Vec<_>>());
    let line = text.lines().find(|line| line.contains("a tree of width 8"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let said = "computed from the chain's (nine in ten measured trees within 0.5 tokens;";
    assert!(line.contains(said), "{line}");
    assert!(!text.contains("whatever their shape"), "{text}");
}

/// Six steps were advised beside a search that took five; "+19 % (at 1 user)" hid +1.6 % at 32 users; and a
/// fraction at which the pool holds the last load changed the depth.
#[test]
fn the_depth_advised_is_the_one_that_is_pasted_where_none_is_fixed_with_both_ends_of_its_gain() {
    let server = "predict --model qwen3-32b --gpu h200 --engine sglang@0.5.13 --draft eagle3 --accept 2.97@3 \
                  --context 8k --concurrency 1,8,32";
    let free = answers(&server.split_whitespace().collect::<Vec<_>>());
    let (_, pasted) = free
        .split_once("--speculative-num-steps ")
        .unwrap_or_else(|| panic!("{free}"));
    let pasted = pasted.split(' ').next().expect("steps");
    let mut advised = Vec::new();
    for fraction in ["", "--mem-fraction 0.875", "--mem-fraction 0.935"] {
        let lines = depths_advised(&format!("{server} --steps 2 {fraction}"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line = &lines[0];
        assert!(
            line.contains(&format!(" %  {pasted} draft steps (at 1 user; +")),
            "{pasted}: {line}"
        );
        advised.push(line.split("; ").next().map(str::to_string));
    }
    assert!(
        advised.iter().all(|line| *line == advised[0]),
        "{advised:?}"
    );
}

/// Three steps ran, four were 4 % faster and five 5.5 %: the four were looked at alone, and nothing was named.
#[test]
fn a_depth_that_gains_beyond_a_tie_is_named_though_a_shallower_one_is_near_it() {
    let sweep = "concurrency,tok_s\n1,98\n8,700\n32,2300\n64,3700\n";
    common::with_log("near.csv", sweep, |path| {
        let server = format!(
            "--model llama-3.3-70b --quant fp8 --gpu h100 --gpus 4 --engine sglang@0.5.20 --draft eagle3 \
             --context 4k --accept 2.5@3 --baseline {path}"
        );
        let row = json(&server, "8,64")["points"][0].clone();
        let own = row["spec_tok_s"].as_f64().expect("a speed");
        assert_eq!(row["steps"], 3, "{row}");
        let of = |steps: u32| {
            let fixed = json(&format!("{server} --steps {steps}"), "8,64");
            fixed["points"][0]["spec_tok_s"].as_f64().expect("a speed") / own
        };
        assert!(
            of(4) * 0.95 < 1.0 && of(5) * 0.95 > 1.0,
            "{} {}",
            of(4),
            of(5)
        );
        assert_eq!(row["faster"]["steps"], 5, "{row}");
    });
}

/// Steps of experts and padded batches may lose at some loads and gain beyond them: "turn it off above 2 users"
/// stood over rows that pay.
#[test]
fn loads_that_gain_beyond_some_that_do_not_are_told() {
    let steps = [
        (1, 10.0),
        (2, 10.0),
        (4, 10.2),
        (8, 11.0),
        (16, 22.0),
        (32, 22.5),
        (64, 23.0),
        (128, 25.0),
        (256, 28.0),
    ];
    let rows = steps.map(|(users, ms)| format!("{users},{:.1}", f64::from(users) * 1000.0 / ms));
    let sweep = format!("concurrency,tok_s\n{}\n", rows.join("\n"));
    let of = |accept: &str, loads: &str| {
        common::with_log("hump", &sweep, |path| {
            let line = format!(
                "predict --model qwen3-32b --gpu h100 --gpus 2 --engine sglang --context 2k --steps 3 \
                 --accept {accept}@3 --baseline {path} --concurrency {loads}"
            );
            answers(&line.split_whitespace().collect::<Vec<_>>())
        })
    };
    let said = of("1.6", "1,2,4,8,16,32,64");
    let line = "turn it off at 4 to 8 users; beyond them it gains again";
    assert!(said.contains(line), "{said}");
    let said = of("1.6", "1,2,4,8");
    assert!(said.contains("turn it off above 2 users"), "{said}");
    // An open answer says as much of the middle of its band.
    let said = of("1.15", "1,2,4,8");
    assert!(
        said.starts_with("MEASURE FIRST") && said.contains("its middle loses above 1 user"),
        "{said}"
    );
}

/// "accept length over 7.05 (2.83 now, 4 steps)" asked for more than 4 steps can give.
#[test]
fn an_accept_length_beyond_what_the_steps_can_give_is_no_flip() {
    let of = |context: &str| {
        let line = format!(
            "predict --model qwen3-30b-a3b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.28.0 --draft eagle3 \
             --context {context}"
        );
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let far = of("16k");
    assert!(far.contains("and at most 5.00 is accepted"), "{far}");
    assert!(!far.contains("accept length over"), "{far}");
    let near = of("2k");
    assert!(
        near.contains("  accept length over ") || near.contains("  accept length under "),
        "{near}"
    );
}
