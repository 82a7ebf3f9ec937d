//! Cuts a block into records.
//!
//! The positions in a half's table are relative to 32 KiB before the half, so that they fit into
//! 16 bits. A position in the table may be too far back, or have other bytes: a match must have
//! equal bytes and a permitted distance. Every position is at or behind the message's beginning.

use super::tally::{Indices, SymbolCounts, THIRD, Tally, TallyPiece};

/// Half of a block: together with the window before it, positions have 16 bits.
pub const HALF_BYTES: usize = 32 << 10;
const WINDOW_BYTES: usize = 32 << 10;
/// The shortest match that is searched for.
const MATCH_BYTES_MIN: usize = 4;
const MATCH_BYTES_MAX: usize = 258;
/// Number of bytes that are compared at once.
const COMPARED_BYTES: usize = 32;
const TABLE_BITS_MAX: u32 = 14;
/// Short messages use smaller tables, which are cleared faster.
const TABLE_BITS_MIN: u32 = 8;
/// Steps that are made before checking whether any of them had a match.
const STEPS: usize = 4;
/// Maximal number of bytes that a step consumes.
const STEP_BYTES_MAX: usize = MATCH_BYTES_MAX + 1;
/// The bytes that a step reads behind its own place, and a few.
const MARGIN_BYTES: usize = COMPARED_BYTES + 8;
/// After this many positions without a match (a power of two) only every second is tried, and so
/// on.
const PATIENCE_BITS: u32 = 7;
/// Of this many positions before the second half, two are put into its table. The number is odd, so
/// that repetitions with a period of a power of two are found soon.
const PRIMED_STEP: usize = 7;

/// At most three literals, or a match and at most one literal before it. From the lowest 16 bits
/// on: two literals, 256 or more if absent; the match length, zero if absent, or [`THIRD`] plus a
/// third literal; and the match distance minus one.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Record(pub u64);

impl Record {
    /// No literals.
    const BARE: u64 = 0x0100_0100;
    /// No match: a slot of its own, without extra bits.
    const UNMATCHED: u64 = 0xc000 << 48;
    /// Position of the third literal.
    const THIRD_SHIFT: u32 = 32;

    fn literal(byte: u8) -> Record {
        Record(Record::UNMATCHED | 0x0100_0000 | u64::from(byte))
    }

    fn of_match(length: usize, distance: usize) -> Record {
        Record(Record::BARE | (length as u64) << 32 | (distance as u64) << 48)
    }
}

/// Number of index bits of the tables for a message.
pub fn table_bits(len: usize) -> u32 {
    (usize::BITS - len.leading_zeros()).clamp(TABLE_BITS_MIN, TABLE_BITS_MAX)
}

/// The table of one half, and the half's records.
pub struct Half {
    table: Box<[u16; 1 << TABLE_BITS_MAX]>,
    records: Box<[Record]>,
    records_count: usize,
    /// Runs of literals without records: the number of records before the run, its start in the
    /// message, and its length.
    runs: Vec<(usize, usize, usize)>,
}

impl Default for Half {
    fn default() -> Half {
        Half {
            table: Box::new([0; 1 << TABLE_BITS_MAX]),
            records: vec![Record(0); HALF_BYTES].into(),
            records_count: 0,
            runs: Vec::with_capacity(HALF_BYTES / (2 * STEPS)),
        }
    }
}

impl Half {
    /// Begins a message: every table entry points to its beginning.
    pub fn start(&mut self, bits: u32) {
        self.table[..1 << bits].fill(WINDOW_BYTES as u16);
    }

    /// Moves the table to a half that begins `moved` bytes later.
    pub fn go_on(&mut self, moved: usize) {
        self.table.iter_mut().for_each(|place| *place = place.saturating_sub(moved as u16));
    }

