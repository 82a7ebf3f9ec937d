//! Buffers: bytes on the host or in a device's memory, shared by reference count.
//!
//! A host buffer is written through [`HostBufferMut`] while it has a single owner, and is immutable
//! after [`HostBufferMut::freeze`]. The one exception is an op that may write in place
//! ([`HostBuffer::get_mut`]). The memory is an allocation of its own, a vector's memory, a block
//! that returns to its pool, or memory that the caller owns and lends without a copy. A device
//! buffer is a handle. Only the worker that owns the device reaches its bytes, and dropping the
//! last handle returns the allocation to its owner (see [`crate::lease`]).
//!
//! Callers choose the sizes, so exhausted memory is [`Error::OutOfMemory`], never an abort.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use crate::device_id::{DeviceId, Location};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::locked::LockedPages;
use crate::read_back::{HostCopies, ReadBack};
use crate::tensor::Tensor;

/// The alignment of every host buffer that Panoply allocates: a cache line, and the widest vector
/// register.
pub const HOST_ALIGN_BYTES: usize = 64;

/// Bytes on the host or on a device. A clone shares the bytes.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// In the host's memory.
    Host(HostBuffer),
    /// In a device's memory.
    Device(DeviceBuffer),
}

impl Buffer {
    /// Number of bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Buffer::Host(host) => host.bytes().len(),
            Buffer::Device(device) => device.len_bytes(),
        }
    }

    /// Location of the bytes.
    pub fn location(&self) -> Location {
        match self {
            Buffer::Host(_) => Location::Host,
            Buffer::Device(device) => Location::Device(device.device()),
        }
    }

    /// Whether the bytes are wiped when the last handle to them is dropped.
    pub fn is_secret(&self) -> bool {
        match self {
            Buffer::Host(host) => host.is_secret(),
            Buffer::Device(_) => false,
        }
    }
}

/// Immutable bytes in the host's memory.
#[derive(Clone)]
pub struct HostBuffer {
    start: NonNull<u8>,
    len_bytes: usize,
    #[allow(dead_code)] // Held only for its destructor.
    owner: Owner,
}

/// The owner that keeps a host buffer's memory alive.
///
/// The tag fills a whole word. A smaller tag would leave padding, which is copied in pieces, and
/// the CPU cannot read such pieces back as one word before the earlier writes have completed.
#[derive(Clone)]
#[repr(usize)]
#[allow(dead_code)] // Held only for its destructor.
enum Owner {
    /// One allocation that holds both the reference count and a few bytes. The bytes begin at the
    /// first cache line inside the allocation.
    Grains(Arc<[Grain]>),
    /// A separate allocation.
    Pages(Arc<Pages>),
    /// A vector's memory.
    Vector(Arc<Vector>),
    /// A block of a pool.
    Block(Arc<dyn Any + Send + Sync>),
    /// Any other memory that the caller owns. It is never written.
    Lent(Arc<dyn Any + Send + Sync>),
    /// Bytes that are wiped when the last handle is dropped.
    Secret(Arc<SecretLines>),
}

/// Memory that is overwritten with zeroes before it is freed. Small secrets, such as keys, are kept
/// out of swap if the system permits it, until they have been overwritten.
struct SecretLines {
    #[allow(dead_code)] // Held for its destructor, which runs before the memory is freed.
    locked: Option<LockedPages>,
    lines: Box<[CacheLine]>,
}

impl Drop for SecretLines {
    fn drop(&mut self) {
        self.lines.iter_mut().for_each(|line| zeroize::Zeroize::zeroize(&mut line.0));
    }
}

/// One cache line. The type gives its alignment.
#[repr(align(64))]
#[allow(dead_code)] // Only its address matters.
struct CacheLine([u8; HOST_ALIGN_BYTES]);

/// Zeroed memory with the allocator's own alignment. The allocator serves large blocks from
/// untouched pages, which cost nothing until they are written.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    /// Allocates the memory. `None` if there is not enough.
    fn zeroed(len_bytes: usize) -> Option<Pages> {
        let layout = Layout::from_size_align(len_bytes.max(1), GRAIN_BYTES).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Pages { start, layout })
    }
}

