//! Lowers pooling of images: averages, maxima and their indices.

use burn_ir::{ModuleOperationIr, TensorIr};
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Conv2dBackwardInput, ConvOptions, Pool2d};
use panoply_core::{DType, Tensor};

use super::picks::bounded;
use super::{Lowering, Result, unserved};
use crate::convert;

/// The most elements of a window. Each element is an input of one expression.
const TAPS_MAX: usize = 49;

/// The windows over an image. Pairs are (vertical, horizontal).
#[derive(Clone, Copy)]
struct Windows {
    image: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    output: [usize; 2],
}

impl Windows {
    fn new(
        image: [usize; 2],
        kernel: [usize; 2],
        [stride, padding, dilation]: [[usize; 2]; 3],
        is_ceil: bool,
    ) -> Result<Windows> {
        let wrong = || unserved(format!("windows of {kernel:?} over {image:?}, padded by {padding:?}"));
        let mut output = [0; 2];
        for axis in 0..2 {
            let padded =
                padding[axis].checked_mul(2).and_then(|both| both.checked_add(image[axis])).ok_or_else(wrong)?;
            bounded(padded)?;
            let taps = kernel[axis].checked_sub(1).ok_or_else(wrong)?;
            let reach = taps.checked_mul(dilation[axis]).and_then(|span| span.checked_add(1)).ok_or_else(wrong)?;
            let rest = padded.checked_sub(reach).ok_or_else(wrong)?;
            if stride[axis] == 0 || dilation[axis] == 0 || padding[axis] >= reach {
                return Err(wrong());
            }
            output[axis] = if is_ceil { rest.div_ceil(stride[axis]) } else { rest / stride[axis] } + 1;
            // A window must begin within the image or its leading padding.
            if is_ceil && (output[axis] - 1) * stride[axis] >= image[axis] + padding[axis] {
                output[axis] -= 1;
            }
        }
        if kernel[0].checked_mul(kernel[1]).is_none_or(|taps| taps > TAPS_MAX) {
            return Err(unserved(format!("windows of more than {TAPS_MAX} elements")));
        }
        Ok(Windows { image, kernel, stride, padding, dilation, output })
    }

    /// Returns the (vertical, horizontal) offset of each element of a window from its first.
    fn taps(&self) -> Vec<[usize; 2]> {
        let tap = |tap: usize| [tap / self.kernel[1] * self.dilation[0], tap % self.kernel[1] * self.dilation[1]];
        (0..self.kernel[0] * self.kernel[1]).map(tap).collect()
    }

    /// Returns the distance of the element at `tap` from the window's first element, in indices of
    /// the flattened image.
    fn offset(&self, tap: [usize; 2]) -> f64 {
        (tap[0] * self.image[1] + tap[1]) as f64
    }
}

