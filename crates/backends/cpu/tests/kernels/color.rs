//! Colour conversions against the documented formulas, at every vector level.

use ColorFormat::{Bgr, Gray, I420, Nv12, Rgb};
use panoply_core::op::compute::{ColorFormat, ColorRange, ColorStandard};
use panoply_cpu::color::*;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_machine::team::Team;

fn bytes(len: usize) -> Vec<u8> {
    let mut state = 99_u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        })
        .collect()
}

/// Red, green and blue of pixel (y, x) in f64, unrounded.
fn pixel(c: &Conversion, data: &[u8], image: usize, y: usize, x: usize) -> [f64; 3] {
    let at = |index: usize| f64::from(data[index]);
    let (w, h) = (c.width, c.height);
    match c.from {
        Rgb | Bgr => {
            let first = ((image * h + y) * w + x) * 3;
            let p = [at(first), at(first + 1), at(first + 2)];
            if c.from == Rgb { p } else { [p[2], p[1], p[0]] }
        }
        Gray => [at((image * h + y) * w + x); 3],
        I420 | Nv12 => {
            let base = image * w * h / 2 * 3;
            let (u, v) = if c.from == I420 {
                let first = base + w * h + y / 2 * (w / 2) + x / 2;
                (at(first), at(first + w * h / 4))
            } else {
                let first = base + w * h + y / 2 * w + x / 2 * 2;
                (at(first), at(first + 1))
            };
            let [kr, kg, kb] = c.standard.weights();
            let (o, a, b) = codes(c.range);
            let l = (at(base + y * w + x) - o) / a;
            let red = l + (2.0 - 2.0 * kr) * (v - 128.0) / b;
            let blue = l + (2.0 - 2.0 * kb) * (u - 128.0) / b;
            [red, (l - kr * red - kb * blue) / kg, blue]
        }
    }
}

fn codes(range: ColorRange) -> (f64, f64, f64) {
    match range {
        ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
        ColorRange::Full => (0.0, 1.0, 1.0),
    }
}

/// The whole output in f64, unrounded. YUV to YUV is left to another test.
fn naive(c: &Conversion, data: &[u8]) -> Vec<f64> {
    let [kr, kg, kb] = c.standard.weights();
    let (o, a, b) = codes(c.range);
    let luma = |p: [f64; 3]| kr * p[0] + kg * p[1] + kb * p[2];
    let mut out = Vec::new();
    for image in 0..c.images {
        let at = |y, x| pixel(c, data, image, y, x);
        let (mut us, mut vs) = (Vec::new(), Vec::new());
        for y in 0..c.height {
            for x in 0..c.width {
                let p = at(y, x);
                match c.to {
                    Rgb => out.extend(p),
                    Bgr => out.extend([p[2], p[1], p[0]]),
                    Gray => out.push(luma(p)),
                    I420 | Nv12 => out.push(o + a * luma(p)),
                }
                if y % 2 == 0 && x % 2 == 0 && c.to.is_yuv420() {
                    let square = [at(y, x), at(y, x + 1), at(y + 1, x), at(y + 1, x + 1)];
                    let mean = [0, 1, 2].map(|i| square.iter().map(|p| p[i]).sum::<f64>() / 4.0);
                    us.push(128.0 + b * (mean[2] - luma(mean)) / (2.0 - 2.0 * kb));
                    vs.push(128.0 + b * (mean[0] - luma(mean)) / (2.0 - 2.0 * kr));
                }
            }
        }
        if c.to == Nv12 {
            out.extend(us.iter().zip(&vs).flat_map(|(u, v)| [*u, *v]));
        } else {
            out.extend(us.into_iter().chain(vs));
        }
    }
    out
}

#[test]
fn bytes_agree_with_the_formulas() {
    let team = Team::new(2);
    for (images, height, width) in [(1, 2, 2), (2, 6, 10), (1, 4, 1030), (1, 128, 514), (3, 0, 8), (0, 2, 2)] {
        for from in [Rgb, Bgr, Gray, I420, Nv12] {
            for to in [Rgb, Bgr, Gray, I420, Nv12] {
                for standard in [ColorStandard::Bt601, ColorStandard::Bt709] {
                    for range in [ColorRange::Limited, ColorRange::Full] {
                        let c = Conversion { from, to, standard, range, images, height, width };
                        if !(from.is_yuv420() && to.is_yuv420()) {
                            check_bytes(&team, &c);
                        }
                    }
                }
            }
        }
    }
}

fn check_bytes(team: &Team, c: &Conversion) {
    let input = bytes(c.elements(c.from));
    let expected = naive(c, &input);
    for simd in Simd::available() {
        let mut output = vec![0; c.elements(c.to)];
        convert_u8(simd, team, c, &input, &mut output);
        assert_eq!(output.len(), expected.len());
        for (index, (got, expected)) in output.iter().zip(&expected).enumerate() {
            let near = (f64::from(*got) - expected.clamp(0.0, 255.0)).abs() <= 0.5001;
            assert!(near, "{c:?} {simd:?} at {index}: {got} {expected}");
        }
    }
}

#[test]
fn repacking_chroma_only_moves_bytes() {
    let team = Team::new(2);
    let to = |from, to, input: &[u8]| {
        let (standard, range) = (ColorStandard::Bt601, ColorRange::Limited);
        let c = Conversion { from, to, standard, range, images: 2, height: 6, width: 10 };
        let mut output = vec![0; input.len()];
        convert_u8(Simd::detect(), &team, &c, input, &mut output);
        output
    };
    let input = bytes(2 * 90);
    let packed = to(I420, Nv12, &input);
    assert_eq!(packed[..60], input[..60]);
    assert_eq!((packed[60], packed[61], packed[62]), (input[60], input[75], input[61]));
    assert_eq!(to(Nv12, I420, &packed), input);
    assert_eq!(to(I420, I420, &input), input);
}

#[test]
fn odd_sizes_work_without_chroma_and_floats_keep_their_scale() {
    let team = Team::new(2);
    let (standard, range) = (ColorStandard::Bt709, ColorRange::Full);
    let c = Conversion { from: Rgb, to: Gray, standard, range, images: 1, height: 7, width: 131 };
    check_bytes(&team, &c);
    let input: Vec<f32> = (0..c.elements(Rgb)).map(|value| value as f32 / 100.0 - 3.0).collect();
    for simd in Simd::available() {
        for from in [Rgb, Bgr] {
            let mut gray = vec![0.0; c.pixels()];
            convert_f32(simd, &team, &Conversion { from, ..c }, &input, &mut gray);
            for (p, gray) in input.chunks(3).zip(&gray) {
                let (red, blue) = if from == Rgb { (p[0], p[2]) } else { (p[2], p[0]) };
                assert!((0.2126 * red + 0.7152 * p[1] + 0.0722 * blue - gray).abs() < 1e-5);
            }
        }
        let mut swapped = vec![0.0; input.len()];
        convert_f32(simd, &team, &Conversion { to: Bgr, ..c }, &input, &mut swapped);
        assert!(input.chunks(3).zip(swapped.chunks(3)).all(|(a, b)| [a[2], a[1], a[0]] == b));
        let mut colors = vec![0.0; 9];
        let three = Conversion { from: Gray, to: Rgb, height: 1, width: 3, ..c };
        convert_f32(simd, &team, &three, &[1.0, f32::INFINITY, -2.0], &mut colors);
        assert_eq!(colors, [1.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY, -2.0, -2.0, -2.0]);
    }
}
