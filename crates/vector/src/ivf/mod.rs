//! IVF-Flat: an index with which a search reads only part of the rows.
//!
//! Training finds centroids by k-means. Building sorts the rows of each segment by their nearest
//! centroid, so that the rows of a centroid, its list, are contiguous. A search then reads the
//! lists of the `nprobe` centroids nearest to the query. Rows added after the index was built are
//! searched exactly for any `nprobe`; compaction sorts them into lists. Filters and removals work
//! as without an index, and everything runs through the runtime's ops.
//!
//! * `kmeans`: training of centroids, and assignment of rows.
//! * `probe`: searching lists.
//! * `tune`: recall for a number of lists.

pub(crate) mod kmeans;
mod probe;
pub(crate) mod tune;

use std::ops::Range;
use std::path::Path;

use panoply_core::Tensor;

use crate::encode::floats;
use crate::error::{Error, Result};
use crate::schema::DIMENSION_MAX;
use crate::sealed::Sealing;

/// Maximum number of lists of an index.
pub const LISTS_MAX: usize = 1 << 20;
pub(crate) const CENTROIDS_MAGIC: [u8; 8] = *b"PNPLVCEN";
pub(crate) const LISTS_MAGIC: [u8; 8] = *b"PNPLVLS2";
/// The previous version, without ages.
const LISTS_MAGIC_OLD: [u8; 8] = *b"PNPLVLST";
pub(crate) const HEAD_BYTES: usize = 20;

/// How an index is built.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexOptions {
    /// Number of lists. `None`: four times the square root of the number of records.
    pub lists: Option<usize>,
    /// Training rows for each list.
    pub samples_per_list: usize,
    /// Rounds of k-means.
    pub rounds: usize,
    /// Seed of the random choices. The same seed and the same records give the same index.
    pub seed: u64,
}

impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions { lists: None, samples_per_list: 64, rounds: 10, seed: 7 }
    }
}

/// Figures about an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexReport {
    /// Number of lists.
    pub lists: usize,
    /// Records in lists; all other records are searched exactly.
    pub indexed_rows: u64,
}

/// The centroids of an index.
pub(crate) struct Centroids {
    /// The number in their file's name.
    pub(crate) number: u32,
    /// `[lists, dimension]`, f32.
    pub(crate) points: Tensor,
}

/// The lists of a segment. The segment's rows are sorted by list, and by age within a list.
pub(crate) struct Lists {
    /// Offset of each list, and the end of the last one: one entry more than there are lists.
    pub(crate) offsets: Vec<u32>,
    /// For each row, the number of older rows in the segment. Empty in files of the previous
    /// version: their rows count as stored by age.
    pub(crate) ages: Vec<u32>,
}

impl Centroids {
    pub(crate) fn count(&self) -> usize {
        self.points.shape()[0]
    }

    pub(crate) fn write(&self, sealing: &Sealing, path: &Path) -> Result<()> {
        let (count, dimension) = (self.points.shape()[0] as u32, self.points.shape()[1] as u32);
        write_numbers(sealing, path, CENTROIDS_MAGIC, count, dimension, self.points.as_bytes()?)
    }

    pub(crate) fn read(sealing: &Sealing, path: &Path, number: u32, dimension: usize) -> Result<Centroids> {
        let bytes_max = LISTS_MAX.saturating_mul(dimension).saturating_mul(size_of::<f32>());
        Centroids::parse(path, &read_bounded(sealing, path, bytes_max)?, number, dimension)
    }

    /// Parses the content of a centroids file.
    pub(crate) fn parse(path: &Path, bytes: &[u8], number: u32, dimension: usize) -> Result<Centroids> {
        let (count, stored, bytes) = parse_numbers(path, bytes, CENTROIDS_MAGIC)?;
        let (count, stored) = (count as usize, stored as usize);
        let fits = stored == dimension && dimension <= DIMENSION_MAX && (1..=LISTS_MAX).contains(&count);
        if !fits || bytes.len() != count * dimension * 4 {
            return Err(Error::corrupt(path, 8, format!("{count} centroids of {stored} components do not fit")));
        }
        let values = floats(bytes);
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::corrupt(path, HEAD_BYTES as u64, "a centroid is not finite"));
        }
        Ok(Centroids { number, points: Tensor::from_vec(values, [count, dimension])? })
    }
}

impl Lists {
    pub(crate) fn write(&self, sealing: &Sealing, path: &Path) -> Result<()> {
        let rows = self.offsets.last().copied().unwrap_or(0);
        let magic = if self.ages.is_empty() { LISTS_MAGIC_OLD } else { LISTS_MAGIC };
        let body = [&self.offsets[..], &self.ages[..]].concat();
        write_numbers(sealing, path, magic, self.offsets.len() as u32, rows, bytemuck::cast_slice(&body))
    }

    /// Number of rows in the segment that are older than `row`.
    pub(crate) fn age_of(&self, row: u32) -> u32 {
        self.ages.get(row as usize).copied().unwrap_or(row)
    }

    /// Whether the rows of a range are stored by age, as the rows of one list are.
    pub(crate) fn is_by_age(&self, range: &Range<u32>) -> bool {
        let list_end = self.offsets.partition_point(|offset| *offset <= range.start);
        self.ages.is_empty() || self.offsets.get(list_end).is_none_or(|end| range.end <= *end)
    }

