//! Jacobi's elliptic functions, as far as filter design needs them, by Landen's transformations.
//!
//! Arguments are fractions of the quarter period: `cd(0) = 1` and `cd(1) = 0` for every modulus
//! `k`.

use std::f64::consts::FRAC_PI_2;

use num_complex::Complex64 as Complex;

/// The sequence of Landen-transformed moduli. They approach zero within a few steps.
fn landen(k: f64) -> Vec<f64> {
    let mut moduli = Vec::new();
    let mut k = k;
    while k > 1e-17 && moduli.len() < 16 {
        k = (k / (1.0 + (1.0 - k * k).max(0.0).sqrt())).powi(2);
        moduli.push(k);
    }
    moduli
}

fn ascend(start: Complex, k: f64) -> Complex {
    landen(k).iter().rev().fold(start, |w, modulus| w * (1.0 + modulus) / (1.0 + w * w * modulus))
}

/// `cd(u·K, k)`.
pub(crate) fn cd(u: Complex, k: f64) -> Complex {
    ascend((u * FRAC_PI_2).cos(), k)
}

/// `sn(u·K, k)`.
pub(crate) fn sn(u: Complex, k: f64) -> Complex {
    ascend((u * FRAC_PI_2).sin(), k)
}

/// The `u` with `sn(u·K, k) = w`.
pub(crate) fn inverse_sn(w: Complex, k: f64) -> Complex {
    let (mut w, mut before) = (w, k);
    for modulus in landen(k) {
        w = 2.0 * w / ((1.0 + modulus) * (1.0 + (1.0 - w * w * before * before).sqrt()));
        before = modulus;
    }
    w.asin() / FRAC_PI_2
}

/// The modulus of a filter of this order whose ripples have the ratio `k1`.
pub(crate) fn modulus_of(order: usize, k1: f64) -> f64 {
    let complement = (1.0 - k1 * k1).sqrt();
    let factor = |index: usize| sn(Complex::new((2 * index + 1) as f64 / order as f64, 0.0), complement).re.powi(4);
    let complement = complement.powi(order as i32) * (0..order / 2).map(factor).product::<f64>();
    (1.0 - complement * complement).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_tables() {
        // Abramowitz and Stegun: K(sin 30°) = 1.685750355; sn at half of it is 1/√(1 + k').
        let k = 0.5;
        let half = sn(Complex::new(0.5, 0.0), k).re;
        assert!((half - (1.0 / (1.0 + (1.0_f64 - k * k).sqrt())).sqrt()).abs() < 1e-14, "{half}");
        for u in [Complex::new(0.3, 0.0), Complex::new(0.2, 0.4), Complex::new(0.0, 0.6)] {
            assert!((inverse_sn(sn(u, k), k) - u).norm() < 1e-12);
            assert!((cd(u, k) - sn(1.0 - u, k)).norm() < 1e-12, "cd is sn from the other end");
        }
    }
}
