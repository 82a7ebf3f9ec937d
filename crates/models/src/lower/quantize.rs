//! Quantised numbers: conversions between floats and bytes.

use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Reduce, Reduction};

use super::bytes::Bytes;
use super::{Lower, LoweredOutputs, carrier, one};
use crate::element::ElementType;
use crate::error::Result;
use crate::ops::call::axis_of;

impl Lower<'_, '_> {
    pub(super) fn quantized(&mut self) -> LoweredOutputs {
        match self.node.op.as_str() {
            "QuantizeLinear" => self.quantize(),
            "DequantizeLinear" => self.dequantize(),
            "DynamicQuantizeLinear" => self.quantize_dynamically(),
            _ => self.product_of_bytes(),
        }
    }

    /// A scale or zero point as a node that broadcasts against the operand: one number, or one for
    /// each index of an axis.
    fn parameter(&mut self, place: usize, dims: &[usize]) -> Result<Option<NodeId>> {
        let own = self.dims(place)?.to_vec();
        let node = self.id(place)?;
        match *own {
            [] => Ok(Some(node)),
            [1] => self.reshape(node, &[]).map(Some),
            [len] => {
                let axis = axis_of(self.call.int("axis", 1)?, dims.len())?;
                let mut shape = vec![1; dims.len()];
                shape[axis] = len;
                if dims[axis] == len { self.reshape(node, &shape).map(Some) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    /// Whether the zero points match the scales in number, if zero points are given.
    fn has_paired_zeros(&self) -> bool {
        let len = |place: usize| self.dims(place).map(|dims| dims.iter().product::<usize>()).ok();
        !self.is_given(2) || len(1) == len(2)
    }

    fn quantize(&mut self) -> LoweredOutputs {
        let kind = match self.is_given(2) {
            true => self.kind(2)?,
            false => match self.call.int("output_dtype", 0)? {
                0 => ElementType::U8,
                code => ElementType::from_code(code)?,
            },
        };
        let bytes = matches!(kind, ElementType::U8 | ElementType::I8) && self.has_paired_zeros();
        if !bytes
            || self.call.int("precision", 0)? > 1
            || self.kind(0)? != ElementType::F32
            || self.kind(1)? != ElementType::F32
            || self.call.int("block_size", 0)? != 0
        {
            return Ok(None);
        }
        let dims = self.dims(0)?.to_vec();
        let mut nodes = vec![self.id(0)?];
        let Some(scale) = self.parameter(1, &dims)? else { return Ok(None) };
        nodes.push(scale);
        if self.is_given(2) {
            let Some(zero) = self.parameter(2, &dims)? else { return Ok(None) };
            nodes.push(zero);
        }
        let (low, high) = kind.range();
        let dtype = carrier(kind)?;
        let node = self.expression(&nodes, |inputs| {
            let scaled = (inputs[0].clone() / inputs[1].clone()).round();
            let shifted = match inputs.get(2) {
                Some(zero) => scaled + zero.clone().cast(DType::F32),
                None => scaled,
            };
            shifted.clamp(low as f64, high as f64).cast(dtype)
        })?;
        one(node, kind)
    }

    fn dequantize(&mut self) -> LoweredOutputs {
        let from = self.kind(0)?;
        let known = matches!(from, ElementType::U8 | ElementType::I8 | ElementType::I32)
            && matches!(self.call.int("output_dtype", 0)?, 0 | 1)
            && self.has_paired_zeros();
        if !known || self.kind(1)? != ElementType::F32 || self.call.int("block_size", 0)? != 0 {
            return Ok(None);
        }
        let dims = self.dims(0)?.to_vec();
        let x = self.id(0)?;
        let mut nodes = vec![x];
        let Some(scale) = self.parameter(1, &dims)? else { return Ok(None) };
        nodes.push(scale);
        if self.is_given(2) {
            let Some(zero) = self.parameter(2, &dims)? else { return Ok(None) };
            nodes.push(zero);
        }
        let node = self.expression(&nodes, |inputs| {
            let whole = inputs[0].clone().cast(DType::I32);
            let shifted = match inputs.get(2) {
                Some(zero) => whole - zero.clone().cast(DType::I32),
                None => whole,
            };
            shifted.cast(DType::F32) * inputs[1].clone()
        })?;
        let number =
            |place: usize| self.fixed(place).filter(|array| array.len() == 1)?.to_floats().ok()?.first().copied();
        let zero = if self.is_given(2) { number(2) } else { Some(0.0) };
        if let (ElementType::U8 | ElementType::I8, Some(scale), Some(zero)) = (from, number(1), zero) {
            self.recording.bytes.insert(node, Bytes { node: x, kind: from, scale, zero });
        }
        one(node, ElementType::F32)
    }

    fn quantize_dynamically(&mut self) -> LoweredOutputs {
        if self.kind(0)? != ElementType::F32 || self.dims(0)?.contains(&0) {
            return Ok(None);
        }
        let x = self.id(0)?;
        let largest = self.graph().op(&[x], |tensors| Reduce::new(&tensors[0], Reduction::Max))?;
        let smallest = self.graph().op(&[x], |tensors| Reduce::new(&tensors[0], Reduction::Min))?;
        let scale_of = |high: Expr, low: Expr| {
            let span = high.max(0.0) - low.min(0.0);
            span.clone().eq(0.0).select(1.0, span / 255.0)
        };
        let scale = self.expression(&[largest, smallest], |inputs| scale_of(inputs[0].clone(), inputs[1].clone()))?;
        let zero = self.expression(&[smallest, scale], |inputs| {
            let place = (-(inputs[0].clone().min(0.0)) / inputs[1].clone()).clamp(0.0, 255.0).round();
            place.cast(DType::U8)
        })?;
        let y = self.expression(&[x, scale, zero], |inputs| {
            let scaled = (inputs[0].clone() / inputs[1].clone()).round() + inputs[2].clone().cast(DType::F32);
            scaled.clamp(0.0, 255.0).cast(DType::U8)
        })?;
        Ok(Some(vec![(y, ElementType::U8), (scale, ElementType::F32), (zero, ElementType::U8)]))
    }
}
