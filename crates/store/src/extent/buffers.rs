//! A pool of buffers for chunks and batches, so that memory is neither allocated nor zeroed each
//! time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use panoply_core::Bytes;

/// Maximal number of bytes in the pool.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// A pool of buffers. A lent buffer returns when its last user drops it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// Takes a buffer of at least `len` bytes with unspecified content.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare().pop().unwrap_or_default();
        if buffer.len() < len {
            // A buffer that is too small is dropped: growing it would copy its content for nothing.
            buffer = vec![0; len];
        }
        buffer
    }

    /// Lends the first `len` bytes of a buffer. The buffer returns to the pool when they are
    /// dropped.
    pub(crate) fn lend(&self, buffer: Vec<u8>, len: usize) -> Bytes {
        Bytes::from_owner(LentBuffer { buffer, len, home: self.clone() })
    }

    /// Returns a buffer to the pool.
    pub(crate) fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.spare();
        if spare.iter().map(Vec::len).sum::<usize>().saturating_add(buffer.len()) <= SPARE_BYTES_MAX {
            spare.push(buffer);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that is lent out.
struct LentBuffer {
    buffer: Vec<u8>,
    len: usize,
    home: Buffers,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len.min(self.buffer.len())]
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_of_it_is_dropped() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take(100);
        buffer[..3].copy_from_slice(b"abc");
        let (place, bytes) = (buffer.as_ptr(), buffers.lend(buffer, 3));
        let part = bytes.slice(1, 3).unwrap();
        drop(bytes);
        let other = buffers.take(100);
        assert_ne!(other.as_ptr(), place);
        assert_eq!(part.as_slice().unwrap(), b"bc");
        drop(part);
        let again = buffers.take(50);
        assert_eq!((again.as_ptr(), again.len()), (place, 100));
        assert!(buffers.take(200).len() >= 200);
    }

    #[test]
    fn no_more_than_so_much_is_kept() {
        let buffers = Buffers::default();
        (0..5).for_each(|_| buffers.give_back(vec![0; SPARE_BYTES_MAX / 3]));
        assert_eq!(buffers.spare().len(), 3);
    }
}
