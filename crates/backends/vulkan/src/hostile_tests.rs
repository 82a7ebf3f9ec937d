//! Tests of hostile machines, drivers and files: each fault leads to a typed error or a correct
//! path.
//!
//! Failing drivers are real drivers with a few replaced functions. Each thread has its own faults,
//! so tests may run side by side. Tests that depend on environment variables run in a child
//! process, which is this test program again.

use std::cell::Cell;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;
use panoply_core::op::compute::{Map, Softmax, Transfer};
use panoply_core::{Absence, Backend, DeviceInfo, Engine, Error, OpenOptions, Tensor};
use panoply_kernels::cache::Cache;
use panoply_wgsl_gpu::driver::BufferOffset;
use panoply_wgsl_gpu::{Commands, Driver};

use crate::backend::{Messages, VulkanBackend, VulkanEngine};
use crate::buffer::VulkanBuffer;
use crate::commands::VulkanCommands;
use crate::driver::VulkanDriver;
use crate::gpu::Gpu;
use panoply_wgsl_gpu_testing::fault::run;

/// Set in the environment of a child process that runs a test.
const CHILD: &str = "PANOPLY_VULKAN_TEST_CHILD";

thread_local! {
    /// Number of allocations that succeed before all others fail.
    static ALLOCATIONS: Cell<u32> = const { Cell::new(u32::MAX) };
    /// The results of submissions, counters and compilers.
    static SUBMITTED: Cell<vk::Result> = const { Cell::new(vk::Result::SUCCESS) };
    static COUNTED: Cell<vk::Result> = const { Cell::new(vk::Result::SUCCESS) };
    static COMPILED: Cell<vk::Result> = const { Cell::new(vk::Result::SUCCESS) };
    /// The result of waits.
    static WAITED: Cell<vk::Result> = const { Cell::new(vk::Result::SUCCESS) };
    /// Number of barriers recorded, and of devices destroyed.
    static BARRIERS: Cell<u32> = const { Cell::new(0) };
    static DESTROYED: Cell<u32> = const { Cell::new(0) };
    /// The driver's own functions.
    static REAL: Cell<Option<Real>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Real {
    allocate: vk::PFN_vkAllocateMemory,
    submit: vk::PFN_vkQueueSubmit,
    count: vk::PFN_vkGetSemaphoreCounterValue,
    compile: vk::PFN_vkCreateComputePipelines,
    wait: vk::PFN_vkWaitSemaphores,
    barrier: vk::PFN_vkCmdPipelineBarrier,
    destroy: vk::PFN_vkDestroyDevice,
}

fn real() -> Real {
    REAL.get().unwrap()
}

unsafe extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    match ALLOCATIONS.get() {
        0 => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        left => {
            ALLOCATIONS.set(left.saturating_sub(u32::from(left != u32::MAX)));
            // SAFETY: the arguments are the caller's own.
            unsafe { (real().allocate)(device, info, callbacks, memory) }
        }
    }
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    match SUBMITTED.get() {
        // SAFETY: the arguments are the caller's own.
        vk::Result::SUCCESS => unsafe { (real().submit)(queue, count, infos, fence) },
        error => error,
    }
}

unsafe extern "system" fn count(device: vk::Device, semaphore: vk::Semaphore, value: *mut u64) -> vk::Result {
    match COUNTED.get() {
        // SAFETY: the arguments are the caller's own.
        vk::Result::SUCCESS => unsafe { (real().count)(device, semaphore, value) },
        // Some drivers report a lost device in this way.
        vk::Result::INCOMPLETE => {
            // SAFETY: the pointer is the caller's own.
            unsafe { *value = u64::MAX };
            vk::Result::SUCCESS
        }
        error => error,
    }
}

unsafe extern "system" fn compile(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    match COMPILED.get() {
        // SAFETY: the arguments are the caller's own.
        vk::Result::SUCCESS => unsafe { (real().compile)(device, cache, count, infos, callbacks, pipelines) },
        error => {
            // SAFETY: the caller has room for `count` handles.
            (0..count as usize).for_each(|place| unsafe { *pipelines.add(place) = vk::Pipeline::null() });
            error
        }
    }
}

unsafe extern "system" fn wait(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    nanoseconds: u64,
) -> vk::Result {
    match WAITED.get() {
        // SAFETY: the arguments are the caller's own.
        vk::Result::SUCCESS => unsafe { (real().wait)(device, info, nanoseconds) },
        other => other,
    }
}

