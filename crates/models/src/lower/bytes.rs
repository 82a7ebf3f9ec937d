//! Byte products with 32-bit sums: for models that ask for them, and for float products whose
//! operands were both dequantized from bytes.

use std::sync::Arc;

use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{MatMul, Reduce, Reduction};

use super::{Arg, Lower, LoweredOutputs, VaryingOperand, one};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::Result;
use crate::ops::call::{Call, axis_of};

/// The longest sums of byte products that are certain to fit 32 bits.
const DEPTH_MAX: usize = 1 << 15;

/// The bytes that a float node was dequantized from.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) node: NodeId,
    pub(super) kind: ElementType,
    pub(super) scale: f64,
    pub(super) zero: f64,
}

/// Constant bytes that a constant float matrix was dequantized from, with zero points subtracted,
/// and a scale for each column.
pub(crate) struct Origin {
    weights: Array,
    scales: Vec<f64>,
}

impl Origin {
    /// The origin of a `DequantizeLinear` of constants. `None` if the result is not such a matrix.
    pub(crate) fn of(call: &Call<'_>) -> Result<Option<Arc<Origin>>> {
        let (x, scale) = (call.array(0)?, call.array(1)?);
        let ([_, n], ElementType::I8 | ElementType::U8, ElementType::F32) = (x.dims(), x.kind(), scale.kind()) else {
            return Ok(None);
        };
        // A single scale has no axis, so the attribute is ignored.
        let (n, by_column) = (*n, axis_of(call.int("axis", 1)?, 2).is_ok_and(|axis| axis == 1));
        let is_plain = call.int("block_size", 0)? == 0 && matches!(call.int("output_dtype", 0)?, 0 | 1);
        if !is_plain || !(scale.len() == 1 || (scale.len() == n && by_column)) {
            return Ok(None);
        }
        let zeros = call.optional(2)?.map_or(Ok(vec![0]), Array::to_integers)?;
        let Some(weights) = without_zeros(x, &zeros)? else { return Ok(None) };
        let scales = scale.to_floats()?;
        let scales = (0..n).map(|column| scales[if scales.len() == n { column } else { 0 }]).collect();
        Ok(Some(Arc::new(Origin { weights, scales })))
    }
}

/// A byte matrix with its zero point or zero points (one for each column) subtracted. `None` if the
/// differences do not fit signed bytes.
fn without_zeros(weights: &Array, zeros: &[i128]) -> Result<Option<Array>> {
    let n = weights.dims().last().copied().unwrap_or(1);
    if zeros.len() != 1 && zeros.len() != n {
        return Ok(None);
    }
    if weights.kind() == ElementType::I8 && zeros.iter().all(|zero| *zero == 0) {
        return Ok(Some(weights.clone()));
    }
    let is_signed = weights.kind() == ElementType::I8;
    let number = |byte: u8| if is_signed { i16::from(byte as i8) } else { i16::from(byte) };
    if !zeros.iter().all(|zero| (-128..256).contains(zero)) {
        return Ok(None);
    }
    let zeros: Vec<i16> = zeros.iter().map(|zero| *zero as i16).collect();
    let zero = |place: usize| zeros[if zeros.len() == n { place % n } else { 0 }];
    let moved = weights.bytes().iter().enumerate().map(|(place, byte)| i8::try_from(number(*byte) - zero(place)));
    match moved.collect::<std::result::Result<Vec<i8>, _>>() {
        Ok(moved) => Array::from_slice(&moved, weights.dims()).map(Some),
        Err(_) => Ok(None),
    }
}

/// The column sums of a matrix.
fn column_sums(weights: &Array) -> Result<Vec<i128>> {
    let n = weights.dims().last().copied().unwrap_or(1);
    let mut sums = vec![0; n];
    for row in weights.as_slice::<i8>()?.chunks_exact(n.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += i128::from(*value));
    }
    Ok(sums)
}

