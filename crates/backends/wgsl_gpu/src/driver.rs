//! What an API must do for the engine: memory, kernels, commands, and the way back to the host.
//!
//! A backend implements three traits: [`Driver`] makes things and knows how far the device is, [`Commands`] records what the
//! device is to do, [`Staging`] is memory that host and device both reach. Everything else (which kernels an op takes, what is
//! cut into pieces, what waits to be joined, when to submit, what is cached) is the engine's, and is the same for all APIs.
//! The rules:
//!
//! 1. One thread makes a driver, owns it and calls it. What goes to other threads is [`Send`]: buffers and staging memory.
//! 2. Commands take effect as if one after the other. A driver puts barriers where a command touches what an earlier one
//!    wrote; it knows what a dispatch writes and reads from its bindings.
//! 3. Buffers, bindings, pipelines and staging memory may be dropped while commands that use them are recorded or under way:
//!    a driver frees them when those are over.
//! 4. Submissions are numbered from 1 on. With several queues one that only copies may end before an earlier one. Nothing
//!    waits for the device but [`Driver::wait`], and [`Driver::buffer`] for memory that work under way still holds.
//! 5. A lost device and errors that belong to no call are told to [`Faults`]. Calls after that may do nothing.
//! 6. A kernel has the bindings that `panoply_kernels::wgsl` describes: its storage buffers in group 1, the written ones first,
//!    and its parameters in group 0, or as words that come with the dispatch.
//!
//! With Vulkan's own words: a [`Driver::Buffer`] is a `VkBuffer` with its memory, a [`Driver::Pipeline`] a `VkPipeline` with
//! its layout, [`Driver::Bindings`] a `VkDescriptorSet`, words that come with a dispatch are push constants, a [`Fence`] is a
//! value of one timeline semaphore, and [`Driver::Staging`] is a `VkBuffer` in memory that stays mapped.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::{HostBuffer, Result};
use panoply_kernels::wgsl::WideKernel;

use crate::fault::Faults;

