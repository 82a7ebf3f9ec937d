//! The ops of the host backend, as functions over `ndarray` arrays.

use ndarray::{ArcArray, ArrayD, ArrayView2, ArrayViewD, Axis, Dimension, IxDyn};
use panoply_core::expr::{Node, Program};
use panoply_core::op::compute::{ConvOptions, ConvShape, PoolKind, PoolShape, Reduction};

use panoply_nn::{Error, Result};

type Floats = ArcArray<f32, IxDyn>;

fn wrong(error: ndarray::ShapeError) -> Error {
    Error::invalid("array: a shape", "one that fits", error)
}

/// The shape to which the operands broadcast.
fn common_shape(operands: &[&Floats]) -> Result<Vec<usize>> {
    let rank = operands.iter().map(|operand| operand.ndim()).max().unwrap_or(0);
    let mut dims = vec![1; rank];
    for operand in operands {
        let lead = rank - operand.ndim();
        for (axis, size) in operand.shape().iter().enumerate() {
            let dim = &mut dims[lead + axis];
            match (*dim, *size) {
                (own, size) if own == size || size == 1 => {}
                (1, size) => *dim = size,
                (own, size) => {
                    return Err(Error::invalid("array: operands", format!("{own} or 1 along an axis"), size));
                }
            }
        }
    }
    Ok(dims)
}

/// Evaluates an elementwise expression, element by element. Casts between float types have no
/// effect here; the caller rounds the result.
pub(super) fn map(program: &Program, operands: &[&Floats]) -> Result<ArrayD<f32>> {
    let dims = common_shape(operands)?;
    let stretched = |operand: &&Floats| {
        let view = operand.broadcast(dims.as_slice()).map(|view| view.iter().copied().collect::<Vec<f32>>());
        view.ok_or_else(|| Error::invalid("array: operands", "shapes that broadcast", "others"))
    };
    let inputs: Vec<Vec<f32>> = operands.iter().map(stretched).collect::<Result<_>>()?;
    let mut values = vec![0.0_f64; program.nodes().len()];
    let mut results = Vec::with_capacity(dims.iter().product());
    for element in 0..dims.iter().product() {
        for (place, node) in program.nodes().iter().enumerate() {
            let value = |id: u32| values[id as usize];
            let made = match *node {
                Node::Input(index) => inputs.get(index as usize).map_or(f64::NAN, |input| f64::from(input[element])),
                Node::Const(constant) => constant.value(),
                Node::Unary(op, a) => op.eval(value(a)),
                Node::Binary(op, a, b) => op.eval(value(a), value(b)),
                Node::Ternary(op, a, b, c) => op.eval(value(a), value(b), value(c)),
                Node::Cast(_, a) => value(a),
            };
            values[place] = made;
        }
        results.push(values.last().copied().unwrap_or(0.0) as f32);
    }
    ArrayD::from_shape_vec(dims, results).map_err(wrong)
}

/// Reduces axes, which are kept with length one.
pub(super) fn reduce(reduction: Reduction, x: &Floats, axes: &[usize]) -> Result<ArrayD<f32>> {
    let mut reduced = x.to_owned().into_owned();
    for axis in axes {
        let along = checked_axis(&reduced.view(), *axis)?;
        reduced = match reduction {
            Reduction::Sum => reduced.sum_axis(along),
            Reduction::Mean => reduced.mean_axis(along).unwrap_or_else(|| reduced.sum_axis(along)),
            Reduction::Max => reduced.fold_axis(along, f32::NEG_INFINITY, |a, b| larger(*a, *b)),
            Reduction::Min => reduced.fold_axis(along, f32::INFINITY, |a, b| -larger(-*a, -*b)),
            other => return Err(Error::invalid("array: a reduction", "sum, mean, max or min", other.name())),
        }
        .insert_axis(along);
    }
    Ok(reduced)
}

/// The larger of two numbers. NaN if either is NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

/// The index of the largest or smallest element along one axis; the first index among equals.
pub(super) fn extreme_place(x: &Floats, axes: &[usize], is_max: bool) -> Result<ArrayD<u32>> {
    let [axis] = axes else { return Err(Error::invalid("array: positions", "one axis", axes.len())) };
    let along = checked_axis(&x.view(), *axis)?;
    let place = |line: ndarray::ArrayView1<'_, f32>| {
        let mut best = 0;
        for (index, value) in line.iter().enumerate() {
            let beats = if is_max { *value > line[best] } else { *value < line[best] };
            if beats || value.is_nan() && !line[best].is_nan() {
                best = index;
            }
        }
        best as u32
    };
    if x.shape()[*axis] == 0 {
        return Err(Error::invalid("array: positions", "at least one element along the axis", 0));
    }
    Ok(x.map_axis(along, place).insert_axis(along))
}

