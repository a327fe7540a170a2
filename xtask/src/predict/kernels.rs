//! Which engine ships which all-reduce kernel, and what switches it on.
//!
//! Read in the engines' sources: vLLM `csrc/custom_all_reduce.cuh`, `cuda_communicator.py`,
//! `flashinfer_pcie_ipc_all_reduce.py` (PR 53576, first in 0.30); SGLang `custom_all_reduce.py` and
//! `custom_all_reduce_v2.py` (PR 17674 the variable, PR 24363 the second generation by default).
//! SGLang's PCIe kernel (PR 34528) and vLLM's host-staged one (PR 56551) are not merged.

use pcie_sim::{Algorithm, CollectiveTime, Topology};

use super::links::{Choice, Links};
use crate::scenario::{EngineChoice, EngineKind, Scenario};

/// What stands beside a kernel that cannot be had.
pub(super) const BOUND: &str = "a bound on what a better kernel would give";

/// What stands beside a kernel that needs nothing typed.
const BY_ITSELF: &str = "by itself";

/// Variables and flags that make an engine run a kernel; none where it does so by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Switch {
    /// Environment, `NAME=value`.
    pub(super) env: Vec<&'static str>,
    /// Flags of the engine.
    pub(super) flags: Vec<&'static str>,
}

impl Switch {
    /// As one types it; `by itself` where nothing has to be typed.
    pub(super) fn shown(&self) -> String {
        let words: Vec<&str> = self.env.iter().chain(&self.flags).copied().collect();
        match words.is_empty() {
            true => BY_ITSELF.to_string(),
            false => words.join(" "),
        }
    }
}

/// The GPUs that reduce.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    gpus: usize,
    /// Each talks to each over NVLink.
    mesh: bool,
    /// Hopper or newer.
    fused: bool,
    /// SGLang fuses all-reduce and norm of this model here by itself.
    by_itself: bool,
    /// Its log says that FlashInfer's is not there.
    no_flashinfer: bool,
}

impl Group {
    /// Whether each talks to each over NVLink.
    pub(super) fn is_mesh(self) -> bool {
        self.mesh
    }

    /// Whether that engine's all-reduces are SGLang's fused ones without a flag.
    fn fused_by_sglang(self, engine: &EngineChoice) -> bool {
        engine.kind == EngineKind::Sglang && self.by_itself && self.mesh && self.fused
    }

    pub(super) fn of(links: &Links<'_>) -> Self {
        Self {
            no_flashinfer: links.no_flashinfer(),
            ..Self::among(links.topology(), links.ranks(), links.fuses())
        }
    }

    pub(super) fn among(topology: &Topology, ranks: &[usize], by_itself: bool) -> Self {
        Self {
            gpus: ranks.len(),
            mesh: topology.full_gpu_link(ranks),
            fused: topology.arch >= pcie_sim::Arch::HOPPER,
            by_itself,
            no_flashinfer: false,
        }
    }
}

/// What makes the scenario's engine reduce that many bytes so; `None` where nothing does.
pub(super) fn switched_by(
    scenario: &Scenario,
    links: &Links<'_>,
    choice: Choice,
    bytes: u64,
) -> Option<String> {
    let (algorithm, group) = (choice.at(bytes)?, Group::of(links));
    let own = replaced(algorithm, group, &scenario.engine).filter(|_| !links.engine_pushes());
    let switch = switch(algorithm, group, &scenario.engine);
    let of_build = || {
        let asked = Choice::parse(&scenario.allreduce).is_ok_and(|asked| asked == choice);
        super::carried::all_reduce(scenario, algorithm).filter(|_| asked)
    };
    own.map(str::to_string)
        .or_else(|| switch.ok().or_else(of_build).map(|switch| switch.shown()))
        .map(|shown| beside_the_log(scenario, (algorithm, group), shown))
}

/// The same for a server whose log names the flag that keeps its engine from its own kernel.
pub(super) fn beside_the_log(
    scenario: &Scenario,
    (algorithm, group): (Algorithm, Group),
    shown: String,
) -> String {
    let own = matches!(algorithm, Algorithm::Engine | Algorithm::EnginePush);
    let runs = own && (group.mesh || group.gpus == 2);
    if !(runs && scenario.told_no_custom) {
        return shown;
    }
    match shown == BY_ITSELF {
        true => format!("without {NO_CUSTOM}"),
        false => format!("{shown}, without {NO_CUSTOM}"),
    }
}

