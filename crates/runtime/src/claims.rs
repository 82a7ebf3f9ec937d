//! Claims: devices, or parts of devices, that one part of a program has for itself.
//!
//! 1. While a whole device is claimed, the router sends it no op but those that carry the claim.
//!    Ops that were accepted before may still run there.
//! 2. A part is a fraction of a device, and all parts of a device are at most one. The ops of a
//!    part that are in flight take at most that fraction of the device's queue. Others may use the
//!    device as well.
//! 3. A claim ends with its last handle. All lanes that a device ever had share one book, so a
//!    claim outlives a lost device.
//! 4. An op reads atomics only. The lock of a book is taken when a claim begins or ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use panoply_core::{DeviceId, Error, Result};

use crate::process::{self, Process};

/// A whole device, in the unit of [`ClaimBook::taken`].
const WHOLE: u32 = 1_000_000;
/// The key of no claim.
const NOBODY: u64 = 0;

static NEXT_KEY: AtomicU64 = AtomicU64::new(NOBODY + 1);

/// The amount of a device that is claimed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// The whole device: no other op is sent to it.
    Whole,
    /// A fraction of the device, more than 0 and less than 1: its ops take at most this fraction of
    /// the places in the device's queue.
    Part(f32),
}

/// The right to a device, or to a part of it. It ends with its last clone.
#[derive(Clone, Debug)]
pub struct Claim(Arc<ClaimState>);

#[derive(Debug)]
struct ClaimState {
    key: u64,
    device: DeviceId,
    taken: u32,
    in_flight: AtomicUsize,
    in_flight_max: usize,
    book: Arc<ClaimBook>,
    /// Number of whole devices that are claimed.
    whole_claims: Arc<AtomicUsize>,
    process: Process,
}

/// The claims of one device.
#[derive(Debug, Default)]
pub(crate) struct ClaimBook {
    /// The key of the claim that has the whole device.
    owner: AtomicU64,
    /// The part of the device that is claimed, in millionths.
    taken: Mutex<u32>,
}

/// One op in flight of a claim.
pub(crate) struct ClaimPermit(Claim);

impl Claim {
    /// The claimed device.
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// How many ops may be in flight under the claim.
    pub fn in_flight_max(&self) -> usize {
        self.0.in_flight_max
    }

    /// Counts one more op in flight, or fails if there are as many as the claim allows.
    pub(crate) fn permit(&self) -> Result<ClaimPermit> {
        let ClaimState { device, in_flight, in_flight_max, .. } = &*self.0;
        let more = |count: usize| (count < *in_flight_max).then_some(count + 1);
        match in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(ClaimPermit(self.clone())),
            Err(_) => Err(Error::Busy { device: *device, queue_depth_max: *in_flight_max }),
        }
    }
}

impl Drop for ClaimPermit {
    fn drop(&mut self) {
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ClaimBook {
    /// Claims a share of a device whose queue has `queue_depth_max` places.
    pub(crate) fn claim(
        self: &Arc<ClaimBook>,
        device: DeviceId,
        share: Share,
        queue_depth_max: usize,
        whole_claims: &Arc<AtomicUsize>,
    ) -> Result<Claim> {
        let (wanted, in_flight_max) = match share {
            Share::Whole => (WHOLE, usize::MAX),
            Share::Part(part) if part > 0.0 && part < 1.0 => {
                let places = (queue_depth_max as f64 * f64::from(part)).round() as usize;
                (((f64::from(part) * f64::from(WHOLE)) as u32).max(1), places.max(1))
            }
            Share::Part(part) => return Err(Error::invalid("part of a device", "more than 0 and less than 1", part)),
        };
        let process = Process::current();
        let mut taken = process::lock(&self.taken, process).ok_or_else(|| process.refusal("the runtime"))?;
        if wanted > WHOLE - *taken {
            let percent = |millionths: u32| f64::from(millionths) / 10_000.0;
            let (of_others, asked) = (percent(*taken), percent(wanted));
            let reason = format!("other claims have {of_others} % of it, and {asked} % were asked for");
            return Err(Error::DeviceUnavailable { device, reason });
        }
        *taken += wanted;
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        if wanted == WHOLE {
            self.owner.store(key, Ordering::Release);
            whole_claims.fetch_add(1, Ordering::Release);
        }
        let (book, whole_claims) = (Arc::clone(self), Arc::clone(whole_claims));
        let in_flight = AtomicUsize::new(0);
        let state = ClaimState { key, device, taken: wanted, in_flight, in_flight_max, book, whole_claims, process };
        Ok(Claim(Arc::new(state)))
    }

    /// Whether the whole device is claimed, by another claim than this one.
    pub(crate) fn is_claimed_from(&self, claim: Option<&Claim>) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        owner != NOBODY && claim.is_none_or(|claim| claim.0.key != owner)
    }
}

impl Drop for ClaimState {
    fn drop(&mut self) {
        // In a fork, a thread that does not exist there may hold the lock.
        let Some(mut taken) = process::lock(&self.book.taken, self.process) else { return };
        *taken -= self.taken;
        if self.taken == WHOLE {
            self.book.owner.store(NOBODY, Ordering::Release);
            self.whole_claims.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::Api;

    use super::*;

    #[test]
    fn all_parts_are_at_most_one_device() {
        let (book, wholes) = (Arc::new(ClaimBook::default()), Arc::default());
        let device = DeviceId { api: Api::SIMULATED, index: 0 };
        let claim = |share| book.claim(device, share, 100, &wholes);
        let half = claim(Share::Part(0.5)).unwrap();
        let third = claim(Share::Part(0.33)).unwrap();
        assert_eq!((half.in_flight_max(), third.in_flight_max()), (50, 33));
        let refused = claim(Share::Part(0.25)).unwrap_err().to_string();
        assert!(refused.contains("83 %") && refused.contains("25 %"), "{refused}");
        assert!(claim(Share::Whole).is_err());
        drop(half);
        assert!(claim(Share::Part(0.25)).is_ok(), "a claim that ended is free again");
        for wrong in [0.0, -1.0, 1.0, f32::NAN] {
            assert!(matches!(claim(Share::Part(wrong)), Err(Error::InvalidArgument { .. })), "{wrong}");
        }
        drop(third);
        let whole = claim(Share::Whole).unwrap();
        assert!(book.is_claimed_from(None) && !book.is_claimed_from(Some(&whole)) && claim(Share::Part(0.1)).is_err());
        assert_eq!(wholes.load(Ordering::Relaxed), 1);
        let copy = whole.clone();
        drop(whole);
        assert!(book.is_claimed_from(None), "a clone holds it");
        drop(copy);
        assert!(!book.is_claimed_from(None) && wholes.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn a_part_bounds_its_ops_in_flight() {
        let (book, wholes) = (Arc::new(ClaimBook::default()), Arc::default());
        let device = DeviceId { api: Api::SIMULATED, index: 0 };
        let claim = book.claim(device, Share::Part(0.02), 100, &wholes).unwrap();
        let first = claim.permit().unwrap();
        let _second = claim.permit().unwrap();
        assert!(matches!(claim.permit(), Err(Error::Busy { queue_depth_max: 2, .. })));
        drop(first);
        assert!(claim.permit().is_ok());
    }
}
