//! Checks tensors larger than a kernel sees against the reference, on a simulated adapter with
//! small bindings.

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::expr::Expr;
use panoply_core::op::compute::{
    Activation, ArgSort, Gather, LayerNorm, Map, MatMul, Metric, Reduce, Reduction, Scan, ScanKind, Search, Softmax,
    Sort, SortPairs, TopK, Transfer, Transpose,
};
use panoply_core::{DType, Error, Location, OpenOptions, Operation, Tensor};

use crate::fault::run;
use crate::form::{CLOSE, agree, floats};
use crate::{DeviceLimits, TestBackend, TestEngine, run_one};

/// The largest binding of the simulated adapter.
const BINDING_BYTES: u64 = 1 << 16;
pub const LOOSE: Tolerance = Tolerance::Close { relative: 1e-4, absolute: 1e-2 };

/// An engine on the simulated adapter, or `None` if there is none; then the test prints that it is
/// skipped.
pub fn engine(backend: &dyn TestBackend) -> Option<Box<dyn TestEngine>> {
    let backend = backend.limited(DeviceLimits {
        binding_bytes_max: Some(BINDING_BYTES),
        // The amount that sorting long lines needs.
        workgroup_bytes_max: Some(32_768),
        ..DeviceLimits::default()
    });
    match backend.discover() {
        Ok(devices) => Some(backend.open_engine(&devices[0], &OpenOptions::default()).unwrap()),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

/// The tensor, moved to the device.
pub fn here(engine: &mut dyn TestEngine, tensor: &Tensor) -> Tensor {
    let device = engine.device();
    let moved = run(engine, Transfer::to_device(tensor, device)).unwrap().into_tensor().unwrap();
    assert_eq!(moved.location(), Location::Device(device));
    moved
}

/// Like [`agree`], with an input on the device, of which the op may take a view.
pub fn agree_here<O: Operation>(
    engine: &mut dyn TestEngine,
    what: &str,
    input: &Tensor,
    make: impl Fn(&Tensor) -> O,
    tolerance: Tolerance,
) {
    let expected = reference(&make(input).into_op().unwrap()).unwrap();
    let moved = here(engine, input);
    let got = run_one(engine, make(&moved).into_op().unwrap()).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (expected, got) in expected.tensors().zip(got.tensors()) {
        assert_eq!(difference(expected, got, tolerance), None, "{what}");
    }
}

/// Checks that the op is refused for more bytes than the adapter binds, and that the reason names
/// them.
pub fn refused(engine: &mut dyn TestEngine, op: impl Operation, bytes: usize) {
    match run_one(engine, op.into_op().unwrap()) {
        Err(Error::Unsupported { reason, .. }) => {
            assert!(reason.contains(&format!("{bytes} bytes")), "{reason}");
            assert!(reason.contains(&format!("binds {BINDING_BYTES}")), "{reason}");
        }
        other => panic!("{bytes} bytes are not refused: {other:?}"),
    }
}

pub fn maps_are_cut(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for dtype in [DType::F32, DType::F16, DType::U8, DType::Complex64] {
        let (x, y) = (random_tensor(dtype, &[3, 33_401], 1), random_tensor(dtype, &[3, 33_401], 2));
        let sum = Expr::input(0) + Expr::input(1) * Expr::input(2);
        let op = Map::new(sum, &[&x, &y, &random_tensor(dtype, &[1], 3)]);
        let tolerance = Tolerance::Close { relative: 1e-2, absolute: 1e-2 };
        agree(&mut *engine, dtype.name(), op, tolerance);
    }
    let (wide, tall) = (floats(&[401], 4), floats(&[300, 1], 5));
    let turned = floats(&[401, 300], 6).transpose().unwrap();
    let sum = Expr::input(0) + Expr::input(1) + Expr::input(2);
    agree(&mut *engine, "stretched", Map::new(sum, &[&wide, &tall, &turned]), CLOSE);
    engine.profile().buffers_max = 3;
    let sum = Expr::input(0) + Expr::input(1) + Expr::input(2);
    let small = floats(&[30, 401], 7);
    agree(&mut *engine, "joined", Map::new(sum, &[&small, &small, &floats(&[401], 8)]), CLOSE);
}

pub fn reductions_are_cut(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let line = floats(&[100_003], 1);
    agree(&mut *engine, "sum", Reduce::sum(&line), LOOSE);
    agree(&mut *engine, "argmax", Reduce::arg_max(&line), Tolerance::Exact);
    let bytes = random_tensor(DType::U8, &[200_000], 2);
    agree(&mut *engine, "mean of bytes", Reduce::new(&bytes, Reduction::Mean), LOOSE);
    for (dims, axis) in [([3, 40_000], 0), ([50, 3000], 1), ([4000, 30], 0), ([2, 60_000], 1), ([60_000, 2], 1)] {
        let table = floats(&dims, 3);
        agree(&mut *engine, "sum along an axis", Reduce::sum(&table).axes(&[axis]), LOOSE);
        agree(&mut *engine, "argmin along an axis", Reduce::arg_min(&table).axes(&[axis]), Tolerance::Exact);
    }
    let cube = floats(&[20, 70, 30], 4);
    agree(&mut *engine, "outer and inner", Reduce::sum(&cube).axes(&[0, 2]), LOOSE);
}

pub fn searches_are_cut(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for (dtype, queries) in [(DType::F32, 1), (DType::F32, 6), (DType::I8, 2)] {
        let rows = random_tensor(dtype, &[3000, 32], 1);
        let asked = random_tensor(dtype, &[queries, 32], 2);
        let bits: Vec<u32> = (0..3000_u32.div_ceil(32)).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
        let filter = Tensor::from_vec(bits, [94]).unwrap();
        for metric in [Metric::Dot, Metric::Euclidean, Metric::Cosine] {
            agree(&mut *engine, "all rows", Search::new(&rows, &asked, metric, 9), CLOSE);
            agree(&mut *engine, "filtered", Search::new(&rows, &asked, metric, 9).filter(&filter), CLOSE);
        }
    }
}

pub fn rows_are_gathered_from_windows(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let signed = Tensor::from_vec((0..1500).map(|i| (i * 37) % 4000 - 2000).collect::<Vec<i32>>(), [1500]).unwrap();
    for (dtype, columns) in [(DType::F32, 33), (DType::F16, 66), (DType::Complex64, 5)] {
        let table = random_tensor(dtype, &[2000, columns], 1);
        agree(&mut *engine, "rows", Gather::new(&table, &signed, 0), Tolerance::Exact);
    }
    // Rows that end in the middle of words, and views that begin there.
    for (dtype, columns) in [(DType::U8, 37), (DType::F16, 33), (DType::U8, 1)] {
        let table = random_tensor(dtype, &[70_001, columns], 3);
        let part = |x: &Tensor| Gather::new(&x.slice(0, 1, 70_000).unwrap(), &signed, 0);
        agree_here(&mut *engine, &format!("{columns} of {dtype:?}"), &table, part, Tolerance::Exact);
    }
    let halves = random_tensor(DType::F16, &[80_001], 4);
    let part = |x: &Tensor| Gather::new(&x.slice(0, 1, 80_001).unwrap().reshape([2_000, 40]).unwrap(), &signed, 0);
    agree_here(&mut *engine, "from the middle of a word", &halves, part, Tolerance::Exact);
    // More indices than a kernel sees, into a table that it sees completely.
    let many = Tensor::from_vec((0..30_001_u32).map(|i| i * 37 % 100).collect(), [30_001]).unwrap();
    agree(&mut *engine, "indices", Gather::new(&random_tensor(DType::U8, &[100], 5), &many, 0), Tolerance::Exact);
    let (table, bad) = (floats(&[2000, 33], 2), Tensor::from_vec(vec![1_u32, 2000], [2]).unwrap());
    let (table, bad) = (here(&mut *engine, &table), here(&mut *engine, &bad));
    let refused = run_one(&mut *engine, Gather::new(&table, &bad, 0).into_op().unwrap());
    assert!(refused.unwrap_err().to_string().contains("2000"));
}

pub fn large_tensors_travel_and_their_parts_are_used(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let table = floats(&[1000, 300], 1);
    let here = here(&mut *engine, &table);
    let back = run_one(&mut *engine, Transfer::to_host(&here).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), table.to_vec::<f32>().unwrap());
    // A part within reach is used in place, also by ops that are not cut into pieces.
    let part = |tensor: &Tensor| tensor.slice(0, 777, 807).unwrap();
    let expected =
        run_one(&mut *engine, Softmax::new(&part(&table)).into_op().unwrap()).unwrap().into_tensor().unwrap();
    let got = run_one(&mut *engine, Softmax::new(&part(&here)).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    let expected = run_one(&mut *engine, Softmax::new(&table).into_op().unwrap()).unwrap().into_tensor().unwrap();
    let got = run_one(&mut *engine, Softmax::new(&here).into_op().unwrap()).unwrap().into_tensor().unwrap();
    assert_eq!(got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    // Ops that cannot be cut are refused: all elements of this line belong together.
    let line = here.reshape([300_000]).unwrap();
    refused(&mut *engine, Softmax::new(&line), 1_200_000);
    // A line that would be within reach if it began at a window.
    let ends = |from: usize| line.slice(0, from, from + 16_384).unwrap();
    run_one(&mut *engine, Softmax::new(&ends(64)).into_op().unwrap()).unwrap();
    refused(&mut *engine, Softmax::new(&ends(65)), 65_536);
}

pub fn lines_are_cut(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Pieces that begin at windows, and pieces that do not.
    for (dims, axis) in [([300, 128], 1), ([7, 5003], 1), ([333, 77], 1)] {
        let table = floats(&dims, 1);
        agree(&mut *engine, "softmax", Softmax::new(&table).axis(axis), CLOSE);
        agree(&mut *engine, "layernorm", LayerNorm::new(&table), CLOSE);
        agree(&mut *engine, "scan", Scan::sum(&table).axis(axis), LOOSE);
    }
    let cube = floats(&[9, 40, 70], 2);
    agree(&mut *engine, "softmax in the middle", Softmax::new(&cube).axis(1), CLOSE);
    agree(&mut *engine, "scan in the middle", Scan::new(&cube, ScanKind::Max).axis(1), Tolerance::Exact);
    let halves = random_tensor(DType::F16, &[400, 101], 3);
    let tolerance = Tolerance::Close { relative: 1e-2, absolute: 1e-2 };
    agree(&mut *engine, "softmax of halves", Softmax::new(&halves).axis(1), tolerance);
}

pub fn long_lines_are_scanned_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for (dims, dtype) in [([1, 50_001], DType::I32), ([2, 40_000], DType::F32), ([2, 33_000], DType::I8)] {
        let table = random_tensor(dtype, &dims, 1);
        for kind in [ScanKind::Sum, ScanKind::Max] {
            let op = || Scan::new(&table, kind).axis(1);
            agree(&mut *engine, "forwards", op(), LOOSE);
            agree(&mut *engine, "backwards", op().reverse(), LOOSE);
            agree(&mut *engine, "exclusive", op().exclusive(), LOOSE);
        }
    }
}

pub fn lines_beside_each_other_are_turned(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let table = floats(&[9_000, 3], 1);
    agree_here(&mut *engine, "scan", &table, |x| Scan::sum(x).axis(0).exclusive(), LOOSE);
    agree_here(&mut *engine, "softmax", &table, |x| Softmax::new(x).axis(0), CLOSE);
    agree_here(&mut *engine, "argsort", &table, |x| ArgSort::new(x).axis(0), Tolerance::Exact);
    // More bytes than are within reach at any offset of a block, but within reach in a block of
    // their own.
    agree(&mut *engine, "scan of all", Scan::sum(&floats(&[5_461, 3], 2)).axis(0), LOOSE);
    let cube = random_tensor(DType::U8, &[3, 4_001, 5], 3);
    agree_here(&mut *engine, "sort", &cube, |x| Sort::new(x).axis(1), Tolerance::Exact);
    agree_here(&mut *engine, "topk", &cube, |x| TopK::new(x, 3).axis(1), Tolerance::Exact);
    let (keys, values) = (random_tensor(DType::F16, &[3, 4_001, 5], 4), floats(&[3, 4_001, 5], 5));
    agree_here(&mut *engine, "pairs", &keys, |keys| SortPairs::new(keys, &values).axis(1), Tolerance::Exact);
    agree(&mut *engine, "long", ArgSort::new(&floats(&[20_000, 2], 6)).axis(0), Tolerance::Exact);
    refused(&mut *engine, Softmax::new(&floats(&[20_000, 2], 6)).axis(0), 160_000);
}

pub fn the_best_of_many_lines_are_found_in_parts(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Small and large `k` use different ways. Lines of bytes, with three results each, are stored
    // in the middle of words.
    for (dtype, dims, k) in [
        (DType::F32, [41, 1_501], 5),
        (DType::F32, [23, 2_503], 600),
        (DType::U8, [131, 1_999], 3),
        (DType::U8, [7, 9_001], 515),
        (DType::F16, [55, 777], 1),
        // The output is larger than the input: indices have four bytes.
        (DType::U8, [90, 200], 199),
    ] {
        let table = random_tensor(dtype, &dims, 1);
        agree(&mut *engine, &format!("{dtype:?} {dims:?}"), TopK::new(&table, k), Tolerance::Exact);
        agree(&mut *engine, &format!("{dtype:?} {dims:?}, least"), TopK::new(&table, k).smallest(), Tolerance::Exact);
    }
    let cube = floats(&[9, 101, 31], 2);
    agree(&mut *engine, "in the middle", TopK::new(&cube, 7).axis(1), Tolerance::Exact);
    agree_here(&mut *engine, "a part", &cube, |x| TopK::new(&x.slice(0, 1, 9).unwrap(), 7).axis(1), Tolerance::Exact);
    // Lines beyond reach, and one line that is within reach if it is not sorted.
    for (dtype, dims) in [(DType::U8, [2, 40_000]), (DType::U8, [3, 140_001]), (DType::F32, [2, 33_333])] {
        let table = random_tensor(dtype, &dims, 3);
        for k in [1, 300, 513, 20_001] {
            let what = format!("{k} of {dtype:?} {dims:?}");
            agree(&mut *engine, &what, TopK::new(&table, k), Tolerance::Exact);
        }
        agree(&mut *engine, "least", TopK::new(&table, 512).smallest(), Tolerance::Exact);
    }
    refused(&mut *engine, TopK::new(&floats(&[300_000], 4), 512), 1_200_000);
}

pub fn axes_change_places_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for dtype in [DType::F32, DType::F16, DType::U8, DType::Complex64] {
        // One matrix beyond reach, a batch of matrices that are each within reach, and other orders
        // of axes.
        for (dims, order) in [
            (&[301, 403][..], &[1, 0][..]),
            (&[11, 71, 61], &[0, 2, 1]),
            (&[3, 150, 137], &[0, 2, 1]),
            (&[43, 37, 31], &[2, 0, 1]),
            (&[5, 7, 401, 9], &[3, 1, 0, 2]),
        ] {
            let table = random_tensor(dtype, dims, 1);
            let what = format!("{dtype:?} {dims:?} {order:?}");
            agree_here(&mut *engine, &what, &table, |x| Transpose::with_order(x, order), Tolerance::Exact);
        }
        let table = random_tensor(dtype, &[403, 307], 2);
        let part = |x: &Tensor| Transpose::new(&x.slice(0, 3, 401).unwrap().slice(1, 5, 306).unwrap());
        agree_here(&mut *engine, "a part", &table, part, Tolerance::Exact);
        // Other ops copy views in the same way, and store small elements in the middle of words.
        let turned = |x: &Tensor| Softmax::new(&x.transpose().unwrap());
        if matches!(dtype, DType::F32 | DType::F16) {
            agree_here(&mut *engine, "softmax", &table, turned, Tolerance::Close { relative: 1e-2, absolute: 1e-3 });
        }
        if dtype != DType::Complex64 {
            let wide = random_tensor(dtype, &[403], 3);
            let sum = |x: &Tensor| Map::new(Expr::input(0).max(Expr::input(1)), &[&x.transpose().unwrap(), &wide]);
            agree_here(&mut *engine, "a map", &table, sum, Tolerance::Exact);
        }
    }
    // A view that repeats one row.
    let row = random_tensor(DType::U8, &[1, 301], 4);
    let stretched = |x: &Tensor| Transpose::new(&x.broadcast_to([501, 301]).unwrap());
    agree_here(&mut *engine, "stretched", &row, stretched, Tolerance::Exact);
}

pub fn many_lines_are_sorted_in_parts(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for dtype in [DType::F32, DType::F16, DType::U8] {
        for (dims, axis) in [([40, 2500], 1), ([300, 150], 1)] {
            let table = random_tensor(dtype, &dims, 1);
            agree(&mut *engine, "sort", Sort::new(&table).axis(axis), Tolerance::Exact);
            agree(&mut *engine, "argsort", ArgSort::new(&table).axis(axis), Tolerance::Exact);
        }
    }
    let (keys, values) = (random_tensor(DType::I32, &[20, 3000], 2), random_tensor(DType::Complex64, &[20, 3000], 3));
    agree(&mut *engine, "pairs", SortPairs::new(&keys, &values), Tolerance::Exact);
    // Fewer than four of these lines are within reach, and they end in the middle of words.
    agree(&mut *engine, "bytes", Sort::new(&random_tensor(DType::U8, &[5, 8_001], 5)), Tolerance::Exact);
}

pub fn lines_longer_than_kernels_see_are_sorted(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Many elements are equal and keep their order; lines end in the middle of words and have some
    // pieces of their own.
    for (dtype, dims) in [(DType::F32, &[1, 50_001][..]), (DType::F16, &[3, 33_333]), (DType::U8, &[2, 70_003])] {
        let table = random_tensor(dtype, dims, 1);
        for descending in [false, true] {
            let what = format!("{dtype:?} {dims:?} {descending}");
            agree(&mut *engine, &what, ArgSort { descending, ..ArgSort::new(&table) }, Tolerance::Exact);
            agree(&mut *engine, &what, Sort { descending, ..Sort::new(&table) }, Tolerance::Exact);
        }
        let part = |x: &Tensor| ArgSort::new(&x.slice(1, 3, dims[1]).unwrap());
        agree_here(&mut *engine, "a part", &table, part, Tolerance::Exact);
    }
    for dtype in [DType::Complex64, DType::F16] {
        let (keys, values) = (random_tensor(DType::U8, &[40_001], 2), random_tensor(dtype, &[40_001], 3));
        agree(&mut *engine, "pairs", SortPairs::new(&keys, &values), Tolerance::Exact);
    }
}

pub fn products_are_cut(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    // Rows of A and of the output are cut; then B as well, of which a kernel sees some rows at a
    // time. There are few kernels here because software adapters compile slowly.
    for [m, k, n] in [[500, 40, 60], [300, 200, 92], [70, 300, 260], [130, 64, 1000]] {
        agree(&mut *engine, "plain", MatMul::new(&floats(&[m, k], 1), &floats(&[k, n], 2)), LOOSE);
    }
    let (a, b, c, bias) = (floats(&[70, 300], 3), floats(&[300, 260], 4), floats(&[70, 260], 5), floats(&[260], 6));
    let op = MatMul::new(&a, &b).alpha(0.5).beta(2.0, &c).bias(&bias).activation(Activation::Relu);
    agree(&mut *engine, "with addends", op, LOOSE);
    let (a, b) = (floats(&[300, 170], 7), floats(&[260, 300], 8));
    let op = MatMul::new(&a, &b).transpose_a().transpose_b().bias(&floats(&[170, 1], 9));
    agree(&mut *engine, "turned, with a bias per row", op, LOOSE);
    let (many, one) = (floats(&[5, 60, 50], 8), floats(&[50, 77], 9));
    agree(&mut *engine, "a batch", MatMul::new(&many, &one), LOOSE);
    let (a, b) = (random_tensor(DType::F16, &[200, 70], 10), random_tensor(DType::F16, &[70, 600], 11));
    let tolerance = Tolerance::Close { relative: 1e-2, absolute: 5e-2 };
    agree(&mut *engine, "halves", MatMul::new(&a, &b), tolerance);
    let (a, b) = (random_tensor(DType::I8, &[200, 70], 12), random_tensor(DType::I8, &[70, 1100], 13));
    agree(&mut *engine, "bytes", MatMul::new(&a, &b), Tolerance::Exact);
}
