//! The wiring as a tree in text, with the load of every link.

use pcie_sim::box_spec::NodeKind;
use pcie_sim::plan::PlanTime;
use pcie_sim::topology::Wire;
use pcie_sim::{Algorithm, all_reduce_plan};

use super::Answer;

/// Loads of up to two algorithms side by side: NCCL, and the fastest or the one-shot kernel.
pub(super) fn text(answer: &Answer) -> String {
    let at = answer.detail();
    let bytes = answer.sizes[at];
    let mut shown = vec![answer.algorithms[0]];
    let second = if answer.algorithms.contains(&Algorithm::OneShot) {
        Some(Algorithm::OneShot)
    } else {
        answer.algorithms.get(1).copied()
    };
    shown.extend(second.filter(|a| *a != answer.algorithms[0]));
    let runs: Vec<(Algorithm, PlanTime)> = shown
        .into_iter()
        .filter_map(|a| {
            let (plan, _) =
                all_reduce_plan(&answer.topology, &answer.ranks, a, bytes, &answer.options).ok()?;
            Some((a, plan.run(&answer.topology, &answer.options.constants)))
        })
        .collect();
    if runs.is_empty() {
        return String::new();
    }
    let mut out =
        String::from("links: share of the time each is busy, towards the root / away from it");
    let names: Vec<&str> = runs.iter().map(|(a, _)| a.name()).collect();
    out.push_str(&format!("   ({})\n", names.join(", ")));
    let t = &answer.topology;
    for (i, node) in t.nodes.iter().enumerate() {
        let top = matches!(node.kind, Some(NodeKind::Socket | NodeKind::Nvswitch))
            || (node.kind == Some(NodeKind::Gpu) && node.parent.is_none());
        if top {
            branch(answer, &runs, i, 0, &mut out);
        }
    }
    for (i, link) in t.links.iter().enumerate() {
        let reverse = t
            .links
            .iter()
            .position(|l| l.from == link.to && l.to == link.from && l.wire == link.wire);
        let beside = matches!(link.wire, Wire::Socket | Wire::GpuLink);
        let Some(reverse) = reverse.filter(|r| beside && *r > i) else {
            continue;
        };
        let label = format!("  {}", link.name.replace('>', " = "));
        line(&label, &rate(link.gb_s), &runs, i, reverse, &mut out);
    }
    out.push('\n');
    out
}

fn branch(
    answer: &Answer,
    runs: &[(Algorithm, PlanTime)],
    node: usize,
    depth: usize,
    out: &mut String,
) {
    let t = &answer.topology;
    if depth > t.nodes.len() {
        return;
    }
    let indent = "  ".repeat(depth + 1);
    let model = t.nodes[node].model.as_deref();
    let label = match model {
        Some(model) => format!("{indent}{} {model}", t.nodes[node].id),
        None => format!("{indent}{}", t.nodes[node].id),
    };
    let up = t.nodes[node].parent.and_then(|p| {
        let find = |from, to| {
            t.links
                .iter()
                .position(|l| l.from == from && l.to == to && matches!(l.wire, Wire::Pcie { .. }))
        };
        Some((find(node, p)?, find(p, node)?))
    });
    match up {
        Some((up, down)) => {
            let wire = match t.links[up].wire {
                Wire::Pcie { pcie_gen, lanes } => format!("Gen{pcie_gen} x{lanes}"),
                _ => String::new(),
            };
            line(&label, &wire, runs, up, down, out);
        }
        None => {
            out.push_str(&label);
            out.push('\n');
        }
    }
    for (i, child) in t.nodes.iter().enumerate() {
        if child.parent == Some(node) && child.kind != Some(NodeKind::Nic) {
            branch(answer, runs, i, depth + 1, out);
        }
    }
}

fn line(
    label: &str,
    wire: &str,
    runs: &[(Algorithm, PlanTime)],
    up: usize,
    down: usize,
    out: &mut String,
) {
    let share = |run: &PlanTime, link: usize| {
        let busy = run.link_load.get(link).map_or(0.0, |l| l.busy_us);
        if run.time_us > 0.0 {
            (busy / run.time_us * 100.0).min(100.0)
        } else {
            0.0
        }
    };
    out.push_str(&format!("{label:<26}{wire:<10}"));
    for (_, run) in runs {
        out.push_str(&format!(
            "  {:>3.0} % / {:>3.0} %",
            share(run, up),
            share(run, down)
        ));
    }
    let text = out.trim_end().len();
    out.truncate(text);
    out.push('\n');
}

fn rate(gb_s: f64) -> String {
    format!("{gb_s:.0} GB/s")
}