/// What switches `algorithm` on in the engine; otherwise why nothing does.
///
/// # Errors
/// One line: the engine that has it, or that none has.
pub(super) fn switch(
    algorithm: Algorithm,
    group: Group,
    engine: &EngineChoice,
) -> Result<Switch, String> {
    match algorithm {
        Algorithm::Nccl | Algorithm::NcclRing(_) | Algorithm::NcclTree(_) => {
            Ok(nccl(group, engine))
        }
        Algorithm::Engine | Algorithm::EnginePush if engine.kind == EngineKind::LlamaCpp => {
            Err("llama.cpp has no kernel of its own".to_string())
        }
        Algorithm::Engine | Algorithm::EnginePush => Ok(Switch::default()),
        Algorithm::OneShotPush if group.mesh && group.fused => flashinfer(group, engine),
        Algorithm::OneShotPush if !group.mesh && matches!(group.gpus, 2 | 4) => pcie_ipc(engine),
        Algorithm::Island if !group.mesh && group.gpus == 8 => pcie_ipc(engine),
        Algorithm::OneShot => Err("in no release, only in forks (b12x)".to_string()),
        _ => Err("in no engine".to_string()),
    }
}

/// The kernel that words of a start line give in the engine, by the same rules as [`switch`]; `None`
/// where they choose none that is known.
pub(crate) fn told_by(
    words: &[String],
    (topology, ranks): (&Topology, &[usize]),
    engine: &EngineChoice,
    fuses: bool,
) -> Option<Algorithm> {
    let group = Group::among(topology, ranks, fuses);
    // FlashInfer's flag in SGLang has had two names.
    let fusion = |word: &str| word.contains(FUSION) && word != NO_FUSION;
    let alike = |a: &str, b: &str| a == b || (fusion(a) && fusion(b));
    let said = |wanted: &&str| words.iter().any(|word| alike(word, wanted));
    let whole = |switch: Switch| {
        let wanted = || switch.env.iter().chain(&switch.flags);
        wanted().next().is_some() && wanted().all(said)
    };
    let kernels = Algorithm::SHOWN.into_iter();
    let by_switch = kernels
        .rev()
        .find(|algorithm| switch(*algorithm, group, engine).is_ok_and(whole));
    let own = replaced(Algorithm::Engine, group, engine).filter(said);
    // Without its custom kernel SGLang still fuses.
    let left = match group.fused_by_sglang(engine) && own.is_none() {
        true => Algorithm::OneShotPush,
        false => Algorithm::Nccl,
    };
    by_switch
        .or_else(|| said(&NO_CUSTOM).then_some(left))
        .or_else(|| own.map(|_| Algorithm::Engine))
}

/// In the names of the flag that fuses all-reduce and norm.
const FUSION: &str = "flashinfer-allreduce-fusion";
/// The flag of SGLang from 0.5.10 that keeps it from fusing by itself.
const NO_FUSION: &str = "--enforce-disable-flashinfer-allreduce-fusion";
/// The flag of SGLang and vLLM that leaves every size to NCCL.
const NO_CUSTOM: &str = "--disable-custom-all-reduce";

/// The line of TensorRT-LLM's extra options that does; by itself it chooses by size (`TorchLlmArgs`).
pub(super) const TRTLLM_NCCL: &str = "allreduce_strategy: NCCL";

/// What gives the engine's own kernel where its newer releases run another by themselves.
pub(super) fn replaced(
    algorithm: Algorithm,
    group: Group,
    engine: &EngineChoice,
) -> Option<&'static str> {
    if algorithm == Algorithm::Engine && group.fused_by_sglang(engine) {
        return at_least(engine, (0, 5, 10), (2026, 4)).then_some(NO_FUSION);
    }
    let own = algorithm == Algorithm::Engine && engine.kind == EngineKind::Vllm;
    let pushes = switch(Algorithm::OneShotPush, group, engine);
    let by_itself = pushes.is_ok_and(|switch| switch == Switch::default());
    (own && by_itself).then_some("VLLM_ALLREDUCE_USE_FLASHINFER=0")
}

