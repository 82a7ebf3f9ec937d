//! Buffers as kernels see them: descriptor sets and their layouts. A set is written once and lives
//! as long as the engine keeps it. All pipeline layouts differ only in the number of buffers, so
//! that bound sets stay bound when the kernel changes.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;

use crate::buffer::Bytes;
use crate::gpu::{Gpu, LastUses, RetiredObject};

/// Sets in one pool, and descriptors in all sets of the pool.
const SETS_IN_POOL: u32 = 256;
const DESCRIPTORS_IN_POOL: u32 = 2048;

/// Bound buffers: a descriptor set.
pub struct VulkanBindings {
    gpu: Arc<Gpu>,
    pub(crate) set: vk::DescriptorSet,
    pool: usize,
    /// The buffers that the kernel writes come first.
    pub(crate) buffers: Vec<Arc<Bytes>>,
    pub(crate) writes: usize,
    pub(crate) uses: LastUses,
}

/// A range of bytes of a buffer.
pub(crate) struct Stretch<'a> {
    pub(crate) bytes: &'a Arc<Bytes>,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl VulkanBindings {
    /// Binds buffers. The kernel writes the first `writes` of them.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        layout: vk::DescriptorSetLayout,
        writes: usize,
        bound: &[Stretch<'_>],
    ) -> Result<VulkanBindings, vk::Result> {
        let (set, pool) = gpu.sets().allocate(&gpu.raw, layout, bound.len() as u32)?;
        let info = |stretch: &Stretch<'_>| {
            let whole = vk::DescriptorBufferInfo::default().buffer(stretch.bytes.raw);
            whole.offset(stretch.offset).range(stretch.len_bytes)
        };
        let infos: Vec<vk::DescriptorBufferInfo> = bound.iter().map(info).collect();
        let write = |(place, info)| {
            let whole = vk::WriteDescriptorSet::default().dst_set(set).dst_binding(place);
            whole.descriptor_type(vk::DescriptorType::STORAGE_BUFFER).buffer_info(std::slice::from_ref(info))
        };
        let descriptors: Vec<vk::WriteDescriptorSet<'_>> = (0..).zip(&infos).map(write).collect();
        // SAFETY: the set is new, has a binding for each buffer, and is not in use yet.
        unsafe { gpu.raw.update_descriptor_sets(&descriptors, &[]) };
        let buffers = bound.iter().map(|stretch| Arc::clone(stretch.bytes)).collect();
        Ok(VulkanBindings { gpu: Arc::clone(gpu), set, pool, buffers, writes, uses: LastUses::default() })
    }

    /// An empty binding, with which a dispatch does nothing.
    pub(crate) fn none(gpu: &Arc<Gpu>) -> VulkanBindings {
        let (set, buffers) = (vk::DescriptorSet::null(), Vec::new());
        VulkanBindings { gpu: Arc::clone(gpu), set, pool: 0, buffers, writes: 0, uses: LastUses::default() }
    }
}

impl Drop for VulkanBindings {
    fn drop(&mut self) {
        if self.set != vk::DescriptorSet::null() {
            self.gpu.retire(RetiredObject::Set(self.set, self.pool), self.uses.stamp());
        }
    }
}

/// The layouts of a device's kernels, and the pools for descriptor sets.
#[derive(Default)]
pub(crate) struct Sets {
    pools: Vec<Pool>,
    /// The layout for parameters in a buffer.
    params: Option<vk::DescriptorSetLayout>,
    /// The layouts by number of buffers.
    layouts: HashMap<usize, KernelLayout>,
    /// Number of descriptors of each allocated set, for its return to the pool.
    sizes: HashMap<vk::DescriptorSet, u32>,
}

/// The layout of kernels with a certain number of buffers.
#[derive(Clone, Copy)]
pub(crate) struct KernelLayout {
    pub(crate) set: vk::DescriptorSetLayout,
    pub(crate) pipeline: vk::PipelineLayout,
}

struct Pool {
    raw: vk::DescriptorPool,
    sets: u32,
    descriptors: u32,
}

impl Sets {
    /// The layout for parameters in a buffer, made at the first call.
    pub(crate) fn params(&mut self, device: &ash::Device) -> Result<vk::DescriptorSetLayout, vk::Result> {
        if let Some(layout) = self.params {
            return Ok(layout);
        }
        let made = set_layout(device, vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC, 1)?;
        self.params = Some(made);
        Ok(made)
    }

