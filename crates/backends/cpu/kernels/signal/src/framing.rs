//! Short-time spectra: spectra of overlapping pieces of a signal, and the signal reconstructed from
//! them.

use std::sync::Arc;

use num_complex::Complex32;
use panoply_core::Result;
use panoply_core::op::signal::Frames;
use panoply_cpu_fourier::Fft;

use crate::spectral::Plans;

/// If the sum of squared weights at a sample is less than this, the sample cannot be reconstructed.
const WEIGHT_MIN: f64 = 1e-10;

/// Frames with their transform. A sample is `step` numbers: 1 if real, 2 if complex.
pub struct Framing {
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
    pub(crate) window: Vec<f32>,
    hop: usize,
    silence: usize,
}

impl Framing {
    /// Frames as described by `frames`.
    pub fn new(plans: &mut Plans, frames: &Frames) -> Result<Framing> {
        let (forward, inverse) = plans.of(frames.transform);
        let window = frames.window.contiguous()?.as_slice::<f32>()?.to_vec();
        Ok(Framing { forward, inverse, window, hop: frames.hop, silence: frames.silence() })
    }

    /// The transform's length.
    pub fn transform_len(&self) -> usize {
        self.forward.len()
    }

    /// Scratch memory for a thread's transforms.
    pub fn scratch(&self) -> Vec<Complex32> {
        let len = self.forward.get_inplace_scratch_len().max(self.inverse.get_inplace_scratch_len());
        vec![Complex32::default(); len]
    }

    /// Writes the spectrum of frame `index` into `bins`, which has the transform's length.
    pub fn spectrum(
        &self,
        line: &[f32],
        step: usize,
        index: usize,
        detrend: bool,
        bins: &mut [Complex32],
        scratch: &mut [Complex32],
    ) {
        let (samples, begin) = (line.len() / step, index * self.hop);
        bins.fill(Complex32::default());
        for (at, bin) in bins.iter_mut().enumerate().take(self.window.len()) {
            let Some(place) = (begin + at).checked_sub(self.silence).filter(|place| *place < samples) else { continue };
            *bin = if step == 2 {
                Complex32::new(line[2 * place], line[2 * place + 1])
            } else {
                Complex32::new(line[place], 0.0)
            };
        }
        let count = self.window.len();
        if detrend {
            let sum = bins[..count]
                .iter()
                .fold([0.0_f64; 2], |sum, bin| [sum[0] + f64::from(bin.re), sum[1] + f64::from(bin.im)]);
            let mean = Complex32::new((sum[0] / count as f64) as f32, (sum[1] / count as f64) as f32);
            bins[..count].iter_mut().for_each(|bin| *bin -= mean);
        }
        bins.iter_mut().zip(&self.window).for_each(|(bin, weight)| *bin *= *weight);
        self.forward.process_with_scratch(bins, scratch);
    }

    /// The factor of each sample of a signal of length `len` after its frames are added up.
    pub fn weights(&self, len: usize, count: usize) -> Vec<f32> {
        let mut sums = vec![0.0_f64; len];
        for index in 0..count {
            for (at, weight) in self.window.iter().enumerate() {
                if let Some(place) = (index * self.hop + at).checked_sub(self.silence).filter(|place| *place < len) {
                    sums[place] += f64::from(*weight) * f64::from(*weight);
                }
            }
        }
        let scale = self.transform_len() as f64;
        sums.iter().map(|sum| if *sum < WEIGHT_MIN { 0.0 } else { (1.0 / (sum * scale)) as f32 }).collect()
    }

    /// Adds frame `index`, given by its spectrum `bins`, to the line.
    pub fn add(&self, bins: &mut [Complex32], step: usize, index: usize, line: &mut [f32], scratch: &mut [Complex32]) {
        self.inverse.process_with_scratch(bins, scratch);
        let samples = line.len() / step;
        for (at, (bin, weight)) in bins.iter().zip(&self.window).enumerate() {
            let place = (index * self.hop + at).checked_sub(self.silence).filter(|place| *place < samples);
            let Some(place) = place else { continue };
            line[step * place] += bin.re * weight;
            if step == 2 {
                line[2 * place + 1] += bin.im * weight;
            }
        }
    }
}

/// Completes the spectrum of a real signal from its first half, which is at the start of `bins`.
/// Imaginary parts that are zero for real signals are ignored.
pub fn mirror(bins: &mut [Complex32]) {
    let len = bins.len();
    for k in 0..len {
        match 2 * k {
            twice if k == 0 || twice == len => bins[k].im = 0.0,
            twice if twice > len => bins[k] = bins[len - k].conj(),
            _ => (),
        }
    }
}
