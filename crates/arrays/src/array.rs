//! Arrays whose element type and number of dimensions are part of their Rust type.

use std::marker::PhantomData;

use ndarray::{ArrayD, Dimension};
use panoply_core::expr::{BinaryOp, Expr, UnaryOp};
use panoply_core::op::compute::{ConvOptions, PoolKind, Reduction};
use panoply_core::{DType, Element, Tensor, bf16, f16};

use crate::{ArrayOp, ComputeBackend};
use panoply_nn::{Error, Result};

/// The float element types of arrays: f32, f16, bf16.
pub trait Float: Element {}

impl Float for f32 {}
impl Float for f16 {}
impl Float for bf16 {}

/// An array of `D` dimensions on a backend. Cloning copies a handle.
#[derive(Clone)]
pub struct Array<B: ComputeBackend, T: Element, const D: usize> {
    backend: B,
    data: B::Data,
    shape: [usize; D],
    element: PhantomData<T>,
}

/// A vector.
pub type Array1<B, T = f32> = Array<B, T, 1>;
/// A matrix.
pub type Array2<B, T = f32> = Array<B, T, 2>;
/// A batch of matrices.
pub type Array3<B, T = f32> = Array<B, T, 3>;
/// A batch of images: batch, channels, height, width.
pub type Array4<B, T = f32> = Array<B, T, 4>;
/// Indices of rows or classes.
pub type Indices<B, const D: usize> = Array<B, u32, D>;

impl<B: ComputeBackend, T: Element, const D: usize> Array<B, T, D> {
    /// Makes an array of these elements, in row-major order.
    pub fn from_vec(backend: &B, values: Vec<T>, shape: [usize; D]) -> Result<Self> {
        Self::from_tensor(backend, Tensor::from_vec(values, shape)?)
    }

    /// Makes an array of the elements of a tensor on the host.
    pub fn from_tensor(backend: &B, tensor: Tensor) -> Result<Self> {
        if tensor.dtype() != T::DTYPE {
            return Err(Error::invalid("array: element type", T::DTYPE.to_string(), tensor.dtype()));
        }
        Self::of(backend.clone(), backend.upload(tensor)?)
    }

    /// Makes an array of an `ndarray`. A row-major `ndarray` is taken over without a copy; other
    /// layouts are copied.
    pub fn from_ndarray<I: Dimension>(backend: &B, array: ndarray::Array<T, I>) -> Result<Self> {
        let dims = array.shape().to_vec();
        let (values, offset) = match array.is_standard_layout() {
            true => array.into_raw_vec_and_offset(),
            false => (array.iter().copied().collect(), Some(0)),
        };
        let count: usize = dims.iter().product();
        let values = match offset.unwrap_or(0) {
            0 if values.len() == count => values,
            start => values.into_iter().skip(start).take(count).collect(),
        };
        Self::from_tensor(backend, Tensor::from_vec(values, dims)?)
    }

    /// The elements as an `ndarray`.
    pub fn to_ndarray(&self) -> Result<ArrayD<T>> {
        let wrong = |error: ndarray::ShapeError| Error::invalid("array", "elements of its shape", error);
        ArrayD::from_shape_vec(self.shape.to_vec(), self.to_vec()?).map_err(wrong)
    }

    /// Calls a function with a view of the elements. An array in host memory is viewed without a
    /// copy.
    pub fn with_view<R>(&self, look: impl FnOnce(ndarray::ArrayViewD<'_, T>) -> R) -> Result<R> {
        let tensor = self.to_tensor()?;
        let wrong = |error: ndarray::ShapeError| Error::invalid("array", "elements of its shape", error);
        Ok(look(ndarray::ArrayViewD::from_shape(self.shape.to_vec(), tensor.as_slice::<T>()?).map_err(wrong)?))
    }

    /// The elements, in row-major order.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        Ok(self.to_tensor()?.to_vec::<T>()?)
    }

