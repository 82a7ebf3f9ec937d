//! Reorders independent steps: small maps that only the graph's outputs wait for run last, grouped
//! by expression. Devices that run adjacent maps of one expression as one kernel then need few
//! kernels for an optimiser's updates of all parameters.

use std::collections::HashMap;

use panoply_core::graph::{Step, slot_of};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Op, Result};

use crate::Facts;

/// The key of steps that keep their position.
const FIRST: (usize, u64) = (0, 0);

/// The steps in their final order. `slots` is the number of slots.
pub(crate) fn ordered(steps: Vec<Step>, slots: usize, facts: &Facts) -> Vec<Step> {
    if facts.last_elements_max == 0 {
        return steps;
    }
    let last = runs_last(&steps, slots, facts);
    let levels = levels(&steps, &last, slots);
    let key = |(index, step): (usize, &Step)| {
        let expression = map(step).and_then(|map| map.program().ok()).map_or(0, |program| program.hash());
        if last[index] { (1 + levels[index], expression) } else { FIRST }
    };
    let keys: Vec<(usize, u64)> = steps.iter().enumerate().map(key).collect();
    let mut counts: HashMap<(usize, u64), usize> = HashMap::new();
    keys.iter().for_each(|key| *counts.entry(*key).or_default() += 1);
    // A map with a unique expression that reads none of the other last steps gains nothing by
    // moving, and its inputs would live longer.
    let stays = |key: &(usize, u64)| key.0 == 1 && counts[key] == 1;
    let mut keyed: Vec<((usize, u64), Step)> =
        keys.into_iter().map(|key| if stays(&key) { FIRST } else { key }).zip(steps).collect();
    // The sort is stable, so equal keys keep their order.
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, step)| step).collect()
}

/// For each step, whether it is a small map that is read only by such maps.
fn runs_last(steps: &[Step], slots: usize, facts: &Facts) -> Vec<bool> {
    let is_small = |map: &Map| -> Result<bool> { Ok(map.output_shape()?.elements() <= facts.last_elements_max) };
    let mut is_read = vec![false; slots];
    let mut last = vec![false; steps.len()];
    for (index, step) in steps.iter().enumerate().rev() {
        let unread = step.outputs.iter().all(|slot| !is_read[slot]);
        last[index] = unread && map(step).is_some_and(|map| is_small(map).unwrap_or(false));
        if !last[index] {
            step.op.for_each_tensor(&mut |tensor| slot_of(tensor).into_iter().for_each(|slot| is_read[slot] = true));
        }
    }
    last
}

/// For each of the last steps, the length of the longest chain of last steps before it.
fn levels(steps: &[Step], last: &[bool], slots: usize) -> Vec<usize> {
    let mut of_slot = vec![0; slots];
    let mut levels = vec![0; steps.len()];
    for (index, step) in steps.iter().enumerate().filter(|(index, _)| last[*index]) {
        step.op.for_each_tensor(&mut |tensor| {
            slot_of(tensor).into_iter().for_each(|slot| levels[index] = levels[index].max(of_slot[slot]));
        });
        step.outputs.iter().for_each(|slot| of_slot[slot] = levels[index] + 1);
    }
    levels
}

fn map(step: &Step) -> Option<&Map> {
    if let Op::Compute(ComputeOp::Map(map)) = &*step.op { Some(map) } else { None }
}
