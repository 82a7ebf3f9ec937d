//! Searching the lists of the nearest centroids.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use panoply_core::op::compute::Search;
use panoply_runtime::RunOptions;

use crate::error::Result;
use crate::search::SearchOptions;
use crate::search::run::{Batch, on_host};

impl Batch<'_> {
    /// Starts a search of the `nprobe` nearest lists of each query; segments that are not in lists are searched whole.
    pub(crate) fn start_probes(&mut self, options: &SearchOptions, nprobe: usize) -> Result<()> {
        let all = self.query_tensor(None)?;
        let Some(centroids) = self.snapshot.centroids.clone() else {
            return self.start_all(options);
        };
        let nprobe = nprobe.clamp(1, centroids.count());
        let op = Search::new(&centroids.points, &all, self.shared.schema.metric, nprobe);
        let device = self.shared.hosts.first().copied();
        let found =
            self.shared.runtime.run_with(op, RunOptions { device, to_host: true, ..RunOptions::default() }).wait()?;
        self.report.ops += 1;
        let (lists, _) = on_host(&self.shared.runtime, found)?;
        let lists = lists.as_slice::<u32>()?.to_vec();
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

/// For each list the queries that want it.
fn askers(lists: &[u32], nprobe: usize) -> BTreeMap<u32, Arc<[u32]>> {
    let mut askers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (query, lists) in (0_u32..).zip(lists.chunks_exact(nprobe)) {
        for list in lists {
            askers.entry(*list).or_default().push(query);
        }
    }
    askers.into_iter().map(|(list, queries)| (list, Arc::from(queries))).collect()
}

/// The rows of a list; empty where the centroid search left a place open.
fn list_range(offsets: &[u32], list: u32) -> Range<u32> {
    match (offsets.get(list as usize), offsets.get((list as usize).saturating_add(1))) {
        (Some(start), Some(end)) => *start..*end,
        _ => 0..0,
    }
}

/// The rows of these lists, ascending, with lists that lie side by side in one range.
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
