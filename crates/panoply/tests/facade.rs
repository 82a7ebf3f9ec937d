//! The façade: what a runtime is made of, with and without features.

use panoply::BuildError;
use panoply::prelude::*;

#[cfg(feature = "cpu")]
#[test]
fn the_backends_of_this_build_are_there() {
    let runtime = Runtime::new().unwrap();
    assert!(runtime.devices().any(|device| device.id.to_string() == "cpu:0"));
    // Hardware that is not here says why.
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
    let Err(BuildError::NoDevice { reasons }) = Runtime::new() else { panic!("there is no backend to find a device") };
    assert_eq!(reasons, [format!("cpu: {absence}")]);
    assert_eq!(panoply::testing::virtual_backend().err(), Some(absence));
}

#[test]
fn an_api_without_a_backend_is_refused_with_a_reason() {
    let error = Runtime::builder().only([Api::FPGA]).build().unwrap_err();
    assert!(error.to_string().contains("fpga: no device: this version of Panoply has no backend for it"), "{error}");
    let error = Runtime::builder().only([]).build().unwrap_err();
    assert!(matches!(error, BuildError::NoDevice { .. }));
}

#[test]
fn the_runtime_is_shared_between_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Runtime>();
}
