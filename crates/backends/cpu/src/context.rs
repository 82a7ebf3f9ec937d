//! The resources of a running op: threads, vector level, memory for outputs, and reusable
//! workspaces.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use panoply_core::buffer::HOST_ALIGN_BYTES;
use panoply_core::{CryptoProvider, DType, DeviceId, Element, Error, HostBufferMut, Result, Shape, Tensor, Value};
use panoply_graph::Order;

use crate::memory::{HostMemory, Pages};
use crate::simd::Simd;
use crate::states::States;
use crate::team::Team;
use crate::transpose::{StridedView, copy_strided_at};

/// Owned by the engine, lent to one op at a time.
pub(crate) struct Context {
    /// The threads of the node.
    pub(crate) team: Team,
    /// The vector instructions to use.
    pub(crate) simd: Simd,
    /// Memory for outputs.
    pub(crate) memory: HostMemory,
    /// The code that may process keys.
    pub(crate) provider: CryptoProvider,
    /// The device on which ops may leave objects. Only the engine's own context has it.
    pub(crate) own_device: Option<DeviceId>,
    /// The ops' own state.
    pub(crate) states: States,
    /// Memory for the outputs of a graph's steps, while a graph runs.
    pub(crate) arena: Option<Arena>,
    /// The memory order of the output's axes, while a graph step runs that prescribes one: the
    /// output then has the shape of its memory.
    pub(crate) order: Option<Order>,
}

impl Context {
    /// Drops the objects whose last handles are gone.
    pub(crate) fn collect(&mut self) {
        self.states.collect();
    }

    /// Resets what a graph has set for its steps, also after a step that panicked: the next op gets
    /// its own memory and axis order.
    pub(crate) fn leave_graph(&mut self) {
        self.arena = None;
        self.order = None;
    }

    /// A context over a team and memory.
    pub(crate) fn new(team: Team, simd: Simd, memory: HostMemory, provider: CryptoProvider) -> Context {
        Context { team, simd, memory, provider, own_device: None, states: States::default(), arena: None, order: None }
    }

    /// An output to be written in full; its contents are arbitrary until then.
    pub(crate) fn output<T: Element>(&mut self, shape: Shape) -> Result<Output<T>> {
        let bytes = shape.elements() * size_of::<T>();
        Ok(Output { buffer: self.take(bytes)?, shape, element: PhantomData })
    }

    /// An output of a type known only at run time, as bytes.
    pub(crate) fn output_bytes(&mut self, dtype: DType, shape: Shape) -> Result<OutputBytes> {
        let buffer = self.take(shape.elements() * dtype.size_bytes())?;
        Ok(OutputBytes { buffer, dtype, shape })
    }

    /// Memory for an output: its place in the arena if it has one, else from the pool.
    fn take(&mut self, bytes: usize) -> Result<HostBufferMut> {
        match self.arena.as_mut().and_then(|arena| arena.take(bytes)) {
            Some(buffer) => Ok(buffer),
            None => self.memory.take(bytes),
        }
    }

    /// The elements of a tensor in contiguous order: borrowed if the tensor is contiguous, else
    /// copied.
    pub(crate) fn contiguous<'a, T: Element>(&mut self, tensor: &'a Tensor) -> Result<Elements<'a, T>> {
        if tensor.is_contiguous() {
            return Ok(Elements::Borrowed(tensor.as_slice()?));
        }
        tensor.host_elements::<T>()?;
        // A view may be far larger than the memory behind it.
        let mut copy = self.memory.take(tensor.len_bytes())?;
        self.copy_view(tensor, copy.bytes_mut())?;
        Ok(Elements::Copied(copy))
    }

    /// Writes a view's elements contiguously.
    pub(crate) fn copy_view(&self, view: &Tensor, out: &mut [u8]) -> Result<()> {
        let strided = StridedView {
            bytes: view.host_bytes()?,
            element_bytes: view.dtype().size_bytes(),
            dims: view.shape(),
            strides: view.strides(),
            offset: view.offset(),
        };
        copy_strided_at(self.simd, &self.team, &strided, out)
            .map_err(|error| Error::invalid("view", "one that lies inside its buffer", error))
    }
}

