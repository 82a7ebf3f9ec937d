//! The choice of the devices that hold rows.
//!
//! 1. Candidates are GPUs, also integrated ones, and TPUs. Software GPUs compute on the host's
//!    cores, so the host does that better.
//! 2. Hardware that several APIs reach is used through one of them: the fastest that can search
//!    the rows, is ready, and has room for them.
//! 3. Several pieces of hardware share the rows by their speed, each within its room. One that is
//!    slower than the host holds no rows.
//! 4. Speeds are measured by searches of a sample, only where they decide anything: once for each
//!    device, and again when the collection has doubled. The rest of the choice is made before
//!    every upload, so that it follows devices that fail, are drained or come back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use panoply_core::op::compute::{Metric, Search, Transfer};
use panoply_core::{DeviceId, DeviceInfo, DeviceKind, ErrorKind, Result, Tensor, Verdict};
use panoply_runtime::{Circuit, FallbackPolicy, RunOptions, WorkerReport, WorkerState};

use crate::schema::Residency;
use crate::segment::SegmentView;
use crate::state::{CollectionState, Snapshot};

/// The share (1/8) of a collection's rows that is searched to measure a device, and the most bytes.
const SAMPLE_SHARE: usize = 8;
const SAMPLE_BYTES_MAX: usize = 32 << 20;
/// The numbers of queries in the measured searches. Single callers need the first, batches the
/// second.
const SAMPLE_QUERIES: [usize; 2] = [1, 64];
const SAMPLE_K: usize = 10;
/// Measured runs of each search; the fastest counts. One run before them compiles kernels.
const SAMPLE_RUNS: usize = 3;
/// The share of a device's free memory that rows may take, in percent. Searches need the rest.
const ROOM_PERCENT: u64 = 90;
/// How long a choice counts before devices are judged again.
const CHOICE_AGE_MAX: Duration = Duration::from_millis(250);
/// Searches that may find too little memory on a device before its rows go back to the host.
const SHORTAGES_MAX: u32 = 3;

/// Whether a device holds rows of a collection, and why or why not.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePlacement {
    /// The device.
    pub device: DeviceId,
    /// The device's name.
    pub name: String,
    /// The choice.
    pub verdict: PlacementVerdict,
    /// The measured time of a search of a sample. `None` if the speed did not matter.
    pub sample_time: Option<Duration>,
}

/// Why a device holds rows, or none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PlacementVerdict {
    /// It holds this share of the rows, from 0 to 1.
    Holds(f64),
    /// The same hardware holds the rows as this device, through a faster API.
    SameHardware(DeviceId),
    /// The host searches faster.
    SlowerThanHost,
    /// Its memory has no room.
    NoRoom,
    /// The device is not ready, for this reason. Later choices examine it again.
    NotReady(String),
    /// It cannot search the rows, for this reason.
    Unsupported(String),
}

/// A collection's knowledge of the devices that may hold its rows.
#[derive(Default)]
pub(crate) struct Placement {
    /// Measured times, also of the host. Held while devices are judged.
    times: Mutex<SampleTimes>,
    /// Held only briefly: searches that fail add to it.
    failures: Mutex<Failures>,
    /// The last choice.
    last: RwLock<Arc<LastChoice>>,
}

/// The times of searches of so many rows.
type SampleTimes = HashMap<(DeviceId, usize), Duration>;

#[derive(Default)]
struct LastChoice {
    all: Vec<DevicePlacement>,
    /// When it was made; `None` if it no longer counts.
    made: Option<Instant>,
}

/// The failures since the last upload on request.
#[derive(Clone, Default)]
struct Failures {
    /// The devices that cannot search rows after all, and the reason.
    refused: HashMap<DeviceId, String>,
    /// The number of searches that found too little memory.
    shortages: HashMap<DeviceId, u32>,
}

/// The part of the rows that a device should hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceShare {
    pub(crate) device: DeviceId,
    /// From 0 to 1. The host keeps what is missing from 1 in all.
    pub(crate) share: f64,
}

/// A device that may hold rows.
struct Candidate<'a> {
    info: &'a DeviceInfo,
    verdict: PlacementVerdict,
    /// Bytes of rows for which it has room.
    room_bytes: u64,
    time: Option<Duration>,
}

