//! Buffers of parameters, for kernels with more parameters than a dispatch carries. Submissions
//! take turns with them, so that a submission need not wait for the one before.

use std::sync::Arc;

use ash::vk;
use panoply_core::Result;
use panoply_wgsl_gpu::{PARAMS_BYTES, PARAMS_BYTES_MAX};

use crate::buffer::{BufferRequest, Bytes, OWN, make};
use crate::gpu::Gpu;

/// Number of parameter buffers.
pub(crate) const PARAMS_BUFFERS: usize = 4;

/// The buffers, each with its descriptor set.
pub(crate) struct ParamsBuffers {
    pool: vk::DescriptorPool,
    buffers: Vec<(Arc<Bytes>, vk::DescriptorSet)>,
}

impl ParamsBuffers {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<ParamsBuffers> {
        let usage = vk::BufferUsageFlags::UNIFORM_BUFFER | vk::BufferUsageFlags::TRANSFER_DST;
        let wanted = BufferRequest { usage, ..OWN };
        let make = |_| {
            let made = make(gpu, PARAMS_BYTES_MAX as u64 + PARAMS_BYTES, wanted)?;
            made.map(|made| made.bytes).ok_or_else(|| gpu.faults.fault("no memory for parameters"))
        };
        let buffers = (0..PARAMS_BUFFERS).map(make).collect::<Result<Vec<_>>>()?;
        let (pool, sets) = sets(gpu).map_err(|error| gpu.error("parameters", error))?;
        let buffers: Vec<_> = buffers.into_iter().zip(sets).collect();
        for (buffer, set) in &buffers {
            let info = [vk::DescriptorBufferInfo::default().buffer(buffer.raw).range(PARAMS_BYTES)];
            let write = vk::WriteDescriptorSet::default().dst_set(*set);
            let write = write.descriptor_type(vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC).buffer_info(&info);
            // SAFETY: the set is new, and not in use yet.
            unsafe { gpu.raw.update_descriptor_sets(&[write], &[]) };
        }
        Ok(ParamsBuffers { pool, buffers })
    }

    /// The buffer of a turn.
    pub(crate) fn buffer(&self, turn: usize) -> &Arc<Bytes> {
        &self.buffers[turn].0
    }

    /// The descriptor set of a turn's buffer.
    pub(crate) fn set(&self, turn: usize) -> vk::DescriptorSet {
        self.buffers[turn].1
    }

    /// The pool of the sets.
    pub(crate) fn pool(&self) -> vk::DescriptorPool {
        self.pool
    }
}

fn sets(gpu: &Gpu) -> Result<(vk::DescriptorPool, Vec<vk::DescriptorSet>), vk::Result> {
    let layouts = [gpu.sets().params(&gpu.raw)?; PARAMS_BUFFERS];
    let (ty, count) = (vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC, PARAMS_BUFFERS as u32);
    let sizes = [vk::DescriptorPoolSize { ty, descriptor_count: count }];
    let info = vk::DescriptorPoolCreateInfo::default().max_sets(count).pool_sizes(&sizes);
    // SAFETY: all objects are the device's own; if the pool gives no sets it is destroyed.
    unsafe {
        let pool = gpu.raw.create_descriptor_pool(&info, None)?;
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        let sets = gpu.raw.allocate_descriptor_sets(&info);
        let sets = sets.inspect_err(|_| gpu.raw.destroy_descriptor_pool(pool, None))?;
        Ok((pool, sets))
    }
}
