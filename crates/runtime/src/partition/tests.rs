//! Properties of each partitioner.

use std::sync::Arc;

use proptest::prelude::*;

use super::hash::mix;
use super::ring::{RingPosition, place};
use super::*;

fn identity(key: &u64) -> u64 {
    *key
}

/// How many of the keys `0..keys` each worker gets.
fn loads(partitioner: &dyn Partitioner<u64>, keys: u64, workers: usize) -> Vec<usize> {
    let mut loads = vec![0; workers];
    (0..keys).for_each(|key| loads[choose(partitioner, &key, workers).unwrap()] += 1);
    loads
}

#[test]
fn hashes_are_the_same_in_every_run() {
    // A change would move every key of every user. The expected values come from a separate
    // program.
    assert_eq!(stable_hash(&()), mix(0xcbf2_9ce4_8422_2325));
    assert_eq!(stable_hash(&b'a'), mix(0xaf63_dc4c_8601_ec8c));
    assert_eq!(stable_hash(&7u32), stable_hash(&(7u8, 0u8, 0u8, 0u8)));
    assert_eq!(stable_hash(&7usize), stable_hash(&7u64));
    assert_eq!((stable_hash(&1u64), stable_hash("panoply")), (HASH_OF_ONE, HASH_OF_NAME));
    let workers: Vec<usize> = (0..8u64).map(|key| HashBy::new(identity).partition(&key, 5)).collect();
    assert_eq!(workers, HASH_WORKERS);
    let workers: Vec<usize> = (0..8u64).map(|key| ConsistentHash::new(identity).partition(&key, 5)).collect();
    assert_eq!(workers, RING_WORKERS);
}

const HASH_OF_ONE: u64 = 0x5ca6_bbcb_b1e8_5355;
const HASH_OF_NAME: u64 = 0x2987_4b64_2f91_97bb;
const HASH_WORKERS: [usize; 8] = [2, 1, 2, 3, 2, 0, 0, 3];
const RING_WORKERS: [usize; 8] = [2, 4, 2, 0, 2, 1, 2, 4];

#[test]
fn hashing_spreads_evenly() {
    for workers in [1, 2, 3, 7, 64] {
        let expected = 64_000 / workers;
        let off = |load: &usize| load.abs_diff(expected) > expected / 5;
        let loads = loads(&HashBy::new(identity), 64_000, workers);
        assert!(!loads.iter().any(off), "{workers} workers: {loads:?}");
    }
}

#[test]
fn the_ring_spreads_evenly_enough() {
    for workers in [1, 2, 3, 7, 64] {
        let expected = 64_000 / workers;
        let loads = loads(&ConsistentHash::new(identity), 64_000, workers);
        assert!(loads.iter().all(|load| (expected / 2..expected * 3 / 2).contains(load)), "{workers}: {loads:?}");
    }
}

#[test]
fn round_robin_takes_turns_also_across_threads() {
    let turns: Vec<usize> = {
        let robin = RoundRobin::new();
        (0..7).map(|_| robin.partition("any", 3)).collect()
    };
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
    let robin = Arc::new(RoundRobin::new());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let robin = Arc::clone(&robin);
            std::thread::spawn(move || (0..300).map(|_| robin.partition(&(), 5)).collect::<Vec<_>>())
        })
        .collect();
    let mut counts = [0; 5];
    threads.into_iter().flat_map(|thread| thread.join().unwrap()).for_each(|worker| counts[worker] += 1);
    assert_eq!(counts, [240; 5]);
}

#[test]
fn ranges_check_their_bounds_and_their_workers() {
    let range = RangeBy::new(vec![10, 20], identity).unwrap();
    let workers = [0, 9, 10, 19, 20, u64::MAX].map(|key| range.partition(&key, 3));
    assert_eq!(workers, [0, 0, 1, 1, 2, 2]);
    assert_eq!(range.for_workers(3), Ok(()));
    assert_eq!(range.for_workers(2), Err(PartitionError::WorkersMismatch { expected: 3, got: 2 }));
    assert_eq!(range.partition(&99, 2), 1);
    let error = |bounds: Vec<f64>| RangeBy::new(bounds, |key: &f64| *key).err();
    assert_eq!(error(vec![1.0, 1.0]), Some(PartitionError::NotAscending { index: 1 }));
    assert_eq!(error(vec![1.0, 3.0, 2.0]), Some(PartitionError::NotAscending { index: 2 }));
    assert_eq!(error(vec![f64::NAN]), Some(PartitionError::NotAscending { index: 0 }));
    assert_eq!(error(vec![0.0, f64::NAN]), Some(PartitionError::NotAscending { index: 1 }));
    let floats = RangeBy::new(vec![0.0, 1.0], |key: &f64| *key).unwrap();
    assert_eq!([f64::NEG_INFINITY, 0.5, f64::INFINITY, f64::NAN].map(|key| floats.partition(&key, 3)), [0, 1, 2, 0]);
    let all: RangeBy<u64, _> = RangeBy::new(vec![], identity).unwrap();
    assert_eq!((all.partition(&5, 1), all.for_workers(1)), (0, Ok(())));
}

