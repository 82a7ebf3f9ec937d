//! Search of many queries in passes that never write out all scores.
//!
//! 1. A sample of evenly spread rows is scored, and its best k are found: no row that is worse than
//!    the last of them can be in the result.
//! 2. A matrix product over all rows lists the rows that are not worse ([`ListKernel`]).
//! 3. The best k of each list are the result. If an unlucky order of scores made a query's list
//!    overflow, this query gets a pass of its own instead; only the device knows which queries
//!    these are.

use panoply_core::op::compute::Metric;
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape};
use panoply_kernels::wgsl::{Accumulate, Kernel, ListKernel, SelectKernel, SelectSource, Tile, WideTarget};

use super::matmul::{Product, load, multiply, params};
use super::search::{PASSES_MAX, ROWS_AT_ONCE, SCORES_MAX, Searching, columns};
use super::wide_units;
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, WINDOW_STEP_BYTES};
use crate::profile::Profile;
use crate::tuning::{LARGE_TILES, SMALL_TILE};

/// With fewer rows the sample would be most of them.
const ROWS_MIN: usize = 1 << 15;
/// A larger k has too many candidates.
const K_MAX: usize = 128;
/// Number of queries that are searched for at once.
const QUERIES_MAX: usize = 512;
/// The fewest rows of a sample, and the fewest and most entries of a list.
const SAMPLE_MIN: usize = 1 << 12;
const PLACES_MIN: usize = 1 << 11;
const PLACES_MAX: usize = 1 << 14;
/// Capacity of a list as a multiple of the expected candidates.
const RESERVE: usize = 4;
/// Number of candidates per query that is worth a larger sample.
const CANDIDATES_WANTED: usize = 512;
/// Size of the rows that are widened to f32 at a time.
const WIDENED_BYTES_MAX: usize = 256 << 20;
/// Number of workgroups for each query whose list overflowed.
const LATE_PARTS: usize = 32;
/// Number of sample rows that one workgroup selects from.
const SELECTED_MIN: usize = 1 << 13;

/// The plan of a search.
pub(super) struct ListedSearchPlan {
    /// Number of queries at once.
    turn: usize,
    /// Every `step`-th row is in the sample.
    step: usize,
    places: usize,
}

impl ListedSearchPlan {
    /// Returns `None` if another way is better.
    pub(super) fn new<D: Driver>(search: &Searching<D>, profile: &Profile) -> Option<ListedSearchPlan> {
        let ([rows, dim, queries], k) = (search.sizes(), search.k);
        if queries <= PASSES_MAX || rows < ROWS_MIN || k > K_MAX || dim == 0 {
            return None;
        }
        let binding = profile.binding_bytes_max as usize;
        let turn = queries.min(QUERIES_MAX);
        let sample_max = SCORES_MAX.min(binding / 4) / turn;
        let sample = (k * rows / CANDIDATES_WANTED).max(SAMPLE_MIN).min(sample_max).min(rows / 2);
        let step = rows / sample.max(1);
        let expected = k * step;
        let places = (expected * RESERVE).next_power_of_two().max(PLACES_MIN);
        let lists_fit = places <= PLACES_MAX && turn * places * 8 <= binding;
        // Lists and counts are written; queries, rows and limits are read, and the filter and two
        // kinds of norms if needed.
        let bound = 5 + usize::from(search.filter.is_some()) + 2 * usize::from(search.metric == Metric::Cosine);
        (lists_fit && sample >= 2 * k && bound <= profile.buffers_max).then_some(ListedSearchPlan {
            turn,
            step,
            places,
        })
    }

    pub(super) fn run<D: Driver>(
        &self,
        search: &Searching<D>,
        [ids, scores]: [&Operand<D>; 2],
        context: &mut Context<D>,
    ) -> Result<()> {
        let [_, _, queries] = search.sizes();
        let [query_norms, row_norms] = search.lengths(context)?;
        for first in (0..queries).step_by(self.turn) {
            let count = self.turn.min(queries - first);
            // Results begin at windows' starts: a turn's queries are a multiple of the windows'
            // step.
            let ids = ids.slice(0, first, count)?.windowed();
            let scores = scores.slice(0, first, count)?.windowed();
            let part = search.with_queries(first, count)?;
            let turn =
                QueryBatch { plan: self, search: &part, first, query_norms: &query_norms, row_norms: &row_norms };
            turn.run([&ids, &scores], context)?;
        }
        Ok(())
    }
}

