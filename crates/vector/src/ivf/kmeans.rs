//! Training of centroids, and assignment of rows to them.
//!
//! The distance depends on the metric: the angle for cosine, the Euclidean distance for euclidean
//! and also for dot, since rows that are close to each other have similar products with every
//! vector. The runtime's `Search` finds the nearest centroid of every point, on the device that
//! suits best. Sums are taken on the host in `f64`, in the order of the points, so that the same
//! seed gives the same centroids.

use panoply_core::Tensor;
use panoply_core::op::compute::{Metric, Search};
use panoply_runtime::RunOptions;

use super::{IndexOptions, LISTS_MAX};
use crate::error::{Error, Result};
use crate::schema::Residency;
use crate::search::run::on_host;
use crate::segment::SegmentView;
use crate::state::CollectionState;

/// Points per search op for the nearest centroids.
const ASSIGN_POINTS_MAX: usize = 1 << 13;

/// The number of lists of an index of `records` records.
pub(crate) fn list_count(options: &IndexOptions, records: usize) -> Result<usize> {
    let lists = options.lists.unwrap_or_else(|| (((records as f64).sqrt() * 4.0) as usize).clamp(1, LISTS_MAX));
    if !(1..=LISTS_MAX).contains(&lists) {
        return Err(Error::invalid("lists", format!("1 to {LISTS_MAX}"), lists));
    }
    Ok(lists.min(records.max(1)))
}

/// The centroids of a collection's rows, as a tensor `[lists, dimension]`.
pub(crate) fn train(
    shared: &CollectionState,
    segments: &[std::sync::Arc<SegmentView>],
    lists: usize,
    options: &IndexOptions,
) -> Result<Tensor> {
    let (dimension, metric) = (shared.schema.dimension, assigning_metric(shared.schema.metric));
    let mut random = Random(options.seed);
    let points = sample(segments, metric, lists.saturating_mul(options.samples_per_list.max(1)), &mut random);
    let count = points.len() / dimension;
    if count < lists {
        return Err(Error::invalid("lists", format!("at most {count}, the number of records"), lists));
    }
    let mut centroids: Vec<f32> = Vec::with_capacity(lists * dimension);
    for point in random.choose(count, lists) {
        centroids.extend_from_slice(&points[point * dimension..][..dimension]);
    }
    let points = Tensor::from_vec(points, [count, dimension])?;
    for _ in 0..options.rounds {
        let tensor = Tensor::from_slice(&centroids, [lists, dimension])?;
        let assigned = nearest(shared, &tensor, &points, metric)?;
        centroids = means(points.as_slice()?, &assigned, lists, dimension, metric, &mut random);
    }
    Ok(Tensor::from_vec(centroids, [lists, dimension])?)
}

/// The list of each of the given rows of a segment.
pub(crate) fn assign(
    shared: &CollectionState,
    centroids: &Tensor,
    segment: &SegmentView,
    rows: &[u32],
) -> Result<Vec<u32>> {
    let (dimension, metric) = (shared.schema.dimension, assigning_metric(shared.schema.metric));
    let mut lists = Vec::with_capacity(rows.len());
    for part in rows.chunks(ASSIGN_POINTS_MAX) {
        let mut points = Vec::with_capacity(part.len() * dimension);
        for row in part {
            let mut point = segment.vector(*row);
            if metric == Metric::Cosine {
                // Normalise: the row may have any length, whose square may overflow `f32`.
                normalise(&mut point);
            }
            points.extend(point);
        }
        let points = Tensor::from_vec(points, [part.len(), dimension])?;
        lists.extend(nearest(shared, centroids, &points, metric)?);
    }
    Ok(lists)
}

fn assigning_metric(metric: Metric) -> Metric {
    if metric == Metric::Cosine { Metric::Cosine } else { Metric::Euclidean }
}

/// The index of the nearest centroid of each point.
fn nearest(shared: &CollectionState, centroids: &Tensor, points: &Tensor, metric: Metric) -> Result<Vec<u32>> {
    let (count, mut assigned) = (points.shape()[0], Vec::new());
    let runtime = &shared.runtime;
    // If the collection may use devices, the runtime chooses the device that finishes first.
    let may_choose = shared.options.residency != Residency::Host;
    let device = if may_choose { None } else { shared.hosts.first().copied() };
    for first in (0..count).step_by(ASSIGN_POINTS_MAX) {
        let part = points.slice(0, first, count.min(first + ASSIGN_POINTS_MAX))?;
        let op = Search::new(centroids, &part, metric, 1);
        let found = runtime.run_with(op, RunOptions { device, to_host: true, ..RunOptions::default() }).wait()?;
        let (ids, _) = on_host(runtime, found)?;
        let last = centroids.shape()[0] as u32 - 1;
        assigned.extend(ids.as_slice::<u32>()?.iter().map(|id| (*id).min(last)));
    }
    Ok(assigned)
}

/// Randomly chosen live rows as points. For cosine, points are normalised so that all have the same
/// weight.
fn sample(segments: &[std::sync::Arc<SegmentView>], metric: Metric, wanted: usize, random: &mut Random) -> Vec<f32> {
    let total: usize = segments.iter().map(|segment| segment.len() as usize).sum();
    let chosen = random.choose(total, wanted.min(total));
    let mut chosen = chosen.into_iter().peekable();
    let (mut points, mut place) = (Vec::new(), 0);
    for segment in segments {
        for row in segment.live_rows() {
            if chosen.next_if_eq(&place).is_some() {
                let mut point = segment.vector(row);
                if metric == Metric::Cosine {
                    normalise(&mut point);
                }
                points.extend(point);
            }
            place += 1;
        }
    }
    points
}

fn normalise(point: &mut [f32]) {
    let length = point.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        point.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// The mean of each centroid's points. A centroid without points becomes a randomly chosen point.
fn means(
    points: &[f32],
    assigned: &[u32],
    lists: usize,
    dimension: usize,
    metric: Metric,
    random: &mut Random,
) -> Vec<f32> {
    let (mut sums, mut counts) = (vec![0.0_f64; lists * dimension], vec![0_u32; lists]);
    for (point, list) in points.chunks_exact(dimension).zip(assigned) {
        counts[*list as usize] += 1;
        let sum = &mut sums[*list as usize * dimension..][..dimension];
        sum.iter_mut().zip(point).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let mut centroids = vec![0.0_f32; lists * dimension];
    for (list, centroid) in centroids.chunks_exact_mut(dimension).enumerate() {
        if counts[list] == 0 {
            let point = random.below(assigned.len());
            centroid.copy_from_slice(&points[point * dimension..][..dimension]);
            continue;
        }
        let sum = &sums[list * dimension..][..dimension];
        centroid.iter_mut().zip(sum).for_each(|(mean, sum)| *mean = (sum / f64::from(counts[list])) as f32);
        if metric == Metric::Cosine {
            normalise(centroid);
        }
    }
    centroids
}

/// A small pseudo-random generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// `wanted` distinct numbers below `end`, ascending.
    fn choose(&mut self, end: usize, wanted: usize) -> Vec<usize> {
        let mut chosen = Vec::with_capacity(wanted);
        for number in 0..end {
            let (left, needed) = (end - number, wanted.saturating_sub(chosen.len()));
            if needed > 0 && self.below(left) < needed {
                chosen.push(number);
            }
        }
        chosen
    }
}
