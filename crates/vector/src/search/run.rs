//! One batch of queries over one snapshot.
//!
//! A segment's rows are split into pieces by where they are stored: a block on a device is searched
//! there, the other rows on the host. Each piece is one `Search` op, and all pieces run
//! concurrently. If a piece's device fails, the piece is searched again on the host, which always
//! has the rows. Results are merged by score; equal scores in the order of segments and rows.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use panoply_core::op::compute::{Metric, Neighbors, Search, Transfer};
use panoply_core::{DeviceId, ErrorKind, Location, Outcome, Tensor};
use panoply_runtime::{FallbackPolicy, Goal, PendingOutcome, RunOptions, Runtime};

use super::bits::{Passing, passing, slice_bits};
use super::codes::Codes;
use super::hits::BatchCandidates;
use super::rerank::exact_score;
use super::resident::ResidentRows;
use super::scales::Scales;
use super::ties::keep_nearest;
use super::{SearchOptions, SearchReport};
use crate::encode::square_sum;
use crate::error::{Error, Result};
use crate::schema::Storage;
use crate::segment::SegmentView;
use crate::state::{CollectionState, Snapshot};

/// Bytes of rows from which several NUMA nodes share a search.
const SHARED_BYTES_MIN: usize = 4 << 20;

/// Number of hits requested first when all hits within a score are wanted, and the growth factor
/// while there may be more.
const WITHIN_HITS_FIRST: usize = 64;
const WITHIN_GROWTH: usize = 8;

/// A row that may be among the nearest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) score: f32,
    /// Index of its segment in the snapshot.
    pub(crate) segment: u32,
    pub(crate) row: u32,
    /// Order among rows of the same score in its segment.
    pub(crate) age: u32,
}

/// A batch of queries being searched.
pub(crate) struct Batch<'a> {
    pub(crate) shared: &'a CollectionState,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) queries: &'a [f32],
    pub(crate) count: usize,
    pub(crate) k: usize,
    /// For each query, the candidates found so far.
    pub(crate) found: Vec<Vec<Candidate>>,
    pub(crate) report: SearchReport,
    /// Number of candidates wanted from each piece.
    pub(crate) wanted: usize,
    /// Whether candidates are found with eight-bit copies of the rows.
    pub(crate) coarse: bool,
    /// For each segment, the rows that may be returned, once computed.
    bits: Vec<Option<Passing>>,
    /// For each query, the nearest score at which a piece may have omitted rows that are older than
    /// those found.
    pub(super) cuts: Vec<Option<f32>>,
    under_way: Vec<(SearchPiece, PendingOutcome<Neighbors>)>,
}

