//! Checks kernel forms that the conformance suite's sizes do not reach, or that software adapters
//! do not take, against the reference.

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor, tensor_of, whole_numbers};
use panoply_core::expr::Expr;
use panoply_core::op::compute::{
    Activation, ArgSort, Conv2d, LayerNorm, Map, MatMul, Metric, Reduce, Scan, Search, Softmax, Sort, TopK, Transfer,
};
use panoply_core::{DType, OpenOptions, Operation, Tensor, Warmth};
use panoply_kernels::wgsl::{CoopKernel, Epilogue, Kernel, Load};
use panoply_wgsl_gpu::internals::{LARGE_TILES, Tuning};
use panoply_wgsl_gpu::profile::WideMatrices;

use crate::{TestBackend, TestEngine, engine, run_one};

pub const CLOSE: Tolerance = Tolerance::Close { relative: 1e-5, absolute: 1e-4 };

pub fn agree(engine: &mut dyn TestEngine, what: &str, op: impl Operation, tolerance: Tolerance) {
    let op = op.into_op().unwrap();
    let expected = reference(&op).unwrap();
    let got = run_one(engine, op).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (expected, got) in expected.tensors().zip(got.tensors()) {
        assert_eq!(difference(expected, got, tolerance), None, "{what}");
    }
}

pub fn floats(dims: &[usize], seed: u64) -> Tensor {
    random_tensor(DType::F32, dims, seed)
}

pub fn tiles_as_hardware_runs_them(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    engine.profile().is_software = false;
    let (a, b) = (floats(&[70, 40], 1), floats(&[40, 68], 2));
    let bias = floats(&[68], 3);
    agree(&mut *engine, "vectors", MatMul::new(&a, &b).bias(&bias).activation(Activation::Silu), CLOSE);
    agree(
        &mut *engine,
        "turned",
        MatMul::new(&floats(&[40, 72], 4), &floats(&[68, 40], 5)).transpose_a().transpose_b(),
        CLOSE,
    );
    // Enough products for the large tiles, each of them a partial tile. The unrolled form takes
    // minutes to compile here.
    engine.profile().is_software = true;
    let (many, other) = (floats(&[96, 65, 20], 10), floats(&[96, 20, 68], 11));
    for number in 0..LARGE_TILES.len() {
        engine.tune(Tuning::fixed(number));
        agree(&mut *engine, &format!("tile {number}"), MatMul::new(&many, &other), CLOSE);
    }
}

pub fn convolutions_as_hardware_runs_them(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    engine.profile().is_software = false;
    let (images, weights, bias) = (floats(&[2, 4, 9, 8], 1), floats(&[6, 2, 3, 3], 2), floats(&[6], 3));
    let op = Conv2d::new(&images, &weights).groups(2).stride([2, 1]).padding([1, 2, 1, 0]).bias(&bias);
    agree(&mut *engine, "forward", op.activation(Activation::Relu), CLOSE);
}

/// On a device without matrix units, this checks only the columns: the kernel for the product does
/// not compile, and another kernel computes it.
pub fn convolutions_as_matrix_units_run_them(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let halves = |dims: &[usize], seed| random_tensor(DType::F16, dims, seed);
    let tolerance = Tolerance::Close { relative: 1e-2, absolute: 5e-2 };
    // If the driver makes 16-bit matrices itself, those kernels would be used.
    engine.profile().wide_matrices = WideMatrices::default();
    let has_units = engine.profile().matrix_units;
    let (images, bias) = (halves(&[32, 8, 19, 17], 1), halves(&[24], 3));
    let (square, pixel) = (halves(&[24, 8, 3, 3], 2), halves(&[24, 8, 1, 1], 4));
    // Output sizes that are a multiple of eight: 24 x 16, 10 x 8, 17 x 16 and 24 x 17; then images
    // that are their own columns.
    let forms = [
        Conv2d::new(&images, &square).padding([4, 0, 3, 1]).bias(&bias).activation(Activation::Relu),
        Conv2d::new(&halves(&[96, 8, 19, 17], 5), &square).stride([2, 2]).padding([1, 0, 1, 0]),
        Conv2d::new(&images, &square).dilation([2, 1]).padding([1, 0, 1, 1]),
        Conv2d::new(&images, &pixel).padding([2, 0, 3, 0]).bias(&bias),
        Conv2d::new(&halves(&[32, 8, 24, 16], 6), &pixel),
    ];
    for (number, op) in forms.into_iter().enumerate() {
        engine.profile().matrix_units = true;
        agree(&mut *engine, &format!("form {number}"), op, tolerance);
        assert_eq!(engine.profile().matrix_units, has_units, "form {number}");
    }
    let used = engine.kernels().iter().filter(|kernel| matches!(kernel, Kernel::Columns)).count();
    assert_eq!(used, 1);
}