/// What comes nearest to a lean kernel that no release ships: the engine's own, held to the same
/// number of stages.
pub(super) fn nearest(algorithm: Algorithm, group: Group, engine: &EngineChoice) -> Option<Switch> {
    let one = match algorithm {
        Algorithm::OneShot => true,
        Algorithm::TwoShot => false,
        _ => return None,
    };
    if !group.mesh && (group.gpus != 2 || !one) {
        return None;
    }
    staged(one, group, engine)
}

/// FlashInfer's kernels over NVLink, whose one-shot pushes: vLLM from 0.17 (PR 34109), by itself
/// from 0.29 (PR 52998); SGLang fused with the norm behind.
fn flashinfer(group: Group, engine: &EngineChoice) -> Result<Switch, String> {
    let mut switch = Switch::default();
    match engine.kind {
        EngineKind::Sglang if group.no_flashinfer => {
            return Err("the log says that flashinfer.comm is not available".to_string());
        }
        EngineKind::Sglang if group.by_itself => {}
        EngineKind::Vllm if at_least(engine, (0, 29, 0), (2026, 9)) => {}
        EngineKind::Vllm if at_least(engine, (0, 17, 0), (2026, 3)) => {
            switch.env.push("VLLM_ALLREDUCE_USE_FLASHINFER=1");
        }
        EngineKind::Sglang if at_least(engine, (0, 5, 14), (2026, 7)) => {
            switch
                .flags
                .push("--flashinfer-allreduce-fusion-backend=auto");
        }
        EngineKind::Sglang if at_least(engine, (0, 5, 0), (2025, 8)) => {
            switch.flags.push("--enable-flashinfer-allreduce-fusion");
        }
        _ => return Err("in newer SGLang and vLLM (FlashInfer)".to_string()),
    }
    Ok(switch)
}

/// NCCL for every size.
fn nccl(group: Group, engine: &EngineChoice) -> Switch {
    let engines_flag = matches!(engine.kind, EngineKind::Sglang | EngineKind::Vllm);
    let mut switch = Switch::default();
    if engines_flag {
        switch.flags.push(NO_CUSTOM);
    }
    if engine.kind == EngineKind::TrtLlm {
        switch.flags.push(TRTLLM_NCCL);
    }
    if group.fused_by_sglang(engine) && at_least(engine, (0, 5, 10), (2026, 4)) {
        switch.flags.push(NO_FUSION);
    }
    if engine.kind == EngineKind::Vllm && group.mesh {
        // On by default on NVLink: torch's symmetric memory from 0.11, FlashInfer's from 0.29.
        switch.env.push("VLLM_ALLREDUCE_USE_SYMM_MEM=0");
        switch.env.push("VLLM_ALLREDUCE_USE_FLASHINFER=0");
    }
    switch
}

/// The engines' own kernel, held to one of its two stages.
fn staged(one: bool, group: Group, engine: &EngineChoice) -> Option<Switch> {
    if group.gpus == 2 && one {
        // Two GPUs always reduce in one stage.
        return Some(Switch::default());
    }
    let env = match (engine.kind, one) {
        (EngineKind::Vllm, true) => vec!["VLLM_CUSTOM_ALLREDUCE_ALGO=1stage"],
        (EngineKind::Vllm, false) => vec!["VLLM_CUSTOM_ALLREDUCE_ALGO=2stage"],
        (EngineKind::Sglang, one) => {
            let mut env = vec![match one {
                true => "SGLANG_CUSTOM_ALLREDUCE_ALGO=1stage",
                false => "SGLANG_CUSTOM_ALLREDUCE_ALGO=2stage",
            }];
            if at_least(engine, (0, 5, 14), (2026, 7)) {
                // The second generation of the kernel does not read it.
                env.push("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=0");
            }
            env
        }
        (EngineKind::TrtLlm | EngineKind::LlamaCpp, _) => return None,
    };
    let flags = Vec::new();
    Some(Switch { env, flags })
}

/// vLLM's switch for FlashInfer's kernels over PCIe.
const PCIE_IPC: &str = "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1";

