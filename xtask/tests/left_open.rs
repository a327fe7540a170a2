//! The head of an answer that is left open.

mod common;

use common::run;

/// Where the middle of the band loses was told, and not where the whole band does.
#[test]
fn an_answer_left_open_says_at_which_loads_it_pays_and_does_not() {
    let mut told = 0;
    for flags in [
        "--model qwen3-8b --gpu rtx-5090 --engine sglang@0.5.14 --draft ngram --context 100 --steps 5 \
         --concurrency 1,4,128,256,512",
        "--model gpt-oss-120b --gpu h100-sxm --gpus 2 --engine vllm@0.33.0",
    ] {
        let json: serde_json::Value =
            serde_json::from_str(&run("predict", &format!("{flags} --json"))).expect("JSON");
        assert_eq!(json["verdict"], "measure-first", "{flags}");
        let head = json["because"].as_str().expect("a reason");
        let points = json["points"].as_array().expect("rows");
        for (word, verdict) in [
            ("it pays at", "pays"),
            ("it does not pay at", "does-not-pay"),
        ] {
            let so = points.iter().filter(|point| point["verdict"] == verdict);
            let loads: Vec<String> = so.map(|point| point["concurrency"].to_string()).collect();
            let (Some(first), Some(last)) = (loads.first(), loads.last()) else {
                assert!(!head.contains(word), "{head}");
                continue;
            };
            let (_, said) = head.split_once(word).unwrap_or_else(|| panic!("{head}"));
            let (said, _) = said
                .split_once(" users")
                .unwrap_or_else(|| panic!("{head}"));
            assert!(
                said.starts_with(&format!(" {first}")) && said.ends_with(last),
                "{loads:?}: {head}"
            );
            told += 1;
        }
    }
    assert!(told >= 2, "{told}");
}