    /// Fills the table with positions before `begin`.
    fn prime(&mut self, message: &[u8], begin: usize, bits: u32) {
        let window = &message[begin.saturating_sub(WINDOW_BYTES)..begin];
        let first = WINDOW_BYTES - window.len();
        let table = &mut self.table[..1 << bits];
        table.fill(first as u16);
        for (step, eight) in window.array_windows::<8>().step_by(PRIMED_STEP).enumerate() {
            let eight = u64::from_le_bytes(*eight);
            for next in 0..2 {
                // SAFETY: the remainder of the product is below the table's length.
                unsafe {
                    *table.get_unchecked_mut(hashed((eight >> (8 * next)) as u32, 32 - bits)) =
                        (first + step * PRIMED_STEP + next) as u16
                };
            }
        }
    }

    /// The half's records and literal runs, in order.
    pub fn pieces<'a>(&'a self, message: &'a [u8]) -> impl Iterator<Item = TallyPiece<'a>> {
        let records = &self.records[..self.records_count];
        let mut done = 0;
        let runs = self.runs.iter().copied().chain([(self.records_count, 0, 0)]);
        runs.map(move |(end, begin, len)| {
            let before = &records[done..end];
            done = end;
            TallyPiece { records: before, literals: &message[begin..begin + len] }
        })
    }
}

/// Cuts a block from the first to the last of `ends` into records; its halves meet at the second.
/// Records are counted as they are created, while the next ones wait for memory.
pub fn parse(halves: &mut [Half; 2], message: &[u8], ends: [usize; 3], bits: u32, tally: &mut Tally) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
    {
        // SAFETY: the CPU has the instructions.
        return unsafe { parse_avx2(halves, message, ends, bits, tally) };
    }
    // SAFETY: the callers of the closure guarantee that the bytes exist.
    parse_with(halves, message, ends, bits, tally, |a, b| unsafe { differing_words(a, b) });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn parse_avx2(halves: &mut [Half; 2], message: &[u8], ends: [usize; 3], bits: u32, tally: &mut Tally) {
    // SAFETY: the callers of the closure guarantee that the bytes exist.
    parse_with(halves, message, ends, bits, tally, |a, b| unsafe { differing_avx2(a, b) });
}

#[inline(always)]
fn parse_with(
    halves: &mut [Half; 2],
    message: &[u8],
    ends: [usize; 3],
    bits: u32,
    tally: &mut Tally,
    differing: impl Fn(*const u8, *const u8) -> u32,
) {
    let [begin, middle, end] = ends;
    let [one, other] = &mut tally.counts;
    let [front, back] = halves;
    if middle < end {
        back.prime(message, middle, bits);
    }
    let (mut a, mut b) = (Run::new(message, front, one, begin, middle), Run::new(message, back, other, middle, end));
    // SAFETY: a step is made only with enough bytes behind the position, and two before it.
    unsafe {
        a.first_literals();
        if bits == TABLE_BITS_MAX {
            // The same shift for both halves, known to the compiler.
            const SHIFT: u32 = 32 - TABLE_BITS_MAX;
            while a.at < a.steps_end && b.at < b.steps_end {
                let (mut at, mut then) = (a.at, b.at);
                let (mut record, mut record_then) = (a.record, b.record);
                let (mut all, mut all_then) = (u64::MAX, u64::MAX);
                for _ in 0..STEPS {
                    let seen = look(at, a.base, a.table, SHIFT);
                    let seen_then = look(then, b.base, b.table, SHIFT);
                    let (taken, made) = take(at, a.base, a.end, seen, &differing);
                    let (taken_then, made_then) = take(then, b.base, b.end, seen_then, &differing);
                    *record = made;
                    *record_then = made_then;
                    (all, all_then) = (all & made.0, all_then & made_then.0);
                    a.counts.add(Indices::of(&made));
                    b.counts.add(Indices::of(&made_then));
                    (at, then) = (at.add(taken), then.add(taken_then));
                    (record, record_then) = (record.add(1), record_then.add(1));
                }
                let skims = [all, all_then].map(|all| all & Record::UNMATCHED == Record::UNMATCHED);
                (a.at, b.at, a.record, b.record) = (at, then, record, record_then);
                if skims[0] {
                    a.skim(SHIFT);
                }
                if skims[1] {
                    b.skim(SHIFT);
                }
            }
        }
        for run in [&mut a, &mut b] {
            run.alone(32 - bits, &differing);
        }
    }
    let counts = [a.count(), b.count()];
    (front.records_count, back.records_count) = (counts[0], counts[1]);
}

