//! NCCL_DEBUG output: transports, channels, what was chosen, settings.

use super::super::facts::Facts;
use super::super::text::{Doc, leading_number};

/// `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read` and the settings NCCL says it took.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    said_besides(doc, facts);
    if !doc.flat.contains("NCCL INFO") && !doc.flat.contains("NCCL WARN") {
        return;
    }
    facts.kinds.push("nccl-debug");
    let mut counts = [
        ("P2P", 0.0, 0),
        ("SHM", 0.0, 0),
        ("NET", 0.0, 0),
        ("NVLS", 0.0, 0),
    ];
    let mut channels = -1.0;
    let mut last_channel = 0;
    for (number, line) in &doc.lines {
        let Some(at) = line.find(" via ") else {
            continue;
        };
        if !line.contains("NCCL INFO") || !line.contains("->") {
            continue;
        }
        let path = line.get(at + 5..).unwrap_or("");
        // To 2.4.
        let path = path.strip_prefix("direct shared").map_or(path, |_| "SHM");
        for (name, count, last) in &mut counts {
            if path.starts_with(*name) {
                *count += 1.0;
                *last = *number;
            }
        }
        if let Some((channel, _)) = line
            .find("Channel ")
            .and_then(|at| leading_number(line.get(at + 8..)?))
        {
            channels = f64::max(channels, channel);
            last_channel = *number;
        }
    }
    let names = [
        "nccl_p2p_links",
        "nccl_shm_links",
        "nccl_net_links",
        "nccl_nvls_links",
    ];
    for ((_, count, line), name) in counts.iter().zip(names) {
        if *count > 0.0 {
            facts.set(name, *count, *line);
        }
    }
    if channels >= 0.0 {
        facts.set("nccl_channels", channels + 1.0, last_channel);
    }
    // Said outright from 2.8 on: `16 coll channels, 0 nvls channels, 16 p2p channels, …`.
    for end in doc.after_all(" coll channels,") {
        let before = doc.flat.get(..end - " coll channels,".len()).unwrap_or("");
        let word = before.rsplit(' ').next().unwrap_or("");
        if let Ok(count) = word.parse::<u32>() {
            facts.set("nccl_channels", f64::from(count), doc.line_at(end));
        }
    }
    denied(doc, facts);
    choice(doc, facts);
    ranks(doc, facts);
    settings(doc, facts);
}

fn ranks(doc: &Doc, facts: &mut Facts) {
    // Of several communicators the largest is the whole job.
    let sizes = doc.after_all(" nranks ").filter_map(|at| {
        let (ranks, _) = leading_number(doc.window(at, 12))?;
        Some((ranks, doc.line_at(at)))
    });
    if let Some((ranks, line)) = sizes.max_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.set_if_absent("ranks", ranks, line);
    }
}

/// `P2P is disabled between connected GPUs 1 and 0.`
fn denied(doc: &Doc, facts: &mut Facts) {
    let Some(at) = doc
        .after_all("P2P is disabled between connected GPUs")
        .next()
    else {
        return;
    };
    let word = if facts.get("nccl_p2p_links").is_some() {
        "some"
    } else {
        "off"
    };
    facts.set_if_absent("p2p", word, doc.line_at(at));
}

