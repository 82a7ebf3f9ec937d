//! From symbols to points of the complex plane and back: hard decisions, and the log-likelihood of
//! each bit.
//!
//! Square constellations are decided on each axis separately, others by the distance to every
//! point.

use num_complex::Complex32;
use panoply_core::op::signal::Constellation;

use crate::level::{Level, leveled};

/// Number of symbols that are processed at a time.
const BLOCK: usize = 64;

/// A constellation with its tables for decisions.
pub struct Modem {
    level: Level,
    points: Vec<Complex32>,
    bits: usize,
    /// For square constellations the parameters of the axes.
    axes: Option<Axes>,
}

/// The layout of a constellation's points on the axes: the number of bits on an axis, and the
/// distance of the innermost points from zero.
#[derive(Clone, Copy, Debug)]
struct Axes {
    bits: usize,
    unit: f32,
    /// Whether there is a second axis.
    both: bool,
}

impl Modem {
    /// A modem for this constellation.
    pub fn new(level: Level, constellation: &Constellation) -> Modem {
        let points = constellation.points();
        let bits = constellation.bits();
        let axes = match constellation {
            Constellation::Bpsk => Some(Axes { bits: 1, unit: 1.0, both: false }),
            Constellation::Qpsk | Constellation::Qam16 | Constellation::Qam64 | Constellation::Qam256 => {
                Some(Axes { bits: bits / 2, unit: constellation.unit(), both: true })
            }
            _ => None,
        };
        Modem { level, points, bits, axes }
    }

    /// Number of bits of a symbol.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Maps symbols to points. Fails with the index of the first symbol that has no point.
    pub fn modulate(&self, symbols: &[u8], points: &mut [Complex32]) -> Result<(), usize> {
        if let Some(wrong) = symbols.iter().position(|symbol| usize::from(*symbol) >= self.points.len()) {
            return Err(wrong);
        }
        let mut table = [Complex32::default(); 256];
        table[..self.points.len()].copy_from_slice(&self.points);
        points.iter_mut().zip(symbols).for_each(|(point, symbol)| *point = table[usize::from(*symbol)]);
        Ok(())
    }

    /// Decides for the symbols with the nearest points. NaN counts as the lowest level on its axis,
    /// or as symbol 0.
    pub fn decide(&self, received: &[Complex32], symbols: &mut [u8]) {
        match self.axes {
            Some(axes) => decide_axes(self.level, axes, received, symbols),
            None => decide_points(self.level, &self.points, received, symbols),
        }
    }

    /// For each bit of each symbol the logarithm of the likelihood of 0 relative to that of 1,
    /// computed from the nearest point with each value; the highest bit first. `noise` is the
    /// variance of the noise, the sum over both axes.
    pub fn likelihoods(&self, received: &[Complex32], noise: f32, out: &mut [f32]) {
        let scale = 1.0 / noise;
        match self.axes {
            Some(axes @ Axes { bits: 1, .. }) => axes_1(self.level, axes, received, scale, out),
            Some(axes @ Axes { bits: 2, .. }) => axes_2(self.level, axes, received, scale, out),
            Some(axes @ Axes { bits: 3, .. }) => axes_3(self.level, axes, received, scale, out),
            Some(axes) => axes_4(self.level, axes, received, scale, out),
            None => points_soft(self.level, &self.points, received, scale, out),
        }
    }
}

leveled! {
    fn decide_axes(axes: Axes, received: &[Complex32], symbols: &mut [u8]) = decide_axes_body
}

#[inline(always)]
fn decide_axes_body<const FMA: bool>(axes: Axes, received: &[Complex32], symbols: &mut [u8]) {
    let last = ((1 << axes.bits) - 1) as f32;
    let half = 0.5 / axes.unit;
    let gray = |value: f32| {
        // The nearest level; levels are two units apart. `max` returns the other argument for NaN.
        let level = crate::level::fused::<FMA>(value, half, last * 0.5 + 0.5).max(0.0).min(last);
        // SAFETY: the level is a finite number from 0 to 15.
        let level = unsafe { level.to_int_unchecked::<i32>() } as u32;
        level ^ level >> 1
    };
    for (symbols, received) in symbols.chunks_mut(BLOCK).zip(received.chunks(BLOCK)) {
        let values = parts(received);
        let mut decided = [0_u32; BLOCK];
        for at in 0..BLOCK {
            decided[at] = gray(values[0][at]);
        }
        if axes.both {
            for at in 0..BLOCK {
                decided[at] = decided[at] << axes.bits | gray(values[1][at]);
            }
        }
        symbols.iter_mut().zip(decided).for_each(|(symbol, decided)| *symbol = decided as u8);
    }
}

