//! Search: a few queries each in one pass over the rows; many queries at once as a matrix product
//! that lists candidates ([`super::listed_search`]), or, if rows are few or k is large, as a
//! product that writes scores for a select.

use panoply_core::op::compute::{Metric, Search};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{
    Accumulate, Kernel, NormKernel, RankKernel, SELECT_K_MAX, SearchKernel, SelectKernel, SelectSource,
};

use super::listed_search;
use super::map::cast;
use super::matmul::{Product, multiply};
use super::sort::{self, positions};
use super::{Extents, empty};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{Operand, WINDOW_STEP_BYTES};
use crate::profile::Profile;

/// Up to this many queries each get a pass of their own: rows are read again, but no scores are
/// written.
pub(super) const PASSES_MAX: usize = 4;
/// The largest k of such a pass.
const PASS_K_MAX: usize = 256;
/// Number of rows that a workgroup takes at a time.
pub(super) const ROWS_AT_ONCE: usize = 256;
/// Number of candidates that one workgroup merges fast.
const MERGE_MAX: usize = 4096;
/// The most scores that are stored at once.
pub(super) const SCORES_MAX: usize = 16 << 20;
/// Number of workgroups that keep a device busy with selecting.
const GROUPS_WANTED: usize = 512;

pub(crate) fn support(profile: &Profile, op: &Search) -> Result<(), String> {
    let [rows, dim] = [op.rows.shape()[0], op.rows.shape()[1]];
    let most = profile.binding_bytes_max;
    if (dim * op.rows.dtype().size_bytes().max(4) * ROWS_AT_ONCE) as u64 > most / 2 {
        return Err(format!("vectors of {dim} numbers; the adapter binds {most} bytes"));
    }
    if op.k <= SELECT_K_MAX {
        return Ok(());
    }
    if (rows * 4) as u64 > most {
        return Err(format!("a k of {} of {rows} rows, whose scores are sorted; the adapter binds {most} bytes", op.k));
    }
    sort::support(profile, DType::U32, rows)
}

pub(crate) fn run<D: Driver>(op: &Search, context: &mut Context<D>) -> Result<(Tensor, Tensor)> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return Ok((empty(DType::U32, shape)?, empty(DType::F32, shape)?));
    }
    if op.rows.shape()[0] == 0 {
        let ids = Tensor::from_vec(vec![u32::MAX; shape.elements()], shape)?;
        return Ok((ids, Tensor::from_vec(vec![op.metric.missing_score(); shape.elements()], shape)?));
    }
    let (rows, queries) = (context.input(&op.rows)?, context.input(&op.queries)?);
    let given = Some(queries.clone()).filter(|queries| queries.dtype == rows.dtype);
    let search = Searching {
        rows,
        queries: cast(&queries, DType::F32, context)?,
        given,
        filter: op.filter.as_ref().map(|filter| context.input(filter)).transpose()?,
        row_norms: op.row_norms.as_ref().map(|norms| context.input(norms)).transpose()?,
        metric: op.metric,
        k: op.k,
    };
    let ids = context.output(DType::U32, shape)?;
    let scores = context.output(DType::F32, shape)?;
    match op.k {
        ..=PASS_K_MAX if shape[0] <= PASSES_MAX => search.by_passes(&ids, &scores, context)?,
        ..=SELECT_K_MAX => match listed_search::ListedSearchPlan::new(&search, &context.profile) {
            Some(plan) => plan.run(&search, [&ids, &scores], context)?,
            None => search.by_products(&ids, &scores, context)?,
        },
        _ => search.by_sorting(&ids, &scores, context)?,
    }
    Ok((context.finish(ids)?, context.finish(scores)?))
}

/// A search with its operands on the device. The queries are f32.
pub(super) struct Searching<D: Driver> {
    pub(super) rows: Operand<D>,
    pub(super) queries: Operand<D>,
    /// The queries in their own type, if it is that of the rows.
    pub(super) given: Option<Operand<D>>,
    pub(super) filter: Option<Operand<D>>,
    pub(super) row_norms: Option<Operand<D>>,
    pub(super) metric: Metric,
    pub(super) k: usize,
}