/// The memory that a piece reads its rows from.
#[derive(Clone, Copy)]
enum RowSource<'a> {
    Host,
    Block(&'a Arc<ResidentRows>),
    Codes(&'a Arc<Codes>),
}

/// Rows that are searched by one op.
struct SearchPiece {
    segment: u32,
    rows: Range<u32>,
    block: Option<Arc<ResidentRows>>,
    codes: Option<Arc<Codes>>,
    /// The queries of the piece; `None`: all of them, in order.
    subset: Option<Arc<[u32]>>,
    queries: Tensor,
    filter: Option<Tensor>,
    k: usize,
    /// The factor of the scores: the scale in whose units rows and queries are given.
    scale: f32,
}

/// The rows of a segment that one search can score: rows that pass and have the same scale.
struct ScorableRows {
    passing: Passing,
    scale: f32,
    queries: Tensor,
}

/// Searches a batch of valid queries.
pub(crate) fn search(
    shared: &CollectionState,
    queries: &[f32],
    count: usize,
    options: &SearchOptions,
) -> Result<BatchCandidates> {
    let snapshot = shared.snapshot();
    let queries = shared.schema.in_range(queries);
    let k = if options.k == 0 { 0 } else { options.k.saturating_add(options.offset).min(snapshot.len()) };
    let metric = shared.schema.metric;
    // With reranking, a later page may have nearer hits than an earlier one.
    let grows = options.within.is_some() && (options.rerank.is_none() || options.offset == 0);
    let mut first = if grows { k.min(WITHIN_HITS_FIRST) } else { k };
    loop {
        let mut batch = Batch::new(shared, &snapshot, &queries, count, first);
        batch.run(options)?;
        let Batch { mut found, report, .. } = batch;
        if let Some(limit) = options.within {
            let is_within =
                |hit: &Candidate| if metric.smaller_is_nearer() { hit.score <= limit } else { hit.score >= limit };
            // The last candidate is within the limit, so rows beyond the candidates may be too.
            if first < k && found.iter().any(|found| found.len() >= first && found.last().is_some_and(is_within)) {
                first = first.saturating_mul(WITHIN_GROWTH).min(k);
                continue;
            }
            found.iter_mut().for_each(|found| {
                drop_pages_before(options, found);
                found.retain(is_within);
            });
        } else {
            found.iter_mut().for_each(|found| drop_pages_before(options, found));
        }
        return Ok(BatchCandidates { snapshot, found, report });
    }
}

/// Removes the hits of the pages before the requested one.
fn drop_pages_before(options: &SearchOptions, found: &mut Vec<Candidate>) {
    found.drain(..options.offset.min(found.len()));
}

/// Checks queries and options, and returns the number of queries.
pub(crate) fn check(shared: &CollectionState, queries: &[f32], options: &SearchOptions) -> Result<usize> {
    shared.check_sound()?;
    let count = shared.schema.count_vectors(queries.len())?;
    queries.chunks_exact(shared.schema.dimension).try_for_each(|query| shared.schema.check_query(query))?;
    options.filter.as_ref().map_or(Ok(()), |filter| shared.check_filter(filter))?;
    match options.within {
        Some(limit) if limit.is_nan() => Err(Error::invalid("within", "a score", limit)),
        _ => Ok(count),
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        shared: &'a CollectionState,
        snapshot: &'a Snapshot,
        queries: &'a [f32],
        count: usize,
        k: usize,
    ) -> Batch<'a> {
        let report = SearchReport { batch_size: count, ..SearchReport::default() };
        let (k, bits) = (k.min(snapshot.len()), vec![None; snapshot.segments.len()]);
        let (found, cuts, under_way) = (vec![Vec::new(); count], vec![None; count], Vec::new());
        Batch { shared, snapshot, queries, count, k, found, report, wanted: k, coarse: false, bits, cuts, under_way }
    }

    /// Finds the candidates of every query.
    pub(crate) fn run(&mut self, options: &SearchOptions) -> Result<()> {
        if self.k == 0 || self.count == 0 {
            return Ok(());
        }
        match options.rerank {
            Some(times) => self.run_reranked(options, times),
            None => self.run_once(options),
        }
    }

    /// Finds the `wanted` candidates of every query.
    pub(super) fn run_once(&mut self, options: &SearchOptions) -> Result<()> {
        self.run_pieces(options)?;
        // Candidates from eight-bit copies are ranked again by the caller.
        if self.coarse { Ok(()) } else { self.settle_ties(options) }
    }

    /// `run_once` without settling ties: a piece cut among rows of equal score may have omitted the
    /// oldest of them.
    pub(super) fn run_pieces(&mut self, options: &SearchOptions) -> Result<()> {
        match options.nprobe {
            Some(nprobe) => self.start_probes(options, nprobe)?,
            None => self.start_all(options)?,
        }
        self.finish()
    }

    /// Starts an exact search of every segment.
    pub(crate) fn start_all(&mut self, options: &SearchOptions) -> Result<()> {
        let all = self.query_tensor(None)?;
        for place in 0..self.snapshot.segments.len() {
            let rows = 0..self.snapshot.segments[place].count;
            self.start(place, rows, options, &all, None)?;
        }
        Ok(())
    }

    /// The queries as a tensor: all of them, or a subset.
    pub(crate) fn query_tensor(&self, subset: Option<&[u32]>) -> Result<Tensor> {
        let dimension = self.shared.schema.dimension;
        Ok(match subset {
            None => Tensor::from_slice(self.queries, [self.count, dimension])?,
            Some(subset) => {
                let mut values = Vec::with_capacity(subset.len() * dimension);
                for query in subset {
                    values.extend_from_slice(&self.queries[*query as usize * dimension..][..dimension]);
                }
                Tensor::from_vec(values, [subset.len(), dimension])?
            }
        })
    }

    /// Starts a search of a range of rows of one segment.
    pub(crate) fn start(
        &mut self,
        place: usize,
        range: Range<u32>,
        options: &SearchOptions,
        queries: &Tensor,
        subset: Option<&Arc<[u32]>>,
    ) -> Result<()> {
        let segment = Arc::clone(&self.snapshot.segments[place]);
        let bits = self.bits[place].get_or_insert_with(|| passing(&segment, options.filter.as_ref())).clone();
        if range.is_empty() || bits.as_ref().is_some_and(|(_, count)| *count == 0) {
            return Ok(());
        }
        self.report.scanned_rows += range.len() as u64 * queries.shape()[0] as u64;
        let mut range = range;
        if self.coarse
            && let Some(codes) = segment.shared.codes.of(&segment, &self.shared.schema)
        {
            let coded = range.start..range.end.min(codes.count);
            if !coded.is_empty() {
                range.start = coded.end;
                let host = self.shared.hosts.first().copied();
                for part in parts(codes.scales.as_ref(), &bits, segment.count, queries)? {
                    self.start_piece(place, &segment, coded.clone(), RowSource::Codes(&codes), host, &part, subset)?;
                }
            }
            if range.is_empty() {
                return Ok(());
            }
        }
        let scales = self.shared.schema.searches_by_scale().then(|| segment.shared.scales.of(&segment));
        for part in parts(scales.as_deref(), &bits, segment.count, queries)? {
            self.start_part(place, &segment, range.clone(), &part, subset)?;
        }
        Ok(())
    }

    /// Starts a search of a range of rows, on the devices that store them.
    fn start_part(
        &mut self,
        place: usize,
        segment: &SegmentView,
        range: Range<u32>,
        part: &ScorableRows,
        subset: Option<&Arc<[u32]>>,
    ) -> Result<()> {
        let resident = segment.shared.resident.state();
        let mut next = range.start;
        for block in resident.blocks.iter() {
            let rows = range.start.max(block.first_row)..range.end.min(block.first_row + block.count);
            if rows.is_empty() {
                continue;
            }
            if next < rows.start {
                self.start_on_host(place, segment, next..rows.start, part, subset)?;
            }
            next = rows.end;
            self.start_piece(place, segment, rows, RowSource::Block(block), None, part, subset)?;
        }
        if next < range.end {
            self.report.spilled_rows += u64::from(range.end - next).min(u64::from(resident.spilled()));
            self.start_on_host(place, segment, next..range.end, part, subset)?;
        }
        Ok(())
    }

    /// Starts a search of rows on the host; many rows are shared between its NUMA nodes.
    fn start_on_host(
        &mut self,
        place: usize,
        segment: &SegmentView,
        range: Range<u32>,
        part: &ScorableRows,
        subset: Option<&Arc<[u32]>>,
    ) -> Result<()> {
        let hosts = &self.shared.hosts;
        let alone = hosts.len() <= 1 || range.len() * segment.row_bytes < SHARED_BYTES_MIN;
        if alone {
            let host = hosts.first().copied();
            return self.start_piece(place, segment, range, RowSource::Host, host, part, subset);
        }
        let share = range.len().div_ceil(hosts.len()).next_multiple_of(32);
        for (first, host) in range.clone().step_by(share).zip(self.shared.hosts.clone()) {
            let rows = first..range.end.min(first + share as u32);
            self.start_piece(place, segment, rows, RowSource::Host, Some(host), part, subset)?;
        }
        Ok(())
    }

    fn start_piece(
        &mut self,
        place: usize,
        segment: &SegmentView,
        rows: Range<u32>,
        source: RowSource<'_>,
        host: Option<DeviceId>,
        part: &ScorableRows,
        subset: Option<&Arc<[u32]>>,
    ) -> Result<()> {
        let bits = part.passing.as_ref();
        let whole_block = match source {
            RowSource::Block(block) if block.first_row == rows.start && block.count == rows.len() as u32 => Some(block),
            _ => None,
        };
        // If the device has no copy of the mask, the filter is sent with the op.
        let mask = bits.zip(whole_block).and_then(|((words, _), block)| block.mask(&self.shared.runtime, words).ok());
        let filter = match bits {
            None => None,
            Some(_) if mask.is_some() => mask,
            Some((words, _)) if rows.start == 0 => {
                Some(Tensor::from_owner::<u32, Arc<[u32]>>(Arc::clone(words), [words.len()])?)
            }
            Some((words, _)) => {
                let words = slice_bits(words, rows.start, rows.len() as u32);
                let shape = [words.len()];
                Some(Tensor::from_vec(words, shape)?)
            }
        };
        let codes = matches!(source, RowSource::Codes(_));
        // The candidate after the wanted ones tells whether rows of equal score were omitted.
        let one_more = usize::from(self.may_omit_older(segment, &rows, codes, part.scale));
        let piece = SearchPiece {
            segment: place as u32,
            k: self.wanted.saturating_add(one_more).min(rows.len()),
            rows,
            block: if let RowSource::Block(block) = source { Some(Arc::clone(block)) } else { None },
            codes: if let RowSource::Codes(codes) = source { Some(Arc::clone(codes)) } else { None },
            subset: subset.cloned(),
            queries: self.op_queries(&part.queries, codes)?,
            filter,
            scale: part.scale,
        };
        let pending = piece.send(&self.shared.runtime, self.op_metric(), segment, host)?;
        self.report.ops += 1;
        self.under_way.push((piece, pending));
        Ok(())
    }

    /// Waits for all pieces in flight, and merges their results.
    pub(crate) fn finish(&mut self) -> Result<()> {
        for (piece, pending) in std::mem::take(&mut self.under_way) {
            let segment = Arc::clone(&self.snapshot.segments[piece.segment as usize]);
            let outcome = match (pending.wait(), &piece.block) {
                (Err(error), Some(block)) if may_be_elsewhere(&error) => {
                    self.note_failure(&segment, block, &error);
                    self.report.fallback.get_or_insert(error);
                    let filter = self.host_filter(&piece)?;
                    let on_host = SearchPiece { block: None, filter, ..piece.clone() };
                    let host = self.shared.hosts.first().copied();
                    on_host.send(&self.shared.runtime, self.op_metric(), &segment, host)?.wait()?
                }
                (outcome, _) => outcome?,
            };
            self.absorb(&piece, &segment, outcome)?;
        }
        let (metric, k) = (self.shared.schema.metric, self.wanted);
        self.found.iter_mut().for_each(|found| keep_nearest(metric, k, found));
        Ok(())
    }

    /// Gives up a device's block if later searches would fail as well.
    fn note_failure(&self, segment: &SegmentView, block: &Arc<ResidentRows>, error: &panoply_core::Error) {
        let placement = &self.shared.placement;
        let gives_up = match error {
            panoply_core::Error::OutOfMemory { .. } => placement.note_shortage(block.device),
            error => match error.kind() {
                ErrorKind::Device => true,
                ErrorKind::Caller => {
                    placement.refuse(self.shared, block.device, error.to_string());
                    true
                }
                ErrorKind::Capacity => false,
            },
        };
        if gives_up {
            segment.shared.resident.forget(block);
            placement.expire();
            self.shared.nudge();
        }
    }

    /// The filter of a piece, readable by the host.
    fn host_filter(&self, piece: &SearchPiece) -> Result<Option<Tensor>> {
        let segment = &self.snapshot.segments[piece.segment as usize];
        let mut bits = self.bits[piece.segment as usize].clone().unwrap_or_default();
        if self.shared.schema.searches_by_scale() {
            let scales = segment.shared.scales.of(segment);
            let class = scales.classes.iter().find(|class| class.scale == piece.scale);
            bits = class.map_or(bits.clone(), |class| class.passing(&bits, segment.count));
        }
        let words = bits.map(|(words, _)| slice_bits(&words, piece.rows.start, piece.rows.len() as u32));
        Ok(words.map(|words| Tensor::from_slice(&words, [words.len()])).transpose()?)
    }

    fn absorb(&mut self, piece: &SearchPiece, segment: &SegmentView, outcome: Outcome<Neighbors>) -> Result<()> {
        let device = outcome.report.device;
        if !self.report.devices.contains(&device) {
            self.report.devices.push(device);
        }
        let (ids, scores) = on_host(&self.shared.runtime, outcome.output)?;
        let (ids, scores) = (ids.as_slice::<u32>()?, scores.as_slice::<f32>()?);
        let lines = ids.chunks_exact(piece.k.max(1)).zip(scores.chunks_exact(piece.k.max(1)));
        let coarse = self.coarse;
        let may_omit_older = self.may_omit_older(segment, &piece.rows, piece.codes.is_some(), piece.scale);
        for (line, (ids, scores)) in lines.enumerate() {
            let query = piece.subset.as_ref().map_or(line, |subset| subset[line] as usize);
            let own = &self.queries[query * self.dimension()..][..self.dimension()];
            let length = if self.takes_norms_for_dot(piece.codes.is_some()) { square_sum(own).sqrt() } else { 1.0 };
            let factor = length * f64::from(piece.scale);
            let rows = ids.iter().zip(scores).take_while(|(id, _)| **id < piece.rows.len() as u32);
            let found = rows.map(|(id, score)| {
                let row = piece.rows.start + id;
                let score = match (f64::from(*score) * factor) as f32 {
                    score if score.is_finite() => score,
                    // Rows stored by earlier versions may be longer than the present limit.
                    _ => exact_score(self.shared.schema.metric, own, &segment.vector(row)),
                };
                // Copies are cut in stored order, independently of age.
                let age = if coarse { row } else { segment.age_of(row) };
                Candidate { score, segment: piece.segment, row, age }
            });
            let before = self.found[query].len();
            self.found[query].extend(found);
            let found = &self.found[query][before..];
            let cut = found.last().filter(|_| found.len() == piece.k && piece.k < piece.rows.len());
            if let Some(cut) = cut.filter(|_| may_omit_older).map(|cut| cut.score) {
                self.note_cut(query, cut);
            }
        }
        Ok(())
    }

    /// Whether the op on a piece may omit rows that are older than a returned row of equal score:
    /// if the rows are not in age order, or if scores that differ may become equal when they are
    /// multiplied. Candidates from eight-bit copies are ranked again, so that is no matter there.
    fn may_omit_older(&self, segment: &SegmentView, rows: &Range<u32>, codes: bool, scale: f32) -> bool {
        let is_exact = !self.takes_norms_for_dot(codes) && is_power_of_two(scale);
        !self.coarse && !(is_exact && segment.is_by_age(rows))
    }

    /// The metric for ops. Eight-bit rows with individual scales use the cosine's arithmetic, with
    /// 1/scale as their norm.
    fn op_metric(&self) -> Metric {
        let schema = &self.shared.schema;
        if schema.has_norms() { Metric::Cosine } else { schema.metric }
    }

    /// Whether rows are searched with the cosine's arithmetic under dot: eight-bit rows, with
    /// 1/scale as their norm. The op divides by the query's length, so its scores are multiplied by
    /// that length.
    fn takes_norms_for_dot(&self, codes: bool) -> bool {
        let schema = &self.shared.schema;
        schema.metric == Metric::Dot && (codes || schema.storage == Storage::I8)
    }

    /// The queries for an op. If the op divides by their lengths, the lengths do not matter, and
    /// very short queries are scaled so that their squares do not underflow in `f32`.
    fn op_queries(&self, queries: &Tensor, codes: bool) -> Result<Tensor> {
        if !self.takes_norms_for_dot(codes) {
            return Ok(queries.clone());
        }
        Ok(match self.shared.schema.of_moderate_length(queries.as_slice()?) {
            Cow::Borrowed(_) => queries.clone(),
            Cow::Owned(scaled) => Tensor::from_vec(scaled, queries.shape())?,
        })
    }

    fn dimension(&self) -> usize {
        self.shared.schema.dimension
    }
}

