//! Rules of slices, gathers, sorts and scans: gradients go back to the indices from which the
//! elements came.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{ArgSort, Gather, Reduction, Scan, ScanKind, Sort, TopK};
use panoply_core::{DType, Tensor};

use super::{Backward, NodeVisit};
use crate::error::Result;

/// The largest number of rows of a table whose gradient is summed by a matrix product.
const DENSE_ROWS_MAX: usize = 1_024;
/// Number of steps of a binary search over up to 2³² elements.
const SEARCH_STEPS: usize = 32;

impl Backward {
    /// The gradient of a slice: zeros at the indices that were not taken.
    pub(super) fn spread(&mut self, turn: NodeVisit, axis: usize, start: usize, step: usize) -> Result<NodeId> {
        let dims = self.operand_dims(turn, 0)?;
        let size = self.fixed(turn, dims[axis])?;
        let taken = self.fixed(turn, self.tape.type_of(turn.g)?.1[axis])?;
        if taken == size {
            return Ok(turn.g);
        }
        if taken == 0 {
            let zero = self.number(self.tape.type_of(turn.g)?.0, 0.0)?;
            return Ok(self.tape.g.broadcast(zero, &dims)?);
        }
        let place = |index: usize| {
            let at = index.checked_sub(start)?;
            (at % step == 0 && at / step < taken).then_some(at / step)
        };
        let places: Vec<Option<usize>> = (0..size).map(place).collect();
        self.picked(turn.g, axis, &places, 0.0)
    }

    /// Picks elements along an axis by index; `fill` for `None`.
    pub(super) fn picked(&mut self, x: NodeId, axis: usize, places: &[Option<usize>], fill: f64) -> Result<NodeId> {
        let (dtype, dims) = self.tape.type_of(x)?;
        if places.iter().enumerate().all(|(place, from)| *from == Some(place)) && dims[axis] == Dim::fixed(places.len())
        {
            return Ok(x);
        }
        let is_one = dims[axis].as_fixed() == Some(1);
        let indices: Vec<u32> = places.iter().map(|place| place.unwrap_or(0) as u32).collect();
        let picked = match is_one {
            // The map below broadcasts the single element.
            true => x,
            false => {
                let indices = self.tape.g.unnamed_constant(&Tensor::from_vec(indices, [places.len()])?)?;
                self.tape.g.op(&[x, indices], |t| Gather::new(&t[0], &t[1], axis))?
            }
        };
        if !is_one && places.iter().all(Option::is_some) {
            return Ok(picked);
        }
        let there: Vec<f32> = places.iter().map(|place| f32::from(u8::from(place.is_some()))).collect();
        let mut along = vec![1; dims.len() - axis];
        along[0] = places.len();
        let there = self.tape.g.unnamed_constant(&Tensor::from_vec(there, along)?)?;
        let there = self.cast_to(there, dtype)?;
        Ok(self.tape.g.map(&[there, picked], |v| v[0].clone().select(v[1].clone(), fill))?)
    }

    pub(super) fn gather_shares(&mut self, turn: NodeVisit, op: &Gather) -> Result<Vec<Option<NodeId>>> {
        let indices = self.operand(turn, 1);
        let dims = self.operand_dims(turn, 0)?;
        if op.elementwise {
            return Ok(vec![Some(self.scattered(turn, turn.g, indices, op.axis, &dims)?), None]);
        }
        let rows = self.fixed(turn, dims[op.axis])?;
        let index_dims = self.tape.type_of(indices)?.1;
        let (before, after) = (product(&dims[..op.axis]), product(&dims[op.axis + 1..]));
        let picked = product(&index_dims);
        let indices = self.tape.g.reshape(indices, &[picked])?;
        let indices = self.counted_from_start(indices, rows)?;
        let share = match before.as_fixed() == Some(1) && rows > DENSE_ROWS_MAX {
            true => {
                let g = self.tape.g.reshape(turn.g, &[picked, after])?;
                self.rows_by_sorting(g, indices, picked, rows)?
            }
            false => {
                let g = self.tape.g.reshape(turn.g, &[before, picked, after])?;
                self.rows_by_product(g, indices, picked, rows)?
            }
        };
        Ok(vec![Some(self.tape.g.reshape(share, &dims)?), None])
    }

