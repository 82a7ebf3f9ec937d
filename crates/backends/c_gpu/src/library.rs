//! The operations of a vendor's libraries that ops can use, each as a separate trait. A device may
//! have any of them, or none.
//!
//! A library answers a problem with a plan, or with `None`; the op then uses its own kernels. The
//! library caches its plans, so that asking again is cheap. Everything is queued on the compute
//! stream.

use std::rc::Rc;

use panoply_core::op::compute::Activation;
use panoply_core::{DType, Health, Result};

use crate::driver::Address;

/// Matrix products (cuBLASLt, hipBLASLt).
pub trait Products {
    /// A plan for a problem; `None` if the library does not support the problem.
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, has_c: bool) -> Option<Rc<dyn ProductPlan>>;
}

/// A plan of the multiplication for one problem.
pub trait ProductPlan {
    /// Bytes of scratch memory that [`ProductPlan::multiply`] needs.
    fn workspace_bytes(&self) -> usize;

    /// Number of candidate algorithms while none has been chosen; 1 if there is nothing to choose.
    fn ways(&self) -> usize {
        1
    }

    /// Selects an algorithm from now on. If the choice is final, no candidates are left.
    fn take(&self, _way: usize, _for_good: bool) {}

    /// Queues `D = epilogue(alpha · A·B + beta · C)`. The addresses are those of A, B, C and D.
    fn multiply(
        &self,
        factors: [f32; 2],
        addresses: [Address; 4],
        bias: Option<Address>,
        workspace: Address,
    ) -> Result<()>;
}

/// The storage order of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Each row contiguous.
    Rows,
    /// Each column contiguous.
    Columns,
}

/// A batch of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The contiguous direction.
    pub order: Order,
    /// Distance between rows (or columns), in elements.
    pub step: i64,
    /// Distance between matrices, in elements; 0 if all are the same matrix.
    pub batch_step: i64,
}

/// The sizes and types of a product. The output is row-major without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductProblem {
    /// Type of the factors.
    pub dtype: DType,
    /// Whether f32 may be rounded to tf32.
    pub tf32: bool,
    /// Type of the output.
    pub output: DType,
    /// Rows of A and of the output.
    pub m: usize,
    /// Columns of B and of the output.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Number of products.
    pub batches: usize,
    /// The left factors.
    pub a: Matrix,
    /// The right factors.
    pub b: Matrix,
    /// Common alignment of the addresses of all matrices; see [`alignment`]. The library loads no
    /// wider words than this allows.
    pub align_bytes: u32,
}

/// Maximum alignment that libraries distinguish.
const ALIGN_BYTES_MAX: u64 = 256;

/// The largest power of two that divides all addresses, up to the maximum that libraries
/// distinguish.
pub(crate) fn alignment(addresses: impl IntoIterator<Item = Address>) -> u32 {
    let joined = addresses.into_iter().fold(ALIGN_BYTES_MAX, |joined, address| joined | address.0);
    1 << joined.trailing_zeros()
}

/// The fused epilogue of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds a bias row.
    Bias,
    /// `max(x, 0)`.
    Relu,
    /// Adds a bias row, then applies `max(x, 0)`.
    ReluBias,
}

/// Convolutions and their gradients (cuDNN, MIOpen). The op times the plans once for each problem,
/// and stores its choice here.
pub trait Convolutions {
    /// Plans for a problem, the most promising first; the error is the reason why there are none.
    fn plans(&self, problem: &ConvolutionProblem) -> Result<Vec<Rc<dyn ConvolutionPlan>>, String>;

    /// The choice for a problem: `None` if not yet made, else the plan, or `None` if no plan is
    /// used.
    fn choice(&self, problem: &ConvolutionProblem) -> Option<Option<Rc<dyn ConvolutionPlan>>>;

    /// Stores the chosen plan for a problem, or that no plan is used.
    fn choose(&self, problem: ConvolutionProblem, plan: Option<Rc<dyn ConvolutionPlan>>);

