//! Distributes the messages of a batch over threads. Messages are cut into runs of about equal
//! work; each run writes its own part of the output, so nothing is shared but the list of runs.

use std::ops::Range;
use std::sync::Mutex;

use panoply_core::Threads;

use crate::failure::Failure;

/// Less work is not worth a second thread.
const SPREAD_NS_MIN: f64 = 15_000.0;
/// Minimal work of one run; handing it out costs a few hundred nanoseconds.
const RUN_NS_MIN: f64 = 4_000.0;
/// Runs per thread, so that a slow run delays little.
const RUNS_PER_THREAD: usize = 4;

/// The destination of the messages' results.
pub struct Slots<'a> {
    /// The output.
    pub out: &'a mut [u8],
    /// Start of each message's part of the output, and the end of the last.
    pub offsets: &'a [usize],
    /// A second output, with the same number of bytes for each message: tags.
    pub side: &'a mut [u8],
    /// Bytes of the second output for each message.
    pub side_each: usize,
    /// Number of bytes that each message has used of its part; filled in.
    pub lens: &'a mut [usize],
}

/// The destination of one message.
pub struct MessageOutput<'a> {
    /// Its part of the output.
    pub out: &'a mut [u8],
    /// Its part of the second output.
    pub side: &'a mut [u8],
}

/// A run of messages with its parts of the outputs.
pub struct Run<'a> {
    /// The indices of its messages.
    pub messages: Range<usize>,
    /// Their part of the output.
    pub out: &'a mut [u8],
    /// Their part of the second output.
    pub side: &'a mut [u8],
    /// Number of bytes that each message has used of its part; to be filled in if not all.
    pub lens: &'a mut [usize],
}

impl<'a> Run<'a> {
    /// Each message's part of the output; `offsets` has those of all messages.
    pub fn parts(self, offsets: &[usize]) -> Vec<&'a mut [u8]> {
        let (mut rest, mut parts) = (self.out, Vec::with_capacity(self.messages.len()));
        for message in self.messages {
            let (part, behind) = rest.split_at_mut(offsets[message + 1] - offsets[message]);
            parts.push(part);
            rest = behind;
        }
        parts
    }
}