pub fn rows_by_subgroups_and_in_registers(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let lanes = usize::from(engine.profile().subgroup_lanes.unwrap_or(8));
    for columns in [4 * lanes, 12 * lanes, 1024, 3000] {
        let rows = floats(&[67, columns], 1);
        let (weight, bias) = (floats(&[columns], 2), floats(&[columns], 3));
        agree(&mut *engine, "softmax", Softmax::new(&rows), CLOSE);
        agree(&mut *engine, "log", Softmax::new(&rows).log(), CLOSE);
        agree(&mut *engine, "layernorm", LayerNorm::new(&rows).weight(&weight).bias(&bias), CLOSE);
        agree(&mut *engine, "rms", LayerNorm::new(&rows).rms(), CLOSE);
    }
}

pub fn long_lines_by_vectors_of_four(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let line = floats(&[2, 20_000], 1);
    let loose = Tolerance::Close { relative: 1e-4, absolute: 1e-2 };
    agree(&mut *engine, "scan", Scan::sum(&line), loose);
    agree(&mut *engine, "scan/exclusive", Scan::sum(&line).exclusive(), loose);
    agree(&mut *engine, "scan/one chunk", Scan::sum(&floats(&[3, 2000], 2)).exclusive(), loose);
    let whole = random_tensor(DType::I32, &[2, 20_000], 2);
    agree(&mut *engine, "scan/i32", Scan::sum(&whole), Tolerance::Exact);
    agree(&mut *engine, "scan/max", Scan::new(&whole, panoply_core::op::compute::ScanKind::Max), Tolerance::Exact);
    agree(&mut *engine, "sum", Reduce::sum(&line).axes(&[1]), loose);
    agree(&mut *engine, "argmin", Reduce::arg_min(&floats(&[40_000], 3)), Tolerance::Exact);
    agree(&mut *engine, "topk", TopK::new(&line, 9), Tolerance::Exact);
}

pub fn many_candidates_are_merged_in_steps(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let rows = random_tensor(DType::I8, &[30_000, 4], 1);
    for queries in [1, 6] {
        let op = Search::new(&rows, &random_tensor(DType::I8, &[queries, 4], 2), Metric::Dot, 100);
        agree(&mut *engine, "search", op, Tolerance::Exact);
    }
}

pub fn expressions_too_long_for_one_kernel(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (x, y) = (floats(&[7, 5], 1), floats(&[5], 2));
    let (first, second) = (Expr::input(0), Expr::input(1));
    // Two values stay alive all along, one of them from the beginning.
    let early = (&first * 0.5).tanh();
    let step = |value: Expr, number: usize| (value * 0.5 + &second + &early * (number % 7) as f64).abs();
    let long = (0..400).fold(&first + &second, step);
    assert!(long.finish().unwrap().nodes().len() > 1100);
    agree(&mut *engine, "long", Map::new(long, &[&x, &y]), CLOSE);
    let whole = random_tensor(DType::I8, &[33], 3);
    let long = (0..700).fold(Expr::input(0), |value, _| value * 3.0 + Expr::input(0));
    agree(&mut *engine, "wrapping", Map::new(long, &[&whole]), Tolerance::Exact);
}

