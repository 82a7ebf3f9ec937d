//! DEFLATE at its fastest level: each place is looked up in a table of the last place that began with the same four bytes, one of two matches
//! is taken, and each block has a code of its own.
//!
//! 1. [`parse`](super::parse) cuts a block into records, each of at most three literals or of a match with a literal before it. It works on both
//!    halves of the block at once and decides nothing with branches, so that neither waits for the other nor for a wrong guess.
//! 2. [`tally`](super::tally) has counted the symbols meanwhile; what the block would cost stored, with the format's own code and with a code of its own
//!    decides.
//! 3. [`emit`](super::emit) writes it.

use super::emit::Writer;
use super::parse::{Half, parse};
use super::tally::Tally;

/// Blocks are this long.
const BLOCK_BYTES: usize = 2 * super::parse::HALF_BYTES;
/// Shorter blocks are not halved.
const HALVED_BYTES_MIN: usize = 16 << 10;

/// The workspace of one thread.
#[derive(Default)]
pub struct Fast {
    halves: [Half; 2],
    tally: Box<Tally>,
}

impl Fast {
    /// Compresses into `out`, and says how long it became; `None` where there is less room than [`bound`](super::bound) says.
    pub fn compress(&mut self, message: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer::new(message.len(), out)?;
        let bits = super::parse::table_bits(message.len());
        self.halves[0].start(bits);
        let mut begin = 0;
        loop {
            let end = message.len().min(begin + BLOCK_BYTES);
            let middle = if end - begin < HALVED_BYTES_MIN { end } else { begin.midpoint(end) };
            self.tally.clear();
            parse(&mut self.halves, message, [begin, middle, end], bits, &mut self.tally);
            for half in &self.halves {
                half.pieces(message).for_each(|piece| self.tally.count_literals(piece.literals));
            }
            let is_last = end == message.len();
            let pieces = self.halves.iter().flat_map(|half| half.pieces(message));
            writer.block(&mut self.tally, pieces, &message[begin..end], is_last);
            if is_last {
                return Some(writer.finish());
            }
            self.halves.swap(0, 1);
            self.halves[0].go_on(end - middle);
            begin = end;
        }
    }
}
