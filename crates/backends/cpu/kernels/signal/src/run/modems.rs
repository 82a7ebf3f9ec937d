//! The ops `Modulate` and `Demodulate`.

use std::sync::atomic::{AtomicUsize, Ordering};

use num_complex::Complex32;
use panoply_core::op::signal::{Decision, Demodulate, Modulate};
use panoply_core::{DType, Error, Result, Threads, Value};

use super::output::{Output, TakeMemory};
use super::space::Space;
use crate::modem::Modem;
use crate::streaming::{self, Stream};
use crate::threads::{for_each_piece, share};

/// Number of symbols in a tile, whose soft bits fit into the level-1 cache.
const TILE_SYMBOLS: usize = 256;
/// The least number of symbols in one turn of a thread.
const TURN_SYMBOLS_MIN: usize = 8192;

pub(super) fn modulate(op: &Modulate, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
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
    space: &mut Space,
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
        Decision::Soft { noise } => {
            // An output larger than the caches is written past them.
            let streams = size_of_val(output.numbers()) >= streaming::bytes_min();
            for_each_piece(threads, output.numbers(), each * modem.bits(), &|turn, part| {
                let begin = turn * each;
                let own = &received[begin..begin + part.len() / modem.bits()];
                match streams {
                    true => past_caches(&modem, own, noise, part),
                    false => modem.likelihoods(own, noise, part),
                }
            });
        }
    }
    output.value()
}

/// Computes soft bits in tiles, and copies each tile to memory past the caches.
fn past_caches(modem: &Modem, received: &[Complex32], noise: f32, soft: &mut [f32]) {
    let (mut tile, mut stream) = ([0.0; 8 * TILE_SYMBOLS], Stream::new());
    for (received, soft) in received.chunks(TILE_SYMBOLS).zip(soft.chunks_mut(TILE_SYMBOLS * modem.bits())) {
        let tile = &mut tile[..soft.len()];
        modem.likelihoods(received, noise, tile);
        stream.copy(tile, soft);
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::op::signal::Constellation;

    use super::*;
    use crate::level::Level;

    #[test]
    fn soft_bits_are_the_same_past_the_caches() {
        let received: Vec<Complex32> =
            (0..1003).map(|at| Complex32::new((at as f32 * 0.37).sin(), (at as f32 * 0.11).cos())).collect();
        for constellation in Constellation::ALL {
            let modem = Modem::new(Level::best(), &constellation);
            let (mut near, mut past) =
                (vec![0.0; received.len() * modem.bits()], vec![1.0; received.len() * modem.bits()]);
            modem.likelihoods(&received, 0.3, &mut near);
            past_caches(&modem, &received, 0.3, &mut past);
            assert_eq!(near, past, "{constellation:?}");
        }
    }
}
