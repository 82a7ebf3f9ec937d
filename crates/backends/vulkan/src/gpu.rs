//! One opened device, shared by all objects that were made on it.
//!
//! 1. Work goes to lanes. A lane is a queue with a timeline semaphore that counts the submissions
//!    that have ended. Kernels have one lane, and large copies another if the device has a queue
//!    for them. Only the driver's thread submits.
//! 2. Each object that commands name remembers the last value of each lane that uses it
//!    ([`LastUses`]). When the object is dropped, on any thread, it is retired with these values.
//!    It is destroyed once the lanes have reached the values: the driver looks now and then. Values
//!    that were only recorded count while a recording is under construction; a discarded recording
//!    never runs.
//! 3. When the driver is dropped it waits a limited time for its work, then everything retired is
//!    destroyed. Objects that are dropped later are destroyed at once, if their work has ended. The
//!    device itself is destroyed with the last object that was made on it.
//! 4. A lost device has no work: all its values have passed. No wait is without a limit: objects
//!    that are still in use after the wait are never destroyed before the process ends.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ash::vk;
use panoply_core::{Error, HostBuffer, MemoryUse};
use panoply_wgsl_gpu::fault::Faults;
use panoply_wgsl_gpu::pages::Pages;

use crate::adapter::{Adapter, memory as memory_of, memory_types};
use crate::bfloat16::{BFLOAT16_NAME, Bfloat16Features};
use crate::bindings::Sets;
use crate::loader::Loader;
use crate::memory::{BlockPart, Memory};
use crate::quirks::Copies;

/// The longest wait for work that must have ended before its objects are destroyed.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// After this many failed reads in a row, a counter counts as unreadable and the device as lost.
const FAILED_LOOKS_MAX: u32 = 1000;

/// One opened device.
pub(crate) struct Gpu {
    pub(crate) raw: ash::Device,
    pub(crate) faults: Arc<Faults>,
    pub(crate) compute: Lane,
    pub(crate) transfer: Option<Lane>,
    pub(crate) import: Option<Import>,
    /// The queue families that share buffers.
    pub(crate) families: Vec<u32>,
    memory: Mutex<Memory>,
    sets: Mutex<Sets>,
    retired: Mutex<Vec<(RetiredObject, LaneValues)>>,
    retired_count: AtomicUsize,
    /// A recording is under construction, neither submitted nor discarded.
    is_recording: AtomicBool,
    /// The driver is gone, so no thread calls `look` regularly any more.
    is_abandoned: AtomicBool,
    /// The lost device was waited for once.
    was_waited_for: AtomicBool,
    is_still: AtomicBool,
    adapter: Adapter,
    /// Declared after everything that was made from it.
    loader: Arc<Loader>,
}

/// The functions to import host memory, and the alignment that they need.
pub(crate) struct Import {
    pub(crate) functions: ash::ext::external_memory_host::Device,
    pub(crate) step_bytes: u64,
}

/// A queue, and the progress of its work.
pub(crate) struct Lane {
    pub(crate) queue: vk::Queue,
    pub(crate) family: u32,
    pub(crate) timeline: vk::Semaphore,
    /// The last value that is known to have ended, and the last value that was submitted.
    past: AtomicU64,
    pub(crate) submitted: AtomicU64,
    /// Number of failed reads of the counter in a row.
    failed_looks: AtomicU32,
}

/// A value of each lane; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneValues {
    pub(crate) compute: u64,
    pub(crate) transfer: u64,
}

/// The last value of each lane that uses an object.
#[derive(Debug, Default)]
pub(crate) struct LastUses {
    compute: AtomicU64,
    transfer: AtomicU64,
}

impl LastUses {
    pub(crate) fn on_compute(&self, value: u64) {
        self.compute.store(value, Ordering::Relaxed);
    }

    pub(crate) fn on_transfer(&self, value: u64) {
        self.transfer.store(value, Ordering::Relaxed);
    }

    pub(crate) fn stamp(&self) -> LaneValues {
        LaneValues { compute: self.compute.load(Ordering::Relaxed), transfer: self.transfer.load(Ordering::Relaxed) }
    }
}

/// An object that is destroyed once its last use has ended.
pub(crate) enum RetiredObject {
    Buffer(vk::Buffer, BufferMemory),
    Pipeline(vk::Pipeline),
    Set(vk::DescriptorSet, usize),
    Commands(vk::CommandPool),
    Queries(vk::QueryPool),
    Descriptors(vk::DescriptorPool),
}

