//! The exponential function of softmax.

use panoply_cpu_machine::lanes::{Kernel, Level, dispatch};
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_rows::softmax::Exponential;

#[test]
fn exponentials_are_within_two_units() {
    struct Sweep;
    impl Kernel for Sweep {
        type Output = ();
        #[inline(always)]
        fn run<L: Level>(self) {
            for step in 0..200_000 {
                let x = -(step as f32) * 4.36e-4;
                let (got, expected) = (f64::from(Exponential::exp::<L>(x)), f64::from(x).exp());
                assert!((got - expected).abs() <= 2.0 * f64::from(f32::EPSILON) * expected, "{x}: {got} {expected}");
                let x = f64::from(x) * 8.1;
                let (got, expected) = (Exponential::exp::<L>(x), x.exp());
                assert!((got - expected).abs() <= 2.0 * f64::EPSILON * expected, "{x}: {got:e} {expected:e}");
            }
        }
    }
    for simd in Simd::available() {
        dispatch(simd, Sweep);
    }
}