/// The choice for one collection at one moment.
struct Choice<'a> {
    shared: &'a CollectionState,
    sample: &'a SegmentView,
    bytes: u64,
    candidates: Vec<Candidate<'a>>,
    /// Number of rows in the measured searches.
    sample_rows: usize,
    times: &'a mut SampleTimes,
}

impl Placement {
    /// The last choice; empty before the first one, and if the options leave no choice.
    pub(crate) fn last(&self, shared: &CollectionState) -> Vec<DevicePlacement> {
        shared.read(&self.last).all.clone()
    }

    /// Whether a device may hold rows later that cannot now.
    pub(crate) fn awaits_devices(&self, shared: &CollectionState) -> bool {
        shared.read(&self.last).all.iter().any(|one| matches!(one.verdict, PlacementVerdict::NotReady(_)))
    }

    /// Has the next upload judge the devices again.
    pub(crate) fn expire(&self) {
        let mut last = self.last.write().unwrap_or_else(PoisonError::into_inner);
        *last = Arc::new(LastChoice { all: last.all.clone(), made: None });
    }

    /// Records that a device cannot search rows that it was given. A device that is not ready may
    /// be able to later: the runtime refuses its ops with the same error.
    pub(crate) fn refuse(&self, shared: &CollectionState, device: DeviceId, reason: String) {
        let is_ready = |worker: &WorkerReport| worker.device == device && worker.state == WorkerState::Ready;
        if shared.runtime.workers().iter().any(is_ready) {
            self.failures().refused.insert(device, reason);
        }
    }

    /// Records that a device had too little memory for a search. Returns true if that happened so
    /// often that its rows should go back to the host.
    pub(crate) fn note_shortage(&self, device: DeviceId) -> bool {
        let mut failures = self.failures();
        let shortages = failures.shortages.entry(device).or_default();
        *shortages += 1;
        let gives_up = *shortages >= SHORTAGES_MAX;
        if gives_up {
            failures.refused.insert(device, "it has too little memory for searches".to_owned());
        }
        gives_up
    }

