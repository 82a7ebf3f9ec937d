//! Several callers with ops in flight at the same time, so that an engine spreads them over its
//! lanes: chains of ops on the device, ops with memory that all ops of an engine share, cases of
//! the suite, and graphs that run again and again on other inputs. Every answer is compared with
//! the reference.

use std::time::{Duration, Instant};

use panoply_c_gpu::{GpuBackend, GpuEngine};
use panoply_conformance::judge::Judge;
use panoply_conformance::random_graph::RandomGraph;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{random_tensor, whole_numbers};
use panoply_conformance::{Case, Seeds, Tolerance, cases, run_there};
use panoply_core::expr::{BinaryOp, Expr};
use panoply_core::graph::Graph;
use panoply_core::op::compute::{Map, MatMul, Reduce, Scan, Sort, TopK, Transfer, Transpose};
use panoply_core::op::crypto::{Key, Sign, SignatureAlgorithm};
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    DType, Describe, DeviceId, DeviceInfo, Engine, Item, Location, Op, OpenOptions, Operation, Result, Tensor, Value,
};

use crate::vectors::{KEYS, bytes};

/// Rows and columns of the tensors of a chain.
const SIZE: usize = 32;
/// Ops of a chain.
const LINKS: usize = 40;
/// Elements of the long lines whose ops share memory of the engine.
const LONG: usize = 100_000;
/// How often a caller runs each graph, or a case of the suite.
const RUNS: usize = 6;
/// The random graphs.
const GRAPHS: u64 = 3;
/// Number of keys that sign.
const SIGNING_KEYS: usize = 2;
/// Time after which the test gives up.
const TIME_MAX: Duration = Duration::from_secs(240);
/// Beginnings of the names of cases that use tables, programs, keys or libraries.
const SHARED: [&str; 6] = ["crc/", "iir/", "seal/", "fft/", "decrypt/", "gather/"];

/// An op with its inputs where it runs, and the answer that the reference gave.
struct Task {
    name: String,
    op: Op,
    expected: Value,
    judge: Judge,
}

/// The ops of a caller: it runs the next one when it has an answer.
trait Script {
    /// The next op of the caller, whose last answer is `answer`. `None` at the end.
    fn next(&mut self, answer: Option<&Value>) -> Option<Task>;
}

/// A caller, with at most one op in flight.
struct Caller {
    script: Box<dyn Script>,
    answer: Option<Value>,
    state: State,
    is_waiting: bool,
}

#[expect(clippy::large_enum_variant, reason = "there is one for each caller")]
enum State {
    /// Ready for the next op.
    Idle,
    Running(Task),
    /// The answer's tensors on the device come to the host one by one: those, and their copies.
    Fetching(Task, Value, Vec<Tensor>, Vec<Tensor>),
    Ended,
}

impl Caller {
    fn new(script: impl Script + 'static) -> Caller {
        Caller { script: Box::new(script), answer: None, state: State::Idle, is_waiting: false }
    }

    /// The op to submit now.
    fn op(&mut self) -> Option<Op> {
        if self.is_waiting {
            return None;
        }
        let op = self.next_op();
        self.is_waiting = op.is_some();
        op
    }

    fn next_op(&mut self) -> Option<Op> {
        match &self.state {
            State::Idle => {
                let Some(task) = self.script.next(self.answer.as_ref()) else {
                    self.state = State::Ended;
                    return None;
                };
                let op = task.op.clone();
                self.state = State::Running(task);
                Some(op)
            }
            State::Fetching(_, _, there, fetched) => Some(Transfer::to_host(&there[fetched.len()]).into_op().unwrap()),
            State::Running(_) | State::Ended => None,
        }
    }

    /// Takes the answer to the op.
    fn receive(&mut self, value: Result<Value>) {
        self.is_waiting = false;
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Running(task) => {
                let value = value.unwrap_or_else(|error| panic!("{}: {error}", task.name));
                self.answer = Some(value.clone());
                let mut there = Vec::new();
                let each = |tensor: Tensor| {
                    there.extend((tensor.location() != Location::Host).then(|| tensor.clone()));
                    Ok(tensor)
                };
                drop(value.clone().try_map(each).unwrap());
                State::Fetching(task, value, there, Vec::new())
            }
            State::Fetching(task, of, there, mut fetched) => {
                fetched.push(value.unwrap().into_tensor().unwrap());
                State::Fetching(task, of, there, fetched)
            }
            other => other,
        };
        if let State::Fetching(task, value, there, fetched) = &self.state
            && fetched.len() == there.len()
        {
            let mut arrived = fetched.iter();
            let host = |tensor: Tensor| match tensor.location() {
                Location::Host => Ok(tensor),
                Location::Device(_) => Ok(arrived.next().unwrap().clone()),
            };
            let got = value.clone().try_map(host).unwrap();
            let wrong = task.judge.difference(&task.op, &task.expected, &got);
            assert_eq!(wrong, None, "{}", task.name);
            self.state = State::Idle;
        }
    }
}

