//! The computation of each core in plain integers.

use panoply_fpga::map::{self, *};

pub fn affine(values: &[i32]) -> Vec<i32> {
    values.iter().map(|x| x.wrapping_mul(2).wrapping_add(1)).collect()
}

pub fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

pub fn fir(samples: &[i64], taps: &[i64]) -> Vec<i64> {
    let sum = |at: usize| taps.iter().take(at + 1).enumerate().map(|(k, tap)| tap * samples[at - k]).sum();
    (0..samples.len()).map(sum).collect()
}

/// Decimation in frequency. Each product with a twiddle is rounded half up.
pub fn fft(frame: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let (size, mut x) = (frame.len(), frame.to_vec());
    let mut delay = size / 2;
    while delay > 0 {
        for first in (0..size).step_by(2 * delay) {
            for at in 0..delay {
                let ((a, b), (c, d)) = (x[first + at], x[first + at + delay]);
                let (re, im) = map::twiddle(at * size / (2 * delay), size);
                let half = 1 << (TWIDDLE_FRACTION - 1);
                let turned = |sum: i64| (sum + half) >> TWIDDLE_FRACTION;
                x[first + at] = (a + c, b + d);
                x[first + at + delay] = (turned((a - c) * re - (b - d) * im), turned((a - c) * im + (b - d) * re));
            }
        }
        delay /= 2;
    }
    let reversed = |at: usize| at.reverse_bits() >> (usize::BITS - size.ilog2());
    (0..size).map(|at| x[reversed(at)]).collect()
}

/// The decoded bits as bytes, padded to whole beats.
pub fn viterbi(softs: &[u8], code: u32) -> Vec<u8> {
    let polynomials = [code & 0x7f, code >> 8 & 0x7f];
    let level = |soft: u8| u32::from(soft) * 15 / 256;
    let mut costs: Vec<u32> =
        (0..64).map(|state| if state == 0 || code & VITERBI_ANY_START != 0 { 0 } else { 1 << 28 }).collect();
    let mut steps = Vec::new();
    for pair in softs.as_chunks::<2>().0 {
        let cost = |register: u32| -> u32 {
            let of = |at: usize| match (register & polynomials[at]).count_ones() % 2 {
                1 => 14 - level(pair[at]),
                _ => level(pair[at]),
            };
            of(0) + of(1)
        };
        let way = |state: u32, from: u32| costs[from as usize] + cost(state / 32 * 64 + from);
        let best = |state: u32| {
            let from = state % 32 * 2;
            if way(state, from + 1) < way(state, from) { from + 1 } else { from }
        };
        let from: Vec<u32> = (0..64).map(best).collect();
        costs = (0..64).map(|state| way(state, from[state as usize])).collect();
        steps.push(from);
    }
    let cheapest = (0..64).min_by_key(|state| costs[*state as usize]).unwrap_or(0);
    let mut state = if code & VITERBI_BEST_END != 0 { cheapest } else { 0 };
    let mut bytes = vec![0; steps.len().div_ceil(64) * 8];
    for (at, from) in steps.iter().enumerate().rev() {
        bytes[at / 8] |= (state as u8 / 32) << (7 - at % 8);
        state = from[state as usize];
    }
    bytes
}

/// A core's answer to a packet's payload, both without headers.
pub fn answer(core: CoreKind, payload: &[u8], taps: &[i64], code: u32) -> Vec<u8> {
    let words =
        |bytes: &[u8]| -> Vec<i32> { bytes.as_chunks::<4>().0.iter().map(|it| i32::from_le_bytes(*it)).collect() };
    match core {
        CoreKind::Affine => affine(&words(payload)).iter().flat_map(|y| y.to_le_bytes()).collect(),
        CoreKind::Crc32 => u64::from(crc32(payload)).to_le_bytes().to_vec(),
        CoreKind::Fir => {
            let samples: Vec<i64> = payload.as_chunks::<8>().0.iter().map(|it| i64::from_le_bytes(*it)).collect();
            fir(&samples, taps).iter().flat_map(|y| y.to_le_bytes()).collect()
        }
        CoreKind::Fft => {
            let samples: Vec<(i64, i64)> =
                words(payload).as_chunks::<2>().0.iter().map(|[re, im]| (i64::from(*re), i64::from(*im))).collect();
            let frames = samples.chunks(build::FFT_SIZE as usize).flat_map(fft);
            frames.flat_map(|(re, im)| [re as i32, im as i32]).flat_map(i32::to_le_bytes).collect()
        }
        CoreKind::Viterbi => viterbi(payload, code),
    }
}

/// An answer with its header.
pub fn framed(tag: u16, payload: &[u8]) -> Vec<u8> {
    let header = u64::from(ANSWER_MAGIC) << 48 | u64::from(tag) << 32;
    let mut bytes = header.to_le_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// The tag and payload size in a packet's header.
pub fn header(bytes: [u8; 8]) -> (u16, usize) {
    let header = u64::from_le_bytes(bytes);
    assert_eq!(header >> 48, u64::from(PACKET_MAGIC), "{header:#x}");
    ((header >> 32) as u16, header as u32 as usize)
}
