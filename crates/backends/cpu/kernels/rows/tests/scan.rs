//! Every level, team size and direction against loops in f64 or the type itself.

use half::{bf16, f16};

use panoply_core::dtype::Element;
use panoply_cpu_machine::extents::Extents;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_rows::scan::*;

const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 63, 1),
    (3, 64, 1),
    (2, 129, 1),
    (1, 1000, 1),
    (1, 300_007, 1),
    (2, 140_000, 1),
    (2, 33, 3),
    (1, 70, 300),
    (0, 5, 2),
];

fn random(count: usize) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        })
        .collect()
}

fn expected<T: Copy, A: Copy>(
    input: &[T],
    extents: Extents,
    direction: Direction,
    start: A,
    join: impl Fn(A, T) -> A,
) -> Vec<A> {
    let mut out = vec![start; input.len()];
    for line in 0..extents.lines() {
        let mut running = start;
        for step in 0..extents.axis {
            let row = if direction.reverse { extents.axis - 1 - step } else { step };
            let place = (line / extents.inner * extents.axis + row) * extents.inner + line % extents.inner;
            let before = running;
            running = join(running, input[place]);
            out[place] = if direction.exclusive { before } else { running };
        }
    }
    out
}

type Scan<T> = fn(Simd, &Team, &[T], Extents, Direction, &mut [T]);

fn check<T: Element, A: Copy>(
    scan: Scan<T>,
    make: impl Fn(u64) -> T,
    start: A,
    join: impl Fn(A, T) -> A + Copy,
    close: impl Fn(T, A, usize) -> bool,
) {
    for (outer, axis, inner) in SHAPES {
        let extents = Extents { outer, axis, inner };
        let input: Vec<T> = random(extents.elements()).into_iter().map(&make).collect();
        for (reverse, exclusive) in [(false, false), (false, true), (true, false), (true, true)] {
            let direction = Direction { reverse, exclusive };
            let expected = expected(&input, extents, direction, start, join);
            let mut first: Option<Vec<T>> = None;
            for simd in Simd::available() {
                for team in [Team::single(), Team::new(2), Team::new(3)] {
                    let mut out = vec![make(1); input.len()];
                    scan(simd, &team, &input, extents, direction, &mut out);
                    for (index, (got, expected)) in out.iter().zip(&expected).enumerate() {
                        assert!(close(*got, *expected, axis), "{extents:?} {direction:?} {simd:?} {index}: {got:?}");
                    }
                    let first = first.get_or_insert_with(|| out.clone());
                    assert!(
                        bytemuck::cast_slice::<T, u8>(first) == bytemuck::cast_slice::<T, u8>(&out),
                        "{extents:?} {simd:?}"
                    );
                }
            }
        }
    }
}

fn unit(bits: u64) -> f64 {
    bits as f64 / (1_u64 << 53) as f64 - 0.5
}

#[test]
fn float_sums() {
    // A running sum of random signs moves away from zero with the square root of its length. Errors
    // are relative to that distance, even if the sum has returned close to zero.
    let close = |got: f64, expected: f64, axis: usize, relative: f64| {
        (got - expected).abs() <= relative * (expected.abs() + 4.0 + (axis as f64).sqrt() / 6.0)
    };
    check(
        f32::scan_sum,
        |bits| unit(bits) as f32,
        0.0,
        |a, x| a + f64::from(x),
        |g, e, axis| close(g.into(), e, axis, 3e-7),
    );
    check(f64::scan_sum, unit, 0.0, |a, x| a + x, |g, e, axis| close(g, e, axis, 1e-12));
    check(
        f16::scan_sum,
        |bits| f16::from_f64(unit(bits)),
        0.0,
        |a, x| a + f64::from(x),
        |g, e, axis| close(g.into(), e, axis, 1e-3),
    );
    check(
        bf16::scan_sum,
        |bits| bf16::from_f64(unit(bits)),
        0.0,
        |a, x| a + f64::from(x),
        |g, e, axis| close(g.into(), e, axis, 8e-3),
    );
}

#[test]
fn float_products() {
    let close = |got: f64, expected: f64| (got - expected).abs() <= 1e-6 * expected.abs() || expected.abs() < 1e-37;
    let near_one = |bits: u64| (1.0 + unit(bits) / 64.0) as f32;
    check(f32::scan_product, near_one, 1.0, |a, x| a * f64::from(x), |g, e, _| close(g.into(), e));
}

#[test]
fn integer_sums_and_products_wrap() {
    check(i32::scan_sum, |bits| bits as i32, 0, |a: i32, x| a.wrapping_add(x), |g, e, _| g == e);
    check(u32::scan_product, |bits| bits as u32 | 1, 1, |a: u32, x| a.wrapping_mul(x), |g, e, _| g == e);
    check(i8::scan_sum, |bits| bits as i8, 0, |a: i8, x| a.wrapping_add(x), |g, e, _| g == e);
    check(u8::scan_sum, |bits| bits as u8, 0, |a: u8, x| a.wrapping_add(x), |g, e, _| g == e);
}

#[test]
fn extremes_spread_nan() {
    let max = |a: f32, x: f32| if a.is_nan() || x.is_nan() { f32::NAN } else { a.max(x) };
    let min = |a: f32, x: f32| if a.is_nan() || x.is_nan() { f32::NAN } else { a.min(x) };
    let same = |got: f32, expected: f32, _: usize| got == expected || got.is_nan() && expected.is_nan();
    let value = |bits: u64| if bits % 100_000 == 77 { f32::NAN } else { unit(bits) as f32 };
    check(f32::scan_max, value, f32::NEG_INFINITY, max, same);
    check(f32::scan_min, value, f32::INFINITY, min, same);
    check(u8::scan_max, |bits| bits as u8, 0, |a: u8, x| a.max(x), |g, e, _| g == e);
    check(i32::scan_min, |bits| bits as i32, i32::MAX, |a: i32, x| a.min(x), |g, e, _| g == e);
}

#[test]
fn nan_and_infinity_spread_through_sums() {
    let input = [1.0_f32, f32::INFINITY, 2.0, f32::NEG_INFINITY, 3.0];
    for simd in Simd::available() {
        let mut out = [0.0; 5];
        f32::scan_sum(simd, &Team::single(), &input, Extents::row(5), Direction::default(), &mut out);
        assert_eq!(out[..3], [1.0, f32::INFINITY, f32::INFINITY]);
        assert!(out[3].is_nan() && out[4].is_nan());
    }
}
