//! The activations of recurrent cells, computed on many units at a time.

use crate::product::Level;

/// A kind of cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gates {
    /// Input, output, forget and cell; sigmoid and tanh.
    Lstm,
    /// Update, reset and hidden, the reset after the product; sigmoid and tanh.
    Gru,
    /// One gate; tanh.
    Tanh,
    /// One gate; the larger of the sum and 0.
    Relu,
}

impl Gates {
    /// Number of sums for each unit.
    pub fn count(self) -> usize {
        match self {
            Gates::Lstm => 4,
            Gates::Gru => 3,
            Gates::Tanh | Gates::Relu => 1,
        }
    }
}

/// The sums of one row: those of the input and those of the state. Each is stored gate by gate,
/// with its stride between gates.
pub(crate) struct Sums<'a> {
    pub(crate) input: (&'a [f32], usize),
    pub(crate) state: (&'a [f32], usize),
}

/// One step of a row. Updates `hidden` and, for an LSTM, `cells`.
pub(crate) fn step(level: Level, gates: Gates, sums: &Sums<'_>, hidden: &mut [f32], cells: &mut [f32]) {
    let _ = level;
    #[cfg(target_arch = "x86_64")]
    match level {
        // SAFETY: the level was detected, so the CPU has the instructions.
        Level::Avx512 => return unsafe { avx512(gates, sums, hidden, cells) },
        // SAFETY: as above.
        Level::Avx2 => return unsafe { avx2(gates, sums, hidden, cells) },
        Level::Plain => {}
    }
    plain::<false>(gates, sums, hidden, cells);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
fn avx512(gates: Gates, sums: &Sums<'_>, hidden: &mut [f32], cells: &mut [f32]) {
    plain::<true>(gates, sums, hidden, cells);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(gates: Gates, sums: &Sums<'_>, hidden: &mut [f32], cells: &mut [f32]) {
    plain::<true>(gates, sums, hidden, cells);
}

/// Number of units computed at a time.
const BLOCK: usize = 16;
type GateBlock = [f32; BLOCK];

#[inline(always)]
fn plain<const FUSED: bool>(gates: Gates, sums: &Sums<'_>, hidden: &mut [f32], cells: &mut [f32]) {
    let (input, state) = (sums.input, sums.state);
    for (number, h) in hidden.chunks_mut(BLOCK).enumerate() {
        let (start, len) = (number * BLOCK, h.len());
        let block = |(of, stride): (&[f32], usize), gate: usize| block_of(&of[gate * stride + start..][..len]);
        let sum = |gate: usize| add(&block(input, gate), &block(state, gate));
        let made = match gates {
            Gates::Lstm => {
                let old = block((&cells[..], 0), 0);
                let (made, kept) = lstm::<FUSED>([sum(0), sum(1), sum(2), sum(3)], &old);
                cells[start..][..len].copy_from_slice(&kept[..len]);
                made
            }
            Gates::Gru => gru::<FUSED>([sum(0), sum(1)], &block(input, 2), &block(state, 2), &block_of(h)),
            Gates::Tanh => each(&sum(0), tanh::<FUSED>),
            Gates::Relu => each(&sum(0), |x| if x < 0.0 { 0.0 } else { x }),
        };
        h.copy_from_slice(&made[..len]);
    }
}

/// A block of numbers, padded with zeros.
#[inline(always)]
fn block_of(part: &[f32]) -> GateBlock {
    match <&GateBlock>::try_from(part) {
        Ok(whole) => *whole,
        Err(_) => std::array::from_fn(|at| part.get(at).copied().unwrap_or(0.0)),
    }
}

#[inline(always)]
fn each(x: &GateBlock, function: impl Fn(f32) -> f32) -> GateBlock {
    let mut made = *x;
    for value in &mut made {
        *value = function(*value);
    }
    made
}

#[inline(always)]
fn add(a: &GateBlock, b: &GateBlock) -> GateBlock {
    let mut made = *a;
    for (value, other) in made.iter_mut().zip(b) {
        *value += other;
    }
    made
}

/// The new hidden units and cells.
#[inline(always)]
fn lstm<const FUSED: bool>([input, output, forget, cell]: [GateBlock; 4], old: &GateBlock) -> (GateBlock, GateBlock) {
    let (mut hidden, mut cells) = ([0.0; BLOCK], [0.0; BLOCK]);
    for unit in 0..BLOCK {
        let kept = sigmoid::<FUSED>(forget[unit]) * old[unit];
        cells[unit] = kept + sigmoid::<FUSED>(input[unit]) * tanh::<FUSED>(cell[unit]);
        hidden[unit] = sigmoid::<FUSED>(output[unit]) * tanh::<FUSED>(cells[unit]);
    }
    (hidden, cells)
}

#[inline(always)]
fn gru<const FUSED: bool>(
    [update, reset]: [GateBlock; 2],
    input: &GateBlock,
    state: &GateBlock,
    old: &GateBlock,
) -> GateBlock {
    let mut hidden = [0.0; BLOCK];
    for unit in 0..BLOCK {
        let kept = sigmoid::<FUSED>(update[unit]);
        let new = tanh::<FUSED>(input[unit] + sigmoid::<FUSED>(reset[unit]) * state[unit]);
        hidden[unit] = (1.0 - kept) * new + kept * old[unit];
    }
    hidden
}

#[inline(always)]
fn plus_product<const FUSED: bool>(x: f32, y: f32, z: f32) -> f32 {
    if FUSED { x.mul_add(y, z) } else { x * y + z }
}

/// The exponential function on [-87, 88]. Arguments outside are clamped.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    /// Adding this constant rounds to an integer, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// The natural logarithm of two, split in two parts. The first has so few bits that its
    /// products with integers are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let whole = plus_product::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let power = f32::from_bits(whole.to_bits().wrapping_add(127) << 23);
    let whole = whole - ROUND;
    let rest = plus_product::<FUSED>(whole, -LN_2_LOW, plus_product::<FUSED>(whole, -LN_2_HIGH, x));
    let mut sum = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = plus_product::<FUSED>(sum, rest, factor);
    }
    sum * power
}

#[inline(always)]
fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    let made = 1.0 / (1.0 + exp::<FUSED>(-x));
    if x.is_nan() { x } else { made }
}