/// A chain of exact ops: each reads the answer of the one before on the device.
struct Chain {
    caller: u64,
    here: Tensor,
    on_host: Tensor,
    other: [Tensor; 2],
    link: usize,
}

impl Chain {
    fn op(&self, x: &Tensor, other: &Tensor) -> Op {
        let clipped = || Map::new(Expr::input(0).binary(BinaryOp::Rem, 16.0), &[x]);
        let op = match (self.link + self.caller as usize) % 8 {
            0 => Map::add(x, other).into_op(),
            1 | 3 | 6 => clipped().into_op(),
            2 => Scan::sum(x).into_op(),
            4 => Sort::new(x).into_op(),
            5 => MatMul::new(x, other).into_op(),
            _ => Transpose::new(x).into_op(),
        };
        op.unwrap()
    }
}

impl Script for Chain {
    fn next(&mut self, answer: Option<&Value>) -> Option<Task> {
        if let Some(Value::Tensor(tensor)) = answer {
            self.here = tensor.clone();
        }
        if self.link == LINKS {
            return None;
        }
        let name = format!("link {} of the chain of caller {}", self.link, self.caller);
        let expected = reference(&self.op(&self.on_host, &self.other[1])).unwrap();
        let op = self.op(&self.here, &self.other[0]);
        if let Value::Tensor(tensor) = &expected {
            self.on_host = tensor.clone();
        }
        self.link += 1;
        Some(Task { name, op, expected, judge: Judge::Within(Tolerance::Exact) })
    }
}

/// A script that runs the same tasks again and again.
struct RepeatedTasks {
    tasks: Vec<Box<dyn Fn() -> Task>>,
    left: usize,
}

impl Script for RepeatedTasks {
    fn next(&mut self, _answer: Option<&Value>) -> Option<Task> {
        self.left = self.left.checked_sub(1)?;
        Some(self.tasks[self.left % self.tasks.len()]())
    }
}

impl RepeatedTasks {
    /// Each op `RUNS` times, on tensors on the device, with the answers for those on the host.
    fn new(ops: Vec<(String, Op, Op, Judge)>) -> RepeatedTasks {
        let left = ops.len() * RUNS;
        let task = |(name, op, on_host, judge): (String, Op, Op, Judge)| -> Box<dyn Fn() -> Task> {
            let expected = reference(&on_host).unwrap();
            Box::new(move || Task { name: name.clone(), op: op.clone(), expected: expected.clone(), judge })
        };
        RepeatedTasks { tasks: ops.into_iter().map(task).collect(), left }
    }
}

/// Random numbers below a limit.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Runs all scripts on each device of the backend, with submissions in an order of this seed.
pub fn run(backend: &dyn GpuBackend, seed: u64) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let mut callers: Vec<Caller> = Vec::new();
        callers.extend((0..3).map(|caller| Caller::new(chain(&mut engine, device.id, caller))));
        callers.extend((0..2).map(|caller| Caller::new(long_lines(&mut engine, device.id, caller))));
        callers.extend((0..2).map(|_| Caller::new(suite(backend, &device))));
        callers.extend((0..2).map(|_| Caller::new(signing())));
        callers.extend((0..3).map(|caller| Caller::new(graphs(backend, &mut engine, &device, caller))));
        let ops = drive(&mut engine, callers, seed);
        println!("{}: {ops} ops of twelve callers, seed {seed}", device.id);
    }
}

/// Runs one graph of many steps for three callers on each device of the backend.
pub fn run_one_graph(backend: &dyn GpuBackend, seed: u64) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let graph = steps();
        let mut script =
            |caller| RepeatedTasks::new(vec![with_own_inputs(&mut engine, device.id, (0, &graph), caller)]);
        let callers = (1..=3).map(|caller| Caller::new(script(caller))).collect();
        drive(&mut engine, callers, seed);
    }
}

/// Submits the callers' ops in random groups, until all scripts have ended. Returns the number of
/// ops.
fn drive(engine: &mut GpuEngine, mut callers: Vec<Caller>, seed: u64) -> usize {
    let (mut dice, mut batch, mut finished, mut ops) = (Dice(seed), Vec::new(), Vec::new(), 0);
    let start = Instant::now();
    while !callers.iter().all(|caller| matches!(caller.state, State::Ended)) {
        assert!(start.elapsed() < TIME_MAX, "{ops} ops after {TIME_MAX:?}");
        for (caller, token) in callers.iter_mut().zip(0..) {
            if dice.below(3) > 0 {
                batch.extend(caller.op().map(|op| Item { token, op }));
            }
        }
        ops += batch.len();
        engine.submit(&mut batch);
        engine.poll(&mut finished, Duration::from_micros(dice.below(3)));
        for done in finished.drain(..) {
            callers[done.token as usize].receive(done.result);
        }
    }
    ops
}

/// The tensor in the device's memory.
fn moved(engine: &mut GpuEngine, device: DeviceId, tensor: &Tensor) -> Tensor {
    let op = Transfer::to_device(tensor, device).into_op().unwrap();
    let moved = run_there(engine, op).unwrap().into_tensor().unwrap();
    assert_eq!(moved.location(), Location::Device(device));
    moved
}