/// The real and the imaginary parts of a block, padded with zeros.
#[inline(always)]
fn parts(received: &[Complex32]) -> [[f32; BLOCK]; 2] {
    let mut parts = [[0.0; BLOCK]; 2];
    if let Some(whole) = received.as_array::<BLOCK>() {
        for at in 0..BLOCK {
            parts[0][at] = whole[at].re;
            parts[1][at] = whole[at].im;
        }
    } else {
        for (at, point) in received.iter().enumerate() {
            (parts[0][at], parts[1][at]) = (point.re, point.im);
        }
    }
    parts
}

leveled! {
    fn decide_points(points: &[Complex32], received: &[Complex32], symbols: &mut [u8]) = decide_points_body
}

#[inline(always)]
fn decide_points_body<const FMA: bool>(points: &[Complex32], received: &[Complex32], symbols: &mut [u8]) {
    let scale = unit_scale(points);
    for (symbols, received) in symbols.chunks_mut(BLOCK).zip(received.chunks(BLOCK)) {
        let (mut best, mut nearest) = ([f32::NEG_INFINITY; BLOCK], [0_u32; BLOCK]);
        for (index, point) in points.iter().enumerate() {
            // The nearest point has the largest `Re(z·p̄) - |p|²/2`. The term `|z|²` is left out:
            // it is the same for all points, and for large `z` it would swamp the other terms.
            let (re, im) = (point.re * scale, point.im * scale);
            let half_square = 0.5 * (re * re + im * im);
            for ((received, best), nearest) in received.iter().zip(&mut best).zip(&mut nearest) {
                let nearness = received.re * scale * re + received.im * scale * im - half_square;
                let closer = nearness > *best;
                *best = if closer { nearness } else { *best };
                *nearest = if closer { index as u32 } else { *nearest };
            }
        }
        symbols.iter_mut().zip(nearest).for_each(|(symbol, nearest)| *symbol = nearest as u8);
    }
}

/// A power of two that scales the largest coordinate to about one. Without it the squares of very
/// small points would underflow.
fn unit_scale(points: &[Complex32]) -> f32 {
    let largest = points.iter().flat_map(|point| [point.re.abs(), point.im.abs()]).fold(0.0, f32::max);
    if largest.is_normal() { f32::exp2(-largest.log2().round()) } else { 1.0 }
}

macro_rules! axes_soft {
    ($name:ident, $body:ident, $bits:literal) => {
        leveled! {
            fn $name(axes: Axes, received: &[Complex32], scale: f32, out: &mut [f32]) = $body
        }

        #[inline(always)]
        fn $body<const FMA: bool>(axes: Axes, received: &[Complex32], scale: f32, out: &mut [f32]) {
            axes_body::<FMA, $bits>(axes, received, scale, out);
        }
    };
}
axes_soft!(axes_1, axes_1_body, 1);
axes_soft!(axes_2, axes_2_body, 2);
axes_soft!(axes_3, axes_3_body, 3);
axes_soft!(axes_4, axes_4_body, 4);

#[inline(always)]
fn axes_body<const FMA: bool, const BITS: usize>(axes: Axes, received: &[Complex32], scale: f32, out: &mut [f32]) {
    if !axes.both {
        for (received, out) in received.chunks(BLOCK).zip(out.chunks_mut(BLOCK * BITS)) {
            soft_block::<FMA, BITS>(axes.unit, scale, &parts(received)[0], out);
        }
        return;
    }
    // The bits of a symbol are those of its real part, then those of its imaginary part, in the
    // order of the parts in memory.
    let (whole, rest) = bytemuck::cast_slice::<Complex32, f32>(received).as_chunks::<BLOCK>();
    let (out, out_rest) = out.split_at_mut(whole.len() * BLOCK * BITS);
    for (values, out) in whole.iter().zip(out.chunks_exact_mut(BLOCK * BITS)) {
        soft_block::<FMA, BITS>(axes.unit, scale, values, out);
    }
    let mut values = [0.0; BLOCK];
    values[..rest.len()].copy_from_slice(rest);
    soft_block::<FMA, BITS>(axes.unit, scale, &values, out_rest);
}

