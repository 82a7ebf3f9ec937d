//! A vectorised check for finite numbers.

use crate::level::{Level, leveled};

/// Whether no value is NaN or infinite.
pub(crate) fn is_finite(level: Level, values: &[f32]) -> bool {
    let mut sums = [0.0; 64];
    zero_sums(level, values, &mut sums);
    sums.iter().sum::<f32>() == 0.0
}

leveled! {
    /// Adds zero times each value: the sums stay zero unless a value is NaN or infinite.
    fn zero_sums(values: &[f32], sums: &mut [f32; 64]) = zero_sums_body
}

#[inline(always)]
fn zero_sums_body<const FMA: bool>(values: &[f32], sums: &mut [f32; 64]) {
    let (chunks, rest) = values.as_chunks::<64>();
    for chunk in chunks {
        for at in 0..64 {
            sums[at] += chunk[at] * 0.0;
        }
    }
    rest.iter().zip(sums).for_each(|(value, sum)| *sum += value * 0.0);
}
