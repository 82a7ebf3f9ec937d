//! `RNN`, `GRU` and `LSTM`, in f32 (f64 for models in f64). The form for graphs, with constant
//! weights and the default activations, is in `panoply-cpu-recurrent`.

pub(crate) use panoply_cpu_recurrent::{Gates, Layer, RunInputs, RunOutputs};

use super::call::Call;
use crate::array::{Array, host_count};
use crate::bounds::work;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// A number type that cells compute in.
trait Real:
    Copy + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + std::ops::Sub<Output = Self> + PartialOrd
{
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sigmoid(self) -> Self;
    fn tanh(self) -> Self;
}

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn sigmoid(self) -> Self {
                1.0 / (1.0 + (-self).exp())
            }
            fn tanh(self) -> Self {
                <$type>::tanh(self)
            }
        }
    };
}
real!(f32);
real!(f64);

/// An activation function of a gate or a cell.
#[derive(Clone, Copy)]
enum Function {
    Sigmoid,
    Tanh,
    Relu,
    Other(fn(f64, f64, f64) -> f64, f64, f64),
}

/// The parameters of the functions: each function takes as many as it has.
type Parameters<'a> = std::iter::Copied<std::slice::Iter<'a, f32>>;

impl Function {
    fn new(name: &str, alphas: &mut Parameters<'_>, betas: &mut Parameters<'_>) -> Result<Function> {
        let takes = match name.to_ascii_lowercase().as_str() {
            "affine" | "scaledtanh" | "hardsigmoid" => 2,
            "leakyrelu" | "thresholdedrelu" | "elu" => 1,
            _ => 0,
        };
        let alpha = if takes > 0 { alphas.next().map(f64::from) } else { None };
        let beta = if takes > 1 { betas.next().map(f64::from) } else { None };
        let other = |function, default_alpha, default_beta| {
            Function::Other(function, alpha.unwrap_or(default_alpha), beta.unwrap_or(default_beta))
        };
        Ok(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => Function::Sigmoid,
            "tanh" => Function::Tanh,
            "relu" => Function::Relu,
            "affine" => other(|x, a, b| a * x + b, 1.0, 0.0),
            "leakyrelu" => other(|x, a, _| if x < 0.0 { a * x } else { x }, 0.01, 0.0),
            "thresholdedrelu" => other(|x, a, _| if x > a { x } else { 0.0 }, 1.0, 0.0),
            "scaledtanh" => other(|x, a, b| a * (b * x).tanh(), 1.0, 1.0),
            "hardsigmoid" => other(|x, a, b| (a * x + b).clamp(0.0, 1.0), 0.2, 0.5),
            "elu" => other(|x, a, _| if x < 0.0 { a * x.exp_m1() } else { x }, 1.0, 0.0),
            "softsign" => other(|x, _, _| x / (1.0 + x.abs()), 0.0, 0.0),
            "softplus" => other(|x, _, _| x.exp().ln_1p(), 0.0, 0.0),
            other => return Err(Error::unsupported(format!("the activation {other}"))),
        })
    }

    fn of<T: Real>(self, x: T) -> T {
        match self {
            Function::Sigmoid => x.sigmoid(),
            Function::Tanh => x.tanh(),
            Function::Relu if x < T::from_f64(0.0) => T::from_f64(0.0),
            Function::Relu => x,
            Function::Other(function, alpha, beta) => T::from_f64(function(x.to_f64(), alpha, beta)),
        }
    }
}

/// The sizes and settings of a cell.
struct Cell {
    gates: usize,
    hidden: usize,
    input: usize,
    batch: usize,
    steps: usize,
    functions: [Function; 3],
    clip: Option<f64>,
    linear_before_reset: bool,
    /// Whether the forget gate is one minus the input gate.
    is_coupled: bool,
    /// Number of steps of each row of the batch.
    lengths: Vec<usize>,
}

/// The weights of one direction: of the input and of the state, biases of both, peepholes.
struct Weights<'a, T> {
    w: &'a [T],
    r: &'a [T],
    bias: Vec<T>,
    state_bias: Vec<T>,
    peepholes: Option<&'a [T]>,
}