fn chain(engine: &mut GpuEngine, device: DeviceId, caller: u64) -> Chain {
    let on_host = whole_numbers(DType::F32, &[SIZE, SIZE], caller);
    let other = whole_numbers(DType::F32, &[SIZE, SIZE], 100 + caller);
    let here = moved(engine, device, &on_host);
    Chain { caller, here, on_host, other: [moved(engine, device, &other), other], link: 0 }
}

/// Scans, sums and choices of long lines: their blocks meet in counters and on a board.
fn long_lines(engine: &mut GpuEngine, device: DeviceId, caller: u64) -> RepeatedTasks {
    let line = whole_numbers(DType::F32, &[1, LONG], 200 + caller);
    let ops = |line: &Tensor| {
        [Scan::sum(line).into_op(), Reduce::sum(line).into_op(), TopK::new(line, 10).into_op()].map(Result::unwrap)
    };
    let on_device = ops(&moved(engine, device, &line));
    let named = on_device.into_iter().zip(ops(&line)).map(|(here, on_host)| {
        let name = format!("{} of the long line of caller {caller}", here.name());
        (name, here, on_host, Judge::Within(Tolerance::Exact))
    });
    RepeatedTasks::new(named.collect())
}

/// The first case of each kind in `SHARED`, with its inputs on the host.
fn suite(backend: &dyn GpuBackend, device: &DeviceInfo) -> RepeatedTasks {
    let all = cases();
    let first = |prefix: &&str| {
        let suits = |case: &&Case| case.name.starts_with(*prefix) && backend.can_run(device, &case.op);
        all.iter().find(|case| suits(case) && reference(&case.op).is_ok())
    };
    let ops = SHARED.iter().filter_map(first);
    RepeatedTasks::new(ops.map(|case| (case.name.clone(), case.op.clone(), case.op.clone(), case.judge)).collect())
}

/// Signatures, whose tables the first op computes for all. Ops verify what they sign.
fn signing() -> RepeatedTasks {
    let task = |(algorithm, private, _): &(SignatureAlgorithm, &str, &str)| -> Box<dyn Fn() -> Task> {
        let key = Key::sign(*algorithm, &bytes(private)).unwrap();
        let (name, op) = (algorithm.name(), Sign::new(&key, vec![7; 40]).into_op().unwrap());
        let judge = Judge::Own(|_, _, _| None);
        Box::new(move || Task { name: name.to_owned(), op: op.clone(), expected: Value::List(Vec::new()), judge })
    };
    RepeatedTasks { tasks: KEYS[..SIGNING_KEYS].iter().map(task).collect(), left: SIGNING_KEYS * RUNS }
}

/// A graph whose steps hand their results on in memory that graphs of one lane share, with a
/// constant that all lanes read.
fn steps() -> RandomGraph {
    let mut g = Graph::builder("steps");
    let x = random_tensor(DType::F32, &[SIZE, SIZE], 1);
    let mut y = g.input("x", DType::F32, &[SIZE.into(), SIZE.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[SIZE, SIZE], 2)).unwrap();
    for _ in 0..6 {
        let product = g.matmul(y, w).unwrap();
        y = g.softmax(product, 1).unwrap();
    }
    g.output("y", y).unwrap();
    let op = RunGraph::new(&g.finish().unwrap(), &[&x]);
    RandomGraph { op, tolerance: Tolerance::Close { absolute: 1e-4, relative: 1e-3 } }
}

/// Random graphs, the same for all callers, with inputs of each caller's own on the device.
fn graphs(backend: &dyn GpuBackend, engine: &mut GpuEngine, device: &DeviceInfo, caller: u64) -> RepeatedTasks {
    let random = Seeds::or_asked(GRAPHS, GRAPHS).graphs();
    let ops = random.map(|(number, graph)| with_own_inputs(engine, device.id, (number, &graph), caller));
    RepeatedTasks::new(ops.filter(|(_, here, ..)| backend.can_run(device, here)).collect())
}

/// A graph on inputs of the caller's own: on the device, and on the host.
fn with_own_inputs(
    engine: &mut GpuEngine,
    device: DeviceId,
    (number, graph): (u64, &RandomGraph),
    caller: u64,
) -> (String, Op, Op, Judge) {
    let seed = |place: usize| number ^ (caller << 20) ^ ((place as u64) << 40);
    let of = |(place, input): (usize, &Tensor)| random_tensor(input.dtype(), input.shape(), seed(place));
    let inputs: Vec<Tensor> = graph.op.inputs().iter().enumerate().map(of).collect();
    let here: Vec<Tensor> = inputs.iter().map(|input| moved(engine, device, input)).collect();
    let [here, on_host] = [here, inputs]
        .map(|inputs| RunGraph::new(graph.op.graph(), &inputs.iter().collect::<Vec<_>>()).into_op().unwrap());
    (format!("graph {number} of caller {caller}"), here, on_host, graph.tolerance.into())
}
