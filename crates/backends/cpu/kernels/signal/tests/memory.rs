//! The memory that a workspace keeps is counted.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::op::signal::{FRAME_BITS_MAX, Viterbi};
use panoply_core::{DType, HostBufferMut, OneThread, Operation, Tensor};
use panoply_cpu_signal::{Level, Workspace};

#[test]
fn memory_of_decoders_is_counted() {
    let mut space = Workspace::new(Level::best());
    assert_eq!(space.bytes(), 0);
    let coded = Tensor::zeros(DType::U8, [1, 2 * (FRAME_BITS_MAX + 6)]).unwrap();
    let op = Viterbi::new(&coded, FRAME_BITS_MAX).into_op().unwrap();
    panoply_cpu_signal::run(&op, &mut space, &OneThread, &mut HostBufferMut::zeroed).unwrap().unwrap();
    // At least one bit for every step and state.
    assert!(space.bytes() >= FRAME_BITS_MAX * 64 / 8, "{}", space.bytes());

    // Many frames are decoded in lanes: one bit for every step, state and frame.
    let (frames, bits) = (64, 4096);
    let mut space = Workspace::new(Level::best());
    let coded = Tensor::zeros(DType::U8, [frames, 2 * (bits + 6)]).unwrap();
    let op = Viterbi::new(&coded, bits).into_op().unwrap();
    panoply_cpu_signal::run(&op, &mut space, &OneThread, &mut HostBufferMut::zeroed).unwrap().unwrap();
    assert!(space.bytes() >= bits * 64 * frames / 8, "{}", space.bytes());
}
