//! Depthwise convolutions: every filter reads one channel, so the sums run over the taps alone.
//!
//! Images are read in place. A tile is a few rows times one vector of pixels of the output. Each
//! row of the input that the tile reads is loaded once for each column of taps, without the lanes
//! that fall into the padding, and is multiplied with the taps of that column in every row of the
//! tile. Kernels of 3×3, 5×5 and 7×7 taps with a stride of one or two have specialised code; all
//! others use the general algorithm.

use super::ConvShape;
use super::correlation::PRODUCTS_FOR_TEAM_MIN;
use super::epilogue::Epilogue;
use super::plane_tile::{Plane, PlaneKernel};
use super::real::StoredElement;
use super::tile::RealKernels as _;
use super::workspace::SharedSlice;
use crate::simd::Simd;
use crate::team::Team;

/// Maximum number of outputs that wait for their activation: small planes are activated together.
const ACTIVATED_MAX: usize = 4096;
/// Taps of the largest specialised kernel.
const TAPS_MAX: usize = 7 * 7;

/// Runs the convolution and returns true if there is a kernel for the shape. `simd` must be a level
/// that the CPU has.
pub(super) fn forward<S: StoredElement>(
    simd: Simd,
    team: &Team,
    shape: &ConvShape,
    (input, weights): (&[S], &[S]),
    epilogue: &Epilogue<'_, S>,
    output: &mut [S],
) -> bool {
    let Some(PlaneKernel(kernel)) = kernel::<S>(simd, shape) else { return false };
    let ([height, width], [rows, columns], taps) = (shape.input, shape.output(), shape.taps());
    let planes = shape.batch * shape.filters;
    let whole = SharedSlice::new(output);
    let grain = PRODUCTS_FOR_TEAM_MIN / 4 / (rows * columns * taps).max(1) + 1;
    let planes_at_once = (ACTIVATED_MAX / (rows * columns)).max(1);
    team.run_ranges(planes, grain, &|range| {
        let mut waiting = range.start;
        for index in range.clone() {
            let (image, filter) = (index / shape.filters, index % shape.filters);
            let channel = image * shape.channels + filter / shape.group_filters();
            let source = &input[channel * height * width..][..height * width];
            // SAFETY: every plane of the output is written by one task.
            let output = unsafe { whole.part(index * rows * columns, rows * columns) };
            let mut own = [S::Real::default(); TAPS_MAX];
            own.iter_mut().zip(&weights[filter * taps..][..taps]).for_each(|(to, weight)| *to = weight.weight());
            let plane = Plane {
                source: source.as_ptr().cast(),
                input: shape.input,
                output: output.as_mut_ptr().cast(),
                size: [rows, columns],
                padding: [shape.padding[0], shape.padding[1]],
                weights: own.as_ptr(),
                bias: epilogue.bias.map_or(S::Real::default(), |bias| bias[filter].real()),
            };
            // SAFETY: the CPU has the level, the elements are stored in the type that they are
            // computed in, and all slices have the sizes of the shape.
            unsafe { kernel(&plane) };
            let done = index + 1 - waiting;
            if let Some(activate) = epilogue.activate.filter(|_| done >= planes_at_once || index + 1 == range.end) {
                let start = waiting * rows * columns;
                // SAFETY: these planes are written by this task, and the borrow of the previous
                // plane has ended.
                let output = unsafe { whole.part(start, done * rows * columns) };
                // SAFETY: the elements are of the type that they are computed in, as `kernel` has
                // checked.
                activate(start, unsafe { &mut *(std::ptr::from_mut(output) as *mut [S::Real]) });
                waiting = index + 1;
            }
        }
    });
    true
}

/// The kernel of a shape, if there is one.
fn kernel<S: StoredElement>(simd: Simd, shape: &ConvShape) -> Option<PlaneKernel<S::Real>> {
    let is_depthwise = shape.groups > 0 && shape.group_channels() == 1;
    let is_square = shape.kernel[0] == shape.kernel[1] && shape.stride[0] == shape.stride[1];
    let is_near = shape.dilation == [1, 1] && shape.padding.iter().all(|zeros| *zeros < shape.kernel[0]);
    if !S::IN_PLACE || !is_depthwise || !is_square || !is_near || shape.output_len() == 0 || shape.input_len() == 0 {
        return None;
    }
    S::Real::plane(simd, shape.kernel[0], shape.stride[0])
}
