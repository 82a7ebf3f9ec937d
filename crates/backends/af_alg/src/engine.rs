//! The engine. A system call returns when the kernel is done, so ops finish inside `submit`.
//! Nothing is kept between ops, in particular no keys.

use std::time::{Duration, Instant};

use panoply_core::op::Describe;
use panoply_core::{DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, Op, Result, Support, Value};

use crate::ops::{self, Fault};

pub(crate) struct AfAlgEngine {
    info: DeviceInfo,
    done: Vec<FinishedOp>,
}

impl AfAlgEngine {
    pub(crate) fn new(info: DeviceInfo) -> AfAlgEngine {
        AfAlgEngine { info, done: Vec::new() }
    }

    fn answer(&self, op: &Op) -> Result<Value> {
        let has =
            |algorithm: ops::Algorithm| self.info.capabilities.features.iter().any(|name| name == algorithm.name());
        if let Some(refusal) = ops::refusal(op, &has) {
            return Err(refusal.refusal(op));
        }
        // The op is validated again, because its nonces may have been on a device at its first
        // validation.
        op.validate()?;
        let Op::Crypto(crypto) = op else { return Err(Support::unknown(op).refusal(op)) };
        ops::run(crypto).map_err(|fault| match fault {
            Fault::Op(error) => error,
            Fault::Kernel(trouble) => Error::DeviceFault { device: self.info.id, reason: trouble.to_string() },
        })
    }
}

impl Engine for AfAlgEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        for item in batch.drain(..) {
            let began = Instant::now();
            let result = self.answer(&item.op);
            let device_time = Some(began.elapsed());
            self.done.push(FinishedOp { device_time, ..FinishedOp::alone(item, result) });
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, _wait_max: Duration) -> usize {
        finished.append(&mut self.done);
        0
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats::default()
    }

    fn health(&mut self) -> Health {
        Health::default()
    }
}
