//! Gelu of every f16 number, on the emulated device.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::{EmulatedBackend, GpuBackend};
use panoply_conformance::reference::reference;
use panoply_conformance::values::difference;
use panoply_conformance::{Tolerance, run_one};
use panoply_core::expr::UnaryOp;
use panoply_core::op::compute::Map;
use panoply_core::{Backend, OpenOptions, Operation, Tensor, f16};

/// One unit in the last place: if the exact result is halfway between two numbers, either is
/// correct.
const CLOSE: Tolerance = Tolerance::Close { relative: 1.001 / 1024.0, absolute: 1.001 / (1_u32 << 24) as f64 };

#[test]
fn gelu_of_every_number_is_a_neighbour_of_the_exact_one() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let device = backend.discover().unwrap().remove(0);
    let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
    let numbers: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let x = Tensor::from_vec(numbers, [256, 256]).unwrap();
    let op = Map::unary(UnaryOp::Gelu, &x).into_op().unwrap();
    let expected = reference(&op).unwrap().into_tensor().unwrap();
    // Several runs: the first compiles the kernel, the others find it.
    for _ in 0..3 {
        let got = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap();
        assert_eq!(difference(&expected, &got, CLOSE), None);
    }
}
