//! Top-k against a full sort, at every vector level.

use panoply_core::dtype::{Complex64, DType, Element, bf16, f16};
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_order::topk::*;

/// Bits from a small generator, so that every value of a type occurs: NaN, infinities, both zeros,
/// and ties.
fn bits(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 11_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 13
    })
}

fn compare<T: RankedElement>(a: T, b: T, as_f64: impl Fn(T) -> f64) -> std::cmp::Ordering {
    let (a, b) = (as_f64(a), as_f64(b));
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn check<T: RankedElement>(make: impl Fn(u64) -> T, as_f64: impl Fn(T) -> f64 + Copy) {
    let teams = [Team::single(), Team::new(2)];
    let shapes = [(1, 1, 1, 1), (3, 5, 1, 2), (7, 300, 1, 3), (1, 70_000, 1, 100), (2, 41, 19, 41), (1, 900, 33, 70)];
    for (outer, len, inner, k) in shapes {
        let input: Vec<T> = bits(outer * len * inner).map(&make).collect();
        for largest in [true, false] {
            let mut wanted = vec![0; outer * k * inner];
            for lane in 0..outer * inner {
                let at = |index: usize| input[(lane / inner * len + index) * inner + lane % inner];
                let mut order: Vec<usize> = (0..len).collect();
                order.sort_by(|a, b| {
                    let order = compare(at(*a), at(*b), as_f64);
                    if largest { order.reverse() } else { order }
                });
                for place in 0..k {
                    wanted[(lane / inner * k + place) * inner + lane % inner] = order[place] as u32;
                }
            }
            for simd in Simd::available() {
                for team in &teams {
                    let (mut values, mut indices) = (vec![input[0]; wanted.len()], vec![0; wanted.len()]);
                    let lanes = Lanes { outer, len, inner };
                    top_k(team, simd, &input, lanes, k, largest, &mut values, &mut indices);
                    assert_eq!(indices, wanted, "{} {lanes:?} k{k} largest {largest} {simd:?}", T::DTYPE);
                    for (place, value) in values.iter().enumerate() {
                        let (line, lane) = (place / inner, place % inner);
                        let from = input[(line / k * len + indices[place] as usize) * inner + lane];
                        assert_eq!(bytemuck::bytes_of(value), bytemuck::bytes_of(&from));
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_agrees_with_a_full_sort() {
    check(|bits| f32::from_bits(bits as u32), f64::from);
    check(|bits| (bits % 7) as f32 - 3.0, f64::from);
    check(|bits| f64::from_bits(bits << 10 | bits), |value| value);
    check(|bits| f16::from_bits(bits as u16), f16::to_f64);
    check(|bits| bf16::from_bits(bits as u16), bf16::to_f64);
    check(|bits| bits as i32, f64::from);
    check(|bits| bits as u32, f64::from);
    check(|bits| bits as i8, f64::from);
    check(|bits| bits as u8, f64::from);
    assert_eq!(Complex64::DTYPE, DType::Complex64, "complex numbers have no order and no rank");
}

#[test]
fn sorted_inputs_are_no_harder() {
    let ascending: Vec<i32> = (0..100_000).collect();
    for k in [1, 10, 64, 65, 5000] {
        let (mut values, mut indices) = (vec![0; k], vec![0; k]);
        let lanes = Lanes { outer: 1, len: ascending.len(), inner: 1 };
        top_k(&Team::new(2), Simd::detect(), &ascending, lanes, k, true, &mut values, &mut indices);
        assert!(values.iter().zip((0..100_000).rev()).all(|(value, wanted)| *value == wanted));
    }
}

#[test]
fn zero_of_anything_is_nothing() {
    let lanes = Lanes { outer: 3, len: 4, inner: 1 };
    top_k(&Team::single(), Simd::detect(), &[0_i8; 12], lanes, 0, true, &mut [], &mut []);
    let lanes = Lanes { outer: 0, len: 4, inner: 5 };
    top_k::<f32>(&Team::single(), Simd::detect(), &[], lanes, 2, true, &mut [], &mut []);
}
