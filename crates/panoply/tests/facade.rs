//! The façade: the backends and devices of a runtime, with and without features.

use panoply::BuildError;
use panoply::prelude::*;

#[cfg(feature = "cpu")]
#[test]
fn the_backends_of_this_build_are_there() {
    let runtime = Runtime::new().unwrap();
    assert!(runtime.devices().any(|device| device.id.to_string() == "cpu:0"));
    // Absent hardware has a reason.
    for report in runtime.backends() {
        match &report.devices {
            Ok(devices) => assert!(!devices.is_empty(), "{}", report.api),
            Err(absence) => assert!(report.api != Api::CPU && !absence.to_string().is_empty()),
        }
    }
    let matrix = Tensor::from_vec(vec![1_i32, 2, 3, 4], [2, 2]).unwrap();
    let outcome = panoply::runtime().unwrap().run(Transpose::new(&matrix)).with_report().wait().unwrap();
    assert_eq!(outcome.output.as_slice::<i32>().unwrap(), [1, 3, 2, 4]);
    assert_eq!(outcome.report.device.api, Api::CPU);
}

#[cfg(not(feature = "cpu"))]
#[test]
fn a_backend_that_was_left_out_says_how_to_get_it() {
    let absence = panoply::Absence::NotCompiled { feature: "cpu" };
    let Err(BuildError::NoDevice { reports }) = Runtime::new() else { panic!("there is no backend to find a device") };
    assert!(reports.len() == 1 && reports[0].devices == Err(absence.clone()), "{reports:?}");
    assert_eq!(panoply::testing::virtual_backend().err(), Some(absence));
}

#[test]
fn an_api_without_a_backend_is_refused_with_a_reason() {
    let error = Runtime::builder().only([Api::new("radio")]).build().unwrap_err();
    assert!(error.to_string().contains("radio: no device: this version of Panoply has no backend for it"), "{error}");
    let error = Runtime::builder().only([]).build().unwrap_err();
    assert!(matches!(error, BuildError::NoDevice { .. }));
}

/// Holds on machines with GPUs; elsewhere there is nothing to compare.
#[cfg(target_os = "linux")]
#[test]
fn devices_on_the_bus_know_their_nodes() {
    use panoply::placement::{SYSTEM, numa_node};
    let runtime = Runtime::new().unwrap();
    let mut compared = 0;
    for device in runtime.devices() {
        let Some(address) = device.pci_address else { continue };
        assert_eq!(device.numa_node, numa_node(std::path::Path::new(SYSTEM), address), "{} at {address}", device.id);
        compared += 1;
    }
    match compared {
        0 => println!("skipped: no device tells its PCI address"),
        _ => println!("{compared} devices at their nodes\n{}", runtime.plan()),
    }
}

#[cfg(feature = "fpga")]
#[test]
fn a_bitstream_for_a_card_that_is_not_there_is_told() {
    let builder = || Runtime::builder().only([Api::FPGA]);
    let error = builder().bitstream("the second card", "cores.xclbin").build().unwrap_err().to_string();
    assert!(error.contains("devices.bitstreams") && error.contains("the second card"), "{error}");
    match builder().bitstream("fpga:63", "cores.xclbin").build() {
        Ok(runtime) => {
            assert!(runtime.warnings().iter().any(|text| text.contains("fpga:63")), "{:?}", runtime.warnings())
        }
        Err(error) if std::env::var_os("PANOPLY_FPGA_SIMULATION").is_some() => println!("skipped: {error}"),
        Err(error) => assert!(error.to_string().contains("no card is called fpga:63"), "{error}"),
    }
}

#[test]
fn the_runtime_is_shared_between_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Runtime>();
}