/// Whether multiplication by `factor` is exact, so that different scores stay different.
fn is_power_of_two(factor: f32) -> bool {
    const MANTISSA: u32 = (1 << 23) - 1;
    factor.to_bits() & MANTISSA == 0
}

/// The rows that pass, grouped by scale, each group with the queries in units of its scale.
fn parts(scales: Option<&Scales>, passing: &Passing, rows: u32, queries: &Tensor) -> Result<Vec<ScorableRows>> {
    let Some(scales) = scales else {
        return Ok(vec![ScorableRows { passing: passing.clone(), scale: 1.0, queries: queries.clone() }]);
    };
    let mut parts = Vec::new();
    for class in &scales.classes {
        let (passing, scale) = (class.passing(passing, rows), class.scale);
        if passing.as_ref().is_none_or(|(_, count)| *count > 0) {
            let values = queries.as_slice::<f32>()?.iter().map(|value| value / scale).collect();
            parts.push(ScorableRows { passing, scale, queries: Tensor::from_vec(values, queries.shape())? });
        }
    }
    Ok(parts)
}

impl Clone for SearchPiece {
    fn clone(&self) -> SearchPiece {
        let SearchPiece { rows, block, codes, subset, queries, filter, .. } = self;
        let (rows, block, codes, subset) = (rows.clone(), block.clone(), codes.clone(), subset.clone());
        let (queries, filter) = (queries.clone(), filter.clone());
        SearchPiece { segment: self.segment, rows, block, codes, subset, queries, filter, k: self.k, scale: self.scale }
    }
}

