//! What an op has at hand while it runs: threads, vector level, memory for outputs, and workspaces that stay warm.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use panoply_core::{DType, Element, HostBufferMut, Result, Shape, Tensor};

use crate::attention::Scratch;
use crate::conv::ConvWorkspace;
use crate::fft::FftWorkspace;
use crate::gemm::Workspace;
use crate::map::PlanCache;
use crate::memory::HostMemory;
use crate::ops::compute::transpose::copy_into;
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
    /// Plans and scratch of Fourier transforms.
    pub(crate) fft: FftWorkspace,
    /// Pack buffers of matrix products.
    pub(crate) gemm: Workspace,
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
            fft: FftWorkspace::default(),
            gemm: Workspace::new(),
        }
    }

    /// An output to be written in full; its contents are arbitrary until then.
    pub(crate) fn output<T: Element>(&mut self, shape: Shape) -> Result<Output<T>> {
        let bytes = shape.elements() * size_of::<T>();
        Ok(Output { buffer: self.memory.take(bytes)?, shape, element: PhantomData })
    }

    /// An output of a type known only at run time, as bytes.
    pub(crate) fn output_bytes(&mut self, dtype: DType, shape: Shape) -> Result<OutputBytes> {
        let buffer = self.memory.take(shape.elements() * dtype.size_bytes())?;
        Ok(OutputBytes { buffer, dtype, shape })
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
