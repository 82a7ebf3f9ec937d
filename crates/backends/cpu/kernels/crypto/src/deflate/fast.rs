//! DEFLATE at its fastest level. A table maps four bytes to the last position that began with them;
//! the better of two matches is taken, and each block has a code of its own.
//!
//! 1. [`parse`](super::parse) cuts a block into records. A record has at most three literals, or a
//!    match with a literal before it. Both halves of the block are parsed in turns and without
//!    branches, so that neither stalls on the other or on a mispredicted branch.
//! 2. [`tally`](super::tally) counts the symbols meanwhile. The block is stored, or coded with the
//!    fixed code or its own, whichever is cheapest.
//! 3. [`emit`](super::emit) writes the block.

use super::emit::Writer;
use super::parse::{Half, parse};
use super::tally::Tally;

/// Length of a block.
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
    /// Compresses into `out`, and returns the length; `None` if `out` is shorter than
    /// [`bound`](super::bound) requires.
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