    /// Gives every device another chance.
    pub(crate) fn forgive(&self) {
        *self.failures() = Failures::default();
        self.expire();
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The devices that should hold rows of a snapshot now, and how many.
pub(crate) fn shares(shared: &CollectionState, snapshot: &Snapshot) -> Vec<DeviceShare> {
    let devices = devices(shared, snapshot, &shared.options.residency);
    let last = shared.read(&shared.placement.last);
    if devices.is_empty() {
        if !last.all.is_empty() {
            *shared.placement.last.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        }
        return Vec::new();
    }
    if last.made.is_some_and(|made| made.elapsed() < CHOICE_AGE_MAX) {
        return shares_of(&last.all);
    }
    let all = judge(shared, snapshot, devices.iter().collect(), &shared.options.residency);
    let shares = shares_of(&all);
    // Without rows there is nothing to judge, and the first ones must not wait.
    let made = (!all.is_empty()).then(Instant::now);
    *shared.placement.last.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(LastChoice { all, made });
    shares
}

/// The choice that a residency would lead to. Uploads nothing.
pub(crate) fn preview(shared: &CollectionState, snapshot: &Snapshot, residency: &Residency) -> Vec<DevicePlacement> {
    let devices = devices(shared, snapshot, residency);
    judge(shared, snapshot, devices.iter().collect(), residency)
}

fn shares_of(all: &[DevicePlacement]) -> Vec<DeviceShare> {
    let share = |one: &DevicePlacement| match one.verdict {
        PlacementVerdict::Holds(share) => Some(DeviceShare { device: one.device, share }),
        _ => None,
    };
    all.iter().filter_map(share).collect()
}

/// The devices that may hold rows.
fn devices(shared: &CollectionState, snapshot: &Snapshot, residency: &Residency) -> Vec<DeviceInfo> {
    match residency {
        Residency::Host => Vec::new(),
        Residency::Auto if bytes_of(snapshot) < Residency::AUTO_BYTES_MIN => Vec::new(),
        Residency::Auto => shared.runtime.devices().filter(|info| suits(info.kind)).collect(),
        Residency::Devices(devices) => {
            devices.iter().filter_map(|device| shared.runtime.devices().find(|info| info.id == *device)).collect()
        }
    }
}

fn bytes_of(snapshot: &Snapshot) -> usize {
    snapshot.segments.iter().map(|segment| segment.rows.len_bytes()).sum()
}

/// Judges every device that may hold rows.
fn judge(
    shared: &CollectionState,
    snapshot: &Snapshot,
    devices: Vec<&DeviceInfo>,
    residency: &Residency,
) -> Vec<DevicePlacement> {
    let Some(sample) = snapshot.segments.iter().max_by_key(|segment| segment.count).filter(|one| one.count > 0) else {
        return Vec::new();
    };
    let mut times = shared.placement.times.lock().unwrap_or_else(PoisonError::into_inner);
    let candidates = candidates(shared, snapshot, sample, devices);
    let bytes = bytes_of(snapshot);
    let sample_rows = (bytes / SAMPLE_SHARE).min(SAMPLE_BYTES_MAX) / sample.row_bytes.max(1);
    let sample_rows = (sample_rows + 1).next_power_of_two() / 2;
    let sample_rows = sample_rows.clamp(1, sample.count as usize);
    let mut choice = Choice { shared, sample, bytes: bytes as u64, candidates, sample_rows, times: &mut times };
    match residency {
        Residency::Devices(_) => choice.share_equally(),
        Residency::Auto | Residency::Host => {
            choice.leave_full_ones();
            choice.one_api_each();
            choice.leave_slow_ones();
            choice.share_by_speed();
        }
    }
    choice.candidates.into_iter().map(Candidate::placement).collect()
}

fn suits(kind: DeviceKind) -> bool {
    matches!(kind, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::Tpu)
}

/// Every device with what speaks against it on its own.
fn candidates<'a>(
    shared: &CollectionState,
    snapshot: &Snapshot,
    sample: &SegmentView,
    devices: Vec<&'a DeviceInfo>,
) -> Vec<Candidate<'a>> {
    let failures = shared.placement.failures().clone();
    let op = search_of(shared, &sample.rows, sample.norms.as_ref(), sample, 1);
    let verdicts = op.and_then(|op| shared.runtime.explain(op, &RunOptions::default())).unwrap_or_default();
    let workers = shared.runtime.workers();
    let figures = shared.runtime.metrics();
    let candidate = |info: &'a DeviceInfo| {
        let verdict = verdicts.iter().find(|one| one.device == info.id).map(|one| &one.verdict);
        let worker = workers.iter().find(|worker| worker.device == info.id);
        let own = resident_bytes(shared, snapshot, info.id);
        let memory = figures.devices.iter().find(|one| one.device == info.id).map(|one| one.memory).unwrap_or_default();
        let measured = worker.and_then(|worker| worker.health.vitals.memory);
        let free = match measured {
            Some(measured) => Some(measured.available_bytes().saturating_add(memory.cached_bytes)),
            None => info.memory_available_bytes.map(|free| free.saturating_sub(memory.lent_bytes)),
        };
        let room_bytes = free.map_or(u64::MAX, |free| own.saturating_add(free / 100 * ROOM_PERCENT));
        let verdict = match (failures.refused.get(&info.id), verdict) {
            (Some(reason), _) => PlacementVerdict::Unsupported(reason.clone()),
            (None, Some(Verdict::Unsupported(reason))) => PlacementVerdict::Unsupported(reason.clone()),
            (None, Some(Verdict::Unfit(reason))) if !worker.is_some_and(is_only_full) => {
                PlacementVerdict::NotReady(reason.clone())
            }
            (None, None) => PlacementVerdict::NotReady("it is not served".to_owned()),
            (None, Some(_)) => PlacementVerdict::Holds(0.0),
        };
        Candidate { info, verdict, room_bytes, time: None }
    };
    devices.into_iter().map(candidate).collect()
}

/// Whether a device does its work and only its memory is full, perhaps with these very rows.
fn is_only_full(worker: &WorkerReport) -> bool {
    worker.state == WorkerState::Ready && worker.health.circuit == Circuit::Closed && worker.health.full
}