/// A half in progress.
struct Run<'a> {
    message: *const u8,
    /// The origin of table positions. It may lie before the message, but the positions do not.
    base: *const u8,
    table: *mut u16,
    at: *const u8,
    /// Before this position there is space for one step, or for several.
    step_end: *const u8,
    steps_end: *const u8,
    end: *const u8,
    records: *mut Record,
    record: *mut Record,
    runs: &'a mut Vec<(usize, usize, usize)>,
    /// Symbol counts of the half's records.
    counts: &'a mut SymbolCounts,
}

impl<'a> Run<'a> {
    fn new(message: &'a [u8], half: &'a mut Half, counts: &'a mut SymbolCounts, begin: usize, end: usize) -> Run<'a> {
        let start = message.as_ptr();
        let back = |bytes: usize| start.wrapping_add(end.saturating_sub(bytes).max(begin));
        half.runs.clear();
        Run {
            message: start,
            base: start.wrapping_add(begin).wrapping_sub(WINDOW_BYTES),
            table: half.table.as_mut_ptr(),
            at: start.wrapping_add(begin),
            step_end: back(MARGIN_BYTES),
            steps_end: back(MARGIN_BYTES + STEPS * STEP_BYTES_MAX),
            end: start.wrapping_add(end),
            records: half.records.as_mut_ptr(),
            record: half.records.as_mut_ptr(),
            runs: &mut half.runs,
            counts,
        }
    }

    fn count(&self) -> usize {
        (self.record.addr() - self.records.addr()) / size_of::<Record>()
    }

    /// # Safety
    /// There must be space for a record; each record covers at least one byte of the half.
    #[inline(always)]
    unsafe fn push(&mut self, record: Record) {
        self.counts.add(Indices::of(&record));
        // SAFETY: guaranteed by the caller.
        unsafe {
            *self.record = record;
            self.record = self.record.add(1);
        }
    }

    /// Makes records of the message's first two literals: a step reads two bytes before its
    /// position.
    ///
    /// # Safety
    /// The position must be the beginning of the half.
    unsafe fn first_literals(&mut self) {
        while self.at < self.end && self.at.addr() - self.message.addr() < 2 {
            // SAFETY: the loop condition ensures that there is a byte.
            unsafe {
                self.push(Record::literal(*self.at));
                self.at = self.at.add(1);
            }
        }
    }

    /// # Safety
    /// There must be two bytes before the position and a margin behind it.
    #[inline(always)]
    unsafe fn step(&mut self, shift: u32, differing: &impl Fn(*const u8, *const u8) -> u32) -> Record {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let seen = look(self.at, self.base, self.table, shift);
            let (taken, made) = take(self.at, self.base, self.end, seen, differing);
            self.push(made);
            self.at = self.at.add(taken);
            made
        }
    }

    /// Skips positions without a match, up to one that may have one: they become literals.
    ///
    /// # Safety
    /// There must be a margin behind the position.
    unsafe fn skim(&mut self, shift: u32) {
        let (from, mut patience) = (self.at, 1_usize << PATIENCE_BITS);
        while self.at < self.steps_end {
            // SAFETY: before `steps_end` there is a margin; every position in the table is in the
            // message, before this one.
            unsafe {
                let here = word(self.at);
                let place = self.table.add(hashed(here, shift));
                if word(self.base.wrapping_add(usize::from(*place))) == here {
                    break;
                }
                *place = self.at.addr().wrapping_sub(self.base.addr()) as u16;
                self.at = self.at.add(patience >> PATIENCE_BITS);
                patience += 1;
            }
        }
        let len = self.at.addr() - from.addr();
        if len > 0 {
            self.runs.push((self.count(), from.addr() - self.message.addr(), len));
        }
    }

