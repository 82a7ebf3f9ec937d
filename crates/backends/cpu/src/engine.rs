//! The CPU engine: runs each submitted item to completion, and a batch as one unit of work.

use std::time::{Duration, Instant};

use panoply_core::{DeviceInfo, Engine, FinishedOp, Health, Item, MemoryStats, Op};

use crate::context::Context;
use crate::health::Sensors;
use crate::ops::together::{BatchedResult, Members, run_batch, run_own};

/// The engine of the cores of one NUMA node.
pub(crate) struct CpuEngine {
    info: DeviceInfo,
    context: Context,
    members: Members,
    finished: Vec<FinishedOp>,
    sensors: Sensors,
}

impl CpuEngine {
    /// Creates an engine with a context.
    pub(crate) fn new(info: DeviceInfo, mut context: Context, sensors: Sensors) -> CpuEngine {
        context.own_device = Some(info.id);
        CpuEngine { info, context, members: Members::default(), finished: Vec::new(), sensors }
    }

    fn run_alone(&mut self, mut item: Item) {
        let start = Instant::now();
        let result = run_own(&mut item.op, &mut self.context, self.info.id);
        let (Item { token, op }, device_time) = (item, Some(start.elapsed()));
        let (batch_size, bytes_moved, transferred) = (1, 0, None);
        self.finished.push(FinishedOp { token, op, result, batch_size, bytes_moved, transferred, device_time });
    }
}

impl Engine for CpuEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.context.collect();
        if batch.len() == 1 {
            batch.drain(..).for_each(|item| self.run_alone(item));
            return;
        }
        let in_place = |item: &mut Item| matches!(&item.op, Op::Crypto(op) if panoply_cpu_crypto::is_in_place(op));
        batch.extract_if(.., in_place).for_each(|item| self.run_alone(item));
        if batch.is_empty() {
            return;
        }
        let ran = run_batch(batch, &mut self.context, &mut self.members, self.info.id);
        for (item, BatchedResult { result, batch_size, time }) in batch.drain(..).zip(ran) {
            self.finished.push(FinishedOp { batch_size, device_time: Some(time), ..FinishedOp::alone(item, result) });
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, _wait_max: Duration) -> usize {
        self.context.collect();
        // An op is large, so usually the lists can be swapped instead of copying their contents.
        if finished.is_empty() {
            std::mem::swap(finished, &mut self.finished)
        } else {
            finished.append(&mut self.finished)
        }
        0
    }

    fn memory(&mut self) -> MemoryStats {
        let mut sum = self.context.memory.stats();
        let mut workspace_bytes = self.context.states.bytes();
        self.members.for_each_context(|context| {
            workspace_bytes += context.states.bytes();
            let own = context.memory.stats();
            sum.lent_bytes += own.lent_bytes;
            sum.cached_bytes += own.cached_bytes;
            sum.peak_bytes += own.peak_bytes;
            sum.hits += own.hits;
            sum.misses += own.misses;
        });
        sum.cached_bytes += workspace_bytes as u64;
        sum.peak_bytes = sum.peak_bytes.max(sum.lent_bytes + sum.cached_bytes);
        sum
    }

    fn trim(&mut self, keep_bytes: usize) {
        self.context.memory.trim(keep_bytes);
        self.members.for_each_context(|context| context.memory.trim(keep_bytes));
    }

    fn health(&mut self) -> Health {
        self.context.collect();
        self.sensors.read()
    }
}
