//! The specifics of queueing a graph. Its steps are in order on the compute stream, so memory that
//! a step used, and that is not read any more, is reused by the next step. A recording runs again
//! and again: its kernels write to error words of the recording, which are copied to the words of
//! each run.

use std::rc::Rc;

use panoply_core::{Buffer, DeviceBuffer, Error, Result, Tensor};
use panoply_kernels::c::{Kernel, STRIDED};

use super::{Context, OpResources};
use crate::address_table::{DeviceTable, Table};
use crate::arguments::Arguments;
use crate::driver::{Address, CapturedGraph, Driver, Launch};
use crate::memory::LeasedBlock;
use crate::staging::SMALL_BYTES_MAX;

/// Maximal number of error words of one recording.
const WORDS_MAX: usize = 64;
const WORD_BYTES: usize = 8;
/// Fewer copies than this are queued one by one.
const COPIES_JOINED_MIN: usize = 4;
/// Replaces the length of a copy: the entry moves an error word.
const MOVES: u64 = 1 << 63;
const THREADS: usize = 256;
/// Bytes of a copy per thread, and maximal number of blocks of one copy.
const THREAD_BYTES: usize = 64;
const BLOCKS_MAX: usize = 64;

/// Memory that steps of a graph use one after the other.
#[derive(Default)]
pub(super) struct Workspaces {
    free: Vec<(usize, Address)>,
    /// The memory taken by the current step.
    taken: Vec<(usize, Address)>,
}

/// Makes the error for a word's value and a detail.
type Describe = fn(u64, u64) -> Error;

/// Words in which the kernels of a recording report invalid inputs.
pub(crate) struct Words {
    block: LeasedBlock,
    described: Vec<(Describe, u64)>,
}

impl Words {
    /// A word for the next kernel that may report an error; `None` if there are no more.
    pub(super) fn next(&mut self, describe: Describe, detail: u64) -> Option<Address> {
        let place = self.described.len();
        (place < WORDS_MAX).then(|| {
            self.described.push((describe, detail));
            self.block.block.0 + place * WORD_BYTES
        })
    }
}

/// Copies before or after a recording runs.
#[derive(Default)]
pub(crate) struct Copies {
    list: Vec<TensorCopy>,
}

struct TensorCopy {
    target: Address,
    from: CopySource,
    bytes: usize,
}

enum CopySource {
    Tensor(Tensor),
    Word(Address),
}

impl Copies {
    /// Adds a copy of a tensor's elements, contiguous.
    pub(crate) fn push(&mut self, target: Address, tensor: &Tensor) {
        if tensor.len_bytes() > 0 {
            self.list.push(TensorCopy { target, from: CopySource::Tensor(tensor.clone()), bytes: tensor.len_bytes() });
        }
    }
}

impl Copies {
    /// Splits the copies into those of contiguous elements and those of other views.
    fn apart(self) -> (Copies, Copies) {
        let is_view = |copy: &TensorCopy| matches!(&copy.from, CopySource::Tensor(tensor) if !tensor.is_contiguous());
        let (views, list) = self.list.into_iter().partition(is_view);
        (Copies { list }, Copies { list: views })
    }
}

impl Context {
    /// From here until `part_workspaces`, queued work shares its workspaces, part after part.
    pub(crate) fn share_workspaces(&mut self) {
        self.workspaces = Some(Workspaces::default());
    }

    /// Ends a part: the next one may reuse its memory.
    pub(crate) fn next_part(&mut self) {
        if let Some(Workspaces { free, taken }) = &mut self.workspaces {
            free.append(taken);
        }
    }

    /// Ends the sharing of workspaces.
    pub(crate) fn part_workspaces(&mut self) {
        self.workspaces = None;
    }

    /// Memory used only by kernels of the compute stream, until the op, or the part of a graph, has
    /// been queued; aligned to at least 256 bytes, with arbitrary contents.
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

    /// From here on, error words are those of a recording.
    pub(crate) fn begin_words(&mut self) -> Result<()> {
        let block = self.memory.scratch(WORDS_MAX * WORD_BYTES)?;
        self.fill(block.block.0, 0, WORDS_MAX * WORD_BYTES)?;
        self.words = Some(Words { block, described: Vec::new() });
        Ok(())
    }

    /// Takes the words of the recording; `None` if it has none.
    pub(crate) fn end_words(&mut self) -> Option<Words> {
        let words = self.words.take()?;
        if words.described.is_empty() {
            // The fill with zeros may still be in flight.
            self.hold(words.block);
            return None;
        }
        Some(words)
    }

