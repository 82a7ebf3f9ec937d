//! Tensors: an element type, a shape, strides and a buffer.

use std::fmt;
use std::ops::Range;

use crate::buffer::{Buffer, DeviceBuffer, HostBuffer, HostBufferMut, out_of_memory};
pub use crate::device_id::Location;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::{Reach, Shape, Strides, TENSOR_BYTES_MAX};

/// A view of elements in a buffer. Clones, slices, transposes and broadcasts share the buffer, and
/// the elements are immutable. Every constructor proves that all elements lie inside the buffer.
#[derive(Clone)]
pub struct Tensor {
    buffer: Buffer,
    offset: usize,
    shape: Shape,
    strides: Strides,
    dtype: DType,
}

impl Tensor {
    /// Takes over the vector's memory, without a copy.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        Tensor::from_owner::<T, _>(values, shape)
    }

    /// Copies the values into a new tensor.
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape)?;
        expect_elements(&shape, values.len())?;
        let mut buffer = HostBufferMut::zeroed(size_of_val(values))?;
        buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        Tensor::from_host(T::DTYPE, shape, buffer.freeze())
    }

    /// Views memory that the caller owns (an `Arc<[T]>`, a memory map), without a copy. The owner
    /// is kept until the last view is dropped.
    pub fn from_owner<T, O>(owner: O, shape: impl AsRef<[usize]>) -> Result<Tensor>
    where
        T: Element,
        O: AsRef<[T]> + Send + Sync + 'static,
    {
        let shape = Shape::new(shape)?;
        let buffer = HostBuffer::from_owner::<T, O>(owner);
        expect_elements(&shape, buffer.bytes().len() / size_of::<T>())?;
        Tensor::from_host(T::DTYPE, shape, buffer)
    }

    /// A tensor of rank zero with one element.
    pub fn scalar<T: Element>(value: T) -> Result<Tensor> {
        Tensor::from_slice(&[value], [])
    }

    /// A tensor of zeroes.
    pub fn zeros(dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape)?;
        let bytes = shape.elements() * dtype.size_bytes();
        Tensor::from_host(dtype, shape, HostBufferMut::zeroed(bytes)?.freeze())
    }

    /// A contiguous tensor at the start of a host buffer.
    pub fn from_host(dtype: DType, shape: Shape, buffer: HostBuffer) -> Result<Tensor> {
        Tensor::from_parts(dtype, shape, shape.contiguous_strides(), 0, Buffer::Host(buffer))
    }

    /// A contiguous tensor at the start of a device buffer.
    pub fn from_device(dtype: DType, shape: Shape, buffer: DeviceBuffer) -> Result<Tensor> {
        Tensor::from_parts(dtype, shape, shape.contiguous_strides(), 0, Buffer::Device(buffer))
    }

    /// Makes any view of any buffer. `offset` and the strides count elements. Fails if an element
    /// would lie outside the buffer, or if host memory is not aligned for the element type.
    pub fn from_parts(dtype: DType, shape: Shape, strides: Strides, offset: usize, buffer: Buffer) -> Result<Tensor> {
        if strides.len() != shape.rank() {
            let expected = shape.rank().to_string().into();
            return Err(Error::RankMismatch { what: "strides", expected, got: strides.len() });
        }
        let available = buffer.len_bytes() / dtype.size_bytes();
        let overflow = || Error::SizeOverflow { what: "strides", got: shape.to_vec(), limit: TENSOR_BYTES_MAX };
        match strides.reach(&shape) {
            Reach::Nothing => {}
            Reach::Overflow => return Err(overflow()),
            Reach::Between(low, high) => {
                let offset_signed = isize::try_from(offset).map_err(|_| overflow())?;
                let first = offset_signed.checked_add(low).ok_or_else(overflow)?;
                let last = offset_signed.checked_add(high).ok_or_else(overflow)?;
                if first < 0 || last as usize >= available {
                    let got = if first < 0 { first.unsigned_abs() } else { last as usize };
                    let limit = available.saturating_sub(1);
                    return Err(Error::OutOfBounds { what: "the last element of the view", limit, got });
                }
            }
        }
        if let Buffer::Host(host) = &buffer
            && !(host.bytes().as_ptr() as usize).is_multiple_of(dtype.align_bytes())
        {
            let address = host.bytes().as_ptr() as usize;
            return Err(Error::invalid("host memory", format!("alignment for {dtype}"), format!("{address:#x}")));
        }
        Ok(Tensor { buffer, offset, shape, strides, dtype })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &Strides {
        &self.strides
    }

    /// Index in the buffer of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The buffer that contains the elements.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Number of bytes of the elements without gaps.
    pub fn len_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    /// Location of the elements.
    pub fn location(&self) -> Location {
        self.buffer.location()
    }

    /// Whether the elements are adjacent in memory, in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.elements() == 0
            || self.shape.iter().zip(self.strides.iter()).rev().all(|(dim, stride)| {
                let fits = *dim == 1 || *stride == step;
                step *= *dim as isize;
                fits
            })
    }

    /// The elements as a slice. Fails if they are not contiguous.
    ///
    /// The first read of a tensor on a device waits until the runtime has copied the elements to
    /// the host, for a bounded time. The copy is kept with the tensor's memory, so that later reads
    /// are free; the tensor itself stays where it is. Async code, which must not block, runs
    /// `Transfer::to_host` instead, or its op with `RunOptions::to_host`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.expect_dtype::<T>()?;
        self.cast(self.as_bytes()?)
    }

    /// The elements for writing. Fails if they are not contiguous, not on the host, or shared with
    /// another tensor or an op in flight.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect_dtype::<T>()?;
        self.expect_contiguous()?;
        let (range, location) = (self.contiguous_range(), self.location());
        let Buffer::Host(host) = &mut self.buffer else {
            return Err(Error::invalid("tensor to write", "one in the host's memory", location));
        };
        let shared = || Error::invalid("tensor to write", "memory that nothing else holds", "shared or lent memory");
        let bytes = &mut host.get_mut().ok_or_else(shared)?[range];
        bytemuck::try_cast_slice_mut(bytes)
            .map_err(|error| Error::invalid("host memory", format!("alignment for {}", self.dtype), error))
    }

    /// Copies the elements in row-major order. Elements on a device are fetched first, as by
    /// [`Tensor::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_dtype::<T>()?;
        let mut values = Vec::new();
        values.try_reserve_exact(self.elements()).map_err(|_| out_of_memory(self.len_bytes()))?;
        if self.is_contiguous() {
            values.extend_from_slice(self.as_slice()?);
        } else {
            let (bytes, start) = self.readable_bytes()?;
            let (all, first) = (self.cast::<T>(bytes)?, start / size_of::<T>());
            values.extend(self.indices().map(|index| all[index - first]));
        }
        Ok(values)
    }

    /// The same elements without gaps. A contiguous tensor is returned as is; any other tensor is
    /// copied to the host's memory, from a device as by [`Tensor::as_slice`]. The copy of a secret
    /// tensor is secret.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        let size = self.dtype.size_bytes();
        let (source, start) = self.readable_bytes()?;
        let make = if self.buffer.is_secret() { HostBufferMut::secret } else { HostBufferMut::zeroed };
        let mut target = make(self.len_bytes())?;
        for (index, element) in self.indices().zip(target.bytes_mut().chunks_exact_mut(size)) {
            element.copy_from_slice(&source[index * size - start..][..size]);
        }
        Tensor::from_host(self.dtype, self.shape, target.freeze())
    }

    /// The elements as bytes. Fails if they are not contiguous. Elements on a device are fetched
    /// first, as by [`Tensor::as_slice`].
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.expect_contiguous()?;
        match &self.buffer {
            Buffer::Host(host) => Ok(&host.bytes()[self.contiguous_range()]),
            Buffer::Device(_) if self.elements() == 0 => Ok(&[]),
            Buffer::Device(device) => device.read(self),
        }
    }

    /// The whole host buffer of this view, as elements. Views index it with `offset` and `strides`.
    /// Fails, and never waits, if the tensor is on a device.
    pub fn host_elements<T: Element>(&self) -> Result<&[T]> {
        self.expect_dtype::<T>()?;
        self.cast(self.host_bytes()?)
    }

    /// The whole host buffer of this view, as bytes. Fails, and never waits, if the tensor is on a
    /// device.
    pub fn host_bytes(&self) -> Result<&[u8]> {
        match &self.buffer {
            Buffer::Host(host) => Ok(host.bytes()),
            Buffer::Device(device) => Err(Error::NotOnHost { device: device.device() }),
        }
    }

    /// Bytes that contain all elements, and the offset of the first of these bytes in the buffer,
    /// which is a multiple of the element's size. Elements on a device are fetched.
    fn readable_bytes(&self) -> Result<(&[u8], usize)> {
        match &self.buffer {
            Buffer::Host(host) => Ok((host.bytes(), 0)),
            Buffer::Device(device) => Ok((device.read(self)?, self.span_bytes().start)),
        }
    }

    /// The range of the buffer that contains the elements of a contiguous tensor.
    fn contiguous_range(&self) -> Range<usize> {
        let start = if self.elements() == 0 { 0 } else { self.offset * self.dtype.size_bytes() };
        start..start + self.len_bytes()
    }

    /// The bytes of the buffer from the first element in memory to the last. The tensor must have
    /// elements.
    pub(crate) fn span_bytes(&self) -> Range<usize> {
        let (low, high) = match self.strides.reach(&self.shape) {
            Reach::Between(low, high) => (low, high),
            // The constructors refuse such strides.
            Reach::Nothing | Reach::Overflow => (0, 0),
        };
        let place = |step: isize| self.offset.saturating_add_signed(step) * self.dtype.size_bytes();
        place(low)..place(high) + self.dtype.size_bytes()
    }

    /// The elements of the buffer from the first of this tensor to the last, without the order and
    /// the gaps of this tensor.
    pub(crate) fn span(&self) -> Result<Tensor> {
        let (span, size) = (self.span_bytes(), self.dtype.size_bytes());
        let shape = Shape::new([span.len() / size])?;
        Tensor::from_parts(self.dtype, shape, shape.contiguous_strides(), span.start / size, self.buffer.clone())
    }

    fn expect_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { what: "element type of the slice", expected: self.dtype, got: T::DTYPE })
    }

    fn expect_contiguous(&self) -> Result<()> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(Error::NotContiguous { shape: self.shape.to_vec(), strides: self.strides.to_vec() })
    }

    /// Bytes of this tensor's buffer as elements. Bytes after the last whole element are left out.
    fn cast<'a, T: Element>(&self, bytes: &'a [u8]) -> Result<&'a [T]> {
        if bytes.is_empty() {
            // They may begin anywhere.
            return Ok(&[]);
        }
        let whole = bytes.len() - bytes.len() % size_of::<T>();
        bytemuck::try_cast_slice(&bytes[..whole])
            .map_err(|error| Error::invalid("host memory", format!("alignment for {}", self.dtype), error))
    }

    /// The index in the buffer of each element, in row-major order.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        let mut position = [0_usize; crate::shape::RANK_MAX];
        let mut current = self.offset as isize;
        (0..self.elements()).map(move |_| {
            let here = current as usize;
            for axis in (0..self.shape.rank()).rev() {
                position[axis] += 1;
                // A step past the end of the axis is taken back. Strides of an axis of length 1 may
                // have any value, so the arithmetic wraps.
                current = current.wrapping_add(self.strides[axis]);
                if position[axis] < self.shape[axis] {
                    break;
                }
                current = current.wrapping_sub(self.strides[axis].wrapping_mul(self.shape[axis] as isize));
                position[axis] = 0;
            }
            here
        })
    }
}