#[allow(clippy::too_many_arguments)] // Vulkan's own.
unsafe extern "system" fn barrier(
    list: vk::CommandBuffer,
    from: vk::PipelineStageFlags,
    to: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    BARRIERS.set(BARRIERS.get() + 1);
    let barrier = real().barrier;
    // SAFETY: the arguments are the caller's own.
    unsafe {
        barrier(list, from, to, flags, memory_count, memory, buffer_count, buffers, image_count, images);
    }
}

unsafe extern "system" fn destroy(device: vk::Device, callbacks: *const vk::AllocationCallbacks<'_>) {
    DESTROYED.set(DESTROYED.get() + 1);
    // SAFETY: the arguments are the caller's own.
    unsafe { (real().destroy)(device, callbacks) }
}

/// Makes a device fail as this thread demands.
fn fragile(gpu: &mut Gpu) {
    let (mut first, mut third) = (gpu.raw.fp_v1_0().clone(), gpu.raw.fp_v1_2().clone());
    REAL.set(Some(Real {
        allocate: first.allocate_memory,
        submit: first.queue_submit,
        count: third.get_semaphore_counter_value,
        compile: first.create_compute_pipelines,
        wait: third.wait_semaphores,
        barrier: first.cmd_pipeline_barrier,
        destroy: first.destroy_device,
    }));
    (first.cmd_pipeline_barrier, first.destroy_device, third.wait_semaphores) = (barrier, destroy, wait);
    (first.allocate_memory, first.queue_submit, first.create_compute_pipelines) = (allocate, submit, compile);
    third.get_semaphore_counter_value = count;
    let (second, fourth) = (gpu.raw.fp_v1_1().clone(), gpu.raw.fp_v1_3().clone());
    gpu.raw = ash::Device::from_parts_1_3(gpu.raw.handle(), first, second, third, fourth);
}

/// The first device, or `None` if the machine has none; then the test prints that it is skipped.
fn first_device(backend: &VulkanBackend) -> Option<DeviceInfo> {
    match backend.discover() {
        Ok(devices) => devices.into_iter().next(),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

/// A fragile engine on the first device.
fn engine() -> Option<VulkanEngine> {
    let backend = VulkanBackend::new();
    let device = first_device(&backend)?;
    Some(backend.open_changed(&device, &OpenOptions::default(), fragile).unwrap())
}

fn numbers() -> Tensor {
    Tensor::from_vec(vec![1.0_f32, -2.0, 3.0], [3]).unwrap()
}

/// Checks that the engine computes the right result.
fn expect_negated(engine: &mut VulkanEngine) {
    let answer = run(engine, Map::neg(&numbers())).unwrap().into_tensor().unwrap();
    let back = run(engine, Transfer::to_host(&answer)).unwrap().into_tensor().unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), [-1.0, 2.0, -3.0]);
}

#[test]
fn no_loader_is_an_absence_with_what_was_tried() {
    // A library that does not exist, and a library that is not Vulkan.
    for library in ["/nowhere/libvulkan.so.1", "libc.so.6"] {
        match VulkanBackend::with_library(library).discover() {
            Err(Absence::LibraryMissing { tried }) => assert_eq!(tried, [library]),
            other => panic!("expected a missing library, got {other:?}"),
        }
    }
}

#[test]
fn a_loader_without_drivers_is_an_absence() {
    if std::env::var_os(CHILD).is_some() {
        match VulkanBackend::new().discover() {
            Err(Absence::NoDevice { reason }) => assert!(reason.contains("no driver"), "{reason}"),
            // On machines without a loader.
            Err(Absence::LibraryMissing { .. }) => {}
            other => panic!("expected an absence, got {other:?}"),
        }
        return;
    }
    let name = "hostile_tests::a_loader_without_drivers_is_an_absence";
    let variables = [("VK_DRIVER_FILES", "/nowhere.json"), ("VK_ICD_FILENAMES", "/nowhere.json")];
    assert!(child(name, &variables).status().unwrap().success());
}

#[test]
fn two_processes_share_a_device() {
    let backend = VulkanBackend::new();
    let Some(device) = first_device(&backend) else { return };
    let mut other = (std::env::var_os(CHILD).is_none())
        .then(|| child("hostile_tests::two_processes_share_a_device", &[]).spawn().unwrap());
    let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
    let mut rounds = 0;
    while rounds < 50 || other.as_mut().is_some_and(|other| other.try_wait().unwrap().is_none()) {
        expect_negated(&mut engine);
        rounds += 1;
    }
    if let Some(mut other) = other {
        assert!(other.wait().unwrap().success());
    }
}

