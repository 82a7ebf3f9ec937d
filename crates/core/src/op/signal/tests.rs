//! Tests of the arguments that the domain's ops refuse before they reach a device, and of output
//! shapes.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::dtype::{Complex64, DType};
use crate::error::{Error, Result};
use crate::op::{Describe, Op, Operation};
use crate::tensor::Tensor;

fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
    Tensor::zeros(dtype, dims).unwrap()
}

fn output(op: impl Operation) -> (DType, Vec<usize>) {
    let types = op.into_op().unwrap().outputs().unwrap();
    (types[0].0, types[0].1.to_vec())
}

fn refused(result: Result<Op>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn shapes_follow_from_lengths_and_rates() {
    let (x, z, taps) = (zeros(DType::F32, &[3, 10]), zeros(DType::Complex64, &[10]), zeros(DType::F32, &[25]));
    assert_eq!(output(Fir::new(&x, &taps)), (DType::F32, vec![3, 10]));
    assert_eq!(output(Fir::new(&x, &taps).decimate(3)), (DType::F32, vec![3, 4]));
    assert_eq!(output(Fir::new(&z, &taps).interpolate(3).decimate(2)), (DType::Complex64, vec![15]));
    for (extent, len) in [(Extent::Full, 34), (Extent::Same, 10), (Extent::Valid, 16)] {
        assert_eq!(output(Convolve::new(&x, &taps).extent(extent)), (DType::F32, vec![3, len]));
    }
    let bytes = zeros(DType::U8, &[2, 223]);
    assert_eq!(output(RsEncode::new(ReedSolomon::ccsds(223), &bytes)), (DType::U8, vec![2, 255]));
    assert_eq!(output(ConvolutionalEncode::new(&zeros(DType::U8, &[4, 2]), 13)), (DType::U8, vec![4, 5]));
    assert_eq!(output(Viterbi::new(&zeros(DType::U8, &[4, 38]), 13)), (DType::U8, vec![4, 2]));
    assert_eq!(output(Demodulate::soft(Constellation::Qam64, &z, 0.5)), (DType::F32, vec![10, 6]));
    assert_eq!(output(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [4, 0])), (DType::U8, vec![2, 9]));
}

#[test]
fn filters_refuse_what_makes_no_filter() {
    let (x, z) = (zeros(DType::F32, &[3, 10]), zeros(DType::Complex64, &[10]));
    assert!(refused(Fir::new(&x, &zeros(DType::F32, &[0])).into_op()).contains("taps"));
    assert!(Fir::new(&x, &zeros(DType::F32, &[2, 2])).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::Complex64, &[2])).into_op().is_err(), "complex taps make complex samples");
    assert!(Fir::new(&z, &zeros(DType::Complex64, &[2])).into_op().is_ok());
    assert!(Fir::new(&zeros(DType::F64, &[4]), &zeros(DType::F32, &[2])).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::F32, &[2])).decimate(0).into_op().is_err());
    assert!(Fir::new(&x, &zeros(DType::F32, &[2])).interpolate(usize::MAX).into_op().is_err());
    assert!(Convolve::new(&x, &zeros(DType::F32, &[0])).into_op().is_err());
    assert!(Convolve::new(&x, &zeros(DType::Complex64, &[3])).into_op().is_err());
    let section = Biquad { b: [1.0, 0.0, 0.0], a: [0.0, 0.0] };
    assert!(Iir::new(&x, []).into_op().is_err());
    assert!(refused(Iir::new(&x, [Biquad { a: [f64::NAN, 0.0], ..section }]).into_op()).contains("section 0"));
    let grows = Biquad { a: [-2.1, 1.1], ..section };
    let unstable = Iir::new(&x, [section, grows]);
    assert_eq!(unstable.unstable_sections(), [1]);
    assert!(unstable.into_op().is_ok(), "reported, not refused");
    assert!(StartFilter::new(Filter::iir([section]), DType::F32).lines(0).into_op().is_err());
    assert!(StartFilter::new(Filter::fir(&zeros(DType::F32, &[0])), DType::F32).into_op().is_err());
}