/// Views: the same buffer in another arrangement.
impl Tensor {
    /// Gives the same elements another shape. The tensor must be contiguous.
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape)?;
        if shape.elements() != self.elements() {
            let (expected, got) = (self.shape.to_vec(), shape.to_vec());
            return Err(Error::ShapeMismatch { what: "reshape", expected, got });
        }
        if !self.is_contiguous() {
            let (shape, strides) = (self.shape.to_vec(), self.strides.to_vec());
            return Err(Error::NotContiguous { shape, strides });
        }
        Ok(Tensor { shape, strides: shape.contiguous_strides(), ..self.clone() })
    }

    /// Reorders the axes: `order[i]` is the old axis that becomes axis `i`.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        let rank = self.shape.rank();
        let mut seen = [false; crate::shape::RANK_MAX];
        let valid =
            order.len() == rank && order.iter().all(|axis| *axis < rank && !std::mem::replace(&mut seen[*axis], true));
        if !valid {
            return Err(Error::invalid("permute", format!("each axis below {rank} once"), format!("{order:?}")));
        }
        let dims: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let steps: Vec<isize> = order.iter().map(|axis| self.strides[*axis]).collect();
        Ok(Tensor { shape: Shape::new(dims)?, strides: Strides::new(steps)?, ..self.clone() })
    }

    /// Exchanges the last two axes.
    pub fn transpose(&self) -> Result<Tensor> {
        let rank = self.shape.rank();
        if rank < 2 {
            return Err(Error::RankMismatch { what: "transpose", expected: "at least 2".into(), got: rank });
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.permute(&order)
    }

    /// Keeps the indices `start`, `start + 1`, … below `end` of one axis.
    pub fn slice(&self, axis: usize, start: usize, end: usize) -> Result<Tensor> {
        self.slice_step(axis, start, end, 1)
    }

    /// Keeps every `step`-th index from `start` below `end` of one axis.
    pub fn slice_step(&self, axis: usize, start: usize, end: usize, step: usize) -> Result<Tensor> {
        let dim = *self.shape.get(axis).ok_or(Error::OutOfBounds {
            what: "axis",
            limit: self.shape.rank().saturating_sub(1),
            got: axis,
        })?;
        if end > dim {
            return Err(Error::OutOfBounds { what: "end of the slice", limit: dim, got: end });
        }
        if start > end || step == 0 {
            let got = format!("{start}..{end} in steps of {step}");
            return Err(Error::invalid("slice", "start ≤ end and a step of at least 1", got));
        }
        let shape = self.shape.with_dim(axis, (end - start).div_ceil(step))?;
        let mut steps = self.strides.to_vec();
        let moved = if shape.elements() == 0 { 0 } else { start as isize * steps[axis] };
        let step = isize::try_from(step).unwrap_or(isize::MAX);
        steps[axis] = if shape[axis] > 1 { steps[axis].saturating_mul(step) } else { steps[axis] };
        let offset = self.offset.saturating_add_signed(moved);
        Tensor::from_parts(self.dtype, shape, Strides::new(steps)?, offset, self.buffer.clone())
    }

    /// Stretches dimensions of one to the given shape, as numpy's broadcasting does, without a
    /// copy.
    pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape)?;
        let mismatch =
            || Error::ShapeMismatch { what: "broadcast_to", expected: shape.to_vec(), got: self.shape.to_vec() };
        let added = shape.rank().checked_sub(self.shape.rank()).ok_or_else(mismatch)?;
        let mut steps = [0_isize; crate::shape::RANK_MAX];
        for (axis, (dim, stride)) in self.shape.iter().zip(self.strides.iter()).enumerate() {
            let wanted = shape[axis + added];
            steps[axis + added] = match *dim {
                same if same == wanted => *stride,
                1 => 0,
                _ => return Err(mismatch()),
            };
        }
        Ok(Tensor { shape, strides: Strides::new(&steps[..shape.rank()])?, ..self.clone() })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype, self.shape, self.location())
    }
}

fn expect_elements(shape: &Shape, got: usize) -> Result<()> {
    if shape.elements() != got {
        return Err(Error::ShapeMismatch { what: "values for the shape", expected: shape.to_vec(), got: vec![got] });
    }
    Ok(())
}

#[cfg(test)]
#[path = "tensor_tests.rs"]
mod tests;
