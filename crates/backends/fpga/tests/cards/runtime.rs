//! A card in the runtime: ops run on the card, ops of a lost card run on the CPU, and the card
//! comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::reference::reference as meaning;
use panoply_core::op::signal::{Checksum, Crc};
use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, FinishedOp, Health, Item,
    MemoryStats, Op, OpenOptions, Result, Support, Tensor,
};
use panoply_fpga::{Affine, FpgaBackend, SIMULATED};
use panoply_runtime::{RunOptions, Runtime};

use super::scripted::{Fault, ScriptedCards};
use super::{reference, simulation};

const CARD: DeviceId = DeviceId { api: Api::FPGA, index: 0 };

/// A CPU that computes with the reference. It replaces the CPU backend, which takes long to
/// compile.
struct Processor;

impl Backend for Processor {
    fn api(&self) -> Api {
        Api::CPU
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let mut info = DeviceInfo::new(DeviceId { api: Api::CPU, index: 0 }, "reference", DeviceKind::Cpu);
        (info.shares_host_memory, info.computes_in_submit, info.runs_on_cores) = (true, true, true);
        info.capabilities = Capabilities { domains: vec![Domain::Signal], features: Vec::new() };
        Ok(vec![info])
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        if op.domain() == Domain::Signal { Support::Yes } else { Support::unknown(op) }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(ProcessorEngine { info: device.clone(), done: Vec::new() }))
    }
}

struct ProcessorEngine {
    info: DeviceInfo,
    done: Vec<FinishedOp>,
}

impl Engine for ProcessorEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        let done = batch.drain(..).map(|item| {
            let result = meaning(&item.op);
            FinishedOp::alone(item, result)
        });
        self.done.extend(done);
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

fn runtime(backend: FpgaBackend) -> Runtime {
    let backends: [Arc<dyn Backend>; 2] = [Arc::new(Processor), Arc::new(backend)];
    backends.into_iter().fold(Runtime::builder(), |builder, backend| builder.backend(backend)).build().unwrap()
}

#[test]
fn ops_of_a_card_that_is_lost_run_on_the_cpu_and_the_card_comes_back() {
    let cards = ScriptedCards { fault: Fault::Silent(2), faulty_openings: 1, openings: Default::default() };
    let runtime = runtime(FpgaBackend::of(Api::FPGA, vec![Box::new(cards)]));
    let check = |at: usize| Crc::new(Checksum::Crc32, vec![at as u8; 50 + at]);
    let expected = |at: usize| vec![u64::from(reference::crc32(&vec![at as u8; 50 + at]))];
    let mut elsewhere = 0;
    for at in 0..6 {
        let outcome = runtime.run_with(check(at), RunOptions::prefer(CARD)).with_report().wait().unwrap();
        assert_eq!(outcome.output, expected(at));
        elsewhere += usize::from(outcome.report.device != CARD);
    }
    assert!(elsewhere > 0, "the silent card answered");
    let began = Instant::now();
    loop {
        let outcome = runtime.run_with(check(9), RunOptions::prefer(CARD)).with_report().wait().unwrap();
        assert_eq!(outcome.output, expected(9));
        if outcome.report.device == CARD {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the card does not come back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_smallest_core_runs_through_the_runtime() {
    if simulation().is_none() {
        return;
    }
    let runtime = runtime(FpgaBackend::simulated());
    let values: Vec<i32> = (0..1001_i32).map(|at| at.wrapping_mul(765_432_197)).chain([i32::MIN, i32::MAX]).collect();
    let input = Tensor::from_vec(values.clone(), [17, 59]).unwrap();
    let outcome = runtime.run(Affine::new(&input)).with_report().wait().unwrap();
    assert_eq!(outcome.output.as_slice::<i32>().unwrap(), reference::affine(&values));
    assert_eq!(outcome.report.device, DeviceId { api: SIMULATED, index: 0 });
    let empty = Tensor::from_vec(Vec::<i32>::new(), [0]).unwrap();
    assert_eq!(runtime.run(Affine::new(&empty)).wait().unwrap().elements(), 0);
}
