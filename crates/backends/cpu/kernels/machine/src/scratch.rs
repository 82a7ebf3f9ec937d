//! Memory that a kernel needs besides its output.
//!
//! The standard library's collections abort the process if an allocation fails. A kernel that
//! allocates here unwinds to its op instead, also from the team's other threads, and the op returns
//! [`Error::OutOfMemory`] (see `ops::together`). Kernels and their callers therefore need no error
//! handling for lack of memory.

use std::alloc::{Layout, alloc_zeroed};
use std::any::Any;

use bytemuck::Zeroable;
use panoply_core::Error;

/// The payload of the panic for a failed allocation.
struct AllocationFailure {
    asked_bytes: u64,
}

/// `count` zeroed elements. A large allocation consists of untouched pages, which cost nothing
/// until they are written.
pub fn zeroed<T: Zeroable + Clone>(count: usize) -> Vec<T> {
    let Ok(layout) = Layout::array::<T>(count) else { exhausted::<T>(count) };
    if layout.size() == 0 {
        return filled(T::zeroed(), count);
    }
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        exhausted::<T>(count);
    }
    // SAFETY: the memory was just allocated by the global allocator with the layout of `count`
    // elements, and all of its bits are zero, which is a valid value of the type.
    unsafe { Vec::from_raw_parts(start.cast::<T>(), count, count) }
}

/// `count` clones of a value.
pub fn filled<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut list = reserved(count);
    list.resize(count, value);
    list
}

/// An empty vector with capacity for `count` elements.
pub fn reserved<T>(count: usize) -> Vec<T> {
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        exhausted::<T>(count);
    }
    list
}

/// Resizes a vector; new elements are clones of `value`.
pub fn resize<T: Clone>(list: &mut Vec<T>, count: usize, value: T) {
    if list.try_reserve(count.saturating_sub(list.len())).is_err() {
        exhausted::<T>(count);
    }
    list.resize(count, value);
}

/// The op's error, if its kernel panicked because of a failed allocation.
pub fn error_of(thrown: &(dyn Any + Send)) -> Option<Error> {
    let AllocationFailure { asked_bytes: asked } = *thrown.downcast_ref::<AllocationFailure>()?;
    Some(Error::OutOfMemory { place: "the host".to_owned(), asked, free: 0, largest: 0 })
}

#[cold]
fn exhausted<T>(count: usize) -> ! {
    let asked_bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
    // Skips the panic hook, which would print a message: a failed allocation is an error, not a
    // bug.
    std::panic::resume_unwind(Box::new(AllocationFailure { asked_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Team;
    use std::hint::black_box;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn what_is_asked_for_is_there() {
        assert_eq!(zeroed::<u16>(3), [0; 3]);
        assert!(zeroed::<u64>(0).is_empty() && zeroed::<()>(5).len() == 5);
        assert_eq!(filled(7, 2), [7, 7]);
        let mut list = reserved::<u8>(10);
        assert!(list.capacity() >= 10 && list.is_empty());
        resize(&mut list, 4, 1);
        resize(&mut list, 2, 9);
        assert_eq!(list, [1, 1]);
    }

    #[test]
    fn absurd_sizes_are_an_error_on_any_thread() {
        // Without the boxes, the compiler removes unused allocations.
        let team = Team::new(2);
        let absurd: [&(dyn Fn() + Sync); 5] = [
            &|| drop(black_box(zeroed::<u64>(usize::MAX))),
            &|| drop(black_box(zeroed::<u64>(1 << 59))),
            &|| drop(black_box(filled(1_u8, isize::MAX as usize))),
            &|| drop(black_box(reserved::<u32>(usize::MAX / 2))),
            &|| resize(black_box(&mut vec![1_u8]), isize::MAX as usize, 0),
        ];
        for call in absurd {
            let thrown = catch_unwind(AssertUnwindSafe(|| team.run(4, &|_| call()))).unwrap_err();
            let error = error_of(thrown.as_ref());
            assert!(matches!(error, Some(Error::OutOfMemory { asked, .. }) if asked > 1 << 50), "{error:?}");
        }
        let other = catch_unwind(|| std::panic::resume_unwind(Box::new("another"))).map(|()| 0).unwrap_err();
        assert!(error_of(other.as_ref()).is_none());
    }
}
