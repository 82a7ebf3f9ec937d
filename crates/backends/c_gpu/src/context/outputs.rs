//! Memory for results and scratch, and results on their way to the host.

use std::collections::VecDeque;

use panoply_core::{Buffer, DType, DeviceBuffer, Result, Shape, Tensor};
use panoply_graph::Order;

use super::Context;
use crate::driver::{Address, Stream};
use crate::memory::Block;

/// An output being computed.
pub struct Output {
    /// Where it goes.
    pub address: Address,
    tensor: Tensor,
}

impl Output {
    /// The tensor, to be handed out when the op has finished.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

/// Where the outputs of a graph's step belong, in the order in which they are asked for.
#[derive(Default)]
pub(crate) struct Planned {
    places: VecDeque<PlannedPlace>,
}

/// Bytes of a buffer that nothing after this point of the compute stream needs as they are.
pub(crate) struct PlannedPlace {
    pub(crate) buffer: DeviceBuffer,
    /// Where the buffer begins.
    pub(crate) start: Address,
    /// Where in the buffer the output begins.
    pub(crate) offset: usize,
    pub(crate) len_bytes: usize,
    /// The order in which the output's axes are to lie, where it is another than the op's.
    pub(crate) order: Option<Order>,
}

impl Planned {
    /// The next outputs of these sizes belong at these places.
    pub(crate) fn expect(&mut self, places: impl Iterator<Item = PlannedPlace>) {
        self.places.clear();
        self.places.extend(places);
    }

    /// Outputs are tensors of their own again.
    pub(crate) fn forget(&mut self) {
        self.places.clear();
    }

    fn take(&mut self, dtype: DType, shape: Shape) -> Option<Output> {
        let bytes = shape.elements() * dtype.size_bytes();
        let PlannedPlace { buffer, start, offset, .. } =
            self.places.front().filter(|place| place.len_bytes == bytes)?;
        let (first, address) = (offset / dtype.size_bytes(), *start + *offset);
        let buffer = Buffer::Device(buffer.clone());
        let tensor = Tensor::from_parts(dtype, shape, shape.contiguous_strides(), first, buffer).ok()?;
        self.places.pop_front();
        Some(Output { address, tensor })
    }
}

impl Context {
    /// The order in which the axes of the next output are to lie, where that is not the op's.
    pub(crate) fn output_order(&self) -> Option<Order> {
        self.planned.places.front().and_then(|place| place.order)
    }

    /// An output to be written in full.
    pub fn output(&mut self, dtype: DType, shape: Shape) -> Result<Output> {
        if let Some(output) = self.planned.take(dtype, shape) {
            return Ok(output);
        }
        let (buffer, address) = self.memory.tensor(shape.elements() * dtype.size_bytes())?;
        Ok(Output { address, tensor: Tensor::from_device(dtype, shape, buffer)? })
    }

    /// Keeps a tensor between two kernels of the op under way until it has finished.
    pub(crate) fn keep(&mut self, tensor: &Tensor) {
        self.queued.between.push(tensor.clone());
    }

    /// Memory that the op needs until it has finished; at least 256-byte aligned, arbitrary contents.
    pub fn scratch(&mut self, bytes: usize) -> Result<Address> {
        let block = self.memory.scratch(bytes)?;
        let address = block.block.0;
        self.queued.held.push(block);
        Ok(address)
    }

    /// Keeps memory until the op under way, and all before it, have finished.
    pub(crate) fn hold(&mut self, block: Block) {
        self.queued.held.push(block);
    }

    /// A tensor on the host with what is at this address when the compute stream gets here.
    pub fn download(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        if shape.elements() > 0 && !self.is_rehearsal() {
            self.await_kernels()?;
        }
        self.download_finished(source, dtype, shape)
    }

    /// A tensor on the host with what an op that has finished left at this address.
    pub(crate) fn download_finished(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        let bytes = shape.elements() * dtype.size_bytes();
        let mut target = self.staging.target(bytes)?;
        if bytes > 0 && !self.is_rehearsal() {
            // SAFETY: the buffer is not handed out before the op has finished.
            unsafe { self.download_into(target.bytes_mut().as_mut_ptr(), source, bytes)? };
        }
        Tensor::from_host(dtype, shape, target.freeze())
    }

    /// Lets copies to the host wait for the kernels that are queued.
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
    /// The target must hold so many bytes, and nobody may read it before the op under way has finished.
    pub(super) unsafe fn download_into(&mut self, target: *mut u8, source: Address, bytes: usize) -> Result<()> {
        self.begin_copies(Stream::Download)?;
        // SAFETY: the caller's to see to; the source was lent by this context.
        unsafe { self.driver.download(target, source, bytes, Stream::Download)? };
        self.end_copies(Stream::Download)?;
        self.queued.downloads = true;
        self.queued.bytes_moved += bytes as u64;
        Ok(())
    }
}