pub(crate) fn recurrent(call: &Call<'_>) -> Result<Vec<Value>> {
    match call.array(0)?.kind() {
        ElementType::F64 => run::<f64>(call),
        kind if kind.is_float() => run::<f32>(call),
        kind => Err(Error::invalid(call.op().to_owned(), "floats", kind)),
    }
}

fn numbers<T: Real>(array: &Array) -> Result<Vec<T>> {
    Ok(array.to_floats()?.into_iter().map(T::from_f64).collect())
}

fn optional<T: Real>(call: &Call<'_>, place: usize, len: usize) -> Result<Option<Vec<T>>> {
    let Some(array) = call.optional(place)? else { return Ok(None) };
    match array.len() == len {
        true => numbers(array).map(Some),
        false => Err(Error::invalid(format!("operand {place}"), format!("{len} elements"), array.len())),
    }
}

/// Checks that the `hidden_size` attribute, if given, matches the weights.
pub(crate) fn check_hidden_size(call: &Call<'_>, hidden: usize) -> Result<()> {
    let claimed = call.int("hidden_size", hidden as i64)?;
    match usize::try_from(claimed) == Ok(hidden) {
        true => Ok(()),
        false => Err(Error::invalid("hidden_size", format!("{hidden}, as the weights have it"), claimed)),
    }
}

