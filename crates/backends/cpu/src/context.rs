//! What an op has at hand while it runs: threads, vector level, memory for outputs, and workspaces that stay warm.

use std::any::Any;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use panoply_core::buffer::HOST_ALIGN_BYTES;
use panoply_core::{DType, Element, HostBufferMut, Result, Shape, Tensor, Value};
use panoply_crypto::State;
use panoply_graph::Order;
use panoply_signal::Workspace as SignalWorkspace;

use crate::attention::Scratch;
use crate::conv::ConvWorkspace;
use crate::fft::FftWorkspace;
use crate::gemm::Workspace;
use crate::map::PlanCache;
use crate::memory::{HostMemory, Pages};
use crate::ops::compute::transpose::copy_into;
use crate::ops::{Graphs, Weights};
use crate::simd::Simd;
use crate::team::Team;

/// Owned by the engine, lent to one op at a time.
pub(crate) struct Context {
    /// The threads of the node.
    pub(crate) team: Team,
    /// The vector instructions to use.
    pub(crate) simd: Simd,
    /// Memory for outputs.
    pub(crate) memory: HostMemory,
    /// Compiled expressions.
    pub(crate) map_plans: PlanCache,
    /// Tiles of attention, of each thread.
    pub(crate) attention: Vec<Mutex<Scratch>>,
    /// Panels and packed weights of convolutions.
    pub(crate) conv: ConvWorkspace,
    /// Workspaces of compression.
    pub(crate) crypto: State,
    /// Plans and scratch of Fourier transforms.
    pub(crate) fft: FftWorkspace,
    /// Pack buffers of matrix products.
    pub(crate) gemm: Workspace,
    /// Compiled graphs.
    pub(crate) graphs: Graphs,
    /// Tables of codes, plans of filters, and streams.
    pub(crate) signal: SignalWorkspace,
    /// Weights that graphs multiply with.
    pub(crate) weights: Weights,
    /// Where the outputs of a graph's steps go, while one runs.
    pub(crate) arena: Option<Arena>,
    /// The order in which the axes of the output are to lie, while a step of a graph runs that has one: such an output has the shape of
    /// its memory.
    pub(crate) order: Option<Order>,
}

impl Context {
    /// A context over a team and memory.
    pub(crate) fn new(team: Team, simd: Simd, memory: HostMemory) -> Context {
        Context {
            team,
            simd,
            memory,
            map_plans: PlanCache::default(),
            attention: Vec::new(),
            conv: ConvWorkspace::new(),
            crypto: State::new(simd == Simd::Avx512),
            fft: FftWorkspace::default(),
            gemm: Workspace::new(),
            graphs: Graphs::default(),
            signal: SignalWorkspace::new(crate::ops::signal::level(simd)),
            weights: Weights::default(),
            arena: None,
            order: None,
        }
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

    /// Memory for an output: its place in the arena where it has one, else of the pool.
    fn take(&mut self, bytes: usize) -> Result<HostBufferMut> {
        match self.arena.as_mut().and_then(|arena| arena.take(bytes)) {
            Some(buffer) => Ok(buffer),
            None => self.memory.take(bytes),
        }
    }

    /// The elements of a tensor one after the other: borrowed where they lie so already, else copied.
    pub(crate) fn contiguous<'a, T: Element>(&mut self, tensor: &'a Tensor) -> Result<Elements<'a, T>> {
        if tensor.is_contiguous() {
            return Ok(Elements::Borrowed(tensor.as_slice()?));
        }
        tensor.host_elements::<T>()?;
        // A view may be far larger than the memory behind it.
        let mut copy = self.memory.take(tensor.len_bytes())?;
        copy_into(tensor, self, copy.bytes_mut())?;
        Ok(Elements::Copied(copy))
    }
}

/// One block that the steps of a graph write their outputs to, each at the place that the graph's plan gives it.
pub(crate) struct Arena {
    pages: Arc<Pages>,
    /// The places of the outputs of the step under way, in order: where, and how many bytes.
    expected: VecDeque<(usize, usize)>,
    /// Where those that were given out begin.
    given: Vec<usize>,
}

impl Arena {
    pub(crate) fn new(pages: Arc<Pages>) -> Arena {
        Arena { pages, expected: VecDeque::new(), given: Vec::new() }
    }

    /// How large it is.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// The next step's outputs belong at these places: bytes that no live tensor of the graph has.
    pub(crate) fn expect(&mut self, places: impl Iterator<Item = (usize, usize)>) {
        self.expected.clear();
        self.given.clear();
        self.expected.extend(places);
    }

    fn take(&mut self, bytes: usize) -> Option<HostBufferMut> {
        let (offset, _) = *self.expected.front().filter(|(_, expected)| *expected == bytes)?;
        self.expected.pop_front();
        let end = offset.checked_add(bytes).filter(|end| *end <= self.pages.bytes())?;
        debug_assert!(end >= offset && offset.is_multiple_of(HOST_ALIGN_BYTES));
        // SAFETY: the place lies within the block.
        let start = unsafe { self.pages.start().add(offset) };
        self.given.push(start.as_ptr() as usize);
        // SAFETY: the bytes were zeroed when the block was made, begin on a multiple of the alignment, and the plan gives
        // them to one slot at a time; the tensors of the one before are gone.
        Some(unsafe { HostBufferMut::from_raw(start, bytes, Arc::clone(&self.pages) as Arc<dyn Any + Send + Sync>) })
    }

    /// The step is over. An output that is a view of an input, whose bytes others will use, is copied.
    pub(crate) fn settle(&mut self, value: Value) -> Result<Value> {
        let block = self.pages.start().as_ptr() as usize;
        let block = block..block + self.pages.bytes();
        self.expected.clear();
        value.try_map(|tensor| {
            let start = tensor.host_bytes()?.as_ptr() as usize;
            if !block.contains(&start) || self.given.contains(&start) {
                return Ok(tensor);
            }
            let mut copy = HostBufferMut::zeroed(tensor.len_bytes())?;
            copy.bytes_mut().copy_from_slice(tensor.contiguous()?.as_bytes()?);
            Tensor::from_host(tensor.dtype(), *tensor.shape(), copy.freeze())
        })
    }
}

/// The elements of a tensor one after the other.
pub(crate) enum Elements<'a, T> {
    /// Where the tensor has them.
    Borrowed(&'a [T]),
    /// In memory of the engine's.
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
    /// Ends the writing.
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

    /// Ends the writing.
    pub(crate) fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_host(self.dtype, self.shape, self.buffer.freeze())
    }
}
