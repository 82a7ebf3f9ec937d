//! Filters over streams: any cutting gives what the whole gives, and what does not fit leaves the memory as it was.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::op::signal::{Biquad, Filter, StartFilter, StreamFilter};
use panoply_core::{
    Api, Complex64, DType, DeviceId, Element, Error, HostBufferMut, Object, Operation, Result, Tensor, Value,
};
use panoply_signal::design::{Band, Prototype, recursive};
use panoply_signal::{Level, OneThread, Workspace};

const DEVICE: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

fn workspace() -> Workspace {
    let mut space = Workspace::new(Level::best());
    space.keep_streams(DEVICE);
    space
}

fn run(space: &mut Workspace, op: impl Operation) -> Result<Value> {
    panoply_signal::run(&op.into_op()?, space, &OneThread, &mut HostBufferMut::zeroed).unwrap()
}

fn start(space: &mut Workspace, op: StartFilter) -> Object {
    run(space, op).unwrap().into_object().unwrap()
}

fn next(space: &mut Workspace, stream: &Object, piece: &Tensor) -> Result<Tensor> {
    run(space, StreamFilter::new(stream, piece))?.into_tensor()
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn complex(count: usize, seed: u32) -> Vec<Complex64> {
    numbers(2 * count, seed).chunks(2).map(|pair| Complex64::new(pair[0], pair[1])).collect()
}

fn line<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap()
}

/// The whole at once, and in pieces of these lengths over and over.
fn whole_and_pieces<T: Element>(filter: &Filter, samples: &[T], lens: &[usize]) -> (Vec<T>, Vec<T>) {
    let mut space = workspace();
    let op = StartFilter::new(filter.clone(), T::DTYPE);
    let (once, cut) = (start(&mut space, op.clone()), start(&mut space, op));
    let whole = next(&mut space, &once, &line(samples)).unwrap().as_slice::<T>().unwrap().to_vec();
    let (mut pieces, mut at, mut turns) = (Vec::new(), 0, lens.iter().cycle());
    while at < samples.len() {
        let end = samples.len().min(at + turns.next().unwrap());
        pieces.extend_from_slice(next(&mut space, &cut, &line(&samples[at..end])).unwrap().as_slice::<T>().unwrap());
        at = end;
    }
    (whole, pieces)
}

#[test]
fn sums_are_bit_for_bit_the_same_however_the_stream_is_cut() {
    let (real, both) = (line(&numbers(101, 1)), line(&complex(37, 2)));
    for lens in [&[1][..], &[0, 7, 100], &[1000, 3], &[99, 100, 101], &[20_000]] {
        for (taps, up, down) in
            [(&real, 1, 1), (&real, 1, 5), (&real, 3, 1), (&real, 7, 4), (&both, 1, 1), (&both, 2, 3)]
        {
            let filter = Filter::Fir { taps: taps.clone(), up, down };
            let (whole, pieces) = whole_and_pieces(&filter, &complex(5000, 3), lens);
            assert_eq!(whole, pieces, "{up}/{down} {lens:?}");
            if taps.dtype() == DType::F32 {
                let (whole, pieces) = whole_and_pieces(&filter, &numbers(9000, 4), lens);
                assert_eq!(whole, pieces, "{up}/{down} {lens:?}");
            }
        }
    }
}

#[test]
fn recursive_filters_go_on_where_they_were() {
    let sharp = recursive(Prototype::Chebyshev1 { ripple_db: 0.5 }, 7, Band::BandPass(0.2, 0.3)).unwrap();
    let growing = vec![Biquad { b: [1.0, 0.0, 0.0], a: [-1.0005, 0.0] }];
    for sections in [sharp, growing] {
        for lens in [&[1][..], &[0, 7, 100], &[50_000, 3]] {
            let (whole, pieces) = whole_and_pieces(&Filter::iir(sections.clone()), &numbers(120_000, 5), lens);
            assert_eq!(whole.len(), pieces.len());
            for (whole, piece) in whole.iter().zip(&pieces) {
                let close = (whole - piece).abs() <= 1e-6 * (1.0 + whole.abs());
                assert!(close || whole.is_infinite() && whole == piece, "{whole} {piece}");
            }
        }
    }
}

#[test]
fn several_signals_have_a_memory_each() {
    let mut space = workspace();
    let taps = line(&[1.0_f32, 1.0]);
    let both = start(&mut space, StartFilter::new(Filter::fir(&taps), DType::F32).lines(2));
    let piece = Tensor::from_vec(vec![1.0_f32, 2.0, 10.0, 20.0], [2, 2]).unwrap();
    assert_eq!(next(&mut space, &both, &piece).unwrap().as_slice::<f32>().unwrap(), [1.0, 3.0, 10.0, 30.0]);
    let piece = Tensor::from_vec(vec![5.0_f32, 50.0], [2, 1]).unwrap();
    assert_eq!(next(&mut space, &both, &piece).unwrap().as_slice::<f32>().unwrap(), [7.0, 70.0]);
}

#[test]
fn what_does_not_fit_is_refused_and_the_memory_stays() {
    let mut space = workspace();
    let stream = start(&mut space, StartFilter::new(Filter::fir(&line(&[1.0_f32, 2.0])), DType::F32));
    next(&mut space, &stream, &line(&[3.0_f32])).unwrap();
    let wrong = next(&mut space, &stream, &line(&complex(4, 1)));
    assert!(matches!(wrong, Err(Error::DTypeMismatch { expected: DType::F32, .. })), "{wrong:?}");
    let wrong = next(&mut space, &stream, &Tensor::zeros(DType::F32, [2, 4]).unwrap());
    assert!(matches!(wrong, Err(Error::ShapeMismatch { .. })), "{wrong:?}");
    let full = StreamFilter::new(&stream, &line(&[9.0_f32])).into_op().unwrap();
    let none = |bytes: usize| {
        Err(Error::OutOfMemory { place: "the host".to_owned(), asked: bytes as u64, free: 0, largest: 0 })
    };
    let wrong = panoply_signal::run(&full, &mut space, &OneThread, &mut { none }).unwrap();
    assert!(matches!(wrong, Err(Error::OutOfMemory { .. })), "{wrong:?}");
    assert_eq!(next(&mut space, &stream, &line(&[1.0_f32])).unwrap().as_slice::<f32>().unwrap(), [7.0]);
    // Another engine has never heard of it.
    let lost = next(&mut workspace(), &stream, &line(&[1.0_f32]));
    assert!(matches!(lost, Err(Error::ObjectLost { .. })), "{lost:?}");
    drop(stream);
    space.collect();
}
