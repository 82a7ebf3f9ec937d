//! A call as a kernel's closure sees it: typed slices of the inputs and outputs, and the scalars.

use std::ops::Range;

use super::{Kernel, LaunchSize, Scalar};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The arguments of one call, for the closure that computes it. Arguments count from zero in the
/// order of the program's parameters. Slices live as long as the call, so inputs and several
/// outputs can be held at once.
pub struct KernelCall<'a> {
    kernel: &'a Kernel,
    inputs: &'a [Tensor],
    /// The outputs that have not been taken yet.
    outputs: Vec<Option<&'a mut [u8]>>,
    pieces: Range<usize>,
}

impl<'a> KernelCall<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        inputs: &'a [Tensor],
        outputs: Vec<&'a mut [u8]>,
        pieces: Range<usize>,
    ) -> KernelCall<'a> {
        KernelCall { kernel, inputs, outputs: outputs.into_iter().map(Some).collect(), pieces }
    }

    /// The pieces that this call computes, for a program in pieces. The call's output has the
    /// length of these pieces together.
    pub fn pieces(&self) -> Range<usize> {
        self.pieces.clone()
    }

    /// The elements of an input, in row-major order.
    pub fn input<T: Element>(&self, index: usize) -> Result<&'a [T]> {
        pick("kernel: input", self.inputs, index)?.as_slice()
    }

    /// For a program that reads rows
    /// ([`KernelBuilder::reads_rows`](super::KernelBuilder::reads_rows)): the elements of an input
    /// from the first row on, and the distance between the starts of two rows.
    pub fn rows<T: Element>(&self, index: usize) -> Result<(&'a [T], usize)> {
        let tensor = pick("kernel: input", self.inputs, index)?;
        let lies = self.kernel.program.row_len(index).and_then(|len| row_pitch(tensor, len));
        let missing = || Error::invalid("kernel: input", "rows of one length, at one distance", format!("{tensor:?}"));
        let pitch = lies.ok_or_else(missing)?;
        let all = tensor.host_elements::<T>()?;
        let outside = Error::OutOfBounds { what: "kernel: input", limit: all.len(), got: tensor.offset() };
        Ok((all.get(tensor.offset()..).ok_or(outside)?, pitch))
    }

    /// The shape of an input.
    pub fn input_shape(&self, index: usize) -> Result<&'a Shape> {
        pick("kernel: input", self.inputs, index).map(Tensor::shape)
    }

    /// A scalar.
    pub fn scalar<T: TryFrom<Scalar, Error = Error>>(&self, index: usize) -> Result<T> {
        (*pick("kernel: scalar", &self.kernel.scalars, index)?).try_into()
    }

    /// The shape of an output.
    pub fn output_shape(&self, index: usize) -> Result<&'a Shape> {
        pick("kernel: output", &self.kernel.outputs, index)
    }

    /// The elements of an output, initially zero. Each output can be taken only once.
    pub fn output<T: Element>(&mut self, index: usize) -> Result<&'a mut [T]> {
        let dtype = self.output_dtype(index)?;
        if dtype != T::DTYPE {
            return Err(Error::DTypeMismatch { what: "kernel: type of an output", expected: dtype, got: T::DTYPE });
        }
        let taken = || Error::invalid("kernel: output", "each output once", format!("output {index} again"));
        let bytes = self.outputs.get_mut(index).and_then(Option::take).ok_or_else(taken)?;
        let misaligned = |error| Error::invalid("kernel: memory of an output", format!("alignment for {dtype}"), error);
        bytemuck::try_cast_slice_mut(bytes).map_err(misaligned)
    }

    /// Writes all elements of an output. A wrong number of elements is refused and leaves the
    /// output unchanged.
    pub fn write<T: Element>(&mut self, index: usize, values: &[T]) -> Result<()> {
        let shape = self.output_shape(index)?;
        if values.len() != shape.elements() {
            let (expected, got) = (shape.to_vec(), vec![values.len()]);
            return Err(Error::ShapeMismatch { what: "kernel: elements of an output", expected, got });
        }
        self.output(index)?.copy_from_slice(values);
        Ok(())
    }

    /// The launch size, for closures that depend on it.
    pub fn launch(&self) -> &'a LaunchSize {
        &self.kernel.launch
    }

    fn output_dtype(&self, index: usize) -> Result<DType> {
        pick("kernel: output", self.kernel.program.outputs(), index).map(|output| output.dtype)
    }
}

/// The distance between the starts of rows of `len` elements. `None` if a row is not contiguous or
/// the distances differ.
pub(crate) fn row_pitch(tensor: &Tensor, len: usize) -> Option<usize> {
    let mut axes = tensor.shape().iter().zip(tensor.strides().iter()).rev().filter(|(size, _)| **size != 1).peekable();
    if tensor.is_contiguous() {
        return Some(len);
    }
    let mut step = 1;
    while let Some((size, stride)) = axes.next_if(|_| step < len) {
        if *stride != step as isize {
            return None;
        }
        step *= size;
    }
    let Some((size, first)) = axes.next() else { return (step == len).then_some(len) };
    let pitch = usize::try_from(*first).ok()?;
    let mut next = first.checked_mul(*size as isize)?;
    let is_even = axes.all(|(size, stride)| {
        let fits = *stride == next;
        next = next.saturating_mul(*size as isize);
        fits
    });
    (step == len && is_even).then_some(pitch)
}

fn pick<'a, T>(what: &'static str, all: &'a [T], index: usize) -> Result<&'a T> {
    all.get(index).ok_or(Error::OutOfBounds { what, limit: all.len().saturating_sub(1), got: index })
}
