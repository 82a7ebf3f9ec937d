//! Tests on devices: resident tensors, cached programs, errors, and programs for TPUs that are not
//! installed.

#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::path::PathBuf;

use panoply_conformance::{run_one, run_there};
use panoply_core::op::compute::{Conv2d, Gather, Map, MatMul, Softmax, Transfer};
use panoply_core::{Absence, Backend, DType, DeviceInfo, ErrorKind, Location, Operation, Tensor};
use panoply_pjrt::topology::{Topology, text};
use panoply_pjrt::{PjrtBackend, Plugin, find};

/// The variable that names libtpu. Tests do not search for libtpu, because it may search the
/// network for a TPU.
const LIBTPU: &str = "PANOPLY_LIBTPU";

fn on_devices(test: impl Fn(PjrtBackend, &DeviceInfo)) {
    match PjrtBackend::new().discover() {
        Ok(devices) => devices.iter().for_each(|device| {
            let backend = PjrtBackend::new();
            backend.discover().unwrap();
            test(backend, device);
        }),
        Err(absence) => println!("skipped: {absence}"),
    }
}

fn counted(count: usize, shape: &[usize]) -> Tensor {
    Tensor::from_vec((0..count).map(|value| value as f32 / 8.0).collect(), shape).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-pjrt-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn a_file_that_is_no_library_has_the_loaders_reason() {
    let file = folder("broken").with_extension("so");
    std::fs::write(&file, "no library").unwrap();
    let absence = PjrtBackend::of(vec![file.clone()]).discover().unwrap_err().to_string();
    std::fs::remove_file(file).unwrap();
    assert!(absence.contains("cannot be loaded: "), "{absence}");
    assert!(cfg!(not(target_os = "linux")) || absence.contains("file too short"), "{absence}");
}

#[test]
fn tensors_stay_on_the_device_and_views_of_them_are_read_there() {
    on_devices(|backend, device| {
        let mut engine = backend.open_engine(device).unwrap();
        let host = counted(24, &[4, 6]);
        let there = run_there(&mut engine, Transfer::to_device(&host, device.id).into_op().unwrap());
        let there = there.unwrap().into_tensor().unwrap();
        assert_eq!(there.location(), Location::Device(device.id));
        let view = there.slice_step(1, 1, 6, 2).unwrap().transpose().unwrap();
        let straight =
            run_one(&mut engine, Transfer::to_host(&view).into_op().unwrap()).unwrap().into_tensor().unwrap();
        let expected = host.slice_step(1, 1, 6, 2).unwrap().transpose().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(straight.to_vec::<f32>().unwrap(), expected, "a view by itself");
        let answer = run_there(&mut engine, Map::neg(&view).into_op().unwrap()).unwrap().into_tensor().unwrap();
        assert_eq!(answer.location(), Location::Device(device.id));
        let back = run_one(&mut engine, Transfer::to_host(&answer).into_op().unwrap()).unwrap();
        let got = back.into_tensor().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(got, expected.iter().map(|value| -value).collect::<Vec<_>>());
    });
}

#[test]
fn a_program_is_compiled_once_and_found_on_the_disk_by_the_next_engine() {
    on_devices(|backend, device| {
        let folder = folder("cache");
        let backend = backend.cache_in(folder.clone());
        let op = MatMul::new(&counted(6, &[2, 3]), &counted(6, &[3, 2])).into_op().unwrap();
        let mut engine = backend.open_engine(device).unwrap();
        for _ in 0..3 {
            run_one(&mut engine, op.clone()).unwrap();
        }
        assert_eq!((engine.counts().compiled, engine.counts().read), (1, 0));
        let expected = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap().to_vec::<f32>().unwrap();
        drop(engine);
        let mut engine = backend.open_engine(device).unwrap();
        let got = run_one(&mut engine, op).unwrap().into_tensor().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(got, expected);
        let counts = engine.counts();
        println!("{}: {} compiled, {} read", device.name, counts.compiled, counts.read);
        // A plugin that can serialise programs has written a file, which the second engine read.
        let is_written = std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some());
        assert_eq!((counts.compiled, counts.read), if is_written { (0, 1) } else { (1, 0) });
        let _ = std::fs::remove_dir_all(folder);
    });
}

#[test]
fn an_index_out_of_range_is_the_callers_error_and_the_engine_goes_on() {
    on_devices(|backend, device| {
        let mut engine = backend.open_engine(device).unwrap();
        let gather = |indices: &[i32]| {
            let indices = Tensor::from_slice(indices, [indices.len()]).unwrap();
            Gather::new(&counted(6, &[3, 2]), &indices, 0).into_op().unwrap()
        };
        for bad in [&[0, 3][..], &[-4]] {
            let error = run_one(&mut engine, gather(bad)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Caller, "{error}");
        }
        let got = run_one(&mut engine, gather(&[-1, 0])).unwrap().into_tensor().unwrap();
        assert_eq!(got.to_vec::<f32>().unwrap(), [0.5, 0.625, 0.0, 0.125]);
    });
}

#[test]
fn files_that_are_no_plugins_are_named() {
    let nowhere = PjrtBackend::of(vec![PathBuf::from("/nowhere/pjrt.so")]).discover().unwrap_err();
    assert!(matches!(&nowhere, Absence::NoDevice { reason } if reason.contains("/nowhere/pjrt.so")), "{nowhere}");
    assert!(matches!(PjrtBackend::of(Vec::new()).discover(), Err(Absence::LibraryMissing { .. })));
    let folder = folder("packages");
    let package = folder.join("jax_plugins/some_chip");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(package.join("some_pjrt_plugin.so"), b"not a library").unwrap();
    std::fs::write(package.join("other.so"), b"").unwrap();
    let found = find::installed(std::slice::from_ref(&folder));
    assert_eq!(found, [package.join("some_pjrt_plugin.so")]);
    let refused = PjrtBackend::of(found).discover().unwrap_err();
    assert!(refused.to_string().contains("cannot be loaded"), "{refused}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn programs_compile_for_tpus_that_are_not_there() {
    let Some(library) = std::env::var_os(LIBTPU) else {
        return println!("skipped: {LIBTPU} does not name libtpu.so");
    };
    let plugin = Plugin::load(&PathBuf::from(library)).unwrap();
    let image = Tensor::zeros(DType::BF16, [8, 16, 32, 32]).unwrap();
    let weights = Tensor::zeros(DType::BF16, [32, 16, 3, 3]).unwrap();
    let matrix = counted(256 * 256, &[256, 256]);
    let ops = [
        MatMul::new(&matrix, &matrix).into_op().unwrap(),
        Softmax::new(&matrix).into_op().unwrap(),
        Conv2d::new(&image, &weights).padding([1; 4]).into_op().unwrap(),
        Map::gelu(&matrix).into_op().unwrap(),
    ];
    for name in ["v4:2x2x1", "v5e:2x2x1", "v6e:2x2x1"] {
        let topology = Topology::new(&plugin, name).unwrap();
        let devices = topology.devices().unwrap();
        assert!(!devices.is_empty());
        for op in &ops {
            let compiled = topology.compile(&text(op).unwrap()).unwrap();
            println!("{name} ({}): {} bytes", devices[0], compiled.bytes.len());
            assert!(!compiled.bytes.is_empty() || compiled.code_bytes.is_some());
        }
    }
}