    /// The elements as a tensor on the host.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.backend.download(&self.data)
    }

    /// The dimensions.
    pub fn shape(&self) -> [usize; D] {
        self.shape
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The same elements in another shape.
    pub fn reshape<const E: usize>(&self, shape: [usize; E]) -> Result<Array<B, T, E>> {
        if shape.iter().product::<usize>() != self.shape.iter().product::<usize>() {
            let expected = format!("as many elements as {:?}", self.shape);
            return Err(Error::invalid("array: reshape", expected, format!("{shape:?}")));
        }
        self.to(ArrayOp::Reshape(shape.to_vec()), &[])
    }

    /// Permutes the axes: `order[i]` is the old axis that becomes axis `i`.
    pub fn permute(&self, order: [usize; D]) -> Result<Self> {
        let mut sorted = order;
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..D) {
            return Err(Error::invalid("array: permute", format!("each axis below {D} once"), format!("{order:?}")));
        }
        self.to(ArrayOp::Permute(order.to_vec()), &[])
    }

    /// Exchanges the last two axes.
    pub fn transpose(&self) -> Result<Self> {
        let mut order: [usize; D] = std::array::from_fn(|axis| axis);
        if D >= 2 {
            order.swap(D - 2, D - 1);
        }
        self.permute(order)
    }

    /// The indices `start..end` along an axis.
    pub fn slice(&self, axis: usize, start: usize, end: usize) -> Result<Self> {
        match self.shape.get(axis) {
            Some(size) if start <= end && end <= *size => self.to(ArrayOp::Slice { axis, start, end, step: 1 }, &[]),
            Some(size) => {
                Err(Error::invalid("array: slice", format!("a range up to {size}"), format!("{start}..{end}")))
            }
            None => Err(Error::invalid("array: axis", format!("below {D}"), axis)),
        }
    }

    /// Broadcasts the array to a shape, by the rules of `ndarray` and NumPy.
    pub fn broadcast<const E: usize>(&self, shape: [usize; E]) -> Result<Array<B, T, E>> {
        if broadcast_shape(&self.shape, &shape).as_deref() != Some(shape.as_slice()) {
            let expected = format!("a shape that {:?} stretches to", self.shape);
            return Err(Error::invalid("array: broadcast", expected, format!("{shape:?}")));
        }
        self.to(ArrayOp::Broadcast(shape.to_vec()), &[])
    }

    fn of(backend: B, data: B::Data) -> Result<Self> {
        let dims = backend.dims(&data);
        let count = dims.len();
        let shape = dims.try_into().map_err(|_| Error::invalid("array: dimensions", D.to_string(), count))?;
        Ok(Array { backend, data, shape, element: PhantomData })
    }

    /// Runs an op on this array and others.
    fn to<U: Element, const E: usize>(&self, op: ArrayOp, others: &[&B::Data]) -> Result<Array<B, U, E>> {
        let operands: Vec<&B::Data> = [&self.data].into_iter().chain(others.iter().copied()).collect();
        Array::of(self.backend.clone(), self.backend.run(&op, &operands)?)
    }
}

/// Elementwise functions, reductions and row functions, for floats.
impl<B: ComputeBackend, T: Float, const D: usize> Array<B, T, D> {
    /// Applies an elementwise expression; this array is its input.
    pub fn map(&self, make: impl FnOnce(Expr) -> Expr) -> Result<Self> {
        let program = make(Expr::input(0)).finish().map_err(panoply_core::Error::Expression)?;
        self.to(ArrayOp::Map(program), &[])
    }

    /// Applies an elementwise expression to this array and another one, which must broadcast to the
    /// shape of this one.
    pub fn zip<const E: usize>(&self, other: &Array<B, T, E>, make: impl FnOnce(Expr, Expr) -> Expr) -> Result<Self> {
        if broadcast_shape(&self.shape, &other.shape).as_deref() != Some(self.shape.as_slice()) {
            let expected = format!("a shape that stretches to {:?}", self.shape);
            return Err(Error::invalid("array: the second operand", expected, format!("{:?}", other.shape)));
        }
        let program = make(Expr::input(0), Expr::input(1)).finish().map_err(panoply_core::Error::Expression)?;
        self.to(ArrayOp::Map(program), &[&other.data])
    }

    /// Casts the elements to another float type.
    pub fn cast<U: Float>(&self) -> Result<Array<B, U, D>> {
        let program = Expr::input(0).cast(U::DTYPE).finish().map_err(panoply_core::Error::Expression)?;
        self.to(ArrayOp::Map(program), &[])
    }

    /// Multiplies every element by a number.
    pub fn scale(&self, factor: f64) -> Result<Self> {
        self.map(|x| x * factor)
    }

    /// The sum along an axis. The axis is kept with length one.
    pub fn sum(&self, axis: usize) -> Result<Self> {
        self.reduce(Reduction::Sum, axis)
    }

    /// The mean along an axis. The axis is kept with length one.
    pub fn mean(&self, axis: usize) -> Result<Self> {
        self.reduce(Reduction::Mean, axis)
    }

    /// The largest element along an axis. The axis is kept with length one.
    pub fn max(&self, axis: usize) -> Result<Self> {
        self.reduce(Reduction::Max, axis)
    }

    /// The index of the largest element along an axis. The axis is kept with length one.
    pub fn arg_max(&self, axis: usize) -> Result<Indices<B, D>> {
        self.check_axis(axis)?;
        self.to(ArrayOp::Reduce(Reduction::ArgMax, vec![axis]), &[])
    }

