//! The parameters of a correlation, which its driver, its packed weights and its split share.

use super::epilogue::Activate;
use super::real::StoredElement;

/// Minimum number of products for a team. With fewer, the calling thread is done before another one
/// is awake.
pub(super) const PRODUCTS_FOR_TEAM_MIN: usize = 1 << 18;

/// The parameters of a correlation, apart from its stencil, which is in the scratch.
pub(super) struct Correlation<'a, S: StoredElement> {
    pub batch: usize,
    pub groups: usize,
    /// Source channels and filters of one group.
    pub channels: usize,
    pub filters: usize,
    pub source: &'a [S],
    pub weights: WeightView<'a, S>,
    pub bias: Option<&'a [S]>,
    pub activate: Option<Activate<'a, S::Real>>,
    pub placement: Placement,
}

/// A view of weights. The index of the weight of (group, filter, channel, tap) is the sum of each
/// index times its stride, plus the tap's entry in the scratch's `tap_weights`.
pub(super) struct WeightView<'a, S> {
    pub data: &'a [S],
    pub group_stride: usize,
    pub filter_stride: usize,
    pub channel_stride: usize,
}

/// The positions of the stencil's output pixels in the planes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// Height and width of an output plane.
    pub plane: [usize; 2],
    /// Pixel `(y, x)` of the stencil goes to `origin + step * (y, x)`.
    pub origin: [usize; 2],
    pub step: [usize; 2],
}

impl Placement {
    pub fn dense(plane: [usize; 2]) -> Placement {
        Placement { plane, origin: [0, 0], step: [1, 1] }
    }
}
