//! Tensors in ONNX files: weights and constants, inside the file or in external files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use half::{bf16, f16};

use super::wire::Fields;
use super::{Reading, read_pair};
use crate::array::{Array, count_of};
use crate::element::ElementType;
use crate::error::{Error, Result};

/// A tensor as stored in its file. Its bytes borrow from the file's buffer.
#[derive(Debug, Default, Clone)]
pub(crate) struct TensorMessage<'a> {
    pub name: String,
    pub element: i64,
    pub dims: Vec<i64>,
    raw: Option<&'a [u8]>,
    floats: Vec<f32>,
    integers: Vec<i64>,
    doubles: Vec<f64>,
    texts: Vec<&'a [u8]>,
    external: Vec<(String, String)>,
    is_external: bool,
}

/// A tensor stored as its non-zero elements.
#[derive(Debug, Default, Clone)]
pub(crate) struct SparseMessage<'a> {
    pub values: TensorMessage<'a>,
    indices: TensorMessage<'a>,
    dims: Vec<i64>,
}

impl<'a> TensorMessage<'a> {
    pub(crate) fn read(bytes: &'a [u8], reading: &mut Reading) -> Result<TensorMessage<'a>> {
        reading.item()?;
        let mut tensor = TensorMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => content.numbers(&mut tensor.dims)?,
                2 => tensor.element = content.number()?,
                3 => return Err(Error::unsupported("a tensor in segments")),
                4 => content.floats(&mut tensor.floats)?,
                5 | 7 | 11 => content.numbers(&mut tensor.integers)?,
                6 => {
                    reading.item()?;
                    tensor.texts.push(content.bytes()?);
                }
                8 => tensor.name = content.text()?,
                9 => tensor.raw = Some(content.bytes()?),
                10 => content.doubles(&mut tensor.doubles)?,
                13 => {
                    reading.item()?;
                    tensor.external.push(read_pair(content.bytes()?)?);
                }
                14 => tensor.is_external = content.number()? == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }

    /// The bytes that its elements will take according to its dimensions. `u64::MAX` if the
    /// dimensions are invalid.
    pub(crate) fn claimed_bytes(&self) -> u64 {
        let count = dims_of(&self.dims).and_then(|dims| count_of(&dims));
        let size = ElementType::from_code(self.element).map_or(1, ElementType::size_bytes);
        let texts: usize = self.texts.iter().map(|text| text.len() + size_of::<String>()).sum();
        count.map_or(u64::MAX, |count| (count * size + texts) as u64)
    }

    /// The name of the external file that holds it.
    pub(crate) fn location(&self) -> Option<&str> {
        let location = self.external.iter().find(|(key, _)| key == "location");
        location.filter(|_| self.is_external).map(|(_, value)| value.as_str())
    }

    /// Its elements in aligned memory. External weights are looked for in `folder`.
    pub(crate) fn array(&self, folder: Option<&Path>) -> Result<Array> {
        let kind = ElementType::from_code(self.element)?;
        let dims = dims_of(&self.dims)?;
        let count = count_of(&dims)?;
        let array = if self.is_external {
            self.outside(kind, &dims, folder)
        } else if kind == ElementType::String {
            let text = |bytes: &&[u8]| String::from_utf8_lossy(bytes).into_owned();
            Array::from_strings(self.texts.iter().map(text).collect(), &dims)
        } else if let Some(raw) = self.raw {
            from_raw(kind, &dims, raw)
        } else {
            self.listed(kind, &dims, count)
        };
        array.map_err(|cause| self.named(cause))
    }

    fn named(&self, cause: Error) -> Error {
        match cause {
            Error::Invalid { expected, got, .. } => {
                Error::invalid(format!("the tensor {:?}", self.name), expected, got)
            }
            other => other,
        }
    }

    /// Reads the elements from the lists of numbers, the form of small tensors.
    fn listed(&self, kind: ElementType, dims: &[usize], count: usize) -> Result<Array> {
        use ElementType::*;
        let given = match kind {
            F32 => self.floats.len(),
            F64 => self.doubles.len(),
            U4 | I4 | F4E2M1 if count > 0 => {
                self.integers.len() * 2 - usize::from(count % 2 == 1 && !self.integers.is_empty())
            }
            U2 | I2 => count * usize::from(self.integers.len() == count.div_ceil(4)),
            _ => self.integers.len(),
        };
        if given != count {
            return Err(Error::invalid("a tensor", format!("{count} elements"), given));
        }
        let halves = || self.integers.iter().map(|bits| *bits as u16);
        match kind {
            F32 => Array::from_slice(&self.floats, dims),
            F64 => Array::from_slice(&self.doubles, dims),
            F16 => Array::from_slice(&halves().map(f16::from_bits).collect::<Vec<_>>(), dims),
            BF16 => Array::from_slice(&halves().map(bf16::from_bits).collect::<Vec<_>>(), dims),
            U64 => Array::from_slice(&self.integers.iter().map(|value| *value as u64).collect::<Vec<_>>(), dims),
            U4 | I4 | F4E2M1 | U2 | I2 => {
                let packed: Vec<u8> = self.integers.iter().map(|value| *value as u8).collect();
                from_raw(kind, dims, &packed)
            }
            kind if kind.is_float() => {
                Array::from_bytes(kind, dims, &self.integers.iter().map(|value| *value as u8).collect::<Vec<_>>())
            }
            _ => {
                let values: Vec<i128> = self.integers.iter().map(|value| i128::from(*value)).collect();
                Array::from_integers(kind, dims, &values)
            }
        }
    }

    /// Reads the elements from an external file. Names that lead out of the model's folder are
    /// refused.
    fn outside(&self, kind: ElementType, dims: &[usize], folder: Option<&Path>) -> Result<Array> {
        let entry = |key: &str| self.external.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        if kind == ElementType::String {
            return Err(Error::unsupported("text in a file beside the model's"));
        }
        let location = entry("location").unwrap_or_default();
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        let relative = Path::new(location);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(Error::invalid("the file of a tensor", "a path inside the model's folder", location));
        }
        let folder = folder
            .ok_or_else(|| Error::invalid("the file of a tensor", "a model that is loaded from a folder", location))?;
        let path = folder.join(relative);
        // A symbolic link may lead out of the folder.
        let real = |path: &Path| path.canonicalize().map_err(|cause| Error::file(path, cause));
        if !real(&path)?.starts_with(real(folder)?) {
            return Err(Error::invalid("the file of a tensor", "a path inside the model's folder", location));
        }
        let number = |key: &str| match entry(key).map(str::parse::<u64>) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => {
                Err(Error::invalid(format!("{key} of a tensor in a file"), "a number", entry(key).unwrap_or("")))
            }
        };
        let expected = packed_bytes(kind, count_of(dims)?) as u64;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?.unwrap_or(expected));
        if length != expected {
            return Err(Error::invalid("a tensor in a file", format!("{expected} bytes"), length));
        }
        let mut file = File::open(&path).map_err(|cause| Error::file(&path, cause))?;
        let size = file.metadata().map_err(|cause| Error::file(&path, cause))?.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            let got = format!("{length} from byte {offset}");
            return Err(Error::invalid("a tensor in a file", format!("bytes within its {size}"), got));
        }
        let mut result = file.seek(SeekFrom::Start(offset)).map(drop);
        if kind.bits() < 8 {
            let mut packed = vec![0; length as usize];
            result = result.and_then(|()| file.read_exact(&mut packed));
            result.map_err(|cause| Error::file(&path, cause))?;
            return from_raw(kind, dims, &packed);
        }
        let array = Array::build(kind, dims, |bytes| {
            if result.is_ok() {
                result = file.read_exact(bytes);
            }
        })?;
        result.map_err(|cause| Error::file(&path, cause))?;
        Ok(array)
    }
}

