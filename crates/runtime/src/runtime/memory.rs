//! Memory that a program asks for by name: pinned tensors, empty tensors on a device, and freeing
//! what the pools cache.

use std::time::Instant;

use panoply_core::op::compute::Transfer;
use panoply_core::{DType, DeviceId, Error, Result, Shape, Tensor};
use panoply_lockfree::slot::WaitError;

use super::Runtime;
use crate::lane::{Lane, MemoryAnswer, MemoryRequest};
use crate::options::RunOptions;
use crate::read_back::WAIT_OP_TIMES;
use crate::{threads, time};

/// The threads that may ask: those of the runtime must not wait for a device.
const FROM_OUTSIDE: &str = "a thread that does not belong to a runtime: its own threads cannot wait for a device";

impl Runtime {
    /// A tensor of zeroes in pinned host memory: memory that the device's transfers reach without a
    /// copy in between. Fill it through [`Tensor::as_mut_slice`] before an op reads it, and again
    /// when no op and no other handle holds it. A device without pinned memory, such as the CPU,
    /// gives ordinary memory.
    ///
    /// Blocks until the device's worker has answered, for at most twice the time limit of an op.
    ///
    /// ```
    /// # use panoply_core::{Api, DType, DeviceId, op::compute::Reduce};
    /// # use std::sync::Arc;
    /// # let backend = Arc::new(panoply_cpu::CpuBackend::new());
    /// # let runtime = panoply_runtime::Runtime::builder().backend(backend).build()?;
    /// # let device = DeviceId { api: Api::CPU, index: 0 };
    /// let mut batch = runtime.pinned(device, DType::F32, [4])?;
    /// batch.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
    /// let sum = runtime.run(Reduce::sum(&batch)).wait()?;
    /// assert_eq!(sum.as_slice::<f32>()?, [10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pinned(&self, device: DeviceId, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape)?;
        let len_bytes = shape.elements() * dtype.size_bytes();
        let fault = |reason: String| Error::DeviceFault { device, reason };
        match self.ask_for_memory(device, MemoryRequest::Pinned { len_bytes })? {
            MemoryAnswer::Pinned(mut buffer) if buffer.bytes().len() == len_bytes => {
                // Other ops have used the memory before, and no caller may read their data.
                buffer.bytes_mut().fill(0);
                Tensor::from_host(dtype, shape, buffer.freeze())
            }
            MemoryAnswer::Pinned(buffer) => {
                Err(fault(format!("it gave {} bytes of pinned memory, not {len_bytes}", buffer.bytes().len())))
            }
            MemoryAnswer::Trimmed(_) => Err(fault("it answered another request".to_owned())),
        }
    }

    /// A tensor of zeroes in a device's memory. No data crosses the link: the device fills the
    /// memory. Blocks like [`Runtime::pinned`]. If there is not enough memory, the error says how
    /// much is free.
    pub fn empty_on(&self, device: DeviceId, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let lane = self.lane_to_wait_for(device)?;
        let zeros = Tensor::zeros(dtype, [] as [usize; 0])?.broadcast_to(shape)?;
        let limit = time::later(Instant::now(), lane.limits.op_time_max.saturating_mul(WAIT_OP_TIMES));
        self.run_with(Transfer::to_device(&zeros, device), RunOptions::require(device)).wait_until(limit)
    }

    /// Frees the memory that the pools of a device cache for later ops, on the device and on the
    /// host. Returns the number of bytes. Memory of tensors and of ops in flight stays. Blocks like
    /// [`Runtime::pinned`].
    pub fn trim(&self, device: DeviceId) -> Result<u64> {
        match self.ask_for_memory(device, MemoryRequest::Trim { keep_bytes: 0 })? {
            MemoryAnswer::Trimmed(freed_bytes) => Ok(freed_bytes),
            MemoryAnswer::Pinned(_) => {
                Err(Error::DeviceFault { device, reason: "it answered another request".to_owned() })
            }
        }
    }

    /// Sends a request to a device's worker, and waits for the answer.
    fn ask_for_memory(&self, device: DeviceId, request: MemoryRequest) -> Result<MemoryAnswer> {
        let lane = self.lane_to_wait_for(device)?;
        let after = lane.limits.op_time_max.saturating_mul(WAIT_OP_TIMES);
        let mut receiver = lane.ask_for_memory(request)?;
        match receiver.wait_for(self.process, Some(time::later(Instant::now(), after)), 0) {
            Ok(answer) => answer.unwrap_or_else(|| Err(lane.refusal())),
            Err(WaitError::TimedOut) => Err(Error::Timeout { device, after }),
            Err(WaitError::Forked) => Err(self.process.refusal("the runtime")),
        }
    }

    /// The lane of a device, for a caller that may wait for it.
    fn lane_to_wait_for(&self, device: DeviceId) -> Result<&Lane> {
        self.process.check("the runtime")?;
        if threads::is_runtimes() {
            return Err(Error::invalid("calling thread", FROM_OUTSIDE, "a thread of a runtime"));
        }
        self.router.lanes.lane_of(device).map(|lane| &**lane)
    }
}
