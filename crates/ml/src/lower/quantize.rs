//! Quantised numbers: between floats and bytes, and products of bytes with sums in 32 bits.

use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{MatMul, Reduce, Reduction};

use super::{Lower, Recorded, carrier, one};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::Result;
use crate::ops::call::axis_of;

impl Lower<'_, '_> {
    pub(super) fn quantized(&mut self) -> Recorded {
        match self.node.op.as_str() {
            "QuantizeLinear" => self.quantize(),
            "DequantizeLinear" => self.dequantize(),
            "DynamicQuantizeLinear" => self.quantize_dynamically(),
            _ => self.product_of_bytes(),
        }
    }

    /// A scale or zero point as a node that broadcasts against the operand: one number, or one for each index of an axis.
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

    /// Whether there is a zero point for each scale, where any is given.
    fn has_paired_zeros(&self) -> bool {
        let len = |place: usize| self.dims(place).map(|dims| dims.iter().product::<usize>()).ok();
        !self.is_given(2) || len(1) == len(2)
    }

    fn quantize(&mut self) -> Recorded {
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

    fn dequantize(&mut self) -> Recorded {
        let from = self.kind(0)?;
        let known = matches!(from, ElementType::U8 | ElementType::I8 | ElementType::I32)
            && matches!(self.call.int("output_dtype", 0)?, 0 | 1)
            && self.has_paired_zeros();
        if !known || self.kind(1)? != ElementType::F32 || self.call.int("block_size", 0)? != 0 {
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
        let node = self.expression(&nodes, |inputs| {
            let whole = inputs[0].clone().cast(DType::I32);
            let shifted = match inputs.get(2) {
                Some(zero) => whole - zero.clone().cast(DType::I32),
                None => whole,
            };
            shifted.cast(DType::F32) * inputs[1].clone()
        })?;
        one(node, ElementType::F32)
    }

    fn quantize_dynamically(&mut self) -> Recorded {
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

    /// `MatMulInteger` with constant weights: both sides as signed bytes, and what that moves put right by sums of columns.
    fn product_of_bytes(&mut self) -> Recorded {
        let is_byte = |kind| matches!(kind, ElementType::U8 | ElementType::I8);
        let (a_kind, b_kind) = (self.kind(0)?, self.kind(1)?);
        let Some(weights) = self.fixed(1).filter(|array| array.dims().len() == 2).cloned() else {
            return self.product_of_changing_bytes();
        };
        let dims = self.dims(0)?.to_vec();
        if !is_byte(a_kind)
            || !is_byte(b_kind)
            || dims.len() < 2
            || (self.is_given(2) && self.dims(2)?.iter().product::<usize>() != 1)
        {
            return Ok(None);
        }
        let [k, n] = *weights.dims() else { return Ok(None) };
        let zeros = match (self.is_given(3), self.fixed(3)) {
            (false, _) => vec![0],
            (true, Some(array)) => array.to_integers()?,
            (true, None) => return Ok(None),
        };
        if zeros.len() != 1 && (zeros.len() != n || self.fixed(3).is_some_and(|array| array.dims().len() != 1)) {
            return Ok(None);
        }
        // Weights without their zero point, where bytes hold that; else the host has to do it.
        let values = weights.to_integers()?;
        let moved: Vec<i128> = values
            .iter()
            .enumerate()
            .map(|(place, value)| value - zeros[if zeros.len() == n { place % n } else { 0 }])
            .collect();
        if moved.iter().any(|value| !(-128..128).contains(value)) {
            return Ok(None);
        }
        let sums: Vec<i128> = (0..n).map(|column| (0..k).map(|row| moved[row * n + column]).sum()).collect();
        let weights = Array::from_integers(ElementType::I8, [k, n], &moved)?;
        let sums = Array::from_integers(ElementType::I32, [n], &sums)?;
        let (b, sums) = (self.constant(&weights)?, self.constant(&sums)?);
        let rows: usize = dims[..dims.len() - 1].iter().product();
        let x = self.id(0)?;
        let x = self.reshape(x, &[rows, k])?;
        let shift = if a_kind == ElementType::U8 { 128.0 } else { 0.0 };
        let signed = match a_kind {
            ElementType::U8 => {
                self.expression(&[x], |inputs| (inputs[0].clone().cast(DType::I32) - shift).cast(DType::I8))?
            }
            _ => x,
        };
        let product = self.graph().op(&[signed, b], |tensors| MatMul::new(&tensors[0], &tensors[1]))?;
        let mut nodes = vec![product, sums];
        if self.is_given(2) {
            let zero = self.id(2)?;
            nodes.push(self.reshape(zero, &[])?);
        }
        let node = self.expression(&nodes, |inputs| {
            let moved = match inputs.get(2) {
                Some(zero) => Expr::constant(shift) - zero.clone().cast(DType::I32),
                None => Expr::constant(shift),
            };
            inputs[0].clone() + moved * inputs[1].clone()
        })?;
        let result = [&dims[..dims.len() - 1], &[n]].concat();
        let node = self.reshape(node, &result)?;
        one(node, ElementType::I32)
    }

    /// Bytes as signed ones, and by how much they are less than before.
    fn signed(&mut self, place: usize) -> Result<(NodeId, f64)> {
        let x = self.id(place)?;
        match self.kind(place)? {
            ElementType::U8 => {
                let shift = |inputs: &[Expr]| (inputs[0].clone().cast(DType::I32) - 128.0).cast(DType::I8);
                Ok((self.expression(&[x], shift)?, 128.0))
            }
            _ => Ok((x, 0.0)),
        }
    }

    /// The sums of signed bytes along an axis, which stays with a length of one.
    fn sums(&mut self, bytes: NodeId, axis: usize) -> Result<NodeId> {
        let mut dims = self.node_dims(bytes)?;
        dims[axis] = 1;
        let whole = self.expression(&[bytes], |inputs| inputs[0].clone().cast(DType::I32))?;
        let sums = self.graph().op(&[whole], |tensors| Reduce::new(&tensors[0], Reduction::Sum).axes(&[axis]))?;
        self.reshape(sums, &dims)
    }

    /// `MatMulInteger` of two sides that change, with one zero point each. Of `(a + p) · (b + q)` with signed bytes `a` and `b` the
    /// product is that of the bytes, `q` times the sums of rows, `p` times those of columns, and `p · q` for each step.
    fn product_of_changing_bytes(&mut self) -> Recorded {
        let is_byte = |kind| matches!(kind, ElementType::U8 | ElementType::I8);
        let (a_dims, b_dims) = (self.dims(0)?.to_vec(), self.dims(1)?.to_vec());
        let is_one =
            |place: usize| !self.is_given(place) || self.dims(place).is_ok_and(|dims| dims.iter().all(|dim| *dim == 1));
        let matrices = a_dims.len() >= 2 && b_dims.len() >= 2 && !a_dims.contains(&0) && !b_dims.contains(&0);
        if !is_byte(self.kind(0)?) || !is_byte(self.kind(1)?) || !matrices || !is_one(2) || !is_one(3) {
            return Ok(None);
        }
        let depth = a_dims[a_dims.len() - 1] as f64;
        let ((a, a_shift), (b, b_shift)) = (self.signed(0)?, self.signed(1)?);
        let product = self.graph().op(&[a, b], |tensors| MatMul::new(&tensors[0], &tensors[1]))?;
        let mut nodes = vec![product, self.sums(a, a_dims.len() - 1)?, self.sums(b, b_dims.len() - 2)?];
        let mut zero_at = [None; 2];
        for (side, at) in zero_at.iter_mut().enumerate() {
            if self.is_given(2 + side) {
                *at = Some(nodes.len());
                let zero = self.id(2 + side)?;
                nodes.push(self.reshape(zero, &[])?);
            }
        }
        let node = self.expression(&nodes, |inputs| {
            let moved = |at: Option<usize>, shift: f64| match at {
                Some(at) => Expr::constant(shift) - inputs[at].clone().cast(DType::I32),
                None => Expr::constant(shift),
            };
            let (p, q) = (moved(zero_at[0], a_shift), moved(zero_at[1], b_shift));
            let of_rows = q.clone() * inputs[1].clone();
            inputs[0].clone() + of_rows + p.clone() * (inputs[2].clone() + q * depth)
        })?;
        one(node, ElementType::I32)
    }
}