impl Lowering<'_> {
    pub(super) fn pooling(&mut self, op: &ModuleOperationIr) -> Result<Vec<NodeId>> {
        use ModuleOperationIr as Op;
        match op {
            Op::MaxPool2d(desc) => {
                let windows = [desc.stride, desc.padding, desc.dilation];
                let windows = Windows::new(self.image(&desc.x)?, desc.kernel_size, windows, desc.ceil_mode)?;
                Ok(vec![self.largest(&desc.x, &windows)?])
            }
            Op::MaxPool2dWithIndices(desc) => {
                let windows = [desc.stride, desc.padding, desc.dilation];
                let windows = Windows::new(self.image(&desc.x)?, desc.kernel_size, windows, desc.ceil_mode)?;
                let value = self.largest(&desc.x, &windows)?;
                let place = self.place_of_largest(&desc.x, &windows)?;
                Ok(vec![value, self.cast(place, convert::dtype(desc.out_indices.dtype)?)?])
            }
            Op::MaxPool2dWithIndicesBackward(desc) => {
                let windows = [desc.stride, desc.padding, desc.dilation];
                let windows = Windows::new(self.image(&desc.x)?, desc.kernel_size, windows, desc.ceil_mode)?;
                let (g, places) = (self.get(&desc.grad)?, self.get(&desc.indices)?);
                Ok(vec![self.largest_share(g, places, &windows)?])
            }
            Op::AvgPool2d(desc) => {
                let x = self.get(&desc.x)?;
                let (kernel, stride, [top, left]) = (desc.kernel_size, desc.stride, desc.padding);
                let counts = desc.count_include_pad;
                let pool = |t: &[Tensor]| {
                    let pool = Pool2d::average(&t[0], kernel).stride(stride);
                    pool.padding([top, left, top, left]).count_padding(counts)
                };
                // If `ceil_mode` adds a window, the client expects another shape than this one,
                // which is an error.
                Ok(vec![self.g.op(&[x], pool)?])
            }
            Op::AvgPool2dBackward(desc) => {
                let windows = [desc.stride, desc.padding, [1, 1]];
                let windows = Windows::new(self.image(&desc.x)?, desc.kernel_size, windows, desc.ceil_mode)?;
                let g = self.get(&desc.grad)?;
                Ok(vec![self.average_share(g, &windows, desc.count_include_pad)?])
            }
            Op::AdaptiveAvgPool2d(desc) => {
                let kernel = even(self.image(&desc.x)?, desc.output_size)?;
                let x = self.get(&desc.x)?;
                Ok(vec![self.g.op(&[x], |t| Pool2d::average(&t[0], kernel))?])
            }
            Op::AdaptiveAvgPool2dBackward(desc) => {
                let (image, g) = (self.image(&desc.x)?, self.get(&desc.grad)?);
                let output = [self.size(g, 2)?, self.size(g, 3)?];
                let kernel = even(image, output)?;
                Ok(vec![self.average_spread(g, image, kernel)?])
            }
            _ => Err(unserved("this module")),
        }
    }

    /// Returns height and width of `batch × channels × height × width` images.
    fn image(&self, x: &TensorIr) -> Result<[usize; 2]> {
        match self.dims(self.get(x)?)?[..] {
            [_, _, height, width] => Ok([height, width]),
            ref other => Err(unserved(format!("images of {} axes", other.len()))),
        }
    }

    /// Returns an image for each element of the windows.
    fn seen(&mut self, x: &TensorIr, windows: &Windows) -> Result<Vec<NodeId>> {
        let mut x = self.get(x)?;
        for axis in 0..2 {
            let (before, size) = (windows.padding[axis], windows.image[axis]);
            let reach = (windows.kernel[axis] - 1) * windows.dilation[axis] + 1;
            let length = bounded((windows.output[axis] - 1) * windows.stride[axis] + reach)?.max(before + size);
            if length > size {
                let from = |to: usize| to.checked_sub(before).filter(|from| *from < size);
                let places: Vec<Option<usize>> = (0..length).map(from).collect();
                x = self.picked(x, 2 + axis, &places, f64::NEG_INFINITY)?;
            }
        }
        let mut all = Vec::new();
        for tap in windows.taps() {
            let mut seen = x;
            for (axis, start) in tap.into_iter().enumerate() {
                let end = start + (windows.output[axis] - 1) * windows.stride[axis] + 1;
                seen = self.g.slice(seen, 2 + axis, start, end, windows.stride[axis])?;
            }
            all.push(seen);
        }
        Ok(all)
    }

    fn largest(&mut self, x: &TensorIr, windows: &Windows) -> Result<NodeId> {
        let seen = self.seen(x, windows)?;
        self.map(&seen, |v| v[1..].iter().fold(v[0].clone(), |best, next| best.max(next.clone())))
    }

    /// Returns the index of the largest element of each window in the flattened image. Among equal
    /// elements the first wins.
    fn place_of_largest(&mut self, x: &TensorIr, windows: &Windows) -> Result<NodeId> {
        let seen = self.seen(x, windows)?;
        let taps = windows.taps();
        // The sizes are bounded far below the largest integer that f64 represents exactly. The
        // expression compares in the elements' type, and counts in i32.
        let tap = self.map(&seen, |v| {
            let (mut best, mut place) = (v[0].clone(), Expr::constant(0.0) * v[0].clone().ne(v[0].clone()));
            for (tap, next) in v.iter().enumerate().skip(1) {
                let is_larger = next.clone().gt(best.clone());
                place = is_larger.clone().select(tap as f64, place);
                best = is_larger.select(next.clone(), best);
            }
            place.cast(DType::I32)
        })?;
        let offsets: Vec<i32> = taps.iter().map(|tap| windows.offset(*tap) as i32).collect();
        let first = self.firsts(windows)?;
        self.map(&[tap, first], |v| {
            let first = v[1].clone() + f64::from(offsets[0]);
            offsets.iter().enumerate().skip(1).fold(first, |place, (tap, offset)| {
                v[0].clone().eq(tap as f64).select(v[1].clone() + f64::from(*offset), place)
            })
        })
    }

    /// Returns the index of each window's first element. With padding it may lie before the image.
    fn firsts(&mut self, windows: &Windows) -> Result<NodeId> {
        let [rows, columns] = windows.output;
        let first = |place: usize, axis: usize| (place * windows.stride[axis]) as i64 - windows.padding[axis] as i64;
        let mut firsts = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            let above = first(row, 0) * windows.image[1] as i64;
            firsts.extend((0..columns).map(|column| (above + first(column, 1)) as i32));
        }
        Ok(self.g.unnamed_constant(&Tensor::from_vec(firsts, [rows, columns])?)?)
    }

    /// Returns the gradient of the image: each window's gradient goes to its largest element.
    fn largest_share(&mut self, g: NodeId, places: NodeId, windows: &Windows) -> Result<NodeId> {
        let dtype = self.dtype(g)?;
        let firsts = self.firsts(windows)?;
        let places = self.cast(places, DType::I32)?;
        let mut sum = None;
        for tap in windows.taps() {
            let offset = windows.offset(tap);
            let mut share = self.map(&[g, places, firsts], |v| {
                let is_here = v[1].clone().eq(v[2].clone() + offset).cast(dtype);
                is_here.select(v[0].clone(), 0.0)
            })?;
            for (axis, start) in tap.into_iter().enumerate() {
                let back = (0..windows.image[axis]).map(|place| {
                    let at = (place + windows.padding[axis]).checked_sub(start)?;
                    let window = at / windows.stride[axis];
                    (at % windows.stride[axis] == 0 && window < windows.output[axis]).then_some(window)
                });
                share = self.picked(share, 2 + axis, &back.collect::<Vec<_>>(), 0.0)?;
            }
            sum = Some(match sum {
                Some(sum) => self.g.add(sum, share)?,
                None => share,
            });
        }
        sum.ok_or_else(|| unserved("windows of nothing"))
    }

    /// Divides each window's gradient among its elements.
    fn average_share(&mut self, g: NodeId, windows: &Windows, count_padding: bool) -> Result<NodeId> {
        let [rows, columns] = windows.output;
        let covered = |axis: usize, place: usize| {
            let start = place * windows.stride[axis];
            let end = (start + windows.kernel[axis]).min(windows.image[axis] + windows.padding[axis]);
            end.saturating_sub(start.max(windows.padding[axis])).max(1)
        };
        let whole = windows.kernel[0] * windows.kernel[1];
        let mut parts = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            let count = |column| if count_padding { whole } else { covered(0, row) * covered(1, column) };
            parts.extend((0..columns).map(|column| 1.0 / count(column) as f32));
        }
        let parts = self.g.unnamed_constant(&Tensor::from_vec(parts, [rows, columns])?)?;
        let dtype = self.dtype(g)?;
        let parts = self.cast(parts, dtype)?;
        let g = self.g.mul(g, parts)?;
        self.window_sums(g, windows)
    }

    fn average_spread(&mut self, g: NodeId, image: [usize; 2], kernel: [usize; 2]) -> Result<NodeId> {
        let size = (kernel[0] * kernel[1]) as f64;
        let g = self.map(&[g], |v| v[0].clone() * (1.0 / size))?;
        let (stride, padding, dilation, output) =
            (kernel, [0; 2], [1; 2], [image[0] / kernel[0], image[1] / kernel[1]]);
        self.window_sums(g, &Windows { image, kernel, stride, padding, dilation, output })
    }

    /// Returns for each pixel the sum over the windows that cover it. This is the input gradient of
    /// a depthwise convolution with ones.
    fn window_sums(&mut self, g: NodeId, windows: &Windows) -> Result<NodeId> {
        let (dtype, channels) = (self.dtype(g)?, self.size(g, 1)?);
        let one = self.constant(dtype, 1.0)?;
        let ones = self.broadcast(one, &[channels, 1, windows.kernel[0], windows.kernel[1]])?;
        let [top, left] = windows.padding;
        let options = ConvOptions {
            stride: windows.stride,
            padding: [top, left, top, left],
            dilation: windows.dilation,
            groups: channels,
        };
        let size = windows.image;
        Ok(self.g.op(&[g, ones], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(options))?)
    }
}

/// Returns the window size if the windows divide the image evenly.
fn even(image: [usize; 2], output: [usize; 2]) -> Result<[usize; 2]> {
    let fits = (0..2).all(|axis| output[axis] > 0 && image[axis] > 0 && image[axis].is_multiple_of(output[axis]));
    match fits {
        true => Ok([image[0] / output[0], image[1] / output[1]]),
        false => Err(unserved(format!("{image:?} in {output:?} windows of different sizes"))),
    }
}
