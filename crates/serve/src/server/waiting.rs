//! The waiting requests, and which of them goes next.
//!
//! Joinable requests share a key and wait together, in a list for each priority; requests that
//! cannot be joined wait in lists of their own. The heads of all lists are sorted by arrival, so a
//! batch is found and taken in logarithmic time for any number of keys.
//!
//! The priorities have the shares that they have in a device's queue ([`Priority::order_at`]):
//! while requests of all three wait, of eight batches five begin with the oldest urgent request,
//! two with the oldest normal one and one with the oldest patient one. So no request waits for
//! ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use panoply_runtime::Priority;

use super::queue::Request;
use super::rank;

/// The key that joinable requests share; `None` for requests that are never joined.
pub(super) type JoinKey = Option<Arc<[u64]>>;

/// Number of priorities.
const RANKS: usize = 3;
/// Number of requests of a list that may be skipped for their size before the search ends.
const LEFT_OUT_MAX: usize = 32;

/// A request with its number by arrival.
type NumberedRequest = (u64, Request);

/// Requests of one key.
#[derive(Default)]
struct Group {
    waiting: [VecDeque<NumberedRequest>; RANKS],
    rows: usize,
}

#[derive(Default)]
pub(super) struct WaitingRequests {
    groups: HashMap<JoinKey, Group>,
    /// For each priority, the key of each list by the number of its oldest request.
    heads: [BTreeMap<u64, JoinKey>; RANKS],
    /// The number of batches so far, modulo the number of turns.
    turns: u32,
    next_number: u64,
    len: usize,
    bytes: u64,
}

impl WaitingRequests {
    /// Number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all waiting requests.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The priority whose oldest request goes first, and that request's list.
    fn turn(&self) -> Option<(usize, &JoinKey)> {
        let heads = |rank: usize| self.heads[rank].first_key_value().map(|(_, key)| (rank, key));
        let order = Priority::order_at(self.turns + 1);
        order.into_iter().find_map(|priority| heads(usize::from(rank(priority))))
    }

    /// The number of rows that would go with the next batch's first request, and the time since
    /// which that one waits.
    pub(super) fn front(&self, batch_max: usize) -> Option<(usize, Instant)> {
        let (rank, key) = self.turn()?;
        let group = self.groups.get(key)?;
        let (_, front) = group.waiting[rank].front()?;
        match key.is_none() || front.rows >= batch_max {
            true => Some((batch_max, front.arrived)),
            false => Some((group.rows, front.arrived)),
        }
    }

    /// Adds a request. Returns whether to wake an instance: the queue was empty, or the request is
    /// now the first, or a batch is full. Other requests join one that an instance is already
    /// waiting with.
    pub(super) fn put(&mut self, request: Request, batch_max: usize) -> bool {
        let rank = usize::from(rank(request.run.priority));
        let is_first = self.heads[..=rank].iter().all(BTreeMap::is_empty);
        let (key, number) = (request.key.clone(), self.next_number);
        self.next_number += 1;
        self.len += 1;
        self.bytes = self.bytes.saturating_add(request.bytes);
        let group = self.groups.entry(key.clone()).or_default();
        group.rows = group.rows.saturating_add(request.rows);
        let is_full = key.is_none() || group.rows >= batch_max;
        if group.waiting[rank].is_empty() {
            self.heads[rank].insert(number, key);
        }
        group.waiting[rank].push_back((number, request));
        is_first || is_full
    }

    /// Takes the next request and all that join it, up to `rows_max` rows in total.
    pub(super) fn take(&mut self, rows_max: usize) -> Vec<Request> {
        let Some((first, key)) = self.turn().map(|(rank, key)| (rank, key.clone())) else { return Vec::new() };
        self.turns = (self.turns + 1) % Priority::TURNS;
        let batch = self.take_of(&key, first, rows_max);
        self.len -= batch.len();
        self.bytes = self.bytes.saturating_sub(batch.iter().map(|request| request.bytes).sum());
        batch
    }