fn checked_axis(x: &ArrayViewD<'_, f32>, axis: usize) -> Result<Axis> {
    match axis < x.ndim() {
        true => Ok(Axis(axis)),
        false => Err(Error::invalid("array: axis", format!("below {}", x.ndim()), axis)),
    }
}

/// The matrix product, or that of two batches of the same size.
pub(super) fn matmul(a: &Floats, b: &Floats, transpose_a: bool, transpose_b: bool) -> Result<ArrayD<f32>> {
    let turned = |x: &Floats, turn: bool| {
        let mut view = x.view().into_owned();
        let rank = view.ndim();
        if rank < 2 {
            return Err(Error::invalid("array: matmul", "at least two dimensions", rank));
        }
        if turn {
            view.swap_axes(rank - 2, rank - 1);
        }
        Ok(view)
    };
    let (a, b) = (turned(a, transpose_a)?, turned(b, transpose_b)?);
    let rank = a.ndim();
    let (m, k) = (a.shape()[rank - 2], a.shape()[rank - 1]);
    let n = b.shape()[b.ndim() - 1];
    if b.ndim() != rank || b.shape()[rank - 2] != k || a.shape()[..rank - 2] != b.shape()[..rank - 2] {
        return Err(Error::invalid(
            "array: matmul",
            format!("a partner of {:?}", a.shape()),
            format!("{:?}", b.shape()),
        ));
    }
    let batch: usize = a.shape()[..rank - 2].iter().product();
    let dims: Vec<usize> = a.shape()[..rank - 2].iter().copied().chain([m, n]).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = (a.iter().copied().collect(), b.iter().copied().collect());
    let mut product = Vec::with_capacity(batch * m * n);
    for each in 0..batch {
        let left = ArrayView2::from_shape((m, k), &a[each * m * k..(each + 1) * m * k]).map_err(wrong)?;
        let right = ArrayView2::from_shape((k, n), &b[each * k * n..(each + 1) * k * n]).map_err(wrong)?;
        product.extend(left.dot(&right).iter());
    }
    ArrayD::from_shape_vec(dims, product).map_err(wrong)
}

fn dims4(x: &Floats) -> Result<[usize; 4]> {
    let rank = x.ndim();
    x.shape().try_into().map_err(|_| Error::invalid("array: images", "four dimensions", rank))
}

/// A convolution.
pub(super) fn conv2d(x: &Floats, weights: &Floats, options: &ConvOptions) -> Result<ArrayD<f32>> {
    let shape = ConvShape::new(dims4(x)?, dims4(weights)?, options)?;
    let mut sums = ArrayD::zeros(IxDyn(&shape.output_dims()));
    shape.for_each_product(|at| sums[&at.output[..]] += x[&at.input[..]] * weights[&at.weight[..]]);
    Ok(sums)
}

/// A transposed convolution.
pub(super) fn conv_transpose2d(
    x: &Floats,
    weights: &Floats,
    options: &ConvOptions,
    size: [usize; 2],
) -> Result<ArrayD<f32>> {
    let [batch, _, _, _] = dims4(x)?;
    let own = dims4(weights)?;
    let input = [batch, own[1] * options.groups, size[0], size[1]];
    let shape = ConvShape::new(input, own, options)?;
    if shape.output_dims() != dims4(x)? {
        let (expected, got) = (format!("{:?}", shape.output_dims()), format!("{:?}", x.shape()));
        return Err(Error::invalid("array: images", expected, got));
    }
    let mut sums = ArrayD::zeros(IxDyn(&shape.input_dims()));
    shape.for_each_product(|at| sums[&at.input[..]] += x[&at.output[..]] * weights[&at.weight[..]]);
    Ok(sums)
}