    /// Parses the rest of the half alone, and its last bytes with bounds checks.
    ///
    /// # Safety
    /// There must be two bytes before the position, unless there are none behind it.
    #[inline(always)]
    unsafe fn alone(&mut self, shift: u32, differing: &impl Fn(*const u8, *const u8) -> u32) {
        // SAFETY: a step is made only with a margin behind the position.
        unsafe {
            while self.at < self.steps_end {
                let mut all = u64::MAX;
                for _ in 0..STEPS {
                    all &= self.step(shift, differing).0;
                }
                if all & Record::UNMATCHED == Record::UNMATCHED {
                    self.skim(shift);
                }
            }
            while self.at < self.step_end {
                self.step(shift, differing);
            }
            while self.at < self.end {
                self.last(shift);
            }
        }
    }

    /// A match, or a literal, near the end.
    ///
    /// # Safety
    /// There must be a byte at the position.
    unsafe fn last(&mut self, shift: u32) {
        let (at, left) = (self.at, self.end.addr() - self.at.addr());
        // SAFETY: four bytes are read only if there are as many; all other reads are before the
        // half's end.
        unsafe {
            if left >= MATCH_BYTES_MIN {
                let place = self.table.add(hashed(word(at), shift));
                let from = self.base.wrapping_add(usize::from(*place));
                *place = at.addr().wrapping_sub(self.base.addr()) as u16;
                let distance = at.addr().wrapping_sub(from.addr()).wrapping_sub(1);
                if word(from) == word(at) && distance < WINDOW_BYTES {
                    let most = left.min(MATCH_BYTES_MAX);
                    let differs = (MATCH_BYTES_MIN..most).find(|next| *at.add(*next) != *from.add(*next));
                    let length = differs.unwrap_or(most);
                    self.push(Record::of_match(length, distance));
                    self.at = at.add(length);
                    return;
                }
            }
            self.push(Record::literal(*at));
            self.at = at.add(1);
        }
    }
}

/// The table's knowledge of a position: eight bytes from two before it on, the last positions with
/// its four bytes and with those of the next position, and whether the four bytes of the position
/// after that are found where the table points.
struct PositionEntry {
    eight: u64,
    places: [usize; 2],
    is_third: bool,
}

/// Enters the position, the next one, and the two before them into the table.
///
/// # Safety
/// There must be two bytes before the position and six behind it; the table must be as long as the
/// shift requires.
#[inline(always)]
unsafe fn look(at: *const u8, base: *const u8, table: *mut u16, shift: u32) -> PositionEntry {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let relative = at.addr().wrapping_sub(base.addr());
        let eight = u64::from_le(at.sub(2).cast::<u64>().read_unaligned());
        let places: [*mut u16; 4] = std::array::from_fn(|next| table.add(hashed((eight >> (8 * next)) as u32, shift)));
        let seen = [usize::from(*places[2]), usize::from(*places[3])];
        let third = (eight >> 32) as u32;
        let is_third = word(base.wrapping_add(usize::from(*table.add(hashed(third, shift))))) == third;
        for (next, place) in places.into_iter().enumerate() {
            *place = relative.wrapping_add(next).wrapping_sub(2) as u16;
        }
        PositionEntry { eight, places: seen, is_third }
    }
}

