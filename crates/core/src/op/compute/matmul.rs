//! MatMul: products of matrices and of batches of matrices, with a fused epilogue.

use super::activation::Activation;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, BatchKey, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Multiplies matrices: `activation(alpha · A·B + beta · C + bias)`, for every element type.
///
/// The last two dimensions are rows and columns. The dimensions before them are a batch and
/// broadcast as in numpy's `matmul`. Reshape a vector to a matrix of one row or one column first.
/// The output has the operands' element type, except that i8 and u8 give i32.
///
/// Sums are kept in f32 for f32, f16 and bf16 (rounded once, after the activation), in f64 for f64,
/// and in complex f32. Integer sums wrap at 32 bits. An engine may add in any order, and may treat
/// subnormal bf16 numbers as zero. NaN and infinity follow from the arithmetic, except that C is
/// not read without [`MatMul::beta`]. An inner dimension of zero gives sums of zero.
#[derive(Clone, Debug)]
pub struct MatMul {
    /// The left operand, `… × m × k`.
    pub a: Tensor,
    /// The right operand, `… × k × n`.
    pub b: Tensor,
    /// Whether the left operand is given as `… × k × m`.
    pub transpose_a: bool,
    /// Whether the right operand is given as `… × n × k`.
    pub transpose_b: bool,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the added tensor.
    pub beta: f32,
    /// The tensor that is scaled by `beta` and added. It broadcasts to the output's shape.
    pub c: Option<Tensor>,
    /// Added last: `n` numbers, one for each column, or `m × 1`, one for each row.
    pub bias: Option<Tensor>,
    /// The function applied to the result. Integers allow none and relu, complex numbers only none.
    pub activation: Activation,
    /// Required precision of products.
    pub precision: Precision,
}

/// Required precision of the products of f32 numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Every product has the full precision of the element type.
    #[default]
    Full,
    /// A device may round f32 operands to ten bits of fraction, which its matrix units multiply
    /// faster. A device without such units computes in full precision.
    Tf32,
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulShape {
    /// The dimensions before the last two.
    pub batch: Shape,
    /// Rows of the left operand and of the output.
    pub m: usize,
    /// Columns of the right operand and of the output.
    pub n: usize,
    /// The inner dimension.
    pub k: usize,
}

impl MatMul {
    /// The plain product of two tensors.
    pub fn new(a: &Tensor, b: &Tensor) -> MatMul {
        MatMul {
            a: a.clone(),
            b: b.clone(),
            transpose_a: false,
            transpose_b: false,
            alpha: 1.0,
            beta: 0.0,
            c: None,
            bias: None,
            activation: Activation::None,
            precision: Precision::Full,
        }
    }

    /// Takes the left operand as `… × k × m`.
    pub fn transpose_a(mut self) -> Self {
        self.transpose_a = true;
        self
    }

    /// Takes the right operand as `… × n × k`.
    pub fn transpose_b(mut self) -> Self {
        self.transpose_b = true;
        self
    }

    /// Scales the product. Integers allow whole numbers only.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// Adds `beta · c`. Integers allow whole numbers only.
    pub fn beta(mut self, beta: f32, c: &Tensor) -> Self {
        self.beta = beta;
        self.c = Some(c.clone());
        self
    }

    /// Adds one number for each column (`n`) or for each row (`m × 1`).
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Applies a function to the result.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Sets the required precision of products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// The operands as views of `… × m × k` and `… × k × n`, however they were given.
    pub fn operands(&self) -> Result<(Tensor, Tensor)> {
        let view = |what, tensor: &Tensor, transposed| {
            matrix_dims(what, tensor, transposed)?;
            if transposed { tensor.transpose() } else { Ok(tensor.clone()) }
        };
        Ok((view("matmul a", &self.a, self.transpose_a)?, view("matmul b", &self.b, self.transpose_b)?))
    }

    /// Checks and returns the sizes.
    pub fn matmul_shape(&self) -> Result<MatMulShape> {
        let (a_batch, [m, k]) = matrix_dims("matmul a", &self.a, self.transpose_a)?;
        let (b_batch, [b_rows, n]) = matrix_dims("matmul b", &self.b, self.transpose_b)?;
        if b_rows != k {
            // The caller's shape: `n` may have any size, and the batch is checked by itself.
            let batch = if b_batch.is_empty() { "" } else { "…, " };
            let matrix = if self.transpose_b { format!("n, {k}") } else { format!("{k}, n") };
            let expected = format!("shape [{batch}{matrix}] for any n");
            return Err(Error::invalid("matmul b", expected, format!("{:?}", self.b.shape().dims())));
        }
        let mismatch =
            |_| Error::ShapeMismatch { what: "matmul batch", expected: a_batch.to_vec(), got: b_batch.to_vec() };
        let batch = Shape::new(a_batch)?.broadcast(&Shape::new(b_batch)?).map_err(mismatch)?;
        Ok(MatMulShape { batch, m, n, k })
    }

