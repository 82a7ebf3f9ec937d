//! Engines that answer wrongly: each op still has one outcome, which names the device and the op,
//! and no caller receives an output that its op cannot have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_core::graph::Graph;
use panoply_core::op::compute::{
    Conv2dBackwardInput, Conv2dBackwardWeight, Kernel, LaunchSize, MatMul, Metric, Normalize, Search, SortPairs, TopK,
    Transfer, Transpose,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::op::signal::Fft;
use panoply_core::{DType, DeviceId, Error, ErrorKind, Location, Op, Operation, Outcome, Result, Shape, Tensor, Value};
use panoply_runtime::{
    Batching, Circuit, FallbackPolicy, Goal, HealthRules, Pending, RunOptions, Runtime, WorkerLimits, WorkerState,
};

use crate::liar::{LIAR, Liar, Lie, Make, Tongue, Use, WRONG};
use crate::{WAIT_MAX, eventually};

const FIRST: DeviceId = DeviceId { api: LIAR, index: 0 };
const SECOND: DeviceId = DeviceId { api: LIAR, index: 1 };

/// Any op, whose output is the engine's answer as it is.
struct Any(Op);

impl Operation for Any {
    type Output = Value;
    fn into_op(self) -> Result<Op> {
        Ok(self.0)
    }
    fn output(value: Value) -> Result<Value> {
        Ok(value)
    }
}

/// A runtime whose devices have plenty of time: a busy machine may stop a worker for a while.
fn build(devices: u32, rules: HealthRules, batching: Batching) -> (Runtime, Arc<Tongue>) {
    limited(devices, rules, batching, Duration::from_secs(2))
}

fn limited(devices: u32, rules: HealthRules, batching: Batching, op_time_max: Duration) -> (Runtime, Arc<Tongue>) {
    let tongue = Arc::new(Tongue::default());
    let limits = WorkerLimits { op_time_max, reopen_wait_min: Duration::from_millis(1), ..WorkerLimits::default() };
    let lacks = &[(0, "topk"), (1, "matmul")];
    let backend = Arc::new(Liar { devices, tongue: Arc::clone(&tongue), lacks });
    let builder = Runtime::builder().backend(backend).limits(limits).health(rules).batching(batching);
    (builder.build().unwrap(), tongue)
}

/// Devices whose circuits never open.
fn patient(devices: u32) -> (Runtime, Arc<Tongue>) {
    build(devices, HealthRules { errors_min: u32::MAX, ..HealthRules::default() }, Batching::LowLatency)
}

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, dims).unwrap()
}

/// Ops that the first device runs, one for every form of output.
fn ops() -> Vec<Op> {
    let (a, image) = (zeros(&[2, 6]), zeros(&[1, 1, 4, 4]));
    let mut graph = Graph::builder("pair");
    let x = graph.input("x", DType::F32, &[2.into(), 6.into()]).unwrap();
    let y = graph.relu(x).unwrap();
    graph.output("x", x).unwrap();
    graph.output("y", y).unwrap();
    let graph = graph.finish().unwrap();
    let program = Kernel::on_cpu("two", |_| Ok(())).input("x", DType::F32).output("y", DType::F32);
    let kernel = Kernel::new(&program.build().unwrap()).input(&a).output(Shape::new([4]).unwrap());
    let into_op = [
        Transpose::new(&a).into_op(),
        MatMul::new(&a, &zeros(&[6, 2])).into_op(),
        SortPairs::new(&a, &a).into_op(),
        Search::new(&a, &a, Metric::Dot, 4).into_op(),
        Normalize::new(&image, &[0.0], &[1.0]).into_op(),
        Conv2dBackwardInput::new(&image, &image, [7, 7]).into_op(),
        Conv2dBackwardWeight::new(&image, &image, [1, 1]).into_op(),
        Fft::new(&a).into_op(),
        RunGraph::new(&graph, &[&a]).into_op(),
        kernel.launch(LaunchSize::new([1; 3], [1; 3])).into_op(),
    ];
    into_op.into_iter().map(|op| op.unwrap()).collect()
}

fn transpose() -> Transpose {
    Transpose::new(&zeros(&[2, 6]))
}