/// The memory of a buffer.
pub(crate) enum BufferMemory {
    /// A part of a block.
    Part(BlockPart),
    /// Pages of this process, imported.
    Pages(vk::DeviceMemory, #[allow(dead_code)] Pages),
    /// A tensor's memory, imported.
    Host(vk::DeviceMemory, #[allow(dead_code)] HostBuffer),
}

impl Gpu {
    /// Opens a device.
    pub(crate) fn open(
        loader: &Arc<Loader>,
        adapter: &Adapter,
        faults: &Arc<Faults>,
        copies: Copies,
    ) -> Result<Gpu, vk::Result> {
        let transfer_family = match copies {
            Copies::Inline => None,
            Copies::Beside => adapter.transfer_family,
            Copies::Apart => Some(adapter.transfer_family.unwrap_or(adapter.compute_family)),
        };
        let raw = create(loader, adapter, transfer_family)?;
        let types = memory_types(loader, adapter.physical);
        let mut families = vec![adapter.compute_family];
        families.extend(transfer_family.filter(|family| *family != adapter.compute_family));
        let import = adapter.has.import_step_bytes.map(|step_bytes| Import {
            functions: ash::ext::external_memory_host::Device::new(&loader.instance, &raw),
            step_bytes,
        });
        let lane = |family: u32| Lane::new(&raw, family);
        let lanes = lane(adapter.compute_family).and_then(|compute| match transfer_family.map(lane).transpose() {
            Ok(transfer) => Ok((compute, transfer)),
            Err(error) => {
                // SAFETY: no work uses the semaphore.
                unsafe { raw.destroy_semaphore(compute.timeline, None) };
                Err(error)
            }
        });
        let (compute, transfer) = lanes.inspect_err(|_| {
            // SAFETY: nothing else that was made on the device exists.
            unsafe { raw.destroy_device(None) };
        })?;
        Ok(Gpu {
            raw,
            faults: Arc::clone(faults),
            compute,
            transfer,
            import,
            families,
            memory: Mutex::new(Memory::new(types, adapter.has.allocations_max)),
            sets: Mutex::default(),
            retired: Mutex::default(),
            retired_count: AtomicUsize::new(0),
            is_recording: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            was_waited_for: AtomicBool::new(false),
            is_still: AtomicBool::new(false),
            adapter: adapter.clone(),
            loader: Arc::clone(loader),
        })
    }

    /// The description of the device.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The blocks of memory that buffers are cut from.
    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pools of descriptor sets.
    pub(crate) fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns a Vulkan error in `what` into an error of this device. If the device is lost, this is
    /// noted.
    pub(crate) fn error(&self, what: &str, error: vk::Result) -> Error {
        if error == vk::Result::ERROR_DEVICE_LOST {
            self.faults.lose(format!("Vulkan says so ({what})"));
        }
        self.faults.lost().unwrap_or_else(|| self.faults.fault(format!("{what}: {error}")))
    }

    /// The same for an allocation of `asked` bytes.
    pub(crate) fn memory_error(&self, error: vk::Result, asked: u64) -> Error {
        match error {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_MEMORY_MAP_FAILED
            | vk::Result::ERROR_TOO_MANY_OBJECTS => {
                let free = self.free_bytes().unwrap_or(0);
                Error::OutOfMemory { place: self.faults.device().to_string(), asked, free, largest: free }
            }
            other => self.error("memory", other),
        }
    }

    /// Bytes of device memory that this process may still allocate, if the driver reports it.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        memory_of(&self.loader, self.adapter.physical, self.adapter.has.memory_budget).1
    }

    /// The device's memory, if the driver reports how much of it is free.
    pub(crate) fn memory_use(&self) -> Option<MemoryUse> {
        let (total, free) = memory_of(&self.loader, self.adapter.physical, self.adapter.has.memory_budget);
        Some(MemoryUse::new(total?, free?))
    }

    /// Whether the driver would have to evict other memory from the device for `bytes` more bytes.
    pub(crate) fn is_over_budget(&self, bytes: u64) -> bool {
        self.adapter.has.memory_budget && self.free_bytes().is_some_and(|free| free < bytes)
    }

    /// The device's lanes: for kernels and, if there is one, for copies.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        [Some(&self.compute), self.transfer.as_ref()].into_iter().flatten()
    }

    /// Reads how far the lanes are, and destroys retired objects whose work has ended.
    pub(crate) fn look(&self) {
        for lane in self.lanes() {
            if lane.past() < lane.submitted.load(Ordering::Relaxed) {
                lane.look(self);
            }
        }
        self.collect();
    }

    /// Whether the work up to this stamp is known to have ended.
    pub(crate) fn is_past(&self, stamp: LaneValues) -> bool {
        stamp.compute <= self.compute.past()
            && self.transfer.as_ref().is_none_or(|transfer| stamp.transfer <= transfer.past())
    }

