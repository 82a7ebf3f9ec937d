//! Streams on the CPU's engine: objects that several ops reference, in one batch and in many, until
//! their last handle is dropped.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::run_one;
use panoply_core::op::signal::{Biquad, Filter, Fir, Iir, StartFilter, StreamFilter};
use panoply_core::{Backend, DType, Engine, Error, Item, Object, OpenOptions, Operation, Tensor};
use panoply_cpu::CpuBackend;

fn engine() -> Box<dyn Engine> {
    let backend = CpuBackend::new();
    let devices = backend.discover().unwrap();
    backend.open(&devices[0], &OpenOptions::default()).unwrap()
}

fn samples(count: usize) -> Tensor {
    Tensor::from_vec((0..count).map(|at| (at % 17) as f32 - 8.0).collect::<Vec<f32>>(), [count]).unwrap()
}

fn start(engine: &mut dyn Engine, filter: Filter) -> Object {
    run_one(engine, StartFilter::new(filter, DType::F32).into_op().unwrap()).unwrap().into_object().unwrap()
}

#[test]
fn pieces_in_one_batch_are_filtered_in_order() {
    let mut engine = engine();
    let taps = Tensor::from_vec((0..33).map(|at| 1.0 / (at as f32 + 1.0)).collect::<Vec<f32>>(), [33]).unwrap();
    let (whole, stream) = (samples(4000), start(engine.as_mut(), Filter::fir(&taps)));
    let expected = run_one(engine.as_mut(), Fir::new(&whole, &taps).into_op().unwrap()).unwrap().into_tensor().unwrap();
    // Small ops of other kinds between them would be split among threads; pieces of a stream must
    // not be.
    let piece = |at: usize| whole.slice(0, at * 100, (at + 1) * 100).unwrap();
    let op = |at: usize| StreamFilter::new(&stream, &piece(at)).into_op().unwrap();
    let mut batch: Vec<Item> = (0..40).map(|at| Item { token: at as u64, op: op(at) }).collect();
    engine.submit(&mut batch);
    let mut finished = Vec::new();
    while finished.len() < 40 {
        engine.poll(&mut finished, std::time::Duration::from_millis(100));
    }
    let mut got = Vec::new();
    for done in finished {
        got.extend_from_slice(done.result.unwrap().into_tensor().unwrap().as_slice::<f32>().unwrap());
    }
    assert_eq!(got, expected.as_slice::<f32>().unwrap());
}

#[test]
fn a_recursive_stream_gives_what_the_whole_gives_and_is_lost_with_its_engine() {
    let mut first = engine();
    let sections = vec![Biquad { b: [0.2, 0.3, 0.1], a: [-0.5, 0.25] }; 3];
    let (whole, stream) = (samples(5000), start(first.as_mut(), Filter::iir(sections.clone())));
    let expected =
        run_one(first.as_mut(), Iir::new(&whole, sections).into_op().unwrap()).unwrap().into_tensor().unwrap();
    let mut got = Vec::new();
    for (begin, end) in [(0, 1), (1, 1), (1, 777), (777, 5000)] {
        let op = StreamFilter::new(&stream, &whole.slice(0, begin, end).unwrap()).into_op().unwrap();
        let piece = run_one(first.as_mut(), op).unwrap().into_tensor().unwrap();
        got.extend_from_slice(piece.contiguous().unwrap().as_slice::<f32>().unwrap());
    }
    for (got, expected) in got.iter().zip(expected.as_slice::<f32>().unwrap()) {
        assert!((got - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{got} {expected}");
    }
    assert_eq!(got.len(), 5000);
    drop(first);
    let op = StreamFilter::new(&stream, &samples(3)).into_op().unwrap();
    let lost = run_one(engine().as_mut(), op);
    assert!(matches!(lost, Err(Error::ObjectLost { .. })), "{lost:?}");
}