    /// The output's shape: the batch, then `m × n`.
    pub fn output_shape(&self) -> Result<Shape> {
        let shape = self.matmul_shape()?;
        shape.batch.joined(&[shape.m, shape.n])
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> DType {
        match self.a.dtype() {
            DType::I8 | DType::U8 => DType::I32,
            same => same,
        }
    }

    fn check_addends(&self) -> Result<()> {
        let (shape, dtype) = (self.matmul_shape()?, self.output_dtype());
        if let Some(c) = &self.c {
            expect_dtype("matmul c", dtype, c)?;
            let expected = self.output_shape()?;
            c.broadcast_to(expected).map_err(|_| Error::ShapeMismatch {
                what: "matmul c",
                expected: expected.to_vec(),
                got: c.shape().to_vec(),
            })?;
        }
        if let Some(bias) = &self.bias {
            expect_dtype("matmul bias", dtype, bias)?;
            if bias.shape().dims() != [shape.n] && bias.shape().dims() != [shape.m, 1] {
                let expected = format!("shape [{}] or [{}, 1]", shape.n, shape.m);
                return Err(Error::invalid("matmul bias", expected, format!("{:?}", bias.shape().dims())));
            }
        }
        Ok(())
    }

    fn check_scalars(&self) -> Result<()> {
        let dtype = self.a.dtype();
        if dtype.is_integer() {
            for (what, factor) in [("matmul alpha", self.alpha), ("matmul beta", self.beta)] {
                let fits = factor.fract() == 0.0 && (-2_147_483_648.0..2_147_483_648.0).contains(&factor);
                if !fits {
                    return Err(Error::invalid(what, "a whole number of 32 bits for integers", factor));
                }
            }
        }
        let allowed: &[Activation] = match dtype {
            DType::Complex64 => &[Activation::None],
            dtype if dtype.is_integer() => &[Activation::None, Activation::Relu],
            _ => return Ok(()),
        };
        if !allowed.contains(&self.activation) {
            let (expected, got) = (format!("one of {allowed:?} for {dtype}"), format!("{:?}", self.activation));
            return Err(Error::invalid("matmul activation", expected, got));
        }
        Ok(())
    }
}

/// The dimensions of an operand: those of the batch, then rows and columns as the product reads
/// them.
fn matrix_dims<'a>(what: &'static str, tensor: &'a Tensor, transposed: bool) -> Result<(&'a [usize], [usize; 2])> {
    match *tensor.shape().dims() {
        [ref batch @ .., columns, rows] if transposed => Ok((batch, [rows, columns])),
        [ref batch @ .., rows, columns] => Ok((batch, [rows, columns])),
        _ => {
            let expected = "at least 2 (reshape a vector to a matrix of one row or one column)".into();
            Err(Error::RankMismatch { what, expected, got: tensor.shape().rank() })
        }
    }
}

impl Describe for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn validate(&self) -> Result<()> {
        expect_dtype("matmul b", self.a.dtype(), &self.b)?;
        self.output_shape()?;
        self.check_addends()?;
        self.check_scalars()
    }

    crate::parts!(a, b, c, bias);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype(), self.output_shape()?))
    }

    /// Number of multiplications.
    fn work(&self) -> u64 {
        let columns = self.b.shape().iter().rev().nth(usize::from(self.transpose_b)).copied().unwrap_or(1);
        (self.a.elements() as u64).saturating_mul(columns as u64)
    }

    /// Products of matrices of the same sizes are joined, if they have no further operands.
    fn batch_key(&self) -> Option<BatchKey> {
        if self.c.is_some() || self.bias.is_some() {
            return None;
        }
        let shapes = (self.a.shape(), self.b.shape(), self.transpose_a, self.transpose_b);
        let scale = (self.alpha.to_bits(), self.activation, self.precision);
        Some(BatchKey::of(("matmul", self.a.dtype(), shapes, scale)))
    }
}

