//! Memory that convolutions reuse from call to call.

use super::channels_last::Tap;
use super::packed::{AlignedNumbers, OrderedWeights, PackedWeights};
use super::panel::{PanelLayout, Stencil};
use super::tile::{LaneRun, Real};
use std::cell::UnsafeCell;

/// Memory of a convolution besides its operands. One engine owns one workspace; it grows to the
/// largest call so far.
#[derive(Default)]
pub struct ConvWorkspace {
    single: Scratch<f32>,
    double: Scratch<f64>,
}

impl ConvWorkspace {
    /// An empty workspace.
    pub fn new() -> ConvWorkspace {
        ConvWorkspace::default()
    }

    /// Bytes currently held.
    pub fn bytes(&self) -> usize {
        self.single.numbers() * size_of::<f32>() + self.double.numbers() * size_of::<f64>()
    }
}

/// The part of a workspace for one number type.
#[derive(Default)]
pub struct Scratch<T> {
    pub(super) stencil: Stencil,
    pub(super) layout: PanelLayout,
    /// Offsets of a block of channels.
    pub(super) offsets: Vec<usize>,
    /// Lane runs of a full band and of the last band.
    pub(super) full_runs: Vec<LaneRun>,
    pub(super) last_runs: Vec<LaneRun>,
    /// Index of the kernel's weight for each tap of the stencil.
    pub(super) tap_weights: Vec<usize>,
    /// Taps of channels-last images.
    pub(super) taps: Vec<Tap>,
    pub(super) packed: AlignedNumbers<T>,
    pub(super) bias: Vec<T>,
    pub(super) slots: Vec<ThreadBuffers<T>>,
    /// Numbers that all threads read.
    pub(super) shared: Vec<T>,
}

/// The panel and the outputs of one thread.
#[derive(Default)]
pub(super) struct ThreadBuffers<T> {
    pub panel: Vec<T>,
    pub outputs: Vec<T>,
}

impl<T: Real> Scratch<T> {
    fn numbers(&self) -> usize {
        let slots = self.slots.iter().map(|slot| slot.panel.capacity() + slot.outputs.capacity());
        self.packed.bytes() / size_of::<T>() + self.bias.capacity() + self.shared.capacity() + slots.sum::<usize>()
    }
}

/// The scratch of a number type, and its kept weights.
pub trait HasScratch: Sized {
    #[doc(hidden)]
    fn scratch(workspace: &mut ConvWorkspace) -> &mut Scratch<Self>;
    #[doc(hidden)]
    fn forms(packed: &mut PackedWeights) -> &mut Vec<OrderedWeights<Self>>;
}

impl HasScratch for f32 {
    fn scratch(workspace: &mut ConvWorkspace) -> &mut Scratch<f32> {
        &mut workspace.single
    }

    fn forms(packed: &mut PackedWeights) -> &mut Vec<OrderedWeights<f32>> {
        &mut packed.single
    }
}

impl HasScratch for f64 {
    fn scratch(workspace: &mut ConvWorkspace) -> &mut Scratch<f64> {
        &mut workspace.double
    }

    fn forms(packed: &mut PackedWeights) -> &mut Vec<OrderedWeights<f64>> {
        &mut packed.double
    }
}

/// Makes `buffer` at least `len` long and borrows it. Its contents are left over from earlier
/// calls.
pub(super) fn at_least<T: Real>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        crate::scratch::resize(buffer, len, T::default());
    }
    &mut buffer[..len]
}

/// As [`at_least`], aligned to a cache line.
pub(super) fn lines<T: Real>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    let spare = LINE_BYTES / size_of::<T>();
    let all = at_least(buffer, len + spare);
    let start = all.as_ptr().align_offset(LINE_BYTES).min(spare);
    &mut all[start..][..len]
}

/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

/// Slots of the tasks of one job. Each task takes the slot of its index.
pub(super) struct SharedSlots<'a, T>(&'a [UnsafeCell<ThreadBuffers<T>>]);

// SAFETY: a slot is accessed only through `take`, whose caller guarantees that no other thread uses
// the same index.
unsafe impl<T: Send> Sync for SharedSlots<'_, T> {}

impl<'a, T> SharedSlots<'a, T> {
    pub fn new(slots: &'a mut Vec<ThreadBuffers<T>>, count: usize) -> SharedSlots<'a, T>
    where
        T: Default,
    {
        if slots.len() < count {
            slots.resize_with(count, ThreadBuffers::default);
        }
        let slots: &mut [ThreadBuffers<T>] = slots;
        // SAFETY: `UnsafeCell<ThreadBuffers>` has the layout of `ThreadBuffers`, and the exclusive
        // borrow lasts as long as the shared one.
        SharedSlots(unsafe { &*(std::ptr::from_mut(slots) as *const [UnsafeCell<ThreadBuffers<T>>]) })
    }

    /// # Safety
    /// No two threads use the same index at a time, and no two borrows of one index overlap.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn take(&self, index: usize) -> &mut ThreadBuffers<T> {
        // SAFETY: the caller guarantees that this is the only borrow.
        unsafe { &mut *self.0[index].get() }
    }
}

/// A slice that several threads write to, each thread to its own part.
#[derive(Clone, Copy)]
pub(super) struct SharedSlice<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: the accessors are unsafe, and their callers guarantee that threads access disjoint parts.
unsafe impl<T: Send> Sync for SharedSlice<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for SharedSlice<T> {}

impl<T> SharedSlice<T> {
    pub fn new(slice: &mut [T]) -> SharedSlice<T> {
        SharedSlice { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// The address of `start`, valid for `len` numbers while the slice lives.
    pub fn pointer(&self, start: usize, len: usize) -> *mut T {
        assert!(start <= self.len && len <= self.len - start, "part of a shared slice");
        // SAFETY: within the slice, as asserted.
        unsafe { self.start.add(start) }
    }

    /// # Safety
    /// The slice must still live, and no other thread may access this part meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the part is within the slice, as `pointer` asserts, and borrowed once, as the
        // caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(start, len), len) }
    }
}
