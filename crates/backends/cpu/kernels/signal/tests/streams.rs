//! Filters over streams: any cutting gives the same result as the whole, and a refused piece leaves
//! the memory unchanged.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::op::signal::{
    Adapt, AdaptTarget, Biquad, Constellation, Convolutional, ConvolutionalEncode, DemodulateWave, Ending, Filter,
    Frames, Interleaver, Istft, Learning, Mix, ModulateWave, Puncture, SampleFormat, Scramble, Scrambler, StartFilter,
    Stft, StreamFilter, TimingDetector, Tracker, Wave,
};
use panoply_core::{
    Api, Complex64, DType, DeviceId, Element, Error, HostBufferMut, Object, Operation, Result, Tensor, Value,
};
use panoply_cpu_signal::{Level, OneThread, Threads, Workspace};
use panoply_radio::design::{Band, Prototype, recursive};

const DEVICE: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

fn workspace() -> Workspace {
    let mut space = Workspace::new(Level::best());
    space.keep_streams(DEVICE);
    space
}

fn run(space: &mut Workspace, op: impl Operation) -> Result<Value> {
    panoply_cpu_signal::run(&op.into_op()?, space, &OneThread, &mut HostBufferMut::zeroed).unwrap()
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

/// The output of the whole at once, and of pieces whose lengths repeat `lens`.
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

/// Every kind of stream for c64 samples, with the tolerance between pieces and the whole.
fn every_filter() -> Vec<(&'static str, Filter, f32)> {
    let (real, both) = (line(&numbers(45, 1)), line(&complex(13, 2)));
    let timing = |detector| Filter::Track(Tracker::Timing { detector, samples: 3.7, bandwidth: 0.02 });
    vec![
        ("fir", Filter::fir(&real), 0.0),
        ("fir of complex taps", Filter::fir(&both), 0.0),
        ("fir between rates", Filter::Fir { taps: real.clone(), up: 5, down: 3 }, 0.0),
        ("iir", Filter::iir(recursive(Prototype::Butterworth, 5, Band::LowPass(0.3)).unwrap()), 1e-6),
        ("mix", Filter::Mix { frequency: 0.123_4 }, 0.0),
        ("gain", Filter::Track(Tracker::Gain { target: 1.0, rate: 0.01, gain_max: 100.0 }), 0.0),
        ("carrier", Filter::Track(Tracker::Carrier { phases: 4, bandwidth: 0.05 }), 0.0),
        ("gardner", timing(TimingDetector::Gardner), 0.0),
        ("mueller", timing(TimingDetector::MuellerMuller), 0.0),
        ("channelize", Filter::Channelize { taps: real, channels: 6 }, 0.0),
        ("discriminate", Filter::Discriminate { deviation: 0.1 }, 0.0),
    ]
}

/// The output of a stream for these pieces, as numbers.
fn numbers_of(filter: &Filter, samples: &[Complex64], cuts: &[usize]) -> Vec<f32> {
    let mut space = workspace();
    let stream = start(&mut space, StartFilter::new(filter.clone(), DType::Complex64));
    let mut all = Vec::new();
    for cut in cuts.windows(2) {
        let out = next(&mut space, &stream, &line(&samples[cut[0]..cut[1]])).unwrap();
        match out.dtype() {
            DType::F32 => all.extend_from_slice(out.as_slice::<f32>().unwrap()),
            _ => all.extend(out.as_slice::<Complex64>().unwrap().iter().flat_map(|value| [value.re, value.im])),
        }
    }
    all
}

#[test]
fn every_stream_gives_what_the_whole_gives_however_it_is_cut() {
    let mut noise = panoply_radio::synthetic::Noise::new(6);
    let mut samples = complex(3000, 7);
    for round in 0..24 {
        let len = [0, 1, 2, 97, 3000][round % 5];
        let mut cuts: Vec<usize> = (0..noise.word() % 40).map(|_| noise.word() as usize % (len + 1)).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        if round == 20 {
            samples[1000] = Complex64::new(f32::NAN, 1.0);
            samples[2000] = Complex64::new(f32::INFINITY, f32::NEG_INFINITY);
        }
        for (name, filter, tolerance) in every_filter() {
            let (whole, pieces) = (numbers_of(&filter, &samples, &[0, len]), numbers_of(&filter, &samples, &cuts));
            assert_eq!(whole.len(), pieces.len(), "{name} {cuts:?}");
            for (at, (whole, piece)) in whole.iter().zip(&pieces).enumerate() {
                let near = (whole - piece).abs() <= tolerance * (1.0 + whole.abs());
                assert!(near || whole == piece || whole.is_nan() && piece.is_nan(), "{name} {at}: {whole} {piece}");
            }
        }
    }
}

/// The output of a stream of bytes, samples or numbers for these pieces, as bytes; with the desired
/// signal if the filter learns from one.
fn bytes_of<T: Element>(filter: &Filter, desired: Option<&[Complex64]>, samples: &[T], cuts: &[usize]) -> Vec<u8> {
    let mut space = workspace();
    let stream = start(&mut space, StartFilter::new(filter.clone(), T::DTYPE));
    let mut all = Vec::new();
    for cut in cuts.windows(2) {
        let mut op = StreamFilter::new(&stream, &line(&samples[cut[0]..cut[1]]));
        if let Some(desired) = desired {
            op = op.towards(&line(&desired[cut[0]..cut[1]]));
        }
        let out = run(&mut space, op).unwrap().into_tensor().unwrap();
        all.extend_from_slice(out.as_bytes().unwrap());
    }
    all
}

/// Checks that cut streams give bit for bit the same result as the whole. Returns the bytes of the
/// whole.
fn same_however_cut<T: Element>(name: &str, filter: &Filter, desired: Option<&[Complex64]>, samples: &[T]) -> Vec<u8> {
    let mut noise = panoply_radio::synthetic::Noise::new(16);
    let len = samples.len();
    let whole = bytes_of(filter, desired, samples, &[0, len]);
    for round in 0..12 {
        let mut cuts: Vec<usize> = (0..noise.word() % 50).map(|_| noise.word() as usize % (len + 1)).collect();
        cuts.extend([0, len]);
        if round == 0 {
            cuts.extend(0..len.min(700));
        }
        cuts.sort_unstable();
        assert!(whole == bytes_of(filter, desired, samples, &cuts), "{name} {cuts:?}");
    }
    whole
}

fn bytes<T: Element>(value: Value) -> Vec<u8> {
    let tensor = value.into_tensor().unwrap();
    assert_eq!(tensor.dtype(), T::DTYPE);
    tensor.as_bytes().unwrap().to_vec()
}

#[test]
fn filters_that_learn_go_on_learning() {
    let (mut space, samples, desired) = (workspace(), complex(2000, 11), complex(2000, 12));
    let first = line(&complex(7, 13).iter().map(|weight| weight * 0.1).collect::<Vec<_>>());
    for normalized in [false, true] {
        let learning = [
            (Learning::Signal, AdaptTarget::Signal(line(&desired))),
            (Learning::Decisions(Constellation::Qpsk), AdaptTarget::Decisions(Constellation::Qpsk)),
            (Learning::Modulus(0.7), AdaptTarget::Modulus(0.7)),
        ];
        for (stream, target) in learning {
            let wanted = matches!(stream, Learning::Signal).then_some(&desired[..]);
            let filter = Filter::Adapt { weights: first.clone(), target: stream, step: 0.01, normalized };
            let whole = same_however_cut("adapt", &filter, wanted, &samples);
            let mut op = Adapt::new(&line(&samples), target, &first, 0.01);
            op.normalized = normalized;
            let (expected, _) = run(&mut space, op).unwrap().into_pair().unwrap();
            assert_eq!(whole, expected.as_bytes().unwrap(), "the stream gives what the op gives");
        }
    }
}

#[test]
fn waves_go_on_without_a_jump() {
    let mut space = workspace();
    let fsk = Wave::Fsk { bits: 2, samples: 7, spacing: 0.05 };
    let symbols: Vec<u8> = numbers(900, 14).iter().map(|value| (value.abs() * 3.99) as u8).collect();
    let wave = same_however_cut("fsk", &Filter::ModulateWave(fsk), None, &symbols);
    assert_eq!(wave, bytes::<Complex64>(run(&mut space, ModulateWave::new(fsk, &line(&symbols))).unwrap()));
    let wave: Vec<Complex64> = wave.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(same_however_cut("fsk back", &Filter::DemodulateWave(fsk), None, &wave), symbols);
    for wave in [Wave::Fm { deviation: 0.03 }, Wave::Am { depth: 0.5 }] {
        let message = numbers(900, 15);
        let sent = same_however_cut("wave", &Filter::ModulateWave(wave), None, &message);
        assert_eq!(sent, bytes::<Complex64>(run(&mut space, ModulateWave::new(wave, &line(&message))).unwrap()));
        let sent: Vec<Complex64> = sent.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        let got = same_however_cut("wave back", &Filter::DemodulateWave(wave), None, &sent);
        assert_eq!(got, bytes::<f32>(run(&mut space, DemodulateWave::new(wave, &line(&sent))).unwrap()));
    }
    let ofdm = Wave::Ofdm { carriers: 12, prefix: 5 };
    let samples = complex(17 * 40 + 9, 16);
    let got = same_however_cut("ofdm", &Filter::DemodulateWave(ofdm), None, &samples);
    assert_eq!(
        got,
        bytes::<Complex64>(run(&mut space, DemodulateWave::new(ofdm, &line(&samples[..17 * 40]))).unwrap())
    );
}

#[test]
fn frames_wait_for_what_fills_them() {
    let mut space = workspace();
    for (window, hop) in [(16, 5), (16, 16), (9, 40), (1, 1)] {
        let frames = Frames::new(&line(&numbers(window, 17)), hop);
        let samples = complex(1200, 18);
        let got = same_however_cut("stft", &Filter::Stft(frames.clone()), None, &samples);
        assert_eq!(
            got,
            bytes::<Complex64>(run(&mut space, Stft::new(&line(&samples), &frames)).unwrap()),
            "{window} {hop}"
        );
        same_however_cut("stft of real samples", &Filter::Stft(frames), None, &numbers(777, 19));
    }
    let raw = panoply_radio::synthetic::Noise::new(20).bytes(1203);
    for (format, complex) in [(SampleFormat::I16, true), (SampleFormat::I8, true), (SampleFormat::I24, false)] {
        let got = same_however_cut("read", &Filter::ReadSamples { format, complex }, None, &raw);
        let whole = raw.len() / (format.size_bytes() * if complex { 2 } else { 1 });
        assert_eq!(got.len(), whole * if complex { 8 } else { 4 });
    }
    let interleaver = Interleaver::Block { rows: 7, columns: 11 };
    for inverse in [false, true] {
        let filter = Filter::Interleave { interleaver: interleaver.clone(), inverse };
        same_however_cut("interleave", &filter, None, &raw);
        same_however_cut("interleave samples", &filter, None, &numbers(800, 21));
    }
}

#[test]
fn samples_come_of_spectra_as_soon_as_no_frame_adds_to_them() {
    let mut space = workspace();
    for (window, hop, transform) in [(16, 5, 16), (16, 4, 32), (16, 16, 16), (9, 40, 9), (1, 1, 1), (24, 1, 24)] {
        let frames = Frames::new(&line(&numbers(window, 17)), hop).transform(transform);
        for real in [false, true] {
            let samples = if real { line(&numbers(1200, 18)) } else { line(&complex(1200, 18)) };
            let spectra = run(&mut space, Stft::new(&samples, &frames)).unwrap().into_tensor().unwrap();
            let (count, flat) = (frames.count(1200), spectra.to_vec::<Complex64>().unwrap());
            let filter = Filter::Istft { frames: frames.clone(), real };
            let got = same_however_cut("istft", &filter, None, &flat);
            let op = Istft::new(&spectra, &frames, 1200);
            let value = run(&mut space, if real { op.real() } else { op }).unwrap();
            let expected = if real { bytes::<f32>(value) } else { bytes::<Complex64>(value) };
            let size = if real { 4 } else { 8 };
            assert!(got.len() == count * hop * size && got.len() + window.max(hop) * size > expected.len());
            let both = got.len().min(expected.len());
            assert_eq!(got[..both], expected[..both], "{window} {hop} {real}");
        }
    }
}

#[test]
fn bits_go_on_through_registers_and_trellises() {
    let data = panoply_radio::synthetic::Noise::new(22).bytes(2500);
    let mut space = workspace();
    for scrambler in [Scrambler::wifi(0x5b), Scrambler::DVB, Scrambler::V34] {
        let sent = same_however_cut("scramble", &Filter::Scramble { scrambler, inverse: false }, None, &data);
        assert_eq!(sent, bytes::<u8>(run(&mut space, Scramble::new(scrambler, &line(&data))).unwrap()));
        assert_eq!(same_however_cut("back", &Filter::Scramble { scrambler, inverse: true }, None, &sent), data);
    }
    for puncture in [Puncture::NONE, Puncture::THREE_QUARTERS, Puncture::FIVE_SIXTHS] {
        let code = Convolutional { puncture, ..Convolutional::default() };
        let coded = same_however_cut("encode", &Filter::ConvolutionalEncode(code), None, &data);
        let whole = ConvolutionalEncode::new(&line(&data), 8 * data.len()).code(code).ending(Ending::Open);
        let expected = bytes::<u8>(run(&mut space, whole).unwrap());
        assert_eq!(coded, expected[..coded.len()], "the stream begins as the frame does");
        let bit = |at: usize| coded[at / 8] >> (7 - at % 8) & 1;
        let mut softs: Vec<u8> = (0..8 * coded.len()).map(|at| if bit(at) == 1 { 220 } else { 40 }).collect();
        softs.iter_mut().step_by(211).for_each(|soft| *soft = 255 - *soft);
        let got = same_however_cut("viterbi", &Filter::viterbi(code), None, &softs);
        assert!(got.len() + 32 > data.len(), "{} of {}", got.len(), data.len());
        assert_eq!(got, data[..got.len()]);
    }
}

#[test]
fn sessions_refuse_what_does_not_fit_and_keep_their_memory() {
    let mut space = workspace();
    let fsk = Wave::Fsk { bits: 1, samples: 4, spacing: 0.1 };
    let op = StartFilter::new(Filter::ModulateWave(fsk), DType::U8);
    let (calm, shaken) = (start(&mut space, op.clone()), start(&mut space, op));
    for stream in [&calm, &shaken] {
        next(&mut space, stream, &line(&[1_u8, 1, 0])).unwrap();
    }
    let wrong = next(&mut space, &shaken, &line(&[1_u8, 2]));
    assert!(matches!(wrong, Err(Error::InvalidArgument { .. })), "{wrong:?}");
    let towards = StreamFilter::new(&shaken, &line(&[1_u8])).towards(&line(&complex(1, 1)));
    assert!(run(&mut space, towards).is_err(), "it does not learn");
    let (a, b) = (next(&mut space, &calm, &line(&[1_u8])), next(&mut space, &shaken, &line(&[1_u8])));
    assert_eq!(a.unwrap().as_bytes().unwrap(), b.unwrap().as_bytes().unwrap());
    let learner =
        Filter::Adapt { weights: line(&complex(3, 2)), target: Learning::Signal, step: 0.1, normalized: false };
    let learner = start(&mut space, StartFilter::new(learner, DType::Complex64));
    let alone = next(&mut space, &learner, &line(&complex(3, 3)));
    assert!(matches!(alone, Err(Error::InvalidArgument { .. })), "{alone:?}");
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
    let wrong = panoply_cpu_signal::run(&full, &mut space, &OneThread, &mut { none }).unwrap();
    assert!(matches!(wrong, Err(Error::OutOfMemory { .. })), "{wrong:?}");
    assert_eq!(next(&mut space, &stream, &line(&[1.0_f32])).unwrap().as_slice::<f32>().unwrap(), [7.0]);
    // Another engine does not know the stream.
    let lost = next(&mut workspace(), &stream, &line(&[1.0_f32]));
    assert!(matches!(lost, Err(Error::ObjectLost { .. })), "{lost:?}");
    drop(stream);
    space.collect();
}

/// Threads of which one panics in the middle of the work.
struct Stumbling;

impl Threads for Stumbling {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks.div_ceil(2)).for_each(task);
        panic!("a thread has stumbled");
    }
}

