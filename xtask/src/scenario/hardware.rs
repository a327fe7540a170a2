//! The box of a scenario: from the catalogue, a box file, or a GPU, a count and perhaps a topology.

use std::path::{Path, PathBuf};

use pcie_sim::box_spec::{BoxSpec, GpuLinks, GpuWiring, Link, LinkKind, Node, NodeKind, P2p};

use super::nccl::NcclSaid;
use super::served::{self, Served};
use crate::gpus::{self, Gpu, Nvlink};
use crate::input;

/// What was asked for, as typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoxRequest {
    pub(crate) box_name: Option<String>,
    pub(crate) gpu: Option<String>,
    pub(crate) gpus: Option<u32>,
    /// The log and line that say how many, where no flag does.
    pub(crate) gpus_by: Option<String>,
    /// The log and line that show the engine's own all-reduce at work, which needs peer access.
    pub(crate) peers_by: Option<String>,
    pub(crate) topology: Option<PathBuf>,
    /// How NCCL runs there.
    pub(crate) nccl: NcclSaid,
}

impl BoxRequest {
    /// What a log said of its box, without the card and the wiring.
    pub(super) fn of_another_card(self) -> Self {
        Self {
            box_name: None,
            gpu: None,
            topology: None,
            ..self
        }
    }
}

/// A resolved box: its wiring and the card in it.
#[derive(Debug, Clone)]
pub(crate) struct Hardware {
    pub(crate) gpu: &'static Gpu,
    pub(crate) wiring: BoxSpec,
    pub(crate) source: String,
    /// What a saved box file says was served on it.
    pub(crate) served: Vec<Served>,
}

impl Hardware {
    /// Whether nobody showed the wiring: it is the one usual for such cards.
    pub(crate) fn is_usual(&self) -> bool {
        is_usual(&self.source)
    }

    /// The slots of fewer lanes than the card has, in a wiring that the user's own file shows.
    pub(super) fn narrow_slots(&self) -> Option<String> {
        let most = self.gpu.pcie_lanes;
        let narrow = |node: &&Node| node.lanes.is_some_and(|lanes| u32::from(lanes) < most);
        let gpus = self.wiring.nodes.iter().filter(|n| n.kind == NodeKind::Gpu);
        let slots = gpus.filter(narrow);
        let slots: Vec<String> = slots
            .map(|gpu| format!("{} x{}", gpu.id, gpu.lanes.unwrap_or_default()))
            .collect();
        let seen = self.source.starts_with("--topology") && !slots.is_empty();
        seen.then(|| {
            format!(
                "wiring: slots of fewer lanes than the card's x{most}: {}",
                slots.join(", ")
            )
        })
    }
}

/// Whether a box of that source is the one usual for its cards.
pub(crate) fn is_usual(source: &str) -> bool {
    source.starts_with("--gpu ")
}

/// Most GPUs one box may have here: tensor parallelism inside one server.
const MAX_GPUS: u32 = 64;

/// Finds the wiring and the card, with what was said of NCCL there.
pub(crate) fn resolve(request: &BoxRequest) -> anyhow::Result<Hardware> {
    let mut hardware = found(request)?;
    request.nccl.write(&mut hardware.wiring);
    Ok(hardware)
}

fn found(request: &BoxRequest) -> anyhow::Result<Hardware> {
    if let Some(gpus) = request.gpus
        && !(1..=MAX_GPUS).contains(&gpus)
    {
        return Err(input::error(format!(
            "--gpus {gpus}: give a number from 1 to {MAX_GPUS}"
        )));
    }
    if let Some(count) = request
        .gpu
        .as_deref()
        .and_then(|g| g.trim().parse::<u32>().ok())
        // Cards are named by numbers too: 4090.
        .filter(|count| *count <= MAX_GPUS)
    {
        return Err(input::error(format!(
            "--gpu {count}: is the card's name, not how many; give --gpu NAME --gpus {count}"
        )));
    }
    if let Some(name) = &request.box_name {
        let usual = usual_box(name).filter(|_| request.topology.is_none());
        let Some((count, card)) = usual else {
            return named_box(name, request);
        };
        if let Some(gpus) = request.gpus.filter(|gpus| *gpus > count) {
            return Err(more_than(gpus, name, count as usize));
        }
        let usual = BoxRequest {
            box_name: None,
            gpu: request.gpu.clone().or(Some(card.to_string())),
            gpus: request.gpus.or(Some(count)),
            ..request.clone()
        };
        return resolve(&usual);
    }
    if let Some(path) = &request.topology {
        return from_topology(path, request);
    }
    let Some(name) = &request.gpu else {
        return Err(input::error(
            "no box: give --box NAME, or --gpu NAME with --gpus N (and --topology FILE for its wiring)",
        ));
    };
    let gpu = gpus::find(name)?;
    let count = request.gpus.unwrap_or(1);
    one_machine(gpu, count, request.gpus_by.as_deref())?;
    let mut wiring = BoxSpec::flat(&wiring_of(gpu), count as usize, p2p_of(gpu))
        .map_err(|e| input::error(format!("--gpus {count}: {e}")))?;
    if let Some(line) = request.peers_by.as_deref() {
        with_peers(gpu, &mut wiring, line);
    }
    Ok(Hardware {
        gpu,
        wiring,
        source: format!(
            "--gpu {name} --gpus {count}; usual wiring of such cards{}",
            if request.gpus.is_none() {
                " (one card assumed)"
            } else {
                ""
            }
        ),
        served: Vec::new(),
    })
}

