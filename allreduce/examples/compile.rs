//! Compiles every kernel without a GPU, and so fills the cache (`ALLREDUCE_CACHE`).
//!
//!     compile [ARCH...]     default: sm_80 sm_89 sm_90 sm_100 sm_120

use std::process::ExitCode;

use allreduce::DType;
use allreduce::device::compiler_info;
use allreduce::kernels::KernelFile;

fn main() -> ExitCode {
    let mut archs: Vec<String> = std::env::args().skip(1).collect();
    if archs.is_empty() {
        archs = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
            .map(String::from)
            .to_vec();
    }
    match compiler_info() {
        Ok((major, minor)) => println!("NVRTC {major}.{minor}"),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    }
    for file in KernelFile::ALL {
        for arch in &archs {
            for ranks in [2, 3, 4, 8] {
                for dtype in DType::ALL {
                    if let Err(error) = file.compile(arch, ranks, dtype) {
                        eprintln!("error: {error}");
                        return ExitCode::from(1);
                    }
                }
            }
            println!(
                "{} {arch}: 2, 3, 4 and 8 ranks, {} types",
                file.name(),
                DType::ALL.len()
            );
        }
    }
    ExitCode::SUCCESS
}