/// One block for the outputs of a graph's steps, each at the offset that the graph's plan assigns.
///
/// 1. A step announces all of its outputs, in the order of its value's tensors: each with its
///    offset in the block, or without one if it has memory of its own.
/// 2. The op asks for memory by size. It gets the place of the next announced output of that size.
/// 3. After the step, each output is at its own place or outside the block. A tensor anywhere else
///    in the block is copied out of it: an op may ask for its outputs in another order, or for
///    scratch of the same size, or return an input.
/// 4. Nothing stays announced after a step, whether it failed or not: between steps no request gets
///    memory of the block, of any size.
pub(crate) struct Arena {
    pages: Arc<Pages>,
    /// The outputs of the current step, in order.
    announced: Vec<AnnouncedOutput>,
    /// Number of announced outputs that the op has asked for.
    asked: usize,
}

/// An output that a step is about to produce.
#[derive(Clone, Copy)]
pub(crate) struct AnnouncedOutput {
    /// Offset in the block; `None` if the output has memory of its own.
    pub(crate) offset: Option<usize>,
    pub(crate) len_bytes: usize,
}

impl Arena {
    pub(crate) fn new(pages: Arc<Pages>) -> Arena {
        Arena { pages, announced: Vec::new(), asked: 0 }
    }

    /// Size of the block in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// Announces the next step's outputs. No live tensor of the graph has bytes at their places.
    pub(crate) fn announce(&mut self, outputs: impl Iterator<Item = AnnouncedOutput>) {
        self.announced.clear();
        self.announced.extend(outputs);
        self.asked = 0;
    }

    /// The place of the next announced output, if it has one and is of this size.
    fn take(&mut self, bytes: usize) -> Option<HostBufferMut> {
        let next = *self.announced.get(self.asked).filter(|next| next.len_bytes == bytes)?;
        self.asked += 1;
        let offset = next.offset?;
        let end = offset.checked_add(bytes).filter(|end| *end <= self.pages.bytes())?;
        debug_assert!(end >= offset && offset.is_multiple_of(HOST_ALIGN_BYTES));
        // SAFETY: the place lies within the block.
        let start = unsafe { self.pages.start().add(offset) };
        // SAFETY: the block was zeroed when it was made, and the place is aligned. The plan gives
        // these bytes to one slot at a time; the tensors of the previous slot are gone.
        Some(unsafe { HostBufferMut::from_raw(start, bytes, Arc::clone(&self.pages) as Arc<dyn Any + Send + Sync>) })
    }

    /// Clears the announced outputs: memory requested before the next step is not taken from the
    /// block.
    pub(crate) fn forget(&mut self) {
        self.announced.clear();
        self.asked = 0;
    }

    /// Ends a step: copies every output that is in the block, but not at its own place, out of it.
    /// A failed step may have asked for none of its outputs; nothing of it stays announced.
    pub(crate) fn settle(&mut self, made: Result<Value>) -> Result<Value> {
        let settled = made.and_then(|value| self.copied_out(value));
        self.forget();
        settled
    }

    fn copied_out(&self, value: Value) -> Result<Value> {
        let block = self.pages.start().as_ptr() as usize;
        let block = block..block + self.pages.bytes();
        let mut announced = self.announced.iter();
        value.try_map(|tensor| {
            let own = announced.next().and_then(|output| Some(block.start + output.offset?));
            let start = tensor.host_bytes()?.as_ptr() as usize;
            if !block.contains(&start) || own == Some(start) {
                return Ok(tensor);
            }
            let mut copy = HostBufferMut::zeroed(tensor.len_bytes())?;
            copy.bytes_mut().copy_from_slice(tensor.contiguous()?.as_bytes()?);
            Tensor::from_host(tensor.dtype(), *tensor.shape(), copy.freeze())
        })
    }
}

/// The elements of a tensor in contiguous order.
pub(crate) enum Elements<'a, T> {
    /// In the tensor's own memory.
    Borrowed(&'a [T]),
    /// In memory of the engine.
    Copied(HostBufferMut),
}

impl<T: Element> Deref for Elements<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Elements::Borrowed(elements) => elements,
            Elements::Copied(buffer) => bytemuck::cast_slice(buffer.bytes()),
        }
    }
}

/// A typed output being written.
pub(crate) struct Output<T: Element> {
    buffer: HostBufferMut,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Element> Output<T> {
    /// Finishes the output.
    pub(crate) fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_host(T::DTYPE, self.shape, self.buffer.freeze())
    }
}

impl<T: Element> Deref for Output<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.buffer.bytes())
    }
}

impl<T: Element> DerefMut for Output<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }
}

/// An output of any element type being written as bytes.
pub(crate) struct OutputBytes {
    buffer: HostBufferMut,
    dtype: DType,
    shape: Shape,
}

impl OutputBytes {
    /// The bytes, to be written in full.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Finishes the output.
    pub(crate) fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_host(self.dtype, self.shape, self.buffer.freeze())
    }
}