impl<'a> SparseMessage<'a> {
    pub(crate) fn read(bytes: &'a [u8], reading: &mut Reading) -> Result<SparseMessage<'a>> {
        let mut sparse = SparseMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => sparse.values = TensorMessage::read(content.bytes()?, reading)?,
                2 => sparse.indices = TensorMessage::read(content.bytes()?, reading)?,
                3 => content.numbers(&mut sparse.dims)?,
                _ => {}
            }
        }
        Ok(sparse)
    }

    /// The bytes of the dense tensor according to its dimensions.
    pub(crate) fn claimed_bytes(&self) -> u64 {
        let count = dims_of(&self.dims).and_then(|dims| count_of(&dims));
        count.map_or(u64::MAX, |count| count as u64 * 8)
    }

    /// The dense tensor, zeros included.
    pub(crate) fn array(&self, folder: Option<&Path>) -> Result<Array> {
        let (values, indices) = (self.values.array(folder)?, self.indices.array(folder)?);
        let dims = dims_of(&self.dims)?;
        let (count, size) = (count_of(&dims)?, values.kind().size_bytes());
        let places = indices.to_i64s()?;
        let width = match *indices.dims() {
            [_, width] if width == dims.len() => width,
            [_] => 1,
            _ => {
                return Err(Error::invalid("a sparse tensor", "indices of its own dimensions", format!("{indices:?}")));
            }
        };
        let place = |row: &[i64]| {
            let linear = match row {
                [linear] => usize::try_from(*linear).ok(),
                row => row.iter().zip(&dims).try_fold(0_usize, |sum, (index, dim)| {
                    let index = usize::try_from(*index).ok().filter(|index| index < dim)?;
                    Some(sum * dim + index)
                }),
            };
            linear.filter(|place| *place < count)
        };
        let places: Option<Vec<usize>> = places.chunks(width.max(1)).map(place).collect();
        let wrong = || Error::invalid("a sparse tensor", "an index inside it for each value", format!("{indices:?}"));
        let places = places.filter(|places| places.len() == values.len()).ok_or_else(wrong)?;
        Array::build(values.kind(), &dims, |bytes| {
            for (place, value) in places.iter().zip(values.bytes().chunks_exact(size.max(1))) {
                bytes[place * size..][..size].copy_from_slice(value);
            }
        })
    }
}