    /// The lanes' values after everything that was submitted.
    pub(crate) fn submitted(&self) -> LaneValues {
        let submitted = |lane: &Lane| lane.submitted.load(Ordering::Relaxed);
        LaneValues { compute: submitted(&self.compute), transfer: self.transfer.as_ref().map_or(0, submitted) }
    }

    /// Sets whether a recording is under construction from now on.
    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.is_recording.store(is_recording, Ordering::Release);
    }

    /// Waits until the work up to this stamp has ended, at most `wait_max`.
    pub(crate) fn wait(&self, stamp: LaneValues, wait_max: Duration) {
        if let Err(error) = self.wait_for(stamp, wait_max) {
            drop(self.error("waiting", error));
        }
        self.look();
    }

    /// Waits a limited time for everything submitted, and returns whether it has ended. On a lost
    /// device it has.
    fn is_idle(&self) -> bool {
        match self.wait_for(self.submitted(), IDLE_WAIT_MAX) {
            Ok(has_ended) => has_ended,
            Err(error) => error == vk::Result::ERROR_DEVICE_LOST,
        }
    }

    /// Waits at most `wait_max`, and returns whether the work up to this stamp has ended.
    fn wait_for(&self, stamp: LaneValues, wait_max: Duration) -> Result<bool, vk::Result> {
        let transfer = self.transfer.as_ref().map(|lane| (lane.timeline, stamp.transfer));
        let (semaphores, values): (Vec<_>, Vec<_>) =
            [Some((self.compute.timeline, stamp.compute)), transfer].into_iter().flatten().unzip();
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = u64::try_from(wait_max.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphores are the device's own.
        match unsafe { self.raw.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Destroys `what` once the work that uses it has ended.
    pub(crate) fn retire(&self, what: RetiredObject, stamp: LaneValues) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push((what, stamp));
        self.retired_count.store(retired.len(), Ordering::Relaxed);
        drop(retired);
        if self.is_abandoned.load(Ordering::Acquire) {
            self.look();
        }
    }

    /// Ends the driver: waits a limited time for its work, then destroys the retired objects.
    pub(crate) fn abandon(&self, wait_max: Duration) {
        if self.faults.lost().is_none() {
            self.wait(self.submitted(), wait_max);
        }
        self.is_abandoned.store(true, Ordering::Release);
        self.look();
    }

    /// Number of objects that wait for their destruction.
    #[cfg(test)]
    pub(crate) fn retired(&self) -> usize {
        self.retired_count.load(Ordering::Relaxed)
    }

    /// Destroys retired objects whose work has ended.
    pub(crate) fn collect(&self) {
        if self.retired_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_lost = self.faults.lost().is_some();
        if is_lost && !self.is_still.load(Ordering::Relaxed) {
            // On a lost device this returns soon. Only the driver's thread submits; that is this
            // thread, or the driver is gone.
            if self.was_waited_for.swap(true, Ordering::Relaxed) || !self.is_idle() {
                return;
            }
            self.is_still.store(true, Ordering::Relaxed);
        }
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        // A recording that is neither under construction nor submitted will never run.
        let is_over = self.is_abandoned.load(Ordering::Acquire) || !self.is_recording.load(Ordering::Acquire);
        let is_past =
            |stamp: &LaneValues| is_lost || self.is_past(if is_over { self.within_submitted(*stamp) } else { *stamp });
        let (over, kept): (Vec<_>, Vec<_>) = retired.drain(..).partition(|(_, stamp)| is_past(stamp));
        *retired = kept;
        self.retired_count.store(retired.len(), Ordering::Relaxed);
        drop(retired);
        over.into_iter().for_each(|(what, _)| self.destroy(what));
    }

    /// The stamp, limited to values that were submitted.
    fn within_submitted(&self, stamp: LaneValues) -> LaneValues {
        let submitted = self.submitted();
        LaneValues { compute: stamp.compute.min(submitted.compute), transfer: stamp.transfer.min(submitted.transfer) }
    }

    fn destroy(&self, what: RetiredObject) {
        let device = &self.raw;
        // SAFETY: each object was made on this device, and no work that runs or will run uses it.
        unsafe {
            match what {
                RetiredObject::Buffer(buffer, held) => {
                    device.destroy_buffer(buffer, None);
                    match held {
                        BufferMemory::Part(part) => self.memory().free(device, &part),
                        BufferMemory::Pages(memory, _) | BufferMemory::Host(memory, _) => {
                            device.free_memory(memory, None);
                            self.memory().discount();
                        }
                    }
                }
                RetiredObject::Pipeline(pipeline) => device.destroy_pipeline(pipeline, None),
                RetiredObject::Set(set, pool) => self.sets().free(device, set, pool),
                RetiredObject::Commands(pool) => device.destroy_command_pool(pool, None),
                RetiredObject::Queries(pool) => device.destroy_query_pool(pool, None),
                RetiredObject::Descriptors(pool) => device.destroy_descriptor_pool(pool, None),
            }
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.is_idle() {
            // The device may still use its objects: leak them, and the library too.
            let retired = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
            std::mem::forget(retired);
            return std::mem::forget(Arc::clone(&self.loader));
        }
        let retired = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        retired.into_iter().for_each(|(what, _)| self.destroy(what));
        self.sets().destroy(&self.raw);
        self.memory().destroy(&self.raw);
        for lane in self.lanes() {
            // SAFETY: no work is left that would signal the semaphore.
            unsafe { self.raw.destroy_semaphore(lane.timeline, None) };
        }
        // SAFETY: all objects that were made on the device are destroyed: each of them held this
        // `Gpu`.
        unsafe { self.raw.destroy_device(None) };
    }
}

impl Lane {
    fn new(device: &ash::Device, family: u32) -> Result<Lane, vk::Result> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device was made with a queue of this family and with timeline semaphores.
        let (queue, timeline) = unsafe { (device.get_device_queue(family, 0), device.create_semaphore(&info, None)?) };
        let (past, submitted, failed_looks) = Default::default();
        Ok(Lane { queue, family, timeline, past, submitted, failed_looks })
    }

    /// The last value that is known to have ended.
    pub(crate) fn past(&self) -> u64 {
        self.past.load(Ordering::Acquire)
    }

    fn look(&self, gpu: &Gpu) {
        // SAFETY: the semaphore is the device's own.
        match unsafe { gpu.raw.get_semaphore_counter_value(self.timeline) } {
            // Some drivers report values that were never submitted when the device is lost.
            Ok(value) if value > self.submitted.load(Ordering::Relaxed) => {
                drop(gpu.error("a counter", vk::Result::ERROR_DEVICE_LOST));
            }
            Ok(value) => {
                self.past.fetch_max(value, Ordering::AcqRel);
                self.failed_looks.store(0, Ordering::Relaxed);
            }
            Err(error) => {
                drop(gpu.error("a counter", error));
                // Without a readable counter no work would ever end.
                if self.failed_looks.fetch_add(1, Ordering::Relaxed) >= FAILED_LOOKS_MAX {
                    gpu.faults.lose(format!("how far it is cannot be read: {error}"));
                }
            }
        }
    }
}

/// Creates the device with the features that kernels need, without robust buffer access: our
/// kernels stay inside their buffers, and callers' kernels are compiled with checks of their own.
fn create(loader: &Loader, adapter: &Adapter, transfer: Option<u32>) -> Result<ash::Device, vk::Result> {
    let has = &adapter.has;
    let matrices = adapter.profile.matrix_units;
    let mut names = Vec::new();
    let wanted = [
        (ash::ext::external_memory_host::NAME, has.import_step_bytes.is_some()),
        (ash::ext::memory_budget::NAME, has.memory_budget),
        (ash::khr::cooperative_matrix::NAME, matrices),
        (BFLOAT16_NAME, adapter.profile.wide_matrices.bf16),
        (ash::khr::portability_subset::NAME, has.portability_subset),
    ];
    names.extend(wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name.as_ptr()));
    let mut features11 = vk::PhysicalDeviceVulkan11Features::default()
        .storage_buffer16_bit_access(has.f16)
        .uniform_and_storage_buffer16_bit_access(has.f16);
    let mut features12 = vk::PhysicalDeviceVulkan12Features::default()
        .timeline_semaphore(true)
        .shader_float16(has.f16)
        .vulkan_memory_model(matrices);
    let mut features13 = vk::PhysicalDeviceVulkan13Features::default()
        .subgroup_size_control(has.asks_subgroup_size)
        .shader_zero_initialize_workgroup_memory(has.zero_workgroup_memory);
    let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut bf16 = Bfloat16Features::wanted();
    let other = transfer.filter(|family| *family != adapter.compute_family);
    let queue = |family: u32| vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0]);
    let queues: Vec<_> = [Some(adapter.compute_family), other].into_iter().flatten().map(queue).collect();
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .push_next(&mut features11)
        .push_next(&mut features12);
    if has.version >= vk::API_VERSION_1_3 {
        info = info.push_next(&mut features13);
    }
    if matrices {
        info = info.push_next(&mut cooperative);
    }
    if adapter.profile.wide_matrices.bf16 {
        info = info.push_next(&mut bf16);
    }
    // SAFETY: the physical device belongs to the instance and supports all of this, and everything
    // that `info` points to is alive.
    unsafe { loader.instance.create_device(adapter.physical, &info, None) }
}
