//! Writes a block: stored, with the fixed code, or with a code of its own, whichever is shortest.

use super::bits::Bits;
use super::code::codes_of;
use super::header::Header;
use super::tally::{Indices, LENGTHS, LITERALS, SLOTS, SYMBOLS, THIRD, Tally, TallyPiece, length_base};

#[cfg(target_arch = "x86_64")]
mod wide;

const STORED_BYTES_MAX: usize = 65_535;
/// Bits that a compressed block must save; so no block is longer than a stored one, at any bit
/// offset.
const SAVED_BITS_MIN: u64 = 10;

/// Writes blocks one after the other.
pub struct Writer<'a> {
    out: &'a mut [u8],
    bits: Bits,
}

/// A code, with its length in the lowest eight bits. Shifts by an entry use only its lowest bits.
type CodeEntry = u32;

/// Codes, indexed as in records.
#[repr(align(64))]
pub struct Entries {
    pub literals: [CodeEntry; LITERALS],
    /// Including the extra bits behind the code; also the codes of third literals.
    pub lengths: [CodeEntry; LENGTHS],
    pub slots: [CodeEntry; SLOTS],
    end: CodeEntry,
}

impl<'a> Writer<'a> {
    /// Writes the compressed form of a message of `len` bytes; `None` if `out` is too short.
    pub fn new(len: usize, out: &'a mut [u8]) -> Option<Writer<'a>> {
        let bits = Bits::new(out.as_mut_ptr(), 0, 0);
        // A block takes at most five additional bytes, and a write eight.
        (out.len() >= super::bound(len)).then_some(Writer { out, bits })
    }

    /// Returns the number of bytes written.
    pub fn finish(self) -> usize {
        let (place, _, count) = self.bits.state();
        place.addr() - self.out.as_ptr().addr() + usize::from(count > 0)
    }

    /// Writes a block of `message`, which was cut into `pieces`.
    pub fn block<'p>(
        &mut self,
        tally: &mut Tally,
        pieces: impl Iterator<Item = TallyPiece<'p>>,
        message: &[u8],
        is_last: bool,
    ) {
        tally.sum_up();
        let lengths = (0..29).map(|symbol| u64::from(tally.symbols[257 + symbol]) * u64::from(length_base(symbol).1));
        let slots = (2..SLOTS).map(|slot| u64::from(tally.slots[slot]) * (slot as u64 / 2 - 1));
        let more = 3 + lengths.sum::<u64>() + slots.sum::<u64>();
        let (own, fixed) = (Header::of(tally), Header::fixed());
        let (own_cost, fixed_cost) = (own.bits + own.cost(tally) + more, fixed.cost(tally) + more);
        let stored = 8 * (message.len() + 5 * message.len().div_ceil(STORED_BYTES_MAX).max(1)) as u64;
        if own_cost.min(fixed_cost) + SAVED_BITS_MIN > stored {
            // SAFETY: `new` checked that there is space for stored blocks.
            return unsafe { self.stored(message, is_last) };
        }
        let is_fixed = fixed_cost <= own_cost;
        // SAFETY: there is space for a stored block, and this one is shorter.
        unsafe {
            self.bits.put(u64::from(is_last) | if is_fixed { 0b010 } else { 0b100 }, 3);
            if !is_fixed {
                own.write(&mut self.bits);
            }
            let entries = Entries::new(if is_fixed { &fixed } else { &own });
            pieces.for_each(|piece| self.piece(&entries, piece));
            entries.put(&mut self.bits, entries.end);
        }
    }

