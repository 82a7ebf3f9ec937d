//! Adaptive filters: LMS and NLMS, towards a signal, decisions or a constant power.

use num_complex::Complex32;

/// The target of an adaptive filter.
pub enum FilterTarget<'a> {
    /// These samples.
    Signal(&'a [Complex32]),
    /// The nearest of these points.
    Points(&'a [Complex32]),
    /// Samples of this power.
    Modulus(f32),
}

/// Filters a line with weights that adapt after each sample. `history` has the samples before the
/// first one, the newest last; before these the signal is zero. `work` is scratch memory.
pub fn adapt(
    (history, input): (&[Complex32], &[Complex32]),
    aim: &FilterTarget<'_>,
    (step, normalized): (f64, bool),
    weights: &mut [Complex32],
    output: &mut [Complex32],
    work: &mut Vec<Complex32>,
) {
    let before = weights.len() - 1;
    let kept = before.min(history.len());
    work.clear();
    work.resize(before - kept, Complex32::default());
    work.extend_from_slice(&history[history.len() - kept..]);
    work.extend_from_slice(input);
    // The oldest sample first, in the order of the samples.
    weights.reverse();
    for (at, out) in output.iter_mut().enumerate() {
        let samples = &work[at..at + weights.len()];
        *out = weights.iter().zip(samples).map(|(weight, sample)| weight * sample).sum();
        let error = match aim {
            FilterTarget::Signal(signal) => signal[at] - *out,
            FilterTarget::Points(points) => {
                let distance = |point: &&Complex32| (**point - *out).norm_sqr();
                let nearest = points.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
                nearest.map_or_else(Complex32::default, |point| point - *out)
            }
            FilterTarget::Modulus(power) => *out * (power - out.norm_sqr()),
        };
        let step = match normalized {
            true => (step / (samples.iter().map(|sample| f64::from(sample.norm_sqr())).sum::<f64>() + 1e-12)) as f32,
            false => step as f32,
        };
        let change = error * step;
        weights.iter_mut().zip(samples).for_each(|(weight, sample)| *weight += change * sample.conj());
    }
    weights.reverse();
}