/// The soft bits of a block of values, those of each value together, as many as `out` has room for.
#[inline(always)]
fn soft_block<const FMA: bool, const BITS: usize>(unit: f32, scale: f32, values: &[f32; BLOCK], out: &mut [f32]) {
    let mut soft = [[0.0_f32; BLOCK]; BITS];
    axis_soft::<FMA, BITS>(unit, scale, values, &mut soft);
    let rows = out.as_chunks_mut::<BITS>().0;
    if let Some(rows) = rows.as_mut_array::<BLOCK>() {
        // The compiler turns a loop of constant length into shuffles.
        for at in 0..BLOCK {
            for bit in 0..BITS {
                rows[at][bit] = soft[bit][at];
            }
        }
    } else {
        for (at, own) in rows.iter_mut().enumerate().take(BLOCK) {
            (0..BITS).for_each(|bit| own[bit] = soft[bit][at]);
        }
    }
}

/// The soft bits of values on one axis. The highest bit is the sign of the level; the nearest level
/// on the other side is the innermost one. The lower bits are those of an axis with half as many
/// levels, after folding both sides onto each other.
#[inline(always)]
fn axis_soft<const FMA: bool, const BITS: usize>(
    unit: f32,
    scale: f32,
    values: &[f32; BLOCK],
    soft: &mut [[f32; BLOCK]; BITS],
) {
    let mut folded = *values;
    for (bit, soft) in soft.iter_mut().enumerate() {
        let levels = 1 << (BITS - 1 - bit);
        let mut least = [f32::INFINITY; BLOCK];
        for level in 0..levels {
            // `(|x| - a)² - x²` for the levels on the value's own side.
            let place = unit * (2.0 * level as f32 + 1.0);
            let (slope, offset) = (-2.0 * place, place * place);
            for at in 0..BLOCK {
                let cost = crate::level::fused::<FMA>(slope, folded[at].abs(), offset);
                least[at] = if cost < least[at] { cost } else { least[at] };
            }
        }
        for at in 0..BLOCK {
            let size = folded[at].abs();
            let other = crate::level::fused::<FMA>(2.0 * unit, size, unit * unit);
            // The bit is set for the higher levels.
            soft[at] = ((other - least[at]) * scale).copysign(-folded[at]);
            folded[at] = unit * levels as f32 - size;
        }
    }
}

leveled! {
    fn points_soft(points: &[Complex32], received: &[Complex32], scale: f32, out: &mut [f32]) = points_soft_body
}