#[inline(always)]
fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let large = 1.0 - 2.0 / (1.0 + exp::<FUSED>(2.0 * x));
    // Near zero the difference would lose bits of `x`, so the first terms of the series are used.
    let square = x * x;
    let mut sum = -1382.0 / 155_925.0;
    for factor in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        sum = plus_product::<FUSED>(sum, square, factor);
    }
    let small = plus_product::<FUSED>(sum * square, x, x);
    let made = if x.abs() < 0.3 { small } else { large };
    if x.is_nan() { x } else { made }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::levels;

    fn numbers() -> Vec<f32> {
        let mut numbers: Vec<f32> = (-4000..=4000).map(|step| step as f32 * 0.005).collect();
        numbers.extend([0.0, -0.0, 1e-30, -1e-30, 1e-5, 0.29999, 0.3, 60.0, -60.0, 1e4, -1e4]);
        numbers.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN]);
        numbers
    }

    /// The outputs of a cell with one gate.
    fn of(level: Level, gates: Gates, x: &[f32]) -> Vec<f32> {
        let (zeros, mut hidden) = (vec![0.0; x.len()], vec![0.5; x.len()]);
        step(level, gates, &Sums { input: (x, x.len()), state: (&zeros, x.len()) }, &mut hidden, &mut []);
        hidden
    }

    #[test]
    fn functions_are_those_of_the_library() {
        let near = |got: f32, expected: f64, what: &str| {
            let off = (f64::from(got) - expected).abs();
            assert!(off <= 6e-7 * expected.abs() + 1e-30, "{what}: {got:e} for {expected:e}");
        };
        for level in levels() {
            let x = numbers();
            for (x, got) in x.iter().zip(of(level, Gates::Tanh, &x)) {
                near(got, f64::from(*x).tanh(), &format!("{level:?} tanh {x:e}"));
            }
            for (x, got) in x.iter().zip(of(level, Gates::Relu, &x)) {
                assert_eq!(got, x.max(0.0), "{level:?} relu {x:e}");
            }
            assert!(of(level, Gates::Tanh, &[f32::NAN; 17]).iter().all(|value| value.is_nan()), "{level:?}");
        }
    }

    #[test]
    fn cells_do_what_their_equations_say() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        for (level, units) in levels().flat_map(|level| [1, 15, 16, 37].map(|units| (level, units))) {
            let number = |seed: usize| ((seed * 7919 % 1013) as f32 - 506.0) / 90.0;
            let numbers = |seed: usize| (0..4 * units).map(|at| number(at + seed)).collect::<Vec<f32>>();
            let (input, state, old) = (numbers(5), numbers(300), numbers(900));
            let (mut hidden, mut cells) = (old[..units].to_vec(), old[units..2 * units].to_vec());
            let sums = Sums { input: (&input, units), state: (&state, units) };
            step(level, Gates::Lstm, &sums, &mut hidden, &mut cells);
            for unit in 0..units {
                let sum = |gate: usize| input[gate * units + unit] + state[gate * units + unit];
                let cell = sigmoid(sum(2)) * f64::from(old[units + unit]) + sigmoid(sum(0)) * f64::from(sum(3)).tanh();
                assert!((f64::from(cells[unit]) - cell).abs() < 1e-5, "{level:?} {unit}");
                assert!((f64::from(hidden[unit]) - sigmoid(sum(1)) * cell.tanh()).abs() < 1e-5, "{level:?} {unit}");
            }
            let mut hidden = old[..units].to_vec();
            step(level, Gates::Gru, &sums, &mut hidden, &mut []);
            for unit in 0..units {
                let at = |gate: usize| gate * units + unit;
                let [kept, reset] = [0, 1].map(|gate| sigmoid(input[at(gate)] + state[at(gate)]));
                let new = (f64::from(input[at(2)]) + reset * f64::from(state[at(2)])).tanh();
                let expected = (1.0 - kept) * new + kept * f64::from(old[unit]);
                assert!((f64::from(hidden[unit]) - expected).abs() < 1e-5, "{level:?} {unit}");
            }
        }
    }
}
