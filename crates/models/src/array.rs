//! Arrays: tensors on the host, of any ONNX element type. An array of an element type that devices
//! also have becomes a [`Tensor`] without a copy.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};
use panoply_core::buffer::{HostBuffer, HostBufferMut};
use panoply_core::{Shape, Tensor};

use crate::bounds::{ARRAY_BYTES_MAX, TEXT_BYTES_MAX, TEXTS_MAX, bound};
pub(crate) use crate::bounds::{count_of, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::narrow;

/// Elements of one type in a shape, in row-major order, on the host. Arrays are immutable; cloning
/// shares the elements.
#[derive(Clone)]
pub struct Array {
    kind: ElementType,
    dims: Arc<[usize]>,
    data: Data,
}

#[derive(Clone)]
enum Data {
    Bytes { buffer: HostBuffer, start: usize },
    Strings(Arc<[String]>),
}

/// A Rust type of array elements.
pub trait Scalar: bytemuck::Pod + Send + Sync {
    /// The corresponding element type.
    const KIND: ElementType;
}

macro_rules! scalars {
    ($($rust:ty => $kind:ident),*) => {
        $(impl Scalar for $rust { const KIND: ElementType = ElementType::$kind; })*
    };
}
scalars!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32,
    i64 => I64, u64 => U64);

impl Array {
    /// An array of these values.
    pub fn from_slice<T: Scalar>(values: &[T], dims: impl AsRef<[usize]>) -> Result<Array> {
        Array::from_bytes(T::KIND, dims, bytemuck::cast_slice(values))
    }

    /// An array of the elements with these bytes.
    pub fn from_bytes(kind: ElementType, dims: impl AsRef<[usize]>, bytes: &[u8]) -> Result<Array> {
        let expected = bytes_of(kind, dims.as_ref())?;
        if bytes.len() != expected {
            return Err(Error::invalid("the elements of an array", format!("{expected} bytes"), bytes.len()));
        }
        Array::build(kind, dims, |target| {
            target.copy_from_slice(bytes);
            tidy(kind, target);
        })
    }

    /// An array whose bytes start as zeros and are then written by `write`.
    pub(crate) fn build(kind: ElementType, dims: impl AsRef<[usize]>, write: impl FnOnce(&mut [u8])) -> Result<Array> {
        let dims = dims.as_ref();
        if kind == ElementType::String {
            return Err(Error::invalid("an element type", "numbers", kind));
        }
        let mut buffer = HostBufferMut::zeroed(bytes_of(kind, dims)?)?;
        write(buffer.bytes_mut());
        Ok(Array { kind, dims: dims.into(), data: Data::Bytes { buffer: buffer.freeze(), start: 0 } })
    }

    /// An array of numbers that uses all bytes of a buffer.
    pub fn from_buffer(kind: ElementType, dims: &[usize], buffer: HostBuffer) -> Result<Array> {
        let (expected, got) = (bytes_of(kind, dims)?, buffer.bytes().len());
        match kind != ElementType::String && got == expected {
            true => Ok(Array { kind, dims: dims.into(), data: Data::Bytes { buffer, start: 0 } }),
            false => Err(Error::invalid("the elements of an array", format!("{expected} bytes"), got)),
        }
    }

    /// An array of text.
    pub fn from_strings(values: Vec<String>, dims: impl AsRef<[usize]>) -> Result<Array> {
        let dims = dims.as_ref();
        match count_of(dims)? {
            count if count == values.len() => {
                Ok(Array { kind: ElementType::String, dims: dims.into(), data: Data::Strings(values.into()) })
            }
            count => Err(Error::invalid("the elements of an array", count.to_string(), values.len())),
        }
    }

