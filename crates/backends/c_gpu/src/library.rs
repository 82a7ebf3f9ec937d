//! What a vendor's libraries can do for an op, each a trait of its own: a device has any of them, or none.
//!
//! A library answers a problem with a plan, or with nothing; the op that asked then takes its own kernels. Plans are kept by the
//! library and are cheap to hand out again. Everything is queued on the compute stream.

use std::rc::Rc;

use panoply_core::op::compute::Activation;
use panoply_core::{DType, Health, Result};

use crate::driver::Address;

/// Products of matrices (cuBLASLt, hipBLASLt).
pub trait Products {
    /// A plan for a problem; nothing where the library does not take it.
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, has_c: bool) -> Option<Rc<dyn ProductPlan>>;
}

/// A way to multiply, for one problem.
pub trait ProductPlan {
    /// Scratch that [`ProductPlan::multiply`] wants.
    fn workspace_bytes(&self) -> usize;

    /// How many ways there are of which none was chosen yet; one where there is nothing to choose.
    fn ways(&self) -> usize {
        1
    }

    /// Takes this way from now on. Where it is for good there is nothing left to choose.
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

/// How a matrix lies.
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
    /// Which way it is contiguous.
    pub order: Order,
    /// From one row (or column) to the next, in elements.
    pub step: i64,
    /// From one matrix to the next, in elements; 0 where all are the same.
    pub batch_step: i64,
}

/// The sizes and types of a product. The output lies row by row without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductProblem {
    /// Of the factors.
    pub dtype: DType,
    /// Whether f32 may be rounded to tf32.
    pub tf32: bool,
    /// Of the output.
    pub output: DType,
    /// Rows of A and of the output.
    pub m: usize,
    /// Columns of B and of the output.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// How many products.
    pub batches: usize,
    /// The left factors.
    pub a: Matrix,
    /// The right factors.
    pub b: Matrix,
    /// What every matrix' address is a multiple of; see [`alignment`]. The library loads no wider words than it allows.
    pub align_bytes: u32,
}

/// Libraries tell no addresses apart that are multiples of this.
const ALIGN_BYTES_MAX: u64 = 256;

/// The largest power of two that divides all addresses, up to what libraries care about.
pub(crate) fn alignment(addresses: impl IntoIterator<Item = Address>) -> u32 {
    let joined = addresses.into_iter().fold(ALIGN_BYTES_MAX, |joined, address| joined | address.0);
    1 << joined.trailing_zeros()
}

/// What the library does to its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds a row.
    Bias,
    /// `max(x, 0)`.
    Relu,
    /// Both, in this order.
    ReluBias,
}

/// Convolutions and their gradients (cuDNN, MIOpen). Which plan is best is timed by the op, once for each problem, and kept here.
pub trait Convolutions {
    /// Plans for a problem, the most promising first; why there is none.
    fn plans(&self, problem: &ConvolutionProblem) -> Result<Vec<Rc<dyn ConvolutionPlan>>, String>;

    /// What was chosen for a problem: nothing yet, or a plan, or that there is none.
    fn choice(&self, problem: &ConvolutionProblem) -> Option<Option<Rc<dyn ConvolutionPlan>>>;

    /// Keeps the plan for a problem, or that there is none.
    fn choose(&self, problem: ConvolutionProblem, plan: Option<Rc<dyn ConvolutionPlan>>);

    /// Whether plans for images with their channels last add a residual and apply relu or gelu before they round.
    fn fuses(&self) -> bool {
        false
    }
}

/// A way to convolve, for one problem.
pub trait ConvolutionPlan {
    /// What it was made for.
    fn problem(&self) -> &ConvolutionProblem;

    /// Scratch that [`ConvolutionPlan::run`] wants.
    fn workspace_bytes(&self) -> usize;

    /// Queues it; why the library refuses.
    fn run(&self, tensors: &ConvolutionTensors, workspace: Address) -> Result<(), String>;

    /// The library's name for it, for messages.
    fn name(&self) -> String;
}

/// What the library may assume of every address of a convolution.
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

/// The sizes and types of a convolution. Dimensions are `batch × channels × height × width`, however they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionProblem {
    /// Of all tensors.
    pub dtype: DType,
    /// What is computed.
    pub kind: ConvolutionKind,
    /// Whether the channels of a pixel lie side by side.
    pub channels_last: bool,
    /// Dimensions of the input.
    pub input: [i64; 4],
    /// Of the weights.
    pub weights: [i64; 4],
    /// Of the output.
    pub output: [i64; 4],
    /// From one output pixel to the next, in input pixels.
    pub stride: [i64; 2],
    /// From one tap to the next.
    pub dilation: [i64; 2],
    /// Zeros above and to the left, and below and to the right.
    pub padding: [[i64; 2]; 2],
    /// Whether a bias is added, one number for each channel of the output.
    pub has_bias: bool,
    /// Whether a tensor that lies like the output is added.
    pub has_residual: bool,
    /// What follows: none, relu or gelu.
    pub activation: Activation,
}

/// Where the tensors of a convolution are.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionTensors {
    /// The image.
    pub input: Address,
    /// The filters.
    pub weights: Address,
    /// The result, or its gradient.
    pub output: Address,
    /// One number for each filter.
    pub bias: Option<Address>,
    /// What is added to the result.
    pub residual: Option<Address>,
}

/// Fourier transforms of contiguous lines (cuFFT, rocFFT).
pub trait Transforms {
    /// The plan for `lines` lines of `len` elements, which counts the real ones where one side is real; nothing where the library
    /// does not take it.
    fn plan(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>>;

    /// The same for numbers in f64; nothing where the library is not asked for them.
    fn plan_wide(&self, _len: usize, _lines: usize, _kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        None
    }
}

/// A way to transform, for one length.
pub trait TransformPlan {
    /// Scratch that [`TransformPlan::run`] wants.
    fn workspace_bytes(&self) -> usize;

    /// Queues it.
    fn run(&self, source: Address, target: Address, workspace: Address) -> Result<()>;
}

/// What is transformed into what. Nothing is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformKind {
    /// Complex signals to spectra.
    Forward,
    /// Spectra to complex signals.
    Inverse,
    /// Real signals to halves of spectra. The source starts on 8 bytes.
    FromReal,
    /// Halves of spectra to real signals. The source is overwritten.
    ToReal,
}

/// How a device is (NVML, ROCm SMI).
pub trait Sensors {
    /// What they say now.
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
