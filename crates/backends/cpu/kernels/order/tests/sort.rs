//! Every level and team size against the standard library's stable sort.

use std::cmp::Ordering;

use half::{bf16, f16};

use panoply_cpu_machine::extents::Extents;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;
use panoply_cpu_order::sort::*;

fn random(count: usize, seed: u64) -> Vec<u64> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        })
        .collect()
}

fn total<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let nan = |value: &T| value.partial_cmp(value).is_none();
    a.partial_cmp(b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

fn check<T: SortKey + PartialOrd>(input: &[T], extents: Extents) {
    let same = |a: &T, b: &T| total(a, b) == Ordering::Equal;
    for descending in [false, true] {
        let mut expected = vec![0_u32; input.len()];
        for line in 0..extents.lines() {
            let place = |row: usize| (line / extents.inner * extents.axis + row) * extents.inner + line % extents.inner;
            let mut order: Vec<u32> = (0..extents.axis as u32).collect();
            order.sort_by(|a, b| {
                let order = total(&input[place(*a as usize)], &input[place(*b as usize)]);
                if descending { order.reverse() } else { order }
            });
            order.iter().enumerate().for_each(|(row, from)| expected[place(row)] = *from);
        }
        for simd in Simd::available() {
            for team in [Team::single(), Team::new(2)] {
                let mut positions = vec![9; input.len()];
                arg_sort(simd, &team, input, extents, descending, &mut positions);
                assert!(positions == expected, "{extents:?} {simd:?} {descending} {}", T::DTYPE);
                let (mut taken, mut sorted) = (input.to_vec(), input.to_vec());
                take_along(&team, input, extents, &positions, &mut taken);
                sort(simd, &team, input, extents, descending, &mut sorted);
                assert!(taken.iter().zip(&sorted).all(|(a, b)| same(a, b)), "{extents:?} {simd:?} {descending}");
            }
        }
    }
}

fn check_all(extents: Extents, seed: u64) {
    let bits = random(extents.elements(), seed);
    let all = |make: &dyn Fn(u64) -> f32| bits.iter().map(|bits| make(*bits)).collect::<Vec<f32>>();
    check(&all(&|bits| f32::from_bits(bits as u32)), extents);
    check(&all(&|bits| (bits % 7) as f32 - 3.0), extents);
    check(&all(&|bits| if bits & 1 == 0 { 0.0 } else { -0.0 }), extents);
    check(&bits.iter().map(|bits| *bits as u32).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| *bits as i32).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| *bits as i8).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| *bits as u8).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| f16::from_bits(*bits as u16)).collect::<Vec<_>>(), extents);
    check(&bits.iter().map(|bits| bf16::from_bits(*bits as u16)).collect::<Vec<_>>(), extents);
}

#[test]
fn every_short_length() {
    for len in (0..150).chain([255, 256, 257, 1000, 1023, 4097]) {
        check_all(Extents::row(len), len as u64 + 3);
    }
}

#[test]
fn rows_and_columns() {
    for (outer, axis, inner) in [(50, 31, 1), (3, 70, 5), (2, 129, 33), (1, 1, 100), (7, 0, 3), (0, 3, 3), (900, 20, 1)]
    {
        check_all(Extents { outer, axis, inner }, axis as u64);
    }
}

#[test]
fn long_lines() {
    check_all(Extents::row(LONG_LINE_LEN + 17), 5);
    check_all(Extents { outer: 1, axis: LONG_LINE_LEN, inner: 2 }, 6);
}

#[test]
fn awkward_distributions() {
    let len = 300_000_u32;
    let extents = Extents::row(len as usize);
    check(&(0..len).collect::<Vec<_>>(), extents);
    check(&(0..len).rev().collect::<Vec<_>>(), extents);
    check(&vec![7_u32; len as usize], extents);
    check(&(0..len).map(|index| index & 1).collect::<Vec<_>>(), extents);
    check(&(0..len).map(|index| if index == 77 { u32::MAX } else { index % 1000 }).collect::<Vec<_>>(), extents);
    check(&(0..len).map(|index| index.min(len - index)).collect::<Vec<_>>(), extents);
    check(&(0..len).map(|index| f32::exp((index % 170) as f32 - 85.0)).collect::<Vec<_>>(), extents);
}