/// Calls `work` for each message with its index and slot; `work` returns how much of the part it
/// has used. `time_ns` estimates the time of a message. If some fail, the first is returned, and
/// later ones may be skipped.
pub fn spread(
    threads: &dyn Threads,
    slots: Slots<'_>,
    time_ns: &dyn Fn(usize) -> f64,
    work: &(impl Fn(usize, MessageOutput<'_>) -> Result<usize, Failure> + Sync),
) -> Result<(), (usize, Failure)> {
    spread_prepared(threads, slots, 1, time_ns, &|_| Ok(()), &|_: &(), _, index, slot: MessageOutput<'_>| {
        work(index, slot)
    })
}

/// Like `spread`, with groups of at most `together` messages, for each of which something is
/// prepared. `work` gets the prepared value, the message's index in the group, its index in the
/// batch, and its slot.
pub fn spread_prepared<P>(
    threads: &dyn Threads,
    slots: Slots<'_>,
    together: usize,
    time_ns: &dyn Fn(usize) -> f64,
    prepare: &(impl Fn(Range<usize>) -> Result<P, (usize, Failure)> + Sync),
    work: &(impl Fn(&P, usize, usize, MessageOutput<'_>) -> Result<usize, Failure> + Sync),
) -> Result<(), (usize, Failure)> {
    let (offsets, side_each) = (slots.offsets, slots.side_each);
    spread_runs(threads, slots, together, time_ns, &|run: Run<'_>| {
        let Run { messages, out, side, lens } = run;
        let base = offsets[messages.start];
        for (group, lens) in lens.chunks_mut(together.max(1)).enumerate() {
            let first = messages.start + group * together;
            let prepared = prepare(first..first + lens.len())?;
            for (place, len) in lens.iter_mut().enumerate() {
                let message = first + place;
                let out = &mut out[offsets[message] - base..offsets[message + 1] - base];
                let beside = message - messages.start;
                let side = &mut side[beside * side_each..(beside + 1) * side_each];
                let made = work(&prepared, place, message, MessageOutput { out, side });
                *len = made.map_err(|failure| (message, failure))?;
            }
        }
        Ok(())
    })
}

/// Processes a run. If some of its messages fail, it returns the first.
pub type WorkOnRun<'a> = &'a (dyn Fn(Run<'_>) -> Result<(), (usize, Failure)> + Sync);

/// Like `spread`, with whole runs of messages: at least `together` messages each, unless that
/// leaves a thread idle.
pub fn spread_runs(
    threads: &dyn Threads,
    slots: Slots<'_>,
    together: usize,
    time_ns: &dyn Fn(usize) -> f64,
    work: WorkOnRun<'_>,
) -> Result<(), (usize, Failure)> {
    let ends = cut(slots.lens.len(), threads.count(), together, time_ns);
    let runs: Vec<Mutex<Option<Run<'_>>>> =
        cut_slots(slots, &ends).into_iter().map(|run| Mutex::new(Some(run))).collect();
    let failed: Mutex<Option<(usize, Failure)>> = Mutex::new(None);
    let is_needed = |run: &Run<'_>| {
        let failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        failed.is_none_or(|(first, _)| run.messages.start < first)
    };
    threads.run(runs.len(), &|index| {
        let run = runs[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(Err(own)) = run.filter(is_needed).map(work) {
            let mut failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *failed = Some(failed.map_or(own, |first| if own.0 < first.0 { own } else { first }));
        }
    });
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
}

/// The end of each run: about equal work for each.
fn cut(count: usize, threads: usize, together: usize, time_ns: &dyn Fn(usize) -> f64) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    if threads < 2 || count < 2 {
        return vec![count];
    }
    let total: f64 = (0..count).map(time_ns).sum();
    if total < SPREAD_NS_MIN {
        return vec![count];
    }
    let runs = (threads * RUNS_PER_THREAD).min((count / together.max(1)).max(threads));
    let each = (total / runs as f64).max(RUN_NS_MIN);
    let (mut ends, mut sum) = (Vec::new(), 0.0);
    for message in 0..count {
        sum += time_ns(message);
        if sum >= each && message + 1 < count {
            ends.push(message + 1);
            sum = 0.0;
        }
    }
    ends.push(count);
    ends
}

fn cut_slots<'a>(slots: Slots<'a>, ends: &[usize]) -> Vec<Run<'a>> {
    let Slots { mut out, offsets, mut side, side_each, mut lens } = slots;
    let mut first = 0;
    let skipped = offsets.first().copied().unwrap_or(0);
    out = &mut out[skipped..];
    let mut runs = Vec::with_capacity(ends.len());
    for end in ends {
        let (own_out, rest_out) = out.split_at_mut(offsets[*end] - offsets[first]);
        let (own_side, rest_side) = side.split_at_mut((end - first) * side_each);
        let (own_lens, rest_lens) = lens.split_at_mut(end - first);
        runs.push(Run { messages: first..*end, out: own_out, side: own_side, lens: own_lens });
        (out, side, lens, first) = (rest_out, rest_side, rest_lens, *end);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scoped threads of the test.
    struct ScopedThreads(usize);

    impl Threads for ScopedThreads {
        fn count(&self) -> usize {
            self.0
        }

        fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|scope| (0..tasks).for_each(|index| drop(scope.spawn(move || task(index)))));
        }
    }

    #[test]
    fn every_message_gets_its_own_places() {
        for (threads, count, ns) in [(1, 5, 1e6), (3, 0, 1.0), (3, 1, 1e9), (3, 100, 10.0), (3, 100, 1e6), (2, 7, 1e5)]
        {
            let offsets: Vec<usize> = (0..=count).map(|index| 2 + index * (index + 1) / 2).collect();
            let (mut out, mut side) = (vec![0_u8; offsets[count] + 3], vec![0_u8; 2 * count]);
            let mut lens = vec![0; count];
            let slots = Slots { out: &mut out, offsets: &offsets, side: &mut side, side_each: 2, lens: &mut lens };
            let work = |index: usize, slot: MessageOutput<'_>| {
                assert_eq!((slot.out.len(), slot.side.len()), (index + 1, 2));
                slot.out.fill(index as u8 + 1);
                slot.side.fill(index as u8);
                Ok(slot.out.len())
            };
            spread(&ScopedThreads(threads), slots, &|_| ns, &work).unwrap();
            assert_eq!(lens, (1..=count).collect::<Vec<_>>());
            for index in 0..count {
                assert!(out[offsets[index]..offsets[index + 1]].iter().all(|byte| *byte == index as u8 + 1));
                assert_eq!(side[2 * index..2 * index + 2], [index as u8; 2]);
            }
            assert_eq!(out[..2], [0; 2]);
        }
    }

    #[test]
    fn the_first_that_fails_is_the_answer() {
        let (mut lens, offsets) = (vec![0; 50], vec![0; 51]);
        let slots = Slots { out: &mut [], offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
        let work = |index: usize, _: MessageOutput<'_>| if index % 7 == 6 { Err(Failure::Rejected) } else { Ok(0) };
        assert_eq!(spread(&ScopedThreads(3), slots, &|_| 1e5, &work), Err((6, Failure::Rejected)));
    }
}
