//! Peaks of lines and planes: local maxima.
//!
//! The largest element of each window is found axis by axis, with two running maxima for each block
//! of a window's length (van Herk's algorithm), so the cost does not depend on the distance.

use std::cmp::Ordering;

/// A peak: its strength and its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Its strength.
    pub strength: f32,
    /// The index, row by row.
    pub place: usize,
}

/// The peaks of a plane with `columns` columns, strongest first, at most `count` of them. An
/// element is a peak if no element up to `distance` away along each axis is stronger, and no
/// earlier one among them is equally strong. Elements below `at_least` and NaN are no peaks.
pub fn peaks(strengths: &[f32], columns: usize, distance: usize, at_least: f32, count: usize) -> Vec<Peak> {
    if strengths.is_empty() || columns == 0 {
        return Vec::new();
    }
    let known: Vec<f32> = strengths.iter().map(|s| if s.is_nan() { f32::NEG_INFINITY } else { *s }).collect();
    let highest = highest_around(&known, columns, distance);
    let mut found = Vec::new();
    for (place, strength) in strengths.iter().copied().enumerate() {
        let stands_out = !strength.is_nan() && strength >= at_least && strength >= highest[place];
        if stands_out && !has_equal_before(strengths, columns, distance, place) {
            found.push(Peak { strength, place });
        }
    }
    // Zeros of either sign are equal.
    let stronger =
        |a: &Peak, b: &Peak| b.strength.partial_cmp(&a.strength).unwrap_or(Ordering::Equal).then(a.place.cmp(&b.place));
    if found.len() > count && count > 0 {
        found.select_nth_unstable_by(count - 1, stronger);
        found.truncate(count);
    }
    found.sort_unstable_by(stronger);
    found
}

/// For each element the largest element up to `distance` away along both axes.
fn highest_around(values: &[f32], columns: usize, distance: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let mut highest = values.to_vec();
    let mut work = RunningMaxima::default();
    for row in highest.chunks_exact_mut(columns) {
        work.highest(row, distance);
    }
    if rows > 1 {
        let mut column = vec![0.0; rows];
        for first in 0..columns {
            column.iter_mut().zip(highest[first..].iter().step_by(columns)).for_each(|(to, from)| *to = *from);
            work.highest(&mut column, distance);
            highest[first..].iter_mut().step_by(columns).zip(&column).for_each(|(to, from)| *to = *from);
        }
    }
    highest
}

/// Scratch memory of running maxima.
#[derive(Default)]
struct RunningMaxima {
    forward: Vec<f32>,
    backward: Vec<f32>,
}

impl RunningMaxima {
    /// Replaces each element by the largest of those up to `distance` away.
    fn highest(&mut self, line: &mut [f32], distance: usize) {
        let (len, window) = (line.len(), distance.saturating_mul(2).saturating_add(1));
        if window >= 2 * len {
            let all = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            line.fill(all);
            return;
        }
        self.forward.clear();
        self.forward.extend_from_slice(line);
        self.backward.clear();
        self.backward.extend_from_slice(line);
        for at in 1..len {
            if !at.is_multiple_of(window) {
                self.forward[at] = self.forward[at].max(self.forward[at - 1]);
            }
        }
        for at in (0..len - 1).rev() {
            if !(at + 1).is_multiple_of(window) {
                self.backward[at] = self.backward[at].max(self.backward[at + 1]);
            }
        }
        for (at, value) in line.iter_mut().enumerate() {
            let (first, last) = (at.saturating_sub(distance), (at + distance).min(len - 1));
            // A window that is cut off at an end may be inside one block.
            *value = match first / window == last / window {
                true if first.is_multiple_of(window) => self.forward[last],
                true => self.backward[first],
                false => self.backward[first].max(self.forward[last]),
            };
        }
    }
}

/// Whether an earlier element, at most `distance` away along both axes, is equal. The nearest
/// elements are compared first.
fn has_equal_before(values: &[f32], columns: usize, distance: usize, place: usize) -> bool {
    let (row, column) = (place / columns, place % columns);
    let (left, right) = (column.saturating_sub(distance), column.saturating_add(distance).min(columns - 1));
    let is_equal = |value: &f32| *value == values[place];
    if values[row * columns + left..place].iter().rev().any(is_equal) {
        return true;
    }
    let above = row.saturating_sub(distance)..row;
    above.rev().any(|row| values[row * columns + left..=row * columns + right].iter().any(is_equal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_radio::synthetic::Noise;

    #[test]
    fn running_maxima_are_those_of_the_windows() {
        let mut noise = Noise::new(8);
        for len in [1, 2, 5, 17, 100] {
            let line: Vec<f32> = (0..len).map(|_| noise.unit() as f32).collect();
            for distance in [1, 2, 3, 8, 49, 50, 99, 1000, usize::MAX] {
                let mut got = line.clone();
                RunningMaxima::default().highest(&mut got, distance);
                for (at, got) in got.iter().enumerate() {
                    let window =
                        &line[at.saturating_sub(distance)..len.min(at.saturating_add(distance).saturating_add(1))];
                    let expected = window.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(*got, expected, "{len} {distance} {at}");
                }
            }
        }
    }

    #[test]
    fn flat_tops_have_one_peak_and_nan_has_none() {
        let line = [0.0, 3.0, 3.0, 3.0, 0.0, f32::NAN, 2.0, 1.0];
        let found = peaks(&line, 8, 1, 0.5, 10);
        assert_eq!(found, [Peak { strength: 3.0, place: 1 }, Peak { strength: 2.0, place: 6 }]);
        assert_eq!(peaks(&line, 8, 5, 0.5, 10).len(), 1);
        assert_eq!(peaks(&[f32::NAN; 4], 4, 1, f32::NEG_INFINITY, 3), []);
        assert_eq!(peaks(&[7.0; 9], 3, 1, 0.0, 3), [Peak { strength: 7.0, place: 0 }]);
    }
}
