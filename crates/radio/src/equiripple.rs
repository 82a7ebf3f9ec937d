//! Filters of finite response whose error is equally large everywhere (Parks-McClellan), by Remez'
//! exchange algorithm. A polynomial in the cosine of the frequency is interpolated with errors of
//! alternating sign at the frequencies where its error is largest, until these frequencies no
//! longer change.

use std::f64::consts::PI;

use panoply_core::{Error, Result};

/// The wanted gain between two frequencies, which are fractions of half the sampling rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The first and the last frequency.
    pub edges: (f64, f64),
    /// The wanted gain.
    pub gain: f64,
    /// The weight of errors in this range.
    pub weight: f64,
}

impl Demand {
    /// A demand of this gain between these frequencies, with the weight 1.
    pub const fn new(from: f64, to: f64, gain: f64) -> Demand {
        Demand { edges: (from, to), gain, weight: 1.0 }
    }

    /// Sets the weight of errors.
    pub const fn weight(mut self, weight: f64) -> Demand {
        self.weight = weight;
        self
    }
}

/// The largest number of taps of such a filter. The cost grows with the square of that number, and
/// larger filters exceed the precision of f64.
pub const EQUIRIPPLE_TAPS_MAX: usize = 1024;
/// Number of grid frequencies for each cosine term.
const DENSITY: f64 = 32.0;
const EXCHANGES_MAX: usize = 100;

/// The grid of frequencies.
struct Grid {
    /// The frequency, the gain and the weight at each grid point, as the polynomial in the cosine
    /// needs them.
    points: Vec<(f64, f64, f64)>,
    /// The index after the last point of each band.
    ends: Vec<usize>,
}

/// Designs a symmetric filter with this number of taps that minimises the largest weighted error
/// over all demands. The demands must be in ascending order; the gain between them is arbitrary.
pub fn equiripple(taps: usize, demands: &[Demand]) -> Result<Vec<f64>> {
    check(taps, demands)?;
    let (cosines, is_even) = (taps.div_ceil(2), taps.is_multiple_of(2));
    let grid = Grid::new(cosines, is_even, demands);
    if grid.points.len() < cosines + 1 {
        return Err(Error::invalid("equiripple: demands", "bands wide enough for the taps", format!("{demands:?}")));
    }
    let gain_max = demands.iter().map(|demand| (demand.gain * demand.weight).abs()).fold(0.0, f64::max);
    let last = grid.points.len() - 1;
    let mut extremes: Vec<usize> = (0..=cosines).map(|index| index * last / cosines).collect();
    for _ in 0..EXCHANGES_MAX {
        let polynomial = Polynomial::through(&grid, &extremes);
        let errors: Vec<f64> =
            grid.points.iter().map(|(at, gain, weight)| weight * (gain - polynomial.value((PI * at).cos()))).collect();
        let Some(next) = grid.extremes(&errors, cosines + 1) else { break };
        let largest = next.iter().map(|at| errors[*at].abs()).fold(0.0, f64::max);
        let least = next.iter().map(|at| errors[*at].abs()).fold(f64::INFINITY, f64::min);
        if !largest.is_finite() {
            break;
        }
        // Errors close to the rounding error of the gains cannot be made equal by any exchange.
        let spread = largest - least;
        if next == extremes || spread <= 1e-6 * largest || largest <= gain_max * 1e-9 {
            return Ok(taps_of(&polynomial, taps));
        }
        extremes = next;
    }
    let got = format!("{taps} taps, {demands:?}");
    Err(Error::invalid(
        "equiripple",
        "demands that an exchange settles on; fewer taps, or wider bands between them",
        got,
    ))
}

fn check(taps: usize, demands: &[Demand]) -> Result<()> {
    if !(3..=EQUIRIPPLE_TAPS_MAX).contains(&taps) {
        return Err(Error::invalid("equiripple: taps", format!("3 to {EQUIRIPPLE_TAPS_MAX}"), taps));
    }
    let edges: Vec<f64> = demands.iter().flat_map(|demand| [demand.edges.0, demand.edges.1]).collect();
    let ascend = edges.windows(2).all(|pair| pair[0] < pair[1]) && edges.iter().all(|edge| (0.0..=1.0).contains(edge));
    let fits = |demand: &Demand| demand.gain.is_finite() && demand.weight > 0.0 && demand.weight.is_finite();
    if demands.is_empty() || !ascend || !demands.iter().all(fits) {
        let expected = "ascending shares of half the sampling rate from 0 to 1, finite gains and positive weights";
        return Err(Error::invalid("equiripple: demands", expected, format!("{demands:?}")));
    }
    if taps.is_multiple_of(2) && demands.last().is_some_and(|demand| demand.edges.1 == 1.0 && demand.gain != 0.0) {
        let what = "equiripple: taps of a filter that lets the highest frequency through";
        return Err(Error::invalid(what, "an odd number", taps));
    }
    Ok(())
}

