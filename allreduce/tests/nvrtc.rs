//! Compiling without a GPU, and clean errors without a driver.

use std::path::Path;
use std::process::Command;

use allreduce::kernels::KernelFile;
use allreduce::{DType, Error, device};

/// Whether NVRTC is here. Where only Python's package nvidia-cuda-nvrtc carries it, the test runs
/// again in a process whose loader finds that; where nothing does, says that it is skipped.
fn compiler_is_here(test: &str) -> bool {
    let Err(error) = device::compiler_info() else {
        return true;
    };
    let find = "import glob, sysconfig; p = sysconfig.get_paths()['purelib']; \
                print(*glob.glob(p + '/nvidia/*/lib/libnvrtc.so.1[23]'))";
    let found = Command::new("python3").args(["-c", find]).output().ok();
    let found = found
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    let folder = found
        .split_whitespace()
        .next()
        .and_then(|p| Path::new(p).parent());
    match folder {
        Some(folder) if std::env::var_os("NVRTC_SECOND_TRY").is_none() => {
            let again = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env("LD_LIBRARY_PATH", folder)
                .env("NVRTC_SECOND_TRY", "1")
                .status();
            assert!(
                again.unwrap().success(),
                "{test} with the compiler in {}",
                folder.display()
            );
        }
        _ => println!("skipped: {error}"),
    }
    false
}

const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"];

#[test]
fn a_small_kernel_compiles_for_every_architecture() {
    if !compiler_is_here("a_small_kernel_compiles_for_every_architecture") {
        return;
    }
    let source = r#"extern "C" __global__ void fill(float *out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = VALUE;
    }"#;
    for arch in ARCHITECTURES {
        let defines = [("VALUE", "2.0f".to_string())];
        let cubin = device::compile_cubin("fill.cu", source, arch, &defines).unwrap();
        assert!(cubin.starts_with(b"\x7fELF"), "{arch}");
    }
}

#[test]
fn a_kernel_that_does_not_compile_says_where() {
    if !compiler_is_here("a_kernel_that_does_not_compile_says_where") {
        return;
    }
    let error = device::compile_cubin("bad.cu", "int f( {", "sm_90", &[]).unwrap_err();
    assert!(
        matches!(&error, Error::Compile { log, .. } if log.contains("bad.cu(1)")),
        "{error}"
    );
}

#[test]
fn without_a_driver_every_entry_point_is_an_error_not_a_panic() {
    match device::driver_info() {
        Ok(info) => println!("a driver is present: {info:?}"),
        Err(error) => {
            assert!(device::Device::open(0).is_err());
            assert!(device::Device::all().is_err());
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[test]
fn every_kernel_compiles_for_every_architecture_type_and_several_rank_counts() {
    if !compiler_is_here(
        "every_kernel_compiles_for_every_architecture_type_and_several_rank_counts",
    ) {
        return;
    }
    for file in KernelFile::ALL {
        for arch in ARCHITECTURES {
            file.compile(arch, 2, DType::Bf16).unwrap();
        }
        for dtype in [DType::F32, DType::F16] {
            file.compile("sm_90", 2, dtype).unwrap();
        }
        for ranks in [3, 4, 8, 16] {
            file.compile("sm_90", ranks, DType::Bf16).unwrap();
        }
    }
}
