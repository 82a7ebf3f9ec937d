//! ModulateWave, DemodulateWave and ReadSamples: every kind, noise, symbols without a tone, bytes
//! of every format.

use panoply_core::op::signal::{DemodulateWave, ModulateWave, ReadSamples, SampleFormat, Wave};
use panoply_core::{Complex64, DType, Tensor};

use super::fft::random_complex;
use crate::judge::Judge;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor};

fn tensor<T: panoply_core::Element>(values: Vec<T>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

fn bytes(count: usize, below: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(below) as u8).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let close = Tolerance::Close { relative: 1e-5, absolute: 2e-6 };
    // A symbol between two tones may be decided either way.
    let mostly = Judge::Mostly { tolerance: Tolerance::Exact, share_max: 0.005 };
    for (bits, samples, spacing) in [(1, 8, 0.1), (2, 10, 0.05), (4, 32, 1.0 / 32.0), (1, 1, 0.5)] {
        let wave = Wave::Fsk { bits, samples, spacing };
        for dims in [&[0][..], &[1], &[3, 50], &[2, 0]] {
            let count = dims.iter().product();
            let symbols = tensor(bytes(count, 1 << bits, 130), dims);
            let name = format!("fsk{bits}x{samples}/{dims:?}");
            cases.push(Case::new(format!("modulate_wave/{name}"), ModulateWave::new(wave, &symbols), close));
            let mut received = dims.to_vec();
            *received.last_mut().unwrap_or(&mut 0) *= samples;
            let op = DemodulateWave::new(wave, &random_complex(&received, 131));
            cases.push(Case::new(format!("demodulate_wave/{name}"), op, mostly));
        }
    }
    let wave = Wave::Fsk { bits: 1, samples: 4, spacing: 0.1 };
    let op = ModulateWave::new(wave, &tensor(vec![0_u8, 1, 2], &[3]));
    cases.push(Case::new("modulate_wave/fsk/no_tone", op, Tolerance::Exact));
    for (name, wave) in [("am", Wave::Am { depth: 0.7 }), ("fm", Wave::Fm { deviation: 0.2 })] {
        for dims in [&[0][..], &[1], &[3, 100], &[2000]] {
            let op = ModulateWave::new(wave, &random_tensor(DType::F32, dims, 132));
            cases.push(Case::new(format!("modulate_wave/{name}/{dims:?}"), op, close));
            // Samples whose angles are far from the jump by a whole turn.
            let received = random_complex(dims, 133);
            let ahead = received.as_slice::<Complex64>().unwrap_or(&[]).iter();
            let ahead: Vec<Complex64> = ahead.map(|value| Complex64::new(value.re.abs() + 0.1, value.im)).collect();
            let op = DemodulateWave::new(wave, &tensor(ahead, dims));
            cases.push(Case::new(format!("demodulate_wave/{name}/{dims:?}"), op, close));
        }
    }
    for (carriers, prefix) in [(1, 0), (8, 2), (64, 16), (12, 12), (30, 0)] {
        let wave = Wave::Ofdm { carriers, prefix };
        let tolerance = Tolerance::Close { relative: 1e-5, absolute: 4e-6 };
        for symbols in [0, 1, 7] {
            let name = format!("ofdm{carriers}+{prefix}/{symbols}");
            let op = ModulateWave::new(wave, &random_complex(&[2, symbols, carriers], 134));
            cases.push(Case::new(format!("modulate_wave/{name}"), op, tolerance));
            let op = DemodulateWave::new(wave, &random_complex(&[2, symbols * (carriers + prefix)], 135));
            cases.push(Case::new(format!("demodulate_wave/{name}"), op, tolerance));
        }
    }
    for format in SampleFormat::ALL {
        for (lines, count) in [(1, 0), (1, 1), (3, 33), (1, 5000)] {
            // Bytes of any value can be compared as f32, since NaN equals NaN here.
            let raw = tensor(
                bytes(lines * count * 2 * format.size_bytes(), 256, 136),
                &[lines, count * 2 * format.size_bytes()],
            );
            let name = format!("read_samples/{}/{lines}x{count}", format.name());
            cases.push(Case::new(format!("{name}/real"), ReadSamples::new(format, &raw), Tolerance::Exact));
            cases.push(Case::new(
                format!("{name}/complex"),
                ReadSamples::new(format, &raw).complex(),
                Tolerance::Exact,
            ));
        }
    }
    cases
}