/// The façade's device selection forwards every property of a backend to the router, including that
/// one device reads another's memory directly.
#[test]
fn devices_that_reach_each_other_are_read_without_a_detour_over_the_host() {
    let emulated = match panoply_c_gpu::EmulatedBackend::new() {
        Ok(backend) => backend.devices(2),
        Err(absence) => return println!("skipped: {absence}"),
    };
    let builder = Runtime::builder().only([]).backend(std::sync::Arc::new(emulated));
    let selection = panoply::Selection { power: Some(panoply::Power::High), ..panoply::Selection::default() };
    let runtime = builder.selection(selection).without_profile().build().unwrap();
    let ids: Vec<DeviceId> = runtime.devices().map(|device| device.id).collect();
    let [first, second] = ids[..] else { panic!("two devices: {ids:?}") };
    let numbers = Tensor::from_vec((0..24_u8).map(f32::from).collect(), [4, 6]).unwrap();
    let there = runtime.run_with(Transpose::new(&numbers), RunOptions::require(first)).wait().unwrap();
    let outcome = runtime.run_with(Map::neg(&there), RunOptions::require(second)).with_report().wait().unwrap();
    assert_eq!(outcome.report.device, second);
    assert_eq!(outcome.report.bytes_moved, 24 * 4, "once, from one device to the other");
    let host = runtime.run(Transfer::to_host(&outcome.output)).wait().unwrap();
    assert_eq!(host.as_slice::<f32>().unwrap()[..3], [0.0, -6.0, -12.0]);
}

/// Holds without any backend: files, packets and filter design need no device.
#[cfg(feature = "signal")]
#[test]
fn recordings_are_written_and_read_without_a_device() {
    use panoply::signal::recording::{RecordingReader, SampleLayout, Writer};
    use panoply::signal::{Band, SampleFormat, Window, windowed_sinc};

    let path = std::env::temp_dir().join(format!("panoply-facade-{}.wav", std::process::id()));
    let samples = Tensor::from_vec(vec![0.0_f32, 0.5, -0.5, 0.25], [4]).unwrap();
    let mut writer = Writer::create(&path, SampleLayout::real(SampleFormat::I16, 8000.0), "").unwrap();
    writer.write(&samples).unwrap();
    writer.finish().unwrap();
    let blocks: Vec<Tensor> = RecordingReader::open(&path, 16).unwrap().map(|block| block.unwrap()).collect();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].as_slice::<f32>().unwrap(), samples.as_slice::<f32>().unwrap());
    assert_eq!(windowed_sinc(31, Band::LowPass(0.2), Window::Hamming).unwrap().len(), 31);
}

/// A caller that walks the parts of an op names their types without the crates below. Regression:
/// [`panoply::Part`] was exported alone.
#[test]
fn the_types_of_parts_are_exported_together() {
    use panoply::Describe;

    let matrix = Tensor::from_vec(vec![1_i32, 2], [1, 2]).unwrap();
    let mut op = Transpose::new(&matrix);
    let (mut read, mut written) = (0, 0);
    op.for_each_part(&mut |_: panoply::PartRef<'_>| read += 1);
    op.for_each_part_mut(&mut |_: panoply::PartMut<'_>| written += 1);
    assert_eq!((read, written), (1, 1));
}

#[cfg(all(feature = "cpu", feature = "onnxruntime"))]
#[test]
fn execution_providers_take_the_place_of_the_cores() {
    let apis: Vec<panoply::Api> = ["cpu", "onnxruntime", "ort-cuda", "ort-qnn"]
        .into_iter()
        .map(|name| panoply::api_named(name).unwrap())
        .collect();
    let reasons = |builder: panoply::Builder| -> Vec<(String, String)> {
        let runtime = builder.only(&apis[..]).without_profile().build().unwrap();
        let told =
            runtime.backends().into_iter().filter_map(|report| Some((report.api.to_string(), report.devices.err()?)));
        told.map(|(api, absence)| (api, absence.to_string())).collect()
    };
    let chosen = reasons(Runtime::builder().onnxruntime_providers(["cuda:device_id=1", "qnn"]));
    let reason = |api: &str| chosen.iter().find(|(name, _)| name == api).map(|(_, reason)| reason.as_str());
    assert!(reason("onnxruntime").unwrap().contains("does not name cpu"), "{chosen:?}");
    // Without the library, or with one that lacks them. No machine has both kinds of hardware.
    assert!(reason("ort-cuda").is_some() || reason("ort-qnn").is_some(), "{chosen:?}");
    assert!(
        !chosen.iter().any(|(api, reason)| api != "onnxruntime" && reason.contains("has no backend")),
        "{chosen:?}"
    );
    let refused = Runtime::builder().onnxruntime_providers(["cpu", "gpu"]).build().unwrap_err().to_string();
    assert!(refused.contains("onnxruntime.providers") && refused.contains("trt-rtx"), "{refused}");
}
