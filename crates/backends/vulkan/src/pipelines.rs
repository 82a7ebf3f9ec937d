//! Compiled kernels, and the driver's own cache of them, which is kept on disk between runs.
//!
//! Each device and driver has one cache file (their UUID and version are part of its name). The
//! file is written atomically and has a checksum. Data without this driver's header is never given
//! to the driver, and a cache that the driver refuses is replaced.

use std::cell::Cell;
use std::ffi::CString;
use std::sync::Arc;

use ash::vk;
use panoply_core::Result;
use panoply_kernels::cache::Cache;
use panoply_wgsl_gpu::driver::KernelText;

use crate::bindings::KernelLayout;
use crate::compiler::Compiler;
use crate::gpu::{Gpu, LastUses, RetiredObject};

/// The largest cache of a driver that is written to disk.
const CACHE_BYTES_MAX: usize = 256 << 20;

/// A compiled kernel.
pub struct VulkanPipeline {
    gpu: Arc<Gpu>,
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: KernelLayout,
    /// Number of buffers that the kernel writes.
    pub(crate) writes: usize,
    pub(crate) uses: LastUses,
}

impl Drop for VulkanPipeline {
    fn drop(&mut self) {
        self.gpu.retire(RetiredObject::Pipeline(self.raw), self.uses.stamp());
    }
}

/// Compiles kernels.
pub(crate) struct Pipelines {
    gpu: Arc<Gpu>,
    compiler: Compiler,
    immediate_bytes: u32,
    /// The subgroup size that every kernel requires, if the device has several sizes.
    subgroup_lanes: Option<u32>,
    compiled: vk::PipelineCache,
    disk: Option<Arc<Cache>>,
    is_stale: Cell<bool>,
}

impl Pipelines {
    pub(crate) fn new(gpu: &Arc<Gpu>, disk: Option<Arc<Cache>>) -> Pipelines {
        let adapter = gpu.adapter();
        let data = disk.as_ref().and_then(|disk| disk.read(adapter.cache_key.as_bytes())).unwrap_or_default();
        let known = if adapter.cache_header.begins(&data) { &data[..] } else { &[] };
        let make = |data: &[u8]| {
            let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
            // SAFETY: the data is empty, or was made by this driver for this device, as its header
            // and file name say, and is unchanged, as its checksum says.
            unsafe { gpu.raw.create_pipeline_cache(&info, None) }
        };
        // Without a cache kernels only take longer to compile.
        let compiled = make(known).or_else(|_| make(&[])).unwrap_or_default();
        let lanes = adapter.profile.subgroup_lanes.filter(|_| adapter.has.asks_subgroup_size);
        Pipelines {
            gpu: Arc::clone(gpu),
            compiler: Compiler::new(adapter),
            immediate_bytes: 4 * adapter.profile.immediate_words_max as u32,
            subgroup_lanes: lanes.map(u32::from),
            compiled,
            disk,
            is_stale: Cell::new(false),
        }
    }

    /// Compiles a kernel.
    pub(crate) fn compile(&self, kernel: &KernelText<'_>) -> Result<VulkanPipeline> {
        let gpu = &self.gpu;
        if let Some(lost) = gpu.faults.lost() {
            return Err(lost);
        }
        let words = self.compiler.compile(kernel).map_err(|reason| gpu.faults.fault(reason))?;
        let (writes, reads) = kernel.shape;
        let layout = gpu.sets().layout(&gpu.raw, writes + reads, self.immediate_bytes);
        let layout = layout.map_err(|error| gpu.error("the layout of a kernel", error))?;
        let raw = self.pipeline(&words, kernel.entry, layout).map_err(|error| gpu.error("a kernel", error))?;
        self.is_stale.set(true);
        Ok(VulkanPipeline { gpu: Arc::clone(gpu), raw, layout, writes, uses: LastUses::default() })
    }

    fn pipeline(&self, words: &[u32], entry: &str, layout: KernelLayout) -> Result<vk::Pipeline, vk::Result> {
        let device = &self.gpu.raw;
        let name = CString::new(entry).map_err(|_| vk::Result::ERROR_INVALID_SHADER_NV)?;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        let mut asked = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        // SAFETY: naga has validated the module, which uses only features that the device was
        // opened with.
        let module = unsafe { device.create_shader_module(&info, None) }?;
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(&name);
        if let Some(lanes) = self.subgroup_lanes {
            asked.required_subgroup_size = lanes;
            stage = stage.push_next(&mut asked);
        }
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout.pipeline);
        // SAFETY: module, layout and cache are the device's own, and the module's bindings are in
        // the layout; the module is not needed afterwards.
        let made = unsafe {
            let made = device.create_compute_pipelines(self.compiled, &[info], None);
            device.destroy_shader_module(module, None);
            made
        };
        match made {
            Ok(pipelines) => pipelines.into_iter().next().ok_or(vk::Result::ERROR_UNKNOWN),
            Err((pipelines, error)) => {
                // SAFETY: each handle was just made, or is null, which the call ignores.
                pipelines.into_iter().for_each(|pipeline| unsafe { device.destroy_pipeline(pipeline, None) });
                Err(error)
            }
        }
    }
}

impl Pipelines {
    /// The driver's cache data for the disk; `None` if it is too large, or lacks the header that
    /// the driver would accept.
    fn data(&self) -> Option<Vec<u8>> {
        let (device, get) = (self.gpu.raw.handle(), self.gpu.raw.fp_v1_0().get_pipeline_cache_data);
        let mut len = 0;
        // SAFETY: the cache is the device's own; without a pointer for data the call returns the
        // length.
        unsafe { get(device, self.compiled, &mut len, std::ptr::null_mut()) }.result().ok()?;
        let mut data = vec![0_u8; Some(len).filter(|len| *len <= CACHE_BYTES_MAX)?];
        // SAFETY: as above; there is room for `len` bytes.
        unsafe { get(device, self.compiled, &mut len, data.as_mut_ptr().cast()) }.result().ok()?;
        data.truncate(len);
        Some(data).filter(|data| self.gpu.adapter().cache_header.begins(data))
    }
}

impl Drop for Pipelines {
    /// Writes newly compiled kernels to disk. A failure only costs time at the next start.
    fn drop(&mut self) {
        if self.compiled == vk::PipelineCache::null() {
            return;
        }
        if let Some(disk) = self.disk.as_ref().filter(|_| self.is_stale.get() && self.gpu.faults.lost().is_none())
            && let Some(data) = self.data()
        {
            disk.write(self.gpu.adapter().cache_key.as_bytes(), &data);
        }
        // SAFETY: no kernel is being compiled.
        unsafe { self.gpu.raw.destroy_pipeline_cache(self.compiled, None) };
    }
}
