//! A compute backend for neural-network libraries: one trait instead of one port for each vendor.
//!
//! A library is written over [`ComputeBackend`] and the typed arrays [`Array1`] to [`Array4`]; which device computes is the backend's
//! business. Two are here: [`HostBackend`] is `ndarray` and nothing else, [`RuntimeBackend`] is every device of the runtime, with
//! fallbacks that it reports.
//!
//! # Consuming it: a network that used `ndarray` only
//!
//! A layer written with `ndarray`:
//!
//! ```
//! use ndarray::{Array1, Array2};
//!
//! struct Dense { weight: Array2<f32>, bias: Array1<f32> }
//!
//! impl Dense {
//!     fn forward(&self, x: &Array2<f32>) -> Array2<f32> {
//!         (x.dot(&self.weight) + &self.bias).mapv(|value| value.max(0.0))
//!     }
//! }
//! # let layer = Dense { weight: Array2::ones((2, 2)), bias: Array1::zeros(2) };
//! # assert_eq!(layer.forward(&Array2::ones((1, 2)))[[0, 0]], 2.0);
//! ```
//!
//! The same over any backend, fed with the same arrays:
//!
//! ```
//! use ndarray::{arr1, arr2};
//! use panoply_nn::backend::{Array1, Array2, ComputeBackend, HostBackend, RuntimeBackend};
//! # use std::sync::Arc;
//!
//! struct Dense<B: ComputeBackend> { weight: Array2<B>, bias: Array1<B> }
//!
//! impl<B: ComputeBackend> Dense<B> {
//!     fn new(backend: &B, weight: ndarray::Array2<f32>, bias: ndarray::Array1<f32>) -> panoply_nn::Result<Self> {
//!         Ok(Dense { weight: Array2::from_ndarray(backend, weight)?, bias: Array1::from_ndarray(backend, bias)? })
//!     }
//!
//!     fn forward(&self, x: &Array2<B>) -> panoply_nn::Result<Array2<B>> {
//!         x.matmul(&self.weight)?.add(&self.bias)?.relu()
//!     }
//! }
//!
//! fn answer<B: ComputeBackend>(backend: &B) -> panoply_nn::Result<ndarray::ArrayD<f32>> {
//!     let layer = Dense::new(backend, arr2(&[[1.0, -1.0], [2.0, 0.5]]), arr1(&[0.5, 0.0]))?;
//!     layer.forward(&Array2::from_ndarray(backend, arr2(&[[1.0, 3.0]]))?)?.to_ndarray()
//! }
//!
//! let on_host = answer(&HostBackend::new())?;
//! assert_eq!(on_host, arr2(&[[7.5, 0.5]]).into_dyn());
//!
//! # let runtime = panoply_runtime::Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//! let backend = RuntimeBackend::new(Arc::new(runtime));
//! assert_eq!(answer(&backend)?, on_host);
//! assert!(backend.fallbacks().is_empty(), "no device had to be replaced");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A whole network with its gradients, before and after, is the example `ported` (`cargo run -p panoply-nn --example ported`).
//!
//! # Implementing it
//!
//! A backend says what its data is, how it comes from the host and goes back, and runs an [`ArrayOp`]. One that counts what another one runs:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use panoply_core::Tensor;
//! use panoply_nn::Result;
//! use panoply_nn::backend::{Array2, ArrayOp, ComputeBackend, HostBackend};
//!
//! #[derive(Clone)]
//! struct Counted<B> { inner: B, ops: Arc<AtomicUsize> }
//!
//! impl<B: ComputeBackend> ComputeBackend for Counted<B> {
//!     type Data = B::Data;
//!     fn name(&self) -> String { format!("{}, counted", self.inner.name()) }
//!     fn upload(&self, tensor: Tensor) -> Result<B::Data> { self.inner.upload(tensor) }
//!     fn download(&self, data: &B::Data) -> Result<Tensor> { self.inner.download(data) }
//!     fn dims(&self, data: &B::Data) -> Vec<usize> { self.inner.dims(data) }
//!     fn run(&self, op: &ArrayOp, operands: &[&B::Data]) -> Result<B::Data> {
//!         self.ops.fetch_add(1, Ordering::Relaxed);
//!         self.inner.run(op, operands)
//!     }
//! }
//!
//! let backend = Counted { inner: HostBackend::new(), ops: Arc::default() };
//! let x = Array2::from_vec(&backend, vec![1.0_f32, -2.0, 3.0, -4.0], [2, 2])?;
//! assert_eq!(x.relu()?.matmul(&x)?.to_vec()?, [1.0, -2.0, 3.0, -6.0]);
//! assert_eq!(backend.ops.load(Ordering::Relaxed), 2);
//! # Ok::<(), panoply_nn::Error>(())
//! ```

