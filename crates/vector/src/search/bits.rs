//! The rows that a filter accepts, as one bit per row. Rows and their metadata never change, so the
//! bits of a segment are computed once per filter and extended when the segment grows. The fields
//! that filters use are kept as columns, so that another filter on the same field does not parse
//! the JSON again.

use std::sync::{Arc, Mutex, PoisonError};

use crate::filter::{Columns, Filter};
use crate::segment::SegmentView;

/// Number of filters whose bits are kept per segment.
const FILTERS_KEPT_MAX: usize = 8;
/// Number of rows from which a segment gets columns.
const COLUMN_ROWS_MIN: u32 = 4096;
/// Rows beyond a segment's columns, as a share of the segment (1/4), before the columns are built
/// again.
const REST_SHARE_MAX: u32 = 4;
/// Maximum size of the columns of one segment, in bytes.
const COLUMN_BYTES_MAX: usize = 256 << 20;

/// The bits of the most recently used filters.
#[derive(Default)]
pub(crate) struct FilterCache {
    kept: Mutex<Vec<CachedFilter>>,
    columns: Mutex<Columns>,
}

/// One bit for each row of a segment.
pub(crate) type Bits = Arc<[u32]>;

struct CachedFilter {
    filter: Filter,
    rows: u32,
    words: Arc<[u32]>,
    /// The bits of the live rows, and their intersection with `words`.
    joined: Option<(Bits, Bits)>,
}

impl FilterCache {
    /// The bits of the segment's rows, including dead rows.
    fn words(&self, segment: &SegmentView, filter: &Filter) -> Arc<[u32]> {
        let found = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let at = kept.iter().position(|kept| kept.filter == *filter);
            at.map(|at| {
                let last_used = kept.remove(at);
                let found = (last_used.rows, Arc::clone(&last_used.words));
                kept.push(last_used);
                found
            })
        };
        let (done, words) = found.unwrap_or((0, Arc::from([])));
        // A snapshot older than the bits has fewer rows; bits after its last row are ignored.
        if done >= segment.count {
            return words;
        }
        let (done, mut words) = if done < segment.count / REST_SHARE_MAX && segment.count >= COLUMN_ROWS_MIN {
            self.select(segment, filter)
        } else {
            (done, words.to_vec())
        };
        words.truncate(done as usize / 32);
        evaluate(segment, filter, done / 32 * 32, &mut words);
        let words: Arc<[u32]> = Arc::from(words);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.filter != *filter || kept.rows > segment.count);
        if kept.len() >= FILTERS_KEPT_MAX {
            kept.remove(0);
        }
        kept.push(CachedFilter {
            filter: filter.clone(),
            rows: segment.count,
            words: Arc::clone(&words),
            joined: None,
        });
        words
    }
}

impl FilterCache {
    /// The bits of the rows that pass and are live. Repeated calls return the same memory, so that
    /// a device can cache a copy.
    fn live_words(&self, segment: &SegmentView, filter: &Filter, live: &Arc<[u32]>) -> Arc<[u32]> {
        let words = self.words(segment, filter);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let own = kept.iter_mut().find(|kept| Arc::ptr_eq(&kept.words, &words));
        let known = own.as_ref().and_then(|kept| kept.joined.as_ref());
        if let Some((_, joined)) = known.filter(|(other, _)| Arc::ptr_eq(other, live)) {
            return Arc::clone(joined);
        }
        let joined: Arc<[u32]> = words.iter().zip(live.iter()).map(|(passing, live)| passing & live).collect();
        if let Some(kept) = own {
            kept.joined = Some((Arc::clone(live), Arc::clone(&joined)));
        }
        joined
    }

    /// Evaluates the filter with the segment's columns. Returns the number of rows covered, and
    /// their bits.
    fn select(&self, segment: &SegmentView, filter: &Filter) -> (u32, Vec<u32>) {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        if columns.rows() > segment.count as usize && !columns.has(filter) {
            // A snapshot older than the columns lacks some of their rows, so it cannot build
            // another column.
            return (0, Vec::new());
        }
        let rest = segment.count.saturating_sub(columns.rows() as u32);
        if rest > segment.count / REST_SHARE_MAX || columns.size_bytes() > COLUMN_BYTES_MAX {
            *columns = Columns::new(segment.count as usize);
        }
        columns.build(filter, |row, sink| {
            let text = segment.entry(row as u32).and_then(|(_, text)| str::from_utf8(text).ok());
            text.filter(|text| !text.is_empty()).into_iter().for_each(|text| sink.text(text));
        });
        (columns.rows() as u32, filter.select(&columns))
    }
}

/// The rows of a segment that may be returned: one bit per row, and the number of set bits. `None`:
/// all rows.
pub(crate) type Passing = Option<(Bits, u32)>;

