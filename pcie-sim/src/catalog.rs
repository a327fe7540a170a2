//! Boxes with published or usual wiring, by name.

use crate::box_spec::{BoxSpec, ReadError};

/// Box files of the catalogue, sorted by name.
const BOXES: &[(&str, &str)] = &[
    (
        "1cat170-8xV100",
        include_str!("../catalog/1cat170-8xV100.toml"),
    ),
    ("1x-h100", include_str!("../catalog/1x-h100.toml")),
    ("1x-h200", include_str!("../catalog/1x-h200.toml")),
    (
        "2x-a100-pcie-nvlink",
        include_str!("../catalog/2x-a100-pcie-nvlink.toml"),
    ),
    ("2x-h100", include_str!("../catalog/2x-h100.toml")),
    ("2x-h100-nvl", include_str!("../catalog/2x-h100-nvl.toml")),
    ("2x-h200", include_str!("../catalog/2x-h200.toml")),
    (
        "2x-rtx-3090-nvlink",
        include_str!("../catalog/2x-rtx-3090-nvlink.toml"),
    ),
    ("2x-rtx-4090", include_str!("../catalog/2x-rtx-4090.toml")),
    ("2x-rtx-5090", include_str!("../catalog/2x-rtx-5090.toml")),
    (
        "2x-rtx-5090-am5",
        include_str!("../catalog/2x-rtx-5090-am5.toml"),
    ),
    (
        "2x-rtx-pro-6000",
        include_str!("../catalog/2x-rtx-pro-6000.toml"),
    ),
    ("4x-a100-sxm", include_str!("../catalog/4x-a100-sxm.toml")),
    ("4x-h100", include_str!("../catalog/4x-h100.toml")),
    ("4x-h200", include_str!("../catalog/4x-h200.toml")),
    ("4x-l40s", include_str!("../catalog/4x-l40s.toml")),
    ("4x-rtx-3090", include_str!("../catalog/4x-rtx-3090.toml")),
    (
        "4x-rtx-3090-nvlink",
        include_str!("../catalog/4x-rtx-3090-nvlink.toml"),
    ),
    ("4x-rtx-4090", include_str!("../catalog/4x-rtx-4090.toml")),
    (
        "4x-rtx-pro-6000",
        include_str!("../catalog/4x-rtx-pro-6000.toml"),
    ),
    (
        "4x-rtx-pro-6000-switch",
        include_str!("../catalog/4x-rtx-pro-6000-switch.toml"),
    ),
    ("8x-l40s", include_str!("../catalog/8x-l40s.toml")),
    ("8x-rtx-4090", include_str!("../catalog/8x-rtx-4090.toml")),
    ("8x-rtx-5090", include_str!("../catalog/8x-rtx-5090.toml")),
    (
        "8x-rtx-pro-6000-direct",
        include_str!("../catalog/8x-rtx-pro-6000-direct.toml"),
    ),
    (
        "asus-bcm-2s-8x",
        include_str!("../catalog/asus-bcm-2s-8x.toml"),
    ),
    (
        "builderB-turin-2s-direct-8x",
        include_str!("../catalog/builderB-turin-2s-direct-8x.toml"),
    ),
    (
        "builderD-turin-2s-6x",
        include_str!("../catalog/builderD-turin-2s-6x.toml"),
    ),
    (
        "club3090-2x5090",
        include_str!("../catalog/club3090-2x5090.toml"),
    ),
    (
        "club3090-4x3090",
        include_str!("../catalog/club3090-4x3090.toml"),
    ),
    (
        "club3090-vm-2x3090",
        include_str!("../catalog/club3090-vm-2x3090.toml"),
    ),
    (
        "cudasamples230-4x",
        include_str!("../catalog/cudasamples230-4x.toml"),
    ),
    ("dgx-1-v100", include_str!("../catalog/dgx-1-v100.toml")),
    ("dgx-a100", include_str!("../catalog/dgx-a100.toml")),
    ("dgx-h100", include_str!("../catalog/dgx-h100.toml")),
    ("dgx-spark", include_str!("../catalog/dgx-spark.toml")),
    (
        "flagtree888-8xH20",
        include_str!("../catalog/flagtree888-8xH20.toml"),
    ),
    (
        "flashinfer4870-cx7-8xL40S",
        include_str!("../catalog/flashinfer4870-cx7-8xL40S.toml"),
    ),
    (
        "gardenlinux4556-4x",
        include_str!("../catalog/gardenlinux4556-4x.toml"),
    ),
    ("gb200-4", include_str!("../catalog/gb200-4.toml")),
    ("hgx-b200-8", include_str!("../catalog/hgx-b200-8.toml")),
    ("hgx-b300-8", include_str!("../catalog/hgx-b300-8.toml")),
    ("hgx-h20-8", include_str!("../catalog/hgx-h20-8.toml")),
    ("hgx-h200-8", include_str!("../catalog/hgx-h200-8.toml")),
    (
        "ikllama258-3x3090",
        include_str!("../catalog/ikllama258-3x3090.toml"),
    ),
    (
        "joorklee-2x5060ti",
        include_str!("../catalog/joorklee-2x5060ti.toml"),
    ),
    ("mi300x-8", include_str!("../catalog/mi300x-8.toml")),
    ("mi355-8x", include_str!("../catalog/mi355-8x.toml")),
    (
        "mooncake3484-8xH20",
        include_str!("../catalog/mooncake3484-8xH20.toml"),
    ),
    (
        "mscclpp-docs-nvlink",
        include_str!("../catalog/mscclpp-docs-nvlink.toml"),
    ),
    (
        "nccl1127-8x3090",
        include_str!("../catalog/nccl1127-8x3090.toml"),
    ),
    (
        "nccl1259-2xH100",
        include_str!("../catalog/nccl1259-2xH100.toml"),
    ),
    (
        "nccl1264-8xH100",
        include_str!("../catalog/nccl1264-8xH100.toml"),
    ),
    (
        "nccl1439-8x3090",
        include_str!("../catalog/nccl1439-8x3090.toml"),
    ),
    (
        "nccl1639-8x5090",
        include_str!("../catalog/nccl1639-8x5090.toml"),
    ),
    (
        "nccl1940-8xH200",
        include_str!("../catalog/nccl1940-8xH200.toml"),
    ),
    (
        "ncclt194-2xH100P",
        include_str!("../catalog/ncclt194-2xH100P.toml"),
    ),
    (
        "ncclt331-2xA100",
        include_str!("../catalog/ncclt331-2xA100.toml"),
    ),
    (
        "ncclt44-2x2080ti",
        include_str!("../catalog/ncclt44-2x2080ti.toml"),
    ),
    (
        "ncclt74-8xA40",
        include_str!("../catalog/ncclt74-8xA40.toml"),
    ),
    (
        "nvbw-readme-8x",
        include_str!("../catalog/nvbw-readme-8x.toml"),
    ),
    ("rccl362-2gpu", include_str!("../catalog/rccl362-2gpu.toml")),
    (
        "rtx6k-local-8x",
        include_str!("../catalog/rtx6k-local-8x.toml"),
    ),
    (
        "sglang32479-8x6000D",
        include_str!("../catalog/sglang32479-8x6000D.toml"),
    ),
    (
        "sglang34528-8x",
        include_str!("../catalog/sglang34528-8x.toml"),
    ),
    (
        "sglangV100-2-4x",
        include_str!("../catalog/sglangV100-2-4x.toml"),
    ),
    ("stas-8xH200", include_str!("../catalog/stas-8xH200.toml")),
    (
        "tinygrad17-5x4090",
        include_str!("../catalog/tinygrad17-5x4090.toml"),
    ),
    (
        "tinygrad45-2x4090",
        include_str!("../catalog/tinygrad45-2x4090.toml"),
    ),
    (
        "trpro-iommu-4x",
        include_str!("../catalog/trpro-iommu-4x.toml"),
    ),
    (
        "trtllm14534-gb200",
        include_str!("../catalog/trtllm14534-gb200.toml"),
    ),
    (
        "turin-1s-4sw-16x",
        include_str!("../catalog/turin-1s-4sw-16x.toml"),
    ),
    ("two-switch-8", include_str!("../catalog/two-switch-8.toml")),
    (
        "vllm22086-2xH100",
        include_str!("../catalog/vllm22086-2xH100.toml"),
    ),
    (
        "vllm24532-4xH100",
        include_str!("../catalog/vllm24532-4xH100.toml"),
    ),
    (
        "vllm50941-8xA800",
        include_str!("../catalog/vllm50941-8xA800.toml"),
    ),
    ("vllm56128-4x", include_str!("../catalog/vllm56128-4x.toml")),
    (
        "wrx90-2vs-1s-8x",
        include_str!("../catalog/wrx90-2vs-1s-8x.toml"),
    ),
    (
        "wrx90-3sw-1s-8x",
        include_str!("../catalog/wrx90-3sw-1s-8x.toml"),
    ),
];

