//! The k best keys of a stream.
//!
//! Up to [`SORTED_K_MAX`], the kept keys stay sorted and the bound is exact after every key, so a
//! caller that compares candidates with the bound offers as few as possible. Above that, keys are
//! appended to a buffer of twice k, and the worse half is dropped when the buffer is full, which
//! costs a few nanoseconds for a key for any k. The bound is lowered then.

use super::order::CandidateKey;
use crate::scratch;

/// Maximum k for which a sorted list is faster than a buffer.
const SORTED_K_MAX: usize = 32;

/// Keeps the `k` smallest offered keys.
pub struct SmallestKeys<K> {
    keys: Vec<K>,
    k: usize,
    bound: K,
}

impl<K: CandidateKey> SmallestKeys<K> {
    /// Creates a keeper of `k` keys and reserves its memory. `offers_max` is the maximum number of
    /// keys that can be offered.
    pub fn new(k: usize, offers_max: usize) -> SmallestKeys<K> {
        let wanted = if k <= SORTED_K_MAX { k } else { k * 2 };
        SmallestKeys { keys: scratch::reserved(wanted.min(offers_max)), k, bound: K::WORST }
    }

    /// The bound: a key can be kept only if it is smaller. The bound is initially `K::WORST` and
    /// only decreases.
    #[inline(always)]
    pub fn bound(&self) -> K {
        self.bound
    }

    /// Adds a key if it is among the best so far. Returns true if the bound decreased.
    #[inline]
    pub fn offer(&mut self, key: K) -> bool {
        if key >= self.bound || self.k == 0 {
            return false;
        }
        if self.k <= SORTED_K_MAX { self.insert_sorted(key) } else { self.append(key) }
    }

    fn insert_sorted(&mut self, key: K) -> bool {
        if self.keys.len() == self.k {
            self.keys.pop();
        }
        let mut place = self.keys.len();
        self.keys.push(key);
        while place > 0 && self.keys[place - 1] > key {
            self.keys[place] = self.keys[place - 1];
            place -= 1;
        }
        self.keys[place] = key;
        if self.keys.len() < self.k {
            return false;
        }
        self.bound = self.keys[self.k - 1];
        true
    }

    fn append(&mut self, key: K) -> bool {
        self.keys.push(key);
        if self.keys.len() < self.k * 2 {
            return false;
        }
        self.shrink();
        true
    }

    fn shrink(&mut self) {
        let (_, worst, _) = self.keys.select_nth_unstable(self.k - 1);
        self.bound = *worst;
        self.keys.truncate(self.k);
    }

    /// Adds the keys that another keeper kept.
    pub fn absorb(&mut self, other: &SmallestKeys<K>) {
        for key in &other.keys {
            self.offer(*key);
        }
    }

    /// The kept keys, best first, at most k.
    pub fn finish(&mut self) -> &[K] {
        if self.k > SORTED_K_MAX {
            if self.keys.len() > self.k {
                self.shrink();
            }
            self.keys.sort_unstable();
        }
        &self.keys
    }

    /// Empties the keeper.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.bound = K::WORST;
    }
}