pub fn a_k_beyond_what_a_select_keeps(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Whole numbers, so that equal scores are equal on both sides.
    let whole = |dims: &[usize], seed| {
        let values = random_tensor(DType::I8, dims, seed).to_vec::<i8>().unwrap();
        values.into_iter().map(f32::from).collect::<Vec<f32>>()
    };
    let mut values = whole(&[2500, 8], 1);
    values[8 * 70] = f32::NAN;
    let rows = Tensor::from_vec(values, [2500, 8]).unwrap();
    let queries = |count: usize, seed| Tensor::from_vec(whole(&[count, 8], seed), [count, 8]).unwrap();
    let filter = Tensor::from_vec(vec![0x5555_5555_u32; 79], [79]).unwrap();
    for metric in [Metric::Dot, Metric::Euclidean] {
        agree(&mut *engine, "2048", Search::new(&rows, &queries(3, 2), metric, 2048), CLOSE);
        agree(&mut *engine, "filtered", Search::new(&rows, &queries(1, 3), metric, 2000).filter(&filter), CLOSE);
    }
    let few = queries(700, 4);
    agree(&mut *engine, "more than there are", Search::new(&few, &queries(2, 5), Metric::Dot, 1000), CLOSE);
}

pub fn more_inputs_than_an_adapter_binds(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    engine.profile().buffers_max = 4;
    for dtype in [DType::F32, DType::F16, DType::U8, DType::Complex64] {
        let mut inputs: Vec<Tensor> = (0..6).map(|seed| random_tensor(dtype, &[5, 7], seed)).collect();
        inputs[2] = random_tensor(dtype, &[7, 5], 9).transpose().unwrap();
        inputs[3] = random_tensor(dtype, &[7], 10);
        let sum = (1..6).fold(Expr::input(0), |sum, index| sum + Expr::input(index));
        let tolerance = Tolerance::Close { relative: 1e-2, absolute: 1e-2 };
        agree(&mut *engine, dtype.name(), Map::new(sum, &inputs.iter().collect::<Vec<_>>()), tolerance);
    }
}

pub fn long_lines_are_sorted_with_subgroups_and_without(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for lanes in [engine.profile().subgroup_lanes, None] {
        engine.profile().subgroup_lanes = lanes;
        for len in [2049, 4096, 20_001] {
            let line = floats(&[2, len], 1);
            agree(&mut *engine, "values", Sort::new(&line).axis(1), Tolerance::Exact);
            agree(&mut *engine, "positions", ArgSort::new(&line).axis(1).descending(), Tolerance::Exact);
            // Few distinct values, so that most keys have equal ones, whose order must stay.
            let few = Tensor::from_vec((0..len).map(|i| (i * 7 % 5) as i32 - 2).collect::<Vec<i32>>(), [len]).unwrap();
            agree(&mut *engine, "equals", ArgSort::new(&few), Tolerance::Exact);
        }
    }
}

pub fn maps_that_ran_before_run_again_on_other_tensors(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let device = engine.device();
    let here = |engine: &mut dyn TestEngine, tensor: &Tensor| {
        run_one_here(engine, Transfer::to_device(tensor, device).into_op().unwrap())
    };
    let shapes: [(&[usize], &[usize], DType); 6] = [
        (&[64], &[64], DType::F32),
        (&[1001], &[1001], DType::F32),
        (&[3, 7], &[3, 7], DType::F32),
        (&[3, 7], &[7], DType::F32),
        (&[33], &[33], DType::I32),
        (&[50], &[50], DType::F32),
    ];
    for (dims, other_dims, dtype) in shapes {
        let (x, y) = (random_tensor(dtype, dims, 1), random_tensor(dtype, other_dims, 2));
        let expected = reference(&Map::sub(&x, &y).into_op().unwrap()).unwrap().into_tensor().unwrap();
        let (x, y) = (here(&mut *engine, &x), here(&mut *engine, &y));
        let got = run_one(&mut *engine, Map::sub(&x, &y).into_op().unwrap()).unwrap().into_tensor().unwrap();
        assert_eq!(difference(&expected, &got, Tolerance::Exact), None, "{dims:?} {other_dims:?}");
    }
    // A part of a tensor that does not begin at a vector.
    let (whole, other) = (floats(&[70], 3), floats(&[64], 4));
    let expected = reference(&Map::sub(&whole.slice(0, 3, 67).unwrap(), &other).into_op().unwrap()).unwrap();
    let (whole, other) = (here(&mut *engine, &whole), here(&mut *engine, &other));
    let got = run_one(&mut *engine, Map::sub(&whole.slice(0, 3, 67).unwrap(), &other).into_op().unwrap()).unwrap();
    let (expected, got) = (expected.into_tensor().unwrap(), got.into_tensor().unwrap());
    assert_eq!(difference(&expected, &got, Tolerance::Exact), None);
}