    /// The layout of kernels with `buffers` buffers.
    pub(crate) fn layout(
        &mut self,
        device: &ash::Device,
        buffers: usize,
        immediate_bytes: u32,
    ) -> Result<KernelLayout, vk::Result> {
        if let Some(layout) = self.layouts.get(&buffers) {
            return Ok(*layout);
        }
        let params = self.params(device)?;
        let set = set_layout(device, vk::DescriptorType::STORAGE_BUFFER, buffers as u32)?;
        let stage = vk::ShaderStageFlags::COMPUTE;
        let ranges = [vk::PushConstantRange::default().stage_flags(stage).size(immediate_bytes)];
        let (layouts, ranges) = ([params, set], if immediate_bytes > 0 { &ranges[..] } else { &[] });
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts).push_constant_ranges(ranges);
        // SAFETY: the layouts are the device's own.
        let pipeline = unsafe { device.create_pipeline_layout(&info, None) };
        let pipeline = pipeline.inspect_err(|_| {
            // SAFETY: the layout is not in use.
            unsafe { device.destroy_descriptor_set_layout(set, None) };
        })?;
        let layout = KernelLayout { set, pipeline };
        self.layouts.insert(buffers, layout);
        Ok(layout)
    }

    /// Allocates a set of `descriptors` buffers. Returns the set and the index of its pool.
    pub(crate) fn allocate(
        &mut self,
        device: &ash::Device,
        layout: vk::DescriptorSetLayout,
        descriptors: u32,
    ) -> Result<(vk::DescriptorSet, usize), vk::Result> {
        for (number, pool) in self.pools.iter_mut().enumerate().rev() {
            if pool.sets == 0 || pool.descriptors < descriptors {
                continue;
            }
            match pool.allocate(device, layout, descriptors) {
                Ok(set) => {
                    self.sizes.insert(set, descriptors);
                    return Ok((set, number));
                }
                Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY | vk::Result::ERROR_FRAGMENTED_POOL) => {}
                Err(other) => return Err(other),
            }
        }
        let mut pool = Pool::new(device, vk::DescriptorType::STORAGE_BUFFER)?;
        let set = pool.allocate(device, layout, descriptors).inspect_err(|_| {
            // SAFETY: the pool has no sets. It is not kept, so that failed attempts do not pile up
            // pools.
            unsafe { device.destroy_descriptor_pool(pool.raw, None) };
        })?;
        self.pools.push(pool);
        self.sizes.insert(set, descriptors);
        Ok((set, self.pools.len() - 1))
    }

    /// Returns a set to its pool.
    pub(crate) fn free(&mut self, device: &ash::Device, set: vk::DescriptorSet, pool: usize) {
        let descriptors = self.sizes.remove(&set).unwrap_or(0);
        let Some(pool) = self.pools.get_mut(pool) else { return };
        pool.sets += 1;
        pool.descriptors += descriptors;
        // SAFETY: the set is of this pool, and not in use. The call cannot fail.
        let _ = unsafe { device.free_descriptor_sets(pool.raw, &[set]) };
    }

    /// Destroys all pools and layouts.
    pub(crate) fn destroy(&mut self, device: &ash::Device) {
        // SAFETY: the device is idle, and all objects that were made with these are destroyed.
        unsafe {
            self.pools.drain(..).for_each(|pool| device.destroy_descriptor_pool(pool.raw, None));
            for (_, layout) in self.layouts.drain() {
                device.destroy_pipeline_layout(layout.pipeline, None);
                device.destroy_descriptor_set_layout(layout.set, None);
            }
            if let Some(params) = self.params.take() {
                device.destroy_descriptor_set_layout(params, None);
            }
        }
    }
}

impl Pool {
    fn new(device: &ash::Device, kind: vk::DescriptorType) -> Result<Pool, vk::Result> {
        let sizes = [vk::DescriptorPoolSize { ty: kind, descriptor_count: DESCRIPTORS_IN_POOL }];
        let info = vk::DescriptorPoolCreateInfo::default()
            .flags(vk::DescriptorPoolCreateFlags::FREE_DESCRIPTOR_SET)
            .max_sets(SETS_IN_POOL)
            .pool_sizes(&sizes);
        // SAFETY: all that `info` points to is alive.
        let raw = unsafe { device.create_descriptor_pool(&info, None) }?;
        Ok(Pool { raw, sets: SETS_IN_POOL, descriptors: DESCRIPTORS_IN_POOL })
    }

    fn allocate(
        &mut self,
        device: &ash::Device,
        layout: vk::DescriptorSetLayout,
        descriptors: u32,
    ) -> Result<vk::DescriptorSet, vk::Result> {
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.raw).set_layouts(&layouts);
        // SAFETY: pool and layout are the device's own.
        let sets = unsafe { device.allocate_descriptor_sets(&info) }?;
        self.sets -= 1;
        self.descriptors -= descriptors;
        sets.into_iter().next().ok_or(vk::Result::ERROR_UNKNOWN)
    }
}

fn set_layout(
    device: &ash::Device,
    kind: vk::DescriptorType,
    count: u32,
) -> Result<vk::DescriptorSetLayout, vk::Result> {
    let binding = |place| {
        let binding = vk::DescriptorSetLayoutBinding::default().binding(place).descriptor_type(kind);
        binding.descriptor_count(1).stage_flags(vk::ShaderStageFlags::COMPUTE)
    };
    let bindings: Vec<_> = (0..count).map(binding).collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: all that `info` points to is alive.
    unsafe { device.create_descriptor_set_layout(&info, None) }
}
