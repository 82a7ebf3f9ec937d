//! A plan over inputs, evaluated range by range into the caller's memory.

use std::ops::Range;

use panoply_core::{Error, Result, Shape, Tensor};

use super::execute::Pass;
use super::layout::{Layout, View};
use super::plan::Plan;

/// What all threads share of a map that is evaluated in ranges. The tensors must outlive it.
pub(crate) struct Ranged<'a> {
    plan: &'a Plan,
    shape: Shape,
    views: Vec<View>,
    /// Whether input 0 is given with each range.
    is_given: bool,
}

// SAFETY: the inputs are only read, and everything else is shared data.
unsafe impl Sync for Ranged<'_> {}

impl<'a> Ranged<'a> {
    /// The plan for every element of `shape`, of inputs that are broadcast to it. `given_bytes` is the size of an element of
    /// an input 0 that is not among them: its elements for a range come with that range.
    pub(crate) fn new(
        plan: &'a Plan,
        given_bytes: Option<usize>,
        inputs: &'a [Tensor],
        shape: Shape,
    ) -> Result<Ranged<'a>> {
        let mut views = Vec::with_capacity(inputs.len() + 1);
        views.extend(given_bytes.map(|bytes| View::contiguous(std::ptr::null(), bytes, &shape)));
        for input in inputs {
            views.push(View::new(input, &shape)?);
        }
        if views.len() != plan.input_dtypes.len() {
            return Err(Error::invalid("map inputs", plan.input_dtypes.len().to_string(), views.len()));
        }
        Ok(Ranged { plan, shape, views, is_given: given_bytes.is_some() })
    }

    /// Writes the elements of `range` to the front of `output`; `given` are those of input 0, where it is given.
    pub(crate) fn write(&self, range: Range<usize>, given: &[u8], output: &mut [u8]) {
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
        let pass = Pass::new(self.plan, Layout::new(&self.shape, &mut views), target, 0);
        // SAFETY: the range lies within the shape, its part of the output and of input 0 was measured above and is borrowed
        // here, and the other inputs are borrowed by `self`.
        unsafe { pass.range(range) }
    }
}
