//! Names of the APIs through which hardware is reached, such as `cuda` or `vulkan`. The set is
//! open: a backend outside this workspace brings its own name.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The longest name of an API, in bytes.
pub const API_NAME_BYTES_MAX: usize = 15;

/// The name of an API through which a device is reached: lower-case letters, digits, `-` and `_`,
/// beginning with a letter. Only backends draw conclusions from the name. The properties of a
/// device are in its [`DeviceInfo`](crate::DeviceInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Api {
    /// The name, padded with zeroes.
    name: [u8; API_NAME_BYTES_MAX],
    len: u8,
}

impl Api {
    /// The processor's cores.
    pub const CPU: Api = Api::new("cpu");
    /// NVIDIA's CUDA.
    pub const CUDA: Api = Api::new("cuda");
    /// AMD's ROCm, through HIP.
    pub const ROCM: Api = Api::new("rocm");
    /// Vulkan compute.
    pub const VULKAN: Api = Api::new("vulkan");
    /// Apple's Metal. Devices are reached through it by way of wgpu: it stands in
    /// [`DeviceInfo::through`](crate::DeviceInfo::through).
    pub const METAL: Api = Api::new("metal");
    /// WebGPU, through wgpu.
    pub const WGPU: Api = Api::new("wgpu");
    /// OpenCL.
    pub const OPENCL: Api = Api::new("opencl");
    /// PJRT plugins: TPUs and others.
    pub const PJRT: Api = Api::new("pjrt");
    /// Intel QuickAssist.
    pub const QAT: Api = Api::new("qat");
    /// Programmable logic.
    pub const FPGA: Api = Api::new("fpga");
    /// A virtual device of the test kit. Never real hardware.
    pub const SIMULATED: Api = Api::new("simulated");

    /// The APIs that this crate has constants for. Others exist.
    pub const NAMED: [Api; 11] = [
        Api::CPU,
        Api::CUDA,
        Api::ROCM,
        Api::VULKAN,
        Api::METAL,
        Api::WGPU,
        Api::OPENCL,
        Api::PJRT,
        Api::QAT,
        Api::FPGA,
        Api::SIMULATED,
    ];

    /// Makes an API from its name. Panics if the name is invalid; in a `const` this is a compile
    /// error. Use `parse` for names that come from outside.
    pub const fn new(name: &str) -> Api {
        match Api::checked(name) {
            Some(api) => api,
            None => panic!("an API's name is 1 to 15 lower-case letters, digits, - or _, and begins with a letter"),
        }
    }

    const fn checked(name: &str) -> Option<Api> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() > API_NAME_BYTES_MAX || !bytes[0].is_ascii_lowercase() {
            return None;
        }
        let mut stored = [0; API_NAME_BYTES_MAX];
        let mut at = 0;
        while at < bytes.len() {
            if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
                return None;
            }
            stored[at] = bytes[at];
            at += 1;
        }
        Some(Api { name: stored, len: bytes.len() as u8 })
    }

    /// The name used in device ids, on the command line and in metrics.
    pub fn name(&self) -> &str {
        // The bytes came from an ASCII `str`.
        std::str::from_utf8(&self.name[..usize::from(self.len)]).unwrap_or("?")
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Api({})", self.name())
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Api {
    type Err = Error;

    fn from_str(text: &str) -> Result<Api, Error> {
        let expected = "1 to 15 lower-case letters, digits, - or _, beginning with a letter, such as cuda";
        Api::checked(text).ok_or_else(|| Error::invalid("API", expected, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_bad_ones_are_refused() {
        for name in ["cpu", "own-chip", "a", "x_9", "fifteen-letters"] {
            assert_eq!(name.parse::<Api>().unwrap().to_string(), name);
        }
        for name in ["", "Cpu", "9a", "-a", "a b", "naïve", "sixteen--letters", "a:0"] {
            assert!(name.parse::<Api>().is_err(), "{name}");
        }
        assert_eq!("cuda".parse::<Api>().unwrap(), Api::CUDA);
        assert_ne!(Api::CUDA, Api::CPU);
    }
}
