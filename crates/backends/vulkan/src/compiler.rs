//! Compiles kernels from WGSL to SPIR-V, with naga.

use std::borrow::Cow;

use ash::vk;
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use panoply_kernels::wgsl::{WideSource, WideTarget};
use panoply_wgsl_gpu::driver::KernelText;

use crate::adapter::Adapter;
use crate::float_controls::FloatControls;
use crate::loops::control_product;
use crate::matrices::with_matrices;

/// The naga options and device limits for the compilation of kernels.
pub(crate) struct Compiler {
    capabilities: Capabilities,
    options: spv::Options<'static>,
    zero_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode,
    invocations_max: u32,
    workgroup_size_max: [u32; 3],
    workgroup_bytes_max: u32,
    has_matrices: bool,
    floats: FloatControls,
}

impl Compiler {
    pub(crate) fn new(adapter: &Adapter) -> Compiler {
        let has = &adapter.has;
        let mut capabilities = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let mut allowed = vec![spv::Capability::Shader, spv::Capability::Matrix];
        if has.f16 {
            capabilities |= Capabilities::SHADER_FLOAT16;
            allowed.push(spv::Capability::Float16);
        }
        if adapter.profile.subgroup_lanes.is_some() {
            capabilities |= Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER;
            allowed.extend([
                spv::Capability::GroupNonUniform,
                spv::Capability::GroupNonUniformVote,
                spv::Capability::GroupNonUniformArithmetic,
                spv::Capability::GroupNonUniformBallot,
                spv::Capability::GroupNonUniformShuffle,
                spv::Capability::GroupNonUniformShuffleRelative,
                spv::Capability::GroupNonUniformQuad,
            ]);
        }
        if adapter.profile.matrix_units {
            capabilities |= Capabilities::COOPERATIVE_MATRIX;
            allowed.extend([spv::Capability::CooperativeMatrixKHR, spv::Capability::VulkanMemoryModel]);
        }
        let options = spv::Options {
            lang_version: if has.version >= vk::API_VERSION_1_3 { (1, 6) } else { (1, 5) },
            flags: spv::WriterFlags::empty(),
            capabilities: Some(allowed.into_iter().collect()),
            use_storage_input_output_16: false,
            ..spv::Options::default()
        };
        Compiler {
            capabilities,
            options,
            zero_workgroup_memory: if has.zero_workgroup_memory {
                spv::ZeroInitializeWorkgroupMemoryMode::Native
            } else {
                spv::ZeroInitializeWorkgroupMemoryMode::Polyfill
            },
            invocations_max: adapter.limits.invocations_max,
            workgroup_size_max: has.workgroup_size_max,
            workgroup_bytes_max: adapter.limits.workgroup_bytes_max,
            has_matrices: adapter.profile.matrix_units,
            floats: has.floats,
        }
    }

    /// A compiler for a device with everything that matrix units need, for tests without that
    /// device.
    #[cfg(test)]
    pub(crate) fn for_matrix_units() -> Compiler {
        let capabilities = Capabilities::IMMEDIATES
            | Capabilities::SHADER_FLOAT16_IN_FLOAT32
            | Capabilities::SHADER_FLOAT16
            | Capabilities::SUBGROUP
            | Capabilities::SUBGROUP_BARRIER
            | Capabilities::COOPERATIVE_MATRIX;
        let options = spv::Options {
            lang_version: (1, 6),
            flags: spv::WriterFlags::empty(),
            use_storage_input_output_16: false,
            ..spv::Options::default()
        };
        Compiler {
            capabilities,
            options,
            zero_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::Native,
            invocations_max: 1024,
            workgroup_size_max: [1024, 1024, 64],
            workgroup_bytes_max: 48 << 10,
            has_matrices: true,
            floats: FloatControls::default(),
        }
    }

