//! Random ops of random sizes, with NaN and infinities among the samples and uncorrectable words,
//! compared with the reference. They reach cases that no hand-written list has.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::reference::reference;
use panoply_conformance::values::Random;
use panoply_conformance::{Judge, Tolerance};
use panoply_core::op::signal::*;
use panoply_core::{Complex64, DType, Element, HostBufferMut, Op, Operation, Result, Tensor};
use panoply_cpu_signal::{Level, OneThread, Workspace};

const SEEDS: u64 = 400;

struct Maker(Random);

impl Maker {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    /// Mostly a short length, sometimes a long one, and sometimes zero.
    fn len(&mut self, most: usize) -> usize {
        match self.below(8) {
            0 => self.below(3),
            1 => self.below(most + 1),
            _ => self.below(most.min(300) + 1),
        }
    }

    /// Sometimes only a few taps, because only these are tested with NaN and infinities.
    fn taps(&mut self) -> usize {
        if self.below(3) == 0 { self.below(4) } else { self.len(1500) }
    }

    /// A random number. One in `odd` is NaN or infinite; none if `odd` is 0.
    fn number(&mut self, odd: usize) -> f32 {
        if odd > 0 && self.below(odd) == 0 {
            return [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][self.below(3)];
        }
        self.0.signed_unit() as f32
    }

    fn samples(&mut self, dtype: DType, dims: &[usize], odd: usize) -> Tensor {
        let count = dims.iter().product();
        match dtype {
            DType::Complex64 => {
                // NaN is set in both parts of a sample, because implementations differ in the other
                // part.
                let mut sample = || match self.number(odd) {
                    re if re.is_finite() => Complex64::new(re, self.number(0)),
                    _ => Complex64::new(f32::NAN, f32::NAN),
                };
                tensor((0..count).map(|_| sample()).collect(), dims)
            }
            _ => tensor((0..count).map(|_| self.number(odd)).collect::<Vec<f32>>(), dims),
        }
    }

    fn bytes(&mut self, dims: &[usize]) -> Tensor {
        tensor((0..dims.iter().product()).map(|_| self.0.next_u64() as u8).collect(), dims)
    }

    fn dtype(&mut self) -> DType {
        [DType::F32, DType::Complex64][self.below(2)]
    }

    /// The rarity of NaN and infinities among samples; mostly there are none. With many taps the
    /// filter may use spectra, which spread them over more of a line.
    fn odd(&mut self, taps: usize) -> usize {
        if taps <= 4 { [0, 500, 20][self.below(3)] } else { 0 }
    }

    fn fir(&mut self) -> (Op, Judge) {
        let (dtype, taps) = (self.dtype(), 1 + self.taps());
        let taps_dtype = if dtype == DType::F32 { DType::F32 } else { self.dtype() };
        let (lines, len, odd) = (1 + self.below(3), self.len(9000), self.odd(taps));
        let op = Fir::new(&self.samples(dtype, &[lines, len], odd), &self.samples(taps_dtype, &[taps], 0));
        let op = match self.below(3) {
            0 => op.interpolate(1 + self.below(6)).decimate(1 + self.below(6)),
            _ => op,
        };
        (op.into_op().unwrap(), sums(taps))
    }

    fn convolve(&mut self) -> (Op, Judge) {
        let (dtype, kernel) = (self.dtype(), 1 + self.taps());
        let odd = self.odd(kernel);
        let dims = [1 + self.below(3), self.len(6000)];
        let (input, kernel_values) = (self.samples(dtype, &dims, odd), self.samples(dtype, &[kernel], 0));
        let op = match self.below(2) {
            0 => Convolve::new(&input, &kernel_values),
            _ => Convolve::correlation(&input, &kernel_values),
        };
        let extent = [Extent::Full, Extent::Same, Extent::Valid][self.below(3)];
        (op.extent(extent).into_op().unwrap(), sums(kernel.min(dims[1].max(1))))
    }

    /// Poles anywhere inside the unit circle, and sometimes slightly outside.
    fn iir(&mut self) -> (Op, Judge) {
        let (dtype, odd) = (self.dtype(), self.odd(1));
        let dims = [1 + self.len(40), self.len(3000)];
        let growth = if self.below(4) == 0 { 1.002 } else { 0.98 };
        let sections: Vec<Biquad> = (0..1 + self.below(5))
            .map(|_| {
                let (size, angle) = (self.0.signed_unit().abs() * growth, self.0.signed_unit() * 3.2);
                let b = [self.0.signed_unit(), self.0.signed_unit(), self.0.signed_unit()];
                Biquad { b, a: [-2.0 * size * angle.cos(), size * size] }
            })
            .collect();
        let op = Iir::new(&self.samples(dtype, &dims, odd), sections);
        (op.into_op().unwrap(), Tolerance::Close { relative: 2e-6, absolute: 2e-5 }.into())
    }

