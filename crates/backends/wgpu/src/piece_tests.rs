//! Tensors larger than a kernel sees: an adapter that binds little is simulated, and answers are those of the reference.

use panoply_conformance::values::random_tensor;
use panoply_conformance::{Tolerance, run_one};
use panoply_core::expr::Expr;
use panoply_core::op::compute::{Gather, Map, Metric, Reduce, Reduction, Search, Softmax, Transfer};
use panoply_core::{Backend, DType, Error, OpenOptions, Operation, Tensor};

use crate::backend::WgpuBackend;
use crate::engine::WgpuEngine;
use crate::form_tests::{CLOSE, agree, floats};

/// What the simulated adapter binds.
const BINDING_BYTES: u64 = 1 << 16;
const LOOSE: Tolerance = Tolerance::Close { relative: 1e-4, absolute: 1e-2 };

/// An engine on such an adapter, or nothing where there is none; then the test says that it is skipped.
fn engine() -> Option<WgpuEngine> {
    let limits = wgpu::Limits { max_storage_buffer_binding_size: BINDING_BYTES, ..wgpu::Limits::defaults() };
    let backend = WgpuBackend::with_limits(limits);
    match backend.discover() {
        Ok(devices) => Some(backend.open_engine(&devices[0], &OpenOptions::default()).unwrap()),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn maps_are_cut() {
    let Some(mut engine) = engine() else { return };
    for dtype in [DType::F32, DType::F16, DType::U8, DType::Complex64] {
        let (x, y) = (random_tensor(dtype, &[3, 33_401], 1), random_tensor(dtype, &[3, 33_401], 2));
        let sum = Expr::input(0) + Expr::input(1) * Expr::input(2);
        let op = Map::new(sum, &[&x, &y, &random_tensor(dtype, &[1], 3)]);
        let tolerance = Tolerance::Close { relative: 1e-2, absolute: 1e-2 };
        agree(&mut engine, dtype.name(), op, tolerance);
    }
    let (wide, tall) = (floats(&[401], 4), floats(&[300, 1], 5));
    let turned = floats(&[401, 300], 6).transpose().unwrap();
    let sum = Expr::input(0) + Expr::input(1) + Expr::input(2);
    agree(&mut engine, "stretched", Map::new(sum, &[&wide, &tall, &turned]), CLOSE);
    engine.context().profile.buffers_max = 3;
    let sum = Expr::input(0) + Expr::input(1) + Expr::input(2);
    let small = floats(&[30, 401], 7);
    agree(&mut engine, "joined", Map::new(sum, &[&small, &small, &floats(&[401], 8)]), CLOSE);
}

#[test]
fn reductions_are_cut() {
    let Some(mut engine) = engine() else { return };
    let line = floats(&[100_003], 1);
    agree(&mut engine, "sum", Reduce::sum(&line), LOOSE);
    agree(&mut engine, "argmax", Reduce::arg_max(&line), Tolerance::Exact);
    let bytes = random_tensor(DType::U8, &[200_000], 2);
    agree(&mut engine, "mean of bytes", Reduce::new(&bytes, Reduction::Mean), LOOSE);
    for (dims, axis) in [([3, 40_000], 0), ([50, 3000], 1), ([4000, 30], 0), ([2, 60_000], 1), ([60_000, 2], 1)] {
        let table = floats(&dims, 3);
        agree(&mut engine, "sum along an axis", Reduce::sum(&table).axes(&[axis]), LOOSE);
        agree(&mut engine, "argmin along an axis", Reduce::arg_min(&table).axes(&[axis]), Tolerance::Exact);
    }
    let cube = floats(&[20, 70, 30], 4);
    agree(&mut engine, "outer and inner", Reduce::sum(&cube).axes(&[0, 2]), LOOSE);
}

#[test]
fn searches_are_cut() {
    let Some(mut engine) = engine() else { return };
    for (dtype, queries) in [(DType::F32, 1), (DType::F32, 6), (DType::I8, 2)] {
        let rows = random_tensor(dtype, &[3000, 32], 1);
        let asked = random_tensor(dtype, &[queries, 32], 2);
        let bits: Vec<u32> = (0..3000_u32.div_ceil(32)).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
        let filter = Tensor::from_vec(bits, [94]).unwrap();
        for metric in [Metric::Dot, Metric::Euclidean, Metric::Cosine] {
            agree(&mut engine, "all rows", Search::new(&rows, &asked, metric, 9), CLOSE);
            agree(&mut engine, "filtered", Search::new(&rows, &asked, metric, 9).filter(&filter), CLOSE);
        }
    }
}

#[test]
fn rows_are_gathered_from_windows() {
    let Some(mut engine) = engine() else { return };
    let signed = Tensor::from_vec((0..1500).map(|i| (i * 37) % 4000 - 2000).collect::<Vec<i32>>(), [1500]).unwrap();
    for (dtype, columns) in [(DType::F32, 33), (DType::F16, 66), (DType::Complex64, 5)] {
        let table = random_tensor(dtype, &[2000, columns], 1);
        agree(&mut engine, "rows", Gather::new(&table, &signed, 0), Tolerance::Exact);
    }
    let here = |engine: &mut WgpuEngine, tensor: &Tensor| {
        let device = engine.context().device;
        run_one(engine, Transfer::to_device(tensor, device).into_op().unwrap()).unwrap().into_tensor().unwrap()
    };
    let (table, bad) = (floats(&[2000, 33], 2), Tensor::from_vec(vec![1_u32, 2000], [2]).unwrap());
    let (table, bad) = (here(&mut engine, &table), here(&mut engine, &bad));
    let refused = run_one(&mut engine, Gather::new(&table, &bad, 0).into_op().unwrap());
    assert!(refused.unwrap_err().to_string().contains("2000"));
}

#[test]
fn large_tensors_travel_and_their_parts_are_used() {
    let Some(mut engine) = engine() else { return };
    let device = engine.context().device;
    let table = floats(&[1000, 300], 1);
    let here = run_one(&mut engine, Transfer::to_device(&table, device).into_op().unwrap());
    let here = here.unwrap().into_tensor().unwrap();
    let back = run_one(&mut engine, Transfer::to_host(&here).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), table.to_vec::<f32>().unwrap());
    // A part within reach is used where it is, by ops that are not cut as well.
    let part = |tensor: &Tensor| tensor.slice(0, 777, 807).unwrap();
    let expected = run_one(&mut engine, Softmax::new(&part(&table)).into_op().unwrap()).unwrap().into_tensor().unwrap();
    let got = run_one(&mut engine, Softmax::new(&part(&here)).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    let whole = run_one(&mut engine, Softmax::new(&here).into_op().unwrap());
    assert!(matches!(whole, Err(Error::Unsupported { .. })));
}
