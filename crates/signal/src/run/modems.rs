//! Modulate and Demodulate.

use std::sync::atomic::{AtomicUsize, Ordering};

use num_complex::Complex32;
use panoply_core::op::signal::{Decision, Demodulate, Modulate};
use panoply_core::{DType, Error, Result, Threads, Value};

use super::{Output, TakeMemory, Workspace};
use crate::modem::Modem;
use crate::threads::{for_each_piece, share};

/// Symbols of one turn of a thread, at the least.
const TURN_SYMBOLS_MIN: usize = 8192;

pub(super) fn modulate(
    op: &Modulate,
    space: &mut Workspace,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let input = op.input.contiguous()?;
    let symbols = input.as_slice::<u8>()?;
    let mut output = Output::take(DType::Complex64, *input.shape(), take)?;
    let modem = Modem::new(space.level, &op.constellation);
    let wrong = AtomicUsize::new(usize::MAX);
    let each = share(symbols.len(), threads.count(), TURN_SYMBOLS_MIN);
    for_each_piece(threads, output.complex(), each, &|turn, part| {
        let begin = turn * each;
        if let Err(at) = modem.modulate(&symbols[begin..begin + part.len()], part) {
            wrong.fetch_min(begin + at, Ordering::Relaxed);
        }
    });
    match wrong.into_inner() {
        usize::MAX => output.value(),
        at => {
            let expected = format!("below {}", 1_usize << modem.bits());
            Err(Error::invalid("modulate: symbols", expected, format!("{} at {at}", symbols[at])))
        }
    }
}

pub(super) fn demodulate(
    op: &Demodulate,
    space: &mut Workspace,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let input = op.input.contiguous()?;
    let received = input.as_slice::<Complex32>()?;
    let (dtype, shape) = op.output_type()?;
    let mut output = Output::take(dtype, shape, take)?;
    let modem = Modem::new(space.level, &op.constellation);
    let each = share(received.len(), threads.count(), TURN_SYMBOLS_MIN);
    match op.decision {
        Decision::Hard => for_each_piece(threads, output.bytes(), each, &|turn, part| {
            modem.decide(&received[turn * each..turn * each + part.len()], part);
        }),
        Decision::Soft { noise } => for_each_piece(threads, output.numbers(), each * modem.bits(), &|turn, part| {
            let begin = turn * each;
            modem.likelihoods(&received[begin..begin + part.len() / modem.bits()], noise, part);
        }),
    }
    output.value()
}
