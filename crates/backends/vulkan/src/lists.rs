//! Command buffers for one lane: begun, submitted, and reused after they have run.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ash::vk;

use crate::gpu::{Gpu, Lane};

/// The command buffers of one lane.
pub(crate) struct Lists {
    family: u32,
    pool: Option<vk::CommandPool>,
    free: Vec<vk::CommandBuffer>,
    /// Submitted command buffers, with the lane's value after each.
    away: VecDeque<(vk::CommandBuffer, u64)>,
}

/// One submission.
pub(crate) struct Submission {
    /// A command buffer that runs before `list`.
    pub(crate) before: Option<vk::CommandBuffer>,
    pub(crate) list: vk::CommandBuffer,
    /// A value of another lane that must be reached first.
    pub(crate) wait: Option<(vk::Semaphore, u64)>,
    /// The lane's value after this submission.
    pub(crate) value: u64,
}

impl Lists {
    pub(crate) fn new(family: u32) -> Lists {
        Lists { family, pool: None, free: Vec::new(), away: VecDeque::new() }
    }

    /// The pool of the command buffers.
    pub(crate) fn pool(&self) -> Option<vk::CommandPool> {
        self.pool
    }

    /// Begins a command buffer.
    pub(crate) fn begin(&mut self, gpu: &Gpu, lane: &Lane) -> Result<vk::CommandBuffer, vk::Result> {
        while self.away.front().is_some_and(|(_, value)| *value <= lane.past()) {
            self.free.extend(self.away.pop_front().map(|(list, _)| list));
        }
        let list = match self.free.pop() {
            Some(list) => list,
            None => self.allocate(gpu)?,
        };
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the list is of this thread's pool and does not run; beginning it clears its old
        // commands.
        unsafe { gpu.raw.begin_command_buffer(list, &info) }.inspect_err(|_| self.free.push(list))?;
        Ok(list)
    }

    /// Takes back a command buffer that will not run. A buffer in recording state must be reset
    /// before it is begun again.
    pub(crate) fn discard(&mut self, gpu: &Gpu, list: vk::CommandBuffer) {
        // SAFETY: the list is of this thread's pool and does not run. If the reset fails, the list
        // is not used again.
        if unsafe { gpu.raw.reset_command_buffer(list, vk::CommandBufferResetFlags::empty()) }.is_ok() {
            self.free.push(list);
        }
    }

    /// Ends the command buffers and submits them to the lane.
    pub(crate) fn submit(&mut self, gpu: &Gpu, lane: &Lane, work: Submission) -> Result<(), vk::Result> {
        let Submission { before, list, wait, value } = work;
        let lists: Vec<vk::CommandBuffer> = before.into_iter().chain([list]).collect();
        let submitted = lists.iter().try_for_each(|list| {
            // SAFETY: the list is being recorded.
            unsafe { gpu.raw.end_command_buffer(*list) }
        });
        let (waits, wait_values): (Vec<_>, Vec<_>) = wait.into_iter().unzip();
        let stages = [vk::PipelineStageFlags::ALL_COMMANDS];
        let (signals, values) = ([lane.timeline], [value]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&lists)
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages[..waits.len()])
            .signal_semaphores(&signals)
            .push_next(&mut timeline);
        // SAFETY: only this thread uses the queue; the objects that the lists name live until the
        // value is reached, and the value that is waited for was submitted before.
        let submitted =
            submitted.and_then(|()| unsafe { gpu.raw.queue_submit(lane.queue, &[info], vk::Fence::null()) });
        if let Err(error) = submitted {
            lists.into_iter().for_each(|list| self.discard(gpu, list));
            return Err(error);
        }
        lane.submitted.store(value, Ordering::Relaxed);
        self.away.extend(lists.into_iter().map(|list| (list, value)));
        Ok(())
    }

    fn allocate(&mut self, gpu: &Gpu) -> Result<vk::CommandBuffer, vk::Result> {
        let pool = match self.pool {
            Some(pool) => pool,
            None => {
                let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
                let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family).flags(flags);
                // SAFETY: the device was opened with this family.
                *self.pool.insert(unsafe { gpu.raw.create_command_pool(&info, None) }?)
            }
        };
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is the device's own.
        let lists = unsafe { gpu.raw.allocate_command_buffers(&info) }?;
        lists.into_iter().next().ok_or(vk::Result::ERROR_OUT_OF_HOST_MEMORY)
    }
}
