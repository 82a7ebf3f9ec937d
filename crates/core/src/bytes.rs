//! Bytes without a shape, such as a message, a compressed block, a packet or a key.

use std::fmt;
use std::ops::Range;

use crate::buffer::{Buffer, HostBuffer, HostBufferMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::{Location, Tensor};

/// A range of bytes in a buffer. Clones and slices share the buffer, and the bytes are immutable
/// except through [`Bytes::get_mut`]. Secret bytes are wiped when the last handle to them is
/// dropped. `Debug` output shows only the length of any bytes.
#[derive(Clone)]
pub struct Bytes {
    buffer: Buffer,
    range: Range<usize>,
}

impl Bytes {
    /// Takes over the vector's memory, without a copy.
    pub fn from_vec(bytes: Vec<u8>) -> Bytes {
        Bytes::from_host(HostBuffer::from_vec(bytes))
    }

    /// Copies the bytes.
    pub fn copy_of(bytes: &[u8]) -> Result<Bytes> {
        let mut buffer = HostBufferMut::zeroed(bytes.len())?;
        buffer.bytes_mut().copy_from_slice(bytes);
        Ok(Bytes::from_host(buffer.freeze()))
    }

    /// Views memory that the caller owns (an `Arc<[u8]>`, a memory map), without a copy. The owner
    /// is kept until the last view is dropped.
    pub fn from_owner<O: AsRef<[u8]> + Send + Sync + 'static>(owner: O) -> Bytes {
        Bytes::from_host(HostBuffer::from_owner::<u8, O>(owner))
    }

    /// Makes a secret. The bytes are copied into memory that is wiped when its last handle is
    /// dropped, and the vector is wiped at once. The caller must wipe any copies made before.
    pub fn secret(bytes: Vec<u8>) -> Result<Bytes> {
        let source = zeroize::Zeroizing::new(bytes);
        let mut buffer = HostBufferMut::secret(source.len())?;
        buffer.bytes_mut().copy_from_slice(&source);
        Ok(Bytes::from_host(buffer.freeze()))
    }

    /// All bytes of a host buffer.
    pub fn from_host(buffer: HostBuffer) -> Bytes {
        let range = 0..buffer.bytes().len();
        Bytes { buffer: Buffer::Host(buffer), range }
    }

    /// The bytes of a contiguous tensor of `u8`, on the host or on a device.
    pub fn from_tensor(tensor: &Tensor) -> Result<Bytes> {
        if tensor.dtype() != DType::U8 {
            let (expected, got) = (DType::U8, tensor.dtype());
            return Err(Error::DTypeMismatch { what: "tensor of bytes", expected, got });
        }
        if !tensor.is_contiguous() {
            let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
            return Err(Error::NotContiguous { shape, strides });
        }
        let start = if tensor.elements() == 0 { 0 } else { tensor.offset() };
        Ok(Bytes { buffer: tensor.buffer().clone(), range: start..start + tensor.elements() })
    }

    /// The same bytes as a one-dimensional tensor.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let shape = Shape::new([self.len()])?;
        Tensor::from_parts(DType::U8, shape, shape.contiguous_strides(), self.range.start, self.buffer.clone())
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes from `start` up to, not including, `end`.
    pub fn slice(&self, start: usize, end: usize) -> Result<Bytes> {
        if end > self.len() {
            return Err(Error::OutOfBounds { what: "end of the slice", limit: self.len(), got: end });
        }
        if start > end {
            return Err(Error::invalid("slice", "start ≤ end", format!("{start}..{end}")));
        }
        let range = self.range.start + start..self.range.start + end;
        Ok(Bytes { buffer: self.buffer.clone(), range })
    }

    /// The bytes as a slice. Bytes on a device are copied to the host at the first read, as by
    /// [`Tensor::as_slice`].
    pub fn as_slice(&self) -> Result<&[u8]> {
        match &self.buffer {
            Buffer::Host(host) => Ok(&host.bytes()[self.range.clone()]),
            Buffer::Device(_) if self.is_empty() => Ok(&[]),
            Buffer::Device(device) => device.read(&self.to_tensor()?),
        }
    }

    /// The bytes for writing. `None` if they are on a device, if their buffer has other handles, or
    /// if a caller lent the memory.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.buffer {
            Buffer::Host(host) => host.get_mut().map(|bytes| &mut bytes[self.range.clone()]),
            Buffer::Device(_) => None,
        }
    }

    /// Location of the bytes.
    pub fn location(&self) -> Location {
        self.buffer.location()
    }

    /// The buffer that contains this range.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Whether the bytes are wiped when the last handle is dropped.
    pub fn is_secret(&self) -> bool {
        self.buffer.is_secret()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::from_vec(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = if self.is_secret() { ", secret" } else { "" };
        write!(f, "Bytes({} on {}{secret})", self.len(), self.location())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slices_and_tensors_share_the_bytes() {
        let bytes = Bytes::from_vec((0..10).collect());
        let middle = bytes.slice(2, 7).unwrap();
        assert_eq!(middle.as_slice().unwrap(), [2, 3, 4, 5, 6]);
        let back = Bytes::from_tensor(&middle.to_tensor().unwrap()).unwrap();
        assert_eq!(back.as_slice().unwrap().as_ptr(), middle.as_slice().unwrap().as_ptr());
        assert!(bytes.slice(3, 11).is_err() && bytes.slice(4, 3).is_err());
        assert!(bytes.slice(10, 10).unwrap().to_tensor().unwrap().shape().elements() == 0);
    }

    #[test]
    fn bytes_with_one_handle_can_be_written_and_others_cannot() {
        let (vector, copy) = (vec![1, 2, 3], Bytes::copy_of(&[1, 2, 3]).unwrap());
        let place = vector.as_ptr();
        let vector = Bytes::from_vec(vector);
        assert_eq!(vector.as_slice().unwrap().as_ptr(), place);
        let secret = Bytes::secret(vec![1, 2, 3]).unwrap();
        for mut bytes in [vector, copy, secret] {
            let other = bytes.slice(0, 1).unwrap();
            assert!(bytes.get_mut().is_none());
            drop(other);
            bytes.get_mut().unwrap()[1] = 7;
            assert_eq!(bytes.as_slice().unwrap(), [1, 7, 3]);
            let mut end = bytes.slice(1, 3).unwrap();
            drop(bytes);
            assert_eq!(end.get_mut().unwrap(), [7, 3]);
        }
        assert_eq!(Bytes::from_vec(Vec::new()).get_mut().unwrap(), []);
        let mut lent = Bytes::from_owner(vec![1, 2, 3]);
        assert!(lent.get_mut().is_none(), "what a caller lent is never written");
    }

    #[test]
    fn secrets_show_their_length_alone_and_every_view_is_secret() {
        let secret = Bytes::secret(b"correct horse battery".to_vec()).unwrap();
        assert_eq!(secret.as_slice().unwrap(), b"correct horse battery");
        assert!(secret.is_secret() && secret.slice(1, 3).unwrap().is_secret());
        assert!(secret.to_tensor().unwrap().buffer().is_secret());
        let shown = format!("{secret:?} {:?} {:?}", secret.to_tensor().unwrap(), secret.buffer());
        assert!(!shown.contains("horse") && !shown.contains("104"), "{shown}");
        assert!(!Bytes::from_vec(vec![1]).is_secret());
    }
}
