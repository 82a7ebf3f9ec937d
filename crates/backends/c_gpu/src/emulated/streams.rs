//! Streams that run late and in a random order, as far as their events allow: a missing wait shows
//! as a wrong answer. One stream at a time is held back, so that the others overtake it by far.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::recording::RecordedCommand;
use crate::driver::{Function, LANES_MAX, Stream};

/// Number of streams: the upload stream, and two for each lane.
const STREAMS: usize = 1 + 2 * LANES_MAX;
/// Average number of commands after which another stream is held back.
const HELD_COMMANDS: u64 = 24;

/// The queues of a device, and the progress of its events.
pub(super) struct ShuffledStreams {
    queues: RefCell<[VecDeque<StreamEntry>; STREAMS]>,
    events: RefCell<Vec<EventProgress>>,
    random: Cell<u64>,
    held: Cell<usize>,
}

/// An entry of a stream's queue.
enum StreamEntry {
    Command(RecordedCommand),
    /// An event, and how often it has been recorded by then.
    Record(usize, u64),
    Wait(usize, u64),
}

#[derive(Default)]
struct EventProgress {
    recorded: u64,
    /// The recordings that their streams have not passed. Those of different streams are passed in
    /// any order.
    ahead: Vec<u64>,
}

impl EventProgress {
    fn is_past(&self, recording: u64) -> bool {
        !self.ahead.contains(&recording)
    }
}

impl ShuffledStreams {
    pub(super) fn new(seed: u64) -> ShuffledStreams {
        let (queues, events, random) = (RefCell::default(), RefCell::default(), Cell::new(seed));
        let streams = ShuffledStreams { queues, events, random, held: Cell::default() };
        streams.held.set(streams.below(STREAMS as u64) as usize);
        streams
    }

    /// A number below `limit`.
    pub(super) fn below(&self, limit: u64) -> u64 {
        // SplitMix64.
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }

    /// The number of a stream of a lane.
    fn number(stream: Stream, lane: usize) -> usize {
        match stream {
            Stream::Upload => 0,
            Stream::Compute => 1 + 2 * lane,
            Stream::Download => 2 + 2 * lane,
        }
    }

    pub(super) fn push(&self, stream: Stream, lane: usize, command: RecordedCommand) {
        self.queue(stream, lane, StreamEntry::Command(command));
    }

    fn queue(&self, stream: Stream, lane: usize, queued: StreamEntry) {
        self.queues.borrow_mut()[ShuffledStreams::number(stream, lane)].push_back(queued);
    }

    /// Creates an event and returns its index.
    pub(super) fn event(&self) -> usize {
        let mut events = self.events.borrow_mut();
        events.push(EventProgress::default());
        events.len() - 1
    }

    pub(super) fn record(&self, event: usize, stream: Stream, lane: usize) {
        let recorded = {
            let progress = &mut self.events.borrow_mut()[event];
            progress.recorded += 1;
            progress.ahead.push(progress.recorded);
            progress.recorded
        };
        self.queue(stream, lane, StreamEntry::Record(event, recorded));
    }

    /// Makes a stream wait for the present recording of an event.
    pub(super) fn wait_for(&self, stream: Stream, lane: usize, event: usize) {
        let recorded = self.events.borrow()[event].recorded;
        self.queue(stream, lane, StreamEntry::Wait(event, recorded));
    }

    pub(super) fn is_past(&self, event: usize) -> bool {
        let progress = &self.events.borrow()[event];
        progress.is_past(progress.recorded)
    }

    pub(super) fn is_empty(&self, stream: Stream, lane: usize) -> bool {
        self.queues.borrow()[ShuffledStreams::number(stream, lane)].is_empty()
    }

    /// Whether a queued launch uses a kernel.
    pub(super) fn uses(&self, function: Function) -> bool {
        let launches = |queued: &StreamEntry| match queued {
            StreamEntry::Command(RecordedCommand::Launch(used, ..)) => *used == function,
            _ => false,
        };
        self.queues.borrow().iter().flatten().any(launches)
    }

    /// Takes the next command to run: of any stream that does not wait. `None` if all streams are
    /// empty, or wait, or if only the stream that is held back could run and `is_urgent` is not
    /// set.
    pub(super) fn next(&self, is_urgent: bool) -> Option<RecordedCommand> {
        loop {
            let number = self.choose(is_urgent)?;
            let queued = self.queues.borrow_mut()[number].pop_front();
            match queued? {
                StreamEntry::Command(command) => return Some(command),
                StreamEntry::Record(event, recorded) => {
                    self.events.borrow_mut()[event].ahead.retain(|recording| *recording != recorded);
                }
                StreamEntry::Wait(..) => {}
            }
        }
    }

    /// A stream whose first entry may run.
    fn choose(&self, is_urgent: bool) -> Option<usize> {
        if self.below(HELD_COMMANDS) == 0 {
            self.held.set(self.below(STREAMS as u64) as usize);
        }
        let can_run = |queued: &StreamEntry| match queued {
            StreamEntry::Wait(event, recorded) => self.events.borrow()[*event].is_past(*recorded),
            _ => true,
        };
        let queues = self.queues.borrow();
        let ready: Vec<usize> = (0..STREAMS).filter(|number| queues[*number].front().is_some_and(can_run)).collect();
        let others: Vec<usize> = ready.iter().copied().filter(|number| *number != self.held.get()).collect();
        let from = if others.is_empty() && is_urgent { ready } else { others };
        from.get(self.below(from.len() as u64) as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Address;

    fn fill(byte: u8) -> RecordedCommand {
        RecordedCommand::Fill { target: Address::NULL, byte, bytes: 0 }
    }

    fn order(streams: &ShuffledStreams) -> Vec<u8> {
        let byte = |command| if let RecordedCommand::Fill { byte, .. } = command { byte } else { 0 };
        std::iter::from_fn(|| streams.next(true).map(byte)).collect()
    }

    #[test]
    fn streams_overtake_each_other_unless_an_event_orders_them() {
        let (mut first_first, mut second_first) = (0, 0);
        for seed in 0..200 {
            let streams = ShuffledStreams::new(seed);
            streams.push(Stream::Compute, 0, fill(1));
            streams.push(Stream::Compute, 1, fill(2));
            match order(&streams)[..] {
                [1, 2] => first_first += 1,
                [2, 1] => second_first += 1,
                ref other => panic!("{other:?}"),
            }
            let event = streams.event();
            streams.push(Stream::Compute, 0, fill(1));
            streams.record(event, Stream::Compute, 0);
            assert!(!streams.is_past(event));
            streams.wait_for(Stream::Compute, 1, event);
            streams.push(Stream::Compute, 1, fill(2));
            assert_eq!(order(&streams), [1, 2]);
            assert!(streams.is_past(event));
        }
        assert!(first_first > 20 && second_first > 20, "{first_first} {second_first}");
    }
}