    /// Compiles a kernel to SPIR-V. The error names the fault in its text.
    pub(crate) fn compile(&self, kernel: &KernelText<'_>) -> Result<Vec<u32>, String> {
        let text = self.text(kernel);
        let source: &str = &text;
        let module = naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
        let mut validator = Validator::new(ValidationFlags::all(), self.capabilities);
        let info = validator.validate(&module).map_err(|error| error.emit_to_string(source))?;
        let stage = naga::ShaderStage::Compute;
        let constants = naga::back::PipelineConstants::default();
        let entry = Some((stage, kernel.entry));
        let is_there = module.entry_points.iter().any(|point| point.name == kernel.entry && point.stage == stage);
        if !is_there {
            return Err(format!("there is no kernel {} with @compute", kernel.entry));
        }
        let (module, info) = naga::back::pipeline_constants::process_overrides(&module, &info, entry, &constants)
            .map_err(|error| error.to_string())?;
        self.check_workgroup(&module, kernel.entry)?;
        if kernel.checked {
            check_bindings(&module, kernel)?;
        }
        let choice = spv::PipelineOptions { shader_stage: stage, entry_point: kernel.entry.to_owned() };
        let policy = if kernel.checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
        let options = spv::Options {
            bounds_check_policies: BoundsCheckPolicies {
                index: policy,
                buffer: policy,
                image_load: policy,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            // Our own kernels need no such code: they write workgroup memory before they read it,
            // stay inside their buffers, never divide by zero, and end all their loops for all data
            // (rule 6 of `panoply_kernels::wgsl`).
            zero_initialize_workgroup_memory: match kernel.checked {
                true => self.zero_workgroup_memory,
                false => spv::ZeroInitializeWorkgroupMemoryMode::None,
            },
            force_loop_bounding: kernel.checked,
            emit_int_div_checks: kernel.checked,
            ..self.options.clone()
        };
        let words = spv::write_vec(&module, &info, &options, Some(&choice)).map_err(|error| error.to_string())?;
        let words = self.floats.asked(&words)?;
        let Some(wide) = kernel.wide.filter(|_| self.has_matrices) else { return Ok(words) };
        let mut words = with_matrices(&words, wide.dtype)?;
        // The gain for convolutions and searches has not been measured.
        if matches!((wide.b, wide.target), (WideSource::Matrix(_), WideTarget::Sums { .. })) {
            control_product(&mut words)?;
        }
        Ok(words)
    }

    /// The kernel's text. In tests, matrices are emulated on devices without matrix units.
    fn text<'a>(&self, kernel: &KernelText<'a>) -> Cow<'a, str> {
        #[cfg(test)]
        if let Some(wide) = kernel.wide.filter(|_| !self.has_matrices) {
            return Cow::Owned(crate::matrices::emulated(kernel.source, wide.dtype));
        }
        Cow::Borrowed(kernel.source)
    }

    /// Checks the limits of this device, which naga does not check.
    fn check_workgroup(&self, module: &naga::Module, entry: &str) -> Result<(), String> {
        let points = module.entry_points.iter();
        for point in points.filter(|point| point.name == entry) {
            check_size(point.workgroup_size, self.invocations_max, self.workgroup_size_max)?;
        }
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).map_err(|error| error.to_string())?;
        let shared = module.global_variables.iter().filter(|(_, one)| one.space == naga::AddressSpace::WorkGroup);
        let bytes: u64 = shared.map(|(_, one)| u64::from(layouter[one.ty].size)).sum();
        if bytes > u64::from(self.workgroup_bytes_max) {
            return Err(format!("{bytes} bytes of workgroup memory; the device has {}", self.workgroup_bytes_max));
        }
        Ok(())
    }
}

/// Checks that the device can run workgroups of this size.
fn check_size(size: [u32; 3], invocations_max: u32, size_max: [u32; 3]) -> Result<(), String> {
    let invocations = size.iter().fold(1_u64, |all, size| all.saturating_mul(u64::from(*size)));
    if invocations == 0 || invocations > u64::from(invocations_max) {
        return Err(format!("Workgroup size {size:?}: expected 1 to {invocations_max} invocations, got {invocations}"));
    }
    match size.iter().zip(size_max).any(|(size, most)| *size > most) {
        true => Err(format!("Workgroup size {size:?}: the device has {size_max:?} along its axes")),
        false => Ok(()),
    }
}

/// Checks that a caller's own kernel binds only what was declared for it. Its text may declare
/// bindings too, and neither naga nor Vulkan compares those with the kernel's layout or with the
/// length of the bound buffers.
fn check_bindings(module: &naga::Module, kernel: &KernelText<'_>) -> Result<(), String> {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).map_err(|error| error.to_string())?;
    let (writes, reads) = kernel.shape;
    let mut seen = std::collections::HashSet::new();
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.as_deref().unwrap_or("a variable");
        let binding = variable.binding.map(|place| (place.group, place.binding));
        let is_sound = match (variable.space, binding) {
            (naga::AddressSpace::Private | naga::AddressSpace::WorkGroup, None) => true,
            (naga::AddressSpace::Uniform, Some((0, 0))) => {
                kernel.scalars > 0 && layouter[variable.ty].size as usize <= (4 * kernel.scalars).next_multiple_of(16)
            }
            (naga::AddressSpace::Storage { access }, Some((1, place))) => {
                let is_written = (place as usize) < writes;
                (place as usize) < writes + reads
                    && (is_written || !access.contains(naga::StorageAccess::STORE))
                    && is_runtime_sized(module, variable.ty)
            }
            _ => false,
        };
        if !is_sound || binding.is_some_and(|place| !seen.insert(place)) {
            return Err(format!("{name}: a kernel declares no buffers or parameters itself; they are declared for it"));
        }
    }
    Ok(())
}

fn is_runtime_sized(module: &naga::Module, kind: naga::Handle<naga::Type>) -> bool {
    matches!(module.types[kind].inner, naga::TypeInner::Array { size: naga::ArraySize::Dynamic, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroups_keep_to_the_limits_of_each_axis() {
        let check = |size| check_size(size, 1024, [1024, 1024, 64]);
        assert!(check([1024, 1, 1]).is_ok() && check([4, 4, 64]).is_ok());
        for (size, expected) in [([1, 1, 65], "along its axes"), ([1024, 2, 1], "got 2048"), ([0, 1, 1], "got 0")] {
            let said = check(size).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
        assert!(check([u32::MAX; 3]).is_err());
    }
}
