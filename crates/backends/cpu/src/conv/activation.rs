//! Activations of finished sums.

use panoply_core::op::compute::Activation;

/// A number that activations are defined for.
pub trait Activated: Copy {
    /// The activation of every number of a run.
    fn activate(run: &mut [Self], activation: Activation);
}

macro_rules! activated {
    ($($scalar:ty),*) => {$(
        impl Activated for $scalar {
            fn activate(run: &mut [$scalar], activation: Activation) {
                match activation {
                    Activation::None => {}
                    Activation::Relu => {
                        for number in run {
                            *number = if *number < 0.0 { 0.0 } else { *number };
                        }
                    }
                    _ => {
                        for number in run {
                            *number = activate(f64::from(*number), activation) as $scalar;
                        }
                    }
                }
            }
        }
    )*};
}

activated!(f32, f64);

fn activate(x: f64, activation: Activation) -> f64 {
    // The gated functions approach zero at minus infinity, where the formulas give `-inf * 0`.
    match activation {
        Activation::Gelu | Activation::Silu if x == f64::NEG_INFINITY => 0.0,
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        _ => x,
    }
}

/// The error function, by the series `2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!`, all of whose terms have the same sign.
fn erf(x: f64) -> f64 {
    /// From here on the result is one to the last bit.
    const ONE_FROM: f64 = 6.0;
    if x.is_nan() {
        return x;
    }
    if x.abs() >= ONE_FROM {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > f64::EPSILON * 0.25 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_its_known_values() {
        for (x, known) in
            [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (3.0, 0.999_977_909_503_001_4)]
        {
            assert!((erf(x) - known).abs() < 1e-15 && (erf(-x) + known).abs() < 1e-15, "{x}");
        }
        assert!(erf(f64::NAN).is_nan() && erf(f64::INFINITY) == 1.0);
    }

    #[test]
    fn infinities_and_nan_are_kept_or_tamed() {
        for activation in [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh]
        {
            let mut run = [f32::NEG_INFINITY, f32::NAN, f32::INFINITY];
            f32::activate(&mut run, activation);
            assert_eq!(run[0], if activation == Activation::Tanh { -1.0 } else { 0.0 });
            assert!(run[1].is_nan() && run[2] >= 1.0, "{activation:?} {run:?}");
        }
    }
}
