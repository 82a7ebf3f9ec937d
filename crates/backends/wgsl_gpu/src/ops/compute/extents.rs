//! The extents of tensors: what a kernel sees of them at once, and the lines along an axis.

use panoply_core::{DType, Location, Result, Shape, Tensor};

use crate::operand::{WINDOW_STEP_BYTES, is_seen};
use crate::pieces::slabs_within;
use crate::profile::Profile;

/// The type that takes the most memory on the way to this type: its carrier.
pub(super) fn wide(dtype: DType) -> DType {
    panoply_kernels::wgsl::carrier_dtype(dtype)
}

/// Whether a kernel sees all elements of a tensor contiguously: in place, after the start of a
/// window, or in a block of their own.
pub(super) fn is_within(profile: &Profile, tensor: &Tensor) -> bool {
    let size = tensor.dtype().size_bytes();
    let is_moved = tensor.location() == Location::Host || !tensor.is_contiguous();
    let before = if is_moved { 0 } else { tensor.offset() % (WINDOW_STEP_BYTES / size) };
    is_seen(before + tensor.elements(), size, profile.binding_bytes_max)
}

/// Checks that a tensor that cannot be cut is within a kernel's reach.
pub(super) fn fits_whole(profile: &Profile, what: &str, tensor: &Tensor) -> Result<(), String> {
    if is_within(profile, tensor) {
        return Ok(());
    }
    let bytes = tensor.elements() * tensor.dtype().size_bytes();
    Err(format!("{what} of {bytes} bytes; the adapter binds {}", profile.binding_bytes_max))
}

/// Checks that the slabs of inputs and an output are within a kernel's reach, all at once or some
/// at a time. A slab is a contiguous part that is computed by itself: all lines for one index of
/// the axes before theirs, or an image. The output has `elements` elements of the type `carrier`.
pub(super) fn slabs_fit(
    profile: &Profile,
    slabs: usize,
    inputs: &[&Tensor],
    (elements, carrier): (usize, DType),
) -> Result<(), String> {
    let limit = profile.binding_bytes_max;
    let whole = is_seen(elements, carrier.size_bytes(), limit) && inputs.iter().all(|input| is_within(profile, input));
    if whole {
        return Ok(());
    }
    let read = inputs.iter().map(|input| (input.elements(), input.dtype().size_bytes()));
    for (elements, size) in read.chain([(elements, carrier.size_bytes())]) {
        let slab = elements / slabs.max(1);
        if slabs_within(profile, slab, size) == 0 {
            return Err(format!("{} bytes that belong together; the adapter binds {limit}", slab * size));
        }
    }
    Ok(())
}

pub(super) fn no_f64(dtype: DType, op: &str) -> Result<(), String> {
    if dtype == DType::F64 { Err(format!("{op} of f64")) } else { Ok(()) }
}

/// An output without elements: nothing to compute, and nothing to bind.
pub(super) fn empty(dtype: DType, shape: Shape) -> Result<Tensor> {
    Tensor::zeros(dtype, shape)
}

/// One axis among the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub(super) outer: usize,
    pub(super) axis: usize,
    pub(super) inner: usize,
}

impl Extents {
    pub(super) fn new(shape: &[usize], axis: usize) -> Extents {
        let product = |dims: &[usize]| dims.iter().product();
        Extents { outer: product(&shape[..axis]), axis: shape[axis], inner: product(&shape[axis + 1..]) }
    }

    /// Number of lines along the axis.
    pub(super) fn lines(&self) -> usize {
        self.outer * self.inner
    }

    pub(super) fn params(&self) -> [u32; 3] {
        [self.outer as u32, self.axis as u32, self.inner as u32]
    }
}