    fn reed_solomon(&mut self) -> (Op, Judge) {
        let parity = 1 + self.below(40);
        let data = 1 + self.below(255 - parity);
        let shape = if data + parity == 255 && parity.is_multiple_of(2) && parity == 32 {
            ReedSolomon::ccsds(data)
        } else {
            ReedSolomon::new(data, parity)
        };
        let (words, n) = (1 + self.below(70), shape.word());
        let encode = RsEncode::new(shape, &self.bytes(&[words, data])).into_op().unwrap();
        if self.below(4) == 0 {
            return (encode, Judge::Bits);
        }
        let mut sent = reference(&encode).unwrap().into_tensor().unwrap().to_vec::<u8>().unwrap();
        for word in sent.chunks_mut(n) {
            for _ in 0..self.below(parity + 2) {
                word[self.below(n)] ^= self.0.next_u64() as u8;
            }
        }
        let lost = self.below(parity + 1).min(self.below(parity + 1));
        let mut places: Vec<usize> = (0..n).collect();
        let erased: Vec<usize> = (0..lost).map(|_| places.swap_remove(self.below(places.len()))).collect();
        (RsDecode::new(shape, &tensor(sent, &[words, n])).erased(erased).into_op().unwrap(), Judge::Bits)
    }

    fn viterbi(&mut self) -> (Op, Judge) {
        let puncture = [
            Puncture::NONE,
            Puncture::TWO_THIRDS,
            Puncture::THREE_QUARTERS,
            Puncture::FIVE_SIXTHS,
            Puncture::SEVEN_EIGHTHS,
        ][self.below(5)];
        loop {
            let polynomials = [1 + self.below(0o177) as u8, 1 + self.below(0o177) as u8];
            let code = Convolutional { polynomials, puncture };
            let ending = [Ending::Terminated, Ending::Open, Ending::TailBiting][self.below(3)];
            let (frames, bits) = (1 + self.below(140), 6 + self.len(400));
            let coded = ConvolutionalEncode::new(&self.bytes(&[0, bits.div_ceil(8)]), bits).code(code).ending(ending);
            let softs = match self.below(2) {
                0 => self.bytes(&[frames, coded.coded_bits()]),
                _ => self.samples(DType::F32, &[frames, coded.coded_bits()], 20),
            };
            // Some codes lose bits and are refused.
            if let Ok(op) = Viterbi::new(&softs, bits).code(code).ending(ending).into_op() {
                return (op, Judge::Bits);
            }
        }
    }

    fn erasure(&mut self) -> (Op, Judge) {
        let (data, parity, len) = (1 + self.below(20), 1 + self.below(10), self.len(5000));
        if self.below(2) == 0 {
            return (ErasureEncode::new(&self.bytes(&[data, len]), parity).into_op().unwrap(), Judge::Bits);
        }
        let mut places: Vec<usize> = (0..data + parity).collect();
        let missing: Vec<usize> =
            (0..self.below(parity + 1)).map(|_| places.swap_remove(self.below(places.len()))).collect();
        let shards = self.bytes(&[data + parity, len]);
        (ErasureRebuild::new(&shards, data, missing).into_op().unwrap(), Judge::Bits)
    }

    /// Random points with both parts between -1 and 1. A few hard decisions may differ from the
    /// reference.
    fn demodulate(&mut self) -> (Op, Judge) {
        let constellation = Constellation::ALL[self.below(Constellation::ALL.len())].clone();
        let len = self.len(3000);
        let points = self.samples(DType::Complex64, &[len], 0);
        match self.below(2) {
            0 => {
                let share_max = 0.002 + 1.0 / len.max(1) as f64;
                let judge = Judge::Mostly { tolerance: Tolerance::Exact, share_max };
                (Demodulate::hard(constellation, &points).into_op().unwrap(), judge)
            }
            _ => {
                let judge = Tolerance::Close { relative: 1e-5, absolute: 2e-4 }.into();
                (Demodulate::soft(constellation, &points, 0.5).into_op().unwrap(), judge)
            }
        }
    }
}

fn tensor<T: Element>(values: Vec<T>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims).unwrap()
}

fn sums(terms: usize) -> Judge {
    Tolerance::Close { relative: 4e-6, absolute: 8e-7 * (terms.max(4) as f64).sqrt() * 8.0 }.into()
}

fn memory(bytes: usize) -> Result<HostBufferMut> {
    let mut memory = HostBufferMut::zeroed(bytes)?;
    memory.bytes_mut().fill(0xa5);
    Ok(memory)
}

/// Makes an op and the judge of its result.
type OpMaker = fn(&mut Maker) -> (Op, Judge);

#[test]
fn random_ops_agree_with_the_reference() {
    let kinds: [OpMaker; 7] = [
        Maker::fir,
        Maker::convolve,
        Maker::iir,
        Maker::reed_solomon,
        Maker::viterbi,
        Maker::erasure,
        Maker::demodulate,
    ];
    let first: u64 = std::env::var("PANOPLY_SEED").ok().map_or(0, |seed| seed.parse().unwrap());
    let mut spaces: Vec<Workspace> = Level::all().into_iter().map(Workspace::new).collect();
    let mut wrong = Vec::new();
    for seed in first..first + SEEDS {
        let mut maker = Maker(Random::new(seed));
        let (op, judge) = kinds[seed as usize % kinds.len()](&mut maker);
        let expected = reference(&op).unwrap();
        for space in &mut spaces {
            let got = panoply_cpu_signal::run(&op, space, &OneThread, &mut memory).unwrap().unwrap();
            let difference = judge.difference(&op, &expected, &got);
            wrong.extend(difference.map(|what| format!("seed {seed}: {}: {what}", panoply_core::Describe::name(&op))));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
