//! A mutable slice that the tasks of one job share by writing to parts that do not overlap.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` that several threads may take disjoint parts of.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: every access goes through `part`, whose caller promises that no element is reached from two threads at once.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: it stands for a `&mut [T]`, which is `Send` when `T` is.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Shares `slice` for as long as it is borrowed.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements in `range`, which must lie inside the slice (checked).
    ///
    /// # Safety
    /// No two parts that overlap may be alive at the same time.
    #[allow(clippy::mut_from_ref)] // The disjointness that `&mut` needs is the caller's promise.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part must lie inside the slice");
        // SAFETY: the range lies inside the slice (asserted), and the caller keeps live parts from overlapping.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// The address of the first element, for scattered writes.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.start
    }

    /// How many elements the slice has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
