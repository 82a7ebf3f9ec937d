//! Finds out what an adapter is and which features it has.

use std::path::Path;

use panoply_core::{Api, Capabilities, DeviceId, DeviceInfo, DeviceKind};
use panoply_kernels::wgsl::CoopKernel;
use panoply_placement::{SYSTEM, locate};
use panoply_wgsl_gpu::profile::{Profile, WideMatrices};

use crate::quirks::QUIRKS;
use crate::vulkan::Identity;

/// The most words of parameters that a dispatch carries itself, if the adapter can.
const IMMEDIATE_WORDS_MAX: usize = 64;

/// The facts about an adapter that ops need.
pub(crate) fn profile(
    id: DeviceId,
    info: &wgpu::AdapterInfo,
    limits: &wgpu::Limits,
    features: wgpu::Features,
    matrices: &[wgpu::CooperativeMatrixProperties],
) -> Profile {
    let lanes =
        u8::try_from(info.subgroup_min_size).ok().filter(|lanes| (4..=64).contains(lanes) && lanes.is_power_of_two());
    let uniform = info.subgroup_min_size == info.subgroup_max_size;
    let subgroup_lanes = lanes.filter(|_| uniform && features.contains(wgpu::Features::SUBGROUP));
    let matrix_units = subgroup_lanes == Some(32)
        && features.contains(MATRIX_FEATURES)
        && limits.max_compute_workgroup_storage_size >= CoopKernel::workgroup_bytes()
        && matrices.iter().any(is_known);
    let carries = features.contains(wgpu::Features::IMMEDIATES);
    let immediate_words_max = IMMEDIATE_WORDS_MAX.min(limits.max_immediate_size as usize / 4);
    Profile {
        id,
        name: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info),
        binding_bytes_max: limits.max_storage_buffer_binding_size & !15,
        buffer_bytes_max: limits.max_buffer_size & !15,
        workgroup_bytes_max: limits.max_compute_workgroup_storage_size,
        buffers_max: limits.max_storage_buffers_per_shader_stage as usize,
        immediate_words_max: if carries { immediate_words_max } else { 0 },
        params_step_bytes: limits.min_uniform_buffer_offset_alignment as usize,
        is_software: info.device_type == wgpu::DeviceType::Cpu,
        subgroup_lanes,
        matrix_units,
        wide_matrices: WideMatrices::default(),
        quirks: QUIRKS,
    }
}

/// The features that a device must be opened with to use its matrix units.
pub(crate) const MATRIX_FEATURES: wgpu::Features =
    wgpu::Features::SHADER_F16.union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

/// Whether the matrices have the shape and types that our kernels multiply.
fn is_known(matrices: &wgpu::CooperativeMatrixProperties) -> bool {
    use wgpu::CooperativeScalarType::{F16, F32};
    [matrices.m_size, matrices.n_size, matrices.k_size] == [16; 3] && matrices.ab_type == F16 && matrices.cr_type == F32
}

/// The public description of an adapter. Facts that WebGPU does not report stay `None`.
pub(crate) fn describe(
    id: DeviceId,
    info: &wgpu::AdapterInfo,
    limits: &wgpu::Limits,
    features: wgpu::Features,
    identity: Identity,
) -> DeviceInfo {
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu | wgpu::DeviceType::VirtualGpu => DeviceKind::DiscreteGpu,
        wgpu::DeviceType::Cpu => DeviceKind::SoftwareGpu,
        wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Other => DeviceKind::IntegratedGpu,
    };
    let name = format!("{} ({})", info.name, info.backend);
    let mut device = DeviceInfo::new(id, name, kind);
    let driver = format!("{} {}", info.driver, info.driver_info);
    device.driver_version = Some(driver.trim().to_owned()).filter(|driver| !driver.is_empty());
    device.threads_per_block_max = Some(limits.max_compute_invocations_per_workgroup);
    device.shared_memory_bytes_max = Some(u64::from(limits.max_compute_workgroup_storage_size));
    if let Ok(address) = info.device_pci_bus_id.parse() {
        locate(&mut device, Path::new(SYSTEM), address);
    }
    device.uuid = identity.uuid;
    device.through = match info.backend {
        wgpu::Backend::Vulkan => Some(Api::VULKAN),
        wgpu::Backend::Metal => Some(Api::METAL),
        _ => None,
    };
    device.memory_total_bytes = identity.memory_bytes.filter(|_| kind == DeviceKind::DiscreteGpu);
    let known = [
        ("f16", wgpu::Features::SHADER_F16),
        ("f64", wgpu::Features::SHADER_F64),
        ("i64", wgpu::Features::SHADER_INT64),
        ("subgroups", wgpu::Features::SUBGROUP),
        ("timestamps", wgpu::Features::TIMESTAMP_QUERY),
        ("pipeline-cache", wgpu::Features::PIPELINE_CACHE),
        ("cooperative-matrix", wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
    ];
    let names = known.into_iter().filter(|(_, feature)| features.contains(*feature)).map(|(name, _)| name.to_owned());
    // WGSL lets devices flush subnormal numbers, and wgpu has no way to forbid this.
    let names = names.chain([Capabilities::FLUSHES_SUBNORMALS.to_owned()]);
    device.runs_on_cores = device.kind == DeviceKind::SoftwareGpu;
    device.capabilities = Capabilities { domains: panoply_wgsl_gpu::ops::DOMAINS.to_vec(), features: names.collect() };
    device
}

/// The id of the adapter with this index.
pub(crate) fn device_id(index: usize) -> DeviceId {
    DeviceId { api: Api::WGPU, index: u32::try_from(index).unwrap_or(u32::MAX) }
}
