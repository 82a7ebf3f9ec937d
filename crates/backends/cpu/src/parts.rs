//! One output slice, written by several threads in parts that do not overlap.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose disjoint ranges may be written from different threads at the same time.
pub struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `Parts` stands for a `&mut [T]`; its only accessors ask the caller to keep the ranges disjoint, so sharing it
// between threads hands each of them its own elements, as sending `&mut [T]` parts would.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above; a `&mut [T]` of `Send` elements may be sent.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Takes the slice over for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), borrowed: PhantomData }
    }

    /// The elements of `range`. A range that is not within the slice panics.
    ///
    /// # Safety
    /// No two ranges in use at the same time may overlap.
    #[allow(clippy::mut_from_ref)] // The contract above is what makes the references unique.
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part must lie within its slice");
        // SAFETY: the range was checked, the slice is borrowed mutably for 'a, and the caller keeps ranges disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// Where the slice starts, for kernels that write a pattern which is not a range.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.start
    }

    /// How many elements the whole slice has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
