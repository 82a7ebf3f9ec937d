//! Synthetic signals: seeded noise, tones, and channel impairments.

use std::f64::consts::TAU;

use num_complex::{Complex32, Complex64};
use panoply_core::op::signal::oscillator::{Oscillator, phasor};
use panoply_core::{Error, Result, Tensor};

/// Number of waves whose sum models a fading path.
const FADING_WAVES: usize = 16;
/// The largest number of taps of a channel's echoes.
pub const ECHO_TAPS_MAX: usize = 4096;
/// The largest number of samples of a block.
pub const BLOCK_MAX: usize = 1 << 24;

/// Random numbers from a seed, the same on every machine.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    /// The next 64-bit word, by SplitMix64.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uniformly distributed number above 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// A complex number with normally distributed parts and a mean power of 1, half of it in each
    /// part.
    pub fn normal(&mut self) -> Complex64 {
        Complex64::from_polar((-self.unit().ln()).sqrt(), TAU * self.unit())
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }
}

/// A channel that impairs a signal, in this order: echoes, fading, carrier offset, gain, noise. The
/// pieces of a stream give the same result as the whole stream.
pub struct Channel {
    /// Tap `n` is the echo with a delay of `n` samples.
    echoes: Vec<Complex32>,
    /// The last samples before the next piece.
    before: Vec<Complex32>,
    fading: Option<Fading>,
    carrier: Oscillator,
    time: u64,
    gain: f32,
    noise_size: f64,
    noise: Noise,
}

/// Rayleigh fading by Clarke's model: many paths, none of them direct.
struct Fading {
    /// The frequency of each wave in turns per sample, and its phase at time 0 in turns.
    waves: Vec<(f64, f64)>,
}

impl Channel {
    /// A channel that changes nothing. The seed is for the random parts.
    pub fn new(seed: u64) -> Channel {
        Channel {
            echoes: vec![Complex32::new(1.0, 0.0)],
            before: Vec::new(),
            fading: None,
            carrier: Oscillator::new(0.0, 0.0),
            time: 0,
            gain: 1.0,
            noise_size: 0.0,
            noise: Noise::new(seed),
        }
    }

    /// Adds white noise of this mean power.
    pub fn noise(mut self, power: f64) -> Result<Channel> {
        if !(power >= 0.0 && power.is_finite()) {
            return Err(Error::invalid("channel: power of noise", "0 or more", power));
        }
        self.noise_size = power.sqrt();
        Ok(self)
    }

    /// Adds a carrier offset, in turns per sample, with this initial phase, in turns.
    pub fn carrier(mut self, frequency: f64, phase: f64) -> Result<Channel> {
        if !(frequency.is_finite() && phase.is_finite()) {
            return Err(Error::invalid("channel: carrier", "finite numbers", format!("{frequency} and {phase}")));
        }
        self.carrier = Oscillator::new(frequency, phase);
        Ok(self)
    }

    /// Multiplies every sample by this gain.
    pub fn gain(mut self, gain: f32) -> Result<Channel> {
        if !gain.is_finite() {
            return Err(Error::invalid("channel: gain", "a finite number", gain));
        }
        self.gain = gain;
        Ok(self)
    }

    /// Adds echoes: tap `n` has a delay of `n` samples; the first tap is the direct path.
    pub fn echoes(mut self, taps: &[Complex32]) -> Result<Channel> {
        let finite = taps.iter().all(|tap| tap.re.is_finite() && tap.im.is_finite());
        if !finite || !(1..=ECHO_TAPS_MAX).contains(&taps.len()) {
            let expected = format!("1 to {ECHO_TAPS_MAX} finite taps");
            return Err(Error::invalid("channel: echoes", expected, taps.len()));
        }
        self.echoes = taps.to_vec();
        Ok(self)
    }

    /// Adds fading as for a moving receiver, with a Doppler shift of up to `doppler` turns per
    /// sample.
    pub fn fading(mut self, doppler: f64) -> Result<Channel> {
        if !(0.0..=0.5).contains(&doppler) {
            return Err(Error::invalid("channel: doppler", "0 to 0.5 turns a sample", doppler));
        }
        let noise = &mut self.noise;
        let wave = |at: usize| {
            let angle = TAU * (at as f64 + noise.unit()) / FADING_WAVES as f64;
            (doppler * angle.cos(), noise.unit())
        };
        self.fading = Some(Fading { waves: (0..FADING_WAVES).map(wave).collect() });
        Ok(self)
    }

    /// Passes the next samples through the channel, in place.
    pub fn pass(&mut self, samples: &mut [Complex32]) {
        if self.echoes.len() > 1 {
            self.echo(samples);
        }
        if let Some(fading) = &self.fading {
            for (at, sample) in samples.iter_mut().enumerate() {
                *sample *= fading.gain((self.time + at as u64) as f64);
            }
        }
        self.carrier.mix(self.time, samples);
        self.time += samples.len() as u64;
        for sample in samples {
            let noise =
                if self.noise_size > 0.0 { self.noise.normal() * self.noise_size } else { Complex64::default() };
            *sample = *sample * self.gain + Complex32::new(noise.re as f32, noise.im as f32);
        }
    }

