//! Rules of pooling and of resized images.

use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{Conv2dBackwardInput, ConvOptions, ImageLayout, MatMul, Pool2d, PoolKind, PoolShape};
use panoply_core::op::compute::{Resize, ResizeMode};
use panoply_core::{DType, Tensor};

use super::{Backward, NodeVisit};
use crate::error::Result;

impl Backward {
    pub(super) fn pool_shares(&mut self, turn: NodeVisit, op: &Pool2d) -> Result<Vec<Option<NodeId>>> {
        let dims = self.operand_dims(turn, 0)?;
        for dim in &dims[1..] {
            self.fixed(turn, *dim)?;
        }
        let shape = op.pool_shape()?;
        let share = match (op.kind, side_by_side(&shape)) {
            (PoolKind::Average { .. }, true) => self.average_side_by_side(turn, &shape, &dims)?,
            (PoolKind::Average { count_padding }, false) => self.average_overlapping(turn, &shape, count_padding)?,
            (PoolKind::Max, true) => self.max_side_by_side(turn, &shape, &dims)?,
            (PoolKind::Max, false) => self.max_overlapping(turn, &shape)?,
        };
        Ok(vec![Some(share)])
    }

    fn average_side_by_side(&mut self, turn: NodeVisit, shape: &PoolShape, dims: &[Dim]) -> Result<NodeId> {
        let size = (shape.kernel[0] * shape.kernel[1]) as f64;
        let g = self.tape.g.map(&[turn.g], |v| v[0].clone() * (1.0 / size))?;
        self.over_windows(g, shape, dims)
    }

    /// An average is a convolution of each channel with ones, divided by the number of elements in
    /// each window.
    fn average_overlapping(&mut self, turn: NodeVisit, shape: &PoolShape, count_padding: bool) -> Result<NodeId> {
        let dtype = self.tape.type_of(turn.g)?.0;
        let [rows, columns] = shape.output();
        let count = |place: usize| match count_padding {
            true => shape.kernel[0] * shape.kernel[1],
            false => shape.window(0, place / columns).len() * shape.window(1, place % columns).len(),
        };
        let parts: Vec<f32> = (0..rows * columns).map(|place| 1.0 / count(place) as f32).collect();
        let parts = match dtype {
            DType::F64 => {
                Tensor::from_vec((0..rows * columns).map(|p| 1.0 / count(p) as f64).collect(), [rows, columns])?
            }
            _ => Tensor::from_vec(parts, [rows, columns])?,
        };
        let parts = self.tape.g.unnamed_constant(&parts)?;
        let parts = self.cast_to(parts, dtype)?;
        let g = self.tape.g.mul(turn.g, parts)?;
        let one = self.number(dtype, 1.0)?;
        let kernel = [shape.channels.into(), 1.into(), shape.kernel[0].into(), shape.kernel[1].into()];
        let ones = self.tape.g.broadcast(one, &kernel)?;
        let (stride, padding, groups) = (shape.stride, shape.padding, shape.channels);
        let options = ConvOptions { stride, padding, groups, ..ConvOptions::default() };
        let size = shape.input;
        Ok(self.tape.g.op(&[g, ones], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(options))?)
    }

    /// The gradient of each window goes to its largest elements, in equal shares.
    fn max_side_by_side(&mut self, turn: NodeVisit, shape: &PoolShape, dims: &[Dim]) -> Result<NodeId> {
        let (x, y) = (self.operand(turn, 0), self.own(turn));
        let largest = self.over_windows(y, shape, dims)?;
        let is_largest = self.tape.g.map(&[x, largest], |v| v[0].clone().eq(v[1].clone()))?;
        let (kernel, size) = (shape.kernel, (shape.kernel[0] * shape.kernel[1]) as f64);
        let share_of_all = self.tape.g.op(&[is_largest], |t| Pool2d::average(&t[0], kernel))?;
        let part = self.tape.g.map(&[turn.g, share_of_all], |v| v[0].clone() / (v[1].clone() * size))?;
        let part = self.over_windows(part, shape, dims)?;
        Ok(self.tape.g.map(&[x, largest, part], |v| v[0].clone().eq(v[1].clone()).select(v[2].clone(), 0.0))?)
    }

    /// Repeats the number of each window over all elements of the window. `Resize` does this where
    /// it supports the type: a map over broadcast windows has rows of a few elements and takes
    /// several times as long.
    fn over_windows(&mut self, x: NodeId, shape: &PoolShape, dims: &[Dim]) -> Result<NodeId> {
        let [height, width] = shape.input;
        if self.tape.type_of(x)?.0 != DType::F64 {
            return Ok(self.tape.g.op(&[x], |t| Resize::new(&t[0], height, width).mode(ResizeMode::Nearest))?);
        }
        let (whole, each) = window_dims(shape, dims);
        let x = self.tape.g.reshape(x, &each)?;
        let x = self.tape.g.broadcast(x, &whole)?;
        Ok(self.tape.g.reshape(x, dims)?)
    }