#[inline(always)]
fn points_soft_body<const FMA: bool>(points: &[Complex32], received: &[Complex32], scale: f32, out: &mut [f32]) {
    let bits = points.len().ilog2() as usize;
    for (received, out) in received.chunks(BLOCK).zip(out.chunks_mut(BLOCK * bits)) {
        let values = parts(received);
        let mut least = [[[f32::INFINITY; BLOCK]; 2]; 8];
        for (index, point) in points.iter().enumerate() {
            // The squared distances without `|z|²`, which is the same for all points and could
            // swamp the other terms.
            let square = point.re * point.re + point.im * point.im;
            let mut distance = [0.0; BLOCK];
            for at in 0..BLOCK {
                distance[at] = square - 2.0 * (values[0][at] * point.re + values[1][at] * point.im);
            }
            for (bit, least) in least.iter_mut().enumerate().take(bits) {
                let least = &mut least[index >> (bits - 1 - bit) & 1];
                for at in 0..BLOCK {
                    least[at] = if distance[at] < least[at] { distance[at] } else { least[at] };
                }
            }
        }
        for (at, own) in out.chunks_exact_mut(bits).enumerate() {
            own.iter_mut().zip(&least).for_each(|(soft, [zero, one])| *soft = (one[at] - zero[at]) * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The angle decides between points on a circle, at every scale.
    #[test]
    fn points_are_told_apart_at_every_size() {
        for size in [1e-30_f32, 1e-20, 1.0, 1e5, 1e8, 1e12] {
            let points: Vec<Complex32> = (0..8)
                .map(|at| Complex32::from_polar(size.min(1.0), at as f32 * std::f32::consts::FRAC_PI_4))
                .collect();
            let custom = Constellation::custom(&points);
            let modem = Modem::new(Level::best(), &custom.unwrap());
            let received: Vec<Complex32> = (0..80)
                .map(|at| {
                    Complex32::from_polar(
                        size,
                        (at / 10) as f32 * std::f32::consts::FRAC_PI_4 + (at % 10) as f32 * 0.06 - 0.27,
                    )
                })
                .collect();
            let mut symbols = vec![0; received.len()];
            modem.decide(&received, &mut symbols);
            let expected: Vec<u8> = (0..80).map(|at| at / 10).collect();
            assert_eq!(symbols, expected, "size {size}");
        }
    }

    fn all() -> Vec<Constellation> {
        let custom = Constellation::custom(&[
            Complex32::new(1.0, 0.0),
            Complex32::new(0.0, 2.0),
            Complex32::new(-1.0, 0.5),
            Complex32::new(0.0, -1.0),
        ]);
        let mut all = Constellation::ALL.to_vec();
        all.push(custom.unwrap());
        all
    }

    #[test]
    fn what_is_sent_is_decided_hard_and_soft() {
        for constellation in all() {
            for level in Level::all() {
                let modem = Modem::new(level, &constellation);
                let symbols: Vec<u8> = (0..1000).map(|at| (at * 7 % constellation.points().len()) as u8).collect();
                let mut points = vec![Complex32::default(); symbols.len()];
                modem.modulate(&symbols, &mut points).unwrap();
                let mut decided = vec![0; symbols.len()];
                modem.decide(&points, &mut decided);
                assert_eq!(decided, symbols, "{constellation:?}");
                let mut soft = vec![0.0; symbols.len() * modem.bits()];
                modem.likelihoods(&points, 0.1, &mut soft);
                for (symbol, soft) in symbols.iter().zip(soft.chunks(modem.bits())) {
                    let read = soft.iter().fold(0, |bits, value| bits << 1 | u8::from(*value < 0.0));
                    assert_eq!(read, *symbol, "{constellation:?}");
                }
            }
        }
    }

    #[test]
    fn neighbours_differ_in_one_bit_and_the_power_is_one() {
        for constellation in Constellation::ALL {
            let points = constellation.points();
            let power: f32 = points.iter().map(|point| point.norm_sqr()).sum::<f32>() / points.len() as f32;
            assert!((power - 1.0).abs() < 1e-5, "{constellation:?} {power}");
            let distance = |a: usize, b: usize| (points[a] - points[b]).norm();
            let pairs = || (0..points.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
            let least = pairs().map(|(a, b)| distance(a, b)).fold(f32::INFINITY, f32::min);
            for (a, b) in pairs().filter(|(a, b)| distance(*a, *b) < 1.01 * least) {
                assert_eq!((a ^ b).count_ones(), 1, "{constellation:?} {a} {b}");
            }
        }
    }

    #[test]
    fn symbols_without_a_point_and_no_numbers() {
        let modem = Modem::new(Level::best(), &Constellation::Qpsk);
        assert_eq!(modem.modulate(&[0, 3, 4], &mut [Complex32::default(); 3]), Err(2));
        for constellation in all() {
            let modem = Modem::new(Level::best(), &constellation);
            let (nan, infinite) = (f32::NAN, f32::INFINITY);
            let received = [Complex32::new(nan, nan), Complex32::new(infinite, -infinite), Complex32::new(1e30, nan)];
            let mut symbols = [9; 3];
            modem.decide(&received, &mut symbols);
            assert!(symbols.iter().all(|symbol| usize::from(*symbol) < constellation.points().len()));
            modem.likelihoods(&received, 1.0, &mut vec![0.0; 3 * modem.bits()]);
        }
    }
}
