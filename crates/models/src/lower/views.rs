//! Nodes that move or reshape elements.

use panoply_core::DType;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::Gather;

use super::{Arg, Lower, LoweredOutputs, VaryingOperand, carrier, fixed, one};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::axis_of;
use crate::ops::index::index_of;
use crate::ops::shape;

impl Lower<'_, '_> {
    pub(super) fn view(&mut self) -> LoweredOutputs {
        let op = self.node.op.as_str();
        if matches!(op, "Gather" | "GatherElements") {
            return self.gather(op == "Gather");
        }
        if op == "GatherND" {
            return self.gather_nd();
        }
        let kind = self.kind(0)?;
        if op == "Cast" {
            return self.cast(kind);
        }
        // A graph holds 64-bit integers only if one of its ops made them, as 32-bit integers.
        let held = matches!(self.args[0], Arg::Dynamic { at: VaryingOperand::Node(_), .. });
        if kind.carrier().is_none() && !held {
            return Ok(None);
        }
        let dims = self.dims(0)?.to_vec();
        let x = self.id(0)?;
        let node = match op {
            "Reshape" => {
                let wanted = self.call.array(1)?.to_i64s()?;
                let dims = shape::reshaped(&dims, &wanted, self.call.flag("allowzero", false)?)?;
                self.reshape(x, &dims)?
            }
            "Flatten" => self.reshape(x, &shape::flattened(&dims, self.call.int("axis", 1)?)?)?,
            "Squeeze" => self.reshape(x, &shape::squeezed(&dims, self.call.axes(1)?.as_deref())?)?,
            "Unsqueeze" => {
                let axes = self.call.axes(1)?.ok_or_else(|| Error::invalid("unsqueeze", "axes", "none"))?;
                self.reshape(x, &shape::unsqueezed(&dims, &axes)?)?
            }
            "Transpose" => {
                let order = shape::order(&self.call, dims.len())?;
                self.graph().permute(x, &order)?
            }
            "Expand" => {
                let dims = shape::expanded(&dims, &self.call.array(1)?.to_i64s()?)?;
                self.graph().broadcast(x, &fixed(&dims))?
            }
            "Slice" => match self.slice(x, &dims)? {
                Some(node) => node,
                None => return Ok(None),
            },
            "Split" => return self.split(x, &dims, kind),
            _ => {
                let block = usize::try_from(self.call.int("blocksize", 1)?).unwrap_or(0).max(1);
                let (split, order, result) = shape::depth_space_form(&self.call, &dims, block)?;
                let x = self.reshape(x, &split)?;
                let x = self.graph().permute(x, &order)?;
                self.reshape(x, &result)?
            }
        };
        one(node, kind)
    }

    /// A slice with positive steps.
    fn slice(&mut self, x: NodeId, dims: &[usize]) -> Result<Option<NodeId>> {
        let mut node = x;
        for (axis, start, end, step) in shape::slice_bounds(&self.call, dims.len())? {
            let (first, count, step) = shape::slice_axis(dims[axis], start, end, step)?;
            let Ok(step) = usize::try_from(step) else { return Ok(None) };
            if count == 0 {
                return Ok(None);
            }
            let end = first + (count - 1).saturating_mul(step) + 1;
            if (first, end, step) != (0, dims[axis], 1) {
                node = self.graph().slice(node, axis, first, end, step.min(dims[axis].max(1)))?;
            }
        }
        Ok(Some(node))
    }

    fn split(&mut self, x: NodeId, dims: &[usize], kind: ElementType) -> LoweredOutputs {
        let axis = axis_of(self.call.int("axis", 0)?, dims.len())?;
        let (mut start, mut parts) = (0, Vec::new());
        for size in shape::split_sizes(&self.call, dims[axis])? {
            parts.push((self.graph().slice(x, axis, start, start + size, 1)?, kind));
            start += size;
        }
        Ok(Some(parts))
    }

