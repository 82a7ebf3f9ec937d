//! A plan over inputs, evaluated range by range into the caller's memory.

use std::ops::{Deref, DerefMut, Range};

use panoply_core::{Error, Result, Shape, Tensor};

use super::execute::{MapPass, Sink};
use super::layout::{MapLayout, View};
use super::plan::MapPlan;

/// A map that is evaluated in ranges: the data that all threads share. The tensors must outlive it.
pub struct RangedMap<'a> {
    plan: &'a MapPlan,
    shape: Shape,
    views: Views,
    /// Whether input 0 is passed with each range.
    is_given: bool,
}

// SAFETY: the inputs are only read, and everything else is shared data.
unsafe impl Sync for RangedMap<'_> {}

impl<'a> RangedMap<'a> {
    /// Prepares the plan for every element of `shape`; the inputs are broadcast to it. If
    /// `given_bytes` is set, input 0 is not among `inputs`: its elements, of this size, are passed
    /// with each range.
    pub fn new(
        plan: &'a MapPlan,
        given_bytes: Option<usize>,
        inputs: &'a [Tensor],
        shape: Shape,
    ) -> Result<RangedMap<'a>> {
        let count = inputs.len() + usize::from(given_bytes.is_some());
        if count != plan.input_dtypes.len() {
            return Err(Error::invalid("map inputs", plan.input_dtypes.len().to_string(), count));
        }
        let mut views = Views::new(count);
        let (given, others) = views.split_at_mut(count - inputs.len());
        for (view, bytes) in given.iter_mut().zip(given_bytes) {
            *view = View::contiguous(std::ptr::null(), bytes, &shape);
        }
        for (view, input) in others.iter_mut().zip(inputs) {
            *view = View::new(input, &shape)?;
        }
        Ok(RangedMap { plan, shape, views, is_given: given_bytes.is_some() })
    }

    /// Writes the elements of `range` to the front of `output`. `given` holds the elements of input
    /// 0, if input 0 is passed with each range.
    pub fn write(&self, range: Range<usize>, given: &[u8], output: &mut [u8]) {
        let size_bytes = self.plan.output_dtype.size_bytes();
        assert!(range.end <= self.shape.elements() && output.len() >= range.len() * size_bytes, "a range of the map");
        if range.is_empty() {
            return;
        }
        let mut views = self.views.clone();
        if self.is_given {
            let bytes = views[0].size_bytes();
            assert!(given.len() >= range.len() * bytes, "input 0 for the whole range");
            let base = given.as_ptr().wrapping_sub(range.start * bytes);
            views[0] = View::contiguous(base, bytes, &self.shape);
        }
        let target = output.as_mut_ptr().wrapping_sub(range.start * size_bytes);
        let pass = MapPass::new(self.plan, MapLayout::new(&self.shape, &mut views), target, Sink::Direct);
        // SAFETY: the range is within the shape. Its parts of the output and of input 0 were
        // checked above and are borrowed here, and the other inputs are borrowed by `self`.
        unsafe { pass.range(range) }
    }

    /// Replaces elements of input 0, which begin at `start`, by the map's results. Both have the
    /// same size.
    pub fn apply<T: Copy>(&self, start: usize, elements: &mut [T]) {
        let range = start..start + elements.len();
        assert!(self.is_given && range.end <= self.shape.elements(), "a range of the map");
        let mut views = self.views.clone();
        let bytes = views[0].size_bytes();
        assert!(bytes == size_of::<T>() && bytes == self.plan.output_dtype.size_bytes(), "elements of the map's size");
        if range.is_empty() {
            return;
        }
        let place = elements.as_mut_ptr().cast::<u8>().wrapping_sub(start * bytes);
        views[0] = View::contiguous(place, bytes, &self.shape);
        let pass = MapPass::new(self.plan, MapLayout::new(&self.shape, &mut views), place, Sink::Buffered);
        // SAFETY: the range is within the shape. Its elements are borrowed here, and each block is
        // written after it was computed from them. The other inputs are borrowed by `self`.
        unsafe { pass.range(range) }
    }
}

/// Maximum number of views that are stored without a heap allocation.
const FEW: usize = 12;

/// The views of all inputs.
#[derive(Clone)]
struct Views {
    few: [View; FEW],
    /// All views, if there are more than `FEW`.
    many: Vec<View>,
    count: usize,
}

impl Views {
    fn new(count: usize) -> Views {
        let many = if count > FEW { vec![View::EMPTY; count] } else { Vec::new() };
        Views { few: [View::EMPTY; FEW], many, count }
    }
}

impl Deref for Views {
    type Target = [View];

    fn deref(&self) -> &[View] {
        if self.count > FEW { &self.many } else { &self.few[..self.count] }
    }
}

impl DerefMut for Views {
    fn deref_mut(&mut self) -> &mut [View] {
        if self.count > FEW { &mut self.many } else { &mut self.few[..self.count] }
    }
}
