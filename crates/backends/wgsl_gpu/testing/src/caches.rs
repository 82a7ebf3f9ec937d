//! Checks that an engine's caches are bounded, and that new constants compile no kernels.

use panoply_core::Tensor;
use panoply_core::expr::Expr;
use panoply_core::op::compute::{Map, Transfer};

use crate::fault::run;
use crate::{TestBackend, engine};

pub fn many_constants_are_one_kernel(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let device = engine.device();
    let host = Tensor::from_vec((0..64).map(|number| number as f32).collect::<Vec<_>>(), [64]).unwrap();
    let here = run(&mut *engine, Transfer::to_device(&host, device)).unwrap().into_tensor().unwrap();
    let mut compiled = 0;
    for number in 0..3000 {
        let (scale, shift) = (f64::from(number) * 0.5, f64::from(number) - 7.0);
        let op = Map::new(Expr::input(0) * scale + shift, &[&here]);
        let answer = run(&mut *engine, op).unwrap().into_tensor().unwrap();
        if number % 500 == 0 || number == 2999 {
            let back = run(&mut *engine, Transfer::to_host(&answer)).unwrap().into_tensor().unwrap();
            let expected: Vec<f32> = (0..64).map(|x| x as f32 * scale as f32 + shift as f32).collect();
            assert_eq!(back.to_vec::<f32>().unwrap(), expected, "{number}");
        }
        // The first maps compile the kernel for one map and the kernels for many.
        if number == 40 {
            compiled = engine.compiled();
        }
    }
    assert_eq!(engine.compiled(), compiled, "constants compile nothing");
    assert!(compiled <= 8, "{compiled} kernels for one expression");
}

pub fn constants_that_no_text_could_hold_are_right(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let x = Tensor::from_vec(vec![1.0_f32, -2.0], [2]).unwrap();
    for constant in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-30] {
        let op = Map::new(Expr::input(0) * constant, &[&x]);
        let answer = run(&mut *engine, op).unwrap().into_tensor().unwrap();
        let back = run(&mut *engine, Transfer::to_host(&answer)).unwrap().into_tensor().unwrap();
        let expected = [1.0_f32, -2.0].map(|x| x * constant as f32);
        for (got, expected) in back.to_vec::<f32>().unwrap().into_iter().zip(expected) {
            assert!(got == expected || (got.is_nan() && expected.is_nan()), "{constant}: {got}, not {expected}");
        }
    }
}