mod array;
mod host;
mod host_ops;
mod runtime;

use panoply_core::Tensor;
use panoply_core::expr::Program;
use panoply_core::op::compute::{ConvOptions, PoolKind, Reduction};

use crate::error::Result;

pub use array::{Array, Array1, Array2, Array3, Array4, Float, Indices};
pub use host::HostBackend;
pub use runtime::RuntimeBackend;

/// What computes arrays.
pub trait ComputeBackend: Clone + Send + Sync + 'static {
    /// An array of any shape and element type, wherever it is. Cloning copies a handle.
    type Data: Clone + Send + Sync;

    /// What it is, in words.
    fn name(&self) -> String;

    /// An array from a tensor on the host, without a copy where the layout allows.
    fn upload(&self, tensor: Tensor) -> Result<Self::Data>;

    /// The array as a contiguous tensor on the host.
    fn download(&self, data: &Self::Data) -> Result<Tensor>;

    /// The array's dimensions.
    fn dims(&self, data: &Self::Data) -> Vec<usize>;

    /// Runs an op. Operands that do not fit are refused; the arrays' own methods have checked what their types tell.
    fn run(&self, op: &ArrayOp, operands: &[&Self::Data]) -> Result<Self::Data>;
}

/// What can be done with arrays. Operands are in the order of the words.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ArrayOp {
    /// An elementwise expression of operands that broadcast.
    Map(Program),
    /// The elements in another shape.
    Reshape(Vec<usize>),
    /// The axes in this order.
    Permute(Vec<usize>),
    /// Every `step`-th index from `start` below `end` along an axis.
    Slice {
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// One more than the last index that may be taken.
        end: usize,
        /// From one index to the next.
        step: usize,
    },
    /// Stretched to a shape.
    Broadcast(Vec<usize>),
    /// A reduction of these axes, which stay with a length of one.
    Reduce(Reduction, Vec<usize>),
    /// The product of matrices, or of batches of these; either operand may be given transposed.
    MatMul {
        /// The left one is.
        transpose_a: bool,
        /// The right one is.
        transpose_b: bool,
    },
    /// A convolution of images with weights.
    Conv2d(ConvOptions),
    /// A transposed convolution to images of this height and width.
    ConvTranspose2d(ConvOptions, [usize; 2]),
    /// Pooling of images.
    Pool2d {
        /// What becomes of a window.
        kind: PoolKind,
        /// Height and width of a window.
        kernel: [usize; 2],
        /// Steps between windows.
        stride: [usize; 2],
        /// Rows and columns beside the image: top, left, bottom, right.
        padding: [usize; 4],
    },
    /// Softmax along an axis, or its logarithm.
    Softmax {
        /// The axis.
        axis: usize,
        /// Whether the logarithm is wanted.
        is_log: bool,
    },
    /// Layer norm of the last axis, with weight and bias.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// Rows of a table, by indices.
    Gather,
    /// Attention of queries, keys and values.
    Attention {
        /// Whether no query sees keys behind its own.
        is_causal: bool,
    },
    /// Ones and zeros in the shape of the operand, a one with probability `keep`: numbers of a seed and a stream, the same everywhere.
    Mask {
        /// The probability of a one.
        keep: f64,
        /// The seed.
        seed: u32,
        /// The stream.
        stream: String,
    },
}
