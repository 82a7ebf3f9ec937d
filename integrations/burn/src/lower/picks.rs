//! Lowers reads and writes of elements by index: slices, gathers, scatters and concatenation.

use burn_ir::{CatOpIr, GatherOpIr, SelectAssignOpIr, SliceAssignOpIr, SliceOpIr};
use burn_std::{IndexingUpdateOp, Slice};
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Gather, Reduce, Reduction};
use panoply_core::{DType, Tensor};

use super::{Lowering, Result, no_axis, unserved};
use crate::error::Error;

/// The most elements of a scatter mask. No sensible message needs more.
const SPREAD_MAX: usize = 1 << 28;
/// The most indices along an axis that are listed one by one.
const PLACES_MAX: usize = 1 << 24;

impl Lowering<'_> {
    /// Gathers the elements at `places` along an axis, and `fill` at each place that is `None`.
    pub(super) fn picked(&mut self, x: NodeId, axis: usize, places: &[Option<usize>], fill: f64) -> Result<NodeId> {
        let dims = self.dims(x)?;
        let size = self.size(x, axis)?;
        if size == places.len() && places.iter().enumerate().all(|(place, from)| *from == Some(place)) {
            return Ok(x);
        }
        if size == 0 {
            return Err(unserved("elements of an empty tensor"));
        }
        let indices: Vec<u32> = places.iter().map(|place| place.unwrap_or(0) as u32).collect();
        let indices = self.g.unnamed_constant(&Tensor::from_vec(indices, [places.len()])?)?;
        let picked = self.g.op(&[x, indices], |t| Gather::new(&t[0], &t[1], axis))?;
        if places.iter().all(Option::is_some) {
            return Ok(picked);
        }
        let there = self.marks(places.iter().map(Option::is_some), dims.len() - axis)?;
        let dtype = self.dtype(x)?;
        self.map(&[there, picked], |v| v[0].clone().cast(dtype).select(v[1].clone(), fill))
    }

    /// Makes bytes that are 1 where `is_there`, along the first of `rank` axes.
    fn marks(&mut self, is_there: impl Iterator<Item = bool>, rank: usize) -> Result<NodeId> {
        let marks: Vec<u8> = is_there.map(u8::from).collect();
        let mut along = vec![1; rank];
        along[0] = marks.len();
        Ok(self.g.unnamed_constant(&Tensor::from_vec(marks, along)?)?)
    }

    pub(super) fn sliced(&mut self, desc: &SliceOpIr) -> Result<NodeId> {
        let mut x = self.get(&desc.tensor)?;
        for (axis, slice) in desc.ranges.iter().enumerate() {
            let size = self.size(x, axis)?;
            let (start, end, step) = bounds(slice, size)?;
            x = match slice.step > 0 {
                true if (start, end, step) == (0, size, 1) => x,
                true => self.g.slice(x, axis, start, end, step)?,
                false => {
                    bounded(size)?;
                    let places: Vec<Option<usize>> = (start..end).rev().step_by(step).map(Some).collect();
                    self.picked(x, axis, &places, 0.0)?
                }
            };
        }
        Ok(x)
    }

    /// Returns the tensor with the elements of a slice replaced by the value.
    pub(super) fn slice_assigned(&mut self, desc: &SliceAssignOpIr) -> Result<NodeId> {
        let (x, mut value) = (self.get(&desc.tensor)?, self.get(&desc.value)?);
        let (dims, dtype) = (self.dims(x)?, self.dtype(x)?);
        let mut marks = Vec::new();
        for (axis, slice) in desc.ranges.iter().enumerate() {
            let size = bounded(self.size(x, axis)?)?;
            let (start, end, step) = bounds(slice, size)?;
            let mut places = vec![None; size];
            match slice.step > 0 {
                true => (start..end).step_by(step).enumerate().for_each(|(from, to)| places[to] = Some(from)),
                false => (start..end).rev().step_by(step).enumerate().for_each(|(from, to)| places[to] = Some(from)),
            }
            let taken = places.iter().flatten().count();
            if self.size(value, axis)? != taken {
                return Err(unserved(format!("a value of {} for {taken} places", self.size(value, axis)?)));
            }
            if taken == 0 {
                return Ok(x);
            }
            value = self.picked(value, axis, &places, 0.0)?;
            if taken < size {
                marks.push(self.marks(places.iter().map(Option::is_some), dims.len() - axis)?);
            }
        }
        if marks.is_empty() {
            return Ok(value);
        }
        let operands = [&[x, value], marks.as_slice()].concat();
        self.map(&operands, |v| {
            let all = v[3..].iter().fold(v[2].clone(), |all, mark| all.and(mark.clone()));
            all.cast(dtype).select(v[1].clone(), v[0].clone())
        })
    }

    /// Gathers single elements, each by its own index.
    pub(super) fn gathered(&mut self, desc: &GatherOpIr) -> Result<NodeId> {
        let (mut x, indices) = (self.get(&desc.tensor)?, self.get(&desc.indices)?);
        let wanted = self.dims(indices)?;
        for (axis, size) in wanted.iter().enumerate().filter(|(axis, _)| *axis != desc.dim) {
            if *size < self.size(x, axis)? {
                x = self.g.slice(x, axis, 0, *size, 1)?;
            }
        }
        let axis = desc.dim;
        Ok(self.g.op(&[x, indices], |t| Gather::along(&t[0], &t[1], axis))?)
    }

    /// Adds or writes rows at the given indices.
    pub(super) fn select_assigned(&mut self, desc: &SelectAssignOpIr) -> Result<NodeId> {
        let (x, indices, value) = (self.get(&desc.tensor)?, self.get(&desc.indices)?, self.get(&desc.value)?);
        let (dims, picked) = (self.dims(x)?, self.size(value, desc.dim)?);
        if desc.dim == 0 && desc.update == IndexingUpdateOp::Add {
            let rows = self.rows_added(value, indices, dims[0])?;
            let rows = self.reshape(rows, &dims)?;
            return Ok(self.g.add(x, rows)?);
        }
        let mut along = vec![1; dims.len()];
        along[desc.dim] = picked;
        let indices = self.reshape(indices, &along)?;
        let value_dims = self.dims(value)?;
        let indices = self.broadcast(indices, &value_dims)?;
        self.updated_at(x, indices, value, desc.dim, desc.update)
    }

    /// Adds rows `[n, …]` into a table `[count, …]`, by a product with a matrix that has a one
    /// where a row's index is the table's row.
    pub(super) fn rows_added(&mut self, rows: NodeId, indices: NodeId, count: usize) -> Result<NodeId> {
        let (dims, dtype) = (self.dims(rows)?, self.dtype(rows)?);
        let picked = dims.first().copied().ok_or_else(|| no_axis(0, 0))?;
        spread(&[count, picked])?;
        let width = dims[1..].iter().product();
        let indices = self.reshape(indices, &[1, picked])?;
        let indices = self.counted(indices, count)?;
        let numbers = self.numbers_below(count, &[count, 1])?;
        let is_row = self.map(&[numbers, indices], |v| v[0].clone().eq(v[1].clone()).cast(dtype))?;
        let rows = self.reshape(rows, &[picked, width])?;
        Ok(self.g.matmul(is_row, rows)?)
    }

    /// Adds or writes single elements at their own indices. If several elements are written to one
    /// place, the last is kept.
    pub(super) fn updated_at(
        &mut self,
        x: NodeId,
        indices: NodeId,
        values: NodeId,
        axis: usize,
        update: IndexingUpdateOp,
    ) -> Result<NodeId> {
        let (size, dtype, dims) = (self.size(x, axis)?, self.dtype(x)?, self.dims(values)?);
        if self.dims(indices)? != dims {
            return Err(unserved("indices of another shape than the values"));
        }
        let count = self.size(values, axis)?;
        let mut apart = dims.clone();
        apart.insert(axis, 1);
        let values = self.reshape(values, &apart)?;
        let indices = self.reshape(indices, &apart)?;
        let indices = self.counted(indices, size)?;
        apart[axis] = size;
        spread(&apart)?;
        // The table's indices, along an axis before the values' own axis.
        let mut along = vec![1; apart.len() - axis];
        along[0] = size;
        let places = self.numbers_below(size, &along)?;
        let added = |own: &mut Self, is_here: NodeId| -> Result<NodeId> {
            let put = own.map(&[is_here, values], |v| v[0].clone().select(v[1].clone(), 0.0))?;
            Ok(own.g.reduce(Reduction::Sum, put, &[axis + 1])?)
        };
        match update {
            IndexingUpdateOp::Add => {
                let is_here = self.map(&[indices, places], |v| v[0].clone().eq(v[1].clone()).cast(dtype))?;
                let sum = added(self, is_here)?;
                Ok(self.g.add(x, sum)?)
            }
            IndexingUpdateOp::Assign => {
                let mut own = vec![1; apart.len() - axis - 1];
                own[0] = count;
                let order = self.numbers_below(count, &own)?;
                let is_here = |v: &[Expr]| v[0].clone().eq(v[1].clone());
                let order = self
                    .map(&[indices, places, order], |v| is_here(v).select(v[2].clone() + 1.0, Expr::constant(0.0)))?;
                let last = self.g.op(&[order], |t| Reduce::max(&t[0]).axes(&[axis + 1]).keep_dims())?;
                let is_last =
                    self.map(&[order, last], |v| v[0].clone().eq(v[1].clone()).and(v[0].clone().gt(0.0)).cast(dtype))?;
                let put = added(self, is_last)?;
                let put_dims = self.dims(put)?;
                let last = self.reshape(last, &put_dims)?;
                self.map(&[last, put, x], |v| v[0].clone().gt(0.0).cast(dtype).select(v[1].clone(), v[2].clone()))
            }
            other => Err(unserved(format!("an update by {other:?}"))),
        }
    }

    /// Concatenates tensors along an axis.
    pub(super) fn joined(&mut self, desc: &CatOpIr) -> Result<NodeId> {
        let mut parts = Vec::new();
        let mut total = 0_usize;
        for tensor in &desc.tensors {
            let part = self.get(tensor)?;
            let size = self.size(part, desc.dim)?;
            parts.push((part, total, size));
            total = total.saturating_add(size);
        }
        bounded(total)?;
        parts.retain(|(_, _, size)| *size > 0);
        let mut joined = None;
        for (part, start, size) in parts {
            let rank = self.dims(part)?.len();
            let dtype = self.dtype(part)?;
            let place = |to: usize| to.checked_sub(start).filter(|from| *from < size);
            let places: Vec<Option<usize>> = (0..total).map(place).collect();
            joined = Some(match joined {
                None => self.picked(part, desc.dim, &places, 0.0)?,
                Some(before) => {
                    let nearest: Vec<Option<usize>> = places.iter().map(|place| Some(place.unwrap_or(0))).collect();
                    let part = self.picked(part, desc.dim, &nearest, 0.0)?;
                    let marks = self.marks(places.iter().map(Option::is_some), rank - desc.dim)?;
                    self.map(&[marks, part, before], |v| v[0].clone().cast(dtype).select(v[1].clone(), v[2].clone()))?
                }
            });
        }
        joined.ok_or_else(|| unserved("joining nothing"))
    }

    /// Converts indices to u32 that count from the start.
    fn counted(&mut self, indices: NodeId, size: usize) -> Result<NodeId> {
        let positive =
            |index: &Expr| index.clone().lt(0).select(index.clone() + size as f64, index.clone()).cast(DType::U32);
        match self.dtype(indices)? {
            DType::U32 => Ok(indices),
            DType::I32 => self.map(&[indices], |v| positive(&v[0])),
            other => Err(unserved(format!("indices of type {other}"))),
        }
    }

    /// Makes 0, 1, 2, … in this shape.
    pub(super) fn numbers_below(&mut self, size: usize, dims: &[usize]) -> Result<NodeId> {
        let numbers: Vec<u32> = (0..bounded(size)? as u32).collect();
        Ok(self.g.unnamed_constant(&Tensor::from_vec(numbers, dims)?)?)
    }
}

