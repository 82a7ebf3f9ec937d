//! RowMap: a map, a function of each row, and a map of its result, computed in chunks of rows, so
//! that intermediate values stay in the second-level cache.

use panoply_core::op::compute::RowFunction;
use panoply_core::{Element, Result, Shape, Tensor};

use crate::extents::Extents;
use crate::layernorm::{Norm, Normal, layer_norm};
use crate::map::{MapPlan, RangedMap};
use crate::parts::DisjointSlice;
use crate::reduce::{self, Mean, OrderedElement, Sum};
use crate::scratch;
use crate::simd::Simd;
use crate::softmax::{Soft, softmax};
use crate::team::Team;

/// Elements of the rows that are processed at a time.
const CHUNK_ELEMENTS: usize = 8 << 10;
/// Minimum elements for which rows are split among threads, even if they would be one chunk.
const SHARED_ELEMENTS_MIN: usize = 6 << 10;

/// An element type in which rows are computed.
pub(crate) trait RowElement: Element + Soft + Normal + Sum + Mean<Output = Self> + OrderedElement {}
impl<T: Element + Soft + Normal + Sum + Mean<Output = T> + OrderedElement> RowElement for T {}

/// One call: the two maps and the function between them. `before` produces rows of `T`, and `after`
/// reads the function's result as its input 0.
pub(crate) struct RowPass<'a> {
    pub(crate) before: &'a MapPlan,
    pub(crate) inputs: &'a [Tensor],
    pub(crate) function: RowFunction,
    pub(crate) after: &'a MapPlan,
    pub(crate) more: &'a [Tensor],
    /// The shape whose last axis is a row, and the shape of the output.
    pub(crate) rows: Shape,
    pub(crate) output: Shape,
}

impl RowPass<'_> {
    /// Writes the whole output.
    pub(crate) fn run<T: RowElement>(&self, simd: Simd, team: &Team, output: &mut [u8]) -> Result<()> {
        let len = self.rows[self.rows.rank() - 1];
        let count: usize = self.rows[..self.rows.rank() - 1].iter().product();
        let before = RangedMap::new(self.before, None, self.inputs, self.rows)?;
        let after = RangedMap::new(self.after, Some(size_of::<T>()), self.more, self.output)?;
        let out_len = if self.function.is_reduction() { 1 } else { len };
        let out_bytes = self.after.output_dtype().size_bytes() * out_len;
        if count == 0 || out_len == 0 {
            return Ok(());
        }
        let threads = if count * len >= SHARED_ELEMENTS_MIN { team.threads() } else { 1 };
        let chunk = (CHUNK_ELEMENTS / len.max(1)).clamp(1, count.div_ceil(threads));
        let shared = DisjointSlice::new(output);
        team.run_ranges(count, chunk, &|rows| {
            let alone = Team::single();
            let mut values: Vec<T> = scratch::zeroed(chunk * len);
            let mut results: Vec<T> = scratch::zeroed(chunk * out_len);
            for first in rows.clone().step_by(chunk) {
                let last = rows.end.min(first + chunk);
                let values = &mut values[..(last - first) * len];
                let results = &mut results[..(last - first) * out_len];
                before.write(first * len..last * len, &[], bytemuck::cast_slice_mut(values));
                apply(self.function, simd, &alone, values, len, results);
                // SAFETY: the ranges of one job do not overlap, and neither do the chunks of a
                // range.
                let out = unsafe { shared.range(first * out_bytes..last * out_bytes) };
                after.write(first * out_len..last * out_len, bytemuck::cast_slice(results), out);
            }
        });
        Ok(())
    }
}

/// Applies the function to each row of `len` elements.
fn apply<T: RowElement>(function: RowFunction, simd: Simd, team: &Team, values: &[T], len: usize, results: &mut [T]) {
    let count = if function.is_reduction() { results.len() } else { results.len() / len.max(1) };
    let extents = Extents::rows(count, len);
    match function {
        RowFunction::Sum => T::sum(simd, team, values, extents, results),
        RowFunction::Mean => T::mean(simd, team, values, extents, results),
        RowFunction::Max => reduce::max(simd, team, values, extents, results),
        RowFunction::Min => reduce::min(simd, team, values, extents, results),
        RowFunction::Norm { epsilon, is_rms } => {
            let norm = Norm { epsilon, centred: !is_rms, weight: None, bias: None };
            layer_norm(simd, team, values, len, norm, results);
        }
        RowFunction::LogSoftmax => softmax(simd, team, values, extents, true, results),
        _ => softmax(simd, team, values, extents, false, results),
    }
}
