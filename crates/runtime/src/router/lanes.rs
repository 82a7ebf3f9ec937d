//! The devices that ops may be sent to, in lists that can be read without a lock.
//!
//! 1. Every lane that was ever made has an id and stays in `made`, which only grows. An op names
//!    its lane by the id, so an op can never reach a lane that got the same slot later.
//! 2. A lane serves in one of [`LANES_MAX`] slots. The number of its slot is its bit in sets of
//!    lanes. A device that is found again continues in its own lane if possible. Otherwise, and if
//!    every slot is taken, a new lane takes over the slot of a lane that was given up. A lane that
//!    was replaced is put back into its slot when its device is found again and the lane that took
//!    the slot over is gone.
//!    The further workers of a device, which belong to pools, have lanes with ids of their own and
//!    the number of the device's slot. No slot holds them: they are found through the lane in it.
//! 3. A set of lanes that was made from device names does not apply to lanes that were put into
//!    slots after it: see `Wishes::allows`.
//! 4. `made` has room for [`LANES_IN_LIFE_MAX`] lanes. A lane is made only when a slot gets a
//!    device that it never had, so this bounds changes of hardware, not searches.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use panoply_core::{Backend, DeviceId, Error, FirstGuess, Op, Result, Support, Warmth};
use panoply_lockfree::foreign::contain;

use crate::claims::{Claim, Share};
use crate::lane::{Lane, LaneSlot, WorkerState};

/// The most devices that a runtime serves at once. A set of devices is a bit mask in a number.
pub(crate) const LANES_MAX: usize = 48;
/// The most lanes that a runtime makes in its life.
pub(crate) const LANES_IN_LIFE_MAX: usize = 512;
/// The value of a slot in which no lane has served yet.
const NO_LANE: u16 = u16::MAX;

/// One device that ops may be sent to.
pub(crate) struct Candidate {
    pub(crate) lane: Arc<Lane>,
    backend: Arc<dyn Backend>,
    /// The slots of lanes that reach the same hardware through other APIs.
    pub(crate) same_hardware: AtomicU64,
    /// The ids of the lanes of pools on this device, set once. Empty for such a lane itself.
    pool_lanes: OnceLock<Box<[u16]>>,
}

/// The lanes of a runtime. See the module.
pub(crate) struct LaneList {
    made: Box<[OnceLock<Candidate>]>,
    made_count: AtomicUsize,
    /// How often a lane was put into a slot.
    placed_count: AtomicU32,
    /// The ids of the lanes that serve. Slots are used in order, and never become empty again.
    slots: [AtomicU16; LANES_MAX],
    slot_count: AtomicUsize,
    /// Locked by a thread that adds a lane.
    growing: Mutex<()>,
    /// Number of devices that are claimed as a whole.
    whole_claims: Arc<AtomicUsize>,
}

impl LaneList {
    pub(crate) fn new() -> LaneList {
        LaneList {
            made: (0..LANES_IN_LIFE_MAX).map(|_| OnceLock::new()).collect(),
            made_count: AtomicUsize::new(0),
            placed_count: AtomicU32::new(0),
            slots: [const { AtomicU16::new(NO_LANE) }; LANES_MAX],
            slot_count: AtomicUsize::new(0),
            growing: Mutex::new(()),
            whole_claims: Arc::default(),
        }
    }

    /// Adds a lane in a slot of its own. Returns the reason if there is no room.
    pub(crate) fn add(
        &self,
        backend: &Arc<dyn Backend>,
        make: impl FnOnce(LaneSlot) -> Lane,
    ) -> Result<Arc<Lane>, String> {
        self.add_over(backend, |_| None::<()>, make)
    }

