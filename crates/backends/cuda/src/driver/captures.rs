//! Captures of recorded work as CUDA graphs.

use std::ptr::NonNull;

use cudarc::driver::{result, sys};
use panoply_c_gpu::driver::{CapturedGraph, Captures, Stream};
use panoply_core::{Error, Result};

use super::CudaDriver;

impl Captures for CudaDriver {
    fn begin(&self) -> Result<()> {
        // The relaxed mode: the others forbid memory allocations during the capture.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is the driver's own.
        self.check(unsafe { result::stream::begin_capture(self.raw(Stream::Compute), mode) })
    }

    fn end(&self) -> Result<CapturedGraph> {
        // SAFETY: the stream is the driver's own.
        let graph = unsafe { result::stream::end_capture(self.raw(Stream::Compute)) };
        let graph = graph.map_err(|error| self.error(error))?;
        let invalid = || Error::DeviceFault { device: self.device, reason: "the capture was invalidated".to_owned() };
        if graph.is_null() {
            return Err(invalid());
        }
        let mut made: sys::CUgraphExec = std::ptr::null_mut();
        // SAFETY: the driver just gave the graph; no flags are set.
        let instantiated = unsafe { sys::cuGraphInstantiateWithFlags(&mut made, graph, 0) }.result();
        // SAFETY: the instantiated graph does not need the graph any more.
        let _ = unsafe { sys::cuGraphDestroy(graph) }.result();
        self.check(instantiated)?;
        NonNull::new(made.cast()).map(CapturedGraph).ok_or_else(invalid)
    }

    unsafe fn replay(&self, captured: CapturedGraph) -> Result<()> {
        // SAFETY: `end` made the graph; the caller vouches for the recorded work.
        self.check(unsafe { sys::cuGraphLaunch(captured.0.as_ptr().cast(), self.raw(Stream::Compute)) }.result())
    }

    fn release(&self, captured: CapturedGraph) {
        // SAFETY: `end` made the graph; it is released once, and no work in flight uses it.
        let _ = unsafe { sys::cuGraphExecDestroy(captured.0.as_ptr().cast()) }.result();
    }
}