#[test]
fn codes_refuse_what_makes_no_code() {
    let word = zeros(DType::U8, &[255]);
    for (data, parity) in [(0, 4), (4, 0), (250, 6), (100, 65), (usize::MAX, 2)] {
        assert!(ReedSolomon::new(data, parity).check().is_err(), "{data} {parity}");
    }
    assert!(ReedSolomon { polynomial: 0x11b, ..ReedSolomon::new(10, 4) }.check().is_err());
    assert!(ReedSolomon { polynomial: 0, ..ReedSolomon::new(10, 4) }.check().is_err());
    assert!(ReedSolomon { root_step: 5, ..ReedSolomon::new(10, 4) }.check().is_err());
    let code = ReedSolomon::ccsds(223);
    assert!(RsDecode::new(code, &word).erased([3, 3]).into_op().is_err());
    assert!(matches!(RsDecode::new(code, &word).erased([255]).into_op(), Err(Error::OutOfBounds { limit: 254, .. })));
    assert!(RsEncode::new(code, &word).into_op().is_err(), "a word is not data");
    assert!(ErasureEncode::new(&zeros(DType::U8, &[10, 3]), 247).into_op().is_err());
    assert!(ErasureEncode::new(&zeros(DType::U8, &[0, 3]), 1).into_op().is_err());
    assert!(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [0, 1, 2]).into_op().is_err(), "too many are lost");
    assert!(ErasureRebuild::new(&zeros(DType::U8, &[5, 9]), 3, [5]).into_op().is_err());
    assert!(Viterbi::new(&word, usize::MAX).into_op().is_err());
    let code = Convolutional { polynomials: [0, 0o133], ..Convolutional::default() };
    assert!(ConvolutionalEncode::new(&zeros(DType::U8, &[1]), 8).code(code).into_op().is_err());
}

#[test]
fn modems_refuse_what_makes_no_constellation() {
    let z = zeros(DType::Complex64, &[4]);
    let points = |count: usize| Constellation::custom(&vec![Complex64::new(1.0, 0.0); count]);
    assert!(points(1).is_err() && points(6).is_err() && points(512).is_err() && points(4).is_ok());
    assert!(Constellation::custom(&[Complex64::new(f32::NAN, 0.0), Complex64::new(1.0, 0.0)]).is_err());
    assert!(Modulate::new(Constellation::Qpsk, &z).into_op().is_err());
    assert!(Demodulate::hard(Constellation::Qpsk, &zeros(DType::F32, &[4])).into_op().is_err());
    for noise in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
        assert!(Demodulate::soft(Constellation::Qpsk, &z, noise).into_op().is_err(), "{noise}");
    }
}

#[test]
fn each_kind_of_check_has_its_own_curve() {
    let crc = |kind| Crc::new(kind, vec![0; 10]);
    let labels: Vec<&str> = Checksum::ALL.iter().map(|kind| crc(*kind).cost_class().label).collect();
    assert_eq!(labels.len(), labels.iter().collect::<std::collections::HashSet<_>>().len());
    assert_ne!(crc(Checksum::Crc32).batch_key(), crc(Checksum::Crc32c).batch_key());
}

#[test]
fn spectra_refuse_what_makes_no_spectrum() {
    let (x, z) = (zeros(DType::F32, &[3, 10]), zeros(DType::Complex64, &[10]));
    let window = zeros(DType::F32, &[4]);
    assert_eq!(output(Stft::new(&x, &Frames::new(&window, 2))), (DType::Complex64, vec![3, 4, 3]));
    assert_eq!(output(Stft::new(&z, &Frames::new(&window, 3).centered())), (DType::Complex64, vec![4, 4]));
    assert_eq!(output(Stft::new(&x, &Frames::new(&zeros(DType::F32, &[11]), 2))), (DType::Complex64, vec![3, 0, 6]));
    assert_eq!(output(Psd::new(&x, &Frames::new(&window, 2).transform(9))), (DType::F32, vec![3, 5]));
    let spectra = zeros(DType::Complex64, &[3, 4, 3]);
    assert_eq!(output(Istft::new(&spectra, &Frames::new(&window, 2), 10).real()), (DType::F32, vec![3, 10]));
    assert!(
        Istft::new(&spectra, &Frames::new(&window, 2), 10).into_op().is_err(),
        "half a spectrum of a complex signal"
    );
    assert!(refused(Psd::new(&x, &Frames::new(&zeros(DType::F32, &[11]), 2)).into_op()).contains("at least 11"));
    for frames in
        [Frames::new(&window, 0), Frames::new(&window, 2).transform(3), Frames::new(&zeros(DType::F32, &[0]), 2)]
    {
        assert!(Stft::new(&x, &frames).into_op().is_err() && Psd::new(&x, &frames).into_op().is_err(), "{frames:?}");
    }
    assert!(Dct::new(DctKind::One, &zeros(DType::F32, &[3, 1])).into_op().is_err());
    assert!(Dct::new(DctKind::Two, &z).into_op().is_err() && Hilbert::new(&z).into_op().is_err());
    assert_eq!(output(Fft2::new(&zeros(DType::F32, &[2, 4, 6]))), (DType::Complex64, vec![2, 4, 4]));
    assert!(Fft2::new(&z).into_op().is_err() && Fft2::inverse(&x).into_op().is_err());
}