#[test]
fn a_panic_leaves_the_memory_as_it_was() {
    let taps = line(&numbers(31, 1));
    let sharp = recursive(Prototype::Butterworth, 4, Band::LowPass(0.2)).unwrap();
    let filters =
        [Filter::fir(&taps), Filter::Fir { taps, up: 3, down: 2 }, Filter::iir(sharp)].map(|filter| (filter, 2));
    for (filter, lines) in filters {
        let mut space = workspace();
        let op = StartFilter::new(filter, DType::F32).lines(lines);
        let (calm, shaken) = (start(&mut space, op.clone()), start(&mut space, op));
        let piece = |seed: u32, len: usize| Tensor::from_vec(numbers(lines * len, seed), [lines, len]).unwrap();
        let both = |piece: &Tensor, space: &mut Workspace| {
            let expected = next(space, &calm, piece).unwrap();
            let got = next(space, &shaken, piece).unwrap();
            assert_eq!(got.as_slice::<f32>().unwrap(), expected.as_slice::<f32>().unwrap());
        };
        both(&piece(2, 500), &mut space);
        let broken = StreamFilter::new(&shaken, &piece(3, 200_000)).into_op().unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            panoply_cpu_signal::run(&broken, &mut space, &Stumbling, &mut HostBufferMut::zeroed)
        }));
        assert!(caught.is_err(), "the piece is long enough for several threads");
        both(&piece(4, 500), &mut space);
    }
}

