//! The CPU engine: runs each item to its end when it is submitted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{DeviceInfo, Engine, Error, Finished, Health, Item, MemoryStats};

use crate::context::Context;
use crate::health::Sensors;
use crate::ops;

/// One NUMA node's cores, opened.
pub(crate) struct CpuEngine {
    info: DeviceInfo,
    context: Context,
    finished: Vec<Finished>,
    sensors: Sensors,
}

impl CpuEngine {
    /// An engine over a context.
    pub(crate) fn new(info: DeviceInfo, context: Context, sensors: Sensors) -> CpuEngine {
        CpuEngine { info, context, finished: Vec::new(), sensors }
    }

    fn run(&mut self, item: Item) -> Finished {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| ops::run(&item.op, &mut self.context)));
        let result = result.unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            Err(Error::EnginePanicked { device: self.info.id, message })
        });
        Finished { device_time: Some(start.elapsed()), ..Finished::alone(item, result) }
    }
}

impl Engine for CpuEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        for item in batch.drain(..) {
            let done = self.run(item);
            self.finished.push(done);
        }
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, _wait_max: Duration) -> usize {
        finished.append(&mut self.finished);
        0
    }

    fn memory(&mut self) -> MemoryStats {
        self.context.memory.stats()
    }

    fn health(&mut self) -> Health {
        self.sensors.read()
    }
}