    fn echo(&mut self, samples: &mut [Complex32]) {
        let keep = self.echoes.len() - 1;
        let mut joined = vec![Complex32::default(); keep - self.before.len()];
        joined.extend_from_slice(&self.before);
        joined.extend_from_slice(samples);
        for (at, sample) in samples.iter_mut().enumerate() {
            let reach = &joined[at..at + keep + 1];
            *sample = self.echoes.iter().zip(reach.iter().rev()).map(|(tap, value)| tap * value).sum();
        }
        self.before = joined[joined.len() - keep..].to_vec();
    }
}

impl Fading {
    fn gain(&self, time: f64) -> Complex32 {
        let sum: Complex64 = self.waves.iter().map(|(turns, phase)| phasor(turns * time + phase)).sum();
        let gain = sum / (FADING_WAVES as f64).sqrt();
        Complex32::new(gain.re as f32, gain.im as f32)
    }
}

/// A source of tones through a channel, in blocks of c64, with `samples` samples in total.
pub struct Synthetic {
    tones: Vec<(Oscillator, f32)>,
    channel: Channel,
    block: usize,
    time: u64,
    samples: u64,
}

impl Synthetic {
    /// A source of tones, given by their frequency in turns per sample and their amplitude.
    pub fn tones(tones: &[(f64, f32)], channel: Channel, block: usize, samples: u64) -> Result<Synthetic> {
        if !(1..=BLOCK_MAX).contains(&block) {
            return Err(Error::invalid("synthetic: samples of a block", format!("1 to {BLOCK_MAX}"), block));
        }
        if !tones.iter().all(|(frequency, size)| frequency.is_finite() && size.is_finite()) {
            return Err(Error::invalid("synthetic: tones", "finite numbers", format!("{tones:?}")));
        }
        let tones = tones.iter().map(|(frequency, size)| (Oscillator::new(*frequency, 0.0), *size)).collect();
        Ok(Synthetic { tones, channel, block, time: 0, samples })
    }
}

impl Iterator for Synthetic {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Result<Tensor>> {
        let len = (self.samples - self.time).min(self.block as u64) as usize;
        if len == 0 {
            return None;
        }
        let mut sum = vec![Complex32::default(); len];
        for (oscillator, size) in &self.tones {
            let mut own = vec![Complex32::new(*size, 0.0); len];
            oscillator.mix(self.time, &mut own);
            sum.iter_mut().zip(own).for_each(|(sum, value)| *sum += value);
        }
        self.channel.pass(&mut sum);
        self.time += len as u64;
        Some(Tensor::from_vec(sum, [len]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> Channel {
        let echoes = [Complex32::new(1.0, 0.0), Complex32::new(0.0, 0.3), Complex32::new(-0.2, 0.1)];
        let made = Channel::new(5).echoes(&echoes).unwrap().fading(0.001).unwrap();
        made.carrier(0.0123, 0.25).unwrap().gain(0.5).unwrap().noise(0.01).unwrap()
    }

    #[test]
    fn pieces_come_out_as_the_whole_would() {
        let samples: Vec<Complex32> = (0..2000).map(|at| Complex32::new((at % 7) as f32, (at % 3) as f32)).collect();
        let mut whole = samples.clone();
        channel().pass(&mut whole);
        let (mut pieces, mut passing, mut at) = (samples, channel(), 0);
        for len in [1, 0, 2, 700, 3, 64].into_iter().cycle() {
            let end = (at + len).min(2000);
            passing.pass(&mut pieces[at..end]);
            at = end;
            if at == 2000 {
                break;
            }
        }
        assert_eq!(whole, pieces);
    }

    #[test]
    fn noise_and_fading_have_the_power_that_was_asked_for() {
        let power = |samples: &[Complex32]| {
            samples.iter().map(|sample| f64::from(sample.norm_sqr())).sum::<f64>() / samples.len() as f64
        };
        let mut silence = vec![Complex32::default(); 200_000];
        Channel::new(1).noise(0.25).unwrap().pass(&mut silence);
        assert!((power(&silence) - 0.25).abs() < 0.005, "{}", power(&silence));
        let mut carrier = vec![Complex32::new(1.0, 0.0); 400_000];
        Channel::new(2).fading(0.01).unwrap().pass(&mut carrier);
        assert!((power(&carrier) - 1.0).abs() < 0.1, "{}", power(&carrier));
        let deep = carrier.iter().filter(|sample| sample.norm_sqr() < 0.1).count() as f64 / 400_000.0;
        assert!((deep - 0.095).abs() < 0.04, "Rayleigh's share below -10 dB is 0.095, got {deep}");
    }

    #[test]
    fn a_source_gives_what_was_asked_for_and_no_more() {
        let source = Synthetic::tones(&[(0.25, 1.0)], Channel::new(0), 300, 1000).unwrap();
        let blocks: Vec<usize> = source.map(|block| block.unwrap().elements()).collect();
        assert_eq!(blocks, [300, 300, 300, 100]);
        assert!(Synthetic::tones(&[(f64::NAN, 1.0)], Channel::new(0), 300, 1000).is_err());
        assert!(Synthetic::tones(&[], Channel::new(0), 0, 1000).is_err());
        assert!(Channel::new(0).noise(f64::NAN).is_err() && Channel::new(0).noise(-1.0).is_err());
        assert!(Channel::new(0).fading(0.7).is_err() && Channel::new(0).echoes(&[]).is_err());
        assert!(Channel::new(0).gain(f32::INFINITY).is_err() && Channel::new(0).carrier(f64::NAN, 0.0).is_err());
    }
}