// SAFETY: `Pages` is plain memory with one owner.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` only gives its address. The bytes are reached through the buffer that
// holds it.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `zeroed` allocated the memory with this layout, and it is freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The memory of a vector that was taken apart, so that only its buffer refers to the bytes.
struct Vector {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Vector` is plain memory with one owner.
unsafe impl Send for Vector {}
// SAFETY: as for `Pages`.
unsafe impl Sync for Vector {}

impl Drop for Vector {
    fn drop(&mut self) {
        // SAFETY: pointer and capacity are those of a forgotten vector, which is rebuilt only here.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, self.capacity) });
    }
}

/// Memory that a caller lent. Its destructor is the caller's code. It runs on the thread that drops
/// the last view. This is mostly a thread of the runtime, in the middle of dropping an op that has
/// other inputs. So a panic of the destructor is caught here.
struct LentMemory<O>(ManuallyDrop<O>);

impl<O> Drop for LentMemory<O> {
    fn drop(&mut self) {
        // SAFETY: the owner is taken only here, and `self.0` is not used again.
        let owner = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(owner))) {
            // The panic hook has already reported the panic. The payload may panic again when it is
            // dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
        }
    }
}

/// The unit of small allocations: 16 bytes, an alignment that every allocator provides by itself.
#[repr(align(16))]
#[derive(Clone, Copy)]
#[allow(dead_code)] // Read and written through pointers.
struct Grain([u8; GRAIN_BYTES]);

const GRAIN_BYTES: usize = 16;

/// Buffers up to this size are aligned by hand. Allocators are several times as fast if no
/// alignment is requested.
const SMALL_BYTES_MAX: usize = 4096;

// SAFETY: the bytes are immutable while they are shared, and `owner`, which keeps them alive, is
// itself Send and Sync.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Views memory that the caller owns, without a copy: a `Vec`, an `Arc<[T]>`, a memory map. The
    /// owner is kept until the last view is dropped.
    pub fn from_owner<T: Element, O: AsRef<[T]> + Send + Sync + 'static>(owner: O) -> HostBuffer {
        let owner = Arc::new(LentMemory(ManuallyDrop::new(owner)));
        // `as_ref` is called only once, after the owner has its final address. An implementation
        // that answers differently later does no harm.
        let bytes: &[u8] = bytemuck::cast_slice((*owner.0).as_ref());
        let (start, len_bytes) = (NonNull::from(bytes).cast(), bytes.len());
        HostBuffer { start, len_bytes, owner: Owner::Lent(owner) }
    }

    /// Takes over the vector's memory, without a copy.
    pub fn from_vec(bytes: Vec<u8>) -> HostBuffer {
        let mut bytes = ManuallyDrop::new(bytes);
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let vector = Vector { start, capacity: bytes.capacity() };
        HostBuffer { start, len_bytes: bytes.len(), owner: Owner::Vector(Arc::new(vector)) }
    }

    /// The bytes for writing. `None` if there are other handles, or if the caller lent the memory.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let handles = match &self.owner {
            Owner::Grains(owner) => Arc::strong_count(owner),
            Owner::Pages(owner) => Arc::strong_count(owner),
            Owner::Vector(owner) => Arc::strong_count(owner),
            Owner::Block(owner) => Arc::strong_count(owner),
            Owner::Secret(owner) => Arc::strong_count(owner),
            Owner::Lent(_) => return None,
        };
        if handles != 1 {
            return None;
        }
        // Reads through the other handles happened before those were dropped.
        fence(Ordering::Acquire);
        // SAFETY: the memory is initialised, alive, and was written through this pointer before.
        // This is its only handle, and it is borrowed mutably, so no other handle can be made.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` and `len_bytes` describe initialised memory that `owner` keeps alive and
        // no one writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }

    /// Whether the bytes are wiped when the last handle to them is dropped.
    pub fn is_secret(&self) -> bool {
        matches!(self.owner, Owner::Secret(_))
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len_bytes)
    }
}

/// Writable host memory with a single owner. [`HostBufferMut::freeze`] makes it a [`HostBuffer`].
pub struct HostBufferMut {
    buffer: HostBuffer,
}

impl HostBufferMut {
    /// Zeroed memory in a separate allocation.
    pub fn zeroed(len_bytes: usize) -> Result<HostBufferMut> {
        if len_bytes <= SMALL_BYTES_MAX {
            return Ok(HostBufferMut::small(len_bytes));
        }
        // The first cache line begins at most this many bytes after the start of the allocation.
        let slack_bytes = HOST_ALIGN_BYTES - GRAIN_BYTES;
        let pages =
            len_bytes.checked_add(slack_bytes).and_then(Pages::zeroed).ok_or_else(|| out_of_memory(len_bytes))?;
        let skip_bytes = pages.start.as_ptr().align_offset(HOST_ALIGN_BYTES).min(slack_bytes);
        // SAFETY: the allocation is at least `slack_bytes` long, and at most these are skipped.
        let start = unsafe { pages.start.add(skip_bytes) };
        Ok(HostBufferMut { buffer: HostBuffer { start, len_bytes, owner: Owner::Pages(Arc::new(pages)) } })
    }

