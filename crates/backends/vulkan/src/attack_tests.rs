//! Tests with drivers that fail in any call, and drivers that lie. Each call that can fail fails,
//! once or always, with every error that matters; properties that a driver reports are replaced
//! by nonsense. In every case an op returns a typed error or its right result, nothing hangs or
//! panics, a device that is not lost continues to work, and Vulkan's validation layers report
//! nothing.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;
use panoply_core::op::compute::{Map, Softmax, Transfer};
use panoply_core::{Backend, DeviceInfo, Engine, Error, OpenOptions, Result, Tensor};

use crate::backend::{Messages, VulkanBackend, VulkanEngine};
use crate::gpu::Gpu;
use crate::loader::{Loader, LoaderOptions};
use crate::quirks::{Copies, Memory, TransferWays, WAYS};
use panoply_wgsl_gpu_testing::fault::run;

/// A call that fails: its name, how many calls succeed first, which error it returns, and whether
/// it then fails always.
#[derive(Clone, Copy, Debug)]
struct InjectedFailure {
    function: &'static str,
    after: u32,
    says: vk::Result,
    for_good: bool,
}

thread_local! {
    static TROUBLE: Cell<Option<InjectedFailure>> = const { Cell::new(None) };
    /// The number of calls of each function.
    static CALLS: RefCell<HashMap<&'static str, u32>> = RefCell::default();
    static REAL: Cell<Option<Real>> = const { Cell::new(None) };
    /// The device, and the function that waits until it is idle.
    static DEVICE: Cell<Option<(vk::Device, vk::PFN_vkDeviceWaitIdle)>> = const { Cell::new(None) };
    /// The number of devices that were destroyed.
    static DESTROYED: Cell<u32> = const { Cell::new(0) };
}

/// The error that a call returns instead of being made, if any.
fn told(function: &'static str) -> Option<vk::Result> {
    let before = CALLS.with_borrow_mut(|calls| {
        let count = calls.entry(function).or_default();
        *count += 1;
        *count - 1
    });
    let trouble = TROUBLE.get().filter(|trouble| trouble.function == function)?;
    let says = (before == trouble.after || trouble.for_good && before > trouble.after).then_some(trouble.says);
    if says == Some(vk::Result::ERROR_DEVICE_LOST) {
        come_to_rest();
    }
    says
}

/// Waits until the device is idle. A really lost device does nothing any more and its memory may be
/// freed; a device that only claims to be lost must finish its submitted work first.
fn come_to_rest() {
    let Some((device, wait)) = DEVICE.get() else { return };
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: the device lives as long as the test that waits for this thread, and nothing is
        // submitted meanwhile.
        let _ = ended.send(unsafe { wait(device) });
    });
    let ended = end.recv_timeout(std::time::Duration::from_secs(20));
    assert!(ended.is_ok(), "what was submitted waits for something that nobody submits");
}