    /// Sums gradients by row index, as a product with a matrix of ones and zeros: a one where the
    /// index equals the row's number.
    fn rows_by_product(&mut self, g: NodeId, indices: NodeId, picked: Dim, rows: usize) -> Result<NodeId> {
        let (dtype, _) = self.tape.type_of(g)?;
        let indices = self.tape.g.reshape(indices, &[1.into(), picked])?;
        let numbers = self.numbers_below(rows, [rows, 1].as_slice())?;
        let is_row = self.tape.g.map(&[numbers, indices], |v| v[0].clone().eq(v[1].clone()).cast(dtype))?;
        Ok(self.tape.g.matmul(is_row, g)?)
    }

    /// Sums gradients by row index for large tables, without a matrix of rows by indices. Sorted by
    /// index, the gradients of a row are adjacent, and their sum is the difference of two running
    /// sums. A binary search for each row finds where its gradients begin.
    fn rows_by_sorting(&mut self, g: NodeId, indices: NodeId, picked: Dim, rows: usize) -> Result<NodeId> {
        let (dtype, _) = self.tape.type_of(g)?;
        let order = self.tape.g.op(&[indices], |t| ArgSort::new(&t[0]))?;
        let sorted = self.tape.g.op(&[indices, order], |t| Gather::new(&t[0], &t[1], 0))?;
        let g = self.tape.g.op(&[g, order], |t| Gather::new(&t[0], &t[1], 0))?;
        let g = self.widened(g)?;
        let sums = self.tape.g.op(&[g], |t| Scan::sum(&t[0]).axis(0))?;
        // Each row ends where the next one begins.
        let numbers = self.numbers_below(rows + 1, &[rows + 1])?;
        let begins = self.first_at_least(sorted, picked, numbers)?;
        // The running sum before index 0 is zero; the element that the gather reads there is
        // ignored.
        let last = self.tape.g.map(&[begins], |v| v[0].clone().max(1) - 1)?;
        let until = self.tape.g.op(&[sums, last], |t| Gather::new(&t[0], &t[1], 0))?;
        let begins = self.tape.g.reshape(begins, &[(rows + 1).into(), 1.into()])?;
        let wide = self.tape.type_of(until)?.0;
        let until = self.tape.g.map(&[begins, until], |v| v[0].clone().gt(0).cast(wide).select(v[1].clone(), 0.0))?;
        let begin = self.tape.g.slice(until, 0, 0, rows, 1)?;
        let end = self.tape.g.slice(until, 0, 1, rows + 1, 1)?;
        let share = self.tape.g.sub(end, begin)?;
        self.cast_to(share, dtype)
    }

    /// For each number the first index in a sorted list whose element is not less than the number;
    /// the list's length if there is none.
    fn first_at_least(&mut self, sorted: NodeId, length: Dim, numbers: NodeId) -> Result<NodeId> {
        let one = self.number(DType::U32, 1.0)?;
        let ones = self.tape.g.broadcast(one, &[length])?;
        let length = self.tape.g.reduce(Reduction::Sum, ones, &[0])?;
        let mut low = self.tape.g.map(&[numbers], |v| v[0].clone() - v[0].clone())?;
        let mut high = self.tape.g.map(&[low, length], |v| v[0].clone() + v[1].clone())?;
        for _ in 0..SEARCH_STEPS {
            // If both bounds equal the list's length, they no longer change, and the index that is
            // read is clamped to the last one.
            let middle =
                self.tape.g.map(&[low, high, length], |v| ((v[0].clone() + v[1].clone()) / 2).min(v[2].clone() - 1))?;
            let found = self.tape.g.op(&[sorted, middle], |t| Gather::new(&t[0], &t[1], 0))?;
            let all = [low, high, middle, found, numbers];
            low = self.tape.g.map(&all, |v| {
                let is_below = v[0].clone().lt(v[1].clone()).and(v[3].clone().lt(v[4].clone()));
                is_below.select(v[2].clone() + 1, v[0].clone())
            })?;
            high = self.tape.g.map(&all, |v| {
                let is_not = v[0].clone().lt(v[1].clone()).and(v[3].clone().ge(v[4].clone()));
                is_not.select(v[2].clone(), v[1].clone())
            })?;
        }
        Ok(low)
    }