#[test]
fn real_samples_are_mixed_as_the_op_does() {
    let samples = numbers(1000, 91);
    let mut space = workspace();
    let stream = start(&mut space, StartFilter::new(Filter::Mix { frequency: 0.0371 }, DType::F32));
    let mut mixed = Vec::new();
    for piece in samples.chunks(77) {
        mixed.extend(next(&mut space, &stream, &line(piece)).unwrap().to_vec::<Complex64>().unwrap());
    }
    let whole = run(&mut space, Mix::new(&line(&samples), 0.0371)).unwrap().into_tensor().unwrap();
    assert_eq!(mixed, whole.to_vec::<Complex64>().unwrap());
    let bytes = StartFilter::new(Filter::Mix { frequency: 0.1 }, DType::U8);
    assert!(matches!(run(&mut space, bytes), Err(Error::DTypeUnsupported { .. })));
}

#[test]
fn logarithms_of_a_stream_are_decoded_as_bytes_are() {
    let code = Convolutional { puncture: Puncture::TWO_THIRDS, ..Convolutional::default() };
    let data: Vec<u8> = (0..300_u32).map(|at| ((at * at * 37) >> 3) as u8).collect();
    let mut space = workspace();
    let op = ConvolutionalEncode::new(&line(&data), 2400).code(code).ending(Ending::Open);
    let coded = run(&mut space, op).unwrap().into_tensor().unwrap().to_vec::<u8>().unwrap();
    let bits = coded.iter().flat_map(|byte| (0..8).map(move |at| byte >> (7 - at) & 1));
    let softs: Vec<f32> = bits.map(|bit| if bit == 1 { -0.7 } else { 0.7 }).collect();
    let stream = start(&mut space, StartFilter::new(Filter::viterbi(code), DType::F32));
    let mut decoded = Vec::new();
    for piece in softs.chunks(131) {
        decoded.extend(next(&mut space, &stream, &line(piece)).unwrap().to_vec::<u8>().unwrap());
    }
    assert!(decoded.len() > 250);
    assert_eq!(decoded, data[..decoded.len()]);
    let half = Puncture::new(&[true, true, false, false]).unwrap();
    let lossy = Convolutional { polynomials: [0o100, 0o100], puncture: half };
    assert!(run(&mut space, StartFilter::new(Filter::viterbi(lossy), DType::F32)).is_err());
}