    /// Zeroed memory that is wiped when its last handle is dropped. It is never pooled or reused.
    /// Buffers of up to 64 KiB are kept out of swap if the system permits it; otherwise they work
    /// as usual.
    pub fn secret(len_bytes: usize) -> Result<HostBufferMut> {
        let count = len_bytes.div_ceil(HOST_ALIGN_BYTES);
        let mut lines = Vec::new();
        if lines.try_reserve_exact(count).is_err() {
            let place = "the host".to_owned();
            return Err(Error::OutOfMemory { place, asked: len_bytes as u64, free: 0, largest: 0 });
        }
        lines.resize_with(count, || CacheLine([0; HOST_ALIGN_BYTES]));
        let lines = lines.into_boxed_slice();
        let locked = LockedPages::new(lines.as_ptr().cast(), count * HOST_ALIGN_BYTES);
        let mut lines = Arc::new(SecretLines { locked, lines });
        let start = match Arc::get_mut(&mut lines) {
            Some(secret) => NonNull::from(&mut *secret.lines).cast(),
            None => NonNull::<CacheLine>::dangling().cast(),
        };
        Ok(HostBufferMut { buffer: HostBuffer { start, len_bytes, owner: Owner::Secret(lines) } })
    }

    fn small(len_bytes: usize) -> HostBufferMut {
        // The allocation starts at a grain. The first cache line begins at most this many bytes
        // later.
        let slack_bytes = HOST_ALIGN_BYTES - GRAIN_BYTES;
        let mut grains = Arc::<[Grain]>::new_uninit_slice((len_bytes + slack_bytes).div_ceil(GRAIN_BYTES));
        let start = match Arc::get_mut(&mut grains) {
            Some(grains) => {
                grains.fill(std::mem::MaybeUninit::new(Grain([0; GRAIN_BYTES])));
                let start = grains.as_mut_ptr().cast::<u8>();
                start.wrapping_add(start.align_offset(HOST_ALIGN_BYTES))
            }
            None => std::ptr::null_mut(),
        };
        // SAFETY: all grains were just filled.
        let owner = Owner::Grains(unsafe { grains.assume_init() });
        let start = NonNull::new(start).unwrap_or(NonNull::<CacheLine>::dangling().cast());
        HostBufferMut { buffer: HostBuffer { start, len_bytes, owner } }
    }

    /// Wraps memory that another value owns, such as a block on loan from a pool.
    ///
    /// # Safety
    /// `start` must be aligned to [`HOST_ALIGN_BYTES`] and point to `len_bytes` initialised bytes.
    /// They must stay in place, and nothing else may access them, until `owner` is dropped.
    pub unsafe fn from_raw(start: NonNull<u8>, len_bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> HostBufferMut {
        HostBufferMut { buffer: HostBuffer { start, len_bytes, owner: Owner::Block(owner) } }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: this value is the only owner, as all constructors ensure, and the memory is
        // initialised and alive.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.start.as_ptr(), self.buffer.len_bytes) }
    }

    /// The current bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Ends writing and returns the immutable buffer.
    pub fn freeze(self) -> HostBuffer {
        self.buffer
    }
}

/// The error of a request for host memory that cannot be met.
pub(crate) fn out_of_memory(len_bytes: usize) -> Error {
    Error::OutOfMemory { place: "the host".to_owned(), asked: len_bytes as u64, free: 0, largest: 0 }
}

/// One allocation in a device's memory, as its owner records it.
#[derive(Debug, PartialEq, Eq)]
pub struct DeviceAllocation {
    /// The device that owns it.
    pub device: DeviceId,
    /// The owner's id of the allocation, unique among the allocations of that engine.
    pub token: u64,
    /// Size of the allocation.
    pub len_bytes: usize,
}

/// A handle to bytes in a device's memory. Dropping the last handle returns the allocation to its
/// owner.
#[derive(Clone)]
pub struct DeviceBuffer(Arc<SharedAllocation>);

/// An allocation, and the parts of it that were read by the host.
struct SharedAllocation {
    allocation: Lease<DeviceAllocation>,
    copies: HostCopies,
}

impl DeviceBuffer {
    /// Makes a handle to an allocation that its owner has lent.
    pub fn new(allocation: Lease<DeviceAllocation>) -> DeviceBuffer {
        DeviceBuffer(Arc::new(SharedAllocation { allocation, copies: HostCopies::default() }))
    }