#[test]
fn memory_that_is_not_there_is_told_and_the_rest_goes_on() {
    let Some(mut engine) = engine() else { return };
    expect_negated(&mut engine);
    ALLOCATIONS.set(0);
    let large = Tensor::from_vec(vec![1.0_f32; 20 << 20], [1 << 10, 20 << 10]).unwrap();
    match run(&mut engine, Softmax::new(&large)) {
        Err(Error::OutOfMemory { place, asked, .. }) => {
            assert_eq!(place, "vulkan:0");
            assert!(asked >= 80 << 20, "{asked}");
        }
        other => panic!("expected too little memory, got {other:?}"),
    }
    // Ops that fit into memory that is already allocated still run.
    expect_negated(&mut engine);
    ALLOCATIONS.set(u32::MAX);
    assert!(run(&mut engine, Softmax::new(&large)).is_ok());
}

#[test]
fn every_allocation_may_be_the_one_that_fails() {
    let Some(device) = first_device(&VulkanBackend::new()) else { return };
    let mut survived = 0;
    for allocations in 0..6 {
        let backend = VulkanBackend::new();
        backend.discover().unwrap();
        ALLOCATIONS.set(allocations);
        let mut engine = backend.open_changed(&device, &OpenOptions::default(), fragile).unwrap();
        match run(&mut engine, Map::neg(&numbers())) {
            Ok(_) => survived += 1,
            Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
        ALLOCATIONS.set(u32::MAX);
        expect_negated(&mut engine);
    }
    assert!(survived > 0, "a small op takes few allocations");
}

#[test]
fn a_lost_device_is_told_wherever_the_driver_says_so() {
    let lost = vk::Result::ERROR_DEVICE_LOST;
    for (submitted, counted) in
        [(lost, vk::Result::SUCCESS), (vk::Result::SUCCESS, lost), (vk::Result::SUCCESS, vk::Result::INCOMPLETE)]
    {
        let Some(mut engine) = engine() else { return };
        expect_negated(&mut engine);
        SUBMITTED.set(submitted);
        COUNTED.set(counted);
        let answer = run(&mut engine, Map::neg(&numbers()));
        assert!(matches!(answer, Err(Error::DeviceLost { .. })), "{answer:?}");
        assert!(matches!(engine.health().fault, Some(Error::DeviceLost { .. })));
        SUBMITTED.set(vk::Result::SUCCESS);
        COUNTED.set(vk::Result::SUCCESS);
        drop(engine);
        expect_negated(&mut self::engine().unwrap());
    }
}

#[test]
fn a_submission_that_fails_is_its_ops_error_alone() {
    let Some(mut engine) = engine() else { return };
    expect_negated(&mut engine);
    SUBMITTED.set(vk::Result::ERROR_OUT_OF_HOST_MEMORY);
    let answer = run(&mut engine, Map::neg(&numbers()));
    assert!(matches!(answer, Err(Error::DeviceFault { .. })), "{answer:?}");
    SUBMITTED.set(vk::Result::SUCCESS);
    expect_negated(&mut engine);
}

/// The start of a buffer.
fn place(buffer: &VulkanBuffer) -> BufferOffset<'_, VulkanBuffer> {
    BufferOffset { buffer, offset: 0 }
}

/// Number of barriers that a copy takes.
fn barriers_of_a_copy(driver: &VulkanDriver, commands: &mut VulkanCommands, [from, to]: [&VulkanBuffer; 2]) -> u32 {
    let before = BARRIERS.get();
    commands.copy(place(from), place(to), 64);
    let fence = commands.submit(None);
    driver.wait(fence, Duration::from_secs(5));
    BARRIERS.get() - before
}

