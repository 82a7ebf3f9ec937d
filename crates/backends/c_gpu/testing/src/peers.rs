//! Two devices that can reach each other's memory: one reads tensors of the other directly, without
//! a copy through the host.

use std::sync::Arc;
use std::time::Duration;

use panoply_core::op::compute::{Map, MatMul, Reduce, Transfer, Transpose};
use panoply_core::{
    Backend, DeviceId, DeviceInfo, Engine, Item, Location, Op, OpenOptions, Operation, Outcome, Tensor,
};
use panoply_runtime::{RunOptions, Runtime};

/// The first two devices of a backend. If there are none, prints the reason.
fn pair(backend: &dyn Backend) -> Option<[DeviceInfo; 2]> {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => {
            println!("skipped: {absence}");
            return None;
        }
    };
    match <[DeviceInfo; 2]>::try_from(devices.into_iter().take(2).collect::<Vec<_>>()) {
        Ok(pair) if backend.reaches(&pair[0], pair[1].id) => Some(pair),
        _ => {
            println!("skipped: no two devices that reach each other");
            None
        }
    }
}

fn numbers() -> Tensor {
    Tensor::from_vec((0..24).map(|value| value as f32).collect(), [4, 6]).unwrap()
}

fn run(engine: &mut dyn Engine, op: Op) -> panoply_core::Result<Tensor> {
    engine.submit(&mut vec![Item { token: 1, op }]);
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_millis(1)) > 0 {}
    finished.pop().unwrap().result?.into_tensor()
}

fn resident(engine: &mut dyn Engine, tensor: &Tensor, device: DeviceId) -> Tensor {
    run(engine, Transfer::to_device(tensor, device).into_op().unwrap()).unwrap()
}

/// Every way in which an op reads its inputs: as views, as contiguous elements, and joined with
/// others.
pub fn an_engine_reads_what_lives_on_another(backend: &dyn Backend) {
    if let Some([first, second]) = pair(backend) {
        let mut owner = backend.open(&first, &OpenOptions::default()).unwrap();
        let mut reader = backend.open(&second, &OpenOptions::default()).unwrap();
        let there = resident(owner.as_mut(), &numbers(), first.id);
        let ops = |x: &Tensor| {
            let columns = x.slice(1, 1, 5).unwrap();
            [
                Map::add(&columns, &columns).into_op(),
                MatMul::new(&columns, &columns).transpose_b().into_op(),
                MatMul::new(&columns, x).transpose_a().into_op(),
                Reduce::sum(&columns).axes(&[0]).into_op(),
                Transpose::new(&columns).into_op(),
                Transfer::to_device(x, second.id).into_op(),
                Transfer::to_device(&columns, second.id).into_op(),
            ]
            .map(Result::unwrap)
        };
        let to_host = |engine: &mut dyn Engine, tensor: &Tensor| {
            let host = run(engine, Transfer::to_host(tensor).into_op().unwrap()).unwrap();
            host.to_vec::<f32>().unwrap()
        };
        for (from_there, from_host) in ops(&there).into_iter().zip(ops(&numbers())) {
            let got = run(reader.as_mut(), from_there).unwrap();
            assert_eq!(got.location(), Location::Device(second.id));
            let expected = run(reader.as_mut(), from_host).unwrap();
            assert_eq!(to_host(reader.as_mut(), &got), to_host(reader.as_mut(), &expected));
        }
        let mut pair: Vec<Item> = (0..2)
            .map(|token| Item { token, op: Map::neg(&there.slice(0, 1, 3).unwrap()).into_op().unwrap() })
            .collect();
        reader.submit(&mut pair);
        let mut finished = Vec::new();
        while reader.poll(&mut finished, Duration::from_millis(1)) > 0 {}
        for done in finished {
            let negated = done.result.unwrap().into_tensor().unwrap();
            let expected: Vec<f32> = (6..18).map(|value| -(value as f32)).collect();
            assert_eq!((done.batch_size, to_host(reader.as_mut(), &negated)), (2, expected));
        }
        // Memory that the owner no longer has is not read.
        drop(owner);
        let error = run(reader.as_mut(), Map::neg(&there).into_op().unwrap()).unwrap_err();
        assert_eq!(error, panoply_core::Error::NotOnHost { device: first.id });
        assert!(run(reader.as_mut(), Map::neg(&numbers()).into_op().unwrap()).is_ok());
    }
}

/// The runtime sends the op directly to the device that must run it: its input is copied once.
pub fn the_runtime_makes_no_detour(backend: Arc<dyn Backend>) {
    if let Some([first, second]) = pair(&*backend) {
        let runtime = Runtime::builder().backend(backend).build().unwrap();
        let there = runtime.run_with(Transpose::new(&numbers()), RunOptions::require(first.id)).wait().unwrap();
        assert_eq!(there.location(), Location::Device(first.id));
        let moved = runtime.run_with(Map::neg(&there), RunOptions::require(second.id)).with_report();
        let Outcome { output, report } = moved.wait().unwrap();
        assert_eq!((report.device, output.location()), (second.id, Location::Device(second.id)));
        assert_eq!(report.bytes_moved, 24 * 4, "from one device to the other");
        let host = runtime.run(Transfer::to_host(&output)).wait().unwrap();
        assert_eq!(host.as_slice::<f32>().unwrap()[..4], [0.0, -6.0, -12.0, -18.0]);
        runtime.shutdown(Duration::from_secs(5));
    }
}