fn expect_dtype(what: &'static str, expected: DType, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        got if got == expected => Ok(()),
        got => Err(Error::DTypeMismatch { what, expected, got }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
        Tensor::zeros(dtype, dims).unwrap()
    }

    fn f32s(dims: &[usize]) -> Tensor {
        zeros(DType::F32, dims)
    }

    #[test]
    fn output_shapes_follow_numpy() {
        let shape = |op: MatMul| op.output_shape().unwrap().to_vec();
        assert_eq!(shape(MatMul::new(&f32s(&[2, 3]), &f32s(&[3, 4]))), [2, 4]);
        assert_eq!(shape(MatMul::new(&f32s(&[3, 2]), &f32s(&[4, 3])).transpose_a().transpose_b()), [2, 4]);
        assert_eq!(shape(MatMul::new(&f32s(&[5, 1, 2, 3]), &f32s(&[7, 3, 4]))), [5, 7, 2, 4]);
        assert_eq!(shape(MatMul::new(&f32s(&[0, 3]), &f32s(&[3, 4]))), [0, 4]);
        assert_eq!(shape(MatMul::new(&f32s(&[2, 0]), &f32s(&[0, 4]))), [2, 4]);
        let bytes = MatMul::new(&zeros(DType::I8, &[2, 3]), &zeros(DType::I8, &[3, 4]));
        assert_eq!(bytes.output_dtype(), DType::I32);
    }

    #[test]
    fn bad_shapes_are_refused() {
        let refused = |op: MatMul| op.validate().unwrap_err();
        let (a, b) = (f32s(&[2, 3]), f32s(&[3, 4]));
        assert!(matches!(refused(MatMul::new(&f32s(&[3]), &b)), Error::RankMismatch { got: 1, .. }));
        assert!(matches!(refused(MatMul::new(&a, &f32s(&[]))), Error::RankMismatch { got: 0, .. }));
        assert!(matches!(refused(MatMul::new(&a, &f32s(&[2, 4]))), Error::InvalidArgument { .. }));
        let batch = MatMul::new(&f32s(&[2, 2, 3]), &f32s(&[3, 3, 4]));
        assert!(matches!(refused(batch), Error::ShapeMismatch { what: "matmul batch", .. }));
        let added = MatMul::new(&a, &b).beta(1.0, &f32s(&[3, 4]));
        assert!(matches!(refused(added), Error::ShapeMismatch { what: "matmul c", .. }));
        let biased = MatMul::new(&a, &b).bias(&f32s(&[5]));
        assert!(matches!(refused(biased), Error::InvalidArgument { what: "matmul bias", .. }));
        let tall = f32s(&[1, 1]).broadcast_to([1 << 31, 1]).unwrap();
        let wide = f32s(&[1, 1]).broadcast_to([1, 1 << 31]).unwrap();
        assert!(matches!(refused(MatMul::new(&tall, &wide)), Error::SizeOverflow { .. }));
    }

    /// Regression: the expected shape had the second matrix's own columns, as if they had to be so
    /// many, and a transposed matrix was shown as if it were not.
    #[test]
    fn a_dimension_that_may_have_any_size_is_a_letter() {
        let text = |op: MatMul| op.validate().unwrap_err().to_string();
        let (a, b) = (f32s(&[2, 4]), f32s(&[3, 5]));
        assert_eq!(text(MatMul::new(&a, &b)), "matmul b: expected shape [4, n] for any n, got [3, 5]");
        let turned = text(MatMul::new(&a, &b).transpose_b());
        assert_eq!(turned, "matmul b: expected shape [n, 4] for any n, got [3, 5]");
        let batch = text(MatMul::new(&a, &f32s(&[7, 3, 5])));
        assert_eq!(batch, "matmul b: expected shape […, 4, n] for any n, got [7, 3, 5]");
        let bias = text(MatMul::new(&a, &f32s(&[4, 5])).bias(&f32s(&[3])));
        assert_eq!(bias, "matmul bias: expected shape [5] or [2, 1], got [3]");
    }

    #[test]
    fn bad_types_and_scalars_are_refused() {
        let (a, b) = (zeros(DType::I32, &[2, 3]), zeros(DType::I32, &[3, 4]));
        let op = || MatMul::new(&a, &b);
        let mixed = MatMul::new(&a, &f32s(&[3, 4])).validate();
        assert!(matches!(mixed, Err(Error::DTypeMismatch { what: "matmul b", .. })));
        for bad in [0.5, f32::NAN, f32::INFINITY, 3e9] {
            assert!(matches!(op().alpha(bad).validate(), Err(Error::InvalidArgument { .. })), "{bad}");
        }
        assert!(op().alpha(-3.0).activation(Activation::Relu).validate().is_ok());
        assert!(matches!(op().activation(Activation::Gelu).validate(), Err(Error::InvalidArgument { .. })));
        let complex = zeros(DType::Complex64, &[2, 2]);
        let relu = MatMul::new(&complex, &complex).activation(Activation::Relu).validate();
        assert!(matches!(relu, Err(Error::InvalidArgument { .. })));
        assert!(op().bias(&zeros(DType::F32, &[4])).validate().is_err());
        assert!(op().bias(&zeros(DType::I32, &[2, 1])).validate().is_ok());
    }
}
