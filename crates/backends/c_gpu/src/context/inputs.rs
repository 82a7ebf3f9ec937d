//! Brings tensors to the device.

use std::sync::Arc;

use panoply_core::{Buffer, DeviceBuffer, Error, Result, Tensor};

use super::Context;
use crate::driver::{Address, Event, Stream};
use crate::layout::{Layout, View};
use crate::staging::SMALL_BYTES_MAX;

impl Context {
    /// The address of a tensor's elements on the device, contiguous: in place, or copied there.
    pub fn input(&mut self, tensor: &Tensor) -> Result<Address> {
        let view = self.view(tensor)?;
        if tensor.is_contiguous() || !self.owns(tensor) {
            return Ok(view.address);
        }
        let target = self.scratch(tensor.len_bytes())?;
        self.copy_view(target, &view, tensor.dtype(), tensor.elements())?;
        Ok(target)
    }

    /// Whether a tensor lies on this device. Tensors from elsewhere become contiguous when they are
    /// copied.
    pub fn owns(&self, tensor: &Tensor) -> bool {
        matches!(tensor.buffer(), Buffer::Device(buffer) if buffer.device() == self.device)
    }

    /// A tensor's elements on the device with their layout. Tensors from elsewhere are contiguous.
    pub fn view(&mut self, tensor: &Tensor) -> Result<View> {
        match tensor.buffer() {
            Buffer::Device(buffer) if buffer.device() == self.device => {
                Ok(View::of_tensor(self.memory.address(buffer)?, tensor))
            }
            _ => {
                let address = match self.lent(tensor)? {
                    Some(address) => address,
                    None => {
                        let address = self.scratch(tensor.len_bytes())?;
                        self.place(address, tensor)?;
                        address
                    }
                };
                Ok(View { address, layout: Layout::new(tensor.shape(), &tensor.shape().contiguous_strides()) })
            }
        }
    }

    /// The address at which kernels read a contiguous host tensor in place, on devices that support
    /// it. The current op keeps the tensor's memory alive.
    pub(super) fn lent(&mut self, tensor: &Tensor) -> Result<Option<Address>> {
        if self.is_rehearsal() || !matches!(tensor.buffer(), Buffer::Host(_)) || !tensor.is_contiguous() {
            return Ok(None);
        }
        let bytes = tensor.as_bytes()?;
        // SAFETY: the clone below keeps the bytes alive and unchanged until the op has finished and
        // the address is given back.
        let address = unsafe { self.driver.lend(bytes.as_ptr(), bytes.len()) };
        if let Some(address) = address {
            self.queued.between.push(tensor.clone());
            self.queued.lent.push(address);
        }
        Ok(address)
    }

    /// Writes a tensor's elements, contiguous, into memory of this context.
    pub fn place(&mut self, target: Address, tensor: &Tensor) -> Result<()> {
        match tensor.buffer() {
            Buffer::Host(_) => {
                if let Some(byte) = repeated_byte(tensor) {
                    return self.fill(target, byte, tensor.len_bytes());
                }
                let contiguous = tensor.contiguous()?;
                self.upload(target, contiguous.as_bytes()?)?;
                if !tensor.is_contiguous() {
                    // The copy in flight reads from this temporary tensor, which the op does not
                    // hold.
                    self.keep(&contiguous);
                }
                Ok(())
            }
            Buffer::Device(buffer) => {
                let view = match self.owns(tensor) {
                    true => self.view(tensor)?,
                    false => self.view_of_peer(tensor, buffer)?,
                };
                if tensor.is_contiguous() {
                    return self.copy(target, view.address, tensor.len_bytes());
                }
                self.copy_view(target, &view, tensor.dtype(), tensor.elements())
            }
        }
    }

    /// Writes bytes, which `fill` creates in pinned memory, into memory of this context.
    pub(crate) fn place_filled(&mut self, target: Address, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut pinned = self.staging.target(bytes)?;
        fill(pinned.bytes_mut());
        self.upload(target, pinned.bytes_mut())?;
        self.queued.pinned.push(pinned);
        Ok(())
    }

    /// A tensor of another device, accessed in place; the current op keeps that device's memory
    /// alive.
    fn view_of_peer(&mut self, tensor: &Tensor, buffer: &DeviceBuffer) -> Result<View> {
        let found = self.peers.as_ref().and_then(|peers| peers.find(buffer));
        let (peer, start) = found.ok_or(Error::NotOnHost { device: buffer.device() })?;
        self.reached.retain(|reached| reached.strong_count() > 0);
        if !self.reached.iter().any(|reached| std::ptr::eq(reached.as_ptr(), Arc::as_ptr(&peer))) {
            self.driver.reach(&peer.context_handle)?;
            self.reached.push(Arc::downgrade(&peer));
        }
        self.queued.peers.push(peer);
        self.queued.bytes_moved += tensor.len_bytes() as u64;
        Ok(View::of_tensor(start, tensor))
    }

    /// Queues an upload. Small copies use the compute stream; large ones use a stream of their own,
    /// which the kernels wait for.
    pub(super) fn upload(&mut self, target: Address, bytes: &[u8]) -> Result<()> {
        self.queued.bytes_moved += bytes.len() as u64;
        if bytes.is_empty() || self.is_rehearsal() {
            return Ok(());
        }
        if bytes.len() <= SMALL_BYTES_MAX {
            // SAFETY: the target was allocated by this context; the op that holds the bytes is kept
            // until it has finished.
            return unsafe { self.driver.upload(target, bytes.as_ptr(), bytes.len(), Stream::Compute) };
        }
        self.begin_copies(Stream::Upload)?;
        self.staging.upload(target, bytes)?;
        let done = self.end_copies(Stream::Upload)?;
        self.driver.wait_for(Stream::Compute, done)
    }

    pub(super) fn begin_copies(&mut self, stream: Stream) -> Result<()> {
        if self.queued.copies.is_none() {
            let (start, stop) = (self.event()?, self.event()?);
            self.driver.record(start, stream)?;
            self.queued.copies = Some((start, stop));
        }
        Ok(())
    }

    pub(super) fn end_copies(&mut self, stream: Stream) -> Result<Event> {
        let stop = match self.queued.copies {
            Some((_, stop)) => stop,
            None => self.event()?,
        };
        self.driver.record(stop, stream)?;
        Ok(stop)
    }
}

/// The byte that all bytes of a host tensor are, if it is one element that is broadcast: such a
/// tensor, as of `Runtime::empty_on`, is not copied.
fn repeated_byte(tensor: &Tensor) -> Option<u8> {
    let is_one = tensor.shape().iter().zip(tensor.strides().iter()).all(|(size, stride)| *size == 1 || *stride == 0);
    if tensor.elements() < 2 || !is_one {
        return None;
    }
    let size = tensor.dtype().size_bytes();
    let element = tensor.host_bytes().ok()?.get(tensor.offset() * size..)?.get(..size)?;
    element.iter().all(|byte| *byte == element[0]).then_some(element[0])
}
