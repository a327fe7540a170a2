//! NCCL by name beside an engine whose own choice is NCCL: one all-reduce under two names.

use pcie_sim::Algorithm;

use super::answer::Assumption;
use super::costs::alike;
use super::links::{Choice, Links};

use crate::scenario::{EngineKind, MOVED, Scenario};

/// Whether NCCL is what the engine takes here by itself, at every size.
fn is_nccl(scenario: &Scenario, links: &Links<'_>) -> bool {
    let has_own = scenario.engine.kind != EngineKind::LlamaCpp;
    let computed = scenario.allreduce_table.is_none();
    let [engine, nccl] = [Algorithm::Engine, Algorithm::Nccl].map(Choice::One);
    has_own && computed && scenario.tp > 1 && alike(links, engine, nccl)
}

/// That the two are one, where both are named: by the flag, by `--compare` or by the server of a plain sweep; and
/// takes away what is said of a sweep that is moved from one to the other.
pub(super) fn told(
    scenario: &Scenario,
    links: &Links<'_>,
    compared: &[&str],
    all: &mut Vec<Assumption>,
) {
    let swept = scenario
        .baseline
        .as_ref()
        .map(|_| scenario.swept_allreduce.as_str());
    let by_flag = scenario
        .input("allreduce")
        .filter(|input| input.source.starts_with("--"));
    let own = Some(scenario.allreduce.as_str());
    let names = |name: &str| own == Some(name) || swept == Some(name) || compared.contains(&name);
    let nccl = names("nccl") && (by_flag.is_some() || names("engine"));
    if !nccl || !is_nccl(scenario, links) {
        return;
    }
    let one_of = |name: Option<&str>| ["nccl", "engine"].map(Some).contains(&name);
    let moved = own != swept && one_of(own) && one_of(swept);
    let stands = match moved && all.iter().any(|told| told.what.starts_with(MOVED)) {
        true => {
            all.retain(|told| !told.what.starts_with(MOVED));
            "; the steps of the plain sweep stand as they were measured"
        }
        false => "",
    };
    let what = format!(
        "all-reduce: NCCL is also what {} takes here by itself at every size, so nccl and engine are one{stands}",
        scenario.engine.kind.title()
    );
    if !all.iter().any(|told| told.what == what) {
        all.push(Assumption {
            what,
            settled_by: String::new(),
        });
    }
}