    /// An array of copies of texts. Refused if the texts are too many or too long in total.
    pub(crate) fn from_texts<'a>(texts: impl Iterator<Item = &'a String>, dims: &[usize]) -> Result<Array> {
        let count = count_of(dims)?;
        if count > bound(TEXTS_MAX) {
            return Err(Error::Limit { what: "the texts of an array", limit: TEXTS_MAX as u64, got: count as u64 });
        }
        let (mut copies, mut bytes) = (Vec::with_capacity(count), 0_usize);
        for text in texts.take(count) {
            bytes += text.len();
            if bytes > bound(TEXT_BYTES_MAX) {
                let (what, limit) = ("the bytes of an array's texts", TEXT_BYTES_MAX as u64);
                return Err(Error::Limit { what, limit, got: bytes as u64 });
            }
            copies.push(text.clone());
        }
        Array::from_strings(copies, dims)
    }

    /// A tensor's elements. They are not copied if the tensor is contiguous. The tensor must be on
    /// the host.
    pub fn from_tensor(tensor: &Tensor) -> Result<Array> {
        Array::from_carrier(tensor, tensor.dtype().into())
    }

    /// A tensor's elements as `kind`. The tensor has the carrier type of `kind` (see
    /// [`ElementType::carrier`]) or a type of fewer bits.
    pub(crate) fn from_carrier(tensor: &Tensor, kind: ElementType) -> Result<Array> {
        let tensor = tensor.contiguous()?;
        let bytes = tensor.as_bytes()?;
        if kind.carrier() != Some(tensor.dtype()) {
            let held = Array::from_tensor(&tensor)?;
            return Array::from_integers(kind, tensor.shape(), &held.to_integers()?);
        }
        let panoply_core::Buffer::Host(buffer) = tensor.buffer() else {
            return Array::from_bytes(kind, tensor.shape(), bytes);
        };
        let start = bytes.as_ptr() as usize - buffer.bytes().as_ptr() as usize;
        let start = if bytes.is_empty() { 0 } else { start };
        Ok(Array { kind, dims: tensor.shape().dims().into(), data: Data::Bytes { buffer: buffer.clone(), start } })
    }

    /// The same elements as a tensor, without a copy, if devices have the element type. Booleans
    /// become bytes.
    pub fn tensor(&self) -> Result<Tensor> {
        let dtype = self.kind.carrier();
        let dtype = dtype.ok_or_else(|| Error::unsupported(format!("{} elements on a device", self.kind)))?;
        let Data::Bytes { buffer, start } = &self.data else { return Err(Error::unsupported("text on a device")) };
        let shape = Shape::new(&self.dims)?;
        let offset = if self.is_empty() { 0 } else { start / dtype.size_bytes() };
        let buffer = panoply_core::Buffer::Host(buffer.clone());
        Ok(Tensor::from_parts(dtype, shape, shape.contiguous_strides(), offset, buffer)?)
    }

    /// The element type.
    pub fn kind(&self) -> ElementType {
        self.kind
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the elements take.
    pub fn size_bytes(&self) -> u64 {
        match &self.data {
            Data::Bytes { .. } => (self.len() * self.kind.size_bytes()) as u64,
            Data::Strings(texts) => texts.iter().map(|text| (text.len() + size_of::<String>()) as u64).sum(),
        }
    }

    /// The elements as bytes. Empty for text.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Bytes { buffer, start } => &buffer.bytes()[*start..*start + self.len() * self.kind.size_bytes()],
            Data::Strings(_) => &[],
        }
    }

    /// The elements. Fails if they are not of type `T`.
    pub fn as_slice<T: Scalar>(&self) -> Result<&[T]> {
        if T::KIND != self.kind {
            return Err(Error::invalid("an element type", T::KIND.name(), self.kind));
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|error| Error::invalid("an array", "aligned memory", error))
    }

    /// The elements. Fails if they are not text.
    pub fn as_strings(&self) -> Result<&[String]> {
        match &self.data {
            Data::Strings(strings) => Ok(strings),
            Data::Bytes { .. } => Err(Error::invalid("an element type", "string", self.kind)),
        }
    }

    /// The same elements in another shape.
    pub fn reshape(&self, dims: impl AsRef<[usize]>) -> Result<Array> {
        let dims = dims.as_ref();
        if count_of(dims)? != self.len() {
            return Err(Error::invalid("a shape", format!("{} elements", self.len()), format!("{dims:?}")));
        }
        Ok(Array { dims: dims.into(), ..self.clone() })
    }

    /// The same bytes as elements of another type of equal width.
    pub(crate) fn reinterpret(&self, kind: ElementType) -> Array {
        debug_assert_eq!(self.kind.size_bytes(), kind.size_bytes());
        Array { kind, ..self.clone() }
    }
}