    /// Whether plans for channels-last (NHWC) images add a residual and apply relu or gelu before
    /// rounding.
    fn fuses(&self) -> bool {
        false
    }
}

/// A plan of the convolution for one problem.
pub trait ConvolutionPlan {
    /// The problem of the plan.
    fn problem(&self) -> &ConvolutionProblem;

    /// Bytes of scratch memory that [`ConvolutionPlan::run`] needs.
    fn workspace_bytes(&self) -> usize;

    /// Queues the convolution; the error is the library's reason for a refusal.
    fn run(&self, tensors: &ConvolutionTensors, workspace: Address) -> Result<(), String>;

    /// The library's name for the plan, for messages.
    fn name(&self) -> String;
}

/// Alignment that the library may assume of every address of a convolution.
pub const CONVOLUTION_ALIGN_BYTES: u64 = 16;

/// A convolution or one of its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// The output.
    Forward,
    /// The gradient of the input.
    Input,
    /// The gradient of the weights.
    Weights,
}

/// The sizes and types of a convolution. Dimensions are `batch × channels × height × width` in any
/// memory layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionProblem {
    /// Type of all tensors.
    pub dtype: DType,
    /// The quantity to compute.
    pub kind: ConvolutionKind,
    /// Whether tensors are channels-last (NHWC).
    pub channels_last: bool,
    /// Dimensions of the input.
    pub input: [i64; 4],
    /// Dimensions of the weights.
    pub weights: [i64; 4],
    /// Dimensions of the output.
    pub output: [i64; 4],
    /// Distance between output pixels, in input pixels.
    pub stride: [i64; 2],
    /// Distance between taps, in input pixels.
    pub dilation: [i64; 2],
    /// Padding with zeros: above and left, then below and right.
    pub padding: [[i64; 2]; 2],
    /// Whether a bias is added: one number for each channel of the output.
    pub has_bias: bool,
    /// Whether a residual is added: a tensor with the layout of the output.
    pub has_residual: bool,
    /// The fused activation: none, relu or gelu.
    pub activation: Activation,
}

/// The addresses of a convolution's tensors.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionTensors {
    /// The image.
    pub input: Address,
    /// The filters.
    pub weights: Address,
    /// The result, or its gradient.
    pub output: Address,
    /// The bias: one number for each filter.
    pub bias: Option<Address>,
    /// The residual, which is added to the result.
    pub residual: Option<Address>,
}

/// Fourier transforms of contiguous lines (cuFFT, rocFFT).
pub trait Transforms {
    /// The plan for `lines` lines of `len` elements. If one side is real, `len` counts the real
    /// elements. `None` if the library does not support the problem.
    fn plan(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>>;

    /// The same in f64; `None` if the library is not used for f64.
    fn plan_wide(&self, _len: usize, _lines: usize, _kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        None
    }
}

/// A plan of the transform for one length.
pub trait TransformPlan {
    /// Bytes of scratch memory that [`TransformPlan::run`] needs.
    fn workspace_bytes(&self) -> usize;

    /// Queues the transform.
    fn run(&self, source: Address, target: Address, workspace: Address) -> Result<()>;
}

/// The kind of a transform. Results are not scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformKind {
    /// Complex signals to spectra.
    Forward,
    /// Spectra to complex signals.
    Inverse,
    /// Real signals to half spectra. The source is aligned to 8 bytes.
    FromReal,
    /// Half spectra to real signals. The source is overwritten.
    ToReal,
}

/// The health of a device (NVML, ROCm SMI).
pub trait Sensors {
    /// The present readings.
    fn health(&self) -> Health;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_aligned_address_counts() {
        let of = |addresses: &[u64]| alignment(addresses.iter().map(|address| Address(*address)));
        assert_eq!(of(&[1 << 20, 512, 0x7f00]), 256);
        assert_eq!(of(&[1 << 20, 512 + 16, 256]), 16);
        assert_eq!(of(&[258, 512, 260]), 2);
        assert_eq!(of(&[]), 256);
    }
}