impl Lower<'_, '_> {
    /// A product of dequantized floats with a dequantized constant matrix, as a product of the
    /// bytes and one scale for each column.
    pub(super) fn matmul_of_bytes(&mut self) -> LoweredOutputs {
        let (Some(Arg::Dynamic { at: VaryingOperand::Node(a), dims, .. }), Some(Arg::Static(_))) =
            (self.args.first(), self.args.get(1))
        else {
            return Ok(None);
        };
        let (Some(bytes), Some(origin)) = (self.recording.bytes.get(a).copied(), (self.origins)(1)) else {
            return Ok(None);
        };
        let (dims, &[k, n]) = (dims.clone(), origin.weights.dims()) else { return Ok(None) };
        if dims.len() < 2 || dims.last() != Some(&k) || self.dims(1)? != [k, n] || k > DEPTH_MAX {
            return Ok(None);
        }
        let scales: Vec<f64> = origin.scales.iter().map(|scale| f64::from((bytes.scale * scale) as f32)).collect();
        // Two scales may be normal in f32 and their product not. The float product is still correct
        // then.
        if !scales.iter().all(|scale| (*scale as f32).is_normal()) {
            return Ok(None);
        }
        let rows = dims[..dims.len() - 1].iter().product();
        let x = self.reshape(bytes.node, &[rows, k])?;
        let (x, shift) = self.signed_node(x, bytes.kind)?;
        let moved = (shift - bytes.zero) as i128;
        let summands: Vec<i128> = column_sums(&origin.weights)?.into_iter().map(|sum| moved * sum).collect();
        let weights = self.constant(&origin.weights)?;
        let summands = self.constant(&Array::from_integers(ElementType::I32, [n], &summands)?)?;
        let scales = self.constant(&Array::from_floats(ElementType::F32, [n], &scales)?)?;
        let product = self.graph().op(&[x, weights], |tensors| MatMul::new(&tensors[0], &tensors[1]))?;
        let node = self.expression(&[product, summands, scales], |inputs| {
            (inputs[0].clone() + inputs[1].clone()).cast(DType::F32) * inputs[2].clone()
        })?;
        let result = [&dims[..dims.len() - 1], &[n]].concat();
        let node = self.shaped(node, &result)?;
        one(node, ElementType::F32)
    }

    /// `MatMulInteger` with constant weights. Both operands become signed bytes, and column sums
    /// correct for the shift.
    pub(super) fn product_of_bytes(&mut self) -> LoweredOutputs {
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
        // Weights with zero points subtracted, if bytes hold them. Otherwise the node runs on the
        // host.
        let Some(weights) = without_zeros(&weights, &zeros)? else { return Ok(None) };
        let sums = column_sums(&weights)?;
        let sums = Array::from_integers(ElementType::I32, [n], &sums)?;
        let (b, sums) = (self.constant(&weights)?, self.constant(&sums)?);
        let rows: usize = dims[..dims.len() - 1].iter().product();
        let x = self.id(0)?;
        let x = self.reshape(x, &[rows, k])?;
        let (signed, shift) = self.signed_node(x, a_kind)?;
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

    /// Unsigned bytes shifted to signed ones, and the shift.
    fn signed_node(&mut self, x: NodeId, kind: ElementType) -> Result<(NodeId, f64)> {
        if kind == ElementType::I8 {
            return Ok((x, 0.0));
        }
        let node = self.expression(&[x], |inputs| (inputs[0].clone().cast(DType::I32) - 128.0).cast(DType::I8))?;
        Ok((node, 128.0))
    }

    fn signed(&mut self, place: usize) -> Result<(NodeId, f64)> {
        let (x, kind) = (self.id(place)?, self.kind(place)?);
        self.signed_node(x, kind)
    }

    /// Sums of signed bytes along an axis, which stays with length one.
    fn sums(&mut self, bytes: NodeId, axis: usize) -> Result<NodeId> {
        let mut dims = self.node_dims(bytes)?;
        dims[axis] = 1;
        let whole = self.expression(&[bytes], |inputs| inputs[0].clone().cast(DType::I32))?;
        let sums = self.graph().op(&[whole], |tensors| Reduce::new(&tensors[0], Reduction::Sum).axes(&[axis]))?;
        self.reshape(sums, &dims)
    }

    /// `MatMulInteger` with two dynamic operands and one zero point each. For signed bytes `a` and
    /// `b`, the product `(a + p) · (b + q)` is the product of the bytes, plus `q` times the row
    /// sums, plus `p` times the column sums, plus `p · q` times the depth.
    fn product_of_changing_bytes(&mut self) -> LoweredOutputs {
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
