//! Compiling without a GPU, and clean errors without a driver.

use allreduce::kernels::KernelFile;
use allreduce::{DType, Error, device};

const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"];

#[test]
fn a_small_kernel_compiles_for_every_architecture() {
    if let Err(error) = device::compiler_info() {
        println!("skipped: {error}");
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
    if device::compiler_info().is_err() {
        println!("skipped: no NVRTC");
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
    if let Err(error) = device::compiler_info() {
        println!("skipped: {error}");
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
