//! A set of CPU numbers, in the list format that the kernel reads and writes: `0-3,8-11`.
//!
//! The text may come from anywhere (a file, a command line, a hostile container), so its length is
//! limited by [`LIST_BYTES_MAX`] and its numbers by [`CPU_MAX`]. A set takes one bit per CPU up to
//! its largest member.

use core::fmt;
use core::ops::{BitAnd, BitOr, Sub};
use core::str::FromStr;

/// The largest CPU number that a set holds: Linux itself stops at 8192 CPUs.
pub const CPU_MAX: usize = 8191;

/// The longest list that is parsed. Every second CPU up to [`CPU_MAX`] takes about 20 kB.
pub const LIST_BYTES_MAX: usize = 64 * 1024;

/// Number of characters of an invalid text that an error repeats.
const EXCERPT_CHARS_MAX: usize = 32;

const WORD_BITS: usize = u64::BITS as usize;

/// Why a number or a text is not a valid CPU set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuSetError {
    /// A CPU number beyond [`CPU_MAX`].
    #[error("expected a CPU number of at most {max}, got {got}")]
    CpuTooLarge {
        /// The number as it was given, shortened when it is long.
        got: String,
        /// [`CPU_MAX`].
        max: usize,
    },
    /// A part of the list is neither a number nor a range.
    #[error("expected a CPU number or a range such as 0-3, got {got:?}")]
    Malformed {
        /// The part, shortened when it is long.
        got: String,
    },
    /// A range whose end comes before its start.
    #[error("expected a range that ascends, got {first}-{last}")]
    Descending {
        /// The number before the dash.
        first: usize,
        /// The number after the dash.
        last: usize,
    },
    /// The text is longer than [`LIST_BYTES_MAX`].
    #[error("expected a CPU list of at most {max} bytes, got {got}")]
    ListTooLong {
        /// Bytes given.
        got: usize,
        /// [`LIST_BYTES_MAX`].
        max: usize,
    },
}

/// A set of CPU numbers from 0 to [`CPU_MAX`].
///
/// ```
/// use panoply_core::cpu_set::CpuSet;
/// let node: CpuSet = "0-3,8-11".parse()?;
/// let allowed: CpuSet = "2-9".parse()?;
/// assert_eq!((&node & &allowed).to_string(), "2-3,8-9");
/// # Ok::<(), panoply_core::cpu_set::CpuSetError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// One bit per CPU. The last word is never zero, so that equal sets are equal vectors.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> CpuSet {
        CpuSet { words: Vec::new() }
    }

    /// The set of these CPUs.
    pub fn from_cpus(cpus: impl IntoIterator<Item = usize>) -> Result<CpuSet, CpuSetError> {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.insert(cpu)?;
        }
        Ok(set)
    }

    /// Adds `cpu`. Returns true if it was not a member before.
    pub fn insert(&mut self, cpu: usize) -> Result<bool, CpuSetError> {
        let fresh = !self.contains(cpu);
        self.insert_range(cpu, cpu)?;
        Ok(fresh)
    }

    /// Adds every CPU from `first` to `last`, both included.
    pub fn insert_range(&mut self, first: usize, last: usize) -> Result<(), CpuSetError> {
        if last < first {
            return Err(CpuSetError::Descending { first, last });
        }
        if last > CPU_MAX {
            return Err(CpuSetError::CpuTooLarge { got: last.to_string(), max: CPU_MAX });
        }
        let (first_word, last_word) = (first / WORD_BITS, last / WORD_BITS);
        if self.words.len() <= last_word {
            self.words.resize(last_word + 1, 0);
        }
        for word in first_word..=last_word {
            let low = if word == first_word { first % WORD_BITS } else { 0 };
            let high = if word == last_word { last % WORD_BITS } else { WORD_BITS - 1 };
            self.words[word] |= (u64::MAX << low) & (u64::MAX >> (WORD_BITS - 1 - high));
        }
        Ok(())
    }

    /// Removes `cpu`. Returns true if it was a member.
    pub fn remove(&mut self, cpu: usize) -> bool {
        let present = self.contains(cpu);
        if present {
            self.words[cpu / WORD_BITS] &= !(1 << (cpu % WORD_BITS));
            self.trim();
        }
        present
    }

    /// True when `cpu` is a member.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / WORD_BITS).is_some_and(|word| word >> (cpu % WORD_BITS) & 1 == 1)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True when the set holds no CPU.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The smallest CPU number.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The largest CPU number.
    pub fn last(&self) -> Option<usize> {
        let word = self.words.last()?;
        Some(self.words.len() * WORD_BITS - 1 - word.leading_zeros() as usize)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, next_word: 0, bits: 0 }
    }

    /// The CPUs in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let (long, short) = if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        words.iter_mut().zip(&short.words).for_each(|(word, more)| *word |= more);
        CpuSet { words }
    }

    /// The CPUs in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The CPUs of this set that are not in the other.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        let mut words = self.words.clone();
        words.iter_mut().zip(&other.words).for_each(|(word, less)| *word &= !less);
        CpuSet::trimmed(words)
    }

    /// True when every CPU of this set is in the other.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.words.len() <= other.words.len() && self.words.iter().zip(&other.words).all(|(a, b)| a & !b == 0)
    }

    /// True when no CPU is in both sets.
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    fn trimmed(words: Vec<u64>) -> CpuSet {
        let mut set = CpuSet { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// The CPUs of a set in ascending order. See [`CpuSet::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64],
    next_word: usize,
    bits: u64,
}

impl Iterator for Iter<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.bits = *self.words.get(self.next_word)?;
            self.next_word += 1;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some((self.next_word - 1) * WORD_BITS + bit)
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = usize;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl BitOr for &CpuSet {
    type Output = CpuSet;

    fn bitor(self, other: &CpuSet) -> CpuSet {
        self.union(other)
    }
}

impl BitAnd for &CpuSet {
    type Output = CpuSet;

    fn bitand(self, other: &CpuSet) -> CpuSet {
        self.intersection(other)
    }
}

impl Sub for &CpuSet {
    type Output = CpuSet;

    fn sub(self, other: &CpuSet) -> CpuSet {
        self.difference(other)
    }
}

/// Reads `0-3,8-11`. White space around the list and around its parts is ignored, and an empty text
/// is the empty set, as in the kernel's own files. Parts may overlap and come in any order.
impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        if text.len() > LIST_BYTES_MAX {
            return Err(CpuSetError::ListTooLong { got: text.len(), max: LIST_BYTES_MAX });
        }
        let mut set = CpuSet::new();
        if text.trim_ascii().is_empty() {
            return Ok(set);
        }
        for part in text.split(',').map(str::trim_ascii) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            set.insert_range(number(first, part)?, number(last, part)?)?;
        }
        Ok(set)
    }
}

/// Writes `0-3,8-11`; the empty set is an empty text.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// Parses digits only: `usize::from_str` alone would also accept a plus sign.
fn number(digits: &str, part: &str) -> Result<usize, CpuSetError> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CpuSetError::Malformed { got: excerpt(part) });
    }
    match digits.parse() {
        Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
        // All characters are digits, so a parse failure means that the number is too large.
        _ => Err(CpuSetError::CpuTooLarge { got: excerpt(digits), max: CPU_MAX }),
    }
}

fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