#[test]
fn what_was_discarded_or_not_submitted_leaves_its_barriers_and_frees_its_memory() {
    let Some(mut engine) = engine() else { return };
    let driver = Rc::clone(&engine.context().driver);
    let mut commands = driver.commands();
    for fails in [false, true] {
        let (from, to, third) = (driver.buffer(64).unwrap(), driver.buffer(64).unwrap(), driver.buffer(64).unwrap());
        commands.clear(place(&from), 64);
        let fence = commands.submit(None);
        driver.wait(fence, Duration::from_secs(5));
        // The barrier between the fill and its reader is recorded, and never runs.
        let before = BARRIERS.get();
        commands.copy(place(&from), place(&third), 64);
        assert_eq!(BARRIERS.get() - before, 1, "fails: {fails}");
        if fails {
            SUBMITTED.set(vk::Result::ERROR_OUT_OF_HOST_MEMORY);
            commands.submit(None);
            SUBMITTED.set(vk::Result::SUCCESS);
            assert!(driver.faults().take_error().is_some());
        } else {
            commands.discard();
        }
        // Memory that only that recording has used is free at once.
        drop(third);
        driver.look();
        assert_eq!(driver.gpu.retired(), 0, "fails: {fails}");
        assert_eq!(barriers_of_a_copy(&driver, &mut commands, [&from, &to]), 1, "fails: {fails}");
        drop((from, to));
        driver.look();
        assert_eq!(driver.gpu.retired(), 0, "fails: {fails}");
    }
    assert!(engine.context().driver.faults().take_error().is_none());
}

/// The leaked device lives until the process ends: nothing may be destroyed that the device still
/// uses.
#[test]
fn a_device_that_does_not_end_its_work_is_left_and_not_waited_for() {
    let Some(mut engine) = engine() else { return };
    expect_negated(&mut engine);
    let (started, destroyed) = (std::time::Instant::now(), DESTROYED.get());
    WAITED.set(vk::Result::TIMEOUT);
    drop(engine);
    WAITED.set(vk::Result::SUCCESS);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(DESTROYED.get(), destroyed, "a device in use was destroyed");
    let engine = self::engine().unwrap();
    drop(engine);
    assert_eq!(DESTROYED.get(), destroyed + 1);
}

#[test]
fn a_kernel_that_a_driver_does_not_take_is_a_fault_and_no_panic() {
    let Some(mut engine) = engine() else { return };
    COMPILED.set(vk::Result::ERROR_UNKNOWN);
    let answer = run(&mut engine, Map::neg(&numbers()));
    assert!(matches!(answer, Err(Error::DeviceFault { .. })), "{answer:?}");
    COMPILED.set(vk::Result::SUCCESS);
    expect_negated(&mut engine);
}

#[test]
fn caches_that_are_damaged_or_of_others_are_replaced() {
    let folder = std::env::temp_dir().join(format!("panoply-vulkan-cache-{}", std::process::id()));
    let backend = || VulkanBackend::with_cache(Cache::open_in(folder.clone()).unwrap());
    let Some(device) = first_device(&backend()) else { return };
    let mut engine = backend().open_engine(&device, &OpenOptions::default()).unwrap();
    expect_negated(&mut engine);
    let (key, header) = {
        let adapter = engine.context().driver.gpu.adapter();
        (adapter.cache_key.clone(), adapter.cache_header)
    };
    drop(engine);
    let cache = Cache::open_in(folder.clone()).unwrap();
    let own = cache.read(key.as_bytes()).unwrap();
    assert!(header.begins(&own), "the driver writes its own header");
    let mut foreign = own.clone();
    foreign[16] ^= 1;
    // Only a user who may write to the user's folder can make a file with a right header and
    // nonsense behind it.
    let garbled = [&own[..32], &[0x5a; 64][..]].concat();
    for data in [&b"nonsense"[..], &[], &foreign, &own[..own.len() / 2], &garbled] {
        cache.write(key.as_bytes(), data);
        let mut engine = backend().open_engine(&device, &OpenOptions::default()).unwrap();
        expect_negated(&mut engine);
        drop(engine);
        assert!(header.begins(&cache.read(key.as_bytes()).unwrap()), "{} bytes were not replaced", data.len());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The conformance tests with validation layers prove nothing if the layers report nothing.
#[test]
fn validation_layers_are_heard() {
    let messages = Arc::new(Messages::default());
    let backend = VulkanBackend::new().validated(&messages);
    let Some(device) = first_device(&backend) else { return };
    let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
    expect_negated(&mut engine);
    assert!(messages.list().is_empty(), "{:?}", messages.list());
    // SAFETY: a pool without sets is an error that drivers survive.
    unsafe {
        let gpu = &engine.context().driver.gpu;
        if let Ok(pool) = gpu.raw.create_descriptor_pool(&vk::DescriptorPoolCreateInfo::default(), None) {
            gpu.raw.destroy_descriptor_pool(pool, None);
        }
    }
    assert!(messages.list().iter().any(|message| message.contains("maxSets")), "{:?}", messages.list());
}

/// This program again, with one test and these environment variables.
fn child(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).env(CHILD, "1").envs(variables.iter().copied());
    command.stdout(std::process::Stdio::null());
    command
}
