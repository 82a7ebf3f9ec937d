//! One output slice that several threads write in disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose disjoint ranges may be written from different threads at the same time.
pub struct DisjointSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `DisjointSlice` represents a `&mut [T]`. Its only accessors require the caller to keep
// ranges disjoint, so sharing it between threads gives each thread its own elements, as sending
// `&mut [T]` parts would.
unsafe impl<T: Send> Sync for DisjointSlice<'_, T> {}
// SAFETY: as above; a `&mut [T]` of `Send` elements may be sent.
unsafe impl<T: Send> Send for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    /// Wraps the slice for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> DisjointSlice<'a, T> {
        DisjointSlice { start: slice.as_mut_ptr(), len: slice.len(), borrowed: PhantomData }
    }

    /// Borrows the elements of `range`. Panics if the range is not within the slice.
    ///
    /// # Safety
    /// No two ranges in use at the same time may overlap.
    #[allow(clippy::mut_from_ref)] // The contract above is what makes the references unique.
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part must lie within its slice");
        // SAFETY: the range was checked, the slice is borrowed mutably for 'a, and the caller keeps
        // ranges disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// The start of the slice, for kernels that write a pattern other than a range.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.start
    }

    /// Number of elements of the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