/// Takes the longer of two matches, or two literals, or three if the third cannot begin a match.
/// Returns the number of bytes, and the record.
///
/// # Safety
/// There must be a margin behind the position; `seen` must belong to it.
#[inline(always)]
unsafe fn take(
    at: *const u8,
    base: *const u8,
    end: *const u8,
    seen: PositionEntry,
    differing: &impl Fn(*const u8, *const u8) -> u32,
) -> (usize, Record) {
    let PositionEntry { eight, places: [first, second], is_third } = seen;
    let alike = differing(at, base.wrapping_add(first)).trailing_zeros();
    let alike_then = differing(at.wrapping_add(1), base.wrapping_add(second)).trailing_zeros();
    // The later match must outweigh the extra literal.
    let is_second = alike_then > alike + 1;
    let before = usize::from(is_second);
    let mut length = if is_second { alike_then } else { alike } as usize;
    let place = if is_second { second } else { first };
    let distance = at.addr().wrapping_sub(base.addr()).wrapping_add(before).wrapping_sub(place).wrapping_sub(1);
    if length == COMPARED_BYTES {
        // SAFETY: this many bytes have just been compared.
        length = unsafe { extended(at.wrapping_add(before), distance, end) };
    }
    let matches = (length >= MATCH_BYTES_MIN) & (distance < WINDOW_BYTES);
    let matched = Record::BARE - ((before as u64) << 8) + ((length as u64) << 32) + ((distance as u64) << 48);
    let literals = eight >> 16 & 0xff | eight >> 8 & 0xff_0000;
    let third = ((eight >> 32 & 0xff) + THIRD as u64) << Record::THIRD_SHIFT;
    let third = if is_third { 0 } else { third };
    let record = literals | std::hint::select_unpredictable(matches, matched, Record::UNMATCHED + third);
    let bare = if is_third { 2 } else { 3 };
    (std::hint::select_unpredictable(matches, length + before, bare), Record(record))
}

/// Length of a match of at least [`COMPARED_BYTES`], at most up to `end`; zero if the distance is
/// too large.
///
/// # Safety
/// `distance` plus one bytes back there must be equal bytes, or the distance must be too large.
#[cold]
#[inline(never)]
unsafe fn extended(at: *const u8, distance: usize, end: *const u8) -> usize {
    if distance >= WINDOW_BYTES {
        return 0;
    }
    let (from, most) = (at.wrapping_sub(distance + 1), MATCH_BYTES_MAX.min(end.addr() - at.addr()));
    let mut length = COMPARED_BYTES;
    while length + 8 <= most {
        // SAFETY: this is before `end`.
        let [a, b] = [at, from].map(|at| unsafe { at.add(length).cast::<u64>().read_unaligned() });
        if a != b {
            return length + u64::from_le(a ^ b).trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    // SAFETY: this is before `end`.
    while length < most && unsafe { *at.add(length) == *from.add(length) } {
        length += 1;
    }
    length
}

#[inline(always)]
fn hashed(word: u32, shift: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> shift) as usize
}

/// # Safety
/// There must be four bytes.
#[inline(always)]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: guaranteed by the caller.
    u32::from_le(unsafe { at.cast::<u32>().read_unaligned() })
}

/// A bit set for the first of 32 bytes that differs; bits above it are arbitrary.
///
/// # Safety
/// Both must have 32 bytes.
#[inline(always)]
unsafe fn differing_words(a: *const u8, b: *const u8) -> u32 {
    for next in 0..COMPARED_BYTES / 8 {
        // SAFETY: guaranteed by the caller.
        let [a, b] = [a, b].map(|at| unsafe { at.add(8 * next).cast::<u64>().read_unaligned() });
        if a != b {
            return 1 << (8 * next as u32 + u64::from_le(a ^ b).trailing_zeros() / 8);
        }
    }
    0
}

/// A bit set for each of 32 bytes that differs.
///
/// # Safety
/// Both must have 32 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
unsafe fn differing_avx2(a: *const u8, b: *const u8) -> u32 {
    use std::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};
    // SAFETY: guaranteed by the caller.
    let (a, b) = unsafe { (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast())) };
    !(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32)
}