/// Conversions between elements and numbers.
impl Array {
    /// Every element as an `f64`. Integers beyond 53 bits are rounded.
    pub fn to_floats(&self) -> Result<Vec<f64>> {
        use ElementType::*;
        self.expect_widened()?;
        Ok(match self.kind {
            F32 => self.as_slice::<f32>()?.iter().map(|value| f64::from(*value)).collect(),
            F64 => self.as_slice::<f64>()?.to_vec(),
            F16 => self.as_slice::<f16>()?.iter().map(|value| value.to_f64()).collect(),
            BF16 => self.as_slice::<bf16>()?.iter().map(|value| value.to_f64()).collect(),
            I8 => self.as_slice::<i8>()?.iter().map(|value| f64::from(*value)).collect(),
            U8 => self.as_slice::<u8>()?.iter().map(|value| f64::from(*value)).collect(),
            I32 => self.as_slice::<i32>()?.iter().map(|value| f64::from(*value)).collect(),
            kind if kind.is_float() => self.bytes().iter().map(|code| f64::from(narrow::decode(kind, *code))).collect(),
            _ => self.to_integers()?.into_iter().map(|value| value as f64).collect(),
        })
    }

    /// Every element as an integer; booleans are 0 or 1. Fails for floats and text.
    pub fn to_integers(&self) -> Result<Vec<i128>> {
        use ElementType::*;
        self.expect_widened()?;
        fn widen<T: Scalar + Into<i128>>(array: &Array) -> Result<Vec<i128>> {
            Ok(array.as_slice::<T>()?.iter().map(|value| (*value).into()).collect())
        }
        match self.kind {
            I64 => widen::<i64>(self),
            I32 => widen::<i32>(self),
            I16 => widen::<i16>(self),
            I8 => widen::<i8>(self),
            U64 => widen::<u64>(self),
            U32 => widen::<u32>(self),
            U16 => widen::<u16>(self),
            U8 => widen::<u8>(self),
            Bool | U4 | U2 => Ok(self.bytes().iter().map(|value| i128::from(*value)).collect()),
            I4 | I2 => Ok(self.bytes().iter().map(|value| i128::from(*value as i8)).collect()),
            kind => Err(Error::invalid("an element type", "an integer", kind)),
        }
    }

    /// Refuses arrays whose elements would take too much memory when widened to 64 or 128 bits.
    fn expect_widened(&self) -> Result<()> {
        host_count(&self.dims).map(drop)
    }

    /// Every element as an `i64`. Fails if one does not fit.
    pub fn to_i64s(&self) -> Result<Vec<i64>> {
        if self.kind == ElementType::I64 {
            self.expect_widened()?;
            return self.as_slice::<i64>().map(<[i64]>::to_vec);
        }
        let narrow = |value: i128| i64::try_from(value).map_err(|_| Error::invalid("an integer", "64 bits", value));
        self.to_integers()?.into_iter().map(narrow).collect()
    }

    /// Floats as elements of `kind`: rounded for floats, truncated and saturated for integers,
    /// non-zero is true for booleans.
    pub(crate) fn from_floats(kind: ElementType, dims: impl AsRef<[usize]>, values: &[f64]) -> Result<Array> {
        use ElementType::*;
        let dims = dims.as_ref();
        expect_count(dims, values.len())?;
        match kind {
            F32 => fill::<f32>(kind, dims, values.iter().map(|value| *value as f32)),
            F64 => fill::<f64>(kind, dims, values.iter().copied()),
            F16 => fill::<f16>(kind, dims, values.iter().map(|value| f16::from_f64(*value))),
            BF16 => fill::<bf16>(kind, dims, values.iter().map(|value| bf16::from_f64(*value))),
            Bool => fill::<u8>(kind, dims, values.iter().map(|value| u8::from(*value != 0.0))),
            kind if kind.is_float() => {
                fill::<u8>(kind, dims, values.iter().map(|value| narrow::encode(kind, *value as f32, true)))
            }
            String => Err(Error::invalid("an element type", "numbers", kind)),
            _ => {
                let (low, high) = kind.range();
                let whole = |value: &f64| (*value as i128).clamp(low, high);
                Array::from_integers(kind, dims, &values.iter().map(whole).collect::<Vec<_>>())
            }
        }
    }

