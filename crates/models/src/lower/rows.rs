//! Reductions, softmax, normalisations and selections along axes.

use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{LayerNorm, Reduce, Reduction, Scan, ScanKind, Softmax, TopK};

use super::{Lower, LoweredOutputs, one};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::axis_of;
use crate::ops::reduce::{reduced_axes, reduced_dims, softmax_form};

/// An elementwise function before or after a reduction.
type Function = fn(Expr) -> Expr;

impl Lower<'_, '_> {
    pub(super) fn row(&mut self) -> LoweredOutputs {
        if !self.is_float(0) {
            return Ok(None);
        }
        let (kind, dims) = (self.kind(0)?, self.dims(0)?.to_vec());
        match self.node.op.as_str() {
            "Softmax" | "LogSoftmax" => self.softmax(kind, &dims),
            "LayerNormalization" | "RMSNormalization" => self.layer_norm(kind, &dims),
            "BatchNormalization" => self.batch_norm(kind, &dims),
            "InstanceNormalization" => self.instance_norm(kind, &dims),
            "ArgMax" | "ArgMin" => self.arg(&dims),
            "TopK" => self.top_k(kind, &dims),
            "CumSum" => self.cumulate(kind, &dims),
            _ => self.reduction(kind, &dims),
        }
    }

    fn reduce_node(&mut self, x: NodeId, reduction: Reduction, axes: &[usize]) -> Result<NodeId> {
        Ok(self.graph().op(&[x], |tensors| Reduce::new(&tensors[0], reduction).axes(axes))?)
    }

    fn reduction(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let Some(axes) = reduced_axes(&self.call, dims.len())? else { return Ok(None) };
        let result = reduced_dims(dims, &axes, self.call.flag("keepdims", true)?);
        if axes.iter().any(|axis| dims[*axis] == 0) || axes.is_empty() {
            return Ok(None);
        }
        let square: fn(Expr) -> Expr = |x| x.clone() * x;
        let (before, reduction, after): (Option<Function>, _, Option<Function>) = match self.node.op.as_str() {
            "ReduceSum" => (None, Reduction::Sum, None),
            "ReduceMean" => (None, Reduction::Mean, None),
            "ReduceMax" => (None, Reduction::Max, None),
            "ReduceMin" => (None, Reduction::Min, None),
            "ReduceL1" => (Some(Expr::abs), Reduction::Sum, None),
            "ReduceL2" => (Some(square), Reduction::Sum, Some(Expr::sqrt)),
            "ReduceSumSquare" => (Some(square), Reduction::Sum, None),
            "ReduceLogSum" => (None, Reduction::Sum, Some(Expr::log)),
            _ => return Ok(None),
        };
        let mut node = self.id(0)?;
        if let Some(before) = before {
            node = self.expression(&[node], |inputs| before(inputs[0].clone()))?;
        }
        node = self.reduce_node(node, reduction, &axes)?;
        if let Some(after) = after {
            node = self.expression(&[node], |inputs| after(inputs[0].clone()))?;
        }
        let node = self.reshape(node, &result)?;
        one(node, kind)
    }

    fn softmax(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let (outer, len, inner) = softmax_form(&self.call, dims)?;
        if dims.is_empty() || len == 0 {
            return Ok(None);
        }
        let is_log = self.node.op == "LogSoftmax";
        let x = self.id(0)?;
        let axis = if self.call.version() >= 13 { axis_of(self.call.int("axis", -1)?, dims.len())? } else { 1 };
        let flat = self.call.version() < 13;
        let x = if flat { self.reshape(x, &[outer, len * inner])? } else { x };
        let node = self.graph().op(&[x], |tensors| {
            let op = Softmax::new(&tensors[0]).axis(axis);
            if is_log { op.log() } else { op }
        })?;
        let node = self.reshape(node, dims)?;
        one(node, kind)
    }

    fn layer_norm(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let axis = axis_of(self.call.int("axis", -1)?, dims.len())?;
        let row = &dims[axis..];
        let own = |place: usize| {
            !self.is_given(place)
                || (self.kind(place).ok() == Some(kind) && self.dims(place).is_ok_and(|dims| dims == row))
        };
        if self.call.wants(1) || self.call.wants(2) || !own(1) || !own(2) || row.contains(&0) {
            return Ok(None);
        }
        let (epsilon, count, rms) = (self.call.float("epsilon", 1e-5)?, row.len(), self.node.op == "RMSNormalization");
        let mut nodes = vec![self.id(0)?];
        let (has_weight, has_bias) = (self.is_given(1), self.is_given(2));
        if has_weight {
            nodes.push(self.id(1)?);
        }
        if has_bias {
            nodes.push(self.id(2)?);
        }
        let node = self.graph().op(&nodes, |tensors| {
            let mut op = LayerNorm::new(&tensors[0]).trailing_axes(count).epsilon(epsilon);
            if has_weight {
                op = op.weight(&tensors[1]);
            }
            if has_bias {
                op = op.bias(&tensors[tensors.len() - 1]);
            }
            if rms { op.rms() } else { op }
        })?;
        one(node, kind)
    }

