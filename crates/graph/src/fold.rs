//! Constant folding: steps that depend only on constants run once per device, when the plan is
//! first used, and their results stay on the device.

use panoply_core::graph::{Origin, slot_of};

use crate::work::Rewrite;

/// The largest factor by which the result of a folded step may exceed the bytes it reads, so that
/// broadcast constants are not materialised.
const GROWTH_MAX: usize = 4;
/// Results up to this size are folded in any case.
const SMALL_BYTES_MAX: usize = 1 << 20;

/// For each step, whether it reads only constants and results of such steps.
pub(crate) fn steps_of_constants(work: &Rewrite) -> Vec<bool> {
    let mut once = vec![false; work.steps.len()];
    for index in 0..work.steps.len() {
        let Some(step) = &work.steps[index] else { continue };
        let (mut constant, mut read_bytes) = (true, 0_usize);
        step.op.for_each_tensor(&mut |tensor| {
            let Some(slot) = slot_of(tensor) else { return };
            let slot = &work.slots[slot];
            read_bytes = read_bytes.saturating_add(slot.len_bytes());
            constant &= match slot.origin {
                Origin::Input(_) => false,
                Origin::Constant(_) => true,
                Origin::Step(maker) => once[maker],
            };
        });
        let written: usize = step.outputs.iter().map(|slot| work.slots[slot].len_bytes()).sum();
        // The output of a step that runs once cannot have a layout of its own.
        let is_plain = step.outputs.iter().all(|slot| work.orders[slot].is_none());
        once[index] = constant && is_plain && written <= read_bytes.saturating_mul(GROWTH_MAX).max(SMALL_BYTES_MAX);
    }
    once
}
