//! The devices that ops may be sent to: a list that only grows, so that it can be read without a lock. A device that is gone
//! keeps its place and takes nothing; one that comes back gets a new place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use panoply_core::{Backend, DeviceId, Error, FirstGuess, Op, Result, Support, Warmth};

use crate::foreign::contain;
use crate::lane::{Lane, WorkerState};

/// The most devices that a runtime can have had in its life. A set of them is the bits of a number.
pub(crate) const LANES_MAX: usize = 48;

/// One device that ops may be sent to.
pub(crate) struct Candidate {
    pub(crate) lane: Arc<Lane>,
    backend: Arc<dyn Backend>,
    /// The lanes that are the same hardware through other APIs.
    pub(crate) same_hardware: std::sync::atomic::AtomicU64,
}

/// See the module.
pub(crate) struct LaneList {
    places: Box<[OnceLock<Candidate>]>,
    count: AtomicUsize,
    /// Taken by whoever adds a lane.
    growing: Mutex<()>,
}

impl LaneList {
    pub(crate) fn new() -> LaneList {
        LaneList {
            places: (0..LANES_MAX).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            growing: Mutex::new(()),
        }
    }

    /// Adds a lane that is made for its number; `None` where the list is full.
    pub(crate) fn add(&self, backend: &Arc<dyn Backend>, make: impl FnOnce(u8) -> Lane) -> Option<Arc<Lane>> {
        let _guard = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let number = self.count.load(Ordering::Acquire);
        let place = self.places.get(number)?;
        let lane = Arc::new(make(number as u8));
        let mut siblings = 0;
        for other in self.iter().filter(|other| other.lane.info.is_same_hardware(&lane.info)) {
            siblings |= 1 << other.lane.number;
            other.same_hardware.fetch_or(1 << number, Ordering::Release);
        }
        let backend = Arc::clone(backend);
        let candidate = Candidate { lane: Arc::clone(&lane), backend, same_hardware: siblings.into() };
        place.set(candidate).ok()?;
        self.count.store(number + 1, Ordering::Release);
        Some(lane)
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Candidate> {
        self.places.get(number)?.get()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.places[..self.len()].iter().filter_map(OnceLock::get)
    }

    /// The newest lane of a device.
    pub(crate) fn serving(&self, device: DeviceId) -> Option<&Candidate> {
        self.iter().filter(|candidate| candidate.lane.info.id == device).last()
    }

    /// The lanes that stand for devices now: of each device the newest.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Candidate> {
        let newest = |candidate: &&Candidate| {
            let serving = self.serving(candidate.lane.info.id);
            serving.is_some_and(|serving| serving.lane.number == candidate.lane.number)
        };
        self.iter().filter(newest)
    }

    /// The bit of the lane that serves this device, or an error that names the devices there are.
    pub(crate) fn mask_of(&self, device: DeviceId) -> Result<u64> {
        let serving = self.serving(device).map(|candidate| 1 << candidate.lane.number);
        serving.ok_or_else(|| Error::NoSuchDevice { device, known: self.names() })
    }

    /// The devices that there are.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> = self.current().map(|candidate| candidate.lane.info.id.to_string()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// What the backend says, on the caller's thread or the relay's. A backend that panics says no.
impl Candidate {
    pub(crate) fn can_run(&self, op: &Op) -> bool {
        contain(|| self.backend.can_run(&self.lane.info, op)).unwrap_or(false)
    }

    pub(crate) fn supports(&self, op: &Op) -> Support {
        let panicked = |message| Support::No(format!("its backend panicked: {message}"));
        contain(|| self.backend.supports(&self.lane.info, op)).unwrap_or_else(panicked)
    }

    pub(crate) fn warmth(&self, op: &Op) -> Warmth {
        contain(|| self.backend.warmth(&self.lane.info, op)).unwrap_or(Warmth::Cold)
    }

    pub(crate) fn first_guess(&self, op: &Op) -> FirstGuess {
        let info = &self.lane.info;
        contain(|| self.backend.first_guess(info, op)).unwrap_or_else(|_| FirstGuess::of(info))
    }

    pub(crate) fn reaches(&self, owner: DeviceId) -> bool {
        contain(|| self.backend.reaches(&self.lane.info, owner)).unwrap_or(false)
    }
}

impl Candidate {
    /// Whether the worker still takes ops.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.lane.state(), WorkerState::Failed | WorkerState::Stopped)
    }
}
