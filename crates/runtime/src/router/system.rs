//! The capacity of all devices together, and whether it is enough.
//!
//! Every piece of hardware counts the same, however fast it is: one that two APIs reach, or that
//! several workers serve, counts once, with its best worker. It contributes its
//! [`capacity`](crate::HealthReport::capacity) while its worker is ready, its circuit is closed and
//! its memory is not full, and nothing otherwise. Devices that are being opened for the first time
//! do not count yet. A device that was given up, or is gone, still counts: its loss is what lowers
//! the share.

use std::sync::atomic::{AtomicBool, Ordering};

use panoply_core::{Error, Result};

use super::lanes::LaneList;
use crate::health::{Circuit, HealthRules};
use crate::lane::{Lane, WorkerState};

/// How much of the devices' capacity is fit for work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystemCapacity {
    /// Pieces of hardware.
    pub devices: u32,
    /// The sum of their capacities, as far as they are fit for work: from 0 to `devices`.
    pub fit: f32,
    /// The share below which the runtime is degraded.
    pub minimum: f32,
}

impl SystemCapacity {
    /// The share of the capacity that is fit for work, from 0 to 1. It is 1 while no device counts.
    pub fn share(&self) -> f32 {
        if self.devices == 0 { 1.0 } else { (self.fit / self.devices as f32).clamp(0.0, 1.0) }
    }

    /// Whether the share is below the minimum.
    pub fn is_degraded(&self) -> bool {
        self.share() < self.minimum
    }

    /// The present capacity of these lanes.
    pub(crate) fn of(lanes: &LaneList, minimum: f32) -> SystemCapacity {
        let mut sum = SystemCapacity { devices: 0, fit: 0.0, minimum };
        let mut seen = 0_u64;
        for candidate in lanes.iter().filter(|candidate| counts(&candidate.lane)) {
            let (lane, bit) = (&candidate.lane, 1 << candidate.lane.number);
            if seen & bit != 0 {
                continue;
            }
            let others = candidate.same_hardware.load(Ordering::Relaxed);
            let same = lanes
                .iter()
                .map(|other| &other.lane)
                .filter(|other| counts(other) && (others & (1 << other.number) != 0 || other.info.id == lane.info.id));
            let (hardware, best) = same.fold((bit, 0.0_f32), |(hardware, best), other| {
                (hardware | 1 << other.number, best.max(fit_capacity(other)))
            });
            seen |= hardware;
            sum.devices += 1;
            sum.fit += best;
        }
        sum
    }
}

fn counts(lane: &Lane) -> bool {
    !matches!(lane.state(), WorkerState::Opening | WorkerState::Stopped)
}

fn fit_capacity(lane: &Lane) -> f32 {
    let is_fit =
        lane.state() == WorkerState::Ready && lane.gate.breaker.circuit() == Circuit::Closed && !lane.gate.is_full();
    if is_fit { lane.gate.capacity() } else { 0.0 }
}

/// The behaviour of a runtime while it is degraded.
pub(crate) struct DegradedMode {
    minimum: f32,
    refuses_patient: bool,
    /// Whether listeners were told last that the runtime is degraded.
    told: AtomicBool,
}

impl DegradedMode {
    pub(crate) fn new(rules: &HealthRules) -> DegradedMode {
        let (minimum, refuses_patient) = (rules.system_capacity_min, rules.refuse_patient);
        DegradedMode { minimum, refuses_patient, told: AtomicBool::new(false) }
    }

    pub(crate) fn capacity(&self, lanes: &LaneList) -> SystemCapacity {
        SystemCapacity::of(lanes, self.minimum)
    }

    /// The capacity, if listeners must be told that the runtime has become degraded or is not any
    /// more.
    pub(crate) fn news(&self, lanes: &LaneList) -> Option<SystemCapacity> {
        let capacity = self.capacity(lanes);
        let is_degraded = capacity.is_degraded();
        (self.told.swap(is_degraded, Ordering::Relaxed) != is_degraded).then_some(capacity)
    }

    /// Refuses a patient op while the runtime is degraded, if the rules say so.
    pub(crate) fn admit_patient(&self, lanes: &LaneList) -> Result<()> {
        if !self.refuses_patient {
            return Ok(());
        }
        let capacity = self.capacity(lanes);
        if !capacity.is_degraded() {
            return Ok(());
        }
        let percent = |share: f32| (share * 100.0).round() as u32;
        Err(Error::Degraded { fit_percent: percent(capacity.share()), min_percent: percent(capacity.minimum) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use panoply_core::{Api, Backend, DeviceId, DeviceInfo, DeviceKind};

    use super::*;

    fn device(api: Api, index: u32, address: &str) -> DeviceInfo {
        let mut info = DeviceInfo::new(DeviceId { api, index }, "some device", DeviceKind::DiscreteGpu);
        info.pci_address = Some(address.parse().unwrap());
        info
    }

    #[test]
    fn hardware_that_several_apis_reach_counts_once_with_its_best_worker() {
        let lanes = LaneList::new();
        let backend: Arc<dyn Backend> = Arc::new(panoply_cpu::CpuBackend::new());
        let add = |info: DeviceInfo, state: WorkerState| {
            let make = |place: crate::lane::LaneSlot| {
                let mut lane = crate::lane::tests::lane(info);
                (lane.id, lane.number) = (place.id, place.number);
                lane
            };
            let lane = lanes.add(&backend, make).unwrap();
            lane.put_state(state, None);
            lane
        };
        let of = |lanes: &LaneList| {
            let capacity = SystemCapacity::of(lanes, 0.6);
            (capacity.devices, capacity.fit, capacity.is_degraded())
        };
        assert_eq!(of(&lanes), (0, 0.0, false), "nothing can be lost yet");
        let cuda = add(device(Api::CUDA, 0, "0000:03:00.0"), WorkerState::Ready);
        add(device(Api::CUDA, 1, "0000:04:00.0"), WorkerState::Ready);
        let vulkan = add(device(Api::VULKAN, 0, "0000:03:00.0"), WorkerState::Ready);
        assert_eq!(of(&lanes), (2, 2.0, false));
        cuda.put_state(WorkerState::Failed, None);
        assert_eq!(of(&lanes), (2, 2.0, false), "Vulkan still reaches it");
        vulkan.put_state(WorkerState::Reopening, None);
        assert_eq!(of(&lanes), (2, 1.0, true));
        let opening = add(device(Api::ROCM, 0, "0000:05:00.0"), WorkerState::Opening);
        assert_eq!(of(&lanes), (2, 1.0, true), "it does not count before it is open");
        opening.put_state(WorkerState::Ready, None);
        assert_eq!(of(&lanes).0, 3);
        // A second worker of a device.
        add(device(Api::ROCM, 0, "0000:05:00.0"), WorkerState::Ready);
        assert_eq!(of(&lanes), (3, 2.0, false));
    }
}