#[test]
fn loops_refuse_what_makes_no_loop() {
    let z = zeros(DType::Complex64, &[10]);
    let timing = |samples| Tracker::Timing { detector: TimingDetector::Gardner, samples, bandwidth: 0.01 };
    for tracker in [
        Tracker::Gain { target: 0.0, rate: 0.1, gain_max: 1.0 },
        Tracker::Gain { target: 1.0, rate: f64::NAN, gain_max: 1.0 },
        Tracker::Carrier { phases: 3, bandwidth: 0.01 },
        Tracker::Carrier { phases: 4, bandwidth: 0.3 },
        timing(1.5),
        timing(f64::INFINITY),
    ] {
        assert!(Track::new(tracker, &z).into_op().is_err(), "{tracker:?}");
        assert!(StartFilter::new(Filter::Track(tracker), DType::Complex64).into_op().is_err(), "{tracker:?}");
    }
    assert!(Track::new(timing(2.0), &z).into_op().is_ok());
    assert!(Track::new(timing(2.0), &zeros(DType::Complex64, &[2, 10])).into_op().is_err(), "two signals");
    assert!(Mix::new(&z, f64::NAN).into_op().is_err() && Mix::new(&z, -7.5).into_op().is_ok());
    let weights = zeros(DType::Complex64, &[4]);
    assert!(Adapt::new(&z, AdaptTarget::Modulus(1.0), &weights, 0.1).into_op().is_ok());
    assert!(Adapt::new(&z, AdaptTarget::Modulus(-1.0), &weights, 0.1).into_op().is_err());
    assert!(Adapt::new(&z, AdaptTarget::Signal(zeros(DType::Complex64, &[9])), &weights, 0.1).into_op().is_err());
    assert!(Adapt::new(&z, AdaptTarget::Modulus(1.0), &zeros(DType::Complex64, &[0]), 0.1).into_op().is_err());
    assert!(Adapt::new(&z, AdaptTarget::Modulus(1.0), &weights, f64::INFINITY).into_op().is_err());
    let taps = zeros(DType::F32, &[6]);
    assert_eq!(output(Channelize::new(&z, &taps, 4)), (DType::Complex64, vec![3, 4]));
    assert!(Channelize::new(&z, &taps, 0).into_op().is_err());
    assert!(Channelize::new(&z, &zeros(DType::F32, &[0]), 4).into_op().is_err());
}

