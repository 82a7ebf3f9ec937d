//! Every level and team size against loops in f64.

use half::{bf16, f16};
use panoply_core::dtype::Complex64;
use panoply_cpu_machine::extents::Extents;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_rows::reduce::*;

const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 7, 1),
    (3, 17, 1),
    (5, 600, 1),
    (1, 100_003, 1),
    (2, 600_001, 1),
    (1, 5, 2),
    (2, 31, 3),
    (1, 200_003, 3),
    (3, 67, 65),
    (2, 130, 513),
    (1, 3, 70_001),
    (7, 1, 9),
    (300, 129, 2),
];

fn random(count: usize) -> impl Iterator<Item = f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    })
}

fn lines<T: Copy>(input: &[T], extents: Extents) -> impl Iterator<Item = Vec<T>> {
    (0..extents.lines()).map(move |line| {
        let (slab, column) = (line / extents.inner, line % extents.inner);
        (0..extents.axis).map(|row| input[(slab * extents.axis + row) * extents.inner + column]).collect()
    })
}

fn every_way(mut check: impl FnMut(Simd, &Team)) {
    for simd in Simd::available() {
        for team in [Team::single(), Team::new(2)] {
            check(simd, &team);
        }
    }
}

fn check_sum<T: Sum>(make: impl Fn(f64) -> T, value: impl Fn(T) -> f64, tolerance: f64) {
    for (outer, axis, inner) in SHAPES {
        let extents = Extents { outer, axis, inner };
        let input: Vec<T> = random(extents.elements()).map(&make).collect();
        let mut first: Option<Vec<T>> = None;
        every_way(|simd, team| {
            let mut out = vec![make(0.25); extents.lines()];
            T::sum(simd, team, &input, extents, &mut out);
            for (line, got) in lines(&input, extents).zip(&out) {
                let expected: f64 = line.iter().map(|element| value(*element)).sum();
                let size: f64 = line.iter().map(|element| value(*element).abs()).sum::<f64>().sqrt() + expected.abs();
                let got = value(*got);
                assert!((got - expected).abs() <= tolerance * size, "{extents:?} {simd:?}: {got} {expected}");
            }
            let first = first.get_or_insert_with(|| out.clone());
            assert!(*first == out, "{extents:?} {simd:?}: not the same bits");
        });
    }
}

#[test]
fn float_sums_are_accurate_and_the_same_everywhere() {
    check_sum(|value| value as f32, f64::from, 3e-7);
    check_sum(|value| value, |value| value, 1e-14);
    check_sum(f16::from_f64, f64::from, 1e-3);
    check_sum(bf16::from_f64, f64::from, 8e-3);
}

#[test]
fn integer_sums_wrap() {
    fn check<T: Sum>(make: impl Fn(f64) -> T, add: impl Fn(T, T) -> T, zero: T) {
        for (outer, axis, inner) in SHAPES {
            let extents = Extents { outer, axis, inner };
            let input: Vec<T> = random(extents.elements()).map(&make).collect();
            let expected: Vec<T> = lines(&input, extents).map(|line| line.into_iter().fold(zero, &add)).collect();
            every_way(|simd, team| {
                let mut out = vec![zero; extents.lines()];
                T::sum(simd, team, &input, extents, &mut out);
                assert_eq!(out, expected, "{extents:?} {simd:?}");
            });
        }
    }
    check(|value| (value * 4e9) as i32, i32::wrapping_add, 0);
    check(|value| ((value + 0.5) * 4e9) as u32, u32::wrapping_add, 0);
    check(|value| (value * 255.0) as i8, i8::wrapping_add, 0);
    check(|value| ((value + 0.5) * 255.0) as u8, u8::wrapping_add, 0);
}