/// Replaces functions of a device that can fail.
macro_rules! functions {
    ($($table:ident.$name:ident: $kind:ident($($argument:ident: $type:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct Real {
            $($name: vk::$kind,)*
            destroy_device: vk::PFN_vkDestroyDevice,
        }

        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        $(unsafe extern "system" fn $name($($argument: $type),*) -> vk::Result {
            match told(stringify!($name)) {
                Some(error) => error,
                // SAFETY: the arguments are the caller's own.
                None => unsafe { (REAL.get().unwrap().$name)($($argument),*) },
            }
        })*

        /// Makes a device fail as this thread demands.
        fn fragile(gpu: &mut Gpu) {
            let (mut first, second) = (gpu.raw.fp_v1_0().clone(), gpu.raw.fp_v1_1().clone());
            let (mut third, fourth) = (gpu.raw.fp_v1_2().clone(), gpu.raw.fp_v1_3().clone());
            REAL.set(Some(Real { $($name: $table!(first, third).$name,)* destroy_device: first.destroy_device }));
            DEVICE.set(Some((gpu.raw.handle(), first.device_wait_idle)));
            $($table!(first, third).$name = $name;)*
            (first.destroy_device, first.create_compute_pipelines) = (destroy_device, compile);
            gpu.raw = ash::Device::from_parts_1_3(gpu.raw.handle(), first, second, third, fourth);
        }
    };
}

macro_rules! v1_0 {
    ($first:ident, $third:ident) => {
        $first
    };
}

macro_rules! v1_2 {
    ($first:ident, $third:ident) => {
        $third
    };
}

type Callbacks<'a> = *const vk::AllocationCallbacks<'a>;

functions! {
    v1_0.allocate_memory: PFN_vkAllocateMemory(device: vk::Device, info: *const vk::MemoryAllocateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::DeviceMemory);
    v1_0.map_memory: PFN_vkMapMemory(device: vk::Device, memory: vk::DeviceMemory, offset: u64, bytes: u64, flags: vk::MemoryMapFlags, start: *mut *mut std::ffi::c_void);
    v1_0.create_buffer: PFN_vkCreateBuffer(device: vk::Device, info: *const vk::BufferCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::Buffer);
    v1_0.bind_buffer_memory: PFN_vkBindBufferMemory(device: vk::Device, buffer: vk::Buffer, memory: vk::DeviceMemory, offset: u64);
    v1_0.create_command_pool: PFN_vkCreateCommandPool(device: vk::Device, info: *const vk::CommandPoolCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::CommandPool);
    v1_0.allocate_command_buffers: PFN_vkAllocateCommandBuffers(device: vk::Device, info: *const vk::CommandBufferAllocateInfo<'_>, made: *mut vk::CommandBuffer);
    v1_0.begin_command_buffer: PFN_vkBeginCommandBuffer(list: vk::CommandBuffer, info: *const vk::CommandBufferBeginInfo<'_>);
    v1_0.end_command_buffer: PFN_vkEndCommandBuffer(list: vk::CommandBuffer);
    v1_0.reset_command_buffer: PFN_vkResetCommandBuffer(list: vk::CommandBuffer, flags: vk::CommandBufferResetFlags);
    v1_0.queue_submit: PFN_vkQueueSubmit(queue: vk::Queue, count: u32, infos: *const vk::SubmitInfo<'_>, fence: vk::Fence);
    v1_0.create_descriptor_pool: PFN_vkCreateDescriptorPool(device: vk::Device, info: *const vk::DescriptorPoolCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::DescriptorPool);
    v1_0.allocate_descriptor_sets: PFN_vkAllocateDescriptorSets(device: vk::Device, info: *const vk::DescriptorSetAllocateInfo<'_>, made: *mut vk::DescriptorSet);
    v1_0.create_descriptor_set_layout: PFN_vkCreateDescriptorSetLayout(device: vk::Device, info: *const vk::DescriptorSetLayoutCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::DescriptorSetLayout);
    v1_0.create_pipeline_layout: PFN_vkCreatePipelineLayout(device: vk::Device, info: *const vk::PipelineLayoutCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::PipelineLayout);
    v1_0.create_shader_module: PFN_vkCreateShaderModule(device: vk::Device, info: *const vk::ShaderModuleCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::ShaderModule);
    v1_0.create_compute_pipelines: PFN_vkCreateComputePipelines(device: vk::Device, cache: vk::PipelineCache, count: u32, infos: *const vk::ComputePipelineCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::Pipeline);
    v1_0.create_pipeline_cache: PFN_vkCreatePipelineCache(device: vk::Device, info: *const vk::PipelineCacheCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::PipelineCache);
    v1_0.get_pipeline_cache_data: PFN_vkGetPipelineCacheData(device: vk::Device, cache: vk::PipelineCache, len: *mut usize, data: *mut std::ffi::c_void);
    v1_0.create_query_pool: PFN_vkCreateQueryPool(device: vk::Device, info: *const vk::QueryPoolCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::QueryPool);
    v1_2.get_semaphore_counter_value: PFN_vkGetSemaphoreCounterValue(device: vk::Device, semaphore: vk::Semaphore, value: *mut u64);
    v1_2.wait_semaphores: PFN_vkWaitSemaphores(device: vk::Device, info: *const vk::SemaphoreWaitInfo<'_>, nanoseconds: u64);
}

/// Writes null handles first, as a driver does when pipeline creation fails.
unsafe extern "system" fn compile(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    callbacks: Callbacks<'_>,
    made: *mut vk::Pipeline,
) -> vk::Result {
    // SAFETY: the caller has room for `count` handles, and the arguments are the caller's own.
    unsafe {
        (0..count as usize).for_each(|place| *made.add(place) = vk::Pipeline::null());
        create_compute_pipelines(device, cache, count, infos, callbacks, made)
    }
}

unsafe extern "system" fn destroy_device(device: vk::Device, callbacks: Callbacks<'_>) {
    DESTROYED.set(DESTROYED.get() + 1);
    // SAFETY: the arguments are the caller's own.
    unsafe { (REAL.get().unwrap().destroy_device)(device, callbacks) }
}

/// Uses every way for transfers: imported memory and a lane of copies.
const CROSSING: TransferWays = TransferWays { up: Memory::Imported, copies: Copies::Apart, ..WAYS };

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

/// Runs two kernels, with uploads and downloads that run beside them.
fn work(engine: &mut VulkanEngine) -> Result<Vec<f32>> {
    let numbers: Vec<f32> = (0..640 << 10).map(|number| (number % 7) as f32).collect();
    let numbers = Tensor::from_vec(numbers, [640, 1 << 10])?;
    let turned = run(engine, Map::neg(&numbers))?.into_tensor()?;
    let shares = run(engine, Softmax::new(&turned))?.into_tensor()?;
    run(engine, Transfer::to_host(&shares))?.into_tensor()?.to_vec()
}

fn is_right(shares: &[f32]) -> bool {
    let expected = |place: usize| {
        let line = place & !1023;
        let share = |place: usize| (-((place % 7) as f64)).exp();
        (share(place) / (line..line + 1024).map(share).sum::<f64>()) as f32
    };
    shares.len() == 640 << 10
        && (0..shares.len()).step_by(997).all(|place| (shares[place] - expected(place)).abs() < 1e-6)
}

/// Runs the work with one trouble on a device of its own, and checks the promises in the head of
/// this file.
fn survive(backend: &VulkanBackend, device: &DeviceInfo, trouble: InjectedFailure) {
    CALLS.take();
    let destroyed = DESTROYED.get();
    TROUBLE.set(Some(trouble));
    let mut engine = backend.open_changed(device, &OpenOptions::default(), fragile).unwrap();
    let first = work(&mut engine);
    let is_lost = engine.health().fault.is_some();
    match &first {
        Ok(shares) => assert!(is_right(shares), "{trouble:?}: wrong without a word"),
        Err(Error::DeviceLost { .. }) => assert!(is_lost, "{trouble:?}: lost, but healthy"),
        Err(Error::OutOfMemory { .. } | Error::DeviceFault { .. }) => {}
        Err(other) => panic!("{trouble:?}: {other}"),
    }
    let is_unreadable = trouble.for_good && trouble.function == "get_semaphore_counter_value";
    if trouble.says != vk::Result::ERROR_DEVICE_LOST && !is_unreadable {
        assert!(!is_lost, "{trouble:?}: nobody said that it is lost");
    }
    TROUBLE.set(None);
    match work(&mut engine) {
        Ok(shares) => assert!(!is_lost && is_right(&shares), "{trouble:?}: wrong, or alive though it is lost"),
        Err(error) => assert!(is_lost && matches!(error, Error::DeviceLost { .. }), "{trouble:?}: {error}"),
    }
    drop(engine);
    assert_eq!(DESTROYED.get(), destroyed + 1, "{trouble:?}: something still holds the device");
}

/// Every function, failing at its first two calls and at a later one.
fn troubles(says: vk::Result, for_good: bool) -> impl Iterator<Item = InjectedFailure> {
    let at = move |function: &'static str| [0, 1, 4].map(|after| InjectedFailure { function, after, says, for_good });
    FUNCTIONS.iter().flat_map(move |function| at(function))
}

#[test]
fn memory_may_be_short_in_any_call() {
    let backend = VulkanBackend::with_ways(CROSSING);
    let Some(device) = first_device(&backend) else { return };
    for says in [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY] {
        troubles(says, false).for_each(|trouble| survive(&backend, &device, trouble));
    }
}

#[test]
fn a_device_may_be_lost_in_any_call() {
    let backend = VulkanBackend::with_ways(CROSSING);
    let Some(device) = first_device(&backend) else { return };
    for for_good in [false, true] {
        troubles(vk::Result::ERROR_DEVICE_LOST, for_good).for_each(|trouble| survive(&backend, &device, trouble));
    }
}

/// `ERROR_UNKNOWN`, which no call should return, is handled like any other error.
#[test]
fn a_driver_may_fail_for_good() {
    let backend = VulkanBackend::with_ways(CROSSING);
    let Some(device) = first_device(&backend) else { return };
    troubles(vk::Result::ERROR_UNKNOWN, true)
        .filter(|trouble| trouble.after == 1)
        .for_each(|trouble| survive(&backend, &device, trouble));
}

/// The remains of a failure must not be misused: freed twice, used after the free, or kept when the
/// device is destroyed.
#[test]
fn validation_layers_find_nothing_behind_a_failure() {
    let messages = Arc::new(Messages::default());
    let backend = VulkanBackend::with_ways(CROSSING).validated(&messages);
    let Some(device) = first_device(&backend) else { return };
    for trouble in troubles(vk::Result::ERROR_OUT_OF_HOST_MEMORY, false).filter(|trouble| trouble.after != 1) {
        survive(&backend, &device, trouble);
        assert!(messages.list().is_empty(), "{trouble:?}: {:#?}", messages.list());
    }
}

/// Changes the properties that a driver reports for a device.
type PropertyChange = fn(&mut vk::PhysicalDeviceProperties, &mut vk::PhysicalDeviceMemoryProperties, &mut u64);

thread_local! {
    static LIE: Cell<Option<PropertyChange>> = const { Cell::new(None) };
    static REAL_INSTANCE: Cell<Option<RealInstance>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct RealInstance {
    properties: vk::PFN_vkGetPhysicalDeviceProperties,
    properties2: vk::PFN_vkGetPhysicalDeviceProperties2,
    memory: vk::PFN_vkGetPhysicalDeviceMemoryProperties,
    memory2: vk::PFN_vkGetPhysicalDeviceMemoryProperties2,
}

/// Applies the current lie. Arguments that the caller does not have are replaced by dummies.
fn lie(
    properties: Option<&mut vk::PhysicalDeviceProperties>,
    memory: Option<&mut vk::PhysicalDeviceMemoryProperties>,
    step: Option<&mut u64>,
) {
    let (mut no_properties, mut no_memory, mut no_step) = Default::default();
    if let Some(lie) = LIE.get() {
        lie(properties.unwrap_or(&mut no_properties), memory.unwrap_or(&mut no_memory), step.unwrap_or(&mut no_step));
    }
}

unsafe extern "system" fn properties(device: vk::PhysicalDevice, told: *mut vk::PhysicalDeviceProperties) {
    // SAFETY: the arguments are the caller's own.
    unsafe {
        (REAL_INSTANCE.get().unwrap().properties)(device, told);
        lie(Some(&mut *told), None, None);
    }
}

unsafe extern "system" fn properties2(device: vk::PhysicalDevice, told: *mut vk::PhysicalDeviceProperties2<'_>) {
    // SAFETY: the arguments are the caller's own, and each structure of the chain has the type that
    // `s_type` names.
    unsafe {
        (REAL_INSTANCE.get().unwrap().properties2)(device, told);
        lie(Some(&mut (*told).properties), None, None);
        let mut next = (*told).p_next.cast::<vk::BaseOutStructure<'_>>();
        while let Some(structure) = next.as_mut() {
            if structure.s_type == vk::StructureType::PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT {
                let host = next.cast::<vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'_>>();
                lie(None, None, Some(&mut (*host).min_imported_host_pointer_alignment));
            }
            next = structure.p_next;
        }
    }
}

unsafe extern "system" fn memory(device: vk::PhysicalDevice, told: *mut vk::PhysicalDeviceMemoryProperties) {
    // SAFETY: the arguments are the caller's own.
    unsafe {
        (REAL_INSTANCE.get().unwrap().memory)(device, told);
        lie(None, Some(&mut *told), None);
    }
}

unsafe extern "system" fn memory2(device: vk::PhysicalDevice, told: *mut vk::PhysicalDeviceMemoryProperties2<'_>) {
    // SAFETY: the arguments are the caller's own.
    unsafe {
        (REAL_INSTANCE.get().unwrap().memory2)(device, told);
        lie(None, Some(&mut (*told).memory_properties), None);
    }
}

/// A loader whose drivers lie as this thread demands.
fn lying(mut loader: Loader) -> Loader {
    let instance = &loader.instance;
    let (mut first, mut second) = (instance.fp_v1_0().clone(), instance.fp_v1_1().clone());
    REAL_INSTANCE.set(Some(RealInstance {
        properties: first.get_physical_device_properties,
        properties2: second.get_physical_device_properties2,
        memory: first.get_physical_device_memory_properties,
        memory2: second.get_physical_device_memory_properties2,
    }));
    (first.get_physical_device_properties, second.get_physical_device_properties2) = (properties, properties2);
    (first.get_physical_device_memory_properties, second.get_physical_device_memory_properties2) = (memory, memory2);
    let third = instance.fp_v1_3().clone();
    loader.instance = ash::Instance::from_parts_1_3(instance.handle(), first, second, third);
    loader
}

/// Nonsense for which a device may be refused, or with which it works.
const LIES: [(&str, PropertyChange); 18] = [
    ("no limits", |told, _, _| told.limits = vk::PhysicalDeviceLimits::default()),
    ("no storage", |told, _, _| told.limits.max_storage_buffer_range = 0),
    ("no buffers", |told, _, _| told.limits.max_per_stage_descriptor_storage_buffers = 0),
    ("no resources", |told, _, _| told.limits.max_per_stage_resources = 0),
    ("no step", |told, _, _| told.limits.min_uniform_buffer_offset_alignment = 0),
    ("an odd step", |told, _, _| told.limits.min_uniform_buffer_offset_alignment = 3),
    ("a large step", |told, _, _| told.limits.min_uniform_buffer_offset_alignment = 1 << 63),
    ("no allocations", |told, _, _| told.limits.max_memory_allocation_count = 0),
    ("few allocations", |told, _, _| told.limits.max_memory_allocation_count = 3),
    ("no time", |told, _, _| told.limits.timestamp_period = f32::NAN),
    ("time that runs backwards", |told, _, _| told.limits.timestamp_period = -1.0),
    ("a name without an end", |told, _, _| told.device_name = [b'x' as _; vk::MAX_PHYSICAL_DEVICE_NAME_SIZE]),
    ("few parameters", |told, _, _| told.limits.max_push_constants_size = 5),
    ("too many types of memory", |_, told, _| (told.memory_type_count, told.memory_heap_count) = (9999, 9999)),
    ("memory in no heap", |_, told, _| told.memory_types.iter_mut().for_each(|kind| kind.heap_index = 99)),
    ("no memory", |_, told, _| (told.memory_type_count, told.memory_heap_count) = (0, 0)),
    ("heaps without bytes", |_, told, _| told.memory_heaps.iter_mut().for_each(|heap| heap.size = 0)),
    ("pages of any size", |_, _, step| *step = 3),
];

#[test]
fn a_driver_may_say_what_it_likes_of_itself() {
    for (name, told) in LIES {
        LIE.set(None);
        let Ok(loader) = Loader::open(&LoaderOptions::default()) else { return eprintln!("skipped: no Vulkan") };
        LIE.set(Some(told));
        let backend = VulkanBackend::with_ways(CROSSING).through(lying(loader));
        let device = match backend.discover() {
            Ok(mut devices) => devices.remove(0),
            Err(absence) => {
                println!("{name}: {absence}");
                continue;
            }
        };
        match backend.open_engine(&device, &OpenOptions::default()).and_then(|mut engine| work(&mut engine)) {
            Ok(shares) => assert!(is_right(&shares), "{name}"),
            Err(Error::OutOfMemory { .. } | Error::DeviceFault { .. } | Error::Unsupported { .. }) => {}
            Err(other) => panic!("{name}: {other}"),
        }
    }
    LIE.set(None);
}
