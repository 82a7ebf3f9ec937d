//! Checks that faults become typed errors and later ops succeed, on any adapter of the machine; a
//! software adapter will do.

use std::time::Duration;

use panoply_core::op::compute::{Gather, Map, Softmax, Sort, Transfer};
use panoply_core::{
    DType, DeviceInfo, Error, ErrorKind, Item, Op, OpenOptions, Operation, Result, Support, Tensor, Value,
};

use crate::{DeviceLimits, TestBackend, TestEngine};

/// The longest time for one op.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The first device, or `None` if the machine has none; then the test prints that it is skipped.
fn first_device(backend: &dyn TestBackend) -> Option<DeviceInfo> {
    match backend.discover() {
        Ok(devices) => devices.into_iter().next(),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

fn open(backend: &dyn TestBackend, device: &DeviceInfo) -> Box<dyn TestEngine> {
    backend.open_engine(device, &OpenOptions::default()).unwrap()
}

fn submit(engine: &mut dyn TestEngine, op: impl Operation, token: u64) {
    engine.submit(&mut vec![Item { token, op: op.into_op().unwrap() }]);
}

fn wait(engine: &mut dyn TestEngine) -> Vec<(u64, Result<Value>)> {
    let mut finished = Vec::new();
    while engine.poll(&mut finished, WAIT_MAX) > 0 {}
    finished.into_iter().map(|done| (done.token, done.result)).collect()
}

pub fn run(engine: &mut dyn TestEngine, op: impl Operation) -> Result<Value> {
    submit(engine, op, 1);
    wait(engine).pop().unwrap().1
}

fn to_host(engine: &mut dyn TestEngine, tensor: &Tensor) -> Vec<f32> {
    run(engine, Transfer::to_host(tensor)).unwrap().into_tensor().unwrap().to_vec().unwrap()
}

fn numbers() -> Tensor {
    Tensor::from_vec(vec![1.0_f32, -2.0, 3.0, 4.0, 5.0], [5]).unwrap()
}

pub fn what_does_not_fit_small_limits_is_refused_and_the_rest_runs(backend: &dyn TestBackend) {
    let backend = &*backend.limited(DeviceLimits { binding_bytes_max: Some(1 << 16), ..DeviceLimits::default() });
    let Some(device) = first_device(backend) else { return };
    let large = Tensor::zeros(DType::F32, [1 << 15]).unwrap();
    let op: Op = Softmax::new(&large).into_op().unwrap();
    match backend.supports(&device, &op) {
        Support::No(reason) => assert!(reason.contains("the adapter binds 65536"), "{reason}"),
        Support::Yes => panic!("a tensor of 131072 bytes does not fit a binding of 65536"),
    }
    // With less workgroup memory, long lines are not sorted.
    let long = Tensor::zeros(DType::F32, [5000]).unwrap();
    assert!(!backend.supports(&device, &Sort::new(&long).into_op().unwrap()).is_yes());
    let mut engine = open(backend, &device);
    assert!(matches!(run(&mut *engine, Softmax::new(&large)), Err(Error::Unsupported { .. })));
    let answer = run(&mut *engine, Map::neg(&numbers())).unwrap().into_tensor().unwrap();
    assert_eq!(to_host(&mut *engine, &answer), [-1.0, 2.0, -3.0, -4.0, -5.0]);
}

pub fn a_kernel_that_does_not_compile_is_a_fault_of_the_device_and_no_panic(backend: &dyn TestBackend) {
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    for text in ["this is not WGSL", "@compute @workgroup_size(1) fn other() {}"] {
        match engine.compile(text, (1, 1)) {
            Err(Error::DeviceFault { reason, .. }) => assert!(!reason.is_empty()),
            Err(other) => panic!("expected a fault, got {other}"),
            Ok(_) => panic!("«{text}» compiled"),
        }
    }
    assert!(run(&mut *engine, Map::neg(&numbers())).is_ok());
}

pub fn a_lost_device_answers_everything_and_a_new_engine_works(backend: &dyn TestBackend) {
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    let kept = run(&mut *engine, Map::neg(&numbers())).unwrap().into_tensor().unwrap();
    engine.lose();
    submit(&mut *engine, Map::neg(&numbers()), 7);
    submit(&mut *engine, Map::neg(&numbers()), 8);
    let answers = wait(&mut *engine);
    assert_eq!(answers.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [7, 8]);
    for (_, answer) in answers {
        assert!(matches!(answer, Err(Error::DeviceLost { .. })), "{answer:?}");
    }
    assert!(matches!(engine.health().fault, Some(Error::DeviceLost { .. })));
    drop(engine);
    let mut engine = open(backend, &device);
    let answer = run(&mut *engine, Map::neg(&numbers())).unwrap().into_tensor().unwrap();
    assert_eq!(to_host(&mut *engine, &answer), [-1.0, 2.0, -3.0, -4.0, -5.0]);
    // Tensors in the lost device's memory are gone; using them is an error that does not lose the
    // new device.
    let gone = run(&mut *engine, Transfer::to_host(&kept)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Device);
    assert!(!matches!(gone, Error::DeviceLost { .. }));
}

pub fn one_bad_item_does_not_fail_its_neighbours(backend: &dyn TestBackend) {
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    let table = run(&mut *engine, Transfer::to_device(&numbers(), device.id)).unwrap().into_tensor().unwrap();
    let indices = Tensor::from_vec(vec![0_u32, 5], [2]).unwrap();
    let on_device = run(&mut *engine, Transfer::to_device(&indices, device.id)).unwrap().into_tensor().unwrap();
    let op = |op: Result<Op>, token| Item { token, op: op.unwrap() };
    let mut batch = vec![
        op(Map::neg(&table).into_op(), 1),
        op(Gather::new(&table, &on_device, 0).into_op(), 2),
        op(Gather::new(&table, &indices, 0).into_op(), 3),
        op(Map::abs(&table).into_op(), 4),
    ];
    engine.submit(&mut batch);
    assert!(batch.is_empty());
    let answers = wait(&mut *engine);
    assert_eq!(answers.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let kinds: Vec<Option<ErrorKind>> =
        answers.iter().map(|(_, answer)| answer.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Caller), Some(ErrorKind::Caller), None]);
}

pub fn many_batches_are_in_flight_and_land_in_order(backend: &dyn TestBackend) {
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    let mut tensor = run(&mut *engine, Transfer::to_device(&numbers(), device.id)).unwrap().into_tensor().unwrap();
    for token in 0..20 {
        submit(&mut *engine, Map::add(&tensor, &tensor), token);
    }
    let answers = wait(&mut *engine);
    assert!(answers.iter().map(|(token, _)| *token).eq(0..20));
    for (_, answer) in answers {
        tensor = answer.unwrap().into_tensor().unwrap();
    }
    assert_eq!(to_host(&mut *engine, &tensor), [2.0, -4.0, 6.0, 8.0, 10.0]);
    drop(tensor);
    let stats = engine.memory();
    assert!(stats.cached_bytes > 0 && stats.lent_bytes <= stats.peak_bytes, "{stats:?}");
}

pub fn views_in_the_middle_of_a_word_come_back_whole(backend: &dyn TestBackend) {
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    let bytes = Tensor::from_vec((0_u8..40).collect(), [40]).unwrap();
    let here = run(&mut *engine, Transfer::to_device(&bytes, device.id)).unwrap().into_tensor().unwrap();
    let part = here.slice(0, 3, 22).unwrap();
    let back = run(&mut *engine, Transfer::to_host(&part)).unwrap().into_tensor().unwrap();
    assert!(back.to_vec::<u8>().unwrap().into_iter().eq(3..22));
    let negated = run(&mut *engine, Map::neg(&part)).unwrap().into_tensor().unwrap();
    let back = run(&mut *engine, Transfer::to_host(&negated)).unwrap().into_tensor().unwrap();
    assert!(back.to_vec::<u8>().unwrap().into_iter().eq((3_u8..22).map(u8::wrapping_neg)));
}

pub fn an_allocation_moves_the_memory_in_use(backend: &dyn TestBackend) {
    const BYTES: usize = 64 << 20;
    /// Other tests and programs allocate and free at the same time.
    const ATTEMPTS_MAX: usize = 20;
    let Some(device) = first_device(backend) else { return };
    let mut engine = open(backend, &device);
    let health = engine.health();
    if health.temperature_celsius.is_none() {
        assert!(health.sensors_absent.is_some(), "a missing sensor has a reason");
    }
    if health.memory.is_none() {
        return eprintln!("skipped: the driver of {} has no memory budget", device.name);
    }
    let values = Tensor::zeros(DType::F32, [BYTES / 4]).unwrap();
    let mut kept = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let before = engine.health().memory.unwrap();
        kept.push(run(&mut *engine, Transfer::to_device(&values, device.id)).unwrap());
        let after = engine.health().memory.unwrap();
        assert!(after.available_bytes() <= after.total_bytes(), "{after:?}");
        if after.used_bytes() >= before.used_bytes() + BYTES as u64 / 2 {
            return eprintln!("{}: {before:?}, then {after:?}", device.name);
        }
    }
    panic!("{}: {BYTES} bytes more did not show in the memory in use", device.name);
}
