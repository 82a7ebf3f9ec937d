//! An op fails with an out-of-memory error if any of its allocations fails; the process and the
//! engine go on. An allocator refuses large requests on command.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The allocator that refuses.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use panoply_core::graph::Graph;
use panoply_core::op::compute::{ArgSort, Attention, Conv2d, ConvOptions, Metric, Pool2d, Reduce, Search, Sort, TopK};
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    Backend, DType, Engine, Error, Item, MemoryLimits, Op, OpenOptions, Operation, Result, Tensor, Value,
};
use panoply_cpu::CpuBackend;

/// The smallest request that counts as large: an op's data, not the lists that describe it.
const LARGE_BYTES: usize = 24 << 10;

struct Refusing;

/// The number of large requests that are still granted. Negative: all of them.
static GRANTED: AtomicI64 = AtomicI64::new(-1);
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn refuses(bytes: usize) -> bool {
    if bytes < LARGE_BYTES || GRANTED.load(Ordering::SeqCst) < 0 {
        return false;
    }
    let one_less = |left: i64| (left > 0).then_some(left - 1);
    let refused = GRANTED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err();
    REFUSED.fetch_add(u64::from(refused), Ordering::SeqCst);
    refused
}

// SAFETY: passes every call to the system's allocator unchanged, or returns null, which an
// allocator may.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system allocator's.
        if refuses(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        if refuses(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        if refuses(size) { std::ptr::null_mut() } else { unsafe { System.realloc(pointer, layout, size) } }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Runs an op, grants it `granted` large requests, and returns whether one was refused.
fn run(engine: &mut dyn Engine, op: &Op, granted: i64) -> (Result<Value>, bool) {
    let mut batch = vec![Item { token: 1, op: op.clone() }];
    let mut finished = Vec::with_capacity(4);
    REFUSED.store(0, Ordering::SeqCst);
    GRANTED.store(granted, Ordering::SeqCst);
    engine.submit(&mut batch);
    engine.poll(&mut finished, Duration::ZERO);
    GRANTED.store(-1, Ordering::SeqCst);
    (finished.remove(0).result, REFUSED.load(Ordering::SeqCst) > 0)
}

fn numbers(dtype: DType, shape: [usize; 2]) -> Tensor {
    let values = (0..shape[0] * shape[1]).map(|index| (index * 7919 % 10_007) as f32);
    match dtype {
        DType::F32 => Tensor::from_vec(values.collect(), shape).unwrap(),
        DType::I8 => Tensor::from_vec(values.map(|value| value as i32 as i8).collect(), shape).unwrap(),
        _ => Tensor::from_vec(values.map(panoply_core::f16::from_f32).collect(), shape).unwrap(),
    }
}

fn ops() -> Vec<(&'static str, Op)> {
    let (f32s, f16s, i8s) = (DType::F32, DType::F16, DType::I8);
    let (long, wide) = (numbers(f32s, [1, 300_000]), numbers(f32s, [5_000, 48]));
    let (rows, queries) = (numbers(f32s, [3_000, 128]), numbers(f32s, [200, 128]));
    let small = numbers(i8s, [3_000, 128]);
    let halves = numbers(f16s, [2 * 400, 64]).reshape([2, 400, 64]).unwrap();
    vec![
        ("sort, a long line", Sort::new(&long).axis(1).into_op().unwrap()),
        ("sort, columns", Sort::new(&wide).axis(0).into_op().unwrap()),
        ("sort, 16 bits", Sort::new(&numbers(f16s, [2, 40_000])).axis(1).into_op().unwrap()),
        ("sort, counted", Sort::new(&numbers(f16s, [1, 200_000])).axis(1).into_op().unwrap()),
        ("arg sort, a long line", ArgSort::new(&long).axis(1).into_op().unwrap()),
        ("arg sort, columns", ArgSort::new(&wide).axis(0).into_op().unwrap()),
        ("top k, a long line", TopK::new(&long, 20_000).axis(1).into_op().unwrap()),
        ("top k, columns", TopK::new(&wide, 700).axis(0).into_op().unwrap()),
        ("sum, columns", Reduce::sum(&numbers(f32s, [6_000, 2_048])).axes(&[0]).into_op().unwrap()),
        ("arg max, rows", Reduce::arg_max(&numbers(f32s, [40_000, 4])).axes(&[1]).into_op().unwrap()),
        ("arg max, columns", Reduce::arg_max(&numbers(f32s, [64, 40_000])).axes(&[0]).into_op().unwrap()),
        ("search, many queries", Search::new(&rows, &queries, Metric::Euclidean, 10).into_op().unwrap()),
        ("search, many neighbours", Search::new(&rows, &queries, Metric::Cosine, 1_000).into_op().unwrap()),
        ("search, f16", Search::new(&numbers(f16s, [3_000, 128]), &queries, Metric::Dot, 10).into_op().unwrap()),
        ("attention, f16", Attention::new(&halves, &halves, &halves).into_op().unwrap()),
        ("search, i8", Search::new(&small, &numbers(i8s, [300, 128]), Metric::Cosine, 10).into_op().unwrap()),
    ]
}

/// Two convolutions and a pool, between which images lie with their channels last.
fn network(input: &Tensor) -> Op {
    let mut g = Graph::builder("network");
    let weights = |dims: [usize; 4]| {
        let rows = numbers(DType::F32, [dims[0] * dims[1], dims[2] * dims[3]]);
        rows.reshape(dims).unwrap()
    };
    let dims: Vec<_> = input.shape().iter().map(|size| (*size).into()).collect();
    let x = g.input("x", DType::F32, &dims).unwrap();
    let options = ConvOptions { padding: [1; 4], ..ConvOptions::default() };
    let w = g.unnamed_constant(&weights([32, 16, 3, 3])).unwrap();
    let y = g.conv2d(x, w, options).unwrap();
    let y = g.relu(y).unwrap();
    let y = g.max_pool(y, [2, 2]).unwrap();
    // A step that is not packed ahead: its weights are no constant.
    let w = g.input("w", DType::F32, &[32.into(), 32.into(), 3.into(), 3.into()]).unwrap();
    let y = g.conv2d(y, w, options).unwrap();
    let y = g.max_pool(y, [2, 2]).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    RunGraph::new(&graph, &[input, &weights([32, 32, 3, 3])]).into_op().unwrap()
}

/// After a graph whose step found no memory, an op by itself lays its output out as ever.
fn images_after_a_graph_without_memory(engine: &mut dyn Engine) {
    let image = numbers(DType::F32, [16 * 40, 40]).reshape([1, 16, 40, 40]).unwrap();
    let weights = numbers(DType::F32, [8 * 16, 9]).reshape([8, 16, 3, 3]).unwrap();
    let after: [Op; 2] =
        [Conv2d::new(&image, &weights).into_op().unwrap(), Pool2d::max(&image, [2, 2]).into_op().unwrap()];
    let bits = |value: Value| value.tensors().next().unwrap().to_vec::<f32>().unwrap();
    let expected: Vec<Vec<f32>> = after.iter().map(|op| bits(run(engine, op, -1).0.unwrap())).collect();
    let own = bits(run(engine, &network(&image), -1).0.unwrap());
    let (mut granted, mut refused_in_kernels) = (0, 0);
    loop {
        // Each round has a graph of its own, so that no plan and no packed weights are reused.
        let graph = network(&image);
        let (result, refused) = run(engine, &graph, granted);
        for (op, expected) in after.iter().zip(&expected) {
            let got = run(engine, op, -1).0.unwrap();
            assert!(bits(got) == *expected, "after {granted} allocations of the graph: {op:?} is laid out otherwise");
        }
        assert!(
            bits(run(engine, &graph, -1).0.unwrap()) == own,
            "after {granted} allocations of the graph: it is another"
        );
        match result {
            Ok(_) if !refused => break,
            Ok(_) => {}
            Err(Error::OutOfMemory { .. }) => refused_in_kernels += 1,
            Err(error) => panic!("the graph, allocation {granted}: {error}"),
        }
        granted += 1;
        assert!(granted < 10_000, "the graph allocates without end");
    }
    assert!(refused_in_kernels > 1, "{refused_in_kernels} of {granted} refused");
    println!("a graph of images: {granted} large allocations, {refused_in_kernels} without which it cannot do");
}

/// One test, since the allocator refuses for the whole process.
#[test]
fn an_op_without_memory_is_out_of_memory_at_each_of_its_allocations() {
    let backend = CpuBackend::new();
    let device = backend.discover().unwrap().remove(0);
    let memory = MemoryLimits { pool_bytes_max: Some(0), ..Default::default() };
    let options = OpenOptions { threads: Some(2), memory, ..Default::default() };
    let mut engine = backend.open(&device, &options).unwrap();
    for (name, op) in ops() {
        let mut granted = 0;
        loop {
            let (result, refused) = run(engine.as_mut(), &op, granted);
            match (result, refused) {
                (Ok(_), false) => break,
                (Err(Error::OutOfMemory { asked, .. }), true) => assert!(asked as usize >= LARGE_BYTES / 2, "{name}"),
                (Ok(_), true) => panic!("{name}: it did without its {granted}th allocation"),
                (Err(error), _) => panic!("{name}, allocation {granted}: {error}"),
            }
            granted += 1;
            assert!(granted < 100_000, "{name} allocates without end");
        }
        assert!(granted >= 1, "{name}: nothing was refused");
        println!("{name}: {granted} large allocations");
    }
    images_after_a_graph_without_memory(engine.as_mut());
}