    /// Integers as elements of `kind`: wrapped for integers, rounded for floats, non-zero is true
    /// for booleans.
    pub(crate) fn from_integers(kind: ElementType, dims: impl AsRef<[usize]>, values: &[i128]) -> Result<Array> {
        use ElementType::*;
        let dims = dims.as_ref();
        expect_count(dims, values.len())?;
        let wrapped = || values.iter().map(|value| kind.wrap(*value));
        match kind {
            I64 => fill::<i64>(kind, dims, wrapped().map(|value| value as i64)),
            U64 => fill::<u64>(kind, dims, wrapped().map(|value| value as u64)),
            I32 => fill::<i32>(kind, dims, wrapped().map(|value| value as i32)),
            U32 => fill::<u32>(kind, dims, wrapped().map(|value| value as u32)),
            I16 => fill::<i16>(kind, dims, wrapped().map(|value| value as i16)),
            U16 => fill::<u16>(kind, dims, wrapped().map(|value| value as u16)),
            I8 | I4 | I2 => fill::<i8>(kind, dims, wrapped().map(|value| value as i8)),
            U8 | U4 | U2 | Bool => fill::<u8>(kind, dims, wrapped().map(|value| value as u8)),
            String => Err(Error::invalid("an element type", "numbers", kind)),
            _ => Array::from_floats(kind, dims, &values.iter().map(|value| *value as f64).collect::<Vec<_>>()),
        }
    }

    /// An array of 64-bit integers.
    pub(crate) fn from_i64s(values: impl IntoIterator<Item = i64>, dims: impl AsRef<[usize]>) -> Result<Array> {
        let values: Vec<i64> = values.into_iter().collect();
        Array::from_slice(&values, dims)
    }

    /// An array of booleans.
    pub(crate) fn from_bools(values: &[bool], dims: impl AsRef<[usize]>) -> Result<Array> {
        let bytes: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
        Array::from_bytes(ElementType::Bool, dims, &bytes)
    }
}

fn fill<T: bytemuck::Pod>(kind: ElementType, dims: &[usize], values: impl Iterator<Item = T>) -> Result<Array> {
    Array::build(kind, dims, |bytes| {
        for (target, value) in bytes.chunks_exact_mut(size_of::<T>()).zip(values) {
            target.copy_from_slice(bytemuck::bytes_of(&value));
        }
    })
}

/// Normalises the bytes of elements: booleans become 0 or 1, and types below 8 bits keep only their
/// own bits.
fn tidy(kind: ElementType, bytes: &mut [u8]) {
    let mask = match kind {
        ElementType::Bool => return bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0)),
        kind if kind.bits() < 8 => (1_u8 << kind.bits()) - 1,
        _ => return,
    };
    for byte in bytes {
        let code = *byte & mask;
        *byte = if kind.is_signed() { kind.wrap(i128::from(code)) as i8 as u8 } else { code };
    }
}

fn bytes_of(kind: ElementType, dims: &[usize]) -> Result<usize> {
    let bytes = count_of(dims)?.saturating_mul(kind.size_bytes().max(1));
    let limit = bound(ARRAY_BYTES_MAX);
    match bytes <= limit {
        true => Ok(bytes),
        false => Err(Error::Limit { what: "the bytes of an array", limit: limit as u64, got: bytes as u64 }),
    }
}

fn expect_count(dims: &[usize], got: usize) -> Result<()> {
    match count_of(dims)? {
        count if count == got => Ok(()),
        count => Err(Error::invalid("the elements of an array", count.to_string(), got)),
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.kind, self.dims)
    }
}