/// Whether what is missing here can be had from another engine or version.
pub(super) fn elsewhere(why: &str) -> bool {
    why.contains(PCIE_IPC)
}

/// FlashInfer's kernels over PCIe: staged pushes, for eight GPUs in two islands.
fn pcie_ipc(engine: &EngineChoice) -> Result<Switch, String> {
    match engine.kind {
        EngineKind::Vllm if at_least(engine, (0, 30, 0), (2026, 9)) => Ok(Switch {
            env: vec![PCIE_IPC],
            flags: Vec::new(),
        }),
        EngineKind::Vllm => Err(format!("vLLM has one from 0.30 ({PCIE_IPC})")),
        _ => Err(format!(
            "in no {} release; vLLM 0.30 has one ({PCIE_IPC})",
            engine.kind.title()
        )),
    }
}

/// Whether the engine's version is that old at least; without one it is the version whose rules are
/// used, as for the memory.
pub(super) fn at_least(engine: &EngineChoice, number: (u32, u32, u32), date: (u32, u32)) -> bool {
    in_force(engine).since(number, date)
}

/// The release whose rules hold; the newest where none is named.
pub(super) fn in_force(engine: &EngineChoice) -> kvplan::Version {
    let version = engine.version.as_deref().and_then(kvplan::Version::find);
    version.unwrap_or_else(|| kvplan::Engine::newest(engine.kind.rules()).version)
}

