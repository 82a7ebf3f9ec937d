//! The facts about a device that ops need.

use std::hash::{DefaultHasher, Hash, Hasher};

use panoply_core::{DType, DeviceId};

use crate::quirks::Quirk;

/// The properties of a device.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The id of the device.
    pub id: DeviceId,
    /// The device's name, as the driver reports it.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// The most bytes of a buffer that one kernel can see, a multiple of sixteen.
    pub binding_bytes_max: u64,
    /// The most bytes of a buffer, a multiple of sixteen.
    pub buffer_bytes_max: u64,
    /// The most bytes of workgroup memory.
    pub workgroup_bytes_max: u32,
    /// The most storage buffers of one kernel.
    pub buffers_max: usize,
    /// The most words of parameters that a dispatch carries itself; 0 if it cannot.
    pub immediate_words_max: usize,
    /// Alignment in bytes of parameters in a buffer.
    pub params_step_bytes: usize,
    /// Whether this is a graphics API on the CPU.
    pub is_software: bool,
    /// Invocations of a subgroup, if there are subgroups and all have the same size.
    pub subgroup_lanes: Option<u8>,
    /// Whether matrix units multiply f16 and accumulate in f32.
    pub matrix_units: bool,
    /// The types for which the driver makes the matrices that kernels call f32
    /// (`KernelText::wide`).
    pub wide_matrices: WideMatrices,
    /// Known faults.
    pub quirks: &'static [Quirk],
}

/// The 16-bit types that matrix units multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideMatrices {
    /// f16.
    pub f16: bool,
    /// bf16.
    pub bf16: bool,
}

impl WideMatrices {
    /// Whether the matrix units multiply this type.
    pub fn have(&self, dtype: DType) -> bool {
        match dtype {
            DType::F16 => self.f16,
            DType::BF16 => self.bf16,
            _ => false,
        }
    }
}

impl Profile {
    /// The name of a file in the user's cache for this device and driver.
    pub fn cache_name(&self, what: &str) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.driver, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        format!("{what}-{:016x}", hasher.finish())
    }
}