/// Peer access that a log shows where the stock driver refuses it over PCIe: by the bridge where two
/// cards take one, else by a driver that grants it.
fn with_peers(gpu: &Gpu, wiring: &mut BoxSpec, line: &str) {
    let ids: Vec<String> = wiring.gpus().iter().map(|gpu| gpu.id.clone()).collect();
    if gpu.p2p != gpus::P2p::Refused || ids.len() < 2 {
        return;
    }
    let shown =
        format!("as {line} shows the engine's own all-reduce at work, which needs peer access");
    match (gpu.nvlink, ids.as_slice()) {
        (Nvlink::Bridge, [a, b]) => {
            wiring.assumptions.retain(|a| !a.what.contains("NVLink"));
            wiring.links.push(Link {
                a: a.clone(),
                b: b.clone(),
                kind: LinkKind::Nvlink,
                gb_s: gpu.nvlink_gb_s,
            });
            let what = format!("an NVLink bridge joins the two, {shown}");
            wiring.assume(what, "`nvidia-smi topo -m`");
        }
        // Which of several are in pairs nobody says.
        (Nvlink::Bridge, _) => {}
        _ => {
            wiring.p2p = P2p::On;
            wiring.assume_direct_nccl();
            let what = format!("the driver grants peer access over PCIe, {shown}");
            wiring.assume(what, "`nvidia-smi topo -p2p r`");
        }
    }
}

/// Refuses more cards than one machine holds, of which nobody showed the wiring.
fn one_machine(gpu: &Gpu, count: u32, by_log: Option<&str>) -> anyhow::Result<()> {
    let most = gpu.most_gpus;
    if count <= most {
        return Ok(());
    }
    let name = &gpu.name;
    let holds = match gpu.nvlink {
        _ if most == 1 => format!("a machine of {name} has 1"),
        Nvlink::Switch | Nvlink::Mesh => format!("boards of {name} carry up to {most}"),
        Nvlink::None | Nvlink::Bridge => {
            format!("a chassis is taken to hold up to {most} cards of {name}")
        }
    };
    let (asked, give) = match by_log {
        Some(line) => (
            format!("{line}: ran on {count} GPUs"),
            format!("--gpus {most} --tp {most}"),
        ),
        None => (format!("--gpus {count}"), format!("--gpus up to {most}")),
    };
    Err(input::error(format!(
        "{asked}: {holds}, and several machines are not modelled; give {give} (a larger --gpu or \
         a smaller --quant holds more), or --topology or --box of one machine that has {count}"
    )))
}

/// `4x-rtx-3090`, as answers call so many cards on their usual wiring: how many, and the card. Boxes of the
/// catalogue and files go before.
pub(crate) fn usual_box(name: &str) -> Option<(u32, &str)> {
    let (count, card) = name.split_once("x-")?;
    let known = pcie_sim::catalog::names().any(|have| have == name) || Path::new(name).exists();
    let count = count.parse().ok().filter(|_| !known)?;
    gpus::find(card).ok().map(|_| (count, card))
}

/// The error on more GPUs than a box has.
fn more_than(gpus: u32, name: &str, has: usize) -> anyhow::Error {
    input::error(format!(
        "--gpus {gpus}: the box {name} has {has} GPUs; name the card with --gpu for another box"
    ))
}

