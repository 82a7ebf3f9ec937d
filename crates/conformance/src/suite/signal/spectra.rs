//! Dct, Stft, Istft, Psd, Fft2 and Hilbert: every kind, odd lengths, frames that do and do not fill
//! the signal, views, NaN.

use panoply_core::op::signal::{Dct, DctKind, Fft2, Frames, Hilbert, Istft, PowerScale, Psd, Stft};
use panoply_core::{Complex64, DType, Tensor};

use super::fft::{forward_tolerance, inverse_tolerance, random_complex};
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_dct(&mut cases);
    add_planes(&mut cases);
    add_hilbert(&mut cases);
    add_frames(&mut cases);
    cases
}

fn looser(tolerance: Tolerance, times: f64) -> Tolerance {
    match tolerance {
        Tolerance::Close { relative, absolute } => {
            Tolerance::Close { relative: relative * times, absolute: absolute * times }
        }
        exact => exact,
    }
}

fn add_dct(cases: &mut Vec<Case>) {
    for kind in [DctKind::One, DctKind::Two, DctKind::Three, DctKind::Four] {
        for dims in [&[0][..], &[2], &[3], &[3, 8], &[2, 31], &[5, 100], &[1, 1009], &[3, 1024], &[4, 0], &[2, 3, 12]] {
            let input = random_tensor(DType::F32, dims, 110);
            let len = dims[dims.len() - 1];
            let name = format!("dct/{kind:?}/{dims:?}");
            let tolerance = looser(forward_tolerance(len), 4.0);
            cases.push(Case::new(name.clone(), Dct::new(kind, &input), tolerance));
            let op = Dct::new(kind, &input).orthonormal();
            cases.push(Case::new(format!("{name}/orthonormal"), op, looser(inverse_tolerance(1), 8.0)));
        }
        if kind != DctKind::One {
            let one = Dct::new(kind, &random_tensor(DType::F32, &[7, 1], 111));
            cases.push(Case::new(format!("dct/{kind:?}/one"), one, forward_tolerance(4)));
        }
    }
    let turned = random_tensor(DType::F32, &[30, 17], 112).transpose().unwrap_or_else(|error| panic!("{error}"));
    cases.push(Case::new("dct/Two/turned", Dct::new(DctKind::Two, &turned), looser(forward_tolerance(30), 4.0)));
}

fn add_planes(cases: &mut Vec<Case>) {
    for dims in [
        &[1, 1][..],
        &[4, 8],
        &[3, 5],
        &[2, 16, 12],
        &[31, 7],
        &[64, 64],
        &[0, 4, 4],
        &[3, 0, 5],
        &[1, 40],
        &[130, 257],
    ] {
        let plane: usize = dims[dims.len() - 2..].iter().product();
        let name = format!("{dims:?}");
        let both = random_complex(dims, 113);
        cases.push(Case::new(format!("fft2/c64/{name}"), Fft2::new(&both), forward_tolerance(plane)));
        cases.push(Case::new(format!("fft2/inverse/{name}"), Fft2::inverse(&both), inverse_tolerance(plane)));
        let real = random_tensor(DType::F32, dims, 114);
        cases.push(Case::new(format!("fft2/f32/{name}"), Fft2::new(&real), forward_tolerance(plane)));
    }
    let view = random_complex(&[20, 9], 115).transpose().unwrap_or_else(|error| panic!("{error}"));
    cases.push(Case::new("fft2/c64/turned", Fft2::new(&view), forward_tolerance(180)));
}

fn add_hilbert(cases: &mut Vec<Case>) {
    for dims in [&[0][..], &[1], &[2], &[3, 9], &[2, 64], &[1, 1000], &[40, 33]] {
        let op = Hilbert::new(&random_tensor(DType::F32, dims, 116));
        cases.push(Case::new(format!("hilbert/{dims:?}"), op, looser(inverse_tolerance(1), 12.0)));
    }
    let mut values = vec![0.5_f32; 24];
    values[10] = f32::NAN;
    let lines = Tensor::from_vec(values, [3, 8]).unwrap_or_else(|error| panic!("{error}"));
    cases.push(Case::new("hilbert/nan", Hilbert::new(&lines), looser(inverse_tolerance(1), 8.0)));
}

/// A window without zeros, so that every sample can be reconstructed.
fn window(len: usize) -> Tensor {
    let weight = |at: usize| 0.2 + ((at as f32 + 0.5) / len as f32 * std::f32::consts::PI).sin();
    Tensor::from_vec((0..len).map(weight).collect(), [len]).unwrap_or_else(|error| panic!("{error}"))
}

fn add_frames(cases: &mut Vec<Case>) {
    for (len, hop, transform, dims) in [
        (8, 4, 8, &[40][..]),
        (8, 3, 8, &[2, 37]),
        (16, 16, 16, &[3, 64]),
        (16, 20, 32, &[100]),
        (7, 2, 9, &[3, 2, 31]),
        (1, 1, 1, &[5]),
        (64, 16, 64, &[3000]),
        (32, 8, 32, &[10]),
        (32, 8, 32, &[2, 0]),
    ] {
        for centered in [false, true] {
            let mut frames = Frames::new(&window(len), hop).transform(transform);
            frames.centered = centered;
            let name = format!("{len}by{hop}of{transform}/{dims:?}/{}", if centered { "centered" } else { "inside" });
            let tolerance = looser(forward_tolerance(transform), 3.0);
            let (real, both) = (random_tensor(DType::F32, dims, 117), random_complex(dims, 118));
            cases.push(Case::new(format!("stft/f32/{name}"), Stft::new(&real, &frames), tolerance));
            cases.push(Case::new(format!("stft/c64/{name}"), Stft::new(&both, &frames), tolerance));
            let samples = dims[dims.len() - 1];
            let mut spectra = dims[..dims.len() - 1].to_vec();
            spectra.extend([frames.count(samples), frames.bins(false)]);
            let back = looser(inverse_tolerance(1), 40.0);
            let op = Istft::new(&random_complex(&spectra, 119), &frames, samples);
            cases.push(Case::new(format!("istft/c64/{name}"), op, back));
            *spectra.last_mut().unwrap_or(&mut 0) = frames.bins(true);
            let op = Istft::new(&random_complex(&spectra, 120), &frames, samples).real();
            cases.push(Case::new(format!("istft/f32/{name}"), op, back));
            if frames.count(samples) == 0 {
                continue;
            }
            let power = Tolerance::Close { relative: 2e-5, absolute: 1e-6 };
            cases.push(Case::new(format!("psd/f32/{name}"), Psd::new(&real, &frames), power));
            cases.push(Case::new(format!("psd/c64/{name}"), Psd::new(&both, &frames).keep_mean(), power));
            let op = Psd::new(&real, &frames).scale(PowerScale::Spectrum);
            cases.push(Case::new(format!("psd/spectrum/{name}"), op, power));
        }
    }
    let mut values = vec![Complex64::new(0.25, -0.5); 60];
    values[25] = Complex64::new(f32::NAN, f32::NAN);
    let lines = Tensor::from_vec(values, [3, 20]).unwrap_or_else(|error| panic!("{error}"));
    let frames = Frames::new(&window(5), 5);
    cases.push(Case::new("stft/c64/nan", Stft::new(&lines, &frames), forward_tolerance(5)));
}