fn soon<T>(runtime: &Runtime, pending: Pending<T>) -> Result<T> {
    let start = Instant::now();
    while !pending.is_done() {
        assert!(start.elapsed() < WAIT_MAX, "an op was never answered: {:?}", runtime.workers());
        std::thread::sleep(Duration::from_millis(1));
    }
    pending.wait()
}

/// Waits until every accepted op has ended exactly once, with nothing left on any lane's books.
fn settled(runtime: &Runtime) {
    eventually("the books are even", || {
        runtime.metrics().devices.iter().all(|device| {
            let counters = device.worker.counters;
            let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
            (counters.accepted, device.backlog_ns, device.worker.queued) == (ended, 0, 0)
        })
    });
    assert!(runtime.workers().iter().all(|worker| worker.counters.panics == 0), "{:?}", runtime.workers());
}

#[test]
fn an_answer_that_the_op_cannot_have_is_the_devices_fault() {
    let (runtime, tongue) = patient(2);
    let mut cases = 0;
    for op in ops() {
        for lie in WRONG {
            for policy in [FallbackPolicy::None, FallbackPolicy::Retry { times: 2 }] {
                tongue.tell(lie);
                let options = RunOptions::require(FIRST).fallback(policy);
                let answer = soon(&runtime, runtime.run_with(Any(op.clone()), options.clone()));
                let name = panoply_core::Describe::name(&op);
                let Err(Error::DeviceFault { device: FIRST, reason }) = &answer else { panic!("{lie:?}: {answer:?}") };
                assert!(reason.contains(name), "{lie:?}: {reason}");
                tongue.tell(Lie::None);
                let value = soon(&runtime, runtime.run_with(Any(op.clone()), options)).unwrap();
                op.check_answer(&value, FIRST).unwrap();
                cases += 1;
            }
            // Another device answers it correctly, and the report says what happened.
            if !matches!(panoply_core::Describe::name(&op), "matmul") {
                tongue.tell(lie);
                let options = RunOptions::prefer(FIRST).fallback(FallbackPolicy::Alternate);
                let Outcome { output, report } =
                    runtime.run_with(Any(op.clone()), options).with_report().wait().unwrap();
                op.check_answer(&output, SECOND).unwrap();
                assert_eq!((report.device, report.attempts), (SECOND, 2), "{lie:?} {op:?}");
                assert!(report.fallback.is_some_and(|fallback| fallback.from == FIRST));
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 10 * 9 * 2 + 9 * 9);
    settled(&runtime);
    let counters = runtime.workers()[0].counters;
    assert_eq!((counters.stray_answers, counters.reopened, counters.replaced), (0, 0, 0), "{counters:?}");
    assert_eq!(tongue.away(), 0, "no handle is kept");
}

#[test]
fn wrong_answers_open_the_circuit_of_their_device() {
    let (runtime, tongue) = build(2, HealthRules::default(), Batching::LowLatency);
    tongue.tell(Lie::Short);
    for _ in 0..20 {
        let options = RunOptions::prefer(FIRST).fallback(FallbackPolicy::Alternate);
        assert_eq!(soon(&runtime, runtime.run_with(transpose(), options)).unwrap().shape().dims(), [6, 2]);
    }
    let first = &runtime.workers()[0];
    assert_eq!((first.health.circuit, first.state), (Circuit::Open, WorkerState::Ready), "{first:?}");
    settled(&runtime);
}

#[test]
fn a_transfer_that_brings_something_else_ends_the_op() {
    let (runtime, tongue) = patient(2);
    tongue.transfers.store(true, Ordering::Relaxed);
    tongue.resident.store(true, Ordering::Relaxed);
    for lie in WRONG {
        tongue.tell(lie);
        // An output on its way to the host, an input on its way to another device, and an explicit
        // transfer.
        let delivered = soon(&runtime, runtime.run_with(transpose(), RunOptions::require(FIRST).to_host()));
        let resident = soon(&runtime, runtime.run_with(transpose(), RunOptions::require(FIRST))).unwrap();
        let fetched = soon(&runtime, runtime.run_with(Transpose::new(&resident), RunOptions::require(SECOND)));
        let copied = soon(&runtime, runtime.run(Transfer::to_host(&resident)));
        for answer in [delivered, fetched, copied] {
            assert!(matches!(answer, Err(Error::DeviceFault { device: FIRST, .. })), "{lie:?}: {answer:?}");
        }
        tongue.tell(Lie::None);
        let output = soon(&runtime, runtime.run_with(transpose(), RunOptions::require(FIRST).to_host())).unwrap();
        assert_eq!((output.location(), output.shape().dims()), (Location::Host, [6, 2].as_slice()));
    }
    settled(&runtime);
    eventually("every handle comes back", || tongue.away() == 0);
}

#[test]
fn objects_of_others_and_dead_ones_are_found_out() {
    let (runtime, tongue) = patient(1);
    let make = |dead, with_recipe| soon(&runtime, runtime.run(Make { dead, with_recipe }));
    tongue.tell(Lie::Object);
    let foreign = make(false, false);
    assert!(matches!(foreign, Err(Error::DeviceFault { device: FIRST, .. })), "{foreign:?}");
    for lie in [Lie::Empty, Lie::More, Lie::Bytes] {
        tongue.tell(lie);
        let other = make(false, false);
        assert!(matches!(other, Err(Error::DeviceFault { device: FIRST, .. })), "{lie:?}: {other:?}");
    }
    tongue.tell(Lie::None);
    let dead = make(true, false).unwrap();
    let error = soon(&runtime, runtime.run(Use(dead))).unwrap_err();
    assert!(matches!(error, Error::ObjectLost { kind: "thing", device: FIRST, .. }), "{error}");
    // An object that is made again as an object of another device is lost, and the device goes on.
    let (first, second) = (make(false, true).unwrap(), make(false, true).unwrap());
    tongue.tell(Lie::LoseThenObject);
    assert_eq!(soon(&runtime, runtime.run(Use(first.clone()))).unwrap_err().kind(), ErrorKind::Device);
    eventually("the device is open again", || runtime.workers()[0].counters.reopened == 1);
    tongue.tell(Lie::None);
    for object in [first, second] {
        let error = soon(&runtime, runtime.run(Use(object))).unwrap_err();
        assert!(matches!(error, Error::ObjectLost { .. }), "{error}");
    }
    let fresh = make(false, true).unwrap();
    assert!(soon(&runtime, runtime.run(Use(fresh))).is_ok());
    settled(&runtime);
}

#[test]
fn tokens_that_come_twice_late_or_from_nowhere_answer_nobody() {
    for (lie, strays) in [(Lie::Double, 1), (Lie::Late, 1), (Lie::MadeUp, 6)] {
        let (runtime, tongue) = patient(1);
        tongue.tell(lie);
        for round in 0..20 {
            let pending: Vec<_> = (0..20).map(|_| runtime.run(transpose())).collect();
            for pending in pending {
                assert_eq!(soon(&runtime, pending).unwrap().shape().dims(), [6, 2], "{lie:?} {round}");
            }
        }
        settled(&runtime);
        let counters = runtime.workers()[0].counters;
        // The last op has no late answer.
        let least = 400 * strays - 1;
        assert_eq!((counters.completed, counters.reopened), (400, 0), "{lie:?}");
        // A made-up answer may name an op in flight: that op then gets it, and the right answer is
        // the stray one.
        assert!((least..=400 * strays).contains(&counters.stray_answers), "{lie:?}: {counters:?}");
    }
}

#[test]
fn an_engine_that_answers_everybody_else_hangs_all_the_same() {
    for lie in [Lie::MadeUpAlone, Lie::Forget] {
        let (runtime, tongue) = patient(1);
        tongue.tell(lie);
        let forgotten = runtime.run(transpose());
        if lie == Lie::Forget {
            // Other ops come and go meanwhile.
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _ = runtime.run(transpose()).wait();
                    }
                });
                eventually("the op is answered", || forgotten.is_done());
                tongue.tell(Lie::None);
                over.store(true, Ordering::Relaxed);
            });
        }
        let error = soon(&runtime, forgotten).unwrap_err();
        assert!(matches!(error, Error::Timeout { device: FIRST, .. }), "{lie:?}: {error}");
        tongue.tell(Lie::None);
        assert!(soon(&runtime, runtime.run(transpose())).is_ok());
        settled(&runtime);
    }
}

