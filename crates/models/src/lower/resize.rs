//! `Resize` of the last two axes of f32 as a custom kernel: rows first, then columns, by tables
//! that are made once.

use std::sync::Arc;

use panoply_core::op::compute::{Kernel, KernelCall};

use super::pixels::Pixels;
use super::resample::{Change, Table, of_pixels};
use super::{Arg, Lower, LoweredOutputs, one};
use crate::array::count_of;
use crate::element::ElementType;
use crate::ops::resize::tables;

/// The mapping from source to output along one axis.
pub(super) enum AxisMapping {
    Same,
    /// Repeats each element this many times.
    Repeat(usize),
    /// Each output element is one source element.
    Pick(Vec<usize>),
    /// Each output element is a weighted sum of two source elements.
    Between(Vec<([usize; 2], [f32; 2])>),
    /// Each output element is a weighted sum of source elements.
    Mix(Vec<Vec<(usize, f32)>>),
}

impl AxisMapping {
    /// The line described by a table, for an axis of length `len`. `None` if an index lies outside.
    fn of(table: Vec<Option<Vec<(usize, f64)>>>, len: usize) -> Option<AxisMapping> {
        let rows = table.into_iter().collect::<Option<Vec<_>>>()?;
        if !rows.iter().all(|row| matches!(row[..], [(_, 1.0)])) {
            if rows.iter().all(|row| (1..=2).contains(&row.len())) {
                let between = |row: &Vec<(usize, f64)>| match row[..] {
                    [(a, of_a), (b, of_b), ..] => ([a, b], [of_a as f32, of_b as f32]),
                    // Two halves of one element sum to the element, for infinity too.
                    [(a, of_a), ..] => ([a, a], [0.5 * of_a as f32; 2]),
                    [] => ([0, 0], [0.0; 2]),
                };
                return Some(AxisMapping::Between(rows.iter().map(between).collect()));
            }
            let narrow = |row: Vec<(usize, f64)>| row.into_iter().map(|(at, weight)| (at, weight as f32)).collect();
            return Some(AxisMapping::Mix(rows.into_iter().map(narrow).collect()));
        }
        let picked: Vec<usize> = rows.iter().map(|row| row[0].0).collect();
        let times = picked.len() / len.max(1);
        let repeats = times > 0 && picked.len() == times * len;
        Some(match repeats && picked.iter().enumerate().all(|(place, at)| place / times == *at) {
            true => AxisMapping::Repeat(times),
            false => AxisMapping::Pick(picked),
        })
    }

    /// The same line as a table, for an output axis of length `len`.
    fn table(&self, len: usize) -> Table {
        match self {
            AxisMapping::Same => Table::same(),
            AxisMapping::Repeat(times) => Table::of((0..len).map(|place| vec![(place / times, 1.0)])),
            AxisMapping::Pick(places) => Table::of(places.iter().map(|at| vec![(*at, 1.0)])),
            AxisMapping::Between(places) => {
                Table::of(places.iter().map(|(at, of)| at.iter().copied().zip(of.iter().copied()).collect()))
            }
            AxisMapping::Mix(places) => Table::of(places.iter().cloned()),
        }
    }

    /// Resizes one row along this axis.
    fn row(&self, from: &[f32], to: &mut [f32]) {
        match self {
            AxisMapping::Same => to.copy_from_slice(from),
            AxisMapping::Repeat(2) => {
                to.chunks_exact_mut(2).zip(from).for_each(|(to, from)| to.copy_from_slice(&[*from; 2]))
            }
            AxisMapping::Repeat(times) => to.chunks_exact_mut(*times).zip(from).for_each(|(to, from)| to.fill(*from)),
            AxisMapping::Pick(places) => to.iter_mut().zip(places).for_each(|(to, at)| *to = from[*at]),
            AxisMapping::Between(places) => to.iter_mut().zip(places).for_each(|(to, ([a, b], [of_a, of_b]))| {
                *to = from[*a] * of_a + from[*b] * of_b;
            }),
            AxisMapping::Mix(places) => to.iter_mut().zip(places).for_each(|(to, parts)| {
                *to = parts.iter().map(|(at, weight)| from[*at] * weight).sum();
            }),
        }
    }

    /// Resizes across this axis, in rows of this width.
    fn rows(&self, from: &[f32], to: &mut [f32], width: usize) {
        let row = |at: usize| &from[at * width..][..width];
        for (place, to) in to.chunks_exact_mut(width).enumerate() {
            match self {
                AxisMapping::Same => to.copy_from_slice(row(place)),
                AxisMapping::Repeat(times) => to.copy_from_slice(row(place / times)),
                AxisMapping::Pick(places) => to.copy_from_slice(row(places[place])),
                AxisMapping::Between(places) => {
                    let ([a, b], [of_a, of_b]) = places[place];
                    let both = row(a).iter().zip(row(b));
                    to.iter_mut().zip(both).for_each(|(to, (a, b))| *to = a * of_a + b * of_b);
                }
                AxisMapping::Mix(places) => {
                    to.fill(0.0);
                    for (at, weight) in &places[place] {
                        to.iter_mut().zip(row(*at)).for_each(|(sum, value)| *sum += weight * value);
                    }
                }
            }
        }
    }
}

