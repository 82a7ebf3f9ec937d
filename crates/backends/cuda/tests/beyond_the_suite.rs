//! Sizes that the suite does not have, because only this backend treats them apart: several lines too long for a block,
//! contiguous and not, sorted digit by digit; convolutions large enough for the vendor's library, in every type that it
//! takes. On every GPU of this machine, and on the emulated device where there is a C++ compiler.

use panoply_conformance::values::random_tensor;
use panoply_conformance::{Case, Tolerance, check_backend};
use panoply_core::op::compute::{
    Activation, ArgSort, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, Sort, SortPairs,
};
use panoply_core::{Backend, DType};
use panoply_cuda::CudaBackend;

fn long_lines() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, values) in [(DType::F32, DType::U8), (DType::F16, DType::F64), (DType::U8, DType::F32)] {
        for (dims, axis) in [([3, 20_011], 1), ([16_385, 2], 0)] {
            let (keys, follow) = (random_tensor(dtype, &dims, 1), random_tensor(values, &dims, 2));
            let name = |op: &str| format!("{op}/{dtype}/{dims:?}");
            cases.push(Case::new(name("sort"), Sort::new(&keys).axis(axis), Tolerance::Exact));
            cases.push(Case::new(name("argsort"), ArgSort::new(&keys).axis(axis).descending(), Tolerance::Exact));
            cases.push(Case::new(name("sort_pairs"), SortPairs::new(&keys, &follow).axis(axis), Tolerance::Exact));
        }
    }
    cases
}

fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let input = random_tensor(dtype, &[2, 16, 21, 20], 3);
        let weights = random_tensor(dtype, &[40, 16, 3, 3], 4);
        let bias = random_tensor(dtype, &[40], 5);
        let relative = match dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            _ => 1e-6,
        };
        let close = |terms: f64| Tolerance::Close { relative, absolute: 4.0 * f64::from(f32::EPSILON) * terms };
        let plain = Conv2d::new(&input, &weights).padding([1; 4]);
        let name = |what: &str| format!("conv2d/{dtype}/{what}");
        cases.push(Case::new(name("plain"), plain.clone(), close(148.0)));
        cases.push(Case::new(name("bias"), plain.clone().bias(&bias), close(148.0)));
        let relu = plain.clone().bias(&bias).activation(Activation::Relu);
        cases.push(Case::new(name("bias and relu"), relu, close(148.0)));
        let uneven = plain.clone().padding([0, 1, 2, 0]).stride([1, 2]).dilation([2, 1]);
        cases.push(Case::new(name("uneven"), uneven, close(148.0)));
        let gradient = random_tensor(dtype, &[2, 40, 21, 20], 6);
        let op = Conv2dBackwardInput::new(&gradient, &weights, [21, 20]).padding([1; 4]);
        cases.push(Case::new(name("input"), op, close(364.0)));
        let op = Conv2dBackwardWeight::new(&input, &gradient, [3, 3]).padding([1; 4]);
        cases.push(Case::new(name("weights"), op, close(844.0)));
    }
    cases
}

fn run(backend: &dyn Backend, cases: &[Case]) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for device in devices {
        let summary = check_backend(backend, &device, cases).unwrap();
        assert!(summary.failed.is_empty(), "{} failed: {:#?}", device.id, summary.failed);
        assert_eq!(summary.passed, cases.len(), "{}: {:#?}", device.id, summary.unsupported);
    }
}

fn emulated() -> Option<CudaBackend> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let works = std::process::Command::new(&compiler).arg("--version").output().is_ok();
    works.then(|| CudaBackend::emulated(compiler))
}

#[test]
fn long_lines_are_sorted_digit_by_digit() {
    run(&CudaBackend::new(), &long_lines());
    match emulated() {
        Some(backend) => run(&backend, &long_lines()),
        None => println!("skipped: no C++ compiler; set CXX"),
    }
}

#[test]
fn convolutions_agree_whoever_computes_them() {
    run(&CudaBackend::new(), &convolutions());
    match emulated() {
        Some(backend) => run(&backend, &convolutions()),
        None => println!("skipped: no C++ compiler; set CXX"),
    }
}
