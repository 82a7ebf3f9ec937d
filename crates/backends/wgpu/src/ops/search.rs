//! Search: one query at a time in one pass over the rows, or many at once as a matrix product followed by a select.

use panoply_core::op::compute::{Metric, Search};
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Accumulate, Kernel, NormKernel, SELECT_K_MAX, SearchKernel, SelectKernel, SelectSource};

use super::empty;
use super::map::cast;
use super::matmul::{Product, multiply};
use crate::context::Context;
use crate::operand::Operand;

/// Up to so many queries each get a pass of their own: memory is read again, but nothing is written.
const PASSES_MAX: usize = 4;
/// The largest k of such a pass.
const PASS_K_MAX: usize = 256;
/// Rows that a workgroup takes at a time.
const ROWS_AT_ONCE: usize = 256;
/// Workgroups of a pass: two for each multiprocessor of a large device.
const PASS_PARTS: usize = 264;
/// Candidates that one workgroup merges without being slow.
const MERGE_MAX: usize = 4096;
/// Scores that are kept at once.
const SCORES_MAX: usize = 16 << 20;
/// Workgroups that keep a device busy with selecting.
const GROUPS_WANTED: usize = 512;

pub(crate) fn support(op: &Search) -> Result<(), String> {
    if op.k > SELECT_K_MAX && op.rows.shape()[0] > 0 {
        return Err(format!("a k of {}; kernels keep at most {SELECT_K_MAX}", op.k));
    }
    Ok(())
}

pub(crate) fn run(op: &Search, context: &mut Context) -> Result<(Tensor, Tensor)> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return Ok((empty(DType::U32, shape)?, empty(DType::F32, shape)?));
    }
    if op.rows.shape()[0] == 0 {
        let ids = Tensor::from_vec(vec![u32::MAX; shape.elements()], shape)?;
        return Ok((ids, Tensor::from_vec(vec![op.metric.missing_score(); shape.elements()], shape)?));
    }
    let queries = context.input(&op.queries)?;
    let search = Searching {
        rows: context.input(&op.rows)?,
        queries: cast(&queries, DType::F32, context)?,
        filter: op.filter.as_ref().map(|filter| context.input(filter)).transpose()?,
        row_norms: op.row_norms.as_ref().map(|norms| context.input(norms)).transpose()?,
        metric: op.metric,
        k: op.k,
    };
    let ids = context.output(DType::U32, shape)?;
    let scores = context.output(DType::F32, shape)?;
    if shape[0] <= PASSES_MAX && op.k <= PASS_K_MAX {
        search.by_passes(&ids, &scores, context)?;
    } else {
        search.by_products(&ids, &scores, context)?;
    }
    Ok((context.finish(ids)?, context.finish(scores)?))
}

/// A search with its operands in place. The queries are f32.
struct Searching {
    rows: Operand,
    queries: Operand,
    filter: Option<Operand>,
    row_norms: Option<Operand>,
    metric: Metric,
    k: usize,
}

impl Searching {
    fn sizes(&self) -> [usize; 3] {
        [self.rows.shape[0], self.rows.shape[1], self.queries.shape[0]]
    }

    fn by_passes(&self, ids: &Operand, scores: &Operand, context: &mut Context) -> Result<()> {
        let [rows, dim, queries] = self.sizes();
        let tiles = rows.div_ceil(ROWS_AT_ONCE);
        let part = tiles.div_ceil(PASS_PARTS) * ROWS_AT_ONCE;
        let parts = rows.div_ceil(part);
        let last = parts == 1;
        let aligned =
            dim.is_multiple_of(4) && self.rows.offset.is_multiple_of(4) && self.queries.offset.is_multiple_of(4);
        let cosine = self.metric == Metric::Cosine;
        let norms_given = cosine && self.row_norms.is_some();
        let kernel = SearchKernel::new(self.rows.dtype, self.metric, self.filter.is_some(), norms_given, aligned, last);
        let query_norms = if cosine { Some(norms(&self.queries, context)?) } else { None };
        let pairs = context.words(2 * queries * parts * self.k)?;
        let row_norms = self.row_norms.as_ref().filter(|_| norms_given);
        let reads: Vec<&Operand> =
            [&self.rows, &self.queries].into_iter().chain(&self.filter).chain(row_norms).chain(&query_norms).collect();
        let writes: Vec<&Operand> = if last { vec![ids, scores] } else { vec![&pairs] };
        for query in 0..queries {
            let mut params = self.select_params([1, rows, 1], [parts, part], self.rows.start(), 0, [parts, 0]);
            params[10] = query as u32;
            params.extend([dim as u32, self.queries.start() + (query * dim) as u32, query as u32]);
            context.run(&Kernel::Search(kernel), &writes, &reads, &params, parts as u64)?;
        }
        if last { Ok(()) } else { self.merge(pairs, parts, ids, scores, context) }
    }

