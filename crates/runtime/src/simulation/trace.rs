//! Sealing and verifying on a processor's cores and a GPU, under a virtual clock: messages of mixed
//! sizes in mixed locations, routed by the router and by an oracle that knows the best device for
//! each. The costs of ops are close to measured ones. Only the costs are simulated; the router and
//! everything below it are real.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::Script;
use panoply_core::clock::Clock;
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::op::crypto::{AeadAlgorithm, CryptoOp, Key, Messages, Seal, SignatureAlgorithm, TAG_BYTES, Verify};
use panoply_core::{
    Absence, Api, Backend, Bytes, DeviceInfo, DeviceKind, Engine, Error, FinishedOp, Health, Item, MemoryStats, Op,
    OpenOptions, Operation, Outcome, Result, Support, Value,
};
use panoply_cpu::CpuBackend;

use super::uneven::Uneven;
use crate::lane::OpReceiver;
use crate::options::{FallbackPolicy, Wishes};
use crate::router::Exploration;

const CPU: usize = 0;
const GPU: usize = 1;
const TICK: Duration = Duration::from_micros(4);
const OPS: usize = 400;
/// Number of traces that are played. The first three all end near the oracle; each takes half a
/// minute on a busy machine.
const SEEDS: u64 = 1;
const BURST_MAX: u64 = 12;
/// A difference by this factor is clear: the router must detect it.
const CLEAR: f64 = 1.5;
/// The largest time of the router, as a multiple of the oracle's.
const OF_ORACLE_MAX: f64 = 1.1;

/// Eight cores with vector instructions.
fn cpu_cost(op: &Op) -> Duration {
    match op {
        Op::Crypto(CryptoOp::Seal(op)) => nanoseconds(1_500.0 + op.messages().total_bytes() as f64 / 64.0),
        Op::Crypto(CryptoOp::Verify(op)) => nanoseconds(2_000.0 + op.messages().count() as f64 * 9_600.0),
        _ => Duration::ZERO,
    }
}

/// A large card: it seals twice as fast as the cores, but its link is slower, in both directions,
/// than sealing on the cores.
fn gpu_cost(op: &Op) -> Duration {
    match op {
        Op::Crypto(CryptoOp::Seal(op)) => nanoseconds(8_000.0 + op.messages().total_bytes() as f64 / 135.0),
        Op::Crypto(CryptoOp::Verify(op)) => nanoseconds(2_000_000.0 + op.messages().count() as f64 * 200.0),
        _ => Duration::ZERO,
    }
}

fn nanoseconds(count: f64) -> Duration {
    Duration::from_nanos(count as u64)
}

fn world() -> Uneven {
    let cpu = Script::new().kind(DeviceKind::Cpu).in_host_memory().cost(cpu_cost);
    let link = (Duration::from_micros(20), Duration::from_nanos(19_400));
    let gpu = Script::new().kind(DeviceKind::DiscreteGpu).resident().link(link.0, link.1).cost(gpu_cost);
    Uneven::over(Arc::new(Blank), [cpu, gpu], Exploration::default(), TICK)
}

/// One op of the trace's repertoire.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TraceOp {
    SealOfHost(usize),
    SealOnGpu(usize),
    Verify(usize),
}

fn repertoire() -> Vec<TraceOp> {
    let from_host = (6..=22).step_by(2).map(|power| TraceOp::SealOfHost(1 << power));
    let on_gpu = (14..=24).step_by(2).map(|power| TraceOp::SealOnGpu(1 << power));
    let verified = [1, 64, 1_000, 10_000, 100_000].map(TraceOp::Verify);
    from_host.chain(on_gpu).chain(verified).collect()
}

/// A world and the ops that are played in it, with their inputs in place.
struct Trace {
    world: Uneven,
    pieces: Vec<(TraceOp, Op)>,
}

impl Trace {
    fn new() -> Trace {
        let mut trace = Trace { world: world(), pieces: Vec::new() };
        for piece in repertoire() {
            let op = match piece {
                TraceOp::SealOfHost(len) => seal(Bytes::from_vec(vec![3; len])),
                TraceOp::SealOnGpu(len) => {
                    let tensor = Bytes::from_vec(vec![3; len]).to_tensor().unwrap();
                    let there = Transfer::to_device(&tensor, trace.world.lanes[GPU].info.id).into_op().unwrap();
                    let there = trace.one(there, GPU, false).output.into_tensor().unwrap();
                    seal(Bytes::from_tensor(&there).unwrap())
                }
                TraceOp::Verify(count) => verify(count),
            };
            trace.pieces.push((piece, op));
        }
        trace
    }