#[test]
fn waves_and_samples_come_in_whole_symbols() {
    let z = zeros(DType::Complex64, &[10]);
    let fsk = Wave::Fsk { bits: 2, samples: 4, spacing: 0.1 };
    assert_eq!(output(ModulateWave::new(fsk, &zeros(DType::U8, &[2, 3]))), (DType::Complex64, vec![2, 12]));
    assert!(refused(DemodulateWave::new(fsk, &z).into_op()).contains("multiple of 4"));
    let ofdm = Wave::Ofdm { carriers: 4, prefix: 1 };
    assert_eq!(output(DemodulateWave::new(ofdm, &z)), (DType::Complex64, vec![2, 4]));
    assert_eq!(output(ModulateWave::new(ofdm, &zeros(DType::Complex64, &[3, 4]))), (DType::Complex64, vec![15]));
    assert!(ModulateWave::new(ofdm, &zeros(DType::Complex64, &[3, 5])).into_op().is_err());
    assert!(ModulateWave::new(ofdm, &zeros(DType::Complex64, &[4])).into_op().is_err());
    for wave in [
        Wave::Fsk { bits: 5, samples: 4, spacing: 0.1 },
        Wave::Fsk { bits: 1, samples: 0, spacing: 0.1 },
        Wave::Fm { deviation: 0.0 },
        Wave::Am { depth: f64::NAN },
        Wave::Ofdm { carriers: 4, prefix: 5 },
    ] {
        assert!(DemodulateWave::new(wave, &z).into_op().is_err(), "{wave:?}");
    }
    let raw = zeros(DType::U8, &[12]);
    assert_eq!(output(ReadSamples::new(SampleFormat::I16, &raw).complex()), (DType::Complex64, vec![3]));
    assert_eq!(output(ReadSamples::new(SampleFormat::I24, &raw)), (DType::F32, vec![4]));
    assert!(refused(ReadSamples::new(SampleFormat::F32, &raw).complex().into_op()).contains("multiple of 8"));
}

#[test]
fn parity_checks_are_those_of_a_code() {
    for code in [
        Ldpc::Nr { graph: BaseGraph::One, lifting: 6 },
        Ldpc::Nr { graph: BaseGraph::Two, lifting: 30 },
        Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half },
        Ldpc::Telemetry { data: 4096, rate: TelemetryRate::FourFifths },
    ] {
        let checks = code.parity_checks();
        assert_eq!(checks.len(), code.word_bits() - code.data_bits(), "{code:?}");
        let mut seen = vec![0; code.word_bits()];
        checks.iter().flatten().for_each(|bit| seen[*bit as usize] += 1);
        assert!(seen.iter().all(|times| *times > 0), "{code:?}: every bit is checked");
    }
    let tm2048 = Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half };
    assert_eq!((tm2048.data_bits(), tm2048.coded_bits(), tm2048.block()), (1024, 2048, 512));
    let nr = Ldpc::Nr { graph: BaseGraph::One, lifting: 384 };
    assert_eq!((nr.data_bits(), nr.coded_bits()), (8448, 25_344));
    for lifting in [0, 1, 17, 385, 400, usize::MAX] {
        assert!(Ldpc::Nr { graph: BaseGraph::One, lifting }.check().is_err(), "{lifting}");
    }
    let code = Ldpc::Telemetry { data: 1024, rate: TelemetryRate::TwoThirds };
    assert!(LdpcDecode::new(code, &zeros(DType::F32, &[1535])).into_op().is_err());
    assert!(LdpcDecode::new(code, &zeros(DType::F32, &[1536])).iterations(0).into_op().is_err());
    assert!(
        LdpcEncode::new(Ldpc::Telemetry { data: 1000, rate: TelemetryRate::Half }, &zeros(DType::U8, &[125]))
            .into_op()
            .is_err()
    );
}

#[test]
fn orders_and_registers_are_checked() {
    let bytes = zeros(DType::U8, &[12]);
    assert!(Interleaver::custom(&[0, 2, 2]).is_err() && Interleaver::custom(&[0, 3, 1]).is_err());
    assert!(Interleaver::custom(&[]).is_err() && Interleaver::custom(&[2, 0, 1]).is_ok());
    assert!(Interleave::new(Interleaver::Block { rows: 5, columns: 2 }, &bytes).into_op().is_err(), "no whole frames");
    assert!(Interleave::new(Interleaver::Block { rows: usize::MAX, columns: 2 }, &bytes).into_op().is_err());
    assert!(Scramble::new(Scrambler::wifi(0), &bytes).into_op().is_err(), "a register that stays zero");
    assert!(Scramble::new(Scrambler::SelfSynchronizing { polynomial: 0, seed: 1 }, &bytes).into_op().is_err());
    assert!(Puncture::new(&[]).is_err() && Puncture::new(&[false; 4]).is_err() && Puncture::new(&[true; 33]).is_err());
    let rates = [
        Puncture::NONE,
        Puncture::TWO_THIRDS,
        Puncture::THREE_QUARTERS,
        Puncture::FIVE_SIXTHS,
        Puncture::SEVEN_EIGHTHS,
    ];
    for (bits, puncture) in [1, 2, 3, 5, 7].into_iter().zip(rates) {
        assert_eq!(puncture.sent(2 * bits), bits + 1, "rate {bits} of {}", bits + 1);
        let kept = |count: usize| (0..count).filter(|at| puncture.is_sent(*at)).count();
        (0..70).for_each(|count| assert_eq!(puncture.sent(count), kept(count)));
    }
    let tail = ConvolutionalEncode::new(&zeros(DType::U8, &[1]), 5).ending(Ending::TailBiting);
    assert!(tail.into_op().is_err(), "shorter than its tail");
}