/// The rows of a segment that are live and pass the filter.
pub(crate) fn passing(segment: &SegmentView, filter: Option<&Filter>) -> Passing {
    let live = segment.live.clone();
    let words = match (filter, live) {
        (None, None) => return None,
        (None, Some(live)) => return Some((live, segment.len())),
        (Some(filter), None) => segment.shared.filters.words(segment, filter),
        (Some(filter), Some(live)) => segment.shared.filters.live_words(segment, filter, &live),
    };
    let count = count_bits(&words, segment.count);
    (count < segment.count).then_some((words, count))
}

/// Whether a row passes.
pub(crate) fn passes(passing: &Passing, row: u32) -> bool {
    let bit = |words: &[u32]| words.get(row as usize / 32).is_some_and(|word| word >> (row % 32) & 1 == 1);
    passing.as_ref().is_none_or(|(words, _)| bit(words))
}

/// Number of set bits among the first `rows`.
pub(crate) fn count_bits(words: &[u32], rows: u32) -> u32 {
    let (whole, rest) = (rows as usize / 32, rows % 32);
    let full: u32 = words[..whole.min(words.len())].iter().map(|word| word.count_ones()).sum();
    full + words.get(whole).map_or(0, |word| (word & ((1_u32 << rest) - 1)).count_ones())
}

/// The `count` bits from `start` on, shifted to the beginning.
pub(crate) fn slice_bits(words: &[u32], start: u32, count: u32) -> Vec<u32> {
    let (first, shift) = (start as usize / 32, start % 32);
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    let joined = |index: usize| match shift {
        0 => word(index),
        _ => word(index) >> shift | word(index + 1) << (32 - shift),
    };
    (first..first + (count as usize).div_ceil(32)).map(joined).collect()
}

/// Appends the bits of the rows from `start` on. `start` is a multiple of 32.
fn evaluate(segment: &SegmentView, filter: &Filter, start: u32, words: &mut Vec<u32>) {
    let word = |first: u32| {
        let rows = first..segment.count.min(first + 32);
        rows.fold(0, |word, row| word | u32::from(filter.matches(&segment.metadata(row))) << (row - first))
    };
    words.extend((start..segment.count).step_by(32).map(word));
}

#[cfg(test)]
mod tests {
    use panoply_core::op::compute::Metric;
    use serde_json::json;

    use super::*;
    use crate::encode::encode;
    use crate::schema::Schema;
    use crate::segment::{Addition, Segment};

    #[test]
    fn sliced_bits_are_those_from_the_start_on() {
        let words = [0x8000_0001, 0xf0f0_f0f0, 7];
        let set = |row: u32| words[row as usize / 32] >> (row % 32) & 1;
        for start in 0..96 {
            let sliced = slice_bits(&words, start, 96 - start);
            for row in start..96 {
                assert_eq!(sliced[(row - start) as usize / 32] >> ((row - start) % 32) & 1, set(row), "{start} {row}");
            }
        }
        assert_eq!(count_bits(&words, 96), 2 + 16 + 3);
        assert_eq!(count_bits(&words, 33), 2);
    }

    /// Regression: the columns covered more rows than an older snapshot had. The snapshot built
    /// another column from its own rows alone, and the remaining rows counted as rows without
    /// metadata from then on.
    #[test]
    fn an_older_snapshot_makes_no_column_for_rows_it_does_not_have() {
        let schema = Arc::new(Schema::new("columns", 1, Metric::Dot));
        let mut segment = Segment::create(None, &schema, 0, false).unwrap();
        let mut grow = |rows: std::ops::Range<u32>| {
            let ids: Vec<String> = rows.clone().map(|row| row.to_string()).collect();
            let metadata: Vec<_> = rows.map(|row| json!({"a": row % 2, "b": row % 3})).collect();
            let batch = encode(&schema, &Default::default(), &ids, &vec![1.0; ids.len()], &metadata).unwrap();
            segment
                .append(&[Addition { kills: &[], fields: &[], batch: Some(&batch) }])
                .map_err(|failed| failed.error)?;
            segment.view()
        };
        let older = grow(0..COLUMN_ROWS_MIN).unwrap();
        let newer = grow(COLUMN_ROWS_MIN..COLUMN_ROWS_MIN + 900).unwrap();
        let (by_a, by_b) = (Filter::parse("a = 1").unwrap(), Filter::parse("b = 1").unwrap());
        let count = |view: &SegmentView, filter: &Filter| passing(view, Some(filter)).unwrap().1;
        let wanted = |view: &SegmentView, of: u32| (0..view.count).filter(|row| row % of == 1).count() as u32;
        assert_eq!(count(&newer, &by_a), wanted(&newer, 2));
        assert_eq!(count(&older, &by_b), wanted(&older, 3));
        assert_eq!(count(&newer, &by_b), wanted(&newer, 3));
        assert_eq!(count(&older, &by_a), wanted(&older, 2));
    }
}