/// The number of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// One opened device of an API.
pub trait Driver: Sized + 'static {
    /// Memory of the device that kernels read and write, and that is copied from and to.
    type Buffer: Send + 'static;
    /// A compiled kernel.
    type Pipeline: 'static;
    /// Buffers as a kernel sees them. Bindings fit every kernel that writes and reads as many.
    type Bindings: 'static;
    /// Memory that host and device both reach.
    type Staging: Staging;
    /// Commands under construction.
    type Commands: Commands<Self>;

    /// Where lost devices and errors are told.
    fn faults(&self) -> &Arc<Faults>;

    /// What the driver is best at.
    fn transfers(&self) -> Transfers;

    /// New memory of the device, of so many bytes, a multiple of sixteen. What is in it is not known.
    fn buffer(&self, bytes: u64) -> Result<Self::Buffer>;

    /// Memory of the host as a buffer that kernels only read, and how many bytes of it come before these, a multiple of
    /// sixteen. Nothing where the device cannot reach them, or is faster with a copy. The buffer keeps the memory.
    fn in_place(&self, _host: &HostBuffer, _bytes: &[u8]) -> Option<(Self::Buffer, u64)> {
        None
    }

    /// Compiles a kernel. A text that this driver does not take is an error of the device.
    fn pipeline(&self, kernel: &KernelText<'_>) -> Result<Self::Pipeline>;

    /// Binds buffers for kernels of this one's shape: the written ones, then those that are read.
    fn bindings(&self, pipeline: &Self::Pipeline, bound: &[Bound<'_, Self>]) -> Self::Bindings;

    /// New memory that host and device both reach, of at least so many bytes. It is the host's.
    fn staging(&self, bytes: u64, direction: Direction) -> Result<Self::Staging>;

    /// An empty list of commands. There is one at a time.
    fn commands(&self) -> Self::Commands;

    /// Whether a submission has ended, as far as is known.
    fn is_past(&self, fence: Fence) -> bool;

    /// Finds out how far the device is, without waiting for it.
    fn look(&self);

    /// As [`Driver::look`], and waits until this submission has ended, or for so long.
    fn wait(&self, fence: Fence, wait_max: Duration);
}

/// Commands under construction, and the queue that they go to.
pub trait Commands<D: Driver> {
    /// A kernel over so many workgroups along each axis.
    fn dispatch(&mut self, pipeline: &D::Pipeline, bindings: &D::Bindings, params: Params<'_>, groups: [u32; 3]);

    /// Bytes from one buffer to another. Places and lengths are multiples of four, here and below.
    fn copy(&mut self, from: Place<'_, D::Buffer>, to: Place<'_, D::Buffer>, bytes: u64);

    /// Zeros.
    fn clear(&mut self, target: Place<'_, D::Buffer>, bytes: u64);

    /// Bytes from the host, which has handed the staging memory over by the time that this is submitted.
    fn upload(&mut self, from: Place<'_, D::Staging>, to: Place<'_, D::Buffer>, bytes: u64);

    /// Bytes to the host, which gets the staging memory back after the submission.
    fn download(&mut self, from: Place<'_, D::Buffer>, to: Place<'_, D::Staging>, bytes: u64);

    /// Times the dispatches from here on. Returns whether the device can.
    fn start_timing(&mut self) -> bool;

    /// Ends the timing: pairs of stamps go to the start of the staging memory, which has [`STAMPS_BYTES_MAX`]. Returns how
    /// many bytes they are; nothing where nothing was timed.
    fn end_timing(&mut self, to: &D::Staging) -> Option<usize>;

    /// Nanoseconds between two stamps that differ by one.
    fn stamp_nanoseconds(&self) -> f64;

    /// Hands everything recorded to the queue, and begins anew. `params` is what [`Params::At`] counts in, with its length
    /// in bytes.
    fn submit(&mut self, params: Option<(Place<'_, D::Staging>, u64)>) -> Fence;

    /// Forgets everything recorded, and begins anew.
    fn discard(&mut self);
}

/// Memory that host and device both reach: the host's, or on loan to the device.
pub trait Staging: Send + Sync + 'static {
    /// How many bytes there are.
    fn len_bytes(&self) -> u64;

    /// The first byte, while the memory is the host's; an error where it could not be had. Aligned to 16 bytes.
    fn start(&self) -> Result<NonNull<u8>>;

    /// Whether tensors may keep the memory for as long as they like, in which case it is aligned to a page, and as fast as
    /// any other to read. Else its bytes are copied.
    fn is_kept(&self) -> bool;

    /// Hands the memory over, before commands that use it are submitted.
    fn hand_over(&self);

    /// Asks for the memory back, after the submission.
    fn call_back(&self);

    /// Whether the memory has come back. It does not before the submission has ended; an error ends the waiting too.
    fn is_back(&self) -> bool;
}

/// The most bytes of time stamps.
pub const STAMPS_BYTES_MAX: u64 = 2 * 8 * TIMED_PASSES_MAX as u64;
/// The most stretches of dispatches in one submission that are timed.
pub const TIMED_PASSES_MAX: u32 = 32;

/// Which way memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The host writes, the device reads.
    Up,
    /// The device writes, the host reads.
    Down,
}

/// How large transfers are spread, as measured for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfers {
    /// Bytes of one chunk of the ring for large uploads.
    pub chunk_bytes: usize,
    /// Chunks of the ring.
    pub chunks: usize,
    /// The most threads that copy into them.
    pub copiers_max: usize,
}

/// A place in a buffer.
pub struct Place<'a, B> {
    /// The buffer.
    pub buffer: &'a B,
    /// Bytes before it.
    pub offset: u64,
}

/// What a kernel sees of a buffer.
pub struct Bound<'a, D: Driver> {
    /// The buffer.
    pub buffer: &'a D::Buffer,
    /// Bytes before it, a multiple of 256.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// A kernel to be compiled.
pub struct KernelText<'a> {
    /// WGSL.
    pub source: &'a str,
    /// Its entry point.
    pub entry: &'a str,
    /// Whether it is of the caller's own: nothing is known about its indices and loops, and it is compiled with checks of both.
    /// It must see nothing but its buffers, which are runtime-sized arrays, and its parameters.
    pub checked: bool,
    /// How many words of parameters one of the caller's own has.
    pub scalars: usize,
    /// How many buffers it writes and reads.
    pub shape: (usize, usize),
    /// How many words of parameters come with each dispatch; nothing where they come in a buffer.
    pub immediates: Option<usize>,
    /// What the text was made of, where its matrices A and B, which it calls f32, hold f16 or bf16. Only for devices whose profile
    /// has such matrices; nothing for all other kernels.
    pub wide: Option<&'a WideKernel>,
}

/// A kernel's parameters.
#[derive(Clone, Copy)]
pub enum Params<'a> {
    /// They come with the dispatch.
    Words(&'a [u32]),
    /// So many bytes into those of the submission.
    At(u32),
}
