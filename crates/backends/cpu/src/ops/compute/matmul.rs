//! MatMul: passes views of the operands to the packed product. A batch with one right operand
//! becomes one product with more rows.

use std::borrow::Cow;

use panoply_core::op::compute::{Activation, MatMul, MatMulShape};
use panoply_core::{Complex64, DType, Element, Error, Result, Shape, Tensor, Value, bf16, f16};

use crate::context::Context;
use crate::gemm::{Accumulator, BatchItem, Bias, Epilogue, Gemm, Isa, MatRef, OutOfMemory, Output, Product, Workspace};
use crate::ops::compute::transpose::copy_view;
use crate::states::OpState;
use crate::weights::{Matrix, Weights};

impl OpState for Workspace {}

pub(crate) fn run(op: &MatMul, context: &mut Context) -> Result<Value> {
    match op.a.dtype() {
        DType::F32 => product::<f32, f32, f32, f32>(op, context, |scale| scale),
        DType::F16 => product::<f16, f16, f16, f16>(op, context, |scale| scale),
        DType::BF16 => product::<bf16, bf16, bf16, bf16>(op, context, |scale| scale),
        DType::F64 => product::<f64, f64, f64, f64>(op, context, f64::from),
        DType::Complex64 => product::<Complex64, Complex64, Complex64, Complex64>(op, context, |scale| scale),
        DType::I32 => product::<i32, i32, i32, i32>(op, context, |scale| scale as i32),
        // Modulo 2^32, the products of signed and of unsigned numbers are the same.
        DType::U32 => product::<u32, i32, u32, i32>(op, context, |scale| scale as i32),
        DType::I8 => product::<i8, i8, i32, i32>(op, context, |scale| scale as i32),
        DType::U8 => product::<u8, u8, i32, i32>(op, context, |scale| scale as i32),
    }
}

type Scale<R> = <<R as crate::gemm::Operand>::Acc as Accumulator>::Scale;

/// Computes the product of `S`s, multiplied as `T`s, with results `R` that are stored as `D`s.
fn product<S: Element, T: Product<R>, D: Element, R: Output<Acc = T::Acc>>(
    op: &MatMul,
    context: &mut Context,
    scale: impl Fn(f32) -> Scale<R>,
) -> Result<Value> {
    let shape = op.matmul_shape()?;
    let output_shape = op.output_shape()?;
    let (a, b) = op.operands()?;
    let a = Operand::new(&a, &shape.batch, [shape.m, shape.k], context)?;
    let b = Operand::new(&b, &shape.batch, [shape.k, shape.n], context)?;
    let c = match &op.c {
        Some(c) => Some(Operand::new(c, &shape.batch, [shape.m, shape.n], context)?),
        None => None,
    };
    let bias = op.bias.as_ref().map(|bias| context.contiguous::<D>(bias)).transpose()?;
    let bias: Option<&[R]> = bias.as_ref().map(|bias| bytemuck::cast_slice(bias));
    let per_row = op.bias.as_ref().is_some_and(|bias| bias.shape().rank() == 2);
    let epilogue = Epilogue {
        alpha: scale(op.alpha),
        add: None,
        bias: bias.map(|bias| if per_row { Bias::PerRow(bias) } else { Bias::PerColumn(bias) }),
        // An unsigned number is never below zero, so Relu must not interpret its bits as signed.
        activation: if S::DTYPE == DType::U32 { Activation::None } else { op.activation },
    };
    let mut output = context.output::<D>(output_shape)?;
    let parts = MatMulOperands { shape, a, b, c, beta: scale(op.beta), epilogue };
    let for_one_row = parts.shape.m == 1 && parts.shape.batch.elements() == 1;
    let (weights, workspace) = context.states.pair::<Weights, Workspace>();
    let right = parts.b.as_one_matrix(for_one_row).and_then(|matrix| weights.right(matrix));
    let mut gemm = Gemm::new(&context.team, workspace).with_isa(Isa::at_level(context.simd)).with_packed_right(right);
    parts.multiply::<S, T, D>(&mut gemm, bytemuck::cast_slice_mut(&mut output))?;
    output.into_tensor().map(Value::Tensor)
}

/// The operands and parameters of a product.
struct MatMulOperands<'a, R: Output> {
    shape: MatMulShape,
    a: Operand<'a>,
    b: Operand<'a>,
    c: Option<Operand<'a>>,
    beta: Scale<R>,
    epilogue: Epilogue<'a, R>,
}