/// Whose kernel a time of these ranks is of, in the words of [`switch`].
pub(crate) fn made_by(
    algorithm: Algorithm,
    time: &CollectiveTime,
    topology: &Topology,
    ranks: &[usize],
) -> &'static str {
    let newest = EngineChoice {
        kind: EngineKind::Vllm,
        version: None,
    };
    let group = Group::among(topology, ranks, false);
    let over_pcie = |switch: &Switch| switch.env.contains(&PCIE_IPC);
    match (algorithm, switch(algorithm, group, &newest)) {
        (_, Ok(switch)) if over_pcie(&switch) => "FlashInfer (vLLM from 0.30), ours",
        (Algorithm::OneShotPush, Err(_)) => "lean: ours, in no engine",
        _ => pcie_sim::kernel_of(algorithm, time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(kind: EngineKind, version: Option<&str>) -> EngineChoice {
        EngineChoice {
            kind,
            version: version.map(str::to_string),
        }
    }

    fn group(gpus: usize, mesh: bool) -> Group {
        Group {
            gpus,
            mesh,
            fused: true,
            by_itself: false,
            no_flashinfer: false,
        }
    }

    #[test]
    fn islands_over_pcie_are_vllm_s_from_0_30_and_no_other_engine_s() {
        let pcie = group(8, false);
        let newest = engine(EngineKind::Vllm, Some("0.30.0"));
        let new = switch(Algorithm::Island, pcie, &newest);
        assert_eq!(
            new.map(|s| s.shown()),
            Ok("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1".to_string())
        );
        let old = engine(EngineKind::Vllm, Some("0.24.0"));
        let why = switch(Algorithm::Island, pcie, &old).expect_err("too old");
        assert!(why.contains("0.30"), "{why}");
        let why = switch(Algorithm::Island, pcie, &engine(EngineKind::Sglang, None));
        assert!(why.is_err_and(|why| why.contains("no SGLang release")));
        let four = group(4, false);
        let why = switch(Algorithm::Island, four, &engine(EngineKind::Vllm, None));
        assert_eq!(why, Err("in no engine".to_string()));
    }

    #[test]
    fn the_engines_own_kernel_is_held_to_a_stage_by_the_variable_it_reads() {
        let nvlink = group(8, true);
        let old = engine(EngineKind::Sglang, Some("0.5.9"));
        let shown = nearest(Algorithm::OneShot, nvlink, &old).map(|s| s.shown());
        assert_eq!(
            shown.as_deref(),
            Some("SGLANG_CUSTOM_ALLREDUCE_ALGO=1stage")
        );
        let new = nearest(
            Algorithm::OneShot,
            nvlink,
            &engine(EngineKind::Sglang, None),
        );
        assert!(new.is_some_and(|s| s.shown().contains("ALL_REDUCE_V2=0")));
        let vllm = engine(EngineKind::Vllm, None);
        assert_eq!(nearest(Algorithm::OneShot, group(8, false), &vllm), None);
        let why = switch(Algorithm::OneShot, group(8, false), &vllm);
        assert!(why.is_err_and(|why| why.contains("forks")));
    }

    #[test]
    fn nccl_on_nvlink_needs_more_than_the_flag_in_vllm() {
        let vllm = switch(
            Algorithm::Nccl,
            group(8, true),
            &engine(EngineKind::Vllm, None),
        );
        let shown = vllm.map(|s| s.shown()).unwrap_or_default();
        assert!(shown.contains("SYMM_MEM=0") && shown.ends_with("--disable-custom-all-reduce"));
        let sglang = engine(EngineKind::Sglang, None);
        let sglang = switch(Algorithm::Nccl, group(8, false), &sglang);
        assert_eq!(
            sglang.map(|s| s.shown()),
            Ok("--disable-custom-all-reduce".to_string())
        );
    }

    #[test]
    fn flashinfer_s_push_is_vllm_s_default_since_0_29() {
        let by = |version| {
            let vllm = engine(EngineKind::Vllm, Some(version));
            switch(Algorithm::OneShotPush, group(8, true), &vllm).map(|s| s.shown())
        };
        assert_eq!(by("0.29.0"), Ok("by itself".to_string()));
        assert_eq!(
            by("0.24.0"),
            Ok("VLLM_ALLREDUCE_USE_FLASHINFER=1".to_string())
        );
        assert!(by("0.11.0").is_err());
    }

    #[test]
    fn without_a_version_the_kernels_are_those_of_the_rules_in_force() {
        let none = engine(EngineKind::Vllm, None);
        let rules = kvplan::Engine::newest(EngineKind::Vllm.rules()).version;
        let rules = engine(EngineKind::Vllm, Some(&rules.to_string()));
        for algorithm in Algorithm::SHOWN {
            for group in [group(8, false), group(4, false), group(8, true)] {
                let by = |engine| switch(algorithm, group, engine);
                assert_eq!(by(&none), by(&rules), "{algorithm:?}");
            }
        }
        assert!(switch(Algorithm::Island, group(8, false), &none).is_ok());
    }

    #[test]
    fn llama_cpp_reduces_by_nccl_alone() {
        let llamacpp = engine(EngineKind::LlamaCpp, None);
        let by_itself = |algorithm: &Algorithm| {
            switch(*algorithm, group(4, true), &llamacpp).is_ok_and(|s| s == Switch::default())
        };
        let found: Vec<Algorithm> = Algorithm::SHOWN.into_iter().filter(by_itself).collect();
        assert_eq!(found, [Algorithm::Nccl]);
    }

    #[test]
    fn sglang_that_fuses_by_itself_needs_no_flag_for_it_and_one_against_it() {
        let fusing = Group {
            by_itself: true,
            ..group(8, true)
        };
        let shown = |version, algorithm| {
            let engine = engine(EngineKind::Sglang, Some(version));
            switch(algorithm, fusing, &engine).map(|s| s.shown())
        };
        let push = Algorithm::OneShotPush;
        assert_eq!(shown("0.5.9", push), Ok("by itself".to_string()));
        let nccl = shown("0.5.18", Algorithm::Nccl).unwrap_or_default();
        assert_eq!(nccl, format!("{NO_CUSTOM} {NO_FUSION}"));
        let newest = engine(EngineKind::Sglang, None);
        assert_eq!(
            replaced(Algorithm::Engine, fusing, &newest),
            Some(NO_FUSION)
        );
    }

    #[test]
    fn only_one_kernel_of_an_engine_runs_by_itself() {
        let vllm = |version| engine(EngineKind::Vllm, version);
        let own = |group, version| replaced(Algorithm::Engine, group, &vllm(version));
        assert_eq!(
            own(group(8, true), None),
            Some("VLLM_ALLREDUCE_USE_FLASHINFER=0")
        );
        assert_eq!(own(group(8, true), Some("0.24.0")), None);
        assert_eq!(own(group(8, false), None), None);
        let sglang = engine(EngineKind::Sglang, None);
        assert_eq!(replaced(Algorithm::Engine, group(8, true), &sglang), None);
    }
}