    /// The device that owns the bytes.
    pub fn device(&self) -> DeviceId {
        self.0.allocation.device
    }

    /// The owner's id of the allocation.
    pub fn token(&self) -> u64 {
        self.0.allocation.token
    }

    /// Size of the allocation.
    pub fn len_bytes(&self) -> usize {
        self.0.allocation.len_bytes
    }

    /// Names the runtime that copies the bytes to the host for callers that read them. Later calls
    /// change nothing. See [`crate::read_back`].
    pub fn attach(&self, reader: impl FnOnce() -> Weak<dyn ReadBack>) {
        self.0.copies.attach(reader);
    }

    /// The bytes of a view's elements on the host, from the first in memory to the last. Waits for
    /// the device if they were not read before.
    pub(crate) fn read(&self, view: &Tensor) -> Result<&[u8]> {
        self.0.copies.read(self, view)
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes on {})", self.len_bytes(), self.device())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::Api;
    use crate::lease::Home;

    #[test]
    fn zeroed_memory_is_aligned_written_and_frozen() {
        for len in [0, 1, 63, 64, 65, 4095, 4096, 4097] {
            let mut buffer = HostBufferMut::zeroed(len).unwrap();
            assert!(buffer.bytes_mut().iter().all(|byte| *byte == 0));
            buffer.bytes_mut().fill(7);
            let frozen = buffer.freeze();
            assert_eq!(frozen.bytes().len(), len);
            assert_eq!(frozen.bytes().as_ptr() as usize % HOST_ALIGN_BYTES, 0);
            assert!(frozen.clone().bytes().iter().all(|byte| *byte == 7));
        }
        for absurd in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 64, 1 << 55] {
            let refused = HostBufferMut::zeroed(absurd).map(drop);
            assert!(matches!(refused, Err(Error::OutOfMemory { asked, .. }) if asked == absurd as u64), "{refused:?}");
        }
    }

    #[test]
    fn an_owner_that_panics_when_it_is_dropped_takes_nobody_along() {
        struct Owner(Vec<f32>, #[allow(dead_code)] Arc<()>);
        impl AsRef<[f32]> for Owner {
            fn as_ref(&self) -> &[f32] {
                &self.0
            }
        }
        impl Drop for Owner {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("an owner that panics"));
            }
        }
        let alive = Arc::new(());
        let buffers: Vec<HostBuffer> =
            (0..3).map(|_| HostBuffer::from_owner::<f32, _>(Owner(vec![1.0], Arc::clone(&alive)))).collect();
        drop(buffers);
        assert_eq!(Arc::strong_count(&alive), 1, "the fields of each were dropped");
    }

    #[test]
    fn secret_memory_is_aligned_and_told_apart() {
        for len in [0, 1, 64, 65, 5000] {
            let mut buffer = HostBufferMut::secret(len).unwrap();
            buffer.bytes_mut().fill(7);
            let frozen = buffer.freeze();
            assert!(frozen.is_secret() && frozen.clone().is_secret());
            assert_eq!((frozen.bytes().len(), frozen.bytes().as_ptr() as usize % HOST_ALIGN_BYTES), (len, 0));
        }
        assert!(matches!(HostBufferMut::secret(usize::MAX), Err(Error::OutOfMemory { .. })));
        assert!(!HostBufferMut::zeroed(5).unwrap().freeze().is_secret());
    }

    #[test]
    fn callers_memory_is_viewed_without_a_copy() {
        let owner: Arc<[f32]> = Arc::from(vec![1.0, 2.0]);
        let address = owner.as_ptr() as usize;
        let buffer = HostBuffer::from_owner::<f32, _>(owner.clone());
        assert_eq!(buffer.bytes().as_ptr() as usize, address);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn the_last_handle_releases_a_device_allocation() {
        let home = Home::new();
        let device = DeviceId { api: Api::SIMULATED, index: 0 };
        let handle = DeviceBuffer::new(home.lend(DeviceAllocation { device, token: 9, len_bytes: 16 }));
        let second = handle.clone();
        drop(handle);
        home.take_back(|_| panic!("a handle is still alive"));
        std::thread::spawn(move || drop(second)).join().unwrap();
        let mut released = Vec::new();
        home.take_back(|allocation| released.push(allocation.token));
        assert_eq!(released, [9]);
    }
}
