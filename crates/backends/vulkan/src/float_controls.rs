//! Asks the device to preserve subnormal numbers, NaN and infinities in kernels.
//!
//! Without such a request a device may flush subnormal numbers to zero, and its compiler may assume
//! that there is no NaN. SPIR-V has execution modes that forbid both (float controls, of Vulkan 1.2
//! and SPIR-V 1.4), and naga does not write them. This module inserts the modes that the device
//! supports into every kernel. A device that cannot preserve subnormal numbers lists this in its
//! features.

use ash::vk;

use crate::matrices::{HEADER_WORDS, instructions};

const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const CAPABILITY_DENORM_PRESERVE: u32 = 4464;
const CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE: u32 = 4466;
const MODE_DENORM_PRESERVE: u32 = 4459;
const MODE_SIGNED_ZERO_INF_NAN_PRESERVE: u32 = 4461;
/// Kernels compute with f32; the modes of other widths are set only if a device cannot set one
/// width alone.
const WIDTH: u32 = 32;
const ALL_WIDTHS: &[u32] = &[16, 32, 64];

/// The float controls that a device supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloatControls {
    /// The widths for which subnormal numbers are preserved; empty if f32 cannot be preserved.
    kept_widths: &'static [u32],
    /// Signed zeros, infinities and NaN of f32 are preserved.
    keeps_nan: bool,
}

impl FloatControls {
    pub(crate) fn of(device: &vk::PhysicalDeviceFloatControlsProperties<'_>) -> FloatControls {
        let has = |flag: vk::Bool32| flag == vk::TRUE;
        let all = has(device.shader_denorm_preserve_float16)
            && has(device.shader_denorm_preserve_float32)
            && has(device.shader_denorm_preserve_float64);
        let is_alone = device.denorm_behavior_independence != vk::ShaderFloatControlsIndependence::NONE;
        let kept_widths: &[u32] = match has(device.shader_denorm_preserve_float32) {
            true if is_alone => &[WIDTH],
            true if all => ALL_WIDTHS,
            _ => &[],
        };
        FloatControls { kept_widths, keeps_nan: has(device.shader_signed_zero_inf_nan_preserve_float32) }
    }

    /// Whether f32 arithmetic preserves subnormal numbers.
    pub(crate) fn keeps_subnormals(&self) -> bool {
        !self.kept_widths.is_empty()
    }

    /// Inserts all supported modes into a kernel. Fails if the module is malformed.
    pub(crate) fn asked(&self, words: &[u32]) -> Result<Vec<u32>, String> {
        let mut modes: Vec<(u32, u32, u32)> = Vec::new();
        let kept = self.kept_widths.iter();
        modes.extend(kept.map(|width| (CAPABILITY_DENORM_PRESERVE, MODE_DENORM_PRESERVE, *width)));
        if self.keeps_nan {
            modes.push((CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE, MODE_SIGNED_ZERO_INF_NAN_PRESERVE, WIDTH));
        }
        if modes.is_empty() {
            return Ok(words.to_vec());
        }
        let mut capabilities: Vec<u32> = modes.iter().map(|(capability, ..)| *capability).collect();
        capabilities.dedup();
        let (mut capabilities_end, mut modes_end, mut entry) = (None, None, None);
        let mut at = HEADER_WORDS;
        for instruction in instructions(words)? {
            let end = at + instruction.len();
            match (instruction[0] & 0xffff, instruction) {
                (OP_CAPABILITY, _) => capabilities_end = Some(end),
                (OP_ENTRY_POINT, [_, _, function, ..]) => (entry, modes_end) = (Some(*function), Some(end)),
                (OP_EXECUTION_MODE, _) => modes_end = Some(end),
                _ => {}
            }
            at = end;
        }
        let missing = || "a module without capabilities or an entry point".to_owned();
        let (first, second) = (capabilities_end.ok_or_else(missing)?, modes_end.ok_or_else(missing)?);
        let entry = entry.ok_or_else(missing)?;
        let mut changed = Vec::with_capacity(words.len() + 2 * capabilities.len() + 4 * modes.len());
        changed.extend(&words[..first]);
        capabilities.iter().for_each(|capability| changed.extend([2 << 16 | OP_CAPABILITY, *capability]));
        changed.extend(&words[first..second]);
        modes.iter().for_each(|(_, mode, width)| changed.extend([4 << 16 | OP_EXECUTION_MODE, entry, *mode, *width]));
        changed.extend(&words[second..]);
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(preserve: [u32; 3], independence: vk::ShaderFloatControlsIndependence) -> FloatControls {
        let [float16, float32, float64] = preserve;
        FloatControls::of(&vk::PhysicalDeviceFloatControlsProperties {
            shader_denorm_preserve_float16: float16,
            shader_denorm_preserve_float32: float32,
            shader_denorm_preserve_float64: float64,
            denorm_behavior_independence: independence,
            shader_signed_zero_inf_nan_preserve_float32: vk::TRUE,
            ..Default::default()
        })
    }

    #[test]
    fn modes_come_behind_those_that_are_there() {
        let all = vk::ShaderFloatControlsIndependence::ALL;
        let none = vk::ShaderFloatControlsIndependence::NONE;
        let header = [0x0723_0203, 0x0001_0500, 0, 9, 0];
        let capability = [2 << 16 | OP_CAPABILITY, 1];
        let point = [5 << 16 | OP_ENTRY_POINT, 5, 7, u32::from_le_bytes(*b"main"), 0];
        let size = [6 << 16 | OP_EXECUTION_MODE, 7, 17, 64, 1, 1];
        let end = [1 << 16 | 253];
        let words = [&header[..], &capability, &point, &size, &end].concat();
        let controls = properties([0, 1, 0], all);
        assert!(controls.keeps_subnormals());
        let keep = [2 << 16 | OP_CAPABILITY, 4464, 2 << 16 | OP_CAPABILITY, 4466];
        let modes = [4 << 16 | OP_EXECUTION_MODE, 7, 4459, 32, 4 << 16 | OP_EXECUTION_MODE, 7, 4461, 32];
        let expected = [&header[..], &capability, &keep, &point, &size, &modes, &end].concat();
        assert_eq!(controls.asked(&words).unwrap(), expected);
        assert!(!properties([0, 1, 0], none).keeps_subnormals());
        assert_eq!(properties([1, 1, 1], none).kept_widths, [16, 32, 64]);
        assert_eq!(FloatControls::default().asked(&words).unwrap(), words);
        assert!(controls.asked(&header).is_err());
    }
}
