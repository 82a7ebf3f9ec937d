//! `VK_KHR_shader_bfloat16`, which ash 0.38 does not know yet: its name and features, as Vulkan's
//! headers declare them.

use std::ffi::{CStr, c_void};

use ash::vk;

/// The name of the extension.
pub(crate) const BFLOAT16_NAME: &CStr = c"VK_KHR_shader_bfloat16";
/// The component type of bf16 matrices.
pub(crate) const COMPONENT_BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

const STRUCTURE: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
pub(crate) struct Bfloat16Features {
    kind: vk::StructureType,
    next: *mut c_void,
    pub(crate) has_type: vk::Bool32,
    pub(crate) has_dot_product: vk::Bool32,
    pub(crate) has_matrices: vk::Bool32,
}

impl Bfloat16Features {
    /// The features that kernels need, for enabling them.
    pub(crate) fn wanted() -> Bfloat16Features {
        Bfloat16Features { has_type: vk::TRUE, has_matrices: vk::TRUE, ..Bfloat16Features::default() }
    }
}

impl Default for Bfloat16Features {
    fn default() -> Bfloat16Features {
        let (kind, next) = (STRUCTURE, std::ptr::null_mut());
        Bfloat16Features { kind, next, has_type: vk::FALSE, has_dot_product: vk::FALSE, has_matrices: vk::FALSE }
    }
}

// SAFETY: the structure begins with type and next pointer like every chained structure, and has the
// type and the fields that Vulkan documents for these two chains.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features {}