    /// Takes the oldest request of a priority and a key, then others of that key, highest priority
    /// first.
    fn take_of(&mut self, key: &JoinKey, first: usize, rows_max: usize) -> Vec<Request> {
        let Some(group) = self.groups.get_mut(key) else { return Vec::new() };
        for (heads, list) in self.heads.iter_mut().zip(&group.waiting) {
            list.front().map(|(number, _)| heads.remove(number));
        }
        let mut batch: Vec<Request> =
            group.waiting[first].pop_front().map(|(_, request)| request).into_iter().collect();
        let mut rows = batch.iter().map(|request| request.rows).sum::<usize>();
        for list in group.waiting.iter_mut().filter(|_| key.is_some()) {
            let mut place = 0;
            while rows < rows_max && place < list.len().min(LEFT_OUT_MAX) {
                if rows.saturating_add(list[place].1.rows) > rows_max {
                    place += 1;
                } else if let Some((_, request)) = list.remove(place) {
                    rows += request.rows;
                    batch.push(request);
                }
            }
        }
        group.rows = group.rows.saturating_sub(rows);
        for (heads, list) in self.heads.iter_mut().zip(&group.waiting) {
            list.front().map(|(number, _)| heads.insert(*number, key.clone()));
        }
        if group.waiting.iter().all(VecDeque::is_empty) {
            self.groups.remove(key);
        }
        batch
    }

    /// Drops the requests whose callers are gone.
    pub(super) fn drop_unwanted(&mut self, batch_max: usize) {
        let turns = self.turns;
        let left = std::mem::take(self);
        let mut requests: Vec<NumberedRequest> =
            left.groups.into_values().flat_map(|group| group.waiting).flatten().collect();
        requests.retain(|(_, request)| request.is_wanted());
        requests.sort_unstable_by_key(|(number, _)| *number);
        for (_, request) in requests {
            self.put(request, batch_max);
        }
        self.turns = turns;
    }

