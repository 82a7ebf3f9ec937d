//! Measures how long the smallest submission takes, for each way to learn that it has ended. Runs
//! on request only.

use std::time::{Duration, Instant};

use ash::vk;
use panoply_core::op::compute::{Map, Transfer};
use panoply_core::{Backend, Engine, Item, OpenOptions, Operation, Tensor};

use crate::backend::VulkanBackend;
use crate::gpu::Gpu;
use panoply_wgsl_gpu_testing::fault::run;

const ROUNDS: usize = 2000;
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The ways to learn that a submission has ended.
#[derive(Clone, Copy, Debug)]
enum WaitMethod {
    /// Polls the counter of a timeline semaphore.
    Counted,
    /// Waits for a timeline semaphore.
    Waited,
    /// Polls a fence.
    Fenced,
}

/// `units-vulkan latency --ignored --nocapture` prints microseconds: for an addition of 64 elements
/// through the engine, and for an empty command buffer; for the call that submits, and until the
/// end is known. `PANOPLY_VULKAN_QUEUE=compute` takes a queue without graphics.
#[test]
#[ignore = "a measurement"]
fn latency() {
    let backend = VulkanBackend::new();
    let device = match backend.discover() {
        Ok(devices) => devices[0].clone(),
        Err(absence) => return eprintln!("skipped: {absence}"),
    };
    let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
    let numbers = Tensor::from_vec(vec![1.0_f32; 64], [64]).unwrap();
    let there = run(&mut engine, Transfer::to_device(&numbers, device.id)).unwrap().into_tensor().unwrap();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (mut finished, op) = (Vec::new(), Map::add(&there, &there).into_op().unwrap());
        let started = Instant::now();
        engine.submit(&mut vec![Item { token: 1, op }]);
        let submitted = started.elapsed();
        while finished.is_empty() {
            engine.poll(&mut finished, WAIT_MAX);
        }
        times.push((submitted, started.elapsed()));
    }
    println!("an addition: {}", told(times));
    for how in [WaitMethod::Counted, WaitMethod::Waited, WaitMethod::Fenced] {
        let times = empty_submissions(&engine.context().driver.gpu, how);
        assert_eq!(times.len(), ROUNDS);
        println!("an empty list, {how:?}: {}", told(times));
    }
}

/// The medians of both times, as text.
fn told(times: Vec<(Duration, Duration)>) -> String {
    let middle = |mut some: Vec<Duration>| {
        some.sort();
        some[some.len() / 2].as_secs_f64() * 1e6
    };
    let (submitted, ended): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    format!("{:.1} µs to submit, {:.1} µs until it has ended", middle(submitted), middle(ended))
}

/// Times of empty command buffers, submitted one after the other.
fn empty_submissions(gpu: &Gpu, how: WaitMethod) -> Vec<(Duration, Duration)> {
    let device = &gpu.raw;
    let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
    let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.compute.family).flags(flags);
    let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let timeline = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: all objects are made here, used by this thread alone, and destroyed when the queue
    // has finished with them.
    unsafe {
        let pool = device.create_command_pool(&info, None).unwrap();
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        let list = device.allocate_command_buffers(&info).unwrap()[0];
        let semaphore = device.create_semaphore(&timeline, None).unwrap();
        let fence = device.create_fence(&vk::FenceCreateInfo::default(), None).unwrap();
        let times = (1..=ROUNDS as u64).map(|value| {
            let started = Instant::now();
            device.begin_command_buffer(list, &vk::CommandBufferBeginInfo::default()).unwrap();
            device.end_command_buffer(list).unwrap();
            let (lists, signals, values) = ([list], [semaphore], [value]);
            let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
            let info = vk::SubmitInfo::default().command_buffers(&lists);
            let (info, fence_used) = match how {
                WaitMethod::Fenced => (info, fence),
                _ => (info.signal_semaphores(&signals).push_next(&mut timeline), vk::Fence::null()),
            };
            device.queue_submit(gpu.compute.queue, &[info], fence_used).unwrap();
            let submitted = started.elapsed();
            let wait = vk::SemaphoreWaitInfo::default().semaphores(&signals).values(&values);
            match how {
                WaitMethod::Counted => while device.get_semaphore_counter_value(semaphore).unwrap() < value {},
                WaitMethod::Waited => device.wait_semaphores(&wait, u64::MAX).unwrap(),
                WaitMethod::Fenced => {
                    while !device.get_fence_status(fence).unwrap() {}
                    device.reset_fences(&[fence]).unwrap();
                }
            }
            (submitted, started.elapsed())
        });
        let times = times.collect();
        device.destroy_fence(fence, None);
        device.destroy_semaphore(semaphore, None);
        device.destroy_command_pool(pool, None);
        times
    }
}