fn cell(call: &Call<'_>, direction: usize) -> Result<(Cell, usize)> {
    let gates = match call.op() {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let (x, w, r) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let ([a, b, input], [directions, rows, width], [_, _, hidden]) = (x.dims(), w.dims(), r.dims()) else {
        return Err(Error::invalid(call.op().to_owned(), "operands of three dimensions", format!("{x:?}")));
    };
    let (steps, batch) = if call.flag("layout", false)? { (*b, *a) } else { (*a, *b) };
    let expected = [*directions, gates * hidden, *hidden];
    if *rows != gates * hidden || width != input || r.dims() != expected {
        return Err(Error::invalid("weights", format!("{} by {input}", gates * hidden), format!("{w:?}")));
    }
    check_hidden_size(call, *hidden)?;
    let wanted = match call.text("direction", "forward")? {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        other => return Err(Error::invalid("direction", "forward, reverse or bidirectional", other)),
    };
    if *directions != wanted {
        return Err(Error::invalid("weights", format!("{wanted} directions"), directions));
    }
    let defaults: &[&str] = match call.op() {
        "LSTM" => &["Sigmoid", "Tanh", "Tanh"],
        "GRU" => &["Sigmoid", "Tanh"],
        _ => &["Tanh"],
    };
    let names = call.texts("activations")?;
    let mut alphas = call.floats("activation_alpha")?.unwrap_or_default().iter().copied();
    let mut betas = call.floats("activation_beta")?.unwrap_or_default().iter().copied();
    let mut functions = [Function::Tanh; 3];
    // The functions of the preceding direction take their parameters first.
    for at in 0..(direction + 1) * defaults.len() {
        let default = defaults[at % defaults.len()];
        let name = names.and_then(|names| names.get(at)).map_or(default, String::as_str);
        functions[at % defaults.len()] = Function::new(name, &mut alphas, &mut betas)?;
    }
    host_count(&[steps.max(1), batch])?;
    let lengths = match call.optional_ints(4)? {
        Some(lengths) if lengths.len() == batch && lengths.iter().all(|len| (0..=steps as i64).contains(len)) => {
            lengths.iter().map(|len| *len as usize).collect()
        }
        Some(lengths) => return Err(Error::invalid("sequence_lens", "a length for each row", format!("{lengths:?}"))),
        None => vec![steps; batch],
    };
    let clip = call.node.attributes.contains_key("clip").then(|| call.float("clip", 0.0)).transpose()?;
    let linear_before_reset = call.flag("linear_before_reset", false)?;
    let is_coupled = call.op() == "LSTM" && call.flag("input_forget", false)?;
    let (input, hidden) = (*input, *hidden);
    Ok((Cell { gates, hidden, input, batch, steps, functions, clip, linear_before_reset, is_coupled, lengths }, wanted))
}

fn run<T: Real>(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (_, directions) = cell(call, 0)?;
    let batch_first = call.flag("layout", false)?;
    let turned = |array: &Array| super::index::transpose(array, &[1, 0, 2]);
    let xs: Vec<T> = numbers(&if batch_first { turned(x)? } else { x.clone() })?;
    let (w, r) = (numbers::<T>(call.array(1)?)?, numbers::<T>(call.array(2)?)?);
    let (first, _) = cell(call, 0)?;
    let (hidden, batch, steps, gates) = (first.hidden, first.batch, first.steps, first.gates);
    let b = optional::<T>(call, 3, directions * 2 * gates * hidden)?;
    let state = |place| match call.optional(place)? {
        Some(array) if batch_first => match array.dims() == [batch, directions, hidden] {
            true => numbers(&turned(array)?).map(Some),
            false => {
                let expected = format!("[{batch}, {directions}, {hidden}]");
                Err(Error::invalid(format!("operand {place}"), expected, format!("{array:?}")))
            }
        },
        _ => optional::<T>(call, place, directions * batch * hidden),
    };
    let (h0, c0) = (state(5)?, if call.op() == "LSTM" { state(6)? } else { None });
    let peepholes = if call.op() == "LSTM" { optional::<T>(call, 7, directions * 3 * hidden)? } else { None };
    let zero = T::from_f64(0.0);
    let mut all = vec![zero; host_count(&[steps, directions, batch, hidden])?];
    work(&[steps, batch, directions, gates * hidden, hidden + first.input])?;
    let (mut last, mut cells) = (Vec::new(), Vec::new());
    for direction in 0..directions {
        let (cell, _) = cell(call, direction)?;
        let reversed = direction == 1 || call.text("direction", "forward")? == "reverse";
        let part = |values: &Option<Vec<T>>| match values {
            Some(values) => values[direction * batch * hidden..][..batch * hidden].to_vec(),
            None => vec![zero; batch * hidden],
        };
        let (rows, size) = (gates * hidden, gates * hidden * cell.input);
        let biases = b.as_ref().map(|b| &b[direction * 2 * rows..][..2 * rows]);
        let weights = Weights {
            w: &w[direction * size..][..size],
            r: &r[direction * rows * hidden..][..rows * hidden],
            bias: biases.map_or(vec![zero; rows], |b| b[..rows].to_vec()),
            state_bias: biases.map_or(vec![zero; rows], |b| b[rows..].to_vec()),
            peepholes: peepholes.as_ref().map(|p| &p[direction * 3 * hidden..][..3 * hidden]),
        };
        let (mut h, mut c) = (part(&h0), part(&c0));
        let mut write = |step: usize, row: usize, values: &[T]| {
            all[((step * directions + direction) * batch + row) * hidden..][..hidden].copy_from_slice(values);
        };
        one_direction(&cell, &weights, &xs, (&mut h, &mut c), reversed, &mut write);
        last.extend(h);
        cells.extend(c);
    }
    outputs(call, x.kind(), [steps, directions, batch, hidden], [&all, &last, &cells])
}

fn outputs<T: Real>(
    call: &Call<'_>,
    kind: ElementType,
    [s, d, b, h]: [usize; 4],
    parts: [&[T]; 3],
) -> Result<Vec<Value>> {
    let array = |values: &[T], dims: &[usize]| {
        Array::from_floats(kind, dims, &values.iter().map(|value| value.to_f64()).collect::<Vec<_>>())
    };
    let mut made = vec![array(parts[0], &[s, d, b, h])?, array(parts[1], &[d, b, h])?];
    if call.op() == "LSTM" {
        made.push(array(parts[2], &[d, b, h])?);
    }
    if call.flag("layout", false)? {
        made[0] = super::index::transpose(&made[0], &[2, 0, 1, 3])?;
        for state in &mut made[1..] {
            *state = super::index::transpose(state, &[1, 0, 2])?;
        }
    }
    Ok(made.into_iter().map(Value::Array).collect())
}

/// The dot product, with eight partial sums.
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::from_f64(0.0); 8];
    let (a_blocks, b_blocks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest =
        a_blocks.remainder().iter().zip(b_blocks.remainder()).fold(T::from_f64(0.0), |sum, (a, b)| sum + *a * *b);
    for (a, b) in a_blocks.zip(b_blocks) {
        for lane in 0..8 {
            sums[lane] = sums[lane] + a[lane] * b[lane];
        }
    }
    sums.into_iter().fold(rest, |sum, part| sum + part)
}