#[test]
fn what_waits_to_be_joined_is_not_answered_before_the_engine_has_it() {
    let wait_max = Duration::from_millis(150);
    let rules = HealthRules { errors_min: u32::MAX, ..HealthRules::default() };
    let (runtime, tongue) = build(1, rules, Batching::TimeOrSize { size_max: 64, wait_max });
    let rows = zeros(&[2, 6]);
    let search = || Search::new(&rows, &rows, Metric::Dot, 1);
    // Tokens count up, and are few: a made-up one names the waiting op.
    tongue.tell(Lie::MadeUp);
    let start = Instant::now();
    let waits = runtime.run(search());
    while start.elapsed() < wait_max / 2 {
        let options = RunOptions::default().goal(Goal::Latency);
        assert!(soon(&runtime, runtime.run_with(transpose(), options)).is_ok());
        assert!(!waits.is_done() || start.elapsed() >= wait_max, "the engine does not have it yet");
    }
    assert_eq!(soon(&runtime, waits).unwrap().ids.shape().dims(), [2, 1]);
    settled(&runtime);
}

#[test]
fn a_new_engine_that_answers_what_the_lost_one_held_answers_nobody() {
    let (runtime, tongue) = patient(1);
    for round in 1..=5 {
        tongue.tell(Lie::Lose);
        let lost: Vec<_> = (0..8).map(|_| runtime.run(transpose())).collect();
        let lost = lost.into_iter().map(|pending| soon(&runtime, pending)).filter(Result::is_err).count();
        assert!(lost > 0, "the device was lost in round {round}");
        tongue.tell(Lie::None);
        eventually("the device works again", || soon(&runtime, runtime.run(transpose())).is_ok());
        assert!(runtime.workers()[0].counters.stray_answers >= round);
    }
    settled(&runtime);
}

