//! The properties of an op that matter for the choice of its device, gathered in one pass over its
//! inputs.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Describe, DeviceId, Domain, Location, Op, PartRef};

use super::lanes::{Candidate, LaneList};
use crate::lane::Lane;
use crate::learned::model::{CurveKey, log2};

/// The number of devices that are distinguished as owners of one op's inputs. Inputs on further
/// devices are counted with the last.
const OWNERS_MAX: usize = 4;

/// The properties of one op. See the module.
pub(super) struct Facts {
    pub(super) key: CurveKey,
    pub(super) work_log2: f32,
    /// Bytes of inputs in the host's memory.
    host_bytes: f32,
    owners: [Option<(DeviceId, f32)>; OWNERS_MAX],
    /// Whether there were more owners than `OWNERS_MAX`.
    crowded: bool,
    /// The only device that can run the op, if there is one: a transfer runs on the device that it
    /// leaves or reaches, and an op that names a device object on the object's device.
    pub(super) bound_to: Option<DeviceId>,
    /// Whether the op names a device object.
    pub(super) has_object: bool,
    /// Whether the op may make or name a device object, has a sink, or moves data: the engine that
    /// runs it matters, beyond its device.
    pub(super) keeps_state: bool,
    /// The domain of the op. `None` for an extension, whose domain has no pool.
    pub(super) domain: Option<Domain>,
}

impl Facts {
    pub(super) fn of(op: &Op) -> Facts {
        let mut facts = Facts {
            key: CurveKey(1),
            work_log2: log2(op.work() as f32),
            host_bytes: 0.0,
            owners: [None; OWNERS_MAX],
            crowded: false,
            bound_to: op.bound_to(),
            has_object: false,
            keeps_state: matches!(op, Op::Extension(_) | Op::Signal(SignalOp::StartFilter(_))),
            domain: if matches!(op, Op::Extension(_)) { None } else { Some(op.domain()) },
        };
        facts.keeps_state |= facts.bound_to.is_some();
        let mut dtype = None;
        op.for_each_part(&mut |part| {
            match part {
                PartRef::Tensor(tensor) => dtype = dtype.or(Some(tensor.dtype())),
                PartRef::Bytes(_) => {}
                PartRef::Object(_) => {
                    (facts.has_object, facts.keeps_state) = (true, true);
                    return;
                }
                PartRef::Sink(_) => {
                    facts.keeps_state = true;
                    return;
                }
            }
            let bytes = part.len_bytes() as f32;
            match part.location() {
                Location::Host => facts.host_bytes += bytes,
                Location::Device(owner) => facts.add(owner, bytes),
            }
        });
        facts.key = CurveKey::new(op.name(), dtype, op.cost_class());
        facts
    }

    fn add(&mut self, owner: DeviceId, bytes: f32) {
        let known = self.owners.iter().position(|place| place.is_none_or(|(device, _)| device == owner));
        self.crowded |= known.is_none();
        let place = &mut self.owners[known.unwrap_or(OWNERS_MAX - 1)];
        *place = Some(place.map_or((owner, bytes), |(device, before)| (device, before + bytes)));
    }

    /// Whether all inputs are on the host.
    pub(super) fn is_on_host(&self) -> bool {
        self.owners[0].is_none()
    }

    /// Whether some input lives where this device does not reach it.
    pub(super) fn is_foreign_to(&self, candidate: &Candidate) -> bool {
        let info = &candidate.lane.info;
        let foreign = |owner: DeviceId| owner != info.id && (self.crowded || !candidate.reaches(owner));
        self.owners.iter().flatten().any(|(owner, _)| foreign(*owner))
    }

    /// The predicted time to bring all inputs to this lane's device.
    pub(super) fn transfer_ns(&self, lane: &Lane, lanes: &LaneList, host_memory: bool) -> f32 {
        let (mut up_bytes, mut down_ns) = (self.host_bytes, 0.0);
        for (owner, bytes) in self.owners.iter().flatten().filter(|(owner, _)| *owner != lane.info.id) {
            down_ns += lanes.serving(*owner).map_or(0.0, |source| source.lane.links.down.time_ns(*bytes));
            up_bytes += bytes;
        }
        if host_memory { down_ns } else { down_ns + lane.links.up.time_ns(up_bytes) }
    }
}