/// Pooling.
pub(super) fn pool2d(
    x: &Floats,
    kind: PoolKind,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> Result<ArrayD<f32>> {
    let dims = dims4(x)?;
    // The op's own constructor checks the arguments; a tensor without memory is enough for that.
    let images = panoply_core::Tensor::zeros(panoply_core::DType::F32, [1, 1, dims[2], dims[3]])?;
    let op = panoply_core::op::compute::Pool2d { kind, ..panoply_core::op::compute::Pool2d::max(&images, kernel) };
    let shape = PoolShape { batch: dims[0], channels: dims[1], ..op.stride(stride).padding(padding).pool_shape()? };
    let [rows, columns] = shape.output();
    Ok(ArrayD::from_shape_fn(IxDyn(&[dims[0], dims[1], rows, columns]), |place| {
        let place = place.as_array_view();
        let (down, across) = (shape.window(0, place[2]), shape.window(1, place[3]));
        let count = down.len() * across.len();
        let elements = down
            .flat_map(|y| across.clone().map(move |x| (y, x)))
            .map(|(row, column)| x[[place[0], place[1], row, column]]);
        match kind {
            PoolKind::Max => elements.fold(f32::NEG_INFINITY, larger),
            PoolKind::Average { count_padding } => {
                let count = if count_padding { kernel[0] * kernel[1] } else { count };
                elements.sum::<f32>() / count as f32
            }
        }
    }))
}

/// Softmax along an axis.
pub(super) fn softmax(x: &Floats, axis: usize, is_log: bool) -> Result<ArrayD<f32>> {
    let along = checked_axis(&x.view(), axis)?;
    let mut result = x.to_owned().into_owned();
    for mut line in result.lanes_mut(along) {
        let largest = line.fold(f32::NEG_INFINITY, |a, b| larger(a, *b));
        let sum: f32 = line.iter().map(|value| (value - largest).exp()).sum();
        line.mapv_inplace(|value| if is_log { value - largest - sum.ln() } else { (value - largest).exp() / sum });
    }
    Ok(result)
}

/// Layer norm over the last axis.
pub(super) fn layer_norm(x: &Floats, weight: &Floats, bias: &Floats, epsilon: f64) -> Result<ArrayD<f32>> {
    let last = x.ndim().checked_sub(1).ok_or_else(|| Error::invalid("array: layer norm", "a dimension", "none"))?;
    let features = x.shape()[last];
    if weight.shape() != [features] || bias.shape() != [features] {
        return Err(Error::invalid("array: layer norm", format!("weight and bias of {features}"), "others"));
    }
    let mut result = x.to_owned().into_owned();
    for mut line in result.lanes_mut(Axis(last)) {
        let mean = line.sum() / features as f32;
        let variance = line.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / features as f32;
        let scale = 1.0 / (variance + epsilon as f32).sqrt();
        for ((value, weight), bias) in line.iter_mut().zip(weight).zip(bias) {
            *value = (*value - mean) * scale * weight + bias;
        }
    }
    Ok(result)
}

/// Looks up rows of a table.
pub(super) fn gather(table: &Floats, indices: &ArcArray<u32, IxDyn>) -> Result<ArrayD<f32>> {
    let [rows, features] = *table.shape() else {
        return Err(Error::invalid("array: a table", "two dimensions", table.ndim()));
    };
    let mut picked = Vec::with_capacity(indices.len() * features);
    for index in indices {
        let index = *index as usize;
        if index >= rows {
            return Err(Error::invalid("array: an index", format!("below {rows}"), index));
        }
        picked.extend(table.index_axis(Axis(0), index).iter());
    }
    let dims: Vec<usize> = indices.shape().iter().copied().chain([features]).collect();
    ArrayD::from_shape_vec(dims, picked).map_err(wrong)
}

/// Attention of queries, keys and values.
pub(super) fn attention(q: &Floats, k: &Floats, v: &Floats, is_causal: bool) -> Result<ArrayD<f32>> {
    let mut scores = matmul(q, k, false, true)?;
    let scale = 1.0 / (q.shape()[q.ndim() - 1] as f32).sqrt();
    let (rows, columns) = (scores.shape()[scores.ndim() - 2], scores.shape()[scores.ndim() - 1]);
    for (place, value) in scores.indexed_iter_mut() {
        let place = place.as_array_view();
        let (row, column) = (place[place.len() - 2], place[place.len() - 1]);
        *value = if is_causal && column + rows > row + columns { f32::NEG_INFINITY } else { *value * scale };
    }
    let last = scores.ndim() - 1;
    let weights = softmax(&scores.into_shared(), last, false)?;
    matmul(&weights.into_shared(), v, false, false)
}