#[test]
fn figures_as_large_as_they_can_be_do_no_harm() {
    let (runtime, tongue) = patient(2);
    tongue.tell(Lie::Figures);
    let mut graph = Graph::builder("cut");
    let x = graph.input("x", DType::F32, &[4.into(), 8.into()]).unwrap();
    let w = graph.constant("w", &zeros(&[8, 6])).unwrap();
    let h = graph.matmul(x, w).unwrap();
    let (best, _) = graph.op_pair(&[h], |t| TopK::new(&t[0], 2)).unwrap();
    let v = graph.constant("v", &zeros(&[2, 3])).unwrap();
    let y = graph.matmul(best, v).unwrap();
    graph.output("y", y).unwrap();
    let graph = graph.finish().unwrap();
    for _ in 0..30 {
        let run = runtime.run(RunGraph::new(&graph, &[&zeros(&[4, 8])])).with_report().wait().unwrap();
        assert_eq!((run.output[0].shape().dims(), run.report.cuts.len()), ([4, 3].as_slice(), 1));
        assert_eq!((run.report.transferred, run.report.bytes_moved), (Some(Duration::MAX), u64::MAX));
        let plain = runtime.run_with(transpose(), RunOptions::require(FIRST)).with_report().wait().unwrap();
        assert_eq!(plain.report.device_time, Some(Duration::MAX));
    }
    settled(&runtime);
    // The learned values can be read, saved, and used.
    assert!(runtime.metrics().prometheus_text().contains("panoply"));
    let profile = runtime.profile();
    assert_eq!(profile.to_text().parse(), Ok(profile));
    tongue.tell(Lie::None);
    for alternative in runtime.explain(transpose(), &RunOptions::default()).unwrap() {
        assert!(alternative.prediction.is_some_and(|prediction| prediction.finish() < Duration::from_secs(1 << 32)));
    }
    (0..50).for_each(|_| assert!(soon(&runtime, runtime.run(transpose())).is_ok()));
}

