//! What a program holds: it finds devices, starts a worker for each, and takes ops.
//!
//! ```
//! # use panoply_runtime::Runtime;
//! # use panoply_core::{Tensor, op::compute::Transpose};
//! # use std::sync::Arc;
//! let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//! let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let turned = runtime.run(Transpose::new(&matrix)).wait()?;
//! assert_eq!(turned.as_slice::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::{Absence, Api, DeviceId, DeviceInfo, Error, Operation, Result};

use crate::device_worker::supervisor::{Shutdown, Supervisor};
use crate::device_worker::{Task, WorkerReport};
use crate::pending::{Deadline, Pending};
use crate::router::{Candidate, choose};
use crate::slot::slot;

mod builder;
mod timers;

pub use builder::{BuildError, Builder};
pub(crate) use timers::Timers;

/// How long dropping a runtime waits for its ops before it gives them up.
const DROP_DRAIN_MAX: Duration = Duration::from_secs(30);

/// The devices of this machine, each behind one worker. Share it by reference or in an `Arc`; dropping it drains it.
pub struct Runtime {
    candidates: Vec<Candidate>,
    backends: Vec<BackendReport>,
    timers: Arc<Timers>,
    supervisor: Mutex<Option<Supervisor>>,
}

/// What one backend found.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendReport {
    /// The API.
    pub api: Api,
    /// Its devices, or why there are none.
    pub devices: Result<Vec<DeviceInfo>, Absence>,
}

/// A caller's wishes for one op.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Run it on this device and no other.
    pub device: Option<DeviceId>,
    /// The outcome is of no use after this time.
    pub deadline: Option<Instant>,
}

impl Runtime {
    /// Chooses what the runtime is made of.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs an op on the device that suits it. The op is accepted at once where there is room; otherwise it waits for room
    /// when the result is awaited.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.run_with(op, RunOptions::default())
    }

    /// Runs an op as the caller wishes.
    pub fn run_with<O: Operation>(&self, op: O, options: RunOptions) -> Pending<O::Output> {
        match self.send(op, options, true) {
            Ok(pending) => pending,
            Err(error) => Pending::refused(error, O::output),
        }
    }

    /// Runs an op if there is room for it now; [`Error::Busy`] where there is not.
    pub fn try_run<O: Operation>(&self, op: O) -> Result<Pending<O::Output>> {
        self.try_run_with(op, RunOptions::default())
    }

    /// Runs an op as the caller wishes, if there is room for it now.
    pub fn try_run_with<O: Operation>(&self, op: O, options: RunOptions) -> Result<Pending<O::Output>> {
        self.send(op, options, false)
    }

    /// What each backend found.
    pub fn backends(&self) -> &[BackendReport] {
        &self.backends
    }

    /// Every device that ops can be sent to.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.candidates.iter().map(|candidate| &candidate.lane.info)
    }

    /// What each device's worker is doing, and has done.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.candidates.iter().map(|candidate| candidate.lane.report()).collect()
    }

    /// Takes no more ops, finishes the ones it has, and ends every worker. What is not finished within `drain_time_max`
    /// is answered with [`Error::ShuttingDown`]. A second call finds nothing to do.
    pub fn shutdown(&self, drain_time_max: Duration) -> Shutdown {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shutdown = match supervisor.take() {
            Some(mut supervisor) => supervisor.shut_down(drain_time_max),
            None => Shutdown { drained: true, threads_left: 0 },
        };
        self.timers.stop();
        shutdown
    }

    /// Takes no more ops and answers the ones it has with [`Error::ShuttingDown`], except where one finishes first.
    pub fn abort(&self) -> Shutdown {
        for candidate in &self.candidates {
            candidate.lane.abort();
        }
        self.shutdown(Duration::ZERO)
    }

    fn send<O: Operation>(&self, op: O, options: RunOptions, may_wait: bool) -> Result<Pending<O::Output>> {
        let op = op.into_op()?;
        let accepted = Instant::now();
        if let Some(deadline) = options.deadline
            && accepted > deadline
        {
            return Err(Error::DeadlineExceeded { late_by: accepted - deadline });
        }
        let lane = Arc::clone(&choose(&self.candidates, &op, options.device)?.lane);
        let (ticket, receiver) = slot(Task { op, accepted, deadline: options.deadline });
        let unsent = match lane.try_send(ticket) {
            Ok(()) => None,
            Err((ticket, Error::Busy { .. })) if may_wait => Some(ticket),
            Err((_, error)) => return Err(error),
        };
        let deadline = options.deadline.map(|at| Deadline { at, timers: Arc::clone(&self.timers), armed: None });
        Ok(Pending::sent(receiver, lane, unsent, deadline, O::output))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown(DROP_DRAIN_MAX);
    }
}