/// Bytes of a collection's rows on a device.
fn resident_bytes(shared: &CollectionState, snapshot: &Snapshot, device: DeviceId) -> u64 {
    let of = |segment: &Arc<SegmentView>| -> u64 {
        let state = shared.read(&segment.shared.resident.state);
        let own = state.blocks.iter().filter(|block| block.device == device);
        own.map(|block| block.rows.len_bytes() as u64).sum()
    };
    snapshot.segments.iter().map(of).sum()
}

/// Whether two devices are the same hardware. Every API numbers its own devices, so two of one API
/// are different unless their identities agree. Devices of different APIs that do not say which
/// hardware they are count as the same if both kind and name agree.
fn is_same_hardware(one: &DeviceInfo, other: &DeviceInfo) -> bool {
    let uuids = one.uuid.zip(other.uuid).map(|(one, other)| one == other);
    let addresses = one.pci_address.zip(other.pci_address).map(|(one, other)| one == other);
    if one.id.api == other.id.api {
        // Partitions of one card share its address.
        return uuids.or(addresses).unwrap_or(false);
    }
    match (uuids, addresses) {
        (Some(true), _) | (_, Some(true)) => true,
        (Some(false), _) | (_, Some(false)) => false,
        (None, None) => one.kind == other.kind && one.name == other.name,
    }
}

impl Candidate<'_> {
    fn holds(&self) -> bool {
        matches!(self.verdict, PlacementVerdict::Holds(_))
    }

    fn placement(self) -> DevicePlacement {
        let Candidate { info, verdict, time, .. } = self;
        DevicePlacement { device: info.id, name: info.name.clone(), verdict, sample_time: time }
    }
}

