//! One matrix product by cuBLASLt: the linear layer of a transformer.

use std::ffi::c_int;

use cudarc::cublaslt::sys;

use super::context::Device;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::{Error, Result};

/// Element type of a [`MatMul`]; sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatMulType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

/// `y[tokens, outputs] = x[tokens, inputs] w[outputs, inputs]^T`, all row-major, planned once.
///
/// Runs in stream order and can be captured. Each plan owns its workspace, so one plan must not
/// run on two streams at once.
#[derive(Debug)]
pub struct MatMul {
    handle: sys::cublasLtHandle_t,
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: DeviceBuffer,
    needed_bytes: [usize; 3],
}

// SAFETY: the handles may be used from any thread, one at a time; `run` takes `&self` but only
// reads them.
unsafe impl Send for MatMul {}

static WORKSPACE_BYTES: usize = 32 << 20;

impl MatMul {
    /// Plans the product for a GPU.
    ///
    /// # Errors
    /// No cuBLASLt, no algorithm for the shape, or the library's own error.
    pub fn new(
        device: &Device,
        tokens: usize,
        outputs: usize,
        inputs: usize,
        element: MatMulType,
    ) -> Result<MatMul> {
        // SAFETY: opens the library by its well-known names and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::MissingLibrary {
                library: "libcublasLt.so",
                mend: "install cuBLAS (the Python package nvidia-cublas carries it) and put its \
                       folder on LD_LIBRARY_PATH",
            });
        }
        let size = |count: usize, other: usize| {
            count
                .checked_mul(other)
                .and_then(|n| n.checked_mul(2))
                .ok_or_else(|| Error::Invalid(format!("a matrix of {count} x {other}")))
        };
        let needed_bytes = [
            size(outputs, inputs)?,
            size(tokens, inputs)?,
            size(tokens, outputs)?,
        ];
        device.bind()?;
        let mut plan = MatMul {
            handle: std::ptr::null_mut(),
            operation: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
            // SAFETY: an opaque block of integers; all zeros is a value, replaced below.
            algorithm: unsafe { std::mem::zeroed() },
            workspace: DeviceBuffer::new(device, WORKSPACE_BYTES)?,
            needed_bytes,
        };
        plan.describe(tokens, outputs, inputs, element)?;
        plan.choose()?;
        Ok(plan)
    }

    fn describe(
        &mut self,
        tokens: usize,
        outputs: usize,
        inputs: usize,
        element: MatMulType,
    ) -> Result<()> {
        let kind = match element {
            MatMulType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            MatMulType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        };
        let transpose: c_int = 1;
        // cuBLAS is column-major: w is inputs x outputs there, x inputs x tokens, y outputs x tokens.
        let shapes = [(inputs, outputs), (inputs, tokens), (outputs, tokens)];
        // SAFETY: every out-parameter is valid; the attribute is one 4-byte integer.
        unsafe {
            check(sys::cublasLtCreate(&mut self.handle), "cublasLtCreate")?;
            check(
                sys::cublasLtMatmulDescCreate(
                    &mut self.operation,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cudaDataType_t::CUDA_R_32F,
                ),
                "cublasLtMatmulDescCreate",
            )?;
            check(
                sys::cublasLtMatmulDescSetAttribute(
                    self.operation,
                    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                    (&raw const transpose).cast(),
                    4,
                ),
                "cublasLtMatmulDescSetAttribute",
            )?;
            for (layout, (rows, columns)) in self.layouts.iter_mut().zip(shapes) {
                check(
                    sys::cublasLtMatrixLayoutCreate(
                        layout,
                        kind,
                        rows as u64,
                        columns as u64,
                        rows as i64,
                    ),
                    "cublasLtMatrixLayoutCreate",
                )?;
            }
        }
        Ok(())
    }

    fn choose(&mut self) -> Result<()> {
        let mut preference: sys::cublasLtMatmulPreference_t = std::ptr::null_mut();
        let mut found: c_int = 0;
        // SAFETY: all zeros is a value of this plain struct, overwritten when `found` is 1.
        let mut best: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptors are alive, `best` holds the one result asked for.
        let status = unsafe {
            check(
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
                "cublasLtMatmulPreferenceCreate",
            )?;
            sys::cublasLtMatmulPreferenceSetAttribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const WORKSPACE_BYTES).cast(),
                8,
            );
            let [w, x, y] = self.layouts;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.operation,
                w,
                x,
                y,
                y,
                preference,
                1,
                &mut best,
                &mut found,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            status
        };
        check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        if found == 0 {
            return Err(Error::Invalid(
                "cuBLASLt has no algorithm for this shape".into(),
            ));
        }
        self.algorithm = best.algo;
        Ok(())
    }

    /// Queues `y = x w^T` on `stream`.
    ///
    /// # Errors
    /// A buffer is too small, or the library's own error.
    pub fn run(
        &self,
        stream: &Stream,
        x: &DeviceBuffer,
        w: &DeviceBuffer,
        y: &DeviceBuffer,
    ) -> Result<()> {
        for (buffer, bytes) in [w, x, y].into_iter().zip(self.needed_bytes) {
            buffer.range(0, bytes)?;
            stream.keep(buffer.clone());
        }
        stream.keep(self.workspace.clone());
        stream.bind()?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let [lw, lx, ly] = self.layouts;
        let at = |buffer: &DeviceBuffer| buffer.address() as *mut std::ffi::c_void;
        // SAFETY: sizes were checked; the scalars are read before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                self.operation,
                (&raw const one).cast(),
                at(w),
                lw,
                at(x),
                lx,
                (&raw const zero).cast(),
                at(y),
                ly,
                at(y),
                ly,
                &self.algorithm,
                at(&self.workspace),
                WORKSPACE_BYTES,
                stream.raw().cast(),
            )
        };
        check(status, "cublasLtMatmul")
    }
}

impl Drop for MatMul {
    fn drop(&mut self) {
        // SAFETY: each was created at most once; null ones are skipped.
        unsafe {
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                sys::cublasLtMatrixLayoutDestroy(layout);
            }
            if !self.operation.is_null() {
                sys::cublasLtMatmulDescDestroy(self.operation);
            }
            if !self.handle.is_null() {
                sys::cublasLtDestroy(self.handle);
            }
        }
    }
}

fn check(code: sys::cublasStatus_t, call: &'static str) -> Result<()> {
    if code == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Call {
        call,
        code: code as i64,
        name: format!("{code:?}"),
    })
}
