//! Half precision against the crate `half`.

use panoply_core::dtype::{bf16, f16};
use panoply_cpu_gemm::gemm::{Operand, Output};

#[test]
fn every_half_widens_as_the_half_crate_says() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (f16::from_bits(bits).widen(), f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
    }
}

#[test]
fn narrowing_agrees_with_the_half_crate() {
    for step in 0..=(u32::MAX / 997) {
        let value = f32::from_bits(step * 997);
        let (ours, theirs) = (<f16 as Output>::narrow(value), f16::from_f32(value));
        assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "f16 of {value:e}: {ours} {theirs}");
        let (ours, theirs) = (<bf16 as Output>::narrow(value), bf16::from_f32(value));
        assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "bf16 of {value:e}: {ours} {theirs}");
    }
}