fn dims_of(dims: &[i64]) -> Result<Vec<usize>> {
    let dim = |dim: &i64| usize::try_from(*dim).map_err(|_| Error::invalid("a dimension", "at least 0", dim));
    dims.iter().map(dim).collect()
}

/// The bytes that elements take in a file. Narrow elements share a byte.
fn packed_bytes(kind: ElementType, count: usize) -> usize {
    match kind.bits() {
        2 => count.div_ceil(4),
        4 => count.div_ceil(2),
        _ => count.saturating_mul(kind.size_bytes()),
    }
}

/// Reads the elements from little-endian bytes of the file.
fn from_raw(kind: ElementType, dims: &[usize], raw: &[u8]) -> Result<Array> {
    if kind == ElementType::String {
        return Err(Error::invalid("a tensor of text", "texts", "raw bytes"));
    }
    let count = count_of(dims)?;
    let expected = packed_bytes(kind, count);
    if raw.len() != expected {
        return Err(Error::invalid("a tensor", format!("{expected} bytes"), raw.len()));
    }
    let bits = kind.bits();
    if bits >= 8 {
        return Array::from_bytes(kind, dims, raw);
    }
    let per_byte = 8 / bits as usize;
    let unpack = |place: usize| {
        let code = raw[place / per_byte] >> (bits as usize * (place % per_byte)) & ((1 << bits) - 1);
        if kind.is_signed() { kind.wrap(i128::from(code)) as i8 as u8 } else { code }
    };
    Array::from_bytes(kind, dims, &(0..count).map(unpack).collect::<Vec<_>>())
}