    /// The rule of max pooling for windows that overlap or reach beyond the image. It handles one
    /// position in the window after the other.
    fn max_overlapping(&mut self, turn: NodeVisit, shape: &PoolShape) -> Result<NodeId> {
        let (mut padded, y) = (self.operand(turn, 0), self.own(turn));
        let mut places = [Vec::new(), Vec::new()];
        for (axis, places) in places.iter_mut().enumerate() {
            let (before, size) = (shape.padding[axis], shape.input[axis]);
            let length = before + size + shape.padding[axis + 2];
            *places = (0..length).map(|place| place.checked_sub(before).filter(|place| *place < size)).collect();
            padded = self.picked(padded, 2 + axis, places, f64::NEG_INFINITY)?;
        }
        let output = shape.output();
        let mut is_largest = Vec::new();
        let mut count = None;
        for tap in 0..shape.kernel[0] * shape.kernel[1] {
            let start = [tap / shape.kernel[1], tap % shape.kernel[1]];
            let mut seen = padded;
            for axis in 0..2 {
                let end = start[axis] + (output[axis] - 1) * shape.stride[axis] + 1;
                seen = self.tape.g.slice(seen, 2 + axis, start[axis], end, shape.stride[axis])?;
            }
            let mask = self.tape.g.map(&[seen, y], |v| v[0].clone().eq(v[1].clone()))?;
            count = Some(match count {
                Some(count) => self.tape.g.add(count, mask)?,
                None => mask,
            });
            is_largest.push((start, mask));
        }
        let count = count.ok_or_else(|| self.refused(turn, "a window has at least one place"))?;
        let part = self.tape.g.div(turn.g, count)?;
        let mut sum = None;
        for (start, mask) in is_largest {
            let mut share = self.tape.g.map(&[mask, part], |v| v[0].clone().select(v[1].clone(), 0.0))?;
            for axis in 0..2 {
                let (first, stride) = (start[axis], shape.stride[axis]);
                let back = (0..shape.input[axis]).map(|place| {
                    let at = (place + shape.padding[axis]).checked_sub(first)?;
                    (at % stride == 0 && at / stride < output[axis]).then_some(at / stride)
                });
                share = self.picked(share, 2 + axis, &back.collect::<Vec<_>>(), 0.0)?;
            }
            sum = Some(match sum {
                Some(sum) => self.tape.g.add(sum, share)?,
                None => share,
            });
        }
        sum.ok_or_else(|| self.refused(turn, "a window has at least one place"))
    }

    /// A resized image is `R · image · Cᵀ`, with two matrices that depend on the sizes alone.
    pub(super) fn resize_shares(&mut self, turn: NodeVisit, op: &Resize) -> Result<Vec<Option<NodeId>>> {
        let (dtype, dims) = self.tape.type_of(self.operand(turn, 0))?;
        let rank = dims.len();
        let is_last = op.layout == ImageLayout::Nhwc;
        let first = if is_last { rank - 3 } else { rank - 2 };
        let (height, width) = (self.fixed(turn, dims[first])?, self.fixed(turn, dims[first + 1])?);
        let planes: Vec<usize> = (0..first).chain([rank - 1, first, first + 1]).collect();
        let mut g = turn.g;
        if is_last {
            g = self.tape.g.permute(g, &planes)?;
        }
        let rows = self.resizing(height, op.height, op.mode, dtype)?;
        let columns = self.resizing(width, op.width, op.mode, dtype)?;
        let share = self.tape.g.op(&[rows, g], |t| MatMul::new(&t[0], &t[1]).transpose_a())?;
        let mut share = self.tape.g.matmul(share, columns)?;
        if is_last {
            let back: Vec<usize> = (0..first).chain([rank - 2, rank - 1, rank - 3]).collect();
            share = self.tape.g.permute(share, &back)?;
        }
        Ok(vec![Some(share)])
    }

    /// The resize weights as a `to × from` matrix: the share that each output pixel takes of each
    /// input pixel.
    fn resizing(&mut self, from: usize, to: usize, mode: ResizeMode, dtype: DType) -> Result<NodeId> {
        let mut values = vec![0.0_f32; from * to];
        let scale = from as f64 / to.max(1) as f64;
        for pixel in 0..to {
            let row = &mut values[pixel * from..(pixel + 1) * from];
            match mode {
                ResizeMode::Nearest => row[pixel * from / to] = 1.0,
                ResizeMode::Bilinear => {
                    let place = ((pixel as f64 + 0.5) * scale - 0.5).max(0.0);
                    let low = (place as usize).min(from - 1);
                    row[low] += (1.0 - (place - low as f64)) as f32;
                    row[(low + 1).min(from - 1)] += (place - low as f64) as f32;
                }
                ResizeMode::Area => {
                    let (start, end) = (pixel * from / to, ((pixel + 1) * from).div_ceil(to));
                    row[start..end].fill(1.0 / (end - start) as f32);
                }
            }
        }
        let matrix = self.tape.g.unnamed_constant(&Tensor::from_vec(values, [to, from])?)?;
        self.cast_to(matrix, dtype)
    }
}

/// Whether the windows cover the image exactly once.
fn side_by_side(shape: &PoolShape) -> bool {
    let divides = |axis: usize| shape.input[axis].is_multiple_of(shape.kernel[axis]);
    // Strides are clamped to the image, so a single window that covers the axis counts too,
    // for any stride.
    let apart = |axis: usize| shape.stride[axis] == shape.kernel[axis] || shape.output()[axis] == 1 && divides(axis);
    shape.padding == [0; 4] && (0..2).all(|axis| divides(axis) && apart(axis) && fits(shape, axis))
}

fn fits(shape: &PoolShape, axis: usize) -> bool {
    shape.output()[axis] * shape.kernel[axis] == shape.input[axis]
}

/// The dimensions of the image with the windows as separate axes, and those of one element for each
/// window.
fn window_dims(shape: &PoolShape, dims: &[Dim]) -> ([Dim; 6], [Dim; 6]) {
    let ([rows, columns], [height, width]) = (shape.output(), shape.kernel);
    let whole = [dims[0], dims[1], rows.into(), height.into(), columns.into(), width.into()];
    let each = [dims[0], dims[1], rows.into(), 1.into(), columns.into(), 1.into()];
    (whole, each)
}
