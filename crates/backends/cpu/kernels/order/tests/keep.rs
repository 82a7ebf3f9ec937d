//! The list of the best keys.

use panoply_cpu_order::topk::keep::SmallestKeys;

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
        let mut keeper = SmallestKeys::new(k, keys.len());
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
        let (mut left, mut right) = (SmallestKeys::<u64>::new(k, 400), SmallestKeys::new(k, 400));
        (0..400).for_each(|key| _ = left.offer(key * 2));
        (0..400).rev().for_each(|key| _ = right.offer(key * 2 + 1));
        left.absorb(&right);
        assert_eq!(left.finish(), (0..k as u64).collect::<Vec<_>>());
        left.clear();
        assert!(left.finish().is_empty());
    }
}