impl<R: Output> MatMulOperands<'_, R> {
    fn multiply<S: Element, T: Product<R, Acc = R::Acc>, D: Element>(
        &self,
        gemm: &mut Gemm<'_>,
        output: &mut [R],
    ) -> Result<()> {
        let a: &[T] = bytemuck::cast_slice(self.a.tensor.host_elements::<S>()?);
        let b: &[T] = bytemuck::cast_slice(self.b.tensor.host_elements::<S>()?);
        let c: Option<&[R]> = match &self.c {
            Some(c) => Some(bytemuck::cast_slice(c.tensor.host_elements::<D>()?)),
            None => None,
        };
        let count = self.shape.batch.elements();
        if output.is_empty() {
            return Ok(());
        }
        let folds = count == 1 || (self.b.is_one_matrix() && self.rows_fold());
        let (count, m) = if folds { (1, count * self.shape.m) } else { (count, self.shape.m) };
        let (n, k) = (self.shape.n, self.shape.k);
        // Every view is checked before the first product, so that a batch cannot fail halfway.
        let item = |index: usize| {
            let mut epilogue = self.epilogue;
            if let (Some(operand), Some(elements)) = (&self.c, c) {
                epilogue.add = Some((self.beta, operand.matrix(elements, index, m, n)?));
            }
            Some(BatchItem { a: self.a.matrix(a, index, m, k)?, b: self.b.matrix(b, index, k, n)?, epilogue })
        };
        let outside = || Error::invalid("matmul", "operands inside their buffers", "a view outside");
        let done = if count == 1 {
            let only = item(0).ok_or_else(outside)?;
            gemm.multiply(only.a, only.b, &only.epilogue, output, n)
        } else {
            let items: Option<Vec<BatchItem<'_, T, R>>> = (0..count).map(item).collect();
            let items = items.ok_or_else(outside)?;
            let pick = |index: usize| {
                let BatchItem { a, b, epilogue } = &items[index];
                BatchItem { a: *a, b: *b, epilogue: *epilogue }
            };
            gemm.multiply_batch(count, &pick, output)
        };
        done.map_err(|OutOfMemory { asked_bytes }| Error::OutOfMemory {
            place: "the host".to_owned(),
            asked: asked_bytes as u64,
            free: 0,
            largest: 0,
        })
    }

    /// Whether the rows of all matrices of the batch have the same stride, so that they are the
    /// rows of one matrix.
    fn rows_fold(&self) -> bool {
        let addend_folds = self.c.as_ref().is_none_or(|c| c.rows_fold(self.shape.m));
        self.a.rows_fold(self.shape.m) && addend_folds && !matches!(self.epilogue.bias, Some(Bias::PerRow(_)))
    }
}

/// A batch of matrices without negative strides.
struct Operand<'a> {
    tensor: Cow<'a, Tensor>,
    batch: Shape,
}

impl<'a> Operand<'a> {
    /// The tensor broadcast to `batch` matrices of `matrix`.
    fn new(tensor: &Tensor, batch: &Shape, matrix: [usize; 2], context: &mut Context) -> Result<Operand<'a>> {
        let backwards = tensor.strides().iter().any(|step| *step < 0);
        let forwards = if backwards { copy_view(tensor, context)? } else { tensor.clone() };
        Ok(Operand { tensor: Cow::Owned(forwards.broadcast_to(batch.joined(&matrix)?)?), batch: *batch })
    }

    /// The stride of an axis, which is never negative; see [`Operand::new`].
    fn stride(&self, axis: usize) -> usize {
        self.tensor.strides()[axis].unsigned_abs()
    }

    fn is_one_matrix(&self) -> bool {
        (0..self.batch.rank()).all(|axis| self.batch[axis] == 1 || self.stride(axis) == 0)
    }

    /// The identity of the operand, if it is a single matrix.
    fn as_one_matrix(&self, for_one_row: bool) -> Option<Matrix> {
        let (rank, start) = (self.batch.rank(), self.tensor.host_bytes().ok()?.as_ptr() as usize);
        let (dims, strides) = ([rank, rank + 1].map(|axis| self.tensor.shape()[axis]), [rank, rank + 1]);
        let strides = strides.map(|axis| self.stride(axis));
        let (offset, dtype) = (self.tensor.offset(), self.tensor.dtype());
        self.is_one_matrix().then_some(Matrix { start, offset, dtype, dims, strides, for_one_row })
    }

    /// Whether the batch continues the rows of a matrix of `rows` rows with the same stride.
    fn rows_fold(&self, rows: usize) -> bool {
        let rank = self.batch.rank();
        let mut step = self.stride(rank) * rows;
        (0..rank).rev().all(|axis| {
            let fits = self.batch[axis] == 1 || self.stride(axis) == step;
            step *= self.batch[axis];
            fits
        })
    }

    /// Matrix `index` of the batch, with `rows` rows.
    fn matrix<'e, T>(&self, elements: &'e [T], index: usize, rows: usize, cols: usize) -> Option<MatRef<'e, T>> {
        let (mut rest, mut offset) = (index, self.tensor.offset());
        for axis in (0..self.batch.rank()).rev() {
            offset += rest % self.batch[axis] * self.stride(axis);
            rest /= self.batch[axis];
        }
        let rank = self.batch.rank();
        let elements = if rows == 0 || cols == 0 { &[] } else { elements.get(offset..)? };
        MatRef::new(elements, rows, cols, self.stride(rank), self.stride(rank + 1))
    }
}