/// Returns start, end and step of a slice of an axis with this size, with `start ≤ end ≤ size`. If
/// Burn's step is negative, the returned step counts from the end.
fn bounds(slice: &Slice, size: usize) -> Result<(usize, usize, usize)> {
    let place = |index: isize| match index < 0 {
        true => size.saturating_sub(index.unsigned_abs()),
        false => (index as usize).min(size),
    };
    let (start, end) = (place(slice.start), slice.end.map_or(size, place));
    if slice.step == 0 {
        return Err(unserved("a slice in steps of zero"));
    }
    Ok((start, end.max(start), slice.step.unsigned_abs()))
}

/// Checks the number of listed indices against `PLACES_MAX`.
pub(super) fn bounded(places: usize) -> Result<usize> {
    match places <= PLACES_MAX {
        true => Ok(places),
        false => Err(Error::Limit { what: "places along an axis", limit: PLACES_MAX as u64, got: places as u64 }),
    }
}

/// Refuses a mask that is too large for a device.
fn spread(dims: &[usize]) -> Result<()> {
    let elements = dims.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim));
    match elements.filter(|elements| *elements <= SPREAD_MAX) {
        Some(_) => Ok(()),
        None => {
            let got = elements.map_or(u64::MAX, |elements| elements as u64);
            Err(Error::Limit { what: "elements of a mask", limit: SPREAD_MAX as u64, got })
        }
    }
}
