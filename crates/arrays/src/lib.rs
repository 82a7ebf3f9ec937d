//! A compute backend for neural-network libraries: one trait instead of one port for each vendor.
//!
//! A library is written over [`ComputeBackend`] and the typed arrays [`Array1`] to [`Array4`]; the
//! backend chooses the device. There are three backends here: [`HostBackend`] computes with
//! `ndarray` alone, [`RuntimeBackend`] uses every device of the runtime and reports fallbacks, and
//! [`FusedBackend`] does so with one fused graph for all ops up to the next array that is read.
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
//! use panoply_arrays::{Array1, Array2, ComputeBackend, HostBackend, RuntimeBackend};
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
//! The example `ported` (`cargo run -p panoply-arrays --example ported`) has a whole network with
//! its gradients, before and after the port.
//!
//! # Implementing it
//!
//! A backend defines its data type, the copies from and to the host, and runs an [`ArrayOp`]. This
//! backend counts the ops that another backend runs:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use panoply_core::Tensor;
//! use panoply_nn::Result;
//! use panoply_arrays::{Array2, ArrayOp, ComputeBackend, HostBackend};
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
mod fused;
mod host;
mod host_ops;
mod runtime;

use panoply_core::Tensor;
use panoply_core::expr::Program;
use panoply_core::op::compute::{ConvOptions, PoolKind, Reduction};

use panoply_nn::Result;

pub use array::{Array, Array1, Array2, Array3, Array4, Float, Indices};
pub use fused::{FusedBackend, FusedData, GRAPHS_MAX, PENDING_MAX};
pub use host::HostBackend;
pub use runtime::RuntimeBackend;

/// A backend that computes arrays.
pub trait ComputeBackend: Clone + Send + Sync + 'static {
    /// An array of any shape and element type, in any memory. Cloning copies a handle.
    type Data: Clone + Send + Sync;

    /// The name of the backend, for messages.
    fn name(&self) -> String;

    /// Makes an array from a tensor on the host, without a copy if the layout allows it.
    fn upload(&self, tensor: Tensor) -> Result<Self::Data>;

    /// Copies the array to the host, as a contiguous tensor.
    fn download(&self, data: &Self::Data) -> Result<Tensor>;

    /// The array's dimensions.
    fn dims(&self, data: &Self::Data) -> Vec<usize>;

    /// Runs an op. Operands that do not fit are refused. The methods of arrays have already checked
    /// everything that the array types guarantee.
    fn run(&self, op: &ArrayOp, operands: &[&Self::Data]) -> Result<Self::Data>;
}

/// An op on arrays. Operands are in the order in which the variant's comment names them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ArrayOp {
    /// An elementwise expression of operands that are broadcast.
    Map(Program),
    /// The elements in another shape.
    Reshape(Vec<usize>),
    /// The axes in this order: entry `i` is the old axis that becomes axis `i`.
    Permute(Vec<usize>),
    /// Every `step`-th index in `start..end` along an axis.
    Slice {
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// One past the last index that may be taken.
        end: usize,
        /// Distance between two indices.
        step: usize,
    },
    /// Broadcasts the array to a shape.
    Broadcast(Vec<usize>),
    /// A reduction of these axes, which are kept with length one.
    Reduce(Reduction, Vec<usize>),
    /// The product of two matrices, or of two batches of matrices. Either operand may be given
    /// transposed.
    MatMul {
        /// Whether the left operand is transposed.
        transpose_a: bool,
        /// Whether the right operand is transposed.
        transpose_b: bool,
    },
    /// A convolution of images with weights.
    Conv2d(ConvOptions),
    /// A transposed convolution with output images of this height and width.
    ConvTranspose2d(ConvOptions, [usize; 2]),
    /// Pooling of images.
    Pool2d {
        /// The function of a window: its largest element or its average.
        kind: PoolKind,
        /// Height and width of a window.
        kernel: [usize; 2],
        /// Distance between the starts of neighbouring windows.
        stride: [usize; 2],
        /// Number of padding rows and columns: top, left, bottom, right.
        padding: [usize; 4],
    },
    /// Softmax along an axis, or its logarithm.
    Softmax {
        /// The axis.
        axis: usize,
        /// Whether to return the logarithm.
        is_log: bool,
    },
    /// Layer norm over the last axis, with weight and bias.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// Rows of a table, by indices.
    Gather,
    /// Attention of queries, keys and values.
    Attention {
        /// Whether each query attends only to keys up to its own position.
        is_causal: bool,
    },
    /// Ones and zeros in the shape of the operand, a one with probability `keep`. They depend on
    /// the seed and the stream alone, so they are the same on every backend.
    Mask {
        /// The probability of a one.
        keep: f64,
        /// The seed.
        seed: u32,
        /// The name of the stream.
        stream: String,
    },
}