/// A product whose operand B, and A too if `both` is set, is transposed in device memory.
fn turned(engine: &mut dyn TestEngine, a: &Tensor, b: &Tensor, both: bool, tolerance: Tolerance) {
    let product = |a: &Tensor, b: &Tensor| {
        let op = MatMul::new(a, b).transpose_b();
        if both { op.transpose_a() } else { op }.into_op().unwrap()
    };
    let expected = reference(&product(a, b)).unwrap().into_tensor().unwrap();
    let device = engine.device();
    let [a, b] = [a, b].map(|tensor| run_one_here(engine, Transfer::to_device(tensor, device).into_op().unwrap()));
    let got = run_one(engine, product(&a, &b)).unwrap().into_tensor().unwrap();
    assert_eq!(difference(&expected, &got, tolerance), None, "turned {:?} {:?}", a.shape(), b.shape());
}

/// The output of an op, left on the device.
fn run_one_here(engine: &mut dyn TestEngine, op: panoply_core::Op) -> Tensor {
    let mut finished = Vec::new();
    engine.submit(&mut vec![panoply_core::Item { token: 1, op }]);
    while finished.is_empty() {
        engine.poll(&mut finished, std::time::Duration::from_millis(10));
    }
    finished.remove(0).result.unwrap().into_tensor().unwrap()
}

pub fn matrix_units_multiply_halves(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    if !engine.profile().matrix_units {
        eprintln!("skipped: this adapter has no matrix units for f16 that wgpu reaches");
        return;
    }
    engine.profile().wide_matrices = WideMatrices::default();
    let halves = |dims: [usize; 3], seed| random_tensor(DType::F16, &dims, seed);
    let tolerance = Tolerance::Close { relative: 1e-2, absolute: 5e-2 };
    for (load_a, load_b) in [(Load::AlongInner, Load::AlongOuter), (Load::AlongOuter, Load::AlongInner)] {
        let epilogue = Epilogue::none(DType::F16);
        let kernel = CoopKernel { load_a, load_b, epilogue, vector_store: true, whole: false };
        engine.load(&Kernel::Coop(kernel), (1, 2)).unwrap();
    }
    // A batch large enough for many tiles; each product takes a part of a tile, or more than one.
    for [m, k, n] in [[136, 40, 72], [64, 104, 256], [24, 32, 128], [128, 64, 128]] {
        let (a, b, c) = (halves([96, m, k], 1), halves([96, k, n], 2), halves([96, m, n], 3));
        agree(&mut *engine, "plain", MatMul::new(&a, &b), tolerance);
        let bias = random_tensor(DType::F16, &[n], 4);
        let op = MatMul::new(&a, &b).alpha(0.5).beta(2.0, &c).bias(&bias).activation(Activation::Gelu);
        agree(&mut *engine, "with addends", op, tolerance);
        let (a, b) = (halves([96, k, m], 5), halves([1, n, k], 6));
        turned(&mut *engine, &a, &b, true, tolerance);
    }
    turned(&mut *engine, &halves([96, 33, 40], 7), &halves([96, 67, 40], 8), false, tolerance);
    assert!(engine.profile().matrix_units, "a kernel did not compile");
    let used = engine.kernels().iter().filter(|kernel| matches!(kernel, Kernel::Coop(_))).count();
    assert_eq!(used, 6);
}