impl<D: Driver> Searching<D> {
    /// The same search with some of its queries.
    pub(super) fn with_queries(&self, first: usize, count: usize) -> Result<Searching<D>> {
        let Searching { rows, filter, row_norms, metric, k, .. } = self;
        let queries = self.queries.slice(0, first, count)?;
        let given = self.given.as_ref().map(|given| given.slice(0, first, count)).transpose()?;
        let (rows, filter, row_norms) = (rows.clone(), filter.clone(), row_norms.clone());
        Ok(Searching { rows, queries, given, filter, row_norms, metric: *metric, k: *k })
    }

    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.rows.shape[0], self.rows.shape[1], self.queries.shape[0]]
    }

    fn by_passes(&self, ids: &Operand<D>, scores: &Operand<D>, context: &mut Context<D>) -> Result<()> {
        let [rows, dim, queries] = self.sizes();
        // The rows are cut into windows that a kernel sees at once. All windows but the last have
        // the same number of parts, so that each keeps the device busy.
        let row_bytes = (dim * self.rows.dtype.size_bytes()).max(1);
        let seen = (context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES) / row_bytes;
        let windows = rows.div_ceil(seen / ROWS_AT_ONCE * ROWS_AT_ONCE);
        let tiles = rows.div_ceil(windows).div_ceil(ROWS_AT_ONCE);
        let part = tiles.div_ceil(context.tuning().search_parts) * ROWS_AT_ONCE;
        let per_window = tiles * ROWS_AT_ONCE;
        let slots = (0..windows).map(|window| rows.saturating_sub(window * per_window).min(per_window).div_ceil(part));
        let slots = slots.sum();
        let last = slots == 1;
        let (cosine, kernel) = (self.metric == Metric::Cosine, self.pass_kernel(last));
        let norms_given = kernel.norms_given;
        let query_norms = if cosine { Some(norms(&self.queries, context)?) } else { None };
        let pairs = context.words(2 * queries * slots * self.k)?;
        let row_norms = self.row_norms.as_ref().filter(|_| norms_given);
        let writes: Vec<&Operand<D>> = if last { vec![ids, scores] } else { vec![&pairs] };
        for (window, first) in (0..rows).step_by(per_window).enumerate() {
            let count = per_window.min(rows - first);
            let (parts, slot) = (count.div_ceil(part), window * per_window.div_ceil(part));
            let seen = self.rows.span(first * dim, count * dim)?.windowed();
            let reads: Vec<&Operand<D>> =
                [&seen, &self.queries].into_iter().chain(&self.filter).chain(row_norms).chain(&query_norms).collect();
            for query in 0..queries {
                let mut params = self.select_params([1, count, 1], [parts, part], seen.start(), first, [slots, slot]);
                params[10] = query as u32;
                params.extend([dim as u32, self.queries.start() + (query * dim) as u32, query as u32]);
                context.run(&Kernel::Search(kernel), &writes, &reads, &params, parts as u64)?;
            }
        }
        if last { Ok(()) } else { self.merge(pairs, slots, ids, scores, context) }
    }

    /// The kernel of a pass.
    pub(super) fn pass_kernel(&self, last: bool) -> SearchKernel {
        let dim = self.rows.shape[1];
        let fits = |step: usize| {
            dim.is_multiple_of(step) && self.rows.offset.is_multiple_of(step) && self.queries.offset.is_multiple_of(4)
        };
        let aligned_to = [8, 4].into_iter().find(|step| fits(*step)).unwrap_or(1);
        let norms_given = self.metric == Metric::Cosine && self.row_norms.is_some();
        SearchKernel::new(self.rows.dtype, self.metric, self.filter.is_some(), norms_given, aligned_to, last)
    }

    fn by_products(&self, ids: &Operand<D>, scores: &Operand<D>, context: &mut Context<D>) -> Result<()> {
        let [rows, dim, queries] = self.sizes();
        let [query_norms, row_norms] = self.lengths(context)?;
        let binding = context.profile.binding_bytes_max as usize;
        let limit = SCORES_MAX.min(binding / 4) / queries;
        // As many rows as a kernel sees at once, as f32 too.
        let seen = (binding - WINDOW_STEP_BYTES) / (dim * self.rows.dtype.size_bytes().max(4)).max(1);
        let chunk = rows.min(limit.max(ROWS_AT_ONCE).next_multiple_of(4)).min(seen / 4 * 4);
        let chunks = rows.div_ceil(chunk);
        let parts = (GROUPS_WANTED / queries).clamp(1, chunk.div_ceil(1024.max(8 * self.k)));
        let part = chunk.div_ceil(parts);
        let parts = chunk.div_ceil(part);
        let slots = chunks * parts;
        let last = slots == 1;
        let pairs = context.words(2 * queries * slots * self.k)?;
        let source = SelectSource::Scores { metric: self.metric, filtered: self.filter.is_some() };
        let kernel = Kernel::Select(SelectKernel::new(source, last, self.k));
        for number in 0..chunks {
            let first = number * chunk;
            let count = chunk.min(rows - first);
            let sums = self.sums(&self.queries, first, count, context)?;
            let mut params = self.select_params([queries, count, 1], [parts, part], 0, first, [slots, number * parts]);
            params[9] = row_norms.as_ref().map_or(0, Operand::start);
            let reads: Vec<&Operand<D>> =
                std::iter::once(&sums).chain(&self.filter).chain(&row_norms).chain(&query_norms).collect();
            let writes: Vec<&Operand<D>> = if last { vec![ids, scores] } else { vec![&pairs] };
            context.run(&kernel, &writes, &reads, &params, (queries * parts) as u64)?;
        }
        if last { Ok(()) } else { self.merge(pairs, slots, ids, scores, context) }
    }

    /// For a k larger than a select keeps: sorts all scores of some queries at a time.
    fn by_sorting(&self, ids: &Operand<D>, scores: &Operand<D>, context: &mut Context<D>) -> Result<()> {
        let [rows, dim, queries] = self.sizes();
        let [query_norms, row_norms] = self.lengths(context)?;
        let at_once = (SCORES_MAX.min(context.profile.binding_bytes_max as usize / 4) / rows).clamp(1, queries);
        let seen = (context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES) / (dim * 4).max(1) / 4 * 4;
        let filtered = self.filter.is_some();
        for query in (0..queries).step_by(at_once) {
            let some = at_once.min(queries - query);
            let keys = context.output(DType::U32, Shape::new([some, rows])?)?;
            let asked = self.queries.slice(0, query, some)?;
            for first in (0..rows).step_by(seen) {
                let count = seen.min(rows - first);
                let sums = self.sums(&asked, first, count, context)?;
                let filter = self.filter.as_ref().map_or(0, Operand::start);
                let norms = row_norms.as_ref().map_or(0, Operand::start);
                let sizes = [some, count, rows, first].map(|size| size as u32);
                let params = [&sizes[..], &[filter, norms, query as u32]].concat();
                let reads: Vec<&Operand<D>> =
                    std::iter::once(&sums).chain(&self.filter).chain(&row_norms).chain(&query_norms).collect();
                let kernel = Kernel::Rank(RankKernel::Keys { metric: self.metric, filtered });
                context.run(&kernel, &[&keys], &reads, &params, groups_for(some * count))?;
            }
            let order = positions(&keys, Extents { outer: some, axis: rows, inner: 1 }, false, context)?;
            let kernel = Kernel::Rank(RankKernel::Ranked { metric: self.metric });
            let missing = self.metric.missing_score().to_bits();
            let params = [some as u32, rows as u32, self.k as u32, (query * self.k) as u32, missing];
            let groups = groups_for(some * self.k);
            context.run(&kernel, &[ids, scores], &[&keys, &order], &params, groups)?;
        }
        Ok(())
    }

    /// The norms of queries and rows, if the metric needs them.
    pub(super) fn lengths(&self, context: &mut Context<D>) -> Result<[Option<Operand<D>>; 2]> {
        if self.metric != Metric::Cosine {
            return Ok([None, None]);
        }
        let rows = match &self.row_norms {
            Some(given) => given.clone(),
            None => norms(&self.rows, context)?,
        };
        Ok([Some(norms(&self.queries, context)?), Some(rows)])
    }

    /// The sums of products (or of squared differences) of some queries and some rows.
    fn sums(&self, queries: &Operand<D>, first: usize, count: usize, context: &mut Context<D>) -> Result<Operand<D>> {
        let (dim, asked) = (self.rows.shape[1], queries.shape[0]);
        let sums = context.output(DType::F32, Shape::new([asked, count])?)?;
        let some = self.some_rows(first, count, context)?;
        multiply(
            &Product::plain([asked, count, dim], Accumulate::of(self.metric)),
            [queries, &some],
            [None, None],
            &sums,
            context,
        )?;
        Ok(sums)
    }

    /// Some rows as f32, transposed to columns.
    pub(super) fn some_rows(&self, first: usize, count: usize, context: &mut Context<D>) -> Result<Operand<D>> {
        columns(&self.rows.slice(0, first, count)?.windowed(), context)
    }

    /// Writes the best k of every query, from slots with k candidates each.
    pub(super) fn merge(
        &self,
        pairs: Operand<D>,
        slots: usize,
        ids: &Operand<D>,
        scores: &Operand<D>,
        context: &mut Context<D>,
    ) -> Result<()> {
        let (pairs, slots) = self.merge_some(pairs, slots, context)?;
        let source = SelectSource::Pairs { metric: Some(self.metric) };
        let kernel = Kernel::Select(SelectKernel::new(source, true, self.k));
        let queries = self.queries.shape[0];
        let params = self.select_params([queries, slots * self.k, 1], [1, slots * self.k], 0, 0, [1, 0]);
        context.run(&kernel, &[ids, scores], &[&pairs], &params, queries as u64)
    }

    /// The best k of every query, as pairs in order.
    pub(super) fn merge_pairs(&self, pairs: Operand<D>, slots: usize, context: &mut Context<D>) -> Result<Operand<D>> {
        let (pairs, slots) = self.merge_some(pairs, slots, context)?;
        let source = SelectSource::Pairs { metric: Some(self.metric) };
        let kernel = Kernel::Select(SelectKernel::new(source, false, self.k));
        let queries = self.queries.shape[0];
        let merged = context.words(2 * queries * self.k)?;
        let params = self.select_params([queries, slots * self.k, 1], [1, slots * self.k], 0, 0, [1, 0]);
        context.run(&kernel, &[&merged], &[&pairs], &params, queries as u64)?;
        Ok(merged)
    }

    /// Merges pairs, in as many steps as necessary, until one workgroup can merge the slots of a
    /// query.
    fn merge_some(
        &self,
        mut pairs: Operand<D>,
        mut slots: usize,
        context: &mut Context<D>,
    ) -> Result<(Operand<D>, usize)> {
        let queries = self.queries.shape[0];
        let source = SelectSource::Pairs { metric: Some(self.metric) };
        while slots * self.k > 2 * MERGE_MAX {
            let parts = (slots * self.k).div_ceil(MERGE_MAX);
            let part = slots.div_ceil(parts) * self.k;
            let fewer = (slots * self.k).div_ceil(part);
            let merged = context.words(2 * queries * fewer * self.k)?;
            let kernel = Kernel::Select(SelectKernel::new(source, false, self.k));
            let params = self.select_params([queries, slots * self.k, 1], [fewer, part], 0, 0, [fewer, 0]);
            context.run(&kernel, &[&merged], &[&pairs], &params, (queries * fewer) as u64)?;
            (pairs, slots) = (merged, fewer);
        }
        Ok((pairs, slots))
    }

    pub(super) fn select_params(
        &self,
        [lines, axis, inner]: [usize; 3],
        [parts, part]: [usize; 2],
        start: u32,
        first: usize,
        [slots, slot]: [usize; 2],
    ) -> Vec<u32> {
        let filter = self.filter.as_ref().map_or(0, Operand::start);
        let norms = self.row_norms.as_ref().map_or(0, Operand::start);
        let mut params = [lines, axis, inner, parts, part, self.k].map(|size| size as u32).to_vec();
        params.extend([start, first as u32, filter, norms, 0, self.metric.missing_score().to_bits()]);
        params.extend([slots as u32, slot as u32]);
        params
    }
}

/// Rows as f32, transposed to columns.
pub(super) fn columns<D: Driver>(rows: &Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let wide = if rows.elements() == 0 { rows.clone() } else { cast(rows, DType::F32, context)? };
    wide.permuted(&[1, 0])
}

/// The norms of vectors.
fn norms<D: Driver>(vectors: &Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let [count, dim] = [vectors.shape[0], vectors.shape[1]];
    let output = context.output(DType::F32, Shape::new([count])?)?;
    let kernel = Kernel::Norm(NormKernel { dtype: vectors.dtype });
    let row_bytes = (dim * vectors.dtype.size_bytes()).max(1);
    let seen = (context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES) / row_bytes;
    for first in (0..count).step_by(seen) {
        let some = vectors.slice(0, first, seen.min(count - first))?.windowed();
        let params = [some.shape[0] as u32, dim as u32, some.start(), first as u32];
        context.run(&kernel, &[&output], &[&some], &params, some.shape[0].div_ceil(32) as u64)?;
    }
    Ok(output)
}
