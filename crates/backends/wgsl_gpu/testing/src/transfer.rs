//! Checks transfers: small and large, odd lengths, many at once, and results that outlive their
//! engine.

use panoply_core::op::compute::{Map, Transfer};
use panoply_core::{Location, Tensor};

use crate::fault::run;
use crate::{TestBackend, TestEngine, engine};

/// Bytes that differ from their neighbours near and far.
pub fn bytes(count: usize, seed: usize) -> Tensor {
    let byte = |place: usize| ((place + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8;
    Tensor::from_vec((0..count).map(byte).collect::<Vec<u8>>(), [count]).unwrap()
}

pub fn there_and_back(engine: &mut dyn TestEngine, tensor: &Tensor) -> Tensor {
    let device = engine.device();
    let there = run(engine, Transfer::to_device(tensor, device)).unwrap().into_tensor().unwrap();
    assert_eq!(there.location(), Location::Device(device));
    let back = run(engine, Transfer::to_host(&there)).unwrap().into_tensor().unwrap();
    assert_eq!(back.location(), Location::Host);
    back
}

pub fn what_comes_back_is_what_went_there(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Sizes around the switches between transfer paths: kept memory, the ring, and the end of its
    // chunks.
    for count in [1, 3, 4097, 65_535, 65_536, 262_145, (8 << 20) - 1, 8 << 20, (16 << 20) + 5, (40 << 20) + 1] {
        let sent = bytes(count, count);
        let back = there_and_back(&mut *engine, &sent);
        assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "{count} bytes");
    }
}

pub fn a_ring_that_goes_round_loses_nothing(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // More than the ring holds, twice: chunks are reused many times.
    for seed in 0..2 {
        let sent = bytes((150 << 20) + 12, seed);
        let back = there_and_back(&mut *engine, &sent);
        assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap(), "round {seed}");
    }
}

pub fn results_outlive_their_engine_and_its_device(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (small, large) = (bytes(100, 1), bytes(3 << 20, 2));
    let (small_back, large_back) = (there_and_back(&mut *engine, &small), there_and_back(&mut *engine, &large));
    engine.lose();
    assert!(run(&mut *engine, Map::neg(&Tensor::from_vec(vec![1.0_f32], [1]).unwrap())).is_err());
    drop(engine);
    assert!(large_back.as_bytes().unwrap() == large.as_bytes().unwrap());
    let reader = std::thread::spawn(move || (small_back, large_back));
    let (small_back, large_back) = reader.join().unwrap();
    assert!(small_back.as_bytes().unwrap() == small.as_bytes().unwrap());
    assert!(large_back.as_bytes().unwrap() == large.as_bytes().unwrap());
}

pub fn memory_of_results_is_used_again_only_when_they_are_gone(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let mut kept = Vec::new();
    for seed in 0..6 {
        let sent = bytes(2 << 20, seed);
        kept.push((there_and_back(&mut *engine, &sent), sent));
        if seed == 3 {
            kept.remove(0);
        }
    }
    for (back, sent) in kept {
        assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap());
    }
}
