//! The contract between the engine and an API: memory, kernels, commands, and the way back to the
//! host.
//!
//! A backend implements three traits: [`Driver`] makes objects and knows the progress of the
//! device, [`Commands`] records the device's work, and [`Staging`] is memory that host and device
//! both reach. The engine does everything else in the same way for all APIs: it chooses the kernels
//! of an op, cuts large tensors into pieces, joins small maps, decides when to submit, and caches.
//! The rules:
//!
//! 1. One thread makes a driver, owns it and calls it. Buffers and staging memory may go to other
//!    threads, so they are [`Send`].
//! 2. Commands take effect as if one after the other. A driver inserts a barrier before a command
//!    that touches bytes which an earlier command wrote; the bindings say what a dispatch writes
//!    and reads.
//! 3. Buffers, bindings, pipelines and staging memory may be dropped while commands that use them
//!    are recorded or in flight: a driver frees them when those commands have ended.
//! 4. Submissions are numbered from 1. With several queues, a submission of copies only may end
//!    before an earlier one. Only [`Driver::wait`] waits for the device, and [`Driver::buffer`] for
//!    memory that work in flight still holds.
//! 5. A lost device and errors that belong to no call are reported to [`Faults`]. Later calls may
//!    do nothing.
//! 6. A kernel has the bindings that `panoply_kernels::wgsl` describes: its storage buffers in
//!    group 1, the written ones first, and its parameters in group 0, or as words that the dispatch
//!    carries.
//!
//! In Vulkan's terms: a [`Driver::Buffer`] is a `VkBuffer` with its memory, a [`Driver::Pipeline`]
//! a `VkPipeline` with its layout, [`Driver::Bindings`] a `VkDescriptorSet`; words that a dispatch
//! carries are push constants, a [`Fence`] is a value of one timeline semaphore, and
//! [`Driver::Staging`] is a `VkBuffer` in memory that stays mapped.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::{HostBuffer, MemoryUse, Result};
use panoply_kernels::wgsl::WideKernel;

use crate::fault::Faults;

