//! Compress and Decompress.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use panoply_core::op::crypto::{Compress, Decompress, Messages};
use panoply_core::{Bytes, Error, Result, Threads};

use super::{
    COMPRESS_NS_PER_BYTE, DECOMPRESS_NS_PER_BYTE, State, TakeMemory, failure, finished, free_packer, offsets_of,
};
use crate::failure::Failure;
use crate::pack::{bound, first_tries};
use crate::spread::{MessageOutput, Slots, spread};

pub(super) fn compress(
    op: &Compress,
    state: &mut State,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Messages> {
    let messages = op.messages.slices()?;
    let offsets = offsets_of(messages.iter().map(|message| bound(op.format, message.len())))?;
    let mut out = take(offsets[messages.len()])?;
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let packers = state.packers(threads.count());
    let time = |index: usize| 500.0 + messages[index].len() as f64 * COMPRESS_NS_PER_BYTE;
    let work = |index: usize, slot: MessageOutput<'_>| {
        free_packer(packers, index).compress(op.format, op.level, messages[index], slot.out)
    };
    spread(threads, slots, &time, &work).map_err(failure("compress", 0))?;
    finished(&op.messages, out, offsets, &lens, Some(take))
}

pub(super) fn decompress(
    op: &Decompress,
    state: &mut State,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Messages> {
    let (limit, total) = (op.limit_bytes.min(op.total_bytes_max()), op.total_bytes_max());
    let messages = op.messages.slices()?;
    let rooms = first_tries(op.format, &messages, limit, total);
    let offsets = offsets_of(rooms.iter().map(|room| room.unwrap_or(0)))?;
    let mut out = take(offsets[messages.len()])?;
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let packers = state.packers(threads.count());
    // Messages that did not fit into their first memory.
    let longer: Vec<OnceLock<Vec<u8>>> = messages.iter().map(|_| OnceLock::new()).collect();
    // Total output so far.
    let sum = AtomicUsize::new(0);
    let counted = |len: usize| match sum.fetch_add(len, Ordering::Relaxed).saturating_add(len) {
        sum if sum > total => Err(Failure::TotalLimit),
        _ => Ok(()),
    };
    let time = |index: usize| 500.0 + rooms[index].unwrap_or(0) as f64 * DECOMPRESS_NS_PER_BYTE / 4.0;
    let work = |index: usize, slot: MessageOutput<'_>| {
        rooms[index]?;
        let mut packer = free_packer(packers, index);
        match packer.decompress(op.format, messages[index], slot.out) {
            Err(Failure::Limit) => {
                let (tried, left) = (slot.out.len(), total.saturating_sub(sum.load(Ordering::Relaxed)));
                let made = packer.decompress_further(op.format, messages[index], tried, limit.min(left));
                let made = made.map_err(|failure| match failure {
                    Failure::Limit if left < limit => Failure::TotalLimit,
                    other => other,
                })?;
                counted(made.len())?;
                // Each message is processed once.
                let _ = longer[index].set(made);
                Ok(0)
            }
            outcome => outcome.and_then(|len| counted(len).map(|()| len)),
        }
    };
    spread(threads, slots, &time, &work).map_err(|(index, failed)| match failed {
        Failure::TotalLimit => Error::OutputLimit { op: "decompress", index, limit: total },
        other => failure("decompress", limit)((index, other)),
    })?;
    let longer: Vec<Option<Vec<u8>>> = longer.into_iter().map(OnceLock::into_inner).collect();
    if longer.iter().all(Option::is_none) {
        return finished(&op.messages, out, offsets, &lens, Some(take));
    }
    let ends = offsets_of(lens.iter().zip(&longer).map(|(len, longer)| longer.as_ref().map_or(*len, Vec::len)))?;
    let mut whole = take(ends[messages.len()])?;
    for (index, longer) in longer.into_iter().enumerate() {
        let place = &mut whole.bytes_mut()[ends[index]..ends[index + 1]];
        match longer {
            Some(longer) => place.copy_from_slice(&longer),
            None => place.copy_from_slice(&out.bytes()[offsets[index]..offsets[index] + lens[index]]),
        }
    }
    op.messages.like(Bytes::from_host(whole.freeze()), ends)
}
