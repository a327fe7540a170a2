//! Streams, events and graphs.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::context::Device;
use super::cu;
use super::memory::{DeviceBuffer, PinnedBuffer};
use crate::{Error, Result};

/// What a captured graph must keep alive.
#[derive(Debug, Clone)]
enum Kept {
    Device(#[expect(dead_code, reason = "held for its drop")] DeviceBuffer),
    Pinned(#[expect(dead_code, reason = "held for its drop")] PinnedBuffer),
    Module(#[expect(dead_code, reason = "held for its drop")] crate::launch::Module),
}

/// A queue of work on one GPU; clones share it.
#[derive(Debug, Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

#[derive(Debug)]
struct StreamInner {
    device: Device,
    raw: sys::CUstream,
    /// `Some` while a capture is on: what the captured work refers to.
    captured: Mutex<Option<Vec<Kept>>>,
}

// SAFETY: a stream handle may be used from any thread.
unsafe impl Send for StreamInner {}
// SAFETY: as above; the capture list has its own lock.
unsafe impl Sync for StreamInner {}

impl Stream {
    /// Creates a stream that does not wait for the default stream.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn new(device: &Device) -> Result<Stream> {
        device.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current and the out-parameter valid.
        unsafe { cu!(cuStreamCreate(&mut raw, flags))? };
        let captured = Mutex::new(None);
        Ok(Stream {
            inner: Arc::new(StreamInner {
                device: device.clone(),
                raw,
                captured,
            }),
        })
    }

    /// The stream's GPU.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    /// The first error of the queued work.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is alive.
        unsafe { cu!(cuStreamSynchronize(self.inner.raw)) }
    }

    /// Whether everything queued so far is done.
    ///
    /// # Errors
    /// The first error of the queued work.
    pub fn is_idle(&self) -> Result<bool> {
        self.bind()?;
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.inner.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => super::check(code, "cuStreamQuery").map(|()| true),
        }
    }

    /// Makes later work of this stream wait for `event`.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.bind()?;
        // SAFETY: stream and event are alive.
        unsafe { cu!(cuStreamWaitEvent(self.inner.raw, event.raw, 0)) }
    }

    /// Records `queue`'s work into a graph instead of running it.
    ///
    /// Buffers and kernels used inside are kept alive by the graph. `queue` must not synchronise.
    ///
    /// # Errors
    /// An error of `queue`, a call that cannot be captured, or a capture already on.
    pub fn capture(&self, queue: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        self.bind()?;
        {
            let mut list = self.lock();
            if list.is_some() {
                return Err(Error::Invalid(
                    "the stream is already being captured".into(),
                ));
            }
            *list = Some(Vec::new());
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not capturing.
        let begun = unsafe { cu!(cuStreamBeginCapture_v2(self.inner.raw, mode)) };
        let queued = begun.and_then(|()| {
            let result = queue(self);
            let mut graph: sys::CUgraph = std::ptr::null_mut();
            // SAFETY: pairs with the begin above, on error paths too.
            let ended = unsafe { cu!(cuStreamEndCapture(self.inner.raw, &mut graph)) };
            result.and(ended).map(|()| graph)
        });
        let kept = self.lock().take().unwrap_or_default();
        Graph::instantiate(self.device(), queued?, kept)
    }

    pub(crate) fn bind(&self) -> Result<()> {
        self.inner.device.bind()
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.inner.raw
    }

    pub(crate) fn keep(&self, buffer: DeviceBuffer) {
        self.push(Kept::Device(buffer));
    }

    pub(crate) fn keep_pinned(&self, buffer: PinnedBuffer) {
        self.push(Kept::Pinned(buffer));
    }

    pub(crate) fn keep_module(&self, module: crate::launch::Module) {
        self.push(Kept::Module(module));
    }

    /// Whether work queued now is being recorded into a graph.
    pub fn is_capturing(&self) -> bool {
        self.lock().is_some()
    }

    fn push(&self, kept: Kept) {
        if let Some(list) = self.lock().as_mut() {
            list.push(kept);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Kept>>> {
        self.inner
            .captured
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver finishes queued work.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A point in a stream, with a time stamp.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: sys::CUevent,
}

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that takes time stamps.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn new(device: &Device) -> Result<Event> {
        device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current and the out-parameter valid.
        unsafe { cu!(cuEventCreate(&mut raw, 0))? };
        Ok(Event {
            device: device.clone(),
            raw,
        })
    }

    /// Marks the present end of `stream`.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.bind()?;
        // SAFETY: event and stream are alive.
        unsafe { cu!(cuEventRecord(self.raw, stream.raw())) }
    }

    /// Waits until the event has happened.
    ///
    /// # Errors
    /// The first error of the work before it.
    pub fn synchronize(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        unsafe { cu!(cuEventSynchronize(self.raw)) }
    }

    /// Whether the event has happened.
    ///
    /// # Errors
    /// The first error of the work before it.
    pub fn is_done(&self) -> Result<bool> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => super::check(code, "cuEventQuery").map(|()| true),
        }
    }

    /// Time from `earlier` to this event in microseconds; both must have happened.
    ///
    /// # Errors
    /// One of them has not happened, or the driver's own error.
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64> {
        self.device.bind()?;
        let mut ms = 0.0_f32;
        // SAFETY: both events are alive and the out-parameter valid.
        unsafe { cu!(cuEventElapsedTime_v2(&mut ms, earlier.raw, self.raw))? };
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Recorded work, ready to be replayed; it keeps the buffers it uses alive.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    _kept: Vec<Kept>,
}

// SAFETY: a graph handle may be used from any thread, one at a time; launches take `&self` and
// the driver orders launches of one executable graph.
unsafe impl Send for Graph {}

impl Graph {
    fn instantiate(device: &Device, graph: sys::CUgraph, kept: Vec<Kept>) -> Result<Graph> {
        let mut exec: sys::CUgraphExec = std::ptr::null_mut();
        // SAFETY: `graph` came from a finished capture and the out-parameter is valid.
        let made = unsafe { cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)) };
        if let Err(error) = made {
            // SAFETY: not used any more.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
            return Err(error);
        }
        Ok(Graph {
            device: device.clone(),
            graph,
            exec,
            _kept: kept,
        })
    }

    /// Copies the graph to the GPU ahead of its first launch.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        stream.bind()?;
        // SAFETY: graph and stream are alive.
        unsafe { cu!(cuGraphUpload(self.exec, stream.raw())) }
    }

    /// Queues one replay on `stream`.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        stream.bind()?;
        // SAFETY: graph and stream are alive; the buffers inside are kept by `_kept`.
        unsafe { cu!(cuGraphLaunch(self.exec, stream.raw())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: each created once and destroyed once; running replays finish first.
            unsafe {
                let _ = sys::cuGraphExecDestroy(self.exec);
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
