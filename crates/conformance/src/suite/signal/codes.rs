//! Checks, Reed–Solomon, erasure and convolutional codes: intact words, correctable words, and
//! words beyond repair.

use panoply_core::op::crypto::Messages;
use panoply_core::op::signal::{
    Checksum, Convolutional, ConvolutionalEncode, Crc, Ending, ErasureEncode, ErasureRebuild, Puncture, ReedSolomon,
    RsDecode, RsEncode, Viterbi,
};
use panoply_core::{Bytes, Operation, Tensor};

use crate::judge::Judge;
use crate::reference::reference;
use crate::suite::case::Case;
use crate::values::Random;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_crc(&mut cases);
    add_reed_solomon(&mut cases);
    add_erasure(&mut cases);
    add_convolutional(&mut cases);
    cases
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.next_u64() as u8).collect()
}

fn tensor(values: Vec<u8>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

fn add_crc(cases: &mut Vec<Case>) {
    for kind in Checksum::ALL {
        let name = kind.name();
        for len in [0, 1, 7, 15, 16, 255, 1024, 5000] {
            cases.push(Case::new(format!("crc/{name}/{len}"), Crc::new(kind, bytes(len, 94)), Judge::Bits));
        }
        let list: Vec<Bytes> = [0, 3, 700].into_iter().map(|len| Bytes::from_vec(bytes(len, 95))).collect();
        cases.push(Case::new(format!("crc/{name}/list"), Crc::new(kind, list), Judge::Bits));
        let packed = Messages::split(bytes(10_000, 96).into(), 77);
        let packed = packed.unwrap_or_else(|error| panic!("test messages: {error}"));
        cases.push(Case::new(format!("crc/{name}/packed"), Crc::new(kind, packed), Judge::Bits));
    }
}

fn add_reed_solomon(cases: &mut Vec<Case>) {
    let shapes = [
        ReedSolomon::ccsds(223),
        ReedSolomon::ccsds(20),
        ReedSolomon::new(11, 4),
        ReedSolomon::new(1, 1),
        ReedSolomon::new(60, 33),
    ];
    for shape in shapes {
        let (k, n, name) = (shape.data, shape.word(), format!("{}-{}", shape.word(), shape.data));
        for dims in [&[k][..], &[0, k], &[5, k], &[2, 3, k]] {
            let data = tensor(bytes(dims.iter().product(), 97), dims);
            let op = RsEncode::new(shape, &data);
            cases.push(Case::new(format!("rs_encode/{name}/{dims:?}"), op.clone(), Judge::Bits));
            let answer = op.into_op().and_then(|op| reference(&op)).and_then(|value| value.into_tensor());
            let words = answer.and_then(|words| words.as_slice::<u8>().map(<[u8]>::to_vec));
            let words = words.unwrap_or_else(|error| panic!("the reference encodes: {error}"));
            let mut dims = dims.to_vec();
            let last = dims.len() - 1;
            dims[last] = n;
            for wrong in [0, 1, shape.parity / 2, shape.parity / 2 + 1] {
                let received = tensor(spoilt(words.clone(), n, wrong), &dims);
                let op = RsDecode::new(shape, &received);
                cases.push(Case::new(format!("rs_decode/{name}/{dims:?}/e{wrong}"), op, Judge::Bits));
            }
            // Lost positions and wrong bytes: as many as can be corrected, and one too many.
            for (lost, wrong) in [(shape.parity, 0), (shape.parity / 2, shape.parity / 4), (shape.parity, 1)] {
                // Every second position from the end, so that data are lost too. The bytes at these
                // positions are wrong.
                let erased: Vec<usize> = (0..lost).map(|at| n - 1 - (2 * at) % n - 2 * at / n).collect();
                let mut received = spoilt(words.clone(), n, wrong);
                received.chunks_exact_mut(n).for_each(|word| erased.iter().for_each(|at| word[*at] ^= 0x5a));
                let received = tensor(received, &dims);
                let op = RsDecode::new(shape, &received).erased(erased);
                cases.push(Case::new(format!("rs_decode/{name}/{dims:?}/lost{lost}e{wrong}"), op, Judge::Bits));
            }
        }
    }
}

/// Spoils the given number of bytes of each word, at different positions in each word.
fn spoilt(mut words: Vec<u8>, n: usize, wrong: usize) -> Vec<u8> {
    let mut random = Random::new(98);
    for word in words.chunks_mut(n) {
        let first = random.below(n as u64) as usize;
        for at in 0..wrong.min(n) {
            word[(first + at * 7 % n) % n] ^= random.below(255) as u8 + 1;
        }
    }
    words
}

fn add_erasure(cases: &mut Vec<Case>) {
    for (data, parity, len) in [(1, 1, 1), (3, 2, 100), (10, 4, 1000), (4, 4, 0), (17, 3, 129), (2, 0, 5)] {
        let name = format!("{data}+{parity}/{len}");
        let op = ErasureEncode::new(&tensor(bytes(data * len, 99), &[data, len]), parity);
        cases.push(Case::new(format!("erasure_encode/{name}"), op, Judge::Bits));
        let total = data + parity;
        // The contents of a missing shard are ignored, so any bytes will do.
        let shards = tensor(bytes(total * len, 100), &[total, len]);
        for count in 0..=parity {
            let missing: Vec<usize> = (0..count).map(|at| (at * 3 + 1) % total).collect();
            let mut distinct = missing.clone();
            distinct.sort_unstable();
            distinct.dedup();
            if distinct.len() == missing.len() {
                let op = ErasureRebuild::new(&shards, data, missing);
                cases.push(Case::new(format!("erasure_rebuild/{name}/{count}"), op, Judge::Bits));
            }
        }
    }
}

fn add_convolutional(cases: &mut Vec<Case>) {
    let usual = Convolutional::default();
    let codes = [
        ("171_133", usual),
        ("5_7", Convolutional { polynomials: [0o120, 0o160], ..usual }),
        ("171_133/two_thirds", Convolutional { puncture: Puncture::TWO_THIRDS, ..usual }),
        ("171_133/three_quarters", Convolutional { puncture: Puncture::THREE_QUARTERS, ..usual }),
        ("171_133/five_sixths", Convolutional { puncture: Puncture::FIVE_SIXTHS, ..usual }),
        ("171_133/seven_eighths", Convolutional { puncture: Puncture::SEVEN_EIGHTHS, ..usual }),
    ];
    for (code_name, code) in codes {
        for ending in [Ending::Terminated, Ending::Open, Ending::TailBiting] {
            for (frames, bits) in [(1, 0_usize), (0, 9), (1, 1), (3, 8), (2, 13), (70, 100), (9, 113), (5, 1000)] {
                // The reference tries all states of short tail-biting frames.
                let frames = if ending == Ending::TailBiting { frames.min(9) } else { frames };
                let name = format!("{code_name}/{ending:?}/{frames}x{bits}");
                let data = tensor(bytes(frames * bits.div_ceil(8), 101), &[frames, bits.div_ceil(8)]);
                let op = ConvolutionalEncode::new(&data, bits).code(code).ending(ending);
                if op.clone().into_op().is_err() {
                    continue; // Too short for a tail, or lossy.
                }
                let coded = op.coded_bits();
                cases.push(Case::new(format!("convolutional_encode/{name}"), op, Judge::Bits));
                // Any bytes have a most likely path, even if no frame was sent.
                let softs = tensor(bytes(frames * coded, 102), &[frames, coded]);
                let op = Viterbi::new(&softs, bits).code(code).ending(ending);
                cases.push(Case::new(format!("viterbi/{name}"), op, Judge::Bits));
                let op = Viterbi::new(&logarithms(frames, coded), bits).code(code).ending(ending);
                cases.push(Case::new(format!("viterbi/{name}/f32"), op, Judge::Bits));
            }
            add_clean_frames(cases, code_name, code, ending);
        }
    }
}

/// Log-likelihood ratios of any magnitude, including infinity and NaN.
fn logarithms(frames: usize, coded: usize) -> Tensor {
    let mut random = Random::new(103);
    let mut one = |at: usize| match (at % 41, random.next_u64()) {
        (7, _) => f32::NAN,
        (11, number) => {
            if number % 2 == 0 {
                f32::INFINITY
            } else {
                f32::NEG_INFINITY
            }
        }
        (_, number) => ((number % 20_001) as f32 / 10_000.0 - 1.0) * 6.0,
    };
    let values: Vec<f32> = (0..frames * coded).map(&mut one).collect();
    Tensor::from_vec(values, [frames, coded]).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

/// Noise-free frames of the shortest lengths: every frame of six bits, and some of others.
fn add_clean_frames(cases: &mut Vec<Case>, code_name: &str, code: Convolutional, ending: Ending) {
    for bits in [6, 7, 9, 11, 18] {
        let (count, each) = (64, usize::div_ceil(bits, 8));
        // The first six bits count through all values, the others are random.
        let mut data = bytes(count * each, 104);
        data.chunks_mut(each).enumerate().for_each(|(at, frame)| frame[0] = (at << 2) as u8 | frame[0] & 3);
        let op = ConvolutionalEncode::new(&tensor(data, &[count, each]), bits).code(code).ending(ending);
        let coded = op.coded_bits();
        let Ok(op) = op.into_op() else { continue };
        let sent = reference(&op).and_then(|value| value.into_tensor()).and_then(|sent| sent.to_vec::<u8>());
        let sent = sent.unwrap_or_else(|error| panic!("coded frames: {error}"));
        let softs =
            sent.chunks(coded.div_ceil(8)).flat_map(|frame| (0..coded).map(|at| frame[at / 8] >> (7 - at % 8) & 1));
        let softs: Vec<f32> = softs.map(|bit| if bit == 1 { -3.0 } else { 3.0 }).collect();
        let softs_of_bytes =
            tensor(softs.iter().map(|soft| if *soft < 0.0 { 255 } else { 0 }).collect(), &[count, coded]);
        let softs = Tensor::from_vec(softs, [count, coded]).unwrap_or_else(|error| panic!("a test tensor: {error}"));
        for (name, softs) in [("u8", softs_of_bytes), ("f32", softs)] {
            let op = Viterbi::new(&softs, bits).code(code).ending(ending);
            cases.push(Case::new(format!("viterbi/{code_name}/{ending:?}/clean {bits}/{name}"), op, Judge::Bits));
        }
    }
}
