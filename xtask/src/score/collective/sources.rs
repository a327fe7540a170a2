//! Reads the measured rows from the data folder.

use std::path::Path;
use std::sync::Arc;

use pcie_sim::nccl::{NcclSetup, P2pLevel};
use pcie_sim::{Access, Algorithm, Topology};

use super::rows::{Kind, Row, Rows, What};

/// Reads every source of rows.
pub(super) fn read(data: &Path) -> anyhow::Result<Rows> {
    let mut rows = Rows::of(data)?;
    all_reduce_rows(&mut rows, &data.join("pcie/all_reduce.jsonl"))?;
    op_time_rows(&mut rows, &data.join("op_times/allreduce_all_systems.csv"))?;
    own_h200_rows(&mut rows, &data.join("engine/nccl_2xh200_graph.txt"))?;
    contention_rows(&mut rows, &data.join("pcie/contention.jsonl"))?;
    Ok(rows)
}

pub(super) fn ids(value: &serde_json::Value) -> Vec<usize> {
    value
        .as_array()
        .map(|a| {
            a.iter()
                .filter_map(|v| v.as_u64().map(|u| u as usize))
                .collect()
        })
        .unwrap_or_default()
}

fn nccl_setup(row: &serde_json::Value) -> NcclSetup {
    let text = row["nccl"].as_str().unwrap_or("");
    let number_after = |key: &str| -> Option<u32> {
        let at = text.find(key)? + key.len();
        let digits: String = text[at..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    };
    NcclSetup {
        version: number_after("2.").map(|minor| (2, minor as u16)),
        p2p_level: match text.contains("P2P_DISABLE=1") {
            true => Some(P2pLevel::Loc),
            false => text.contains("P2P_LEVEL=SYS").then_some(P2pLevel::Sys),
        },
        graph_file: text.contains("graph XML"),
        min_channels: number_after("MIN_NCHANNELS="),
        protocol: None,
    }
}

/// Largest message of the NCCL rows on PCIe, bytes.
const NCCL_PCIE_MAX: u64 = 1 << 20;

fn all_reduce_rows(rows: &mut Rows, path: &Path) -> anyhow::Result<()> {
    for row in crate::score::json_lines(path)? {
        let name = row["box"].as_str().unwrap_or("").to_string();
        let kernel = row["algorithm"].as_str().unwrap_or("");
        let bytes = row["bytes"].as_f64().unwrap_or(0.0) as u64;
        let is_nccl = kernel == "nccl";
        let kind = if is_nccl {
            Kind::NcclPcie
        } else {
            Kind::Custom
        };
        if is_nccl && bytes > NCCL_PCIE_MAX {
            continue;
        }
        if row["has_topology"].as_bool() != Some(true) {
            rows.skip(kind, "wiring or GPU numbers unknown");
            continue;
        }
        let algorithm = match kernel {
            "nccl" => Algorithm::Nccl,
            "one-shot-push" => Algorithm::OneShotPush,
            "one-shot" | "one-shot-pull" => Algorithm::OneShot,
            "two-shot" => Algorithm::TwoShot,
            "island" => Algorithm::Island,
            _ => {
                rows.skip(kind, format!("kernel '{kernel}' is not modelled"));
                continue;
            }
        };
        let (Some(topology), Some(measured)) = (rows.topology(&name), row["time_us"].as_f64())
        else {
            rows.skip(kind, "its wiring is neither in the catalogue nor told");
            continue;
        };
        rows.rows.push(Row {
            group: name,
            kind,
            topology,
            ranks: ids(&row["gpu_ids"]),
            bytes,
            measured,
            what: What::AllReduce {
                algorithm,
                nccl: nccl_setup(&row),
            },
        });
    }
    Ok(())
}

/// Catalogue box of each system of the op tables, and whether its GPUs talk over NVLink.
fn system_box(system: &str) -> Option<(&'static str, bool)> {
    Some(match system {
        "a100_sxm" => ("dgx-a100", true),
        "h100_sxm" => ("dgx-h100", true),
        "h200_sxm" => ("hgx-h200-8", true),
        "b200_sxm" => ("hgx-b200-8", true),
        "b300_sxm" => ("hgx-b300-8", true),
        "gb200" | "gb300" => ("gb200-4", true),
        "rtx_pro_6000_server" => ("8x-rtx-pro-6000-direct", false),
        "l40s" => ("8x-l40s", false),
        _ => return None,
    })
}

fn op_time_rows(rows: &mut Rows, path: &Path) -> anyhow::Result<()> {
    let text = crate::input::read_text(path)?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or("").split(',').collect();
    let column = |name: &str| header.iter().position(|h| *h == name);
    let columns = [
        "system",
        "lib",
        "lib_version",
        "table",
        "kernel_source",
        "dtype",
        "gpus",
        "bytes",
        "latency_us",
    ]
    .map(column);
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |i: usize| columns[i].and_then(|c| cells.get(c)).copied().unwrap_or("");
        op_time_row(rows, [0, 1, 2, 3, 4, 5, 6, 7, 8].map(cell));
    }
    Ok(())
}