    /// The rows by age, oldest first; `None` if they are stored in that order.
    pub(crate) fn rows_by_age(&self) -> Option<Vec<u32>> {
        let mut rows = vec![0; self.ages.len()];
        for (row, age) in (0..).zip(&self.ages) {
            rows[*age as usize] = row;
        }
        (!rows.is_empty()).then_some(rows)
    }

    pub(crate) fn read(sealing: &Sealing, path: &Path, lists: usize, rows: u32) -> Result<Lists> {
        Lists::parse(path, &read_bounded(sealing, path, (lists + 1 + rows as usize) * size_of::<u32>())?, lists, rows)
    }

    /// Parses the content of a lists file.
    pub(crate) fn parse(path: &Path, bytes: &[u8], lists: usize, rows: u32) -> Result<Lists> {
        let old = bytes.starts_with(&LISTS_MAGIC_OLD);
        let (count, stored, bytes) = parse_numbers(path, bytes, if old { LISTS_MAGIC_OLD } else { LISTS_MAGIC })?;
        let numbers = bytes.chunks_exact(4).map(|four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
        let mut offsets: Vec<u32> = numbers.collect();
        let ages = offsets.split_off(offsets.len().min(lists + 1));
        let ordered = offsets.is_sorted() && offsets.first() == Some(&0) && offsets.last() == Some(&rows);
        let aged = if old { ages.is_empty() } else { is_permutation(&ages, rows) };
        if count as usize != lists + 1 || offsets.len() != lists + 1 || stored != rows || !ordered || !aged {
            return Err(Error::corrupt(path, 8, format!("{count} places of {stored} rows do not fit the index")));
        }
        Ok(Lists { offsets, ages })
    }
}

/// Whether `numbers` holds each number below `end` exactly once.
fn is_permutation(numbers: &[u32], end: u32) -> bool {
    if numbers.len() != end as usize {
        return false;
    }
    let mut seen = vec![false; numbers.len()];
    let is_new = |number: &u32| seen.get_mut(*number as usize).is_some_and(|seen| !std::mem::replace(seen, true));
    numbers.iter().all(is_new)
}

fn write_numbers(sealing: &Sealing, path: &Path, magic: [u8; 8], first: u32, second: u32, body: &[u8]) -> Result<()> {
    sealing.write_file(path, &[&head(magic, first, second, body), body])
}

/// The head of a file: the magic bytes, two numbers, and a checksum of everything.
pub(crate) fn head(magic: [u8; 8], first: u32, second: u32, body: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&magic);
    head[8..12].copy_from_slice(&first.to_le_bytes());
    head[12..16].copy_from_slice(&second.to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&head[..16]);
    checksum.update(body);
    head[16..].copy_from_slice(&checksum.finalize().to_le_bytes());
    head
}

/// Reads a file whose body has at most `body_bytes_max` bytes.
fn read_bounded(sealing: &Sealing, path: &Path, body_bytes_max: usize) -> Result<Vec<u8>> {
    sealing.read_file(path, (HEAD_BYTES as u64).saturating_add(body_bytes_max as u64))
}

fn parse_numbers<'a>(path: &Path, bytes: &'a [u8], magic: [u8; 8]) -> Result<(u32, u32, &'a [u8])> {
    let damaged = |reason: &str| Error::corrupt(path, 0, reason);
    let (found, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| damaged("it ends within its head"))?;
    let number = |at: usize| u32::from_le_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]);
    let (first, second) = (number(8), number(12));
    if *found != head(magic, first, second, body) {
        return Err(damaged("its checksum does not fit"));
    }
    Ok((first, second, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_with_their_ages_and_without_from_the_version_before() {
        let path = std::env::temp_dir().join(format!("panoply-lists-{}", std::process::id()));
        let body = |ages: &[u32]| [&[0, 2, 2, 3][..], ages].concat();
        for (ages, by_age) in [(vec![2, 0, 1], Some(vec![1, 2, 0])), (Vec::new(), None)] {
            let _ = std::fs::remove_file(&path);
            let lists = Lists { offsets: vec![0, 2, 2, 3], ages: ages.clone() };
            lists.write(&Sealing::default(), &path).unwrap();
            let read = Lists::read(&Sealing::default(), &path, 3, 3).unwrap();
            assert_eq!((&read.offsets, &read.ages, read.rows_by_age()), (&lists.offsets, &ages, by_age));
            assert_eq!(
                (read.is_by_age(&(0..2)), read.is_by_age(&(2..3)), read.is_by_age(&(1..3))),
                (true, true, ages.is_empty())
            );
        }
        std::fs::remove_file(&path).unwrap();
        for ages in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 3], &[]] {
            let numbers = body(ages);
            let body: &[u8] = bytemuck::cast_slice(&numbers);
            let bytes = [&head(LISTS_MAGIC, 4, 3, body)[..], body].concat();
            assert!(matches!(Lists::parse(&path, &bytes, 3, 3), Err(Error::Corrupt { .. })), "{ages:?}");
        }
    }
}
