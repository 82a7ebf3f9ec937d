//! Tests of hipBLASLt, rocBLAS, MIOpen, hipFFT, AMD SMI and ROCm SMI behind the test library. An
//! injected failure of a library function shows that the op calls it.

use panoply_c_gpu::GpuEngine;
use panoply_c_gpu::library::{ConvolutionKind, ConvolutionProblem};
use panoply_conformance::reference::reference;
use panoply_conformance::run_one;
use panoply_core::op::compute::{Activation, Conv2d, MatMul};
use panoply_core::op::signal::Fft;
use panoply_core::{Backend, DType, Engine, Error, Op, Operation, Tensor};

use crate::fault_tests::{faults, is_cuda, library, through};

/// A matrix of f64. Products of f64 use the library at any size.
fn values(shape: [usize; 2]) -> Tensor {
    let count = shape[0] * shape[1];
    Tensor::from_vec((0..count).map(|i| ((i * 7) % 13) as f64 / 4.0 - 1.0).collect(), shape).unwrap()
}

/// Asserts that the op fails once because `function` fails, and succeeds the next time.
fn assert_asks(function: &str, op: Op, told: &str) {
    if is_cuda() {
        return println!("skipped: over CUDA there is none of these libraries");
    }
    let (library, backend) = (library(), through());
    let device = backend.discover().unwrap().remove(0);
    let mut engine = faults::open(&backend, &device);
    library.fail(function, 6, 1);
    let error = run_one(&mut engine, op.clone()).unwrap_err();
    assert!(matches!(&error, Error::DeviceFault { reason, .. } if reason == told), "{error}");
    let got = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap();
    let expected = reference(&op).unwrap().into_tensor().unwrap();
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()));
    for (got, expected) in floats(&got).iter().zip(floats(&expected)) {
        assert!((got - expected).abs() <= 1e-3 * (1.0 + expected.abs()), "{got} is not {expected}");
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::Complex64 => {
            let parts = tensor.to_vec::<panoply_core::Complex64>().unwrap();
            parts.into_iter().flat_map(|number| [number.re, number.im]).collect()
        }
        DType::F16 => tensor.to_vec::<panoply_core::f16>().unwrap().into_iter().map(f32::from).collect(),
        DType::F32 => tensor.to_vec::<f32>().unwrap(),
        _ => tensor.to_vec::<f64>().unwrap().into_iter().map(|number| number as f32).collect(),
    }
}

#[test]
fn products_are_the_librarys() {
    let op = MatMul::new(&values([40, 33]), &values([33, 50])).into_op().unwrap();
    assert_asks("rocblas_gemm_strided_batched_ex", op, "rocBLAS answers 6");
    let turned = MatMul::new(&values([33, 40]), &values([50, 33])).transpose_a().transpose_b().into_op().unwrap();
    assert_asks("rocblas_gemm_strided_batched_ex", turned, "rocBLAS answers 6");
}

/// A matrix of f16 whose sums are exact in f16. Products of f16 use a library at any size.
fn halves(shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let number = |i: usize| panoply_core::f16::from_f32(((i * 7) % 13) as f32 / 4.0 - 1.0);
    Tensor::from_vec((0..count).map(number).collect(), shape).unwrap()
}

#[test]
fn products_of_short_numbers_are_the_newer_librarys() {
    let op = MatMul::new(&halves(&[40, 48]), &halves(&[48, 56])).into_op().unwrap();
    assert_asks("hipblasLtMatmul", op, "hipBLASLt answers 6");
    let turned = MatMul::new(&halves(&[48, 40]), &halves(&[56, 48])).transpose_a().transpose_b();
    assert_asks("hipblasLtMatmul", turned.into_op().unwrap(), "hipBLASLt answers 6");
    let batches = MatMul::new(&halves(&[3, 40, 48]), &halves(&[3, 48, 56])).into_op().unwrap();
    assert_asks("hipblasLtMatmul", batches, "hipBLASLt answers 6");
    let with_bias = MatMul::new(&halves(&[40, 48]), &halves(&[48, 56])).bias(&halves(&[56]));
    assert_asks("hipblasLtMatmul", with_bias.into_op().unwrap(), "hipBLASLt answers 6");
}

