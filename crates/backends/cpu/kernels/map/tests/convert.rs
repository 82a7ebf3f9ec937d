//! Conversions of elements.

use panoply_core::{bf16, f16};
use panoply_cpu_map::internals::{Cast, Element, f16_to_f32, f32_to_bf16, f32_to_f16};

#[test]
fn every_half_is_read_right() {
    for bits in 0..=u16::MAX {
        let (got, expected) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
        assert!(got == expected && got.is_sign_negative() == expected.is_sign_negative() || expected.is_nan());
        assert_eq!(got.is_nan(), expected.is_nan());
        if !expected.is_nan() {
            assert_eq!(f32_to_f16(got), bits);
        }
    }
}

#[test]
fn floats_become_integers_as_the_language_says() {
    let steps = (0..=u32::MAX).step_by(997);
    let edges =
        [0x4f00_0000, 0xcf00_0000, 0x4f80_0000, 0x437f_0000, 0x4300_0000, 0xc300_0000, 0x7f80_0000, 0x7fc0_0000];
    for bits in steps.chain(edges.into_iter().flat_map(|edge: u32| [edge - 1, edge, edge + 1])) {
        let value = f32::from_bits(bits);
        assert_eq!(<Cast as Element<f32, i32>>::call(value), value as i32, "{value:e}");
        assert_eq!(<Cast as Element<f32, u32>>::call(value), value as u32, "{value:e}");
        assert_eq!(<Cast as Element<f32, i8>>::call(value), value as i8, "{value:e}");
        assert_eq!(<Cast as Element<f32, u8>>::call(value), value as u8, "{value:e}");
    }
}

#[test]
fn halves_are_rounded_to_nearest_even() {
    for step in 0..=u32::MAX / 997 {
        let value = f32::from_bits(step * 997);
        if value.is_nan() {
            assert!(f16::from_bits(f32_to_f16(value)).is_nan() && bf16::from_bits(f32_to_bf16(value)).is_nan());
            continue;
        }
        assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
        assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
    }
}