    fn cast(&mut self, from: ElementType) -> LoweredOutputs {
        let to = ElementType::from_code(self.call.int("to", 0)?)?;
        let made_here = matches!(self.args[0], Arg::Dynamic { at: VaryingOperand::Node(_), .. });
        let Some(dtype) = to.carrier() else { return Ok(None) };
        if from.carrier().is_none() && !(from == ElementType::I64 && made_here) {
            return Ok(None);
        }
        // The result of a float beyond an integer's range is undefined, but bytes should be equal
        // on every device. Such casts stay on the host.
        if from.is_float() && to.is_integer() && to != ElementType::I32 {
            return Ok(None);
        }
        let x = self.id(0)?;
        let is_bool = to == ElementType::Bool;
        let node = self.expression(&[x], |inputs| {
            let x = inputs[0].clone();
            if is_bool { x.ne(0.0).cast(DType::U8) } else { x.cast(dtype) }
        })?;
        one(node, to)
    }

    /// Rows or elements selected by indices, which devices read as 32-bit integers.
    fn gather(&mut self, rows: bool) -> LoweredOutputs {
        let (kind, dims) = (self.kind(0)?, self.dims(0)?.to_vec());
        carrier(kind)?;
        let axis = axis_of(self.call.int("axis", 0)?, dims.len())?;
        let len = dims[axis];
        if i32::try_from(len).is_err() {
            return Ok(None);
        }
        if let (true, Some(indices)) = (rows, self.fixed(1).filter(|indices| indices.len() == 1).cloned()) {
            return self.gather_one(&indices, &dims, axis);
        }
        let index_dims = self.dims(1)?.to_vec();
        let fits = |(place, (index, dim)): (usize, (&usize, &usize))| place == axis || index == dim;
        if !rows && !index_dims.iter().zip(&dims).enumerate().all(fits) {
            return Ok(None);
        }
        let Some(indices) = self.indices_at(1, len)? else { return Ok(None) };
        let x = self.id(0)?;
        let node = self.graph().op(&[x, indices], |tensors| match rows {
            true => Gather::new(&tensors[0], &tensors[1], axis),
            false => Gather::along(&tensors[0], &tensors[1], axis),
        })?;
        one(node, kind)
    }

    /// Rows selected by tuples of one index each.
    fn gather_nd(&mut self) -> LoweredOutputs {
        let (kind, dims, index_dims) = (self.kind(0)?, self.dims(0)?.to_vec(), self.dims(1)?.to_vec());
        carrier(kind)?;
        let (Some(len), Some((1, picked))) = (dims.first().copied(), index_dims.split_last()) else { return Ok(None) };
        if self.call.int("batch_dims", 0)? != 0 || i32::try_from(len).is_err() {
            return Ok(None);
        }
        let Some(indices) = self.indices_at(1, len)? else { return Ok(None) };
        let indices = self.reshape(indices, picked)?;
        let x = self.id(0)?;
        let node = self.graph().op(&[x, indices], |tensors| Gather::new(&tensors[0], &tensors[1], 0))?;
        one(node, kind)
    }

    /// The operand at `place` as indices that devices read, within an axis of length `len`.
    pub(super) fn indices_at(&mut self, place: usize, len: usize) -> Result<Option<NodeId>> {
        let dims = self.dims(place)?.to_vec();
        let indices = match &self.args[place] {
            Arg::Static(array) => {
                let places = array.to_i64s()?.into_iter().map(|index| index_of(index, len).map(|index| index as i128));
                let places = places.collect::<Result<Vec<_>>>()?;
                let array = Array::from_integers(ElementType::I32, array.dims(), &places)?;
                self.constant(&array)?
            }
            // Indices made by a graph count from the front, and are below the length of the axis
            // where they were found.
            Arg::Dynamic { kind: ElementType::I64, at: VaryingOperand::Node(_), .. } => return Ok(None),
            Arg::Dynamic { at: VaryingOperand::Slot(slot), .. } => {
                let slot = (self.indices)(*slot, len)?;
                self.recording.has_lookups = true;
                self.recording.port(slot, ElementType::I32, &dims)?
            }
            _ => return Ok(None),
        };
        Ok(Some(indices))
    }

    /// One row, as a slice.
    fn gather_one(&mut self, indices: &Array, dims: &[usize], axis: usize) -> LoweredOutputs {
        let kind = self.kind(0)?;
        let index = indices.to_i64s()?.first().copied().unwrap_or(0);
        let index = index_of(index, dims[axis])?;
        let x = self.id(0)?;
        let row = self.graph().slice(x, axis, index, index + 1, 1)?;
        let dims = [&dims[..axis], indices.dims(), &dims[axis + 1..]].concat();
        let node = self.reshape(row, &dims)?;
        one(node, kind)
    }
}
