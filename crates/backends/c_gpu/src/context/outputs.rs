//! Memory for results and scratch, and downloads of results.

use std::collections::VecDeque;

use panoply_core::{Buffer, DType, DeviceBuffer, Result, Shape, Tensor};
use panoply_graph::Order;

use super::Context;
use crate::driver::{Address, Stream};
use crate::memory::LeasedBlock;

/// An output being computed.
pub struct Output {
    /// Its address.
    pub address: Address,
    tensor: Tensor,
}

impl Output {
    /// The tensor, to be handed out when the op has finished.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

/// The outputs that a step of a graph is about to produce, in the order of its value's tensors. An
/// op asks for memory by size, and gets the place of the next output of that size, or separate
/// memory if that output has no place.
#[derive(Default)]
pub(crate) struct PlannedOutputs {
    outputs: VecDeque<PlannedOutput>,
}

/// One output of a step.
pub(crate) struct PlannedOutput {
    /// Its destination; `None` if it has memory of its own.
    pub(crate) place: Option<PlannedPlace>,
    pub(crate) len_bytes: usize,
    /// The memory order of the output's axes, if it differs from the op's.
    pub(crate) order: Option<Order>,
}

/// A range of a buffer whose old content is not needed after this point of the compute stream.
#[derive(Clone)]
pub(crate) struct PlannedPlace {
    pub(crate) buffer: DeviceBuffer,
    /// Start of the buffer.
    pub(crate) start: Address,
    /// Offset of the output in the buffer.
    pub(crate) offset: usize,
}

impl PlannedPlace {
    /// Whether the elements of a tensor begin here.
    pub(crate) fn holds(&self, tensor: &Tensor) -> bool {
        let is_buffer = matches!(tensor.buffer(), Buffer::Device(buffer) if buffer.token() == self.buffer.token());
        is_buffer && tensor.offset() * tensor.dtype().size_bytes() == self.offset
    }
}

impl PlannedOutputs {
    /// Announces the outputs of the next step.
    pub(crate) fn expect(&mut self, outputs: impl Iterator<Item = PlannedOutput>) {
        self.outputs.clear();
        self.outputs.extend(outputs);
    }

    /// Clears the announced outputs: later ones get memory of their own.
    pub(crate) fn forget(&mut self) {
        self.outputs.clear();
    }

    fn take(&mut self, dtype: DType, shape: Shape) -> Option<Output> {
        let bytes = shape.elements() * dtype.size_bytes();
        self.outputs.front().filter(|output| output.len_bytes == bytes)?;
        let PlannedPlace { buffer, start, offset } = self.outputs.pop_front()?.place?;
        let (first, address) = (offset / dtype.size_bytes(), start + offset);
        let buffer = Buffer::Device(buffer);
        let tensor = Tensor::from_parts(dtype, shape, shape.contiguous_strides(), first, buffer).ok()?;
        Some(Output { address, tensor })
    }
}

impl Context {
    /// The memory order of the next output's axes, if it differs from the op's.
    pub(crate) fn output_order(&self) -> Option<Order> {
        self.planned.outputs.front().and_then(|output| output.order)
    }

    /// An output to be written in full.
    pub fn output(&mut self, dtype: DType, shape: Shape) -> Result<Output> {
        if let Some(output) = self.planned.take(dtype, shape) {
            return Ok(output);
        }
        let (buffer, address) = self.memory.tensor(shape.elements() * dtype.size_bytes())?;
        Ok(Output { address, tensor: Tensor::from_device(dtype, shape, buffer)? })
    }

    /// Keeps a tensor between two kernels of the current op until it has finished.
    pub(crate) fn keep(&mut self, tensor: &Tensor) {
        self.queued.between.push(tensor.clone());
    }

    /// Memory that the op needs until it has finished; aligned to at least 256 bytes, with
    /// arbitrary contents.
    pub fn scratch(&mut self, bytes: usize) -> Result<Address> {
        let block = self.memory.scratch(bytes)?;
        let address = block.block.0;
        self.queued.held.push(block);
        Ok(address)
    }

    /// Keeps memory until the current op, and all before it on its lane, have finished.
    pub(crate) fn hold(&mut self, block: LeasedBlock) {
        self.queued.held.push(block);
    }

    /// A host tensor with the content of this address at this point of the compute stream.
    pub fn download(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        if shape.elements() > 0 && !self.is_rehearsal() {
            self.await_kernels()?;
        }
        self.download_finished(source, dtype, shape)
    }

    /// A host tensor with the content that a finished op left at this address.
    pub(crate) fn download_finished(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        let bytes = shape.elements() * dtype.size_bytes();
        let mut target = self.staging.target(bytes)?;
        if bytes > 0 && !self.is_rehearsal() {
            // SAFETY: the buffer is not handed out before the op has finished.
            unsafe { self.download_into(target.bytes_mut().as_mut_ptr(), source, bytes)? };
        }
        Tensor::from_host(dtype, shape, target.freeze())
    }

    /// Makes downloads wait for the queued kernels.
    pub(super) fn await_kernels(&mut self) -> Result<()> {
        let computed = self.event()?;
        self.driver.record(computed, Stream::Compute)?;
        self.driver.wait_for(Stream::Download, computed)?;
        self.events.push(computed);
        Ok(())
    }

    /// Queues a copy to pinned memory.
    ///
    /// # Safety
    /// The target must have `bytes` bytes, and must not be read before the current op has finished.
    pub(super) unsafe fn download_into(&mut self, target: *mut u8, source: Address, bytes: usize) -> Result<()> {
        self.begin_copies(Stream::Download)?;
        // SAFETY: the caller guarantees the target; the source was allocated by this context.
        unsafe { self.driver.download(target, source, bytes, Stream::Download)? };
        self.end_copies(Stream::Download)?;
        self.queued.downloads = true;
        self.queued.bytes_moved += bytes as u64;
        Ok(())
    }
}