    /// Applies a factor and a summand to each channel.
    fn channels(
        &mut self,
        x: NodeId,
        factors: &[f64],
        summands: &[f64],
        kind: ElementType,
        rank: usize,
    ) -> Result<NodeId> {
        let mut dims = vec![1; rank];
        dims[1] = factors.len();
        let factors = Array::from_floats(kind, &dims, factors)?;
        let summands = Array::from_floats(kind, &dims, summands)?;
        let (factors, summands) = (self.constant(&factors)?, self.constant(&summands)?);
        self.expression(&[x, factors, summands], |inputs| inputs[0].clone() * inputs[1].clone() + inputs[2].clone())
    }

    fn batch_norm(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        if self.call.flag("training_mode", false)?
            || dims.len() < 2
            || self.call.wants(1)
            || !self.call.flag("spatial", true)?
        {
            return Ok(None);
        }
        let [Some(scale), Some(bias), Some(mean), Some(variance)] =
            [1, 2, 3, 4].map(|place| self.fixed(place).cloned())
        else {
            return Ok(None);
        };
        let lists = [scale.to_floats()?, bias.to_floats()?, mean.to_floats()?, variance.to_floats()?];
        if lists.iter().any(|list| list.len() != dims[1]) {
            return Err(Error::invalid("BatchNormalization", format!("{} channels", dims[1]), lists[0].len()));
        }
        let [scale, bias, mean, variance] = lists;
        let epsilon = self.call.float("epsilon", 1e-5)?;
        let factors: Vec<f64> =
            scale.iter().zip(&variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect();
        let summands: Vec<f64> =
            bias.iter().zip(&mean).zip(&factors).map(|((bias, mean), factor)| bias - mean * factor).collect();
        let x = self.id(0)?;
        let node = self.channels(x, &factors, &summands, kind, dims.len())?;
        one(node, kind)
    }

    fn instance_norm(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let ([batch, channels, space @ ..], Some(scale), Some(bias)) =
            (dims, self.fixed(1).cloned(), self.fixed(2).cloned())
        else {
            return Ok(None);
        };
        let run: usize = space.iter().product();
        if run == 0 || scale.len() != *channels || bias.len() != *channels {
            return Ok(None);
        }
        let epsilon = self.call.float("epsilon", 1e-5)?;
        let x = self.id(0)?;
        let rows = self.reshape(x, &[batch * channels, run])?;
        let rows = self.graph().op(&[rows], |tensors| LayerNorm::new(&tensors[0]).epsilon(epsilon))?;
        let x = self.reshape(rows, dims)?;
        let node = self.channels(x, &scale.to_floats()?, &bias.to_floats()?, kind, dims.len())?;
        one(node, kind)
    }

    fn arg(&mut self, dims: &[usize]) -> LoweredOutputs {
        let axis = axis_of(self.call.int("axis", 0)?, dims.len())?;
        if self.call.flag("select_last_index", false)? || dims[axis] == 0 || u32::try_from(dims[axis]).is_err() {
            return Ok(None);
        }
        let reduction = if self.node.op == "ArgMax" { Reduction::ArgMax } else { Reduction::ArgMin };
        let x = self.id(0)?;
        let node = self.reduce_node(x, reduction, &[axis])?;
        let node = self.reshape(node, &reduced_dims(dims, &[axis], self.call.flag("keepdims", true)?))?;
        one(node, ElementType::I64)
    }

    fn top_k(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let axis = axis_of(self.call.int("axis", -1)?, dims.len())?;
        let k = match self.call.optional_ints(1)? {
            Some(k) => k.first().copied().unwrap_or(0),
            None => self.call.int("k", 0)?,
        };
        let (Ok(k), largest) = (usize::try_from(k), self.call.flag("largest", true)?) else { return Ok(None) };
        let x = self.id(0)?;
        let (values, places) = self.graph().op_pair(&[x], |tensors| {
            let op = TopK::new(&tensors[0], k).axis(axis);
            if largest { op } else { op.smallest() }
        })?;
        Ok(Some(vec![(values, kind), (places, ElementType::I64)]))
    }

    fn cumulate(&mut self, kind: ElementType, dims: &[usize]) -> LoweredOutputs {
        let Some(axis) = self.call.optional_ints(1)?.and_then(|axis| axis.first().copied()) else { return Ok(None) };
        let axis = axis_of(axis, dims.len())?;
        let (exclusive, reverse) = (self.call.flag("exclusive", false)?, self.call.flag("reverse", false)?);
        let x = self.id(0)?;
        let node = self.graph().op(&[x], |tensors| {
            let mut op = Scan::new(&tensors[0], ScanKind::Sum).axis(axis);
            (op.reversed, op.excludes_own) = (reverse, exclusive);
            op
        })?;
        one(node, kind)
    }
}
