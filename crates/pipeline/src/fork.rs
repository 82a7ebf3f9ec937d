//! Sends one item into two branches, and joins their outputs into a pair.
//!
//! An item that a branch leaves out reaches the join without a value, so both branches deliver the
//! same items in the same order. A pair that lacks one side is left out.

use std::sync::Arc;

use panoply_lockfree::foreign::contain;
use panoply_lockfree::ring::{Item, Ring};

use super::control::Failure;
use super::error::Cause;
use super::meter::StageCounters;
use super::options::Finally;
use super::serial::{Advance, Body, Inlet, Outlet, StageContext, TURN_MAX};

pub(crate) struct ForkBody<T> {
    pub(crate) input: Arc<Ring<T>>,
    pub(crate) outputs: (Arc<Ring<T>>, Arc<Ring<T>>),
}

impl<T: Clone + Send + 'static> Body for ForkBody<T> {
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance {
        for turn in 0..TURN_MAX {
            let idle = |idle| if turn > 0 { Advance::Moved } else { idle };
            if self.outputs.room() == 0 {
                return idle(Advance::Blocked);
            }
            let Some(item) = self.input.pop() else {
                if self.input.is_finished() {
                    self.outputs.0.end();
                    self.outputs.1.end();
                    return Advance::Finished;
                }
                return idle(Advance::Starved);
            };
            StageCounters::add(&stage.counts.taken, 1);
            let copy = contain(|| item.value.clone()).unwrap_or_else(|message| {
                let failure = Failure { stage: stage.name, item: item.number, attempts: 1 };
                stage.control.give_up(failure, Cause::Panicked(message), Finally::Stop, None::<T>, stage.counts);
                None
            });
            let copy = item.with(copy);
            // There is room, and no other thread pushes. So a push fails only if the run has ended.
            let _ = (self.outputs.0.push(item), self.outputs.1.push(copy));
            StageCounters::add(&stage.counts.given, 1);
        }
        Advance::Moved
    }

    fn abandon(&mut self) -> u64 {
        self.outputs.0.end();
        self.outputs.1.end();
        self.input.abandon()
    }
}

pub(crate) struct JoinBody<A, B> {
    pub(crate) inputs: (Arc<Ring<A>>, Arc<Ring<B>>),
    pub(crate) output: Arc<Ring<(A, B)>>,
}

impl<A: Send + 'static, B: Send + 'static> Body for JoinBody<A, B> {
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance {
        for turn in 0..TURN_MAX {
            let idle = |idle| if turn > 0 { Advance::Moved } else { idle };
            if self.output.room() == 0 {
                return idle(Advance::Blocked);
            }
            if self.inputs.ready() == 0 {
                if self.inputs.is_finished() {
                    self.output.end();
                    return Advance::Finished;
                }
                return idle(Advance::Starved);
            }
            let (Some(one), Some(other)) = (self.inputs.0.pop(), self.inputs.1.pop()) else {
                return idle(Advance::Starved);
            };
            StageCounters::add(&stage.counts.taken, 1);
            let (number, born) = (one.number, one.born.min(other.born));
            let value = one.value.zip(other.value);
            StageCounters::add(if value.is_some() { &stage.counts.given } else { &stage.counts.skipped }, 1);
            // As above: a push fails only if the run has ended.
            let _ = self.output.push(Item { number, born, value });
        }
        Advance::Moved
    }

    fn abandon(&mut self) -> u64 {
        self.output.end();
        self.inputs.0.abandon().max(self.inputs.1.abandon())
    }
}
