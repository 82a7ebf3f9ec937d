//! Cases of matrix products.

use panoply::DType;
use panoply::prelude::{Activation, MatMul, Precision};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// The number format of a product's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    F32,
    /// f32, but the device may round the operands to a 10-bit mantissa.
    Tf32,
    F16,
    BF16,
}

impl Numbers {
    /// The operands' element type.
    fn dtype(self) -> DType {
        match self {
            Numbers::F32 | Numbers::Tf32 => DType::F32,
            Numbers::F16 => DType::F16,
            Numbers::BF16 => DType::BF16,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Numbers::Tf32 => "tf32",
            other => other.dtype().name(),
        }
    }
}

/// The product of two square matrices.
pub struct MatMulCase {
    pub numbers: Numbers,
    pub size: usize,
}

impl Case for MatMulCase {
    fn name(&self) -> String {
        format!("matmul/{}/{}", self.numbers.name(), self.size)
    }

    fn amount(&self) -> Amount {
        flops(self.size)
    }

    fn scale(&self) -> Scale {
        match (self.numbers, self.size) {
            (Numbers::Tf32, _) => Scale::Large,
            (_, 0..=256) => Scale::Small,
            (_, 257..=2048) => Scale::Medium,
            _ => Scale::Large,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (dtype, size, mut normals) = (self.numbers.dtype(), self.size, place.normals());
        let (a, b) = (normals.tensor_of(dtype, [size, size])?, normals.tensor_of(dtype, [size, size])?);
        let precision = if self.numbers == Numbers::Tf32 { Precision::Tf32 } else { Precision::Full };
        place.repeat(MatMul::new(&a, &b).precision(precision))
    }
}

/// relu(A·Bᵀ + bias) of square matrices, fused.
pub struct LinearReluCase {
    pub dtype: DType,
    pub size: usize,
}

impl Case for LinearReluCase {
    fn name(&self) -> String {
        format!("linear_relu/{}/{}", self.dtype, self.size)
    }

    fn amount(&self) -> Amount {
        flops(self.size)
    }

    fn scale(&self) -> Scale {
        Scale::Large
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (dtype, size, mut normals) = (self.dtype, self.size, place.normals());
        let (a, b) = (normals.tensor_of(dtype, [size, size])?, normals.tensor_of(dtype, [size, size])?);
        let bias = normals.tensor_of(dtype, [size])?;
        place.repeat(MatMul::new(&a, &b).transpose_b().bias(&bias).activation(Activation::Relu))
    }
}

fn flops(size: usize) -> Amount {
    Amount::Flops(2.0 * (size * size * size) as f64)
}