#[test]
fn closures_are_partitioners_and_are_checked() {
    let by_length = |message: &str, workers: usize| message.len() % workers;
    assert_eq!(choose::<str>(&by_length, "four", 3), Ok(1));
    let stray = |_: &u64, workers: usize| workers;
    let boxed: Arc<dyn Partitioner<u64>> = Arc::new(stray);
    assert_eq!(choose(&*boxed, &1, 3), Err(PartitionError::OutOfRange { workers: 3, got: 3 }));
    assert_eq!(choose(&*boxed, &1, 0), Err(PartitionError::NoWorkers));
    assert_eq!(boxed.for_workers(0), Err(PartitionError::NoWorkers));
}

#[test]
fn the_ring_knows_its_limits() {
    let error = |virtual_nodes| ConsistentHash::with_virtual_nodes(identity, virtual_nodes).err();
    assert_eq!(error(0), Some(PartitionError::VirtualNodes { max: VIRTUAL_NODES_MAX, got: 0 }));
    assert!(error(VIRTUAL_NODES_MAX + 1).is_some() && error(VIRTUAL_NODES_MAX).is_none());
    let ring = ConsistentHash::with_virtual_nodes(identity, 1).unwrap();
    let check = |workers| Partitioner::<u64>::for_workers(&ring, workers);
    assert_eq!((check(0), check(RING_WORKERS_MAX)), (Err(PartitionError::NoWorkers), Ok(())));
    let got = RING_WORKERS_MAX + 1;
    assert_eq!(check(got), Err(PartitionError::TooManyWorkers { max: RING_WORKERS_MAX, got }));
    assert!(ring.partition(&1, usize::MAX) < RING_WORKERS_MAX);
}

#[test]
fn one_worker_more_moves_its_share_of_the_keys_and_no_other() {
    let ring = ConsistentHash::new(identity);
    for workers in [1usize, 2, 3, 4, 7, 8, 15, 31, 32, 63] {
        let keys = 20_000u64;
        let mut moved = 0;
        for key in 0..keys {
            let (before, after) = (ring.partition(&key, workers), ring.partition(&key, workers + 1));
            if before != after {
                assert_eq!(after, workers, "a key moved between old workers");
                moved += 1;
            }
        }
        let share = keys as f64 / (workers + 1) as f64;
        assert!((0.6 * share..1.4 * share).contains(&f64::from(moved)), "{workers}: {moved} of about {share}");
    }
}

proptest! {
    #[test]
    fn every_answer_is_a_worker(key: u64, workers in 1..5000usize, bounds in proptest::collection::btree_set(any::<u64>(), 0..9)) {
        let range = RangeBy::new(bounds.into_iter().collect(), identity).unwrap();
        let ring = ConsistentHash::with_virtual_nodes(identity, 2).unwrap();
        let all: [&dyn Partitioner<u64>; 4] = [&HashBy::new(identity), &RoundRobin::new(), &range, &ring];
        for partitioner in all {
            prop_assert!(choose(partitioner, &key, workers).is_ok());
            prop_assert_eq!(partitioner.partition(&key, 0), 0, "no workers, no panic");
        }
    }

    #[test]
    fn keyed_partitioners_repeat_themselves(key: u64, workers in 1..40usize) {
        prop_assert_eq!(HashBy::new(identity).partition(&key, workers), HashBy::new(identity).partition(&key, workers));
        let (one, other) = (ConsistentHash::new(identity), ConsistentHash::new(identity));
        // The other ring has been used with another number of workers before.
        other.partition(&key, workers * 2);
        prop_assert_eq!(one.partition(&key, workers), other.partition(&key, workers));
    }

    #[test]
    fn the_ring_agrees_with_a_plain_search(key: u64, workers in 1..70usize) {
        let places = (0..workers).flat_map(|worker| (0..VIRTUAL_NODES_DEFAULT).map(move |node| place(worker, node)));
        let distance = |place: &RingPosition| (place.0.wrapping_sub(stable_hash(&key)), place.1);
        let nearest = places.min_by_key(distance).unwrap().1 as usize;
        prop_assert_eq!(ConsistentHash::new(identity).partition(&key, workers), nearest);
    }

    #[test]
    fn ranges_agree_with_a_plain_search(
        bounds in proptest::collection::btree_set(0..100u64, 0..9),
        key in 0..110u64,
    ) {
        let bounds: Vec<u64> = bounds.into_iter().collect();
        let workers = bounds.len() + 1;
        let expected = bounds.iter().position(|bound| key < *bound).unwrap_or(workers - 1);
        let range = RangeBy::new(bounds, identity).unwrap();
        prop_assert_eq!(range.for_workers(workers), Ok(()));
        prop_assert_eq!(range.partition(&key, workers), expected);
    }

    #[test]
    fn round_robin_is_even_over_any_number_of_messages(messages in 0..500usize, workers in 1..40usize) {
        let robin = RoundRobin::new();
        let mut counts = vec![0usize; workers];
        (0..messages).for_each(|_| counts[robin.partition(&(), workers)] += 1);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1);
    }
}
