//! Ranks of elements.

use panoply_core::dtype::{bf16, f16};
use panoply_cpu_order::topk::order::{RankedElement, f32_of_rank};

#[test]
fn ranks_follow_the_numbers() {
    let ascending = [f32::NEG_INFINITY, -1.0e30, -1.5, -1.0e-40, 0.0, 1.0e-40, 1.0, 3.0e38, f32::INFINITY, f32::NAN];
    assert!(ascending.windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
    let ascending = ascending.map(f64::from);
    assert!(ascending.windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
    let ascending = [-60000.0, -1.0, 0.0, 0.25, 7.0, f32::INFINITY, f32::NAN];
    assert!(ascending.windows(2).all(|pair| f16::from_f32(pair[0]).rank() < f16::from_f32(pair[1]).rank()));
    assert!(ascending.windows(2).all(|pair| bf16::from_f32(pair[0]).rank() < bf16::from_f32(pair[1]).rank()));
    assert!([i32::MIN, -1, 0, i32::MAX].windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
    assert!([-128_i8, -1, 0, 127].windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
}

#[test]
fn zeros_are_equal_and_so_are_all_nans() {
    assert_eq!(0.0_f32.rank(), (-0.0_f32).rank());
    assert_eq!(f16::NEG_ZERO.rank(), f16::ZERO.rank());
    assert_eq!(f32::NAN.rank(), (-f32::NAN).rank());
    assert_eq!(f32::from_bits(0x7f80_0001).rank(), f32::NAN.rank());
}

#[test]
fn a_rank_gives_its_number_back() {
    for value in [f32::NEG_INFINITY, -2.5, -1.0e-42, 0.0, 1.0e-42, 7.25, f32::MAX, f32::INFINITY] {
        assert_eq!(f32_of_rank(value.rank()), value);
    }
    assert!(f32_of_rank(f32::NAN.rank()).is_nan());
}
