//! Ops whose kernels are to be compiled before they are needed. Each is queued only once.

use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::{Describe, Op};
use panoply_lockfree::foreign::discard;
use panoply_lockfree::queue::Queue;

use crate::learned::model::CurveKey;

/// How many ops may wait for their kernels to be compiled.
const WARM_UPS_MAX: usize = 16;

/// The queue of ops to compile. See the module.
pub(crate) struct WarmUps {
    ops: Queue<(CurveKey, Op)>,
    /// The keys of the ops in the queue, so that no op is queued twice.
    asked: [AtomicU64; WARM_UPS_MAX],
}

impl WarmUps {
    pub(crate) fn new() -> WarmUps {
        WarmUps { ops: Queue::new(WARM_UPS_MAX), asked: [const { AtomicU64::new(0) }; WARM_UPS_MAX] }
    }

    /// Queues this op, unless it is queued already. Returns whether it was queued.
    pub(crate) fn ask(&self, key: CurveKey, op: &Op) -> bool {
        // The copy kept here outlives its op, so it must not hold values whose release someone
        // waits for, or secrets.
        let mut plain = op.is_repeatable();
        op.for_each_part(&mut |part| plain &= part.object().is_none() && !part.is_secret());
        if !plain || self.asked.iter().any(|place| place.load(Ordering::Relaxed) == key.0) {
            return false;
        }
        let claim = |place: &&AtomicU64| place.compare_exchange(0, key.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(place) = self.asked.iter().find(claim) else { return false };
        let asked = self.ops.push((key, op.clone()));
        if asked.is_err() {
            place.store(0, Ordering::Release);
        }
        asked.map_err(discard).is_ok()
    }

    /// The next op to compile, with its key.
    pub(crate) fn next(&self) -> Option<(CurveKey, Op)> {
        self.ops.pop()
    }

    /// Notes that an op's kernels have been compiled.
    pub(crate) fn done(&self, key: CurveKey) {
        if let Some(place) = self.asked.iter().find(|place| place.load(Ordering::Relaxed) == key.0) {
            place.store(0, Ordering::Release);
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        self.ops.has_news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::sink::{Sink, sink};
    use panoply_core::{Api, Bytes, DeviceId, Object, ObjectTable, PartMut, PartRef, Result};

    /// An op with parts of every kind.
    #[derive(Clone, Debug, Default)]
    struct MixedOp {
        bytes: Option<Bytes>,
        object: Option<Object>,
        sink: Option<Sink>,
        once: bool,
    }

    impl Describe for MixedOp {
        fn name(&self) -> &'static str {
            "mixed"
        }
        fn validate(&self) -> Result<()> {
            Ok(())
        }
        fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
            self.bytes.iter().for_each(|part| visit(part.into()));
            self.object.iter().for_each(|part| visit(part.into()));
            self.sink.iter().for_each(|part| visit(part.into()));
        }
        fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
        fn is_repeatable(&self) -> bool {
            !self.once
        }
    }

    #[test]
    fn what_somebody_waits_to_be_let_go_is_not_kept_for_a_warm_up() {
        let device = DeviceId { api: Api::SIMULATED, index: 0 };
        let object = ObjectTable::new(device).insert("key", (), None).unwrap();
        let (sink, _source) = sink(1);
        let refused = [
            MixedOp { bytes: Some(Bytes::secret(vec![1]).unwrap()), ..MixedOp::default() },
            MixedOp { object: Some(object), ..MixedOp::default() },
            MixedOp { sink: Some(sink), ..MixedOp::default() },
            MixedOp { once: true, ..MixedOp::default() },
        ];
        let warm_ups = WarmUps::new();
        for op in refused {
            let shown = format!("{op:?}");
            let op = Op::extension_with_secrets(op).unwrap();
            assert!(!warm_ups.ask(CurveKey(7), &op) && !warm_ups.has_news(), "{shown}");
        }
        let plain = Op::extension(MixedOp { bytes: Some(Bytes::from_vec(vec![1])), ..MixedOp::default() }).unwrap();
        assert!(warm_ups.ask(CurveKey(7), &plain) && !warm_ups.ask(CurveKey(7), &plain), "asked for once");
        assert!(warm_ups.next().is_some_and(|(key, _)| key == CurveKey(7)));
        warm_ups.done(CurveKey(7));
        assert!(warm_ups.ask(CurveKey(7), &plain));
    }
}