#[test]
fn work_grows_with_what_there_is_to_do() {
    let x = zeros(DType::F32, &[10_000]);
    let work = |taps: usize, up: usize, down: usize| {
        Fir::new(&x, &zeros(DType::F32, &[taps])).interpolate(up).decimate(down).work()
    };
    assert!(work(4096, 3, 2) > 10 * work(256, 3, 2), "sums are not bounded by spectra where the rate changes");
    assert!(work(101, 4096, 1) >= 4096 * 10_000, "every sample that comes out is work");
    assert!(work(200_000, 1, 1) > work(1000, 1, 1) && work(200_000, 1, 1) < 2 * work(1000, 1, 1));
}

#[test]
fn planes_and_peaks_have_shapes_and_bounds() {
    let (plane, kernel) = (zeros(DType::F32, &[4, 20, 30]), zeros(DType::F32, &[3, 5]));
    for (extent, dims) in [(Extent::Full, [4, 22, 34]), (Extent::Same, [4, 20, 30]), (Extent::Valid, [4, 18, 26])] {
        assert_eq!(output(Convolve2::new(&plane, &kernel).extent(extent)), (DType::F32, dims.to_vec()));
    }
    assert!(Convolve2::new(&plane, &zeros(DType::F32, &[3])).into_op().is_err());
    assert!(Convolve2::new(&zeros(DType::F32, &[9]), &kernel).into_op().is_err());
    assert!(Convolve2::new(&plane, &zeros(DType::F32, &[0, 3])).into_op().is_err());
    assert!(Convolve2::new(&plane, &zeros(DType::Complex64, &[3, 3])).into_op().is_err());
    assert_eq!(output(FindPeaks::new(&plane, 7)), (DType::F32, vec![4, 20, 7]));
    assert_eq!(output(FindPeaks::planes(&plane, 7)), (DType::F32, vec![4, 7]));
    assert!(FindPeaks::planes(&zeros(DType::F32, &[9]), 1).into_op().is_err());
    assert!(FindPeaks::new(&plane, 0).into_op().is_err());
    assert!(FindPeaks::new(&plane, 1).distance(0).into_op().is_err());
    assert!(FindPeaks::new(&plane, 1).at_least(f32::NAN).into_op().is_err());
}