    /// Takes all requests, in no particular order.
    pub(super) fn drain(&mut self) -> Vec<Request> {
        let left = std::mem::take(self);
        let lists = left.groups.into_values().flat_map(|group| group.waiting);
        lists.flatten().map(|(_, request)| request).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use panoply_lockfree::slot::{Receiver, slot};
    use panoply_runtime::{Priority, RunOptions};

    use super::*;

    /// A request that is identified by its bytes.
    fn request(key: Option<u64>, rows: usize, priority: Priority, bytes: u64) -> Request {
        kept_request(key, rows, priority, bytes).0
    }

    /// The same, with the caller's side.
    fn kept_request(
        key: Option<u64>,
        rows: usize,
        priority: Priority,
        bytes: u64,
    ) -> (Request, Receiver<(), super::super::queue::Answer>) {
        let key = key.map(|key| Arc::from([key]));
        let run = RunOptions { priority, ..RunOptions::default() };
        let (answer, receiver) = slot(());
        let arrived = Instant::now();
        (Request { inputs: Vec::new(), key, rows, bytes, arrived, run, answer }, receiver)
    }

    fn names(batch: &[Request]) -> Vec<u64> {
        batch.iter().map(|request| request.bytes).collect()
    }

    #[test]
    fn nobody_starves_under_endless_urgent_requests() {
        let mut waiting = WaitingRequests::default();
        for (name, priority) in [(1, Priority::Patient), (2, Priority::Normal), (3, Priority::Patient)] {
            waiting.put(request(None, 1, priority, name), 1);
        }
        let mut taken_at = HashMap::new();
        for batch in 0..100 {
            // Two arrive for each that is taken.
            for _ in 0..2 {
                waiting.put(request(Some(batch), 1, Priority::Urgent, 1000 + batch), 1);
            }
            taken_at.extend(names(&waiting.take(1)).into_iter().map(|name| (name, batch as u32)));
        }
        let at = |name: u64| taken_at.get(&name).copied().unwrap_or(u32::MAX);
        assert!([1, 2, 3].into_iter().all(|name| at(name) < Priority::TURNS), "{} {} {}", at(1), at(2), at(3));
        assert_eq!(waiting.len(), 103, "each is taken once");
    }

    #[test]
    fn each_priority_has_its_share_of_the_batches() {
        const BATCHES: u64 = 80;
        let mut waiting = WaitingRequests::default();
        for key in 0..BATCHES {
            for (name, priority) in [Priority::Urgent, Priority::Normal, Priority::Patient].into_iter().enumerate() {
                waiting.put(request(Some(key * 3 + name as u64), 1, priority, name as u64), 8);
            }
        }
        let mut taken = [0; 3];
        for _ in 0..BATCHES {
            names(&waiting.take(8)).into_iter().for_each(|name| taken[name as usize] += 1);
        }
        assert_eq!(taken, [50, 20, 10], "as in the queue of a device");
    }

    #[test]
    fn urgent_requests_go_first_otherwise() {
        let mut waiting = WaitingRequests::default();
        waiting.put(request(Some(1), 1, Priority::Patient, 1), 8);
        waiting.put(request(Some(2), 1, Priority::Normal, 2), 8);
        waiting.put(request(Some(3), 1, Priority::Urgent, 3), 8);
        waiting.put(request(Some(3), 1, Priority::Patient, 4), 8);
        // The patient one of its key goes with the urgent one.
        assert_eq!(names(&waiting.take(8)), [3, 4]);
        assert_eq!(names(&waiting.take(8)), [2]);
        assert_eq!(names(&waiting.take(8)), [1]);
        assert!(waiting.take(8).is_empty() && waiting.len() == 0 && waiting.bytes() == 0);
        assert!(waiting.groups.is_empty() && waiting.heads.iter().all(BTreeMap::is_empty));
    }

    #[test]
    fn batches_are_as_full_as_their_requests_allow() {
        let mut waiting = WaitingRequests::default();
        for (name, rows) in [(1, 3), (2, 9), (3, 4), (4, 2), (5, 1)] {
            waiting.put(request(Some(7), rows, Priority::Normal, name), 8);
        }
        assert_eq!(names(&waiting.take(8)), [1, 3, 5]);
        assert_eq!(
            waiting.front(8).map(|(rows, _)| rows),
            Some(8),
            "a request that is larger than a batch goes at once"
        );
        assert_eq!(names(&waiting.take(8)), [2]);
        assert_eq!(waiting.front(8).map(|(rows, _)| rows), Some(2));
        assert_eq!(waiting.drain().len(), 1);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn callers_that_are_gone_take_no_room() {
        let mut waiting = WaitingRequests::default();
        let mut kept = Vec::new();
        for name in 0..100 {
            let (request, caller) = kept_request(Some(name % 3), 1, Priority::Normal, 1 + name);
            waiting.put(request, 8);
            kept.extend((name % 10 == 0).then_some(caller));
        }
        waiting.drop_unwanted(8);
        assert_eq!((waiting.len(), waiting.bytes()), (10, 460));
        assert_eq!(names(&waiting.take(1)), [1], "the oldest still goes first");
    }

    /// With a search of all requests for each batch this would take minutes.
    #[test]
    fn many_keys_are_taken_as_fast_as_one() {
        const COUNT: u64 = 100_000;
        let begin = Instant::now();
        let mut waiting = WaitingRequests::default();
        for name in 0..COUNT {
            let priority = [Priority::Urgent, Priority::Normal, Priority::Patient][name as usize % 3];
            waiting.put(request(Some(name), 1, priority, 1), 8);
        }
        for _ in 0..COUNT {
            assert!(waiting.front(8).is_some());
            assert_eq!(waiting.take(8).len(), 1);
        }
        assert_eq!(waiting.len(), 0);
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    /// Requests of one key that do not fit together: the list is not searched completely for each.
    #[test]
    fn many_requests_that_do_not_fit_together_are_taken_fast() {
        const COUNT: u64 = 100_000;
        let begin = Instant::now();
        let mut waiting = WaitingRequests::default();
        for _ in 0..COUNT {
            waiting.put(request(Some(1), 5, Priority::Normal, 1), 8);
        }
        (0..COUNT).for_each(|_| assert_eq!(waiting.take(8).len(), 1));
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }
}
