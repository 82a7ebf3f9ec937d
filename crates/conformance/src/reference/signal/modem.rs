//! Modulate and Demodulate: the distance to every point, in f64.

use panoply_core::op::signal::{Constellation, Decision, Demodulate, Modulate};
use panoply_core::{Complex64, DType, Error, Result, Tensor, Value};

use crate::values::tensor_of;

pub(super) fn modulate(op: &Modulate) -> Result<Value> {
    let (input, points) = (op.input.contiguous()?, op.constellation.points());
    let symbols = input.as_slice::<u8>()?;
    if let Some(at) = symbols.iter().position(|symbol| usize::from(*symbol) >= points.len()) {
        let expected = format!("below {}", points.len());
        return Err(Error::invalid("modulate: symbols", expected, format!("{} at {at}", symbols[at])));
    }
    let sent: Vec<Complex64> = symbols.iter().map(|symbol| points[usize::from(*symbol)]).collect();
    Tensor::from_vec(sent, *op.input.shape()).map(Value::Tensor)
}

pub(super) fn demodulate(op: &Demodulate) -> Result<Value> {
    let (input, points) = (op.input.contiguous()?, op.constellation.points());
    let received = input.as_slice::<Complex64>()?;
    let (_, shape) = op.output_type()?;
    Ok(Value::Tensor(match op.decision {
        Decision::Hard => {
            let symbols: Vec<u8> = received.iter().map(|point| nearest(&points, *point)).collect();
            Tensor::from_vec(symbols, shape)?
        }
        Decision::Soft { noise } => {
            let soft: Vec<f64> =
                received.iter().flat_map(|point| likelihoods(&op.constellation, &points, *point, noise)).collect();
            tensor_of(DType::F32, &shape, &soft)
        }
    }))
}

fn distance(a: Complex64, b: Complex64) -> f64 {
    (f64::from(a.re) - f64::from(b.re)).powi(2) + (f64::from(a.im) - f64::from(b.im)).powi(2)
}

fn nearest(points: &[Complex64], received: Complex64) -> u8 {
    let closer = |best: usize, symbol: usize| {
        if distance(points[symbol], received) < distance(points[best], received) { symbol } else { best }
    };
    (0..points.len()).fold(0, closer) as u8
}

fn likelihoods(constellation: &Constellation, points: &[Complex64], received: Complex64, noise: f32) -> Vec<f64> {
    let bits = constellation.bits();
    let least = |bit: usize, value: usize| {
        (0..points.len())
            .filter(|symbol| symbol >> bit & 1 == value)
            .map(|symbol| distance(points[symbol], received))
            .fold(f64::INFINITY, f64::min)
    };
    (0..bits).rev().map(|bit| (least(bit, 1) - least(bit, 0)) / f64::from(noise)).collect()
}