/// Names of all boxes, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    BOXES.iter().map(|(name, _)| *name)
}

/// The box of a name (case does not matter); an unknown name is an error that lists near matches.
pub fn find(name: &str) -> Result<BoxSpec, ReadError> {
    match BOXES
        .iter()
        .find(|(have, _)| have.eq_ignore_ascii_case(name))
    {
        Some((_, text)) => BoxSpec::from_toml(text),
        None => {
            let near = near(name);
            let mend = if near.is_empty() {
                "give a box file, or --gpu and --gpus".to_string()
            } else {
                format!("near matches: {}", near.join(", "))
            };
            Err(ReadError::new(
                None,
                format!("no box is called '{name}'"),
                mend,
            ))
        }
    }
}

/// Up to five names near a misspelt or partial one, best first.
pub fn near(name: &str) -> Vec<&'static str> {
    let wanted: String = name.chars().take(64).collect::<String>().to_lowercase();
    let mut scored: Vec<(usize, &'static str)> = names()
        .filter_map(|have| {
            let low = have.to_lowercase();
            if !wanted.is_empty() && low.contains(&wanted) {
                return Some((0, have));
            }
            let distance = edit_distance(&wanted, &low);
            (distance <= 1 + wanted.chars().count() / 3).then_some((distance, have))
        })
        .collect();
    scored.sort();
    scored.into_iter().map(|(_, have)| have).take(5).collect()
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = *cell;
            left = change.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
