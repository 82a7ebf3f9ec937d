//! Filters of a search.

use panoply_core::op::compute::Metric;
use panoply_cpu_order::internals::{PassingRows, Scan};

#[test]
fn passing_rows_are_those_whose_bit_is_set() {
    let filter = [0x8000_0001, 0, 0xffff_ffff, 0x0000_0f00];
    let set = |row: usize| filter[row / 32] >> (row % 32) & 1 == 1;
    for start in 0..128 {
        for end in start..=128 {
            let wanted: Vec<u32> = (start..end).filter(|row| set(*row)).map(|row| row as u32).collect();
            assert_eq!(PassingRows::new(&filter, start..end).collect::<Vec<_>>(), wanted, "{start}..{end}");
        }
    }
}

#[test]
fn bits_behind_the_last_row_do_not_count() {
    let scan = Scan::new(Metric::Dot, 10, 33, 4, Some(&[0b101, 0b111]));
    assert_eq!(scan.passing, 3);
    assert_eq!(scan.k, 3);
}