/// Both axes, with their lengths before and after.
pub(super) struct Planes {
    pub(super) lines: [AxisMapping; 2],
    pub(super) before: [usize; 2],
    pub(super) after: [usize; 2],
}

impl Planes {
    pub(super) fn run(&self, call: &mut KernelCall<'_>) -> panoply_core::Result<()> {
        let (source, target) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
        let ([height, width], [rows, columns]) = (self.before, self.after);
        let mut wide = vec![0.0; height * columns];
        let source = &source[call.pieces().start * height * width..];
        for (from, to) in source.chunks_exact(height * width).zip(target.chunks_exact_mut(rows * columns)) {
            for (from, to) in from.chunks_exact(width).zip(wide.chunks_exact_mut(columns)) {
                self.lines[1].row(from, to);
            }
            self.lines[0].rows(&wide, to, columns);
        }
        Ok(())
    }
}

impl Lower<'_, '_> {
    /// Records a `Resize` of f32 with constant sizes. `None` for other nodes.
    pub(super) fn resize(&mut self) -> LoweredOutputs {
        let fixed = self.args.iter().skip(1).all(|arg| !matches!(arg, Arg::Dynamic { .. }));
        if !fixed || self.kind(0)? != ElementType::F32 {
            return Ok(None);
        }
        let before = self.dims(0)?.to_vec();
        let Some(front) = before.len().checked_sub(2).filter(|_| !before.contains(&0)) else { return Ok(None) };
        let (after, mut tables) = tables(&self.call, &before)?;
        if after.contains(&0) || tables[..front].iter().any(Option::is_some) {
            return Ok(None);
        }
        let mut line = |axis: usize| match tables[axis].take() {
            Some(table) => AxisMapping::of(table, before[axis]),
            None => Some(AxisMapping::Same),
        };
        let (Some(rows), Some(columns)) = (line(front), line(front + 1)) else { return Ok(None) };
        let last = |dims: &[usize]| [dims[front], dims[front + 1]];
        let planes = Planes { lines: [rows, columns], before: last(&before), after: last(&after) };
        let tables = [planes.lines[0].table(planes.after[0]), planes.lines[1].table(planes.after[1])];
        let count = count_of(&after[..front])?;
        let change = Change { planes: count, pieces: count, before: planes.before, after: planes.after };
        let (x, planes) = (self.id(0)?, Arc::new(planes));
        let same = Arc::clone(&planes);
        let turn = move |kernel: &Kernel, order: &[usize]| {
            let pixels = Pixels { planes: Arc::clone(&same), channels: kernel.outputs.first()?.get(1).copied()? };
            of_pixels(kernel, order, move |call| pixels.run(call))
        };
        let node = self.resampled(("resize", x, &after), &change, tables, move |call| planes.run(call), turn)?;
        one(node, ElementType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_repeat_pick_and_mix() {
        let single = |places: &[usize]| places.iter().map(|at| Some(vec![(*at, 1.0)])).collect::<Vec<_>>();
        assert!(matches!(AxisMapping::of(single(&[0, 0, 1, 1]), 2), Some(AxisMapping::Repeat(2))));
        let picked = AxisMapping::of(single(&[0, 1, 1]), 2).expect("inside");
        assert!(matches!(picked, AxisMapping::Pick(_)));
        let mut row = [0.0; 3];
        picked.row(&[5.0, 7.0], &mut row);
        assert_eq!(row, [5.0, 7.0, 7.0]);
        let mixed = AxisMapping::of(vec![Some(vec![(0, 0.25), (1, 0.75)])], 2).expect("inside");
        let mut rows = [0.0; 2];
        mixed.rows(&[4.0, 8.0, 8.0, 0.0], &mut rows, 2);
        assert_eq!(rows, [7.0, 2.0]);
        let mixed = AxisMapping::of(vec![Some(vec![(1, 1.0)]), Some(vec![(0, 0.25), (1, 0.75)])], 2).expect("inside");
        assert!(matches!(mixed, AxisMapping::Between(_)));
        let mut row = [0.0; 2];
        mixed.row(&[4.0, f32::INFINITY], &mut row);
        assert_eq!(row, [f32::INFINITY; 2]);
        let three = vec![(0, 0.25), (1, 0.5), (2, 0.25)];
        let mixed = AxisMapping::of(vec![Some(three)], 3).expect("inside");
        assert!(matches!(mixed, AxisMapping::Mix(_)));
        let mut row = [0.0];
        mixed.row(&[4.0, 2.0, 8.0], &mut row);
        assert_eq!(row, [4.0]);
        assert!(AxisMapping::of(vec![None], 2).is_none());
    }
}
