//! What is different while a graph is queued. Its steps are in order on the compute stream, so what one of them used and nobody reads any more is
//! the next one's. What is recorded runs again and again: its kernels complain in words of the recording, which are moved to each run's own.

use panoply_core::{Buffer, Error, Result, Tensor};
use panoply_kernels::c::{Kernel, STRIDED};

use super::Context;
use crate::arguments::Arguments;
use crate::driver::{Address, Launch};
use crate::memory::Block;
use crate::ops::together::{Placed, Table};
use crate::staging::SMALL_BYTES_MAX;

/// The most complaints of one recording.
const WORDS_MAX: usize = 64;
const WORD_BYTES: usize = 8;
/// Fewer copies than this are queued one by one.
const COPIES_JOINED_MIN: usize = 4;
/// In the place of a copy's bytes: it is a word that is moved.
const MOVES: u64 = 1 << 63;
const THREADS: usize = 256;
/// Bytes of a copy for each thread, and the most blocks of one copy.
const THREAD_BYTES: usize = 64;
const BLOCKS_MAX: usize = 64;

/// Memory that steps of a graph use one after the other.
#[derive(Default)]
pub(super) struct Workspaces {
    free: Vec<(usize, Address)>,
    /// What the step under way has.
    taken: Vec<(usize, Address)>,
}

/// What a word says: an error of a value and a detail.
type Describe = fn(u64, u64) -> Error;

/// Words in which the kernels of a recording say what is wrong with their input.
pub(crate) struct Words {
    block: Block,
    described: Vec<(Describe, u64)>,
}

impl Words {
    /// A word for the next kernel that may have something to say; `None` where there are no more.
    pub(super) fn next(&mut self, describe: Describe, detail: u64) -> Option<Address> {
        let place = self.described.len();
        (place < WORDS_MAX).then(|| {
            self.described.push((describe, detail));
            self.block.block.0 + place * WORD_BYTES
        })
    }
}

/// Copies before a recording runs, or after it.
#[derive(Default)]
pub(crate) struct Copies {
    list: Vec<Entry>,
}

struct Entry {
    target: Address,
    from: Source,
    bytes: usize,
}

enum Source {
    Tensor(Tensor),
    Word(Address),
}

impl Copies {
    /// A tensor's elements, one after the other.
    pub(crate) fn push(&mut self, target: Address, tensor: &Tensor) {
        if tensor.len_bytes() > 0 {
            self.list.push(Entry { target, from: Source::Tensor(tensor.clone()), bytes: tensor.len_bytes() });
        }
    }
}

impl Context {
    /// Lets what is queued until `part_workspaces` share its workspaces, part after part.
    pub(crate) fn share_workspaces(&mut self) {
        self.workspaces = Some(Workspaces::default());
    }

    /// A part has been queued: the next one may use what it had.
    pub(crate) fn next_part(&mut self) {
        if let Some(Workspaces { free, taken }) = &mut self.workspaces {
            free.append(taken);
        }
    }

    /// Workspaces are the op's own again.
    pub(crate) fn part_workspaces(&mut self) {
        self.workspaces = None;
    }

    /// Memory that nothing but kernels of the compute stream uses, and none of them once the op, or the part of a graph, has been queued;
    /// at least 256-byte aligned, arbitrary contents.
    pub(crate) fn workspace(&mut self, bytes: usize) -> Result<Address> {
        let Some(Workspaces { free, .. }) = &mut self.workspaces else { return self.scratch(bytes) };
        let fits = (0..free.len()).filter(|place| free[*place].0 >= bytes).min_by_key(|place| free[*place].0);
        let taken = match fits {
            Some(place) => free.swap_remove(place),
            None => (bytes, self.scratch(bytes)?),
        };
        if let Some(workspaces) = &mut self.workspaces {
            workspaces.taken.push(taken);
        }
        Ok(taken.1)
    }

