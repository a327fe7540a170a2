//! What an SGLang log gives away by the way: its ranks, and the format of its weights.

use super::super::facts::Facts;
use super::super::text::{Doc, number_prefix};

/// Ranks seen in any line's tag, as the tensor-parallel size where no argument gave it. Rank 0
/// alone says nothing: many lines are printed by it only.
pub(super) fn ranks(doc: &Doc, facts: &mut Facts) {
    let mut highest = (0.0, 0);
    for at in doc.after_all(" TP") {
        let window = doc.window(at, 6);
        let Some((rank, length)) = number_prefix(window) else {
            continue;
        };
        let ends = window
            .get(length..)
            .is_some_and(|w| w.starts_with([']', ' ']));
        if ends && rank > highest.0 && rank.fract() == 0.0 {
            highest = (rank, doc.line_at(at));
        }
    }
    if highest.0 > 0.0 && facts.get("tp").is_none() {
        let how = "highest rank tag in the log";
        facts.derive("tp", highest.0 + 1.0, highest.1, how);
    }
}

/// How the name of a tuned config of the MoE kernels ends, and the format of the weights that they take
/// (`get_config_dtype_str` and `get_config_file_name`, fused_moe_triton; plain weights add no word).
const TUNED: [(&str, &str); 2] = [
    (",dtype=fp8_w8a8.json", "fp8"),
    (",dtype=fp8_w8a8,block_shape=[128, 128].json", "fp8-block"),
];

/// The weights' format by the name of the tuned config that its MoE kernels looked for behind `start`,
/// where nothing else said it.
pub(super) fn kernels(doc: &Doc, start: usize, facts: &mut Facts) {
    if facts.get("quant").is_some() {
        return;
    }
    let found = doc.find_all(&TUNED.map(|(name, _)| name));
    let Some((at, _, index)) = found.into_iter().find(|(at, ..)| *at >= start) else {
        return;
    };
    if let Some((_, format)) = TUNED.get(index) {
        let how = "by the name of its MoE kernels' tuned config";
        facts.derive("quant", *format, doc.line_at(at), how);
    }
}

#[cfg(test)]
mod tests {
    use crate::explain::facts_from_text;

    #[test]
    fn the_tuned_config_of_the_moe_kernels_names_the_weights_format() {
        let log = |told: &str, name: &str| {
            let text = format!(
                "[2025-09-11 10:25:33 TP0] server_args=ServerArgs(model_path='a/b', tp_size=1{told})\n\
                 [2025-09-11 10:25:33 TP0] Load weight end. type=X, avail mem=40.69 GB, mem usage=36.73 GB.\n\
                 [2025-09-11 10:25:47 TP0] Config file not found at a/E=8,N=2048,device_name=H{name}.json. \
                 Performance might be sub-optimal!\n"
            );
            let facts = facts_from_text(&text, "f");
            facts.text("quant").map(str::to_string)
        };
        let format = |name: &str| log("", name);
        assert_eq!(format(",dtype=fp8_w8a8").as_deref(), Some("fp8"));
        let blocks = ",dtype=fp8_w8a8,block_shape=[128, 128]";
        assert_eq!(format(blocks).as_deref(), Some("fp8-block"));
        assert_eq!(format(""), None);
        // What the server was told comes first.
        let told = log(", quantization='w8a8_fp8'", ",dtype=fp8_w8a8");
        assert_eq!(told.as_deref(), Some("w8a8_fp8"));
    }
}