    fn send(&self, op: &Op, allowed: u64, to_host: bool) -> OpReceiver {
        let pinned = allowed.is_power_of_two();
        let wishes = Wishes { allowed, pinned, to_host, ..Wishes::none(FallbackPolicy::None) };
        self.world.router.send(op.clone(), wishes, self.world.clock.now(), false).unwrap().receiver
    }

    /// Sends a piece. Host messages return to the host; device messages stay on the device.
    fn send_piece(&self, index: usize, allowed: u64) -> OpReceiver {
        let (piece, op) = &self.pieces[index];
        self.send(op, allowed, !matches!(piece, TraceOp::SealOnGpu(_)))
    }

    /// Runs one op on one device, alone.
    fn one(&mut self, op: Op, lane: usize, to_host: bool) -> Outcome<Value> {
        let receiver = self.send(&op, 1 << lane, to_host);
        self.finish(vec![receiver]).remove(0)
    }

    fn finish(&mut self, mut receivers: Vec<OpReceiver>) -> Vec<Outcome<Value>> {
        let context = Context::from_waker(Waker::noop());
        let mut outcomes: Vec<Option<Outcome<Value>>> = receivers.iter().map(|_| None).collect();
        while outcomes.iter().any(Option::is_none) {
            self.world.tick();
            for (receiver, outcome) in receivers.iter_mut().zip(&mut outcomes).filter(|(_, done)| done.is_none()) {
                if let Poll::Ready(answer) = receiver.poll(&context) {
                    *outcome = Some(answer.unwrap().unwrap());
                }
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    /// The time of each piece on each device, alone. The oracle knows these times, and the router
    /// learns them.
    fn measured(&mut self) -> Vec<[Duration; 2]> {
        let each = |trace: &mut Trace, index: usize, lane: usize| {
            let times = (0..4).map(|_| {
                let start = trace.world.clock.now();
                let receiver = trace.send_piece(index, 1 << lane);
                trace.finish(vec![receiver]);
                trace.world.clock.now() - start
            });
            times.min().unwrap_or_default()
        };
        (0..self.pieces.len()).map(|index| [CPU, GPU].map(|lane| each(self, index, lane))).collect()
    }

    /// Plays the trace in bursts. Each burst is sent at once and waited for. `allowed` returns the
    /// lanes that a piece may use.
    fn play(&mut self, seed: u64, allowed: impl Fn(usize) -> u64) -> Duration {
        let (mut random, start, mut left) = (Random::new(seed), self.world.clock.now(), OPS);
        while left > 0 {
            let count = (1 + random.below(BURST_MAX) as usize).min(left);
            let draws: Vec<usize> = (0..count).map(|_| random.below(self.pieces.len() as u64) as usize).collect();
            let receivers = draws.iter().map(|index| self.send_piece(*index, allowed(*index))).collect();
            self.finish(receivers);
            left -= count;
        }
        self.world.clock.now() - start
    }

    /// The device to which the router sends a piece while both are idle, and the bytes that crossed
    /// the link for it.
    fn place_of(&mut self, index: usize) -> (usize, u64) {
        let receiver = self.send_piece(index, u64::MAX);
        let report = self.finish(vec![receiver]).remove(0).report;
        (report.device.index as usize, report.bytes_moved)
    }
}

fn seal(message: Bytes) -> Op {
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    Seal::new(&key, [9; 12], message).into_op().unwrap()
}

fn verify(count: usize) -> Op {
    let key = Key::verify(SignatureAlgorithm::Ed25519, &[5; 32]).unwrap();
    let packed = |each: usize| Messages::split(Bytes::from_vec(vec![1; count * each]), each).unwrap();
    Verify::new(&key, packed(32), packed(64)).into_op().unwrap()
}

fn best_of(times: &[Duration; 2]) -> usize {
    if times[CPU] <= times[GPU] { CPU } else { GPU }
}

#[test]
fn a_mixed_trace_of_ciphers_and_signatures_ends_near_the_oracle() {
    for seed in 0..SEEDS {
        let mut trace = Trace::new();
        let times = trace.measured();
        let oracle = trace.play(seed, |index| 1 << best_of(&times[index]));
        let [always_cpu, always_gpu] = [CPU, GPU].map(|lane| trace.play(seed, |_| 1 << lane));
        let router = trace.play(seed, |_| u64::MAX);
        // A second router without prior knowledge plays the same trace twice.
        let mut fresh = Trace::new();
        let first = fresh.play(seed, |_| u64::MAX);
        let second = fresh.play(seed, |_| u64::MAX);
        let of_oracle = |time: Duration| time.as_secs_f64() / oracle.as_secs_f64();
        let [learned, first, second, cpu, gpu] = [router, first, second, always_cpu, always_gpu].map(of_oracle);
        println!(
            "seed {seed}: oracle {oracle:?}, router {learned:.3}, fresh {first:.3} then {second:.3}, always {cpu:.2} and {gpu:.2}"
        );
        assert!(learned <= OF_ORACLE_MAX, "seed {seed}: {learned}");
        assert!(second <= OF_ORACLE_MAX, "seed {seed}: {second} when it has learned");
        assert!(cpu.min(gpu) > OF_ORACLE_MAX, "seed {seed}: the trace needs both devices: {cpu} {gpu}");
    }
}

#[test]
fn messages_are_sealed_where_they_are_and_signatures_go_where_there_are_threads_for_them() {
    let mut trace = Trace::new();
    let times = trace.measured();
    for (index, [cpu, gpu]) in times.into_iter().enumerate() {
        let (piece, _) = trace.pieces[index];
        let gain = cpu.as_secs_f64() / gpu.as_secs_f64();
        match piece {
            TraceOp::SealOfHost(_) | TraceOp::Verify(1 | 64) => assert!(gain < 1.0, "{piece:?}: {gain}"),
            TraceOp::SealOnGpu(len) if len < 1 << 20 => {}
            TraceOp::SealOnGpu(_) | TraceOp::Verify(_) => assert!(gain > CLEAR, "{piece:?}: {gain}"),
        }
        // A few ops are sent elsewhere to explore; most are not.
        let places: Vec<(usize, u64)> = (0..9).map(|_| trace.place_of(index)).collect();
        let on_gpu = places.iter().filter(|(device, _)| *device == GPU).count();
        let (is_expected, expected) = match gain {
            gain if gain > CLEAR => (on_gpu >= 8, "the device"),
            gain if gain < 1.0 / CLEAR => (on_gpu <= 1, "the cores"),
            _ => continue,
        };
        assert!(is_expected, "{piece:?} belongs to {expected}: {places:?}");
        // The key and the nonce travel with each op.
        let moved = places.iter().find(|(device, moved)| *device == GPU && *moved > 32 + 12);
        assert!(!matches!(piece, TraceOp::SealOnGpu(_)) || moved.is_none(), "{piece:?} stays where it is: {places:?}");
    }
}

/// Returns answers of the right form, at once and without computing. The scripts define their
/// costs.
struct Blank;

struct BlankEngine {
    info: DeviceInfo,
    done: Vec<FinishedOp>,
}

impl Backend for Blank {
    fn api(&self) -> Api {
        Api::SIMULATED
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        CpuBackend::with_root("/nonexistent").discover()
    }

    fn supports(&self, _: &DeviceInfo, _: &Op) -> Support {
        Support::Yes
    }

    fn open(&self, device: &DeviceInfo, _: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(BlankEngine { info: device.clone(), done: Vec::new() }))
    }
}

fn blank_answer(op: &Op) -> Result<Value> {
    let made = |len: usize| Ok(Value::Bytes(Bytes::from_vec(vec![1; len])));
    match op {
        Op::Crypto(CryptoOp::Seal(op)) => made(op.messages().total_bytes() + TAG_BYTES),
        Op::Crypto(CryptoOp::Verify(op)) => made(op.messages().count()),
        Op::Compute(ComputeOp::Transfer(op)) => Ok(Value::Tensor(op.input.clone())),
        _ => Err(Error::Unsupported { op: "another", reason: "the trace has none".to_owned() }),
    }
}

impl Engine for BlankEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.done.extend(batch.drain(..).map(|item| {
            let answer = blank_answer(&item.op);
            FinishedOp::alone(item, answer)
        }));
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, _: Duration) -> usize {
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