    /// From here on complaints are those of a recording.
    pub(crate) fn begin_words(&mut self) -> Result<()> {
        let block = self.memory.scratch(WORDS_MAX * WORD_BYTES)?;
        self.fill(block.block.0, 0, WORDS_MAX * WORD_BYTES)?;
        self.words = Some(Words { block, described: Vec::new() });
        Ok(())
    }

    /// The words of the recording; `None` where it has none.
    pub(crate) fn end_words(&mut self) -> Option<Words> {
        let words = self.words.take()?;
        if words.described.is_empty() {
            // The zeros may still be on their way.
            self.hold(words.block);
            return None;
        }
        Some(words)
    }

    /// Keeps words until the op under way, and all before it, have finished.
    pub(crate) fn hold_words(&mut self, words: Words) {
        self.hold(words.block);
    }

    /// Moves what the kernels of a recording said to words of the op under way.
    pub(crate) fn hear(&mut self, words: &Words, copies: &mut Copies) -> Result<()> {
        for (place, (describe, detail)) in words.described.iter().enumerate() {
            let target = self.complaint(*describe, *detail)?;
            let from = Source::Word(words.block.block.0 + place * WORD_BYTES);
            copies.list.push(Entry { target, from, bytes: WORD_BYTES });
        }
        Ok(())
    }

    /// Queues copies, what `between` queues, and further copies: all of the copies with two launches where they are many.
    pub(crate) fn copy_around(
        &mut self,
        before: &Copies,
        after: &Copies,
        between: impl FnOnce(&mut Context) -> Result<()>,
    ) -> Result<()> {
        let moves = after.list.iter().any(|copy| matches!(copy.from, Source::Word(_)));
        let count = before.list.len() + after.list.len();
        if !self.driver.properties().pointers || count < COPIES_JOINED_MIN && !moves {
            self.copy_each(before)?;
            between(self)?;
            return self.copy_each(after);
        }
        let mut table = Table::default();
        for copy in before.list.iter().chain(&after.list) {
            self.enter(copy, &mut table)?;
        }
        let unplaced = || Error::invalid("graph: copies", "a device with addresses", "none");
        let Placed { base, table, .. } = table.upload(self)?.ok_or_else(unplaced)?;
        self.copy_joined(before, base, table)?;
        between(self)?;
        self.copy_joined(after, base, table + before.list.len() * 3 * WORD_BYTES)
    }

    fn copy_each(&mut self, copies: &Copies) -> Result<()> {
        for Entry { target, from, bytes } in &copies.list {
            match from {
                // Large copies from the host have a stream of their own, which does not wait for those who read the target.
                Source::Tensor(tensor) if *bytes <= SMALL_BYTES_MAX => self.place(*target, tensor)?,
                Source::Tensor(tensor) => {
                    let source = self.input(tensor)?;
                    self.copy(*target, source, *bytes)?;
                }
                Source::Word(_) => {}
            }
        }
        Ok(())
    }

    fn enter(&mut self, Entry { target, from, bytes }: &Entry, table: &mut Table) -> Result<()> {
        table.push(*target);
        match from {
            Source::Tensor(tensor) if matches!(tensor.buffer(), Buffer::Host(_)) => table.push_input(tensor, self)?,
            Source::Tensor(tensor) => table.push(self.input(tensor)?),
            Source::Word(word) => table.push(*word),
        }
        let is_word = matches!(from, Source::Word(_));
        table.push(Address(if is_word { MOVES } else { *bytes as u64 }));
        Ok(())
    }

    fn copy_joined(&mut self, copies: &Copies, base: Address, table: Address) -> Result<()> {
        let Some(largest) = copies.list.iter().map(|copy| copy.bytes).max() else { return Ok(()) };
        let kernel = Kernel::new(STRIDED, "copy_many").flag("COPY_MANY", true);
        let blocks = largest.div_ceil(THREADS * THREAD_BYTES).clamp(1, BLOCKS_MAX);
        let mut arguments = Arguments::new().address(base).address(table);
        self.launch(&kernel, Launch::grid([blocks, copies.list.len(), 1], THREADS), &mut arguments)
    }
}