#[test]
fn vitals_and_guesses_that_are_no_numbers_do_no_harm() {
    let rules = HealthRules { look_every: Duration::from_millis(1), ..HealthRules::default() };
    let (runtime, tongue) = build(2, rules, Batching::LowLatency);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, f32::MAX, f32::MIN_POSITIVE] {
        *tongue.odd.lock().unwrap() = Some(odd);
        for goal in [Goal::Soonest, Goal::Throughput, Goal::Energy, Goal::Latency] {
            for _ in 0..20 {
                let output = soon(&runtime, runtime.run_with(transpose(), RunOptions::default().goal(goal)));
                assert!(output.is_ok(), "{odd} {goal:?}: {output:?}");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        assert!(runtime.metrics().prometheus_text().contains("panoply"));
        assert!(runtime.workers().iter().all(|worker| (0.0..=1.0).contains(&worker.health.capacity)));
    }
    settled(&runtime);
}

/// Wakers that do not return until this is dropped or opened, and the threads that called them.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    on_relays: AtomicUsize,
    on_errands: AtomicUsize,
    elsewhere: AtomicUsize,
}

impl Gate {
    fn counts(&self) -> [usize; 3] {
        [&self.on_relays, &self.on_errands, &self.elsewhere].map(|count| count.load(Ordering::SeqCst))
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        let count = match std::thread::current().name() {
            Some("panoply-relay") => &self.on_relays,
            Some("panoply-errands") => &self.on_errands,
            _ => &self.elsewhere,
        };
        count.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Opens the gate even if the test fails.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open.store(true, Ordering::SeqCst);
    }
}

#[test]
fn wakers_that_do_not_return_from_the_relay_keep_few_threads_and_no_outcome() {
    /// How many threads of each kind may be stuck.
    const STUCK_MAX: usize = 16;
    let rules = HealthRules { errors_min: u32::MAX, ..HealthRules::default() };
    let (runtime, tongue) = limited(2, rules, Batching::LowLatency, Duration::from_millis(200));
    // No other device takes these ops: the relay ends them, and calls their wakers.
    tongue.tell(Lie::Short);
    let product = || MatMul::new(&zeros(&[2, 6]), &zeros(&[6, 2]));
    let gate = Arc::new(Gate::default());
    let end = OpenAtEnd(Arc::clone(&gate));
    let waker = Waker::from(Arc::clone(&gate));
    // An op that is answered before it is polled has no waker to call, and does not count.
    let mut ops = Vec::new();
    eventually("enough ops have a waker", || {
        let mut op = Box::pin(runtime.run(product()));
        if op.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            ops.push(op);
        }
        ops.len() == 200
    });
    eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
    // Each of these calls keeps one thread, so their number is the number of stuck threads.
    eventually("as many threads are stuck as may be", || {
        let [on_relays, on_errands, elsewhere] = gate.counts();
        assert!(on_relays <= STUCK_MAX && on_errands <= STUCK_MAX && elsewhere == 0, "{:?}", gate.counts());
        on_relays + on_errands == 2 * STUCK_MAX
    });
    // Meanwhile failed ops are answered with their errors, and ops that need no relay are served.
    // A worker that the system stops for longer than an op may take is replaced. Its ops then fail
    // in another way, so these attempts are repeated.
    eventually("an op that needs no relay is served", || {
        soon(&runtime, runtime.run_with(transpose(), RunOptions::require(SECOND))).is_ok()
    });
    let options = RunOptions::prefer(FIRST).fallback(FallbackPolicy::Alternate);
    eventually("an op without a relay is answered with its error", || {
        let failed = soon(&runtime, runtime.run_with(transpose(), options.clone()));
        matches!(failed, Err(Error::DeviceFault { device: FIRST, .. }))
    });
    assert_eq!(gate.counts(), [STUCK_MAX, STUCK_MAX, 0], "no more threads are stuck");
    drop(end);
    eventually("a relay acts again", || soon(&runtime, runtime.run_with(transpose(), options.clone())).is_ok());
    for mut op in ops {
        let answer = op.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Err(error)) = answer else { panic!("{answer:?}") };
        assert!(error.kind() == ErrorKind::Device, "{error:?}");
    }
    settled(&runtime);
}
