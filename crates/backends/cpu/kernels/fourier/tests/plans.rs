//! Plans have the requested length and compute the right spectra.

use panoply_cpu_fourier::{forward, forward_real, inverse, inverse_real};
use rustfft::num_complex::Complex;

#[test]
fn plans_have_the_length_that_was_asked_for() {
    assert_eq!((forward(12).len(), inverse(7).len()), (12, 7));
    assert_eq!((forward_real(10).len(), inverse_real(9).len()), (10, 9));
}

/// Some numbers between -1 and 1.
fn line(len: usize, seed: usize) -> Vec<Complex<f32>> {
    let number = |at: usize| ((at * 7919 + at / 7 + seed) % 1013) as f32 / 506.5 - 1.0;
    (0..len).map(|at| Complex::new(number(2 * at), number(2 * at + 1))).collect()
}

#[test]
fn spectra_are_those_of_plain_sums_in_place_and_elsewhere() {
    for len in [1, 2, 16, 100, 128, 256, 512, 1024, 2048, 4096, 8192] {
        for (plan, sign) in [(forward(len), -1.0), (inverse(len), 1.0)] {
            let (input, mut output) = (line(3 * len, len), vec![Complex::default(); 3 * len]);
            // Scratch memory need not be aligned.
            let scratch = plan.get_immutable_scratch_len().max(plan.get_inplace_scratch_len());
            let mut scratch = vec![Complex::default(); scratch + 1];
            plan.process_immutable_with_scratch(&input, &mut output, &mut scratch[1..]);
            let mut same = input.clone();
            plan.process_with_scratch(&mut same, &mut scratch[1..]);
            for (input, (output, same)) in input.chunks(len).zip(output.chunks(len).zip(same.chunks(len))) {
                for place in [0, 1, 2, 5, len / 3, len / 2 + 1, len - 1].map(|place| place % len) {
                    let term = |(at, value): (usize, &Complex<f32>)| {
                        let angle = sign * std::f64::consts::TAU * (at * place % len) as f64 / len as f64;
                        Complex::new(f64::from(value.re), f64::from(value.im)) * Complex::from_polar(1.0, angle)
                    };
                    let sum: Complex<f64> = input.iter().enumerate().map(term).sum();
                    for got in [output[place], same[place]] {
                        let got = Complex::new(f64::from(got.re), f64::from(got.im));
                        assert!((got - sum).norm() < 2e-6 * len as f64, "{len} {sign} {place}: {got} {sum}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_whole_line_is_refused() {
    for len in [12, 1024] {
        let plan = forward(len);
        let (mut buffer, scratch) = (line(len + 1, 1), plan.get_inplace_scratch_len());
        let run = std::panic::AssertUnwindSafe(|| {
            plan.process_with_scratch(&mut buffer, &mut vec![Complex::default(); scratch]);
        });
        assert!(std::panic::catch_unwind(run).is_err(), "{len}");
    }
}