impl Choice<'_> {
    /// The candidates that may hold rows so far.
    fn holders(&self) -> Vec<usize> {
        (0..self.candidates.len()).filter(|place| self.candidates[*place].holds()).collect()
    }

    /// Leaves out devices without room for a sample and as many rows.
    fn leave_full_ones(&mut self) {
        let bytes_min = 2 * (self.sample_rows * self.sample.row_bytes) as u64;
        for candidate in self.candidates.iter_mut().filter(|one| one.holds() && one.room_bytes < bytes_min) {
            candidate.verdict = PlacementVerdict::NoRoom;
        }
    }

    /// Leaves one API for each piece of hardware.
    fn one_api_each(&mut self) {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for place in self.holders() {
            let info = self.candidates[place].info;
            let same = |group: &&mut Vec<usize>| {
                group.iter().any(|other| is_same_hardware(self.candidates[*other].info, info))
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push(place),
                None => groups.push(vec![place]),
            }
        }
        let needed = self.bytes / groups.len().max(1) as u64;
        for group in groups.into_iter().filter(|group| group.len() > 1) {
            group.iter().for_each(|place| self.measure(*place));
            let rank = |place: &usize| {
                let candidate = &self.candidates[*place];
                (candidate.room_bytes < needed, candidate.time)
            };
            let measured = group.iter().copied().filter(|place| self.candidates[*place].holds());
            let Some(best) = measured.min_by_key(rank) else { continue };
            let device = self.candidates[best].info.id;
            for place in group.into_iter().filter(|place| *place != best) {
                if self.candidates[place].holds() {
                    self.candidates[place].verdict = PlacementVerdict::SameHardware(device);
                }
            }
        }
    }

    /// Leaves out devices that are slower than the host. Only integrated GPUs are compared: they
    /// read the host's memory, and a card with memory of its own reads that much faster.
    fn leave_slow_ones(&mut self) {
        let Some(host) = self.shared.hosts.first().copied() else { return };
        for place in self.holders() {
            if self.candidates[place].info.kind != DeviceKind::IntegratedGpu {
                continue;
            }
            self.measure(place);
            let host_time = self.time_of(host).ok();
            let candidate = &mut self.candidates[place];
            if candidate.holds() && host_time.zip(candidate.time).is_some_and(|(host, own)| own >= host) {
                candidate.verdict = PlacementVerdict::SlowerThanHost;
            }
        }
    }

    /// Shares the rows by speed, and gives what has no room on one device to the others.
    fn share_by_speed(&mut self) {
        let all = self.holders();
        if all.len() > 1 {
            all.into_iter().for_each(|place| self.measure(place));
        }
        let mut open = self.holders();
        let mut left = self.bytes as f64;
        loop {
            let speed = |place: &usize| self.candidates[*place].time.map_or(1.0, |time| 1.0 / time.as_secs_f64());
            let speeds: f64 = open.iter().map(speed).sum();
            let part = |place: &usize| left * speed(place) / speeds;
            let is_full = |place: &usize| part(place) > self.candidates[*place].room_bytes as f64;
            let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().copied().partition(|place| is_full(place));
            // The others share the rows that a filled device cannot hold.
            let last = full.is_empty();
            let filled = if last { rest.clone() } else { full };
            let parts: Vec<f64> = filled.iter().map(part).collect();
            for (place, part) in filled.into_iter().zip(parts) {
                let candidate = &mut self.candidates[place];
                let held = part.min(candidate.room_bytes as f64);
                left -= held;
                candidate.verdict = match held as usize >= self.sample.row_bytes {
                    true => PlacementVerdict::Holds(held / self.bytes as f64),
                    false => PlacementVerdict::NoRoom,
                };
            }
            if last || rest.is_empty() {
                return;
            }
            open = rest;
        }
    }

    /// Shares the rows equally between devices that the caller has named.
    fn share_equally(&mut self) {
        let all = self.holders();
        let share = 1.0 / all.len().max(1) as f64;
        all.into_iter().for_each(|place| self.candidates[place].verdict = PlacementVerdict::Holds(share));
    }

    /// Measures a candidate, unless that was done before. One that fails holds no rows.
    fn measure(&mut self, place: usize) {
        let device = self.candidates[place].info.id;
        match self.time_of(device) {
            Ok(time) => self.candidates[place].time = Some(time),
            Err(error) => {
                let reason = error.to_string();
                self.candidates[place].verdict = match error.kind() {
                    ErrorKind::Caller => {
                        self.shared.placement.refuse(self.shared, device, reason.clone());
                        PlacementVerdict::Unsupported(reason)
                    }
                    ErrorKind::Device | ErrorKind::Capacity => PlacementVerdict::NotReady(reason),
                };
            }
        }
    }

    /// The time in which a device searches the sample, which lies in its memory.
    fn time_of(&mut self, device: DeviceId) -> Result<Duration> {
        let (shared, sample, rows) = (self.shared, self.sample, self.sample_rows);
        if let Some(time) = self.times.get(&(device, rows)) {
            return Ok(*time);
        }
        let options = RunOptions::require(device).fallback(FallbackPolicy::None).to_host();
        let there = |tensor: &Tensor| -> Result<Tensor> {
            let part = tensor.slice(0, 0, rows)?;
            if shared.hosts.contains(&device) {
                return Ok(part);
            }
            shared.runtime.run_with(Transfer::to_device(&part, device), RunOptions::require(device)).wait()
        };
        let (stored, norms) = (there(&sample.rows)?, sample.norms.as_ref().map(there).transpose()?);
        let mut sum = Duration::ZERO;
        for queries in SAMPLE_QUERIES {
            let op = search_of(shared, &stored, norms.as_ref(), sample, queries)?;
            shared.runtime.run_with(op.clone(), options.clone()).wait()?;
            let mut fastest = Duration::MAX;
            for _ in 0..SAMPLE_RUNS {
                let start = Instant::now();
                shared.runtime.run_with(op.clone(), options.clone()).wait()?;
                fastest = fastest.min(start.elapsed());
            }
            sum += fastest;
        }
        let time = sum.max(Duration::from_nanos(1));
        self.times.insert((device, rows), time);
        Ok(time)
    }
}

/// A search for the first rows of a segment.
fn search_of(
    shared: &CollectionState,
    rows: &Tensor,
    norms: Option<&Tensor>,
    segment: &SegmentView,
    queries: usize,
) -> Result<Search> {
    let dimension = shared.schema.dimension;
    let values: Vec<f32> = (0..queries as u32).flat_map(|row| segment.vector(row % segment.count.max(1))).collect();
    let queries = Tensor::from_vec(values, [queries, dimension])?;
    let metric = if norms.is_some() { Metric::Cosine } else { shared.schema.metric };
    let mut op = Search::new(rows, &queries, metric, SAMPLE_K.min(segment.count as usize));
    op.row_norms = norms.cloned();
    Ok(op)
}