fn one_direction<T: Real>(
    cell: &Cell,
    weights: &Weights<'_, T>,
    xs: &[T],
    (h, c): (&mut [T], &mut [T]),
    reversed: bool,
    write: &mut dyn FnMut(usize, usize, &[T]),
) {
    let Cell { hidden, input, batch, gates, .. } = *cell;
    let mut sums = vec![T::from_f64(0.0); gates * hidden];
    let mut states = vec![T::from_f64(0.0); gates * hidden];
    for row in 0..batch {
        let len = cell.lengths[row];
        for at in 0..len {
            let step = if reversed { len - 1 - at } else { at };
            let x = &xs[(step * batch + row) * input..][..input];
            let h = &mut h[row * hidden..][..hidden];
            let c = &mut c[row * hidden..][..hidden];
            for (gate, sum) in sums.iter_mut().enumerate() {
                *sum = dot(x, &weights.w[gate * input..][..input]) + weights.bias[gate];
            }
            for (gate, state) in states.iter_mut().enumerate() {
                *state = dot(h, &weights.r[gate * hidden..][..hidden]) + weights.state_bias[gate];
            }
            match gates {
                4 => lstm(cell, weights, &sums, &states, h, c),
                3 => gru(cell, weights, &sums, &states, h),
                _ => (0..hidden)
                    .for_each(|unit| h[unit] = cell.functions[0].of(clipped(cell, sums[unit] + states[unit]))),
            }
            write(step, row, h);
        }
    }
}

fn clipped<T: Real>(cell: &Cell, value: T) -> T {
    match cell.clip {
        Some(clip) if value > T::from_f64(clip) => T::from_f64(clip),
        Some(clip) if value < T::from_f64(-clip) => T::from_f64(-clip),
        _ => value,
    }
}

/// Gates in the order input, output, forget, cell.
fn lstm<T: Real>(cell: &Cell, weights: &Weights<'_, T>, sums: &[T], states: &[T], h: &mut [T], c: &mut [T]) {
    let hidden = cell.hidden;
    let [f, g, last] = cell.functions;
    for unit in 0..hidden {
        let gate = |place: usize, of: T| {
            let peep = weights.peepholes.map(|p| p[place * hidden + unit] * of);
            let sum = sums[place * hidden + unit] + states[place * hidden + unit];
            clipped(cell, peep.map_or(sum, |peep| sum + peep))
        };
        let old = c[unit];
        let input = f.of(gate(0, old));
        let forget = if cell.is_coupled { T::from_f64(1.0) - input } else { f.of(gate(2, old)) };
        let candidate = g.of(clipped(cell, sums[3 * hidden + unit] + states[3 * hidden + unit]));
        let new = forget * old + input * candidate;
        let output = f.of(gate(1, new));
        c[unit] = new;
        h[unit] = output * last.of(new);
    }
}

/// Gates in the order update, reset, hidden.
fn gru<T: Real>(cell: &Cell, weights: &Weights<'_, T>, sums: &[T], states: &[T], h: &mut [T]) {
    let hidden = cell.hidden;
    let [f, g, _] = cell.functions;
    let gate =
        |place: usize, unit: usize| f.of(clipped(cell, sums[place * hidden + unit] + states[place * hidden + unit]));
    let resets: Vec<T> = (0..hidden).map(|unit| gate(1, unit)).collect();
    let candidates: Vec<T> = if cell.linear_before_reset {
        (0..hidden).map(|unit| resets[unit] * states[2 * hidden + unit]).collect()
    } else {
        let reset: Vec<T> = h.iter().zip(&resets).map(|(h, reset)| *h * *reset).collect();
        let row = |unit: usize| &weights.r[(2 * hidden + unit) * hidden..][..hidden];
        (0..hidden).map(|unit| dot(&reset, row(unit)) + weights.state_bias[2 * hidden + unit]).collect()
    };
    for unit in 0..hidden {
        let update = gate(0, unit);
        let candidate = g.of(clipped(cell, sums[2 * hidden + unit] + candidates[unit]));
        h[unit] = (T::from_f64(1.0) - update) * candidate + update * h[unit];
    }
}