fn op_time_row(rows: &mut Rows, cells: [&str; 9]) {
    let [
        system,
        lib,
        version,
        table,
        source,
        dtype,
        gpus,
        bytes,
        latency,
    ] = cells;
    let (Ok(gpus), Ok(bytes), Ok(measured)) = (
        gpus.parse::<usize>(),
        bytes.parse::<u64>(),
        latency.parse::<f64>(),
    ) else {
        return;
    };
    let Some((name, nvlink)) = system_box(system) else {
        return;
    };
    let Some((kind, algorithm)) = op_kind([lib, version, table, source, dtype], bytes, nvlink)
    else {
        return;
    };
    if kind == Kind::Custom && !nvlink && gpus > 2 {
        return; // These are NCCL (the engines refuse their kernel there), as the contract says.
    }
    if system == "rtx_pro_6000_server" && matches!(version, "0.19.0" | "0.5.10" | "1.3.0rc10") {
        rows.skip(
            kind,
            "second machine of rtx_pro_6000_server: its peer path is unknown",
        );
        return;
    }
    let Some(topology) = rows.topology(name) else {
        rows.skip(kind, format!("box {name} is not in the catalogue"));
        return;
    };
    if gpus > topology.gpu_count() {
        rows.skip(kind, "more GPUs than one box has");
        return;
    }
    let topology = if nvlink {
        topology
    } else {
        cpu_unsaid(&topology)
    };
    let nccl = NcclSetup {
        p2p_level: (!nvlink).then_some(DIRECT),
        version: (lib == "nccl").then(|| version_of(version)).flatten(),
        ..NcclSetup::default()
    };
    rows.rows.push(Row {
        group: system.to_string(),
        kind,
        topology,
        ranks: (0..gpus).collect(),
        bytes,
        measured,
        what: What::AllReduce { algorithm, nccl },
    });
}

/// The tables say neither the wiring nor the environment. A step of NCCL takes 1.5 to 1.7 us there from two
/// GPUs to eight and a channel's LL carries 5 GB/s, where a flag through host memory alone takes 1.6 us and
/// a channel carries 2.6 through it (docs/HARDWARE.md): its GPUs reach one another directly.
const DIRECT: P2pLevel = P2pLevel::Sys;

/// The same box with a CPU that nobody names: NCCL 2.29 finds a ring there, so it is no pair of AMD's.
fn cpu_unsaid(t: &Topology) -> Arc<Topology> {
    let mut t = t.clone();
    t.cpu = None;
    Arc::new(t)
}