    /// Adds a lane. It takes over the slot of the lane with the smallest `rank`; lanes with the
    /// rank `None` keep their slots. If all ranks are `None`, it gets a slot of its own. Returns
    /// the reason if there is no room.
    pub(crate) fn add_over<R: Ord>(
        &self,
        backend: &Arc<dyn Backend>,
        rank: impl Fn(&Candidate) -> Option<R>,
        make: impl FnOnce(LaneSlot) -> Lane,
    ) -> Result<Arc<Lane>, String> {
        let _guard = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let id = self.made_count.load(Ordering::Acquire);
        let Some(place) = self.made.get(id) else {
            return Err(format!(
                "this runtime has had {LANES_IN_LIFE_MAX} devices, the most in one life; start a new runtime"
            ));
        };
        let ranked = self.iter().filter_map(|candidate| Some((rank(candidate)?, candidate)));
        let before = ranked.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, candidate)| candidate);
        let number = before.map_or(self.len(), |before| usize::from(before.lane.number));
        if number >= LANES_MAX {
            return Err(format!("a runtime serves {LANES_MAX} devices at once"));
        }
        let lane = Arc::new(make(LaneSlot { id: id as u16, number: number as u8 }));
        let backend = Arc::clone(backend);
        let _ = place.set(Candidate::new(Arc::clone(&lane), backend));
        self.made_count.store(id + 1, Ordering::Release);
        if let Some(before) = before {
            self.group(before).for_each(|worker| worker.lane.note_replaced());
        }
        if let Some(candidate) = place.get() {
            self.put_in_slot(candidate);
        }
        Ok(lane)
    }

    /// Adds the lanes of pools to a device that has none yet. `make` gets the id of each. Returns
    /// the lanes for which there is room.
    pub(crate) fn add_pool_lanes(
        &self,
        leader: &Candidate,
        count: usize,
        mut make: impl FnMut(usize, u16) -> Option<Lane>,
    ) -> Vec<Arc<Lane>> {
        let _guard = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut lanes = Vec::with_capacity(count);
        for index in 0..count {
            let id = self.made_count.load(Ordering::Acquire);
            let Some(place) = self.made.get(id) else { break };
            let Some(lane) = make(index, id as u16).map(Arc::new) else { break };
            lane.note_placed(leader.lane.placed());
            let _ = place.set(Candidate::new(Arc::clone(&lane), Arc::clone(&leader.backend)));
            self.made_count.store(id + 1, Ordering::Release);
            lanes.push(lane);
        }
        let _ = leader.pool_lanes.set(lanes.iter().map(|lane| lane.id).collect());
        lanes
    }

    /// The lanes of pools on the device of this lane.
    pub(crate) fn pool_lanes<'a>(&'a self, leader: &'a Candidate) -> impl Iterator<Item = &'a Candidate> {
        let ids = leader.pool_lanes.get().map_or(&[][..], |ids| ids);
        ids.iter().filter_map(|id| self.made(*id))
    }

    /// A device's own lane and those of its pools.
    pub(crate) fn group<'a>(&'a self, leader: &'a Candidate) -> impl Iterator<Item = &'a Candidate> {
        std::iter::once(leader).chain(self.pool_lanes(leader))
    }

    /// Puts a lane that was replaced back into its slot, after the lane that took it over was given
    /// up. The caller must have made sure that the lane accepts ops again.
    pub(crate) fn put_back(&self, candidate: &Candidate) {
        let _guard = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(before) = self.get(usize::from(candidate.lane.number)) {
            self.group(before).for_each(|worker| worker.lane.note_replaced());
        }
        self.put_in_slot(candidate);
    }

    /// Makes a lane serve in its slot. Called with `growing` locked.
    fn put_in_slot(&self, candidate: &Candidate) {
        let (lane, number) = (&candidate.lane, usize::from(candidate.lane.number));
        let bit = 1_u64 << number;
        let mut siblings = 0;
        for other in self.iter().filter(|other| usize::from(other.lane.number) != number) {
            if other.lane.info.is_same_hardware(&lane.info) {
                siblings |= 1 << other.lane.number;
                other.same_hardware.fetch_or(bit, Ordering::Release);
            } else {
                other.same_hardware.fetch_and(!bit, Ordering::Release);
            }
        }
        candidate.same_hardware.store(siblings, Ordering::Release);
        let placed = self.placed_count.load(Ordering::Acquire);
        self.group(candidate).for_each(|worker| worker.lane.note_placed(placed));
        self.slots[number].store(lane.id, Ordering::Release);
        self.slot_count.fetch_max(number + 1, Ordering::AcqRel);
        // Stored after the lane serves: a thread that read this count before, and then the slots,
        // may mean the previous lane.
        self.placed_count.store(placed.saturating_add(1), Ordering::Release);
    }

    /// How often a lane was put into a slot so far.
    pub(crate) fn placed_count(&self) -> u32 {
        self.placed_count.load(Ordering::Acquire)
    }

    /// Number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.slot_count.load(Ordering::Acquire)
    }

    /// The lane with this id, whether or not it still serves.
    pub(crate) fn made(&self, id: u16) -> Option<&Candidate> {
        self.made.get(usize::from(id))?.get()
    }

    /// The lane that serves in this slot.
    pub(crate) fn get(&self, slot: usize) -> Option<&Candidate> {
        self.made(self.slots.get(slot)?.load(Ordering::Acquire))
    }

    /// The lanes that serve, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        (0..self.len()).filter_map(|slot| self.get(slot))
    }

    /// Every lane that was ever made. A lane whose slot was taken over may still have ops in
    /// flight.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Candidate> {
        self.made.iter().map_while(OnceLock::get)
    }

    /// The lane that serves a device.
    pub(crate) fn serving(&self, device: DeviceId) -> Option<&Candidate> {
        self.iter().find(|candidate| candidate.lane.info.id == device)
    }

    /// The newest lane that a device ever had.
    pub(crate) fn newest_of(&self, device: DeviceId) -> Option<&Candidate> {
        self.all().filter(|candidate| candidate.lane.pool.is_none() && candidate.lane.info.id == device).last()
    }

    /// The bit of the lane that serves this device, or an error that names the existing devices.
    pub(crate) fn mask_of(&self, device: DeviceId) -> Result<u64> {
        Ok(1 << self.lane_of(device)?.number)
    }

    /// The lane that serves this device, or an error that names the existing devices.
    pub(crate) fn lane_of(&self, device: DeviceId) -> Result<&Arc<Lane>> {
        let serving = self.serving(device).map(|candidate| &candidate.lane);
        serving.ok_or_else(|| Error::NoSuchDevice { device, known: self.names() })
    }

    /// Claims a share of a device.
    pub(crate) fn claim(&self, device: DeviceId, share: Share) -> Result<Claim> {
        let lane = self.lane_of(device)?;
        lane.claims.claim(device, share, lane.limits.queue_depth_max, &self.whole_claims)
    }

    /// The bits of the lanes whose devices are claimed as a whole, by other claims than this one.
    pub(crate) fn claimed_from(&self, claim: Option<&Claim>) -> u64 {
        if self.whole_claims.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let claimed = self.iter().filter(|candidate| candidate.lane.claims.is_claimed_from(claim));
        claimed.fold(0, |mask, candidate| mask | 1 << candidate.lane.number)
    }

    /// The names of the existing devices.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> = self.iter().map(|candidate| candidate.lane.info.id.to_string()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// Asks the backend, on the caller's thread or the relay's. A panic of the backend counts as a
/// refusal.
impl Candidate {
    pub(crate) fn can_run(&self, op: &Op) -> bool {
        let pooled = || self.lane.pools.serve(op, self.lane.info.id);
        contain(|| self.backend.can_run(&self.lane.info, op) && pooled()).unwrap_or(false)
    }

    pub(crate) fn supports(&self, op: &Op) -> Support {
        if !self.lane.pools.serve(op, self.lane.info.id) {
            let domain = op.domain();
            return Support::No(format!("the pool of its domain names other devices (`pools.{domain}.devices`)"));
        }
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
    fn new(lane: Arc<Lane>, backend: Arc<dyn Backend>) -> Candidate {
        Candidate { lane, backend, same_hardware: AtomicU64::new(0), pool_lanes: OnceLock::new() }
    }

    /// Whether the lanes of pools on this device were made, if there are any.
    pub(crate) fn has_pool_lanes(&self) -> bool {
        self.pool_lanes.get().is_some()
    }

    /// Whether the worker still accepts ops.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.lane.state(), WorkerState::Failed | WorkerState::Stopped)
    }
}