impl Grid {
    fn new(cosines: usize, is_even: bool, demands: &[Demand]) -> Grid {
        let step = 1.0 / (DENSITY * cosines as f64);
        let (mut points, mut ends) = (Vec::new(), Vec::new());
        for demand in demands {
            let (from, to) = demand.edges;
            // A filter with an even number of taps is always zero at the highest frequency, so that
            // frequency is left out.
            let to = if is_even { to.min(1.0 - step) } else { to };
            let count = (((to - from) / step).ceil() as usize).max(1);
            for index in 0..=count {
                let at = from + (to - from) * index as f64 / count as f64;
                // The response of an even number of taps is a polynomial times the cosine of half
                // the frequency.
                let factor = if is_even { (PI * at / 2.0).cos() } else { 1.0 };
                points.push((at, demand.gain / factor, demand.weight * factor));
            }
            ends.push(points.len());
        }
        Grid { points, ends }
    }

    /// The grid points of the `count` largest local errors that alternate in sign. `None` if there
    /// are fewer.
    fn extremes(&self, errors: &[f64], count: usize) -> Option<Vec<usize>> {
        let mut found: Vec<usize> = Vec::new();
        let mut begin = 0;
        for end in &self.ends {
            for at in begin..*end {
                let size = errors[at] * errors[at].signum();
                let towards = |other: usize| errors[other] * errors[at].signum();
                let is_extreme = (at == begin || towards(at - 1) <= size) && (at + 1 == *end || towards(at + 1) < size);
                if !is_extreme {
                    continue;
                }
                match found.last_mut() {
                    // Of neighbours with the same sign, the larger error counts.
                    Some(before) if errors[*before].signum() == errors[at].signum() => {
                        if errors[*before].abs() < errors[at].abs() {
                            *before = at;
                        }
                    }
                    _ => found.push(at),
                }
            }
            begin = *end;
        }
        while found.len() > count {
            let size = |index: usize| errors[found[index]].abs();
            if found.len() == count + 1 {
                // One point too many: drop the smaller of the two ends.
                let smaller = if size(0) < size(found.len() - 1) { 0 } else { found.len() - 1 };
                found.remove(smaller);
            } else {
                // Drop the smallest error and its smaller neighbour, so that the signs still
                // alternate.
                let least = (0..found.len()).min_by(|a, b| size(*a).total_cmp(&size(*b)))?;
                let neighbour = match least {
                    0 => 1,
                    at if at + 1 == found.len() => at - 1,
                    at if size(at - 1) < size(at + 1) => at - 1,
                    at => at + 1,
                };
                found.drain(least.min(neighbour)..=least.max(neighbour));
            }
        }
        (found.len() == count).then_some(found)
    }
}

/// A polynomial in the cosine, given by its values at some points.
struct Polynomial {
    /// The cosine, the value and the barycentric weight of each point.
    points: Vec<(f64, f64, f64)>,
}

impl Polynomial {
    /// The polynomial whose weighted errors at these points have the same size and alternating
    /// signs.
    fn through(grid: &Grid, extremes: &[usize]) -> Polynomial {
        let cosines: Vec<f64> = extremes.iter().map(|at| (PI * grid.points[*at].0).cos()).collect();
        let weight = |index: usize| {
            // Products of hundreds of differences leave the range of f64; their logarithms do not.
            let (mut logarithm, mut sign) = (0.0, 1.0);
            for (_, cosine) in cosines.iter().enumerate().filter(|(other, _)| *other != index) {
                let difference = cosines[index] - cosine;
                logarithm -= difference.abs().ln();
                sign *= difference.signum();
            }
            (logarithm, sign)
        };
        let logarithms: Vec<(f64, f64)> = (0..cosines.len()).map(weight).collect();
        let largest = logarithms.iter().map(|(logarithm, _)| *logarithm).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logarithms.iter().map(|(logarithm, sign)| sign * (logarithm - largest).exp()).collect();
        let (mut top, mut bottom, mut sign) = (0.0, 0.0, 1.0);
        for (weight, at) in weights.iter().zip(extremes) {
            let (_, gain, own) = grid.points[*at];
            top += weight * gain;
            bottom += weight * sign / own;
            sign = -sign;
        }
        let deviation = top / bottom;
        let mut sign = 1.0;
        let points = weights.iter().zip(extremes).zip(&cosines).map(|((weight, at), cosine)| {
            let (_, gain, own) = grid.points[*at];
            let value = gain - sign * deviation / own;
            sign = -sign;
            (*cosine, value, *weight)
        });
        Polynomial { points: points.collect() }
    }

