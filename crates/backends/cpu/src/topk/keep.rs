//! The k best of a stream of keys.
//!
//! Up to [`SORTED_K_MAX`] the kept keys stay sorted and the bound is tight after every key: a caller that tests
//! candidates against the bound before it offers them is disturbed as little as possible. Above that, keys are
//! appended to a buffer of twice k and the worse half is thrown out when it is full, which costs a few nanoseconds for
//! a key whatever k is; the bound is tightened then.

use super::order::Key;
use crate::scratch;

/// The largest k for which a sorted list beats a buffer.
const SORTED_K_MAX: usize = 32;

/// Keeps the `k` smallest keys that were offered.
pub(crate) struct Keeper<K> {
    keys: Vec<K>,
    k: usize,
    bound: K,
}

impl<K: Key> Keeper<K> {
    /// Keeps `k` keys, and reserves what that needs; `offers_max` is how many keys can be offered at all.
    pub(crate) fn new(k: usize, offers_max: usize) -> Keeper<K> {
        let wanted = if k <= SORTED_K_MAX { k } else { k * 2 };
        Keeper { keys: scratch::reserved(wanted.min(offers_max)), k, bound: K::WORST }
    }

    /// A key must be smaller than this to have a chance. It only ever falls, and is `K::WORST` at first.
    #[inline(always)]
    pub(crate) fn bound(&self) -> K {
        self.bound
    }

    /// Takes in a key if it is among the best so far. True when the bound has fallen.
    #[inline]
    pub(crate) fn offer(&mut self, key: K) -> bool {
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

    /// Takes in what another keeper kept.
    pub(crate) fn absorb(&mut self, other: &Keeper<K>) {
        for key in &other.keys {
            self.offer(*key);
        }
    }

    /// The kept keys, the best first, at most k.
    pub(crate) fn finish(&mut self) -> &[K] {
        if self.k > SORTED_K_MAX {
            if self.keys.len() > self.k {
                self.shrink();
            }
            self.keys.sort_unstable();
        }
        &self.keys
    }

    /// Starts over with an empty list.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.bound = K::WORST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_smallest_for_every_k() {
        let mut state = 9_u64;
        let keys: Vec<u64> = (0..3000)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 20
            })
            .collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        for k in [0, 1, 2, 10, 64, 65, 500, 2999, 3000, 4000] {
            let mut keeper = Keeper::new(k, keys.len());
            for key in &keys {
                let before = keeper.bound();
                assert_eq!(keeper.offer(*key), keeper.bound() < before);
            }
            assert_eq!(keeper.finish(), &sorted[..k.min(sorted.len())]);
        }
    }

    #[test]
    fn absorbing_is_like_having_seen_both() {
        for k in [3, 100] {
            let (mut left, mut right) = (Keeper::<u64>::new(k, 400), Keeper::new(k, 400));
            (0..400).for_each(|key| _ = left.offer(key * 2));
            (0..400).rev().for_each(|key| _ = right.offer(key * 2 + 1));
            left.absorb(&right);
            assert_eq!(left.finish(), (0..k as u64).collect::<Vec<_>>());
            left.clear();
            assert!(left.finish().is_empty());
        }
    }
}
