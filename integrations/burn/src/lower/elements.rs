//! Lowers operations that move elements, regardless of their type.

use burn_ir::BaseOperationIr;
use panoply_core::DType;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Gather, Reduce, Reduction};

use super::picks::bounded;
use super::{Lowering, Result, no_axis, unserved};
use crate::convert;

impl Lowering<'_> {
    pub(super) fn base(&mut self, op: &BaseOperationIr) -> Result<Vec<NodeId>> {
        use BaseOperationIr as Op;
        let made = match op {
            Op::Reshape(desc) => {
                let x = self.get(&desc.input)?;
                self.reshape(x, &desc.out.shape)?
            }
            Op::SwapDims(desc) => {
                let x = self.get(&desc.input)?;
                let mut order: Vec<usize> = (0..self.dims(x)?.len()).collect();
                if desc.dim1.max(desc.dim2) >= order.len() {
                    return Err(no_axis(order.len(), desc.dim1.max(desc.dim2)));
                }
                order.swap(desc.dim1, desc.dim2);
                self.g.permute(x, &order)?
            }
            Op::Permute(desc) => {
                let x = self.get(&desc.input)?;
                self.g.permute(x, &desc.axes)?
            }
            Op::Flip(desc) => {
                let mut x = self.get(&desc.input)?;
                for axis in &desc.axes {
                    let places: Vec<Option<usize>> = (0..bounded(self.size(x, *axis)?)?).rev().map(Some).collect();
                    x = self.picked(x, *axis, &places, 0.0)?;
                }
                x
            }
            Op::Expand(desc) => {
                let x = self.get(&desc.input)?;
                self.broadcast(x, &desc.out.shape)?
            }
            Op::Slice(desc) => self.sliced(desc)?,
            Op::SliceAssign(desc) => self.slice_assigned(desc)?,
            Op::Select(desc) => {
                let (x, indices) = (self.get(&desc.tensor)?, self.get(&desc.indices)?);
                let axis = desc.dim;
                self.g.op(&[x, indices], |t| Gather::new(&t[0], &t[1], axis))?
            }
            Op::SelectAssign(desc) => self.select_assigned(desc)?,
            Op::Gather(desc) => self.gathered(desc)?,
            Op::Scatter(desc) => {
                let (x, indices, values) = (self.get(&desc.tensor)?, self.get(&desc.indices)?, self.get(&desc.value)?);
                self.updated_at(x, indices, values, desc.dim, desc.update)?
            }
            Op::RepeatDim(desc) => {
                let x = self.get(&desc.tensor)?;
                self.repeated(x, desc.dim, desc.times)?
            }
            Op::Cat(desc) => self.joined(desc)?,
            Op::Cast(desc) => {
                let x = self.get(&desc.input)?;
                self.cast(x, convert::dtype(desc.out.dtype)?)?
            }
            Op::Unfold(_) | Op::ScatterNd(_) | Op::GatherNd(_) => {
                return Err(unserved("windows and indices of several axes"));
            }
            _ => self.made_or_judged(op)?,
        };
        Ok(vec![made])
    }

    /// Lowers operations that create, select or compare elements.
    fn made_or_judged(&mut self, op: &BaseOperationIr) -> Result<NodeId> {
        use BaseOperationIr as Op;
        Ok(match op {
            Op::MaskWhere(desc) => {
                let (x, mask, value) = (self.get(&desc.tensor)?, self.get(&desc.mask)?, self.get(&desc.value)?);
                let dtype = self.dtype(x)?;
                self.map(&[x, mask, value], |v| v[1].clone().cast(dtype).select(v[2].clone(), v[0].clone()))?
            }
            Op::MaskFill(desc) => {
                let (x, mask) = (self.get(&desc.tensor)?, self.get(&desc.mask)?);
                let dtype = self.dtype(x)?;
                self.with_number(&[x, mask], &desc.value, |v, value| {
                    v[1].clone().cast(dtype).select(value, v[0].clone())
                })?
            }
            Op::Equal(desc) => self.compared(desc, |a, b| a.eq(b))?,
            Op::NotEqual(desc) => self.compared(desc, |a, b| a.ne(b))?,
            Op::EqualElem(desc) => self.compared_with(desc, |a, b| a.eq(b))?,
            Op::NotEqualElem(desc) => self.compared_with(desc, |a, b| a.ne(b))?,
            // The contents of an empty tensor are unspecified, so zeros are correct.
            Op::Empty(desc) | Op::Zeros(desc) => self.filled(&desc.out, 0.0)?,
            Op::Ones(desc) => self.filled(&desc.out, 1.0)?,
            Op::All(desc) => {
                let x = self.get(&desc.input)?;
                self.truth(x, Reduction::Min, None)?
            }
            Op::Any(desc) => {
                let x = self.get(&desc.input)?;
                self.truth(x, Reduction::Max, None)?
            }
            Op::AllDim(desc) => {
                let x = self.get(&desc.input)?;
                self.truth(x, Reduction::Min, Some(desc.axis))?
            }
            Op::AnyDim(desc) => {
                let x = self.get(&desc.input)?;
                self.truth(x, Reduction::Max, Some(desc.axis))?
            }
            _ => return Err(unserved("this form of it")),
        })
    }

    /// Makes a tensor filled with one number.
    pub(super) fn filled(&mut self, out: &burn_ir::TensorIr, value: f64) -> Result<NodeId> {
        let one = self.constant(convert::dtype(out.dtype)?, value)?;
        self.broadcast(one, &out.shape)
    }

    fn repeated(&mut self, x: NodeId, axis: usize, times: usize) -> Result<NodeId> {
        let mut dims = self.dims(x)?;
        let size = self.size(x, axis)?;
        let mut apart = dims.clone();
        apart.insert(axis, 1);
        let x = self.reshape(x, &apart)?;
        apart[axis] = times;
        let x = self.broadcast(x, &apart)?;
        dims[axis] = size.saturating_mul(times);
        self.reshape(x, &dims)
    }

    /// Whether all or any elements are nonzero, as bytes. Without an axis the result has one
    /// element.
    fn truth(&mut self, x: NodeId, reduction: Reduction, axis: Option<usize>) -> Result<NodeId> {
        let is_true = self.map(&[x], |v| v[0].clone().ne(0.0).cast(DType::U8))?;
        match axis {
            Some(axis) => Ok(self.g.op(&[is_true], |t| Reduce::new(&t[0], reduction).axes(&[axis]).keep_dims())?),
            None => {
                let one = self.g.op(&[is_true], |t| Reduce::new(&t[0], reduction))?;
                self.reshape(one, &[1])
            }
        }
    }
}