#[test]
fn means_divide_once() {
    let team = Team::single();
    let extents = Extents { outer: 2, axis: 3, inner: 2 };
    let input: Vec<i32> = (0..12).map(|value| i32::MAX - value).collect();
    every_way(|simd, team| {
        let mut out = [0.0_f32; 4];
        i32::mean(simd, team, &input, extents, &mut out);
        assert_eq!(
            out,
            [2_147_483_645.0, 2_147_483_644.0, 2_147_483_639.0, 2_147_483_638.0].map(|mean: f64| mean as f32)
        );
    });
    let mut out = [0.0_f32];
    f32::mean(Simd::detect(), &team, &[1.0, 2.0, 4.5], Extents::row(3), &mut out);
    assert_eq!(out, [2.5]);
    f32::mean(Simd::detect(), &team, &[], Extents::row(0), &mut out);
    assert!(out[0].is_nan());
    f32::sum(Simd::detect(), &team, &[], Extents::row(0), &mut out);
    assert_eq!(out, [0.0]);
}

#[test]
fn complex_sums_add_the_parts() {
    let input: Vec<Complex64> = (0..10).map(|index| Complex64::new(index as f32, -1.0)).collect();
    let mut out = [Complex64::default(); 2];
    Complex64::sum(Simd::detect(), &Team::single(), &input, Extents { outer: 2, axis: 5, inner: 1 }, &mut out);
    assert_eq!(out, [Complex64::new(10.0, -5.0), Complex64::new(35.0, -5.0)]);
}

fn check_extremes<T: OrderedElement + PartialOrd>(make: impl Fn(f64) -> T) {
    for (outer, axis, inner) in SHAPES {
        let extents = Extents { outer, axis, inner };
        let input: Vec<T> = random(extents.elements()).map(&make).collect();
        let best = |better: fn(&T, &T) -> bool| -> Vec<(T, u32)> {
            let first = |line: Vec<T>| {
                let mut best = 0;
                for index in 1..line.len() {
                    if better(&line[index], &line[best]) || is_nan(line[index]) && !is_nan(line[best]) {
                        best = index;
                    }
                }
                (line[best], best as u32)
            };
            lines(&input, extents).map(first).collect()
        };
        let (greatest, least) = (best(|a, b| a > b), best(|a, b| a < b));
        every_way(|simd, team| {
            let (mut values, mut indices) = (vec![make(0.0); extents.lines()], vec![7; extents.lines()]);
            let verify = |values: &[T], indices: &[u32], expected: &[(T, u32)]| {
                for (index, (value, index_of)) in expected.iter().enumerate() {
                    assert!(values[index] == *value || is_nan(*value) && is_nan(values[index]), "{extents:?} {simd:?}");
                    assert_eq!(indices[index], *index_of, "{extents:?} {simd:?} line {index}");
                }
            };
            max(simd, team, &input, extents, &mut values);
            arg_max(simd, team, &input, extents, &mut indices);
            verify(&values, &indices, &greatest);
            min(simd, team, &input, extents, &mut values);
            arg_min(simd, team, &input, extents, &mut indices);
            verify(&values, &indices, &least);
        });
    }
}

fn is_nan<T: PartialOrd>(value: T) -> bool {
    value.partial_cmp(&value).is_none()
}

#[test]
fn extremes_and_their_first_index() {
    check_extremes(|value| value as f32);
    check_extremes(|value| value);
    check_extremes(f16::from_f64);
    check_extremes(bf16::from_f64);
    check_extremes(|value| (value * 4e9) as i32);
    check_extremes(|value| ((value + 0.5) * 4e9) as u32);
    check_extremes(|value| (value * 255.0) as i8);
    check_extremes(|value| ((value + 0.5) * 255.0) as u8);
}

#[test]
fn nan_and_infinity_win() {
    check_extremes(|value| if value > 0.4999 { f32::NAN } else { value as f32 });
    check_extremes(|value| if value.abs() > 0.3 { (value * f64::INFINITY) as f32 } else { value as f32 });
    check_extremes(|value| if value > 0.49 { f64::NAN } else { value });
    check_extremes(|_| f32::NEG_INFINITY);
    check_extremes(|_| f16::NAN);
}