    pub(super) fn topk_shares(&mut self, turn: NodeVisit, op: &TopK) -> Result<Vec<Option<NodeId>>> {
        let dims = self.operand_dims(turn, 0)?;
        // The positions are the op's second output, which follows it on the tape.
        let positions = self.values[turn.entry + 1];
        Ok(vec![Some(self.scattered(turn, turn.g, positions, op.axis, &dims)?)])
    }

    pub(super) fn sort_shares(&mut self, turn: NodeVisit, op: &Sort) -> Result<Vec<Option<NodeId>>> {
        let x = self.operand(turn, 0);
        let dims = self.operand_dims(turn, 0)?;
        let (axis, descending) = (op.axis, op.descending);
        let positions = self.tape.g.op(&[x], |t| ArgSort { descending, ..ArgSort::new(&t[0]).axis(axis) })?;
        Ok(vec![Some(self.scattered(turn, turn.g, positions, axis, &dims)?)])
    }

    pub(super) fn scan_shares(&mut self, turn: NodeVisit, op: &Scan) -> Result<Vec<Option<NodeId>>> {
        if op.kind != ScanKind::Sum {
            return Err(self.refused(turn, "of scans, sums have one"));
        }
        let (axis, reversed, excludes_own) = (op.axis, !op.reversed, op.excludes_own);
        let share = self.tape.g.op(&[turn.g], |t| Scan { reversed, excludes_own, ..Scan::sum(&t[0]).axis(axis) })?;
        Ok(vec![Some(share)])
    }

    /// Adds elements up by their positions along an axis: each index gets the sum of the elements
    /// that have it as position.
    fn scattered(
        &mut self,
        turn: NodeVisit,
        g: NodeId,
        positions: NodeId,
        axis: usize,
        dims: &[Dim],
    ) -> Result<NodeId> {
        let size = self.fixed(turn, dims[axis])?;
        let (dtype, g_dims) = self.tape.type_of(g)?;
        let positions = self.counted_from_start(positions, size)?;
        // Inserts one more dimension in front of the axis, for the indices of the result.
        let one: &[Dim] = &[1.into()];
        let with_places: Vec<Dim> = [&g_dims[..axis], one, &g_dims[axis..]].concat();
        let g = self.tape.g.reshape(g, &with_places)?;
        let positions = self.tape.g.reshape(positions, &with_places)?;
        let mut along = vec![1; with_places.len() - axis];
        along[0] = size;
        let numbers = self.numbers_below(size, &along)?;
        let is_here = self.tape.g.map(&[positions, numbers], |v| v[0].clone().eq(v[1].clone()).cast(dtype))?;
        let spread = self.tape.g.map(&[is_here, g], |v| v[0].clone().select(v[1].clone(), 0.0))?;
        match g_dims[axis].as_fixed() {
            Some(1) => Ok(self.tape.g.reshape(spread, dims)?),
            _ => Ok(self.tape.g.reduce(Reduction::Sum, spread, &[axis + 1])?),
        }
    }

    /// Indices as u32. Negative indices count from the end and are converted.
    fn counted_from_start(&mut self, indices: NodeId, size: usize) -> Result<NodeId> {
        let is_signed = self.tape.type_of(indices)?.0 == DType::I32;
        let positive =
            |index: &Expr| index.clone().lt(0).select(index.clone() + size as f64, index.clone()).cast(DType::U32);
        Ok(if is_signed { self.tape.g.map(&[indices], |v| positive(&v[0]))? } else { indices })
    }

    /// The numbers 0, 1, 2, … in this shape.
    fn numbers_below(&mut self, size: usize, dims: &[usize]) -> Result<NodeId> {
        let numbers: Vec<u32> = (0..size as u32).collect();
        Ok(self.tape.g.unnamed_constant(&Tensor::from_vec(numbers, dims)?)?)
    }
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim)
}