impl SearchPiece {
    /// Submits the op to the device that stores the rows.
    fn send(
        &self,
        runtime: &Runtime,
        metric: Metric,
        segment: &SegmentView,
        host: Option<DeviceId>,
    ) -> Result<PendingOutcome<Neighbors>> {
        let (source, norms, offset, device) = match (&self.block, &self.codes) {
            (Some(block), _) => (&block.rows, block.norms.as_ref(), block.first_row, Some(block.device)),
            (None, Some(codes)) => (&codes.rows, codes.norms.as_ref(), 0, host),
            (None, None) => (&segment.rows, segment.norms.as_ref(), 0, host),
        };
        let metric = if norms.is_some() { Metric::Cosine } else { metric };
        let (start, end) = ((self.rows.start - offset) as usize, (self.rows.end - offset) as usize);
        let mut op = Search::new(&source.slice(0, start, end)?, &self.queries, metric, self.k);
        op.filter = self.filter.clone();
        op.row_norms = norms.map(|norms| norms.slice(0, start, end)).transpose()?;
        // No fallback to another device: only this device has the block, and the caller retries
        // with the host's rows.
        let fallback = self.block.is_some().then_some(FallbackPolicy::None);
        let options = RunOptions { device, fallback, goal: Goal::Latency, to_host: true, ..RunOptions::default() };
        Ok(runtime.run_with(op, options).with_report())
    }
}

/// Whether an op that failed on a device with this error may succeed on the host: the device
/// failed, lacked memory, is gone, or does not support the op.
pub(super) fn may_be_elsewhere(error: &panoply_core::Error) -> bool {
    use panoply_core::Error::{NoSuchDevice, Unsupported};
    error.kind() != ErrorKind::Caller || matches!(error, Unsupported { .. } | NoSuchDevice { .. })
}

/// Copies an op's output to the host.
pub(crate) fn on_host(runtime: &Runtime, output: Neighbors) -> Result<(Tensor, Tensor)> {
    let bring = |tensor: &Tensor| match tensor.location() {
        Location::Host => None,
        Location::Device(device) => {
            let options = RunOptions { device: Some(device), ..RunOptions::default() };
            Some(runtime.run_with(Transfer::to_host(tensor), options))
        }
    };
    let (ids, scores) = (bring(&output.ids), bring(&output.scores));
    let ids = ids.map_or(Ok(output.ids), |pending| pending.wait())?;
    let scores = scores.map_or(Ok(output.scores), |pending| pending.wait())?;
    Ok((ids, scores))
}
