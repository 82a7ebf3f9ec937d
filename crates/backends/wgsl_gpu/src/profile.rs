//! What ops need to know about a device.

use std::hash::{DefaultHasher, Hash, Hasher};

use panoply_core::{DType, DeviceId};

use crate::quirks::Quirk;

/// What a device is and has.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Which device it is.
    pub id: DeviceId,
    /// Its name and its driver's, as they write them.
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
    /// The most words of parameters that a dispatch carries itself; none where it cannot.
    pub immediate_words_max: usize,
    /// Parameters in a buffer begin at multiples of so many bytes.
    pub params_step_bytes: usize,
    /// A graphics API on the CPU.
    pub is_software: bool,
    /// Invocations of a subgroup, where there are subgroups and all have the same size.
    pub subgroup_lanes: Option<u8>,
    /// Matrix units multiply f16 and add up in f32.
    pub matrix_units: bool,
    /// For which types the driver makes matrices of those that kernels call f32 (`KernelText::wide`).
    pub wide_matrices: WideMatrices,
    /// What is known to go wrong.
    pub quirks: &'static [Quirk],
}

/// Types that matrix units multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideMatrices {
    /// f16.
    pub f16: bool,
    /// bf16.
    pub bf16: bool,
}

impl WideMatrices {
    /// Whether they multiply this one.
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