/// `AllReduce: 57344 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}`, to 2.22 by numbers: `Algo 1
/// proto 0 time 24.5`. Of several sizes that nearest to decode's.
fn choice(doc: &Doc, facts: &mut Facts) {
    const DECODE_BYTES: f64 = 65_536.0;
    const ALGORITHMS: [&str; 7] = [
        "tree",
        "ring",
        "collnet",
        "collnet",
        "nvls",
        "nvls-tree",
        "pat",
    ];
    const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
    let mut best: Option<(f64, String, usize)> = None;
    for at in doc.after_all("Bytes -> Algo ") {
        let before = doc.flat.get(..at).unwrap_or("");
        let before = before
            .strip_suffix("Bytes -> Algo ")
            .unwrap_or("")
            .trim_end();
        let mut words = before.rsplit(' ');
        let Some(bytes) = words.next().and_then(|word| word.parse::<f64>().ok()) else {
            continue;
        };
        let operation = words.next().unwrap_or("");
        if operation.ends_with(':') && operation != "AllReduce:" {
            continue;
        }
        let mut after = doc.window(at, 60).split_whitespace();
        let named = |word: Option<&str>, names: &[&str]| -> Option<String> {
            let word = word?.trim_end_matches(',');
            match word.parse::<usize>() {
                Ok(index) => names.get(index).map(|name| (*name).to_string()),
                Err(_) => Some(word.to_ascii_lowercase()),
            }
        };
        let algorithm = named(after.next(), &ALGORITHMS);
        let protocol = named(after.nth(1), &PROTOCOLS);
        let (Some(algorithm), Some(protocol)) = (algorithm, protocol) else {
            continue;
        };
        let far = |bytes: f64| (bytes.max(1.0) / DECODE_BYTES).ln().abs();
        if best
            .as_ref()
            .is_none_or(|(known, _, _)| far(bytes) < far(*known))
        {
            best = Some((bytes, format!("{algorithm}-{protocol}"), doc.line_at(at)));
        }
    }
    if let Some((bytes, chosen, line)) = best {
        facts.set("nccl_choice", chosen, line);
        facts.set("nccl_choice_bytes", bytes, line);
    }
}

/// The version that an engine or NCCL_DEBUG=VERSION prints, and the level on a start line.
fn said_besides(doc: &Doc, facts: &mut Facts) {
    for key in ["is using nccl==", "NCCL version "] {
        if let Some(at) = doc.after_all(key).last() {
            let word = doc.window(at, 40).split_whitespace().next().unwrap_or("");
            if pcie_sim::nccl::release(word).is_some() {
                facts.set("nccl_version", word, doc.line_at(at));
            }
        }
    }
    if let Some(at) = doc.after_all("NCCL_P2P_LEVEL=").next() {
        let word = doc.window(at, 12).split_whitespace().next().unwrap_or("");
        if word.parse::<pcie_sim::nccl::P2pLevel>().is_ok() {
            facts.set("nccl_p2p_level", word, doc.line_at(at));
        }
    }
    if let Some(at) = doc.after_all("NCCL_P2P_DISABLE=1").next() {
        facts.set("nccl_p2p_disable", "1", doc.line_at(at));
    }
}

fn settings(doc: &Doc, facts: &mut Facts) {
    for (key, fact) in [
        ("NCCL_P2P_DISABLE set by environment to", "nccl_p2p_disable"),
        ("NCCL_TOPO_FILE set by environment to", "nccl_topo_file"),
        ("NCCL_PROTO set by environment to", "nccl_proto"),
        ("NCCL_ALGO set by environment to", "nccl_algo"),
        ("NCCL_P2P_LEVEL set by environment to", "nccl_p2p_level"),
    ] {
        if let Some(at) = doc.after_all(key).next() {
            let value = doc.window(at, 120).split_whitespace().next().unwrap_or("");
            let value = value.trim_end_matches(['.', ',']);
            if !value.is_empty() {
                facts.set(fact, value, doc.line_at(at));
            }
        }
    }
    for key in ["Using network ", "Using internal network "] {
        if let Some(at) = doc.after_all(key).next() {
            let word = doc.window(at, 40).split(' ').next().unwrap_or("");
            facts.set_if_absent("nccl_network", word, doc.line_at(at));
        }
    }
}

/// How far NCCL goes directly: as it was set, or nowhere.
pub(super) fn p2p_level(facts: &Facts) -> Option<(String, usize)> {
    let off = facts
        .get("nccl_p2p_disable")
        .filter(|_| facts.text("nccl_p2p_disable") == Some("1"));
    let level = || {
        Some((
            facts.text("nccl_p2p_level")?.to_string(),
            facts.get("nccl_p2p_level")?.line,
        ))
    };
    off.map(|fact| ("LOC".to_string(), fact.line))
        .or_else(level)
}