    /// Softmax along an axis.
    pub fn softmax(&self, axis: usize) -> Result<Self> {
        self.check_axis(axis)?;
        self.to(ArrayOp::Softmax { axis, is_log: false }, &[])
    }

    /// The logarithm of the softmax along an axis.
    pub fn log_softmax(&self, axis: usize) -> Result<Self> {
        self.check_axis(axis)?;
        self.to(ArrayOp::Softmax { axis, is_log: true }, &[])
    }

    /// Layer norm over the last axis.
    pub fn layer_norm(&self, weight: &Array1<B, T>, bias: &Array1<B, T>, epsilon: f64) -> Result<Self> {
        let features = self.shape.last().copied().unwrap_or(0);
        for (what, shape) in [("array: weight", weight.shape), ("array: bias", bias.shape)] {
            if shape != [features] {
                return Err(Error::invalid(what, format!("[{features}]"), format!("{shape:?}")));
            }
        }
        self.to(ArrayOp::LayerNorm { epsilon }, &[&weight.data, &bias.data])
    }

    /// Sets each element to zero with this probability and scales the others up. The choice depends
    /// on `seed` and `stream` alone, and is the same on every backend.
    pub fn dropout(&self, probability: f64, seed: u32, stream: &str) -> Result<Self> {
        if !(0.0..1.0).contains(&probability) {
            return Err(Error::invalid("array: dropout", "a probability of at least 0 and below 1", probability));
        }
        let keep = 1.0 - probability;
        let mask: Self = self.to(ArrayOp::Mask { keep, seed, stream: stream.to_owned() }, &[])?;
        self.zip(&mask, |x, mask| mask.select(x * (1.0 / keep), 0.0))
    }

    /// The mean of the squared differences.
    pub fn squared_error(&self, wanted: &Self) -> Result<f32> {
        let squares = self.zip(wanted, |a, b| {
            let difference = a - b;
            difference.clone() * difference
        })?;
        squares.mean_of_all()
    }

    /// The mean of all elements.
    pub fn mean_of_all(&self) -> Result<f32> {
        let sum: Self = self.to(ArrayOp::Reduce(Reduction::Mean, (0..D).collect()), &[])?;
        let wide: Array<B, f32, D> = sum.cast()?;
        wide.to_vec()?.first().copied().ok_or_else(|| Error::invalid("array: a mean", "one element", "none"))
    }

    fn reduce(&self, reduction: Reduction, axis: usize) -> Result<Self> {
        self.check_axis(axis)?;
        self.to(ArrayOp::Reduce(reduction, vec![axis]), &[])
    }

    fn check_axis(&self, axis: usize) -> Result<()> {
        if axis < D { Ok(()) } else { Err(Error::invalid("array: axis", format!("below {D}"), axis)) }
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        impl<B: ComputeBackend, T: Float, const D: usize> Array<B, T, D> {
            $($(#[$doc])* pub fn $name(&self) -> Result<Self> { self.map(|x| x.unary(UnaryOp::$op)) })*
        }
    };
}

unary! {
    /// `max(x, 0)`.
    relu = Relu;
    /// `x · Φ(x)`.
    gelu = Gelu;
    /// `x · sigmoid(x)`.
    silu = Silu;
    /// `1 / (1 + exp(-x))`.
    sigmoid = Sigmoid;
    /// The hyperbolic tangent.
    tanh = Tanh;
    /// `e` to the power of `x`.
    exp = Exp;
    /// The natural logarithm.
    log = Log;
    /// The square root.
    sqrt = Sqrt;
    /// `-x`.
    negated = Neg;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $operator:ident $method:ident = $op:ident;)*) => {
        impl<B: ComputeBackend, T: Float, const D: usize> Array<B, T, D> {
            $($(#[$doc])* pub fn $name<const E: usize>(&self, other: &Array<B, T, E>) -> Result<Self> {
                self.zip(other, |a, b| a.binary(BinaryOp::$op, b))
            })*
        }
        $(impl<B: ComputeBackend, T: Float, const D: usize, const E: usize> std::ops::$operator<&Array<B, T, E>> for &Array<B, T, D> {
            type Output = Result<Array<B, T, D>>;
            fn $method(self, other: &Array<B, T, E>) -> Result<Array<B, T, D>> {
                self.zip(other, |a, b| a.binary(BinaryOp::$op, b))
            }
        })*
    };
}

binary! {
    /// `self + other`; `other` is broadcast.
    add, Add add = Add;
    /// `self - other`; `other` is broadcast.
    sub, Sub sub = Sub;
    /// `self · other`, elementwise; `other` is broadcast.
    mul, Mul mul = Mul;
    /// `self / other`; `other` is broadcast.
    div, Div div = Div;
}