    /// Keeps words until the current op, and all before it on its lane, have finished.
    pub(crate) fn hold_words(&mut self, words: Words) {
        self.hold(words.block);
    }

    /// Copies the error words of a recording to words of the current op.
    pub(crate) fn hear(&mut self, words: &Words, copies: &mut Copies) -> Result<()> {
        for (place, (describe, detail)) in words.described.iter().enumerate() {
            let target = self.complaint(*describe, *detail)?;
            let from = CopySource::Word(words.block.block.0 + place * WORD_BYTES);
            copies.list.push(TensorCopy { target, from, bytes: WORD_BYTES });
        }
        Ok(())
    }

    /// Queues copies, the work of `between`, and further copies. Many copies are joined into two
    /// launches.
    ///
    /// Copies of non-contiguous views are queued one by one. The table of a joined launch holds
    /// addresses of contiguous elements; a view would have to be made contiguous when it is
    /// entered, which is before `between` writes the data that the view shows.
    pub(crate) fn copy_around(
        &mut self,
        before: &Copies,
        after: Copies,
        between: impl FnOnce(&mut Context) -> Result<()>,
    ) -> Result<()> {
        let moves = after.list.iter().any(|copy| matches!(copy.from, CopySource::Word(_)));
        let count = before.list.len() + after.list.len();
        if !self.driver.properties().pointers || count < COPIES_JOINED_MIN && !moves {
            self.copy_each(before)?;
            between(self)?;
            return self.copy_each(&after);
        }
        let (after, views) = after.apart();
        let mut table = Table::default();
        for copy in before.list.iter().chain(&after.list) {
            self.enter(copy, &mut table)?;
        }
        let unplaced = || Error::invalid("graph: copies", "a device with addresses", "none");
        let DeviceTable { base, table, .. } = table.upload(self)?.ok_or_else(unplaced)?;
        self.copy_joined(before, base, table)?;
        between(self)?;
        self.copy_joined(&after, base, table + before.list.len() * 3 * WORD_BYTES)?;
        self.copy_each(&views)
    }

    fn copy_each(&mut self, copies: &Copies) -> Result<()> {
        for TensorCopy { target, from, bytes } in &copies.list {
            match from {
                // Large copies from the host use a stream of their own, which does not wait for
                // readers of the target.
                CopySource::Tensor(tensor) if *bytes <= SMALL_BYTES_MAX => self.place(*target, tensor)?,
                CopySource::Tensor(tensor) => {
                    let source = self.input(tensor)?;
                    self.copy(*target, source, *bytes)?;
                }
                CopySource::Word(_) => {}
            }
        }
        Ok(())
    }

    fn enter(&mut self, TensorCopy { target, from, bytes }: &TensorCopy, table: &mut Table) -> Result<()> {
        table.push(*target);
        match from {
            CopySource::Tensor(tensor) if matches!(tensor.buffer(), Buffer::Host(_)) => {
                table.push_input(tensor, self)?
            }
            CopySource::Tensor(tensor) => table.push(self.input(tensor)?),
            CopySource::Word(word) => table.push(*word),
        }
        let is_word = matches!(from, CopySource::Word(_));
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

/// A recording with everything that it uses, except its callers' tensors.
pub(crate) struct Replay {
    pub(crate) driver: Rc<dyn Driver>,
    pub(crate) captured: CapturedGraph,
    #[allow(dead_code)] // Held so that the pool does not lend it.
    pub(crate) held: OpResources,
    #[allow(dead_code)] // As above: graphs that need more get another block.
    pub(crate) block: Option<DeviceBuffer>,
    #[allow(dead_code)] // As above.
    pub(crate) own: Vec<Tensor>,
    /// Error words of its kernels.
    pub(crate) words: Option<Words>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Some(captures) = self.driver.captures() {
            captures.release(self.captured);
        }
    }
}

impl Replay {
    /// Queues the recorded work once more.
    pub(crate) fn run(&self) -> Result<()> {
        match self.driver.captures() {
            // SAFETY: the recording holds the memory that it uses and is dropped before its kernels
            // are; it is not dropped before the current op has finished. Inputs and outputs at its
            // addresses belong to the op, or are held by the recording's owner.
            Some(captures) => unsafe { captures.replay(self.captured) },
            None => Ok(()),
        }
    }
}
