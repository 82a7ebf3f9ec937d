//! Compiled kernels: in memory by their keys, and on disk where the driver hands out what it compiled.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::Result;
use panoply_kernels::wgsl::{Kernel, with_immediates};

use crate::fault::{Faults, checked};

/// The largest cache file that is read.
const CACHE_BYTES_MAX: u64 = 64 << 20;

/// A kernel that is ready to run, and the shape of its bindings.
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) storage: wgpu::BindGroupLayout,
    /// How many words of parameters come with each dispatch; nothing where they come in a buffer.
    pub(crate) immediates: Option<usize>,
}

/// How many buffers a kernel writes and reads.
type Shape = (usize, usize);

/// The most words of parameters that a dispatch carries itself, where the device can.
const IMMEDIATE_WORDS_MAX: usize = 64;

/// The kernels of one opened device.
pub(crate) struct Pipelines {
    device: wgpu::Device,
    faults: Arc<Faults>,
    params: wgpu::BindGroupLayout,
    /// By shape, and by whether parameters come with the dispatch.
    layouts: HashMap<(Shape, bool), (wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
    immediate_words_max: usize,
    known: HashMap<Kernel, Rc<Pipeline>>,
    disk: Option<Disk>,
}

/// The driver's own cache, kept in a file between runs.
struct Disk {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    is_stale: bool,
}

impl Pipelines {
    pub(crate) fn new(device: &wgpu::Device, faults: &Arc<Faults>, cache_file: Option<PathBuf>) -> Pipelines {
        let uniform = wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Uniform,
            has_dynamic_offset: true,
            min_binding_size: None,
        };
        let params = device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &[entry(0, uniform)] });
        let disk = cache_file.and_then(|path| open_cache(device, path));
        let (layouts, known) = (HashMap::new(), HashMap::new());
        let immediate_words_max = if device.features().contains(wgpu::Features::IMMEDIATES) {
            IMMEDIATE_WORDS_MAX.min(device.limits().max_immediate_size as usize / 4)
        } else {
            0
        };
        Pipelines {
            device: device.clone(),
            faults: Arc::clone(faults),
            params,
            layouts,
            immediate_words_max,
            known,
            disk,
        }
    }

    /// The kernels that were compiled.
    #[cfg(test)]
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.known.keys()
    }

    /// The most words of parameters that a dispatch carries itself; none where the device cannot.
    pub(crate) fn immediate_words_max(&self) -> usize {
        self.immediate_words_max
    }

    /// The layout of the parameters' bind group.
    pub(crate) fn params_layout(&self) -> &wgpu::BindGroupLayout {
        &self.params
    }

    /// The kernel, compiled now if it was not before. A text that this driver does not take is an error of the device.
    pub(crate) fn get(&mut self, kernel: &Kernel, shape: Shape) -> Result<Rc<Pipeline>> {
        if let Some(known) = self.known.get(kernel) {
            return Ok(Rc::clone(known));
        }
        let made = Rc::new(self.compile(&kernel.source(), shape)?);
        self.known.insert(kernel.clone(), Rc::clone(&made));
        if let Some(disk) = &mut self.disk {
            disk.is_stale = true;
        }
        Ok(made)
    }

    /// Compiles a text.
    pub(crate) fn compile(&mut self, source: &str, shape: Shape) -> Result<Pipeline> {
        let (source, immediates) = match with_immediates(source, self.immediate_words_max) {
            Some((source, words)) => (Cow::Owned(source), Some(words)),
            None => (Cow::Borrowed(source), None),
        };
        let (storage, layout) = self.layout(shape, immediates.is_some());
        let (device, cache) = (&self.device, self.disk.as_ref().map(|disk| &disk.cache));
        let pipeline = checked(device, &self.faults, 0, || {
            let descriptor = wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(source) };
            // SAFETY: kernels keep their indices inside their buffers, divide by nothing that is zero, and end all their
            // loops, whatever the data (rule 6 of `panoply_kernels::wgsl`); sizes were checked before they were recorded.
            let module =
                unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[],
                    zero_initialize_workgroup_memory: false,
                },
                cache,
            })
        })?;
        Ok(Pipeline { pipeline, storage, immediates })
    }

    fn layout(&mut self, shape: Shape, immediate: bool) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let (device, params) = (&self.device, Some(&self.params).filter(|_| !immediate));
        let immediate_size = if immediate { 4 * self.immediate_words_max as u32 } else { 0 };
        let made = self.layouts.entry((shape, immediate)).or_insert_with(|| {
            let entries: Vec<_> = (0..shape.0 + shape.1)
                .map(|place| {
                    let ty = wgpu::BufferBindingType::Storage { read_only: place >= shape.0 };
                    let binding = wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
                    entry(place as u32, binding)
                })
                .collect();
            let storage =
                device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[params, Some(&storage)],
                immediate_size,
            });
            (storage, layout)
        });
        made.clone()
    }
}

impl Drop for Pipelines {
    /// What was compiled anew goes to disk. Failure costs time at the next start and nothing else.
    fn drop(&mut self) {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.is_stale) else { return };
        if self.faults.lost().is_some() {
            return;
        }
        if let Some(data) = disk.cache.get_data() {
            let beside = disk.path.with_extension(format!("{}.part", std::process::id()));
            let folder = disk.path.parent().map(std::fs::create_dir_all);
            if folder.is_some_and(|made| made.is_ok()) && std::fs::write(&beside, data).is_ok() {
                // Renaming replaces the old file at once: another process reads either of them whole.
                let _ = std::fs::rename(&beside, &disk.path);
            }
        }
    }
}

fn open_cache(device: &wgpu::Device, path: PathBuf) -> Option<Disk> {
    if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return None;
    }
    let small = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= CACHE_BYTES_MAX);
    let data = if small { std::fs::read(&path).ok() } else { None };
    // SAFETY: the data is what `get_data` gave for this adapter and driver, whose names are part of the file's name; the
    // driver checks its own header, and with `fallback` anything else is replaced by an empty cache.
    let cache = unsafe {
        device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
            label: None,
            data: data.as_deref(),
            fallback: true,
        })
    };
    Some(Disk { cache, path, is_stale: false })
}

fn entry(binding: u32, ty: wgpu::BindingType) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry { binding, visibility: wgpu::ShaderStages::COMPUTE, ty, count: None }
}
