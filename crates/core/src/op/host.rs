//! Ops of domains outside this workspace that bring their code for the host. The CPU backend runs
//! them: it lends them its threads, and keeps the state that they leave for later ops. Other
//! backends may run the same ops, as [`Extension`]s that they know.

use std::any::Any;
use std::fmt;

use super::{Describe, Extension, Op};
use crate::device::DeviceId;
use crate::error::{Error, Result};
use crate::object::{Object, ObjectTable};
use crate::part::Value;
use crate::tensor::Location;
use crate::threads::Threads;

/// An op of a domain outside this workspace, with its code for the host.
pub trait HostOp: Describe + Clone + fmt::Debug + Send + Sync + 'static {
    /// The name of the op's domain: [`Domain::Outside`](super::Domain::Outside).
    const DOMAIN: &'static str;

    /// Whether the op may have secret parts. If so, every engine that runs it, and [`HostOp::run`],
    /// must wipe their copies of them.
    const TAKES_SECRETS: bool = false;

    /// Computes the answer. All inputs are on the host, and all device objects are of the device
    /// that runs the op. Later ops for the device wait until this method returns.
    fn run(&self, host: &mut Host<'_>) -> Result<Value>;
}

/// The host, as an op sees it while it runs.
pub struct Host<'a> {
    op: &'a Extension,
    threads: &'a dyn Threads,
    states: &'a mut HostStates,
}

impl Host<'_> {
    /// The device's threads.
    pub fn threads(&self) -> &dyn Threads {
        self.threads
    }

    /// Keeps a state on the device for later ops, until the last handle to it is dropped. `kind`
    /// names it in a word or two. If the device is lost, this op runs once more to make the state
    /// again, provided that it [may be repeated](Describe::is_repeatable) and names no device
    /// object.
    pub fn keep(&mut self, kind: &'static str, state: impl Any + Send) -> Result<Object> {
        let op = Op::Extension(self.op.clone());
        let mut can_repeat = op.is_repeatable();
        op.for_each_part(&mut |part| can_repeat &= part.location() == Location::Host);
        self.states.0.insert(kind, Box::new(state), can_repeat.then_some(&op))
    }

    /// The state of a device object. Fails if the state was lost or has another type.
    pub fn state<S: Any + Send>(&mut self, object: &Object) -> Result<&mut S> {
        let state = self.states.0.get_mut(object)?;
        let wrong = || Error::invalid("device object", std::any::type_name::<S>(), object.kind());
        state.downcast_mut().ok_or_else(wrong)
    }
}

/// The states that ops with code for the host keep on one device.
pub struct HostStates(ObjectTable<Box<dyn Any + Send>>);

impl HostStates {
    /// No states, for the engine of this device.
    pub fn new(device: DeviceId) -> HostStates {
        HostStates(ObjectTable::new(device))
    }

    /// Drops the states whose last handles are gone.
    pub fn collect(&mut self) {
        self.0.collect();
    }
}

/// The parts of a [`HostOp`] that do not depend on its type.
#[derive(Clone, Copy)]
pub(super) struct HostSide {
    pub(super) domain: &'static str,
    run: fn(&dyn Any, &mut Host<'_>) -> Result<Value>,
}

impl HostSide {
    pub(super) fn of<T: HostOp>() -> HostSide {
        let run = |op: &dyn Any, host: &mut Host<'_>| match op.downcast_ref::<T>() {
            Some(op) => op.run(host),
            None => Err(Error::invalid("op", std::any::type_name::<T>(), "another type")),
        };
        HostSide { domain: T::DOMAIN, run }
    }
}

impl Extension {
    /// Whether the op brings its code for the host.
    pub fn runs_on_host(&self) -> bool {
        self.host.is_some()
    }

    /// Runs the op's code for the host, for an engine of the host. `None` if it has none.
    pub fn run_on_host(&self, threads: &dyn Threads, states: &mut HostStates) -> Option<Result<Value>> {
        let side = self.host?;
        Some((side.run)(self.any(), &mut Host { op: self, threads, states }))
    }
}
