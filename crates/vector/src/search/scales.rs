//! Eight-bit rows under euclidean, grouped by scale. A distance can only be computed between rows
//! of one scale, in units of that scale, so each scale is searched separately, with a mask that
//! selects its rows. Scales are powers of two; vectors of one kind have two or three different
//! ones. Rows stored by earlier versions have other scales: one for each segment from which they
//! came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::bits::{Passing, count_bits};
use crate::segment::SegmentView;

/// The scales of a segment's rows, cached for later searches.
#[derive(Default)]
pub(crate) struct ScalesCache {
    kept: Mutex<Option<Arc<Scales>>>,
}

/// The scales of the first rows of a segment.
pub(crate) struct Scales {
    rows: u32,
    pub(crate) classes: Vec<ScaleClass>,
}

/// The rows of one scale.
pub(crate) struct ScaleClass {
    pub(crate) scale: f32,
    /// One bit per row, and the number of set bits; `None` if all rows have this scale.
    own: Passing,
    /// The passing rows of the last search, and the subset of them that has this scale.
    joined: Mutex<Option<(Arc<[u32]>, Passing)>>,
}

impl ScalesCache {
    /// The scales of a snapshot's rows.
    pub(crate) fn of(&self, segment: &SegmentView) -> Arc<Scales> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // An older snapshot has fewer rows; bits after its last row are ignored.
        if let Some(scales) = kept.as_ref().filter(|scales| scales.rows >= segment.count) {
            return Arc::clone(scales);
        }
        let scales = Arc::new(Scales::continued(kept.as_deref(), segment.count, |row| segment.scale_of(row)));
        *kept = Some(Arc::clone(&scales));
        scales
    }
}

impl Scales {
    /// Computes the scales of `rows` rows, given the scales of the first ones.
    pub(crate) fn continued(first: Option<&Scales>, rows: u32, scale_of: impl Fn(u32) -> f32) -> Scales {
        let done = first.map_or(0, |first| first.rows);
        let words = rows.div_ceil(32) as usize;
        let mut masks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for class in first.into_iter().flat_map(|first| &first.classes) {
            let mask = match &class.own {
                Some((own, _)) => own.to_vec(),
                None => (0..done).step_by(32).map(|word| first_bits(done - word)).collect(),
            };
            masks.insert(class.scale.to_bits(), mask);
        }
        for row in done..rows {
            let mask = masks.entry(scale_of(row).to_bits()).or_default();
            mask.resize(words, 0);
            mask[row as usize / 32] |= 1 << (row % 32);
        }
        let alone = masks.len() <= 1;
        let class = |(bits, mut mask): (u32, Vec<u32>)| {
            mask.resize(words, 0);
            let count = count_bits(&mask, rows);
            let own = (!alone).then(|| (Arc::from(mask), count));
            ScaleClass { scale: f32::from_bits(bits), own, joined: Mutex::default() }
        };
        Scales { rows, classes: masks.into_iter().map(class).collect() }
    }
}

impl ScaleClass {
    /// The rows of this scale that pass. Repeated calls return the same memory, so that a device
    /// can cache a copy.
    pub(crate) fn passing(&self, passing: &Passing, rows: u32) -> Passing {
        let (Some((words, _)), Some((own, _))) = (passing, &self.own) else {
            return passing.clone().or_else(|| self.own.clone());
        };
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = joined.as_ref().filter(|(other, _)| Arc::ptr_eq(other, words)) {
            return known.clone();
        }
        let both: Arc<[u32]> = words.iter().zip(own.iter()).map(|(passing, own)| passing & own).collect();
        let count = count_bits(&both, rows);
        let both = Some((both, count));
        *joined = Some((Arc::clone(words), both.clone()));
        both
    }
}

/// A word whose lowest `bits` bits are set.
fn first_bits(bits: u32) -> u32 {
    if bits >= 32 { u32::MAX } else { (1 << bits) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_the_class_of_its_scale() {
        let scale_of = |row: u32| if row < 40 { 1.0 } else { [0.5, 2.0, 1.0][row as usize % 3] };
        let mut scales = Scales::continued(None, 0, scale_of);
        for rows in [0, 1, 31, 32, 40, 41, 64, 100] {
            scales = Scales::continued(Some(&scales), rows, scale_of);
            let different: std::collections::HashSet<u32> = (0..rows).map(|row| scale_of(row).to_bits()).collect();
            assert_eq!(scales.classes.len(), different.len());
            for row in 0..rows {
                let of = |class: &&ScaleClass| {
                    class.own.as_ref().is_none_or(|(words, _)| words[row as usize / 32] >> (row % 32) & 1 == 1)
                };
                let classes: Vec<f32> = scales.classes.iter().filter(of).map(|class| class.scale).collect();
                assert_eq!(classes, [scale_of(row)], "row {row} of {rows}");
            }
        }
        let every_second: Arc<[u32]> = Arc::from([0x5555_5555; 4]);
        let passing = Some((Arc::clone(&every_second), 50));
        let first = scales.classes[0].passing(&passing, 100).unwrap();
        let again = scales.classes[0].passing(&passing, 100).unwrap();
        let wanted = (0..100).filter(|row| row % 2 == 0 && scale_of(*row) == scales.classes[0].scale).count();
        assert!(Arc::ptr_eq(&first.0, &again.0));
        assert_eq!(first.1 as usize, wanted);
    }
}