/// Epilogues that the library lacks run in our own kernel after the library's product.
#[test]
fn products_with_more_behind_them_are_a_librarys_as_well() {
    let relu = || MatMul::new(&halves(&[40, 48]), &halves(&[48, 56])).bias(&halves(&[56])).activation(Activation::Gelu);
    assert_asks("hipblasLtMatmul", relu().into_op().unwrap(), "hipBLASLt answers 6");
    let op = MatMul::new(&values([40, 33]), &values([33, 50])).activation(Activation::Relu).into_op().unwrap();
    assert_asks("rocblas_gemm_strided_batched_ex", op, "rocBLAS answers 6");
}

/// If hipBLASLt is too old, does not open or recommends no algorithm, rocBLAS multiplies.
#[test]
fn products_without_the_newer_library_are_the_older_ones() {
    if is_cuda() {
        return println!("skipped: over CUDA there is none of these libraries");
    }
    for function in
        ["hipblasLtCreate", "hipblasLtGetVersion", "hipblasLtMatmulAlgoGetHeuristic", "hipblasLtMatmulDescSetAttribute"]
    {
        let (library, backend) = (library(), through());
        let device = backend.discover().unwrap().remove(0);
        let mut engine = faults::open(&backend, &device);
        library.fail(function, 7, 1);
        library.fail("rocblas_gemm_strided_batched_ex", 6, 1);
        let op = MatMul::new(&halves(&[40, 48]), &halves(&[48, 56])).into_op().unwrap();
        let error = run_one(&mut engine, op.clone()).unwrap_err();
        assert!(error.to_string().contains("rocBLAS answers 6"), "{function}: {error}");
        let got = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap();
        assert_eq!(floats(&got), floats(&reference(&op).unwrap().into_tensor().unwrap()), "{function}");
    }
}

#[test]
fn transforms_are_the_librarys() {
    let signal = Tensor::from_vec((0..180).map(|i| ((i * 7) % 13) as f32 / 4.0 - 1.0).collect(), [3, 60]).unwrap();
    let op = Fft::new(&signal).into_op().unwrap();
    assert_asks("hipfftExecR2C", op, "hipFFT answers 6");
    let wide = Tensor::from_vec((0..180).map(|i| f64::from((i * 7) % 13) / 4.0 - 1.0).collect(), [3, 60]).unwrap();
    assert_asks("hipfftExecD2Z", Fft::new(&wide).into_op().unwrap(), "hipFFT answers 6");
}

/// Images or filters of f32.
fn image(sizes: [usize; 4]) -> Tensor {
    let count = sizes.iter().product();
    Tensor::from_vec((0..count).map(|i: usize| ((i * 7) % 13) as f32 / 4.0 - 1.0).collect(), sizes).unwrap()
}

/// The library's first solution gives wrong results and is not chosen. A chosen solution that fails
/// later is dropped.
#[test]
fn convolutions_are_the_librarys() {
    if is_cuda() {
        return println!("skipped: over CUDA there is none of these libraries");
    }
    let (library, backend) = (library(), through());
    let device = backend.discover().unwrap().remove(0);
    let mut engine = faults::open(&backend, &device);
    let (images, filters) = (image([1, 16, 24, 24]), image([64, 16, 3, 3]));
    let bias = Tensor::from_vec((0..64).map(|i| i as f32 / 8.0).collect(), [64]).unwrap();
    let op = Conv2d::new(&images, &filters).bias(&bias).padding([1, 1, 1, 1]).into_op().unwrap();
    let expected = reference(&op).unwrap().into_tensor().unwrap().to_vec::<f32>().unwrap();
    let is_right = |got: &Tensor| {
        let pairs = got.to_vec::<f32>().unwrap().into_iter().zip(&expected);
        pairs.into_iter().all(|(got, expected)| (got - expected).abs() <= 1e-3 * (1.0 + expected.abs()))
    };
    let first = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap();
    assert!(is_right(&first));
    let chosen = |engine: &mut GpuEngine| {
        let driver = std::rc::Rc::clone(&engine.context_mut().driver);
        driver.convolutions().unwrap().choice(&problem()).map(|plan| plan.map(|plan| plan.name()))
    };
    assert_eq!(chosen(&mut engine), Some(Some("solution 11 of algorithm 1".to_owned())));
    // The chosen solution fails: our own kernel replaces it permanently.
    library.fail("miopenConvolutionForwardImmediate", 7, 1);
    assert!(is_right(&run_one(&mut engine, op).unwrap().into_tensor().unwrap()));
    assert_eq!(chosen(&mut engine), Some(None));
}