#[test]
fn streams_refuse_what_they_could_not_go_on_with() {
    let start = |filter, dtype| StartFilter::new(filter, dtype).into_op();
    let weights = zeros(DType::Complex64, &[4]);
    let learning = |step| Filter::Adapt { weights: weights.clone(), target: Learning::Signal, step, normalized: true };
    assert!(start(learning(0.1), DType::Complex64).is_ok());
    assert!(start(learning(0.1), DType::F32).is_err());
    assert!(start(learning(f64::NAN), DType::Complex64).is_err());
    let fsk = Wave::Fsk { bits: 1, samples: 8, spacing: 0.1 };
    assert!(start(Filter::ModulateWave(fsk), DType::U8).is_ok());
    assert!(start(Filter::ModulateWave(fsk), DType::Complex64).is_err());
    assert!(start(Filter::ModulateWave(Wave::Ofdm { carriers: 8, prefix: 2 }), DType::Complex64).is_err());
    assert!(start(Filter::DemodulateWave(Wave::Ofdm { carriers: 8, prefix: 2 }), DType::Complex64).is_ok());
    let frames = Frames::new(&zeros(DType::F32, &[16]), 4);
    assert!(start(Filter::Stft(frames.clone()), DType::F32).is_ok());
    assert!(start(Filter::Stft(frames.clone()), DType::U8).is_err());
    let back = |frames: Frames| Filter::Istft { frames, real: true };
    assert!(start(back(frames.clone()), DType::Complex64).is_ok());
    assert!(start(back(frames.clone()), DType::F32).is_err());
    assert!(start(back(frames.clone().centered()), DType::Complex64).is_err());
    let long = Tensor::zeros(DType::F32, [1 << 20]).unwrap();
    assert!(
        matches!(start(back(Frames::new(&long, 1)), DType::Complex64), Err(Error::OutOfBounds { .. })),
        "too much to remember"
    );
    assert!(start(Filter::Stft(frames.centered()), DType::F32).is_err());
    assert!(start(Filter::viterbi(Convolutional::default()), DType::U8).is_ok());
    assert!(start(Filter::Viterbi { code: Convolutional::default(), depth: 0 }, DType::U8).is_err());
    let broken = Convolutional { polynomials: [0, 1], ..Convolutional::default() };
    assert!(start(Filter::ConvolutionalEncode(broken), DType::U8).is_err());
    let silent = Scrambler::Additive { polynomial: 1, seed: 0 };
    assert!(start(Filter::Scramble { scrambler: silent, inverse: false }, DType::U8).is_err());
    let huge =
        Filter::Interleave { interleaver: Interleaver::Block { rows: 1 << 12, columns: 1 << 12 }, inverse: false };
    assert!(start(huge.clone(), DType::F32).is_ok());
    assert!(StartFilter::new(huge, DType::F32).lines(1 << 10).into_op().is_err(), "more memory than a stream may have");
}

#[test]
fn real_weights_fit_complex_samples_and_logarithms_fit_decoders() {
    let (real, complex) = (zeros(DType::F32, &[40]), zeros(DType::Complex64, &[40]));
    assert_eq!(output(Convolve::new(&complex, &real)), (DType::Complex64, vec![79]));
    assert!(Convolve::new(&real, &complex).into_op().is_err());
    let (real_plane, plane) = (zeros(DType::F32, &[3, 3]), zeros(DType::Complex64, &[5, 6]));
    assert_eq!(output(Convolve2::new(&plane, &real_plane)), (DType::Complex64, vec![7, 8]));
    assert_eq!(output(Viterbi::new(&zeros(DType::F32, &[4, 38]), 13)), (DType::U8, vec![4, 2]));
    assert!(Viterbi::new(&zeros(DType::F64, &[4, 38]), 13).into_op().is_err());
    assert!(StartFilter::new(Filter::Mix { frequency: 0.1 }, DType::F32).into_op().is_ok());
    assert!(StartFilter::new(Filter::Mix { frequency: 0.1 }, DType::U8).into_op().is_err());
    assert!(StartFilter::new(Filter::viterbi(Convolutional::default()), DType::F32).into_op().is_ok());
}

#[test]
fn codes_that_lose_bits_are_refused() {
    let code = Convolutional { puncture: Puncture::SEVEN_EIGHTHS, ..Convolutional::default() };
    let encode = |bits: usize| {
        let data = zeros(DType::U8, &[bits.div_ceil(8)]);
        ConvolutionalEncode::new(&data, bits).code(code).ending(Ending::TailBiting).into_op()
    };
    assert!(encode(18).is_err_and(|error| error.to_string().contains("loses bits")));
    assert!(encode(0).is_ok() && encode(17).is_ok() && encode(20).is_ok());
}

#[test]
fn samples_that_are_written_are_read_again() {
    let numbers: Vec<f32> = vec![0.0, 0.5, -1.0, 0.25, -0.125, 0.992_187_5];
    for format in SampleFormat::ALL {
        let (mut bytes, mut again) = (Vec::new(), vec![0.0; numbers.len()]);
        format.write(&numbers, &mut bytes);
        assert_eq!(bytes.len(), numbers.len() * format.size_bytes());
        format.read(&bytes, &mut again);
        assert_eq!(again, numbers, "{format:?}");
    }
    let mut bytes = Vec::new();
    SampleFormat::I16.write(&[9.0, -9.0, f32::NAN], &mut bytes);
    assert_eq!(bytes, [0xff, 0x7f, 0x00, 0x80, 0, 0]);
}