/// Area and algorithm of a row of the op tables; None where it counts in no area.
fn op_kind(cells: [&str; 5], bytes: u64, nvlink: bool) -> Option<(Kind, Algorithm)> {
    let [lib, version, table, source, dtype] = cells;
    match table {
        "nccl" if dtype == "half" => {
            let kind = match (nvlink, bytes) {
                (false, _) => Kind::NcclPcie,
                (true, b) if b <= 64 << 10 => Kind::NvlinkSmall,
                (true, b) if b > 1 << 20 => Kind::NvlinkLarge,
                (true, _) => Kind::Other,
            };
            Some((kind, Algorithm::Nccl))
        }
        "custom_allreduce" if source.ends_with("_graph") => {
            let new_sglang = lib == "sglang" && minor_patch(version) >= (5, 14);
            let algorithm = if new_sglang && nvlink && bytes < (8 << 20) {
                Algorithm::EnginePush
            } else {
                Algorithm::Engine
            };
            Some((Kind::Custom, algorithm))
        }
        _ => None,
    }
}

/// `2.29.2` as (2, 29).
fn version_of(text: &str) -> Option<(u16, u16)> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    Some((major, minor))
}

/// `0.5.14` as (5, 14).
fn minor_patch(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').skip(1).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Our own NCCL runs on two H200 in a virtual machine, inside a CUDA graph: the `def` lines.
fn own_h200_rows(rows: &mut Rows, path: &Path) -> anyhow::Result<()> {
    let Some(topology) = rows.topology("2x-h200") else {
        return Ok(());
    };
    for line in crate::input::read_text(path)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["def", bytes, "bytes", us, ..] = words[..] else {
            continue;
        };
        let (Ok(bytes), Ok(measured)) = (bytes.parse::<u64>(), us.parse::<f64>()) else {
            continue;
        };
        let kind = if bytes <= 64 << 10 {
            Kind::NvlinkSmall
        } else if bytes > 1 << 20 {
            Kind::NvlinkLarge
        } else {
            Kind::Other
        };
        rows.rows.push(Row {
            group: "2xh200-own".to_string(),
            kind,
            topology: topology.clone(),
            ranks: vec![0, 1],
            bytes,
            measured,
            what: What::AllReduce {
                algorithm: Algorithm::Nccl,
                nccl: NcclSetup::default(),
            },
        });
    }
    Ok(())
}

fn contention_rows(rows: &mut Rows, path: &Path) -> anyhow::Result<()> {
    for row in crate::score::json_lines(path)? {
        let name = row["box"].as_str().unwrap_or("").to_string();
        let Some(topology) = rows.topology(&name) else {
            rows.skip(
                Kind::Contention,
                "its wiring is neither in the catalogue nor told",
            );
            continue;
        };
        let flows: Vec<(usize, usize)> = row["flows"]
            .as_array()
            .map(|flows| {
                flows
                    .iter()
                    .map(ids)
                    .filter_map(|f| Some((*f.first()?, *f.get(1)?)))
                    .collect()
            })
            .unwrap_or_default();
        let Some(measured) = row["total_gb_s"].as_f64() else {
            rows.skip(Kind::Contention, "no total");
            continue;
        };
        let read = row["op"].as_str() == Some("read");
        let copy = row["engine"].as_str() != Some("kernel");
        let access = match (copy, read) {
            (true, false) => Access::CopyWrite,
            (true, true) => Access::CopyRead,
            (false, false) => Access::KernelStore,
            (false, true) => Access::KernelLoad,
        };
        let pattern = row["pattern"].as_str().unwrap_or("");
        // "per GPU" sums are of rates; a test over all pairs ends when its last copy does.
        let sum_of_rates = !(pattern.contains("all-to-all") || pattern.contains("every flow"));
        rows.rows.push(Row {
            group: name,
            kind: Kind::Contention,
            topology,
            ranks: Vec::new(),
            bytes: 0,
            measured,
            what: What::Copies {
                flows,
                access,
                sum_of_rates,
            },
        });
    }
    Ok(())
}