fn named_box(name: &str, request: &BoxRequest) -> anyhow::Result<Hardware> {
    let path = Path::new(name);
    let mut saved = Vec::new();
    let (wiring, source) = if path.is_file() || (path.extension().is_some() && path.exists()) {
        let text = input::read_text(path)?;
        let (text, served) =
            served::split(&text).map_err(|e| input::error(format!("--box {name}: {e:#}")))?;
        saved = served;
        let wiring =
            BoxSpec::from_toml(&text).map_err(|e| input::error(format!("--box {name}: {e}")))?;
        (wiring, format!("box file {name}"))
    } else if path.extension().is_some_and(|e| e == "toml") {
        return Err(input::error(format!(
            "--box {name}: no such file; check the path"
        )));
    } else {
        let wiring = pcie_sim::catalog::find(name).map_err(|e| {
            let known = if pcie_sim::catalog::near(name).is_empty() {
                let names: Vec<&str> = pcie_sim::catalog::names().collect();
                format!("; known are {}", names.join(", "))
            } else {
                String::new()
            };
            input::error(format!("--box {name}: {e}{known}"))
        })?;
        (wiring, format!("catalogue box {name}"))
    };
    if request.topology.is_some() {
        return Err(input::error(format!(
            "--topology beside --box {name}: the box already says its wiring; give --gpu and --gpus \
             with --topology instead"
        )));
    }
    if let Some(gpus) = request.gpus
        && gpus as usize > wiring.gpu_count()
    {
        return Err(more_than(gpus, &wiring.name, wiring.gpu_count()));
    }
    let card = request
        .gpu
        .as_deref()
        .or(wiring.gpu.as_deref())
        .ok_or_else(|| {
            input::error(format!(
                "--box {name}: does not say which GPU it holds; add gpu = \"NAME\" to it"
            ))
        })?;
    let gpu = gpus::find(card)
        .map_err(|e| input::error(format!("--box {name}: its GPU is unknown: {e:#}")))?;
    Ok(Hardware {
        gpu,
        wiring,
        source,
        served: saved,
    })
}

fn from_topology(path: &Path, request: &BoxRequest) -> anyhow::Result<Hardware> {
    let shown = path.display();
    let text = input::read_text(path)?;
    let card = request.gpu.as_deref().map(gpus::find).transpose()?;
    let hints = pcie_sim::readers::Hints {
        name: None,
        gpu: card.map(wiring_of),
        gpus: request.gpus.map(|n| n as usize),
        p2p: card.map(p2p_of),
    };
    let mut wiring = pcie_sim::readers::read(&text, &hints)
        .map_err(|e| input::error(format!("--topology {shown}: {e}")))?;
    let gpu = match (card, wiring.gpu.as_deref()) {
        (Some(gpu), _) => gpu,
        (None, Some(name)) => {
            gpus::find(name).map_err(|e| input::error(format!("--topology {shown}: {e:#}")))?
        }
        (None, None) => {
            return Err(input::error(format!(
                "--topology {shown}: says nothing of the GPU model; add --gpu NAME"
            )));
        }
    };
    let have = wiring.gpu_count();
    // A box file has a name of its own; a topology is told by its cards.
    if let Some((count, form)) = wiring.name.split_once(" GPUs from ")
        && count.parse::<usize>().is_ok()
    {
        wiring.name = format!("{have}x-{} from {form}", gpu.name);
    }
    if let Some(wanted) = request.gpus
        && wanted as usize > have
    {
        return Err(input::error(format!(
            "--gpus {wanted}: the topology in {shown} has {have} GPUs"
        )));
    }
    Ok(Hardware {
        gpu,
        wiring,
        source: format!("--topology {shown}"),
        served: Vec::new(),
    })
}

/// The catalogue's card as the topology crate needs it.
pub(crate) fn wiring_of(gpu: &Gpu) -> GpuWiring {
    GpuWiring {
        name: gpu.name.clone(),
        pcie_gen: u8::try_from(gpu.pcie_gen).unwrap_or(4),
        lanes: u8::try_from(gpu.pcie_lanes).unwrap_or(16),
        gpu_link_gb_s: gpu.nvlink_gb_s,
        gpu_links: match gpu.nvlink {
            Nvlink::None => GpuLinks::None,
            Nvlink::Bridge => GpuLinks::Bridge,
            Nvlink::Mesh => GpuLinks::Mesh,
            Nvlink::Switch => GpuLinks::Switch,
        },
    }
}

/// The stock driver's policy.
pub(crate) fn p2p_of(gpu: &Gpu) -> P2p {
    match gpu.p2p {
        gpus::P2p::Yes | gpus::P2p::Forced => P2p::On,
        gpus::P2p::Refused | gpus::P2p::None => P2p::Off,
    }
}

/// The box and its card, with what is assumed of the wiring.
pub(super) fn noted(asked: &BoxRequest, notes: &mut super::Notes) -> anyhow::Result<Hardware> {
    let hardware = resolve(asked)?;
    notes.input("box", hardware.wiring.name.clone(), hardware.source.clone());
    notes.input(
        "gpu",
        hardware.gpu.name.clone(),
        hardware.gpu.source.clone(),
    );
    notes.input(
        "gpus",
        hardware.wiring.gpu_count() as u64,
        hardware.source.clone(),
    );
    asked.nccl.noted(&hardware, notes);
    for assumption in &hardware.wiring.assumptions {
        notes.assume(
            format!("wiring: {}", assumption.what),
            assumption.settles_it.clone(),
        );
    }
    if let Some(narrow) = hardware.narrow_slots() {
        notes.assume(narrow, "another slot or riser");
    }
    Ok(hardware)
}
