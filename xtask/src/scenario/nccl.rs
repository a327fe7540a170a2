//! How NCCL runs on the box asked about: by flags, by a server's log, or by the box file.

use pcie_sim::box_spec::BoxSpec;
use pcie_sim::nccl::P2pLevel;

use super::hardware::Hardware;
use crate::cli::NcclArgs;
use crate::explain::LogScenario;

/// What was said of NCCL, each with who said it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NcclSaid {
    version: Option<(String, String)>,
    p2p_level: Option<(P2pLevel, String)>,
}

impl NcclSaid {
    /// By flags alone.
    pub(crate) fn by_flags(args: &NcclArgs) -> Self {
        let mut said = Self::default();
        said.flags(args);
        said
    }

    /// What flags say wins.
    pub(super) fn flags(&mut self, args: &NcclArgs) {
        if let Some(version) = &args.version {
            self.version = Some((version.clone(), "--nccl".to_string()));
        }
        if let Some(level) = args.p2p_level {
            self.p2p_level = Some((level, "--nccl-p2p-level".to_string()));
        }
    }

    /// What a server's log says. A word that is no level says nothing to NCCL either.
    pub(super) fn log(&mut self, log: &LogScenario, shown: &str) {
        let version = log.nccl.version.as_ref();
        let known = version.filter(|(text, _)| pcie_sim::nccl::release(text).is_some());
        if let Some((text, line)) = known {
            self.version = Some((text.clone(), format!("{shown}:{line}")));
        }
        let level = log.nccl.p2p_level.as_ref();
        let known = level.and_then(|(text, line)| Some((text.parse().ok()?, line)));
        if let Some((level, line)) = known {
            self.p2p_level = Some((level, format!("{shown}:{line}")));
        }
    }

    /// Writes it into a wiring, over what the box file says.
    pub(super) fn write(&self, wiring: &mut BoxSpec) {
        if let Some((version, _)) = &self.version {
            wiring.nccl = Some(version.clone());
        }
        if let Some((level, _)) = &self.p2p_level {
            wiring.nccl_p2p_level = Some(*level);
        }
    }

    /// As inputs of the answer; beside what was asked for what the box file says.
    pub(super) fn noted(&self, hardware: &Hardware, notes: &mut super::Notes) {
        let own = hardware.wiring.nccl_p2p_level;
        if let (Some(level), None, false) = (own, &self.p2p_level, hardware.is_usual()) {
            notes.input("nccl_p2p_level", level.name(), hardware.source.clone());
        }
        if let Some((version, source)) = &self.version {
            notes.input("nccl", version.clone(), source.clone());
        }
        if let Some((level, source)) = &self.p2p_level {
            notes.input("nccl_p2p_level", level.name(), source.clone());
        }
    }
}