    fn value(&self, cosine: f64) -> f64 {
        let (mut top, mut bottom) = (0.0, 0.0);
        for (at, value, weight) in &self.points {
            let difference = cosine - at;
            if difference.abs() < 1e-15 {
                return *value;
            }
            top += weight * value / difference;
            bottom += weight / difference;
        }
        top / bottom
    }
}

/// The taps of a filter with this response: the inverse transform of its values at `taps`
/// frequencies.
fn taps_of(polynomial: &Polynomial, taps: usize) -> Vec<f64> {
    let (n, middle) = (taps as f64, (taps - 1) as f64 / 2.0);
    let gain = |k: usize| {
        let angle = 2.0 * PI * k as f64 / n;
        let factor = if taps.is_multiple_of(2) { (angle / 2.0).cos() } else { 1.0 };
        polynomial.value(angle.cos()) * factor
    };
    let gains: Vec<f64> = (0..taps.div_ceil(2)).map(gain).collect();
    let tap = |at: usize| {
        let term = |(k, gain): (usize, &f64)| 2.0 * gain * (2.0 * PI * k as f64 * (at as f64 - middle) / n).cos();
        (gains[0] + gains.iter().enumerate().skip(1).map(term).sum::<f64>()) / n
    };
    let half: Vec<f64> = (0..taps.div_ceil(2)).map(tap).collect();
    (0..taps).map(|at| half[at.min(taps - 1 - at)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(taps: &[f64], frequency: f64) -> f64 {
        let middle = (taps.len() - 1) as f64 / 2.0;
        taps.iter().enumerate().map(|(at, tap)| tap * (PI * frequency * (at as f64 - middle)).cos()).sum()
    }

    #[test]
    fn errors_are_equally_large_everywhere() {
        for taps in [5, 30, 31, 64, 101, 128] {
            let demands = [Demand::new(0.0, 0.3, 1.0), Demand::new(0.4, 1.0, 0.0).weight(5.0)];
            let filter = equiripple(taps, &demands).unwrap();
            let largest = |demand: &Demand| {
                let (from, to) = demand.edges;
                let error = |at: usize| (gain(&filter, from + (to - from) * at as f64 / 4000.0) - demand.gain).abs();
                demand.weight * (0..=4000).map(error).fold(0.0, f64::max)
            };
            let (pass, stop) = (largest(&demands[0]), largest(&demands[1]));
            assert!((pass - stop).abs() < 0.03 * pass, "{taps}: {pass} {stop}");
        }
    }

    #[test]
    fn what_cannot_be_designed_is_refused() {
        let low = [Demand::new(0.0, 0.3, 1.0), Demand::new(0.4, 1.0, 0.0)];
        for taps in [0, 2, EQUIRIPPLE_TAPS_MAX + 1] {
            assert!(equiripple(taps, &low).is_err());
        }
        for demands in [
            vec![],
            vec![Demand::new(0.3, 0.2, 1.0)],
            vec![Demand::new(0.0, 0.3, f64::NAN)],
            vec![Demand::new(0.0, 0.5, 1.0), Demand::new(0.4, 1.0, 0.0)],
            vec![Demand::new(0.0, 1.5, 1.0)],
            vec![Demand::new(0.0, 0.5, 1.0).weight(0.0)],
        ] {
            assert!(equiripple(21, &demands).is_err(), "{demands:?}");
        }
        assert!(equiripple(20, &[Demand::new(0.0, 0.5, 0.0), Demand::new(0.6, 1.0, 1.0)]).is_err());
    }
}