pub fn what_was_warmed_up_is_compiled_and_nothing_was_run(backend: &dyn TestBackend) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return eprintln!("skipped: {absence}"),
    };
    let mut engine = backend.open_engine(&devices[0], &OpenOptions::default()).unwrap();
    let (a, b) = (floats(&[9, 2100], 1), floats(&[2100, 5], 2));
    let ops = [MatMul::new(&a, &b).into_op().unwrap(), Sort::new(&a).axis(1).into_op().unwrap()];
    for op in &ops {
        assert_eq!(backend.warmth(&devices[0], op), Warmth::Cold);
        engine.warm_up(op);
        assert_eq!(backend.warmth(&devices[0], op), Warmth::Warm);
        assert!(!engine.submits_recorded(), "something was recorded");
    }
    let compiled = engine.kernels().len();
    agree(&mut *engine, "product", MatMul::new(&a, &b), CLOSE);
    agree(&mut *engine, "sort", Sort::new(&a).axis(1), Tolerance::Exact);
    assert_eq!(engine.kernels().len(), compiled);
}

pub fn searches_of_many_queries_list_candidates(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let exact = Tolerance::Close { relative: 1e-6, absolute: 0.0 };
    for (dtype, queries, k) in [(DType::F32, 5, 10), (DType::F16, 70, 1), (DType::I8, 6, 100), (DType::BF16, 9, 17)] {
        for metric in [Metric::Dot, Metric::Euclidean] {
            let rows = whole_numbers(dtype, &[33_333, 12], 1);
            let op = Search::new(&rows, &whole_numbers(dtype, &[queries, 12], 2), metric, k);
            agree(&mut *engine, &format!("{dtype} {}", metric.name()), op, exact);
        }
    }
    // Rows whose norms are powers of two, so that cosines are exact too.
    let lines = |count: usize| {
        (0..count * 4).map(|place| [2.0, 0.0, 0.0, 0.0][(place + place / 4 * 3) % 4]).collect::<Vec<f64>>()
    };
    let (rows, queries) =
        (tensor_of(DType::F32, &[40_000, 4], &lines(40_000)), tensor_of(DType::F32, &[7, 4], &lines(7)));
    agree(&mut *engine, "cosine", Search::new(&rows, &queries, Metric::Cosine, 9), exact);
    let norms = tensor_of(DType::F32, &[40_000], &(0..40_000).map(|row| f64::from(1 << (row % 5))).collect::<Vec<_>>());
    agree(&mut *engine, "norms", Search::new(&rows, &queries, Metric::Cosine, 9).row_norms(&norms), exact);
    let words: Vec<f64> = (0..1250).map(|word| f64::from(0x8000_0001_u32 >> (word % 7))).collect();
    let filter = tensor_of(DType::U32, &[1250], &words);
    let op = Search::new(
        &whole_numbers(DType::F32, &[40_000, 9], 3),
        &whole_numbers(DType::F32, &[6, 9], 4),
        Metric::Dot,
        20,
    );
    agree(&mut *engine, "filter", op.filter(&filter), exact);
    // All scores are equal, so that no list has room for them; then half of them are NaN.
    let same = Tensor::from_vec(vec![1.0_f32; 33_000 * 4], [33_000, 4]).unwrap();
    agree(&mut *engine, "same", Search::new(&same, &whole_numbers(DType::F32, &[515, 4], 5), Metric::Dot, 3), exact);
    let odd: Vec<f32> =
        (0..40_000 * 8).map(|place| if place / 8 % 2 == 0 { f32::NAN } else { (place % 8) as f32 }).collect();
    let odd = Tensor::from_vec(odd, [40_000, 8]).unwrap();
    agree(
        &mut *engine,
        "none",
        Search::new(&odd, &whole_numbers(DType::F32, &[20, 8], 6), Metric::Euclidean, 3),
        exact,
    );
}
