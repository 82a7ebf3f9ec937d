//! Searching the lists of the nearest centroids.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use panoply_core::Tensor;
use panoply_core::op::compute::{Metric, Search};
use panoply_runtime::RunOptions;

use super::Centroids;
use crate::encode::square_sum;
use crate::error::Result;
use crate::schema::Storage;
use crate::search::direct::{DIRECT_ELEMENTS_MAX, Nearest, for_each_key};
use crate::search::run::{Batch, Candidate, on_host};
use crate::search::ties::keep_nearest;
use crate::search::{Passing, SearchOptions, exact_score, passes, passing};
use crate::segment::SegmentView;

impl Batch<'_> {
    /// Starts a search of the `nprobe` nearest lists of each query. Segments without lists are
    /// searched entirely.
    pub(crate) fn start_probes(&mut self, options: &SearchOptions, nprobe: usize) -> Result<()> {
        let Some(centroids) = self.snapshot.centroids.clone() else {
            return self.start_all(options);
        };
        let nprobe = nprobe.clamp(1, centroids.count());
        let alone = self.count == 1 && centroids.points.elements() <= DIRECT_ELEMENTS_MAX;
        let known = alone.then(|| self.nearest_lists(&centroids, nprobe)).transpose()?;
        if let Some(lists) = &known
            && self.probe_directly(lists, options)?
        {
            return Ok(());
        }
        let all = self.query_tensor(None)?;
        let lists = match known {
            Some(lists) => lists,
            None => self.search_lists(&centroids, nprobe, &all)?,
        };
        let askers = askers(&lists, nprobe);
        for place in 0..self.snapshot.segments.len() {
            let segment = Arc::clone(&self.snapshot.segments[place]);
            match &segment.lists {
                None => self.start(place, 0..segment.count, options, &all, None)?,
                Some(table) if self.count == 1 => {
                    for range in joined(&lists, &table.offsets) {
                        self.start(place, range, options, &all, None)?;
                    }
                }
                Some(table) => {
                    for (list, queries) in &askers {
                        let range = list_range(&table.offsets, *list);
                        let tensor = self.query_tensor(Some(queries))?;
                        self.start(place, range, options, &tensor, Some(queries))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The path for a single query, on the caller's thread.
impl Batch<'_> {
    /// The lists nearest to the single query.
    fn nearest_lists(&self, centroids: &Centroids, nprobe: usize) -> Result<Vec<u32>> {
        let mut nearest = Nearest::new(nprobe);
        // For cosine the centroids have length one, so the product orders them.
        let (metric, points) = (self.shared.schema.metric, centroids.points.as_slice::<f32>()?);
        for_each_key(metric, self.queries, points, |list, key| nearest.offer(key, list, list));
        Ok(nearest.kept.into_iter().map(|(_, _, list)| list).collect())
    }

    /// Searches the lists of the single query directly, if their rows are few and are on the host
    /// as plain `f32`. Returns false otherwise.
    fn probe_directly(&mut self, lists: &[u32], options: &SearchOptions) -> Result<bool> {
        let (schema, snapshot) = (&self.shared.schema, self.snapshot);
        let on_host = |segment: &SegmentView| segment.shared.resident.state().blocks.is_empty();
        if self.coarse || schema.storage != Storage::F32 || !snapshot.segments.iter().all(|segment| on_host(segment)) {
            return Ok(false);
        }
        let ranges = |segment: &SegmentView| match &segment.lists {
            None => std::iter::once(0..segment.count).collect(),
            Some(table) => joined(lists, &table.offsets),
        };
        let ranges: Vec<Vec<Range<u32>>> = snapshot.segments.iter().map(|segment| ranges(segment)).collect();
        let rows: usize = ranges.iter().flatten().map(|range| range.len()).sum();
        if rows.saturating_mul(schema.dimension) > DIRECT_ELEMENTS_MAX {
            return Ok(false);
        }
        self.report.scanned_rows += rows as u64;
        self.report.devices.extend(self.shared.hosts.first());
        for (place, (segment, ranges)) in (0..).zip(snapshot.segments.iter().zip(ranges)) {
            if ranges.iter().all(Range::is_empty) {
                continue;
            }
            let passing = passing(segment, options.filter.as_ref());
            let found = self.nearest_rows(place, segment, &passing, ranges)?;
            self.found[0].extend(found);
        }
        keep_nearest(schema.metric, self.wanted, &mut self.found[0]);
        Ok(true)
    }

    /// The nearest of the rows in `ranges` of a segment, with their scores.
    fn nearest_rows(
        &self,
        place: u32,
        segment: &SegmentView,
        passing: &Passing,
        ranges: Vec<Range<u32>>,
    ) -> Result<Vec<Candidate>> {
        let (dimension, metric) = (self.shared.schema.dimension, self.shared.schema.metric);
        let (rows, norms) = (segment.rows.as_slice::<f32>()?, segment.norms.as_ref());
        let norms = norms.map(|norms| norms.as_slice::<f32>()).transpose()?;
        let length = square_sum(self.queries).sqrt() as f32;
        let (mut nearest, mut bound) = (Nearest::new(self.wanted), f32::INFINITY);
        let euclidean = metric == Metric::Euclidean;
        for range in ranges {
            let part = &rows[range.start as usize * dimension..range.end as usize * dimension];
            for_each_key(metric, self.queries, part, |place, key| {
                let row = range.start + place;
                if (key <= bound || key.is_nan()) && (passing.is_none() || passes(passing, row)) {
                    // Rows whose squares differ may have equal distances; such rows are ordered by
                    // age.
                    let distance = if euclidean { key.sqrt() } else { key };
                    let key = norms.map_or(distance, |norms| key / (length * norms[row as usize]));
                    // Rows stored by earlier versions may be longer than the present limit.
                    let exact = || exact_score(metric, self.queries, &segment.vector(row));
                    let exact = || if euclidean { exact() } else { -exact() };
                    nearest.offer(if key.is_finite() { key } else { exact() }, segment.age_of(row), row);
                    // The bound applies to squares; squares that are a few roundings larger may
                    // have the same root.
                    let worst = nearest.worst().filter(|_| euclidean);
                    bound = worst.map_or(f32::INFINITY, |worst| worst * worst * (1.0 + 4.0 * f32::EPSILON));
                }
            });
        }
        let candidate = |(key, age, row): (f32, u32, u32)| Candidate {
            score: if euclidean { key } else { -key },
            segment: place,
            row,
            age,
        };
        Ok(nearest.kept.into_iter().map(candidate).collect())
    }

    /// The nearest lists of each query.
    fn search_lists(&mut self, centroids: &Centroids, nprobe: usize, queries: &Tensor) -> Result<Vec<u32>> {
        let op = Search::new(&centroids.points, queries, self.shared.schema.metric, nprobe);
        let device = self.shared.hosts.first().copied();
        let options = RunOptions { device, to_host: true, ..RunOptions::default() };
        let found = self.shared.runtime.run_with(op, options).wait()?;
        self.report.ops += 1;
        let (lists, _) = on_host(&self.shared.runtime, found)?;
        Ok(lists.as_slice::<u32>()?.to_vec())
    }
}

/// For each list, the queries that search it.
fn askers(lists: &[u32], nprobe: usize) -> BTreeMap<u32, Arc<[u32]>> {
    let mut askers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (query, lists) in (0_u32..).zip(lists.chunks_exact(nprobe)) {
        for list in lists {
            askers.entry(*list).or_default().push(query);
        }
    }
    askers.into_iter().map(|(list, queries)| (list, Arc::from(queries))).collect()
}

/// The rows of a list; empty for the filler ids that a centroid search returns if it finds too few.
fn list_range(offsets: &[u32], list: u32) -> Range<u32> {
    match (offsets.get(list as usize), offsets.get((list as usize).saturating_add(1))) {
        (Some(start), Some(end)) => *start..*end,
        _ => 0..0,
    }
}

/// The rows of these lists in ascending order; adjacent lists are joined into one range.
fn joined(lists: &[u32], offsets: &[u32]) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = lists.iter().map(|list| list_range(offsets, *list)).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = last.end == next.start;
        if joins {
            last.end = next.end;
        }
        joins
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_lists_are_one_range() {
        let offsets = [0, 10, 10, 25, 40];
        assert_eq!(joined(&[3, 0, 2], &offsets), vec![0..40]);
        assert_eq!(joined(&[3, 0], &offsets), vec![0..10, 25..40]);
        assert_eq!(joined(&[1, u32::MAX], &offsets), Vec::<Range<u32>>::new());
        let askers = askers(&[0, 2, 2, 3], 2);
        assert_eq!(askers[&2][..], [0, 1]);
        assert_eq!(askers[&3][..], [1]);
    }
}