/// The number of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// One opened device of an API.
pub trait Driver: Sized + 'static {
    /// Device memory that kernels read and write, and that copies read and write.
    type Buffer: Send + 'static;
    /// A compiled kernel.
    type Pipeline: 'static;
    /// Buffers as a kernel sees them. Bindings fit every kernel that writes and reads as many
    /// buffers.
    type Bindings: 'static;
    /// Memory that host and device both reach.
    type Staging: Staging;
    /// Commands under construction.
    type Commands: Commands<Self>;

    /// Receives lost devices and errors.
    fn faults(&self) -> &Arc<Faults>;

    /// The fastest way to split large transfers.
    fn transfers(&self) -> Transfers;

    /// Allocates device memory. `bytes` is a multiple of sixteen. The contents are undefined.
    fn buffer(&self, bytes: u64) -> Result<Self::Buffer>;

    /// The device's memory as the API reports it now, if it does.
    fn memory(&self) -> Option<MemoryUse> {
        None
    }

    /// Host memory as a buffer that kernels only read, and the offset of `bytes` in it, a multiple
    /// of sixteen. `None` if the device cannot reach the memory, or is faster with a copy. The
    /// buffer keeps the memory alive.
    fn in_place(&self, _host: &HostBuffer, _bytes: &[u8]) -> Option<(Self::Buffer, u64)> {
        None
    }

    /// Compiles a kernel. A text that the driver refuses is an error of the device.
    fn pipeline(&self, kernel: &KernelText<'_>) -> Result<Self::Pipeline>;

    /// Binds buffers for kernels of this shape: first those that are written, then those that are
    /// read.
    fn bindings(&self, pipeline: &Self::Pipeline, bound: &[BoundRange<'_, Self>]) -> Self::Bindings;

    /// Allocates memory that host and device both reach, of at least `bytes` bytes. The host owns
    /// it at first.
    fn staging(&self, bytes: u64, direction: Direction) -> Result<Self::Staging>;

    /// Begins an empty list of commands. Only one list exists at a time.
    fn commands(&self) -> Self::Commands;

    /// Whether a submission is known to have ended.
    fn is_past(&self, fence: Fence) -> bool;

    /// Reads the progress of the device without waiting for it.
    fn look(&self);

    /// Like [`Driver::look`], but waits until this submission has ended, at most `wait_max`.
    fn wait(&self, fence: Fence, wait_max: Duration);
}

/// Commands under construction, and the queue that they go to.
pub trait Commands<D: Driver> {
    /// Records a kernel over this many workgroups along each axis.
    fn dispatch(&mut self, pipeline: &D::Pipeline, bindings: &D::Bindings, params: Params<'_>, groups: [u32; 3]);

    /// Copies bytes from one buffer to another. Offsets and lengths are multiples of four, here and
    /// below; a length of 0 does nothing.
    fn copy(&mut self, from: BufferOffset<'_, D::Buffer>, to: BufferOffset<'_, D::Buffer>, bytes: u64);

    /// Fills bytes with zeros.
    fn clear(&mut self, target: BufferOffset<'_, D::Buffer>, bytes: u64);

    /// Copies bytes from the host, which hands the staging memory over before this is submitted.
    fn upload(&mut self, from: BufferOffset<'_, D::Staging>, to: BufferOffset<'_, D::Buffer>, bytes: u64);

    /// Copies bytes to the host, which gets the staging memory back after the submission.
    fn download(&mut self, from: BufferOffset<'_, D::Buffer>, to: BufferOffset<'_, D::Staging>, bytes: u64);

    /// Times the dispatches from here on. Returns whether the device can.
    fn start_timing(&mut self) -> bool;

    /// Ends the timing: pairs of stamps go to the start of the staging memory, which has
    /// [`STAMPS_BYTES_MAX`]. Returns their size in bytes; `None` if nothing was timed.
    fn end_timing(&mut self, to: &D::Staging) -> Option<usize>;

    /// Nanoseconds per tick of a time stamp.
    fn stamp_nanoseconds(&self) -> f64;

    /// Submits everything recorded to the queue, and starts a new recording. `params` holds the
    /// parameters that [`Params::At`] refers to, with their length in bytes.
    fn submit(&mut self, params: Option<(BufferOffset<'_, D::Staging>, u64)>) -> Fence;

    /// Discards everything recorded, and starts a new recording.
    fn discard(&mut self);
}

/// Memory that host and device both reach. Either the host owns it, or it is on loan to the device.
pub trait Staging: Send + Sync + 'static {
    /// Number of bytes.
    fn len_bytes(&self) -> u64;

    /// The first byte, while the host owns the memory; an error if the memory could not be mapped.
    /// Aligned to 16 bytes.
    fn start(&self) -> Result<NonNull<u8>>;

    /// Whether tensors may keep the memory as long as they like. Such memory is aligned to a page,
    /// and as fast as any other to read. Otherwise its bytes are copied.
    fn is_kept(&self) -> bool;

    /// Hands the memory over to the device, before commands that use it are submitted.
    fn hand_over(&self);

    /// Asks for the memory back, after the submission.
    fn call_back(&self);

    /// Whether the memory has come back, which is not before the submission has ended. Also true
    /// after an error.
    fn is_back(&self) -> bool;
}

/// Size of the most time stamps.
pub const STAMPS_BYTES_MAX: u64 = 2 * 8 * TIMED_PASSES_MAX as u64;
/// The most groups of dispatches in one submission that are timed.
pub const TIMED_PASSES_MAX: u32 = 32;

/// The direction in which memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The host writes, the device reads.
    Up,
    /// The device writes, the host reads.
    Down,
}

/// How large transfers are split, as measured for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfers {
    /// Size of one chunk of the ring for large uploads.
    pub chunk_bytes: usize,
    /// Number of chunks of the ring.
    pub chunks: usize,
    /// The most threads that copy into chunks.
    pub copiers_max: usize,
}

/// A position in a buffer.
pub struct BufferOffset<'a, B> {
    /// The buffer.
    pub buffer: &'a B,
    /// Offset in bytes.
    pub offset: u64,
}

/// The part of a buffer that a kernel sees.
pub struct BoundRange<'a, D: Driver> {
    /// The buffer.
    pub buffer: &'a D::Buffer,
    /// Offset in bytes, a multiple of 256.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A kernel to be compiled.
pub struct KernelText<'a> {
    /// The text in WGSL.
    pub source: &'a str,
    /// The entry point.
    pub entry: &'a str,
    /// Whether it is a caller's own kernel: its indices and loops are unknown, so it is compiled
    /// with checks of both. It must see only its buffers, which are runtime-sized arrays, and its
    /// parameters.
    pub checked: bool,
    /// Number of parameter words of a caller's own kernel.
    pub scalars: usize,
    /// Numbers of buffers that it writes and reads.
    pub shape: (usize, usize),
    /// Number of parameter words that each dispatch carries; `None` if the parameters come in a
    /// buffer.
    pub immediates: Option<usize>,
    /// The description of the kernel, if its matrices A and B, which the text calls f32, hold f16
    /// or bf16. Only for devices whose profile has such matrices; `None` for all other kernels.
    pub wide: Option<&'a WideKernel>,
}

/// A kernel's parameters.
#[derive(Clone, Copy)]
pub enum Params<'a> {
    /// Carried by the dispatch.
    Words(&'a [u32]),
    /// The offset in bytes in the parameters of the submission.
    At(u32),
}