    /// # Safety
    /// There must be space for the piece and eight bytes, here and below.
    unsafe fn piece(&mut self, entries: &Entries, piece: TallyPiece<'_>) {
        #[cfg(target_arch = "x86_64")]
        if wide::detected() {
            let (place, held, count) = self.bits.state();
            let mut bits = Bits::new(place, held, count);
            // SAFETY: the CPU has the instructions; the caller guarantees the rest.
            unsafe { wide::put_piece(entries, &mut bits, piece) };
            self.bits = bits;
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("lzcnt") {
            // SAFETY: the CPU has the instructions; the caller guarantees the rest.
            return unsafe { self.piece_bmi2(entries, piece) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.piece_with(entries, piece) };
    }

    /// # Safety
    /// As above.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt")]
    unsafe fn piece_bmi2(&mut self, entries: &Entries, piece: TallyPiece<'_>) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.piece_with(entries, piece) };
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn piece_with(&mut self, entries: &Entries, piece: TallyPiece<'_>) {
        let (fours, others) = piece.literals.as_chunks::<4>();
        let (place, held, count) = self.bits.state();
        let mut bits = Bits::new(place, held, count);
        // SAFETY: as above.
        unsafe {
            for record in piece.records {
                entries.put_record(&mut bits, Indices::of(record));
            }
            for four in fours {
                entries.put_four(&mut bits, four);
            }
            for literal in others {
                entries.put(&mut bits, entries.literals[usize::from(*literal)]);
            }
        }
        self.bits = bits;
    }

    /// # Safety
    /// There must be space for the message, five bytes for each 65,535 of its bytes, and eight
    /// bytes.
    unsafe fn stored(&mut self, message: &[u8], is_last: bool) {
        let mut rest = message;
        loop {
            let now;
            (now, rest) = rest.split_at(rest.len().min(STORED_BYTES_MAX));
            let (_, _, count) = self.bits.state();
            let len = now.len() as u64;
            // SAFETY: guaranteed by the caller.
            unsafe {
                // Three bits, and the rest of the byte.
                self.bits.put(u64::from(is_last && rest.is_empty()), (count + 3).next_multiple_of(8) - count);
                self.bits.put(len | (!len & 0xffff) << 16, 32);
                let (place, _, _) = self.bits.state();
                place.copy_from_nonoverlapping(now.as_ptr(), now.len());
                self.bits = Bits::new(place.add(now.len()), 0, 0);
            }
            if rest.is_empty() {
                return;
            }
        }
    }
}

fn entry(code: u16, length: u8) -> CodeEntry {
    CodeEntry::from(code) << 8 | CodeEntry::from(length)
}

#[inline(always)]
fn code(entry: CodeEntry) -> u64 {
    u64::from(entry >> 8)
}

#[inline(always)]
fn length(entry: CodeEntry) -> u32 {
    entry & 0xff
}

impl Entries {
    fn new(header: &Header) -> Entries {
        let (mut symbols, mut slots) = ([0; SYMBOLS + 2], [0; SLOTS]);
        codes_of(&header.symbols, &mut symbols);
        codes_of(&header.slots, &mut slots);
        let of_symbol = |symbol: usize| entry(symbols[symbol], header.symbols[symbol]);
        let mut entries =
            Entries { literals: [0; LITERALS], lengths: [0; LENGTHS], slots: [0; SLOTS], end: of_symbol(256) };
        for (literal, entry) in entries.literals.iter_mut().take(256).enumerate() {
            *entry = of_symbol(literal);
            entries.lengths[THIRD + literal] = *entry;
        }
        for symbol in 0..29 {
            let (base, more_len) = length_base(symbol);
            let first = of_symbol(257 + symbol);
            for more in 0..1 << more_len {
                entries.lengths[base + more] = first + more_len + ((more as u32) << length(first) << 8);
            }
        }
        // The longest length has a symbol of its own.
        entries.lengths[258] = of_symbol(257 + 28);
        for (slot, entry_of) in entries.slots.iter_mut().enumerate() {
            *entry_of = entry(slots[slot], header.slots[slot]);
        }
        // Without a match there are no bits: this value cancels the extra bits of the slot.
        entries.slots[SLOTS - 1] = 256 - 14;
        entries
    }

    /// # Safety
    /// There must be eight bytes at the writer's position, here and below.
    #[inline(always)]
    unsafe fn put(&self, bits: &mut Bits, entry: CodeEntry) {
        // SAFETY: guaranteed by the caller.
        unsafe { bits.put(code(entry), length(entry)) };
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn put_record(&self, bits: &mut Bits, of: Indices) {
        let [a, b] = of.literals.map(|literal| self.literals[literal]);
        let (c, d) = (self.lengths[of.length], self.slots[of.slot]);
        let literals = code(a) | code(b).wrapping_shl(a);
        let far = code(d) | of.more.wrapping_shl(d);
        let all = literals | (code(c) | far.wrapping_shl(c)).wrapping_shl(a + b);
        // SAFETY: as above.
        unsafe { bits.put(all, length(a + b + c + d + of.more_len)) };
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn put_four(&self, bits: &mut Bits, literals: &[u8; 4]) {
        let [a, b, c, d] = literals.map(|literal| self.literals[usize::from(literal)]);
        let (front, back) = (code(a) | code(b).wrapping_shl(a), code(c) | code(d).wrapping_shl(c));
        // SAFETY: as above.
        unsafe { bits.put(front | back.wrapping_shl(a + b), length(a + b + c + d)) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::parse::Record;
    use super::*;

    /// Records and literals of every kind, with the fixed code and with codes of their own.
    #[test]
    fn eight_records_at_a_time_are_written_as_one_by_one() {
        use std::io::Write;

        if !wide::detected() {
            std::io::stderr().write_all(b"skipped: this CPU does not look up eight entries soon\n").unwrap();
            return;
        }
        let mut state = 88_172_645_463_325_252_u64;
        let mut below = |end: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % end
        };
        for round in 0..600 {
            let mut records = Vec::new();
            for _ in 0..round % 67 {
                // Few bytes are frequent, so that code lengths vary.
                let mut byte = || below(256) >> below(8);
                let literals = byte() | byte() << 16;
                let third = byte();
                let of_match = (3 + below(256)) << 32 | (below(32_768) >> below(15)) << 48;
                records.push(Record(match below(5) {
                    0 => 0xc000 << 48 | literals,
                    1 => 0xc000 << 48 | (THIRD as u64 + third) << 32 | literals,
                    2 => 0xc000 << 48 | 0x0100_0000 | literals & 0xff,
                    3 => 0x0100_0000 | literals & 0xff | of_match,
                    _ => 0x0100_0100 | literals & 0xff | of_match,
                }));
            }
            let literals: Vec<u8> = (0..round * 7 % 131).map(|_| (below(256) >> below(8)) as u8).collect();
            let mut tally = Tally::default();
            records.iter().for_each(|record| tally.counts[0].add(Indices::of(record)));
            tally.count_literals(&literals);
            tally.sum_up();
            for header in [Header::fixed(), Header::of(&tally)] {
                let entries = Entries::new(&header);
                let write = |wide: bool| {
                    let mut out = vec![0; 8 * (records.len() + literals.len()) + 16];
                    let mut writer = Writer { bits: Bits::new(out.as_mut_ptr(), 0, round as u32 % 8), out: &mut [] };
                    let piece = TallyPiece { records: &records, literals: &literals };
                    // SAFETY: there is space for eight bytes for each of them; the CPU's features
                    // were checked.
                    unsafe {
                        match wide {
                            true => wide::put_piece(&entries, &mut writer.bits, piece),
                            false => writer.piece_with(&entries, piece),
                        }
                    }
                    let (place, held, count) = writer.bits.state();
                    (place.addr() - out.as_ptr().addr(), held, count, out)
                };
                assert!(write(true) == write(false), "{round}");
            }
        }
    }
}