/// One turn: some of the queries.
struct QueryBatch<'a, D: Driver> {
    plan: &'a ListedSearchPlan,
    search: &'a Searching<D>,
    /// Index of the first query.
    first: usize,
    query_norms: &'a Option<Operand<D>>,
    row_norms: &'a Option<Operand<D>>,
}

impl<D: Driver> QueryBatch<'_, D> {
    fn run(&self, [ids, scores]: [&Operand<D>; 2], context: &mut Context<D>) -> Result<()> {
        let (queries, k, places) = (self.search.queries.shape[0], self.search.k, self.plan.places);
        let limits = self.limits(context)?;
        let (lists, counts) = (context.words(2 * queries * places)?, context.words(queries)?);
        context.clear(&counts);
        self.list([&lists, &counts], &limits, context)?;
        // The first slot of a query belongs to its list.
        let slots = 1 + self.late_slots(context);
        let pairs = context.words(2 * queries * slots * k)?;
        let kernel = SelectKernel::new(SelectSource::Lists { metric: self.search.metric }, false, k);
        let params = self.search.select_params([queries, places, 1], [1, places], 0, 0, [slots, 0]);
        context.run(&Kernel::Select(kernel), &[&pairs], &[&lists, &counts], &params, queries as u64)?;
        self.search_late(&pairs, &counts, slots, context)?;
        self.search.merge(pairs, slots, ids, scores, context)
    }

    /// The filter and the norms that the metric needs.
    fn also_read(&self) -> impl Iterator<Item = &Operand<D>> {
        let norms = [self.row_norms, self.query_norms].into_iter().flatten();
        self.search.filter.iter().chain(norms)
    }

    /// The best k of the sample, as pairs.
    fn limits(&self, context: &mut Context<D>) -> Result<Operand<D>> {
        let ([rows, dim, queries], k, step) = (self.search.sizes(), self.search.k, self.plan.step);
        let sample = rows / step;
        let spread = Operand {
            shape: Shape::new([sample, dim])?,
            strides: Strides::new([(step * dim) as isize, 1])?,
            ..self.search.rows.clone()
        };
        // The spread rows may span more than a kernel sees; a copy of the sample does not.
        let spread =
            if spread.is_within(context.profile.binding_bytes_max) { spread } else { context.dense(spread)? };
        let sums = context.output(DType::F32, Shape::new([queries, sample])?)?;
        let product = Product::plain([queries, sample, dim], Accumulate::of(self.search.metric));
        let made = match &self.search.given {
            Some(given) => wide_units::sums(&product, [given, &spread.permuted(&[1, 0])?], &sums, context)?,
            None => false,
        };
        if !made {
            let columns = columns(&spread, context)?;
            multiply(&product, [&self.search.queries, &columns], [None, None], &sums, context)?;
        }
        let parts = sample.div_ceil(SELECTED_MIN);
        let part = sample.div_ceil(parts);
        let pairs = context.words(2 * queries * parts * k)?;
        let source = SelectSource::Scores { metric: self.search.metric, filtered: self.search.filter.is_some() };
        let mut params = self.search.select_params([queries, sample, step], [parts, part], 0, 0, [parts, 0]);
        params[9] = self.row_norms.as_ref().map_or(0, Operand::start);
        params[10] = self.first as u32;
        let reads: Vec<&Operand<D>> = std::iter::once(&sums).chain(self.also_read()).collect();
        let kernel = Kernel::Select(SelectKernel::new(source, false, k));
        context.run(&kernel, &[&pairs], &reads, &params, (queries * parts) as u64)?;
        self.search.merge_pairs(pairs, parts, context)
    }

    /// Lists the rows that are not worse than the limits.
    fn list(&self, [lists, counts]: [&Operand<D>; 2], limits: &Operand<D>, context: &mut Context<D>) -> Result<()> {
        if self.list_wide([lists, counts], limits, context)? {
            return Ok(());
        }
        let [rows, dim, queries] = self.search.sizes();
        let binding = context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES;
        let is_f32 = self.search.rows.dtype == DType::F32;
        let most = if is_f32 { binding } else { binding.min(WIDENED_BYTES_MAX) };
        let chunk = (most / (dim * 4) / 4 * 4).min(rows);
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let columns = self.search.some_rows(first, count, context)?;
            let tile = tile(queries, context);
            let product = Product::plain([queries, count, dim], Accumulate::of(self.search.metric));
            let kernel = ListKernel {
                load_a: load(&self.search.queries, [0, 1], [queries, dim], 4),
                load_b: load(&columns, [1, 0], [count, dim], 4),
                metric: self.search.metric,
                filtered: self.search.filter.is_some(),
                tile,
            };
            let params = params(&product, [&self.search.queries, &columns], [None, None], tile);
            let params = self.list_params(params, first);
            let reads: Vec<&Operand<D>> =
                [&self.search.queries, &columns, limits].into_iter().chain(self.also_read()).collect();
            let groups = queries.div_ceil(tile.m()) * count.div_ceil(tile.n());
            context.run(&Kernel::List(kernel), &[lists, counts], &reads, &params, groups as u64)?;
        }
        Ok(())
    }

    /// The same on matrix units, if rows and queries suit them and all rows are seen at once.
    /// Returns whether this was done.
    fn list_wide(
        &self,
        [lists, counts]: [&Operand<D>; 2],
        limits: &Operand<D>,
        context: &mut Context<D>,
    ) -> Result<bool> {
        let ([rows, dim, queries], Some(given)) = (self.search.sizes(), &self.search.given) else { return Ok(false) };
        let columns = self.search.rows.permuted(&[1, 0])?;
        let product = Product::plain([queries, rows, dim], Accumulate::of(self.search.metric));
        let target = WideTarget::Lists { metric: self.search.metric, filtered: self.search.filter.is_some() };
        let reads: Vec<&Operand<D>> = [given, &columns, limits].into_iter().chain(self.also_read()).collect();
        let made = wide_units::list_kernel(&product, [given, &columns], target, reads.len(), context)?;
        let Some((kernel, tile)) = made else { return Ok(false) };
        let params = wide_units::wide_params(&product, [given, &columns], [None, None], tile);
        let groups = queries.div_ceil(tile.m()) * rows.div_ceil(tile.n());
        context.run(&kernel, &[lists, counts], &reads, &self.list_params(params, 0), groups as u64)?;
        Ok(true)
    }

    /// A product's parameters with the lists' parameters in place of the last ones, beginning at
    /// row `first`.
    fn list_params(&self, mut params: Vec<u32>, first: usize) -> Vec<u32> {
        let start = |operand: &Option<Operand<D>>| operand.as_ref().map_or(0, Operand::start);
        let own = [first as u32, start(&self.search.filter), start(self.row_norms), self.first as u32];
        params.truncate(params.len() - (own.len() + 1));
        params.extend(own);
        params.extend([self.plan.places as u32, self.search.k as u32]);
        params
    }

    /// Number of rows that a pass sees at once.
    fn late_rows(&self, context: &Context<D>) -> usize {
        let [rows, dim, _] = self.search.sizes();
        let row_bytes = dim * self.search.rows.dtype.size_bytes();
        let seen = (context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES) / row_bytes;
        rows.min(seen / ROWS_AT_ONCE * ROWS_AT_ONCE)
    }

    /// Number of slots for queries whose lists overflowed.
    fn late_slots(&self, context: &Context<D>) -> usize {
        self.search.rows.shape[0].div_ceil(self.late_rows(context)) * LATE_PARTS
    }

    /// A pass for each query whose list overflowed. For other queries the kernel writes no
    /// candidates.
    fn search_late(
        &self,
        pairs: &Operand<D>,
        counts: &Operand<D>,
        slots: usize,
        context: &mut Context<D>,
    ) -> Result<()> {
        let [rows, dim, queries] = self.search.sizes();
        let mut kernel = self.search.pass_kernel(false);
        kernel.listed = true;
        let norms = self.row_norms.as_ref().filter(|_| kernel.norms_given);
        let seen = self.late_rows(context);
        for (window, first) in (0..rows).step_by(seen).enumerate() {
            let count = seen.min(rows - first);
            let some = self.search.rows.span(first * dim, count * dim)?.windowed();
            let slot = 1 + window * LATE_PARTS;
            let sizes = [queries, count, 1];
            let mut params = self.search.select_params(sizes, [LATE_PARTS, 0], some.start(), first, [slots, slot]);
            params.extend([dim as u32, self.search.queries.start(), self.first as u32, self.plan.places as u32]);
            let reads: Vec<&Operand<D>> = [&some, &self.search.queries, counts]
                .into_iter()
                .chain(&self.search.filter)
                .chain(norms)
                .chain(self.query_norms)
                .collect();
            context.run(&Kernel::Search(kernel), &[pairs], &reads, &params, (queries * LATE_PARTS) as u64)?;
        }
        Ok(())
    }
}

/// The tile for a number of queries.
fn tile<D: Driver>(queries: usize, context: &mut Context<D>) -> Tile {
    let large = context.tuning().large().unwrap_or(LARGE_TILES[0]);
    let tile = if queries <= SMALL_TILE.m() { SMALL_TILE } else { large };
    Tile { unrolled: !context.profile.is_software, ..tile }
}
