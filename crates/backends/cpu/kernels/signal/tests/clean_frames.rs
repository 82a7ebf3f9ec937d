//! Every short frame is decoded correctly if it is received without errors, for every code, length
//! and ending, unless its code is refused because it loses bits.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::op::signal::{Convolutional, ConvolutionalEncode, EXACT_TAIL_BITS_MAX, Ending, Puncture, Viterbi};
use panoply_core::{HostBufferMut, Operation, Result, Tensor, Value};
use panoply_cpu_signal::{Level, OneThread, Workspace};

/// All frames up to this number of bits are tested; for longer frames the same number of samples.
const BITS_MAX: usize = 11;

const PUNCTURES: [(&str, Puncture); 5] = [
    ("1/2", Puncture::NONE),
    ("2/3", Puncture::TWO_THIRDS),
    ("3/4", Puncture::THREE_QUARTERS),
    ("5/6", Puncture::FIVE_SIXTHS),
    ("7/8", Puncture::SEVEN_EIGHTHS),
];

fn run(space: &mut Workspace, op: impl Operation) -> Result<Value> {
    panoply_cpu_signal::run(&op.into_op()?, space, &OneThread, &mut HostBufferMut::zeroed).unwrap()
}

/// Frames of `bits` bits, the first in the highest bit: one for each number of [`BITS_MAX`] bits,
/// spread over longer frames.
fn frames(bits: usize) -> Tensor {
    let (each, count) = (bits.div_ceil(8), 1_usize << bits.min(BITS_MAX));
    let mut data = vec![0_u8; count * each];
    for (number, frame) in data.chunks_mut(each).enumerate() {
        let mut spread = number as u64;
        for at in 0..bits {
            frame[at / 8] |= ((spread & 1) as u8) << (7 - at % 8);
            // An 11-bit shift register that goes through all states but zero.
            let newest = if bits > BITS_MAX { (spread ^ spread >> 2) & 1 } else { 0 };
            spread = spread >> 1 | newest << (BITS_MAX - 1);
        }
    }
    Tensor::from_vec(data, [count, each]).unwrap()
}

/// The number of frames that are decoded wrongly, with byte soft bits and with log-likelihoods.
/// `None` if the code is refused.
fn wrong_frames(space: &mut Workspace, code: Convolutional, bits: usize, ending: Ending) -> Option<usize> {
    let sent = frames(bits);
    let op = ConvolutionalEncode::new(&sent, bits).code(code).ending(ending);
    let (coded, count) = (op.coded_bits(), sent.shape()[0]);
    if let Err(error) = op.clone().into_op() {
        assert!(error.to_string().contains("loses bits"), "{error}");
        return None;
    }
    let bytes = run(space, op).unwrap().into_tensor().unwrap().to_vec::<u8>().unwrap();
    let bit = |frame: &[u8], at: usize| frame[at / 8] >> (7 - at % 8) & 1;
    let coded_bits: Vec<u8> =
        bytes.chunks(coded.div_ceil(8)).flat_map(|frame| (0..coded).map(|at| bit(frame, at))).collect();
    let softs = Tensor::from_vec(coded_bits.iter().map(|bit| 255 * bit).collect::<Vec<u8>>(), [count, coded]).unwrap();
    let logarithms: Vec<f32> = coded_bits.iter().map(|bit| 4.0 - 8.0 * f32::from(*bit)).collect();
    let logarithms = Tensor::from_vec(logarithms, [count, coded]).unwrap();
    let sent = sent.to_vec::<u8>().unwrap();
    let wrong = |got: Value| {
        let got = got.into_tensor().unwrap().to_vec::<u8>().unwrap();
        let each = bits.div_ceil(8);
        got.chunks(each).zip(sent.chunks(each)).filter(|(got, sent)| got != sent).count()
    };
    let by_bytes = run(space, Viterbi::new(&softs, bits).code(code).ending(ending)).unwrap();
    let by_logarithms = run(space, Viterbi::new(&logarithms, bits).code(code).ending(ending)).unwrap();
    Some(wrong(by_bytes) + wrong(by_logarithms))
}

#[test]
fn every_short_frame_comes_back_or_its_code_is_refused() {
    let mut space = Workspace::new(Level::best());
    let mut refused = Vec::new();
    for (name, puncture) in PUNCTURES {
        let code = Convolutional { puncture, ..Convolutional::default() };
        for ending in [Ending::Terminated, Ending::Open, Ending::TailBiting] {
            let least = if ending == Ending::TailBiting { 6 } else { 1 };
            for bits in least..=24 {
                match wrong_frames(&mut space, code, bits, ending) {
                    None => refused.push((name, bits)),
                    Some(wrong) => assert_eq!(wrong, 0, "rate {name}, {bits} bits, {ending:?}"),
                }
            }
        }
    }
    // For these lengths two messages have the same coded bits.
    assert_eq!(refused, [("7/8", 18), ("7/8", 19)]);
}

#[test]
fn frames_on_both_sides_of_the_exact_search_come_back() {
    let mut space = Workspace::new(Level::best());
    for (name, puncture) in PUNCTURES {
        let code = Convolutional { puncture, ..Convolutional::default() };
        for bits in [EXACT_TAIL_BITS_MAX - 1, EXACT_TAIL_BITS_MAX, EXACT_TAIL_BITS_MAX + 1, 127, 300] {
            let wrong = wrong_frames(&mut space, code, bits, Ending::TailBiting);
            assert_eq!(wrong, Some(0), "rate {name}, {bits} bits");
        }
    }
}

#[test]
fn codes_of_anybody_lose_nothing_or_are_refused() {
    let mut space = Workspace::new(Level::best());
    let (mut taken, mut refused) = (0, 0);
    for polynomials in [[0o1, 0o1], [0o3, 0o6], [0o100, 0o1], [0o120, 0o160], [0o6, 0o14], [0o170, 0o150], [0o2, 0o177]]
    {
        for pattern in [&[true][..], &[true, false], &[false, true, true], &[true, false, false, false, true]] {
            let code = Convolutional { polynomials, puncture: Puncture::new(pattern).unwrap() };
            for ending in [Ending::Terminated, Ending::Open, Ending::TailBiting] {
                for bits in [6, 7, 8, 11] {
                    match wrong_frames(&mut space, code, bits, ending) {
                        None => refused += 1,
                        Some(wrong) => {
                            assert_eq!(wrong, 0, "{code:?}, {bits} bits, {ending:?}");
                            taken += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
}
