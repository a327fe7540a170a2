//! The kernel files, and what is compiled from them.

use std::collections::HashMap;

use crate::Result;
use crate::driver::context::Device;
use crate::driver::nvrtc;
use crate::launch::{Kernel, Module};
use crate::protocol;
use crate::types::DType;

const COMMON: &str = include_str!("../kernels/common.cuh");

/// One kernel file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelFile {
    /// `one_shot.cu`
    OneShot,
    /// `two_shot.cu`
    TwoShot,
    /// `island.cu`
    Island,
    /// `host_staged.cu`
    HostStaged,
    /// `fused.cu`
    Fused,
    /// `probe.cu`
    Probe,
}

impl KernelFile {
    /// All files.
    pub const ALL: [KernelFile; 6] = [
        KernelFile::OneShot,
        KernelFile::TwoShot,
        KernelFile::Island,
        KernelFile::HostStaged,
        KernelFile::Fused,
        KernelFile::Probe,
    ];

    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            KernelFile::OneShot => "one_shot.cu",
            KernelFile::TwoShot => "two_shot.cu",
            KernelFile::Island => "island.cu",
            KernelFile::HostStaged => "host_staged.cu",
            KernelFile::Fused => "fused.cu",
            KernelFile::Probe => "probe.cu",
        }
    }

    /// The complete source, common part included.
    pub fn source(self) -> String {
        let own = match self {
            KernelFile::OneShot => include_str!("../kernels/one_shot.cu"),
            KernelFile::TwoShot => include_str!("../kernels/two_shot.cu"),
            KernelFile::Island => include_str!("../kernels/island.cu"),
            KernelFile::HostStaged => include_str!("../kernels/host_staged.cu"),
            KernelFile::Fused => include_str!("../kernels/fused.cu"),
            KernelFile::Probe => return include_str!("../kernels/probe.cu").to_string(),
        };
        format!("{COMMON}\n#line 1 \"{}\"\n{own}", self.name())
    }

    fn defines(self, ranks: usize, dtype: DType) -> Vec<(&'static str, String)> {
        match self {
            KernelFile::Probe => Vec::new(),
            _ => protocol::defines(ranks, dtype.code()),
        }
    }

    /// Compiles for `arch` without a GPU, for `ranks` ranks and one element type; gives the size
    /// of the machine code in bytes.
    ///
    /// # Errors
    /// No NVRTC, or a compile error with its log.
    pub fn compile(self, arch: &str, ranks: usize, dtype: DType) -> Result<usize> {
        let defines = self.defines(ranks, dtype);
        Ok(nvrtc::compile_cubin(self.name(), &self.source(), arch, &defines)?.len())
    }
}

/// The kernels of one communicator, compiled at first use.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    ranks: usize,
    modules: HashMap<(KernelFile, DType), Module>,
    kernels: HashMap<(&'static str, DType), Kernel>,
}

impl Kernels {
    pub(crate) fn new(device: &Device, ranks: usize) -> Kernels {
        Kernels {
            device: device.clone(),
            ranks,
            modules: HashMap::new(),
            kernels: HashMap::new(),
        }
    }

    pub(crate) fn get(
        &mut self,
        file: KernelFile,
        name: &'static str,
        dtype: DType,
    ) -> Result<Kernel> {
        if let Some(kernel) = self.kernels.get(&(name, dtype)) {
            return Ok(kernel.clone());
        }
        let module = match self.modules.get(&(file, dtype)) {
            Some(module) => module.clone(),
            None => {
                let defines = file.defines(self.ranks, dtype);
                let module = Module::compile(&self.device, file.name(), &file.source(), &defines)?;
                self.modules.insert((file, dtype), module.clone());
                module
            }
        };
        let kernel = module.kernel(name)?;
        self.kernels.insert((name, dtype), kernel.clone());
        Ok(kernel)
    }
}
