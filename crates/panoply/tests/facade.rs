//! The façade: what a runtime is made of, with and without features.

use panoply::prelude::*;
use panoply::{Absence, BuildError};

#[test]
fn the_backends_of_this_build_are_there() {
    let Ok(runtime) = Runtime::new() else {
        assert!(!cfg!(feature = "cpu"), "a build with the CPU backend always has a device");
        return;
    };
    assert!(runtime.devices().any(|device| device.id.to_string() == "cpu:0"));
    assert!(runtime.backends().iter().all(|report| report.devices.is_ok()));
    let matrix = Tensor::from_vec(vec![1_i32, 2, 3, 4], [2, 2]).unwrap();
    let outcome = panoply::runtime().unwrap().run(Transpose::new(&matrix)).with_report().wait().unwrap();
    assert_eq!(outcome.output.as_slice::<i32>().unwrap(), [1, 3, 2, 4]);
    assert_eq!(outcome.report.device.api, Api::Cpu);
}

#[test]
fn a_backend_that_was_left_out_says_how_to_get_it() {
    match Runtime::builder().only([Api::Cpu]).build() {
        Ok(_) => assert!(cfg!(feature = "cpu")),
        Err(BuildError::NoDevice { reasons }) => {
            assert!(!cfg!(feature = "cpu"));
            let absence = Absence::NotCompiled { feature: "cpu" };
            assert_eq!(reasons, [format!("cpu: {absence}")]);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_api_without_a_backend_is_refused_with_a_reason() {
    let error = Runtime::builder().only([Api::Fpga]).build().unwrap_err();
    assert!(error.to_string().contains("fpga: no device: this version of Panoply has no backend for it"), "{error}");
    let error = Runtime::builder().only([]).build().unwrap_err();
    assert!(matches!(error, BuildError::NoDevice { .. }));
}

#[test]
fn the_runtime_is_shared_between_threads() {
    fn assert_shared<T: Send + Sync>(_: &T) {}
    if let Ok(runtime) = Runtime::new() {
        assert_shared(&runtime);
    }
}