    fn by_products(&self, ids: &Operand, scores: &Operand, context: &mut Context) -> Result<()> {
        let [rows, dim, queries] = self.sizes();
        let cosine = self.metric == Metric::Cosine;
        let query_norms = if cosine { Some(norms(&self.queries, context)?) } else { None };
        let row_norms = match &self.row_norms {
            Some(given) if cosine => Some(given.clone()),
            None if cosine => Some(norms(&self.rows, context)?),
            _ => None,
        };
        let limit = SCORES_MAX.min(context.profile.binding_bytes_max as usize / 4) / queries;
        let chunk = rows.min(limit.max(ROWS_AT_ONCE).next_multiple_of(4));
        let chunks = rows.div_ceil(chunk);
        let parts = (GROUPS_WANTED / queries).clamp(1, chunk.div_ceil(1024.max(8 * self.k)));
        let part = chunk.div_ceil(parts);
        let parts = chunk.div_ceil(part);
        let slots = chunks * parts;
        let last = slots == 1;
        let pairs = context.words(2 * queries * slots * self.k)?;
        let source = SelectSource::Scores { metric: self.metric, filtered: self.filter.is_some() };
        let kernel = Kernel::Select(SelectKernel::new(source, last, self.k));
        let accumulate =
            if self.metric == Metric::Euclidean { Accumulate::SquaredDifference } else { Accumulate::Product };
        for number in 0..chunks {
            let first = number * chunk;
            let count = chunk.min(rows - first);
            let sums = context.output(DType::F32, Shape::new([queries, count])?)?;
            let some = self.some_rows(first, count, context)?;
            let product = Product::plain([queries, count, dim], accumulate);
            multiply(&product, [&self.queries, &some], [None, None], &sums, context)?;
            let mut params = self.select_params([queries, count, 1], [parts, part], 0, first, [slots, number * parts]);
            params[9] = row_norms.as_ref().map_or(0, Operand::start);
            let reads: Vec<&Operand> =
                std::iter::once(&sums).chain(&self.filter).chain(&row_norms).chain(&query_norms).collect();
            let writes: Vec<&Operand> = if last { vec![ids, scores] } else { vec![&pairs] };
            context.run(&kernel, &writes, &reads, &params, (queries * parts) as u64)?;
        }
        if last { Ok(()) } else { self.merge(pairs, slots, ids, scores, context) }
    }

    /// Some rows as f32, seen as columns: `dim × count`.
    fn some_rows(&self, first: usize, count: usize, context: &mut Context) -> Result<Operand> {
        let dim = self.rows.shape[1];
        let shape = Shape::new([count, dim])?;
        let some = Operand { shape, offset: self.rows.offset + first * dim, ..self.rows.clone() };
        let some = if dim == 0 { some } else { cast(&some, DType::F32, context)? };
        let (shape, strides) = (Shape::new([dim, count])?, Strides::new([1, dim as isize])?);
        Ok(Operand { shape, strides, ..some })
    }

    /// The best k of every line of slots with k candidates each, in as many steps as it takes.
    fn merge(
        &self,
        mut pairs: Operand,
        mut slots: usize,
        ids: &Operand,
        scores: &Operand,
        context: &mut Context,
    ) -> Result<()> {
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
        let kernel = Kernel::Select(SelectKernel::new(source, true, self.k));
        let params = self.select_params([queries, slots * self.k, 1], [1, slots * self.k], 0, 0, [1, 0]);
        context.run(&kernel, &[ids, scores], &[&pairs], &params, queries as u64)
    }

    fn select_params(
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

/// The lengths of vectors.
fn norms(vectors: &Operand, context: &mut Context) -> Result<Operand> {
    let [count, dim] = [vectors.shape[0], vectors.shape[1]];
    let output = context.output(DType::F32, Shape::new([count])?)?;
    let kernel = Kernel::Norm(NormKernel { dtype: vectors.dtype });
    let params = [count as u32, dim as u32, vectors.start()];
    context.run(&kernel, &[&output], &[vectors], &params, count.div_ceil(32) as u64)?;
    Ok(output)
}