macro_rules! products {
    ($($dims:literal)*) => {$(
        impl<B: ComputeBackend, T: Float> Array<B, T, $dims> {
            /// The matrix product.
            pub fn matmul(&self, other: &Self) -> Result<Self> {
                let ([.., _, inner], [.., rows, _]) = (self.shape, other.shape);
                if inner != rows || self.shape[..$dims - 2] != other.shape[..$dims - 2] {
                    let expected = format!("a shape that {:?} can be multiplied with", self.shape);
                    return Err(Error::invalid("array: matmul", expected, format!("{:?}", other.shape)));
                }
                self.to(ArrayOp::MatMul { transpose_a: false, transpose_b: false }, &[&other.data])
            }
        }
    )*};
}

products! { 2 3 4 }

impl<B: ComputeBackend, T: Float> Array2<B, T> {
    /// Looks up rows of this table by indices.
    pub fn embedding<const D: usize, const E: usize>(&self, indices: &Indices<B, D>) -> Result<Array<B, T, E>> {
        self.to(ArrayOp::Gather, &[&indices.data])
    }

    /// The mean cross entropy of the logits in this array, given the class of each row.
    pub fn cross_entropy(&self, classes: &[u32]) -> Result<f32> {
        let [rows, count] = self.shape;
        if classes.len() != rows || classes.iter().any(|class| *class as usize >= count) {
            return Err(Error::invalid("array: classes", format!("{rows} below {count}"), format!("{classes:?}")));
        }
        let logs: Array2<B, f32> = self.cast::<f32>()?.log_softmax(1)?;
        let mut picked = vec![0.0_f32; rows * count];
        classes.iter().enumerate().for_each(|(row, class)| picked[row * count + *class as usize] = 1.0);
        let picked = Array2::from_vec(&self.backend, picked, [rows, count])?;
        Ok(-logs.mul(&picked)?.mean_of_all()? * count as f32)
    }
}

impl<B: ComputeBackend, T: Float> Array4<B, T> {
    /// A convolution with weights (`filters × channels / groups × height × width`).
    pub fn conv2d(&self, weights: &Self, options: ConvOptions) -> Result<Self> {
        self.to(ArrayOp::Conv2d(options), &[&weights.data])
    }

    /// A transposed convolution with weights (`channels × filters / groups × height × width`). The
    /// output images have the height and width `size`.
    pub fn conv_transpose2d(&self, weights: &Self, options: ConvOptions, size: [usize; 2]) -> Result<Self> {
        self.to(ArrayOp::ConvTranspose2d(options, size), &[&weights.data])
    }

    /// Max pooling with adjacent windows.
    pub fn max_pool(&self, kernel: [usize; 2]) -> Result<Self> {
        self.to(ArrayOp::Pool2d { kind: PoolKind::Max, kernel, stride: kernel, padding: [0; 4] }, &[])
    }

    /// Average pooling with adjacent windows.
    pub fn avg_pool(&self, kernel: [usize; 2]) -> Result<Self> {
        let kind = PoolKind::Average { count_padding: false };
        self.to(ArrayOp::Pool2d { kind, kernel, stride: kernel, padding: [0; 4] }, &[])
    }

    /// Attention, with this array as the queries (`batch × heads × n × d`).
    pub fn attention(&self, keys: &Self, values: &Self, is_causal: bool) -> Result<Self> {
        self.to(ArrayOp::Attention { is_causal }, &[&keys.data, &values.data])
    }

    /// Batch norm with given figures: mean, variance, weight and bias of each channel.
    pub fn batch_norm(&self, figures: [&Array1<B, T>; 4], epsilon: f64) -> Result<Self> {
        let [mean, variance, weight, bias] = figures;
        let channels = self.shape[1];
        let along = |array: &Array1<B, T>| array.reshape([channels, 1, 1]);
        let scale = variance.zip(weight, |variance, weight| (variance + epsilon).rsqrt() * weight)?;
        self.sub(&along(mean)?)?.mul(&along(&scale)?)?.add(&along(bias)?)
    }
}

/// The shape to which two shapes broadcast. `None` if they do not fit.
fn broadcast_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |dims: &[usize], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
    (0..rank)
        .map(|axis| match (dim(a, axis), dim(b, axis)) {
            (a, b) if a == b || b == 1 => Some(a),
            (1, b) => Some(b),
            _ => None,
        })
        .collect()
}

impl<B: ComputeBackend, T: Element, const D: usize> std::fmt::Debug for Array<B, T, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dtype: DType = T::DTYPE;
        write!(f, "Array({dtype} {:?} on {})", self.shape, self.backend.name())
    }
}