/// The convolution above as it is passed to libraries.
fn problem() -> ConvolutionProblem {
    ConvolutionProblem {
        dtype: DType::F32,
        kind: ConvolutionKind::Forward,
        channels_last: false,
        input: [1, 16, 24, 24],
        weights: [64, 16, 3, 3],
        output: [1, 64, 24, 24],
        stride: [1, 1],
        dilation: [1, 1],
        padding: [[1, 1], [1, 1]],
        // Our own kernel adds the bias of f32.
        has_bias: false,
        has_residual: false,
        activation: Activation::None,
    }
}

/// A library that cannot be opened is skipped.
#[test]
fn without_a_library_kernels_of_our_own_are_used() {
    let (library, backend) = (library(), through());
    let Ok(mut devices) = backend.discover() else { return println!("skipped: no device") };
    library.fail("rocblas_create_handle", 6, 1);
    let mut engine = faults::open(&backend, &devices.remove(0));
    let op = MatMul::new(&values([40, 33]), &values([33, 50])).into_op().unwrap();
    let got = run_one(&mut engine, op.clone()).unwrap().into_tensor().unwrap();
    let expected = reference(&op).unwrap().into_tensor().unwrap();
    for (got, expected) in floats(&got).iter().zip(floats(&expected)) {
        assert!((got - expected).abs() <= 1e-3 * (1.0 + expected.abs()), "{got} is not {expected}");
    }
}

#[test]
fn sensors_tell_how_the_device_is() {
    if is_cuda() {
        return println!("skipped: over CUDA there is no ROCm SMI");
    }
    let (library, backend) = (library(), through());
    let before = library.monitors();
    let device = backend.discover().unwrap().remove(0);
    let mut engine = faults::open(&backend, &device);
    let health = engine.health();
    assert_eq!((health.temperature_celsius, health.power_watts), (Some(41.5), Some(123.0)));
    assert_eq!((health.utilisation_percent, health.fault), (Some(17.0), None));
    library.fail("rsmi_dev_ecc_count_get", 3, 1);
    let fault = engine.health().fault.unwrap();
    assert!(fault.to_string().contains("3 errors in memory"), "{fault}");
    // The junction sensor is missing, so the edge sensor is read.
    library.fail("rsmi_dev_temp_metric_get", 2, 1);
    assert_eq!(engine.health().temperature_celsius, Some(41.0));
    // A newer GPU, which reports its current power.
    library.fail("rsmi_dev_power_get", 0, 1);
    assert_eq!(engine.health().power_watts, Some(156.0));
    drop(engine);
    assert_eq!(library.monitors(), before);
}

/// AMD SMI is used if it knows the GPU.
#[test]
fn the_newer_sensors_tell_how_the_device_is() {
    if is_cuda() {
        return println!("skipped: over CUDA there is no AMD SMI");
    }
    let (library, backend) = (library(), through());
    let before = library.monitors();
    library.amd_smi(true);
    let device = backend.discover().unwrap().remove(0);
    let mut engine = faults::open(&backend, &device);
    let health = engine.health();
    assert_eq!((health.temperature_celsius, health.power_watts), (Some(51.0), Some(210.0)));
    assert_eq!((health.utilisation_percent, health.fault), (Some(29.0), None));
    library.fail("amdsmi_get_gpu_total_ecc_count", 2, 1);
    let fault = engine.health().fault.unwrap();
    assert!(fault.to_string().contains("2 errors in memory"), "{fault}");
    // Unknown values are the largest number. Queries that fail are omitted.
    library.fail("current power", 1, 1);
    library.fail("amdsmi_get_temp_metric", 2, 1);
    library.fail("amdsmi_get_gpu_activity", 2, 1);
    let health = engine.health();
    assert_eq!((health.temperature_celsius, health.power_watts), (Some(50.0), Some(190.0)));
    assert_eq!(health.utilisation_percent, None);
    drop(engine);
    library.amd_smi(false);
    assert_eq!(library.monitors(), before);
}
