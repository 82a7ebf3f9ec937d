//! Windows and designed filters, compared with SciPy's figures in `design_figures.txt`, which
//! `design_figures.py` wrote.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::HashMap;

use panoply_radio::design::{Band, Prototype, recursive, response, windowed_sinc};
use panoply_radio::equiripple::{Demand, equiripple};
use panoply_radio::window::Window;

fn figures() -> HashMap<&'static str, Vec<f64>> {
    let lines = include_str!("design_figures.txt").lines().filter(|line| !line.starts_with('#'));
    let parsed = |line: &'static str| {
        let (name, numbers) = line.split_once(": ").unwrap();
        (name, numbers.split(' ').map(|number| number.parse().unwrap()).collect())
    };
    lines.map(parsed).collect()
}

const BANDS: [(&str, Band); 4] = [
    ("low", Band::LowPass(0.2)),
    ("high", Band::HighPass(0.3)),
    ("pass", Band::BandPass(0.2, 0.45)),
    ("stop", Band::BandStop(0.25, 0.6)),
];

#[track_caller]
fn close(name: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{name}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= tolerance * (1.0 + expected.abs()), "{name}: {got} {expected}");
    }
}

#[test]
fn windows() {
    let (figures, mut seen) = (figures(), 0);
    for (name, window) in [
        ("hann", Window::Hann),
        ("hamming", Window::Hamming),
        ("blackman", Window::Blackman),
        ("blackmanharris", Window::BlackmanHarris),
        ("kaiser", Window::Kaiser(8.6)),
    ] {
        for len in [1, 8, 9] {
            for (kind, got) in [("symmetric", window.symmetric(len)), ("periodic", window.periodic(len))] {
                let name = format!("{kind}/{name}/{len}");
                close(&name, &got.unwrap(), &figures[name.as_str()], 1e-12);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 30);
}

#[test]
fn windowed_sincs() {
    let figures = figures();
    for (band_name, band) in BANDS {
        let name = format!("sinc/{band_name}/31");
        close(&name, &windowed_sinc(31, band, Window::Hamming).unwrap(), &figures[name.as_str()], 1e-12);
        let name = format!("sinc/{band_name}/kaiser");
        close(&name, &windowed_sinc(25, band, Window::Kaiser(5.0)).unwrap(), &figures[name.as_str()], 1e-12);
    }
}

#[test]
fn recursive_filters() {
    let figures = figures();
    for (band_name, band) in BANDS {
        for order in [1, 2, 3, 6, 8] {
            for (kind, prototype) in [
                ("butter", Prototype::Butterworth),
                ("cheby1", Prototype::Chebyshev1 { ripple_db: 1.5 }),
                ("cheby2", Prototype::Chebyshev2 { attenuation_db: 45.0 }),
                ("ellip", Prototype::Elliptic { ripple_db: 1.5, attenuation_db: 45.0 }),
            ] {
                let name = format!("{kind}/{band_name}/{order}");
                let sections = recursive(prototype, order, band).unwrap();
                let at = |index: usize| response(&sections, 0.02 + 0.96 * index as f64 / 10.0);
                let got: Vec<f64> = (0..11).flat_map(|index| [at(index).re, at(index).im]).collect();
                close(&name, &got, &figures[name.as_str()], 1e-8);
            }
        }
    }
}

#[test]
fn equiripple_filters() {
    let figures = figures();
    let low = [Demand::new(0.0, 0.3, 1.0), Demand::new(0.45, 1.0, 0.0).weight(4.0)];
    for taps in [21, 30] {
        let name = format!("equiripple/low/{taps}");
        close(&name, &equiripple(taps, &low).unwrap(), &figures[name.as_str()], 2e-4);
    }
    let pass = [Demand::new(0.0, 0.15, 0.0), Demand::new(0.25, 0.5, 1.0), Demand::new(0.65, 1.0, 0.0)];
    close("pass", &equiripple(35, &pass).unwrap(), &figures["equiripple/pass/35"], 2e-4);
}
