//! One matrix product by cuBLASLt: the linear layer of a transformer.

use std::ffi::c_int;

use cudarc::cublaslt::sys;

use super::context::Device;
use super::memory::DeviceBuffer;
use super::stream::{Event, Stream};
use crate::{Error, Result};

/// Element type of a [`MatMul`]; sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatMulType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// fp8 operands (e4m3), bfloat16 result; sizes are multiples of 16. From sm_89 on.
    Fp8,
}

impl MatMulType {
    /// Bytes of an element of the operands, and of the result.
    fn bytes(self) -> (usize, usize) {
        match self {
            Self::Bf16 | Self::F16 => (2, 2),
            Self::Fp8 => (1, 2),
        }
    }

    /// The library's names of both.
    fn kinds(self) -> (sys::cudaDataType_t, sys::cudaDataType_t) {
        use sys::cudaDataType_t::{CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16F};
        match self {
            Self::Bf16 => (CUDA_R_16BF, CUDA_R_16BF),
            Self::F16 => (CUDA_R_16F, CUDA_R_16F),
            Self::Fp8 => (CUDA_R_8F_E4M3, CUDA_R_16BF),
        }
    }
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
    scale: f32,
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
        let workspace = DeviceBuffer::new(device, WORKSPACE_BYTES)?;
        MatMul::with_workspace(device, [tokens, outputs, inputs], element, workspace)
    }

    /// As [`MatMul::new`] for `[tokens, outputs, inputs]`, with a workspace of
    /// [`MatMul::WORKSPACE_BYTES`] that plans of one stream may share.
    ///
    /// # Errors
    /// As [`MatMul::new`].
    pub fn with_workspace(
        device: &Device,
        [tokens, outputs, inputs]: [usize; 3],
        element: MatMulType,
        workspace: DeviceBuffer,
    ) -> Result<MatMul> {
        workspace.range(0, WORKSPACE_BYTES)?;
        // SAFETY: opens the library by its well-known names and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::MissingLibrary {
                library: "libcublasLt.so",
                mend: "install cuBLAS (the Python package nvidia-cublas carries it) and put its \
                       folder on LD_LIBRARY_PATH",
            });
        }
        let size = |count: usize, other: usize, each: usize| {
            count
                .checked_mul(other)
                .and_then(|n| n.checked_mul(each))
                .ok_or_else(|| Error::Invalid(format!("a matrix of {count} x {other}")))
        };
        let (operand, result) = element.bytes();
        let needed_bytes = [
            size(outputs, inputs, operand)?,
            size(tokens, inputs, operand)?,
            size(tokens, outputs, result)?,
        ];
        device.bind()?;
        let mut plan = MatMul {
            handle: std::ptr::null_mut(),
            operation: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
            // SAFETY: an opaque block of integers; all zeros is a value, replaced below.
            algorithm: unsafe { std::mem::zeroed() },
            workspace,
            needed_bytes,
            scale: 1.0,
        };
        plan.describe(tokens, outputs, inputs, element)?;
        plan.algorithm = *plan
            .candidates(1)?
            .first()
            .ok_or_else(|| Error::Invalid("cuBLASLt has no algorithm for this shape".into()))?;
        Ok(plan)
    }

    /// Multiplies results by `scale`: scales of fp8 operands.
    #[must_use]
    pub fn scaled(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Bytes of the workspace.
    pub const WORKSPACE_BYTES: usize = WORKSPACE_BYTES;

    /// Times up to `most` algorithms on `stream` and keeps the fastest. Several weights, read in
    /// turn, keep the cache from flattering one.
    ///
    /// # Errors
    /// As [`MatMul::run`].
    pub fn tune(
        &mut self,
        stream: &Stream,
        x: &DeviceBuffer,
        weights: &[&DeviceBuffer],
        y: &DeviceBuffer,
        most: usize,
    ) -> Result<()> {
        let (from, to) = (Event::new(stream.device())?, Event::new(stream.device())?);
        let mut best = (f64::INFINITY, self.algorithm);
        for algorithm in self.candidates(most)? {
            self.algorithm = algorithm;
            // An algorithm that refuses these buffers is passed over.
            let round =
                |stream: &Stream| weights.iter().try_for_each(|w| self.run(stream, x, w, y));
            if round(stream).is_err() {
                continue;
            }
            from.record(stream)?;
            for _ in 0..2 {
                round(stream)?;
            }
            to.record(stream)?;
            to.synchronize()?;
            let us = to.elapsed_us(&from)?;
            if us < best.0 {
                best = (us, algorithm);
            }
        }
        self.algorithm = best.1;
        Ok(())
    }

    fn describe(
        &mut self,
        tokens: usize,
        outputs: usize,
        inputs: usize,
        element: MatMulType,
    ) -> Result<()> {
        let (operand, result) = element.kinds();
        let transpose: c_int = 1;
        // cuBLAS is column-major: w is inputs x outputs there, x inputs x tokens, y outputs x tokens.
        let shapes = [
            (operand, inputs, outputs),
            (operand, inputs, tokens),
            (result, outputs, tokens),
        ];
        // SAFETY: every out-parameter is valid; the attributes are integers of the sizes that the
        // library documents.
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
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            self.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transpose)?;
            if element == MatMulType::Fp8 {
                // Sums of a tile in the tensor core's own precision, as engines run it.
                self.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1_i8)?;
            }
            for (layout, (kind, rows, columns)) in self.layouts.iter_mut().zip(shapes) {
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

    /// Sets one attribute of the operation.
    ///
    /// # Safety
    /// `T` is the type that the library documents for it.
    unsafe fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<()> {
        // SAFETY: the descriptor is alive and the value readable; the rest is the caller's.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                self.operation,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        check(status, "cublasLtMatmulDescSetAttribute")
    }

    /// The library's best guesses for this shape, at most 16.
    fn candidates(&self, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        const MOST: usize = 16;
        let mut preference: sys::cublasLtMatmulPreference_t = std::ptr::null_mut();
        let mut found: c_int = 0;
        // SAFETY: all zeros is a value of this plain struct; the first `found` are overwritten.
        let mut results: [sys::cublasLtMatmulHeuristicResult_t; MOST] =
            unsafe { std::mem::zeroed() };
        // SAFETY: the descriptors are alive, `results` holds as many as are asked for.
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
                most.clamp(1, MOST) as c_int,
                results.as_mut_ptr(),
                &mut found,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            status
        };
        check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        let found = usize::try_from(found).unwrap_or(0).min(MOST);
        Ok(results[..found].iter().map(|r| r.algo).collect())
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
        let zero = 0.0_f32;
        let [lw, lx, ly] = self.layouts;
        let at = |buffer: &DeviceBuffer| buffer.address() as *mut std::ffi::c_void;
        // SAFETY: sizes were checked; the scalars are read before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                self.operation,
                (&raw const self.scale).cast(),
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
