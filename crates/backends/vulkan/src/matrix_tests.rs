//! Tests of kernels for matrix units. On devices without matrix units the matrices are emulated, so
//! that everything but the units themselves is checked everywhere; on devices with them, the units
//! are checked too.

use panoply_conformance::reference::reference;
use panoply_conformance::values::random_tensor;
use panoply_conformance::{Tolerance, run_one};
use panoply_core::op::compute::{Activation, Conv2d, MatMul, Metric, Search};
use panoply_core::{Backend, DType, OpenOptions, Operation};
use panoply_kernels::wgsl::{Kernel, WideTile};
use panoply_wgsl_gpu::internals::{SMALL_WIDE_TILE, TEST_WIDE_TILE, Tuning, WIDE_TILES};
use panoply_wgsl_gpu::profile::WideMatrices;

use crate::backend::{VulkanBackend, VulkanEngine};
use panoply_wgsl_gpu_testing::form;

const TOLERANCE: Tolerance = Tolerance::Close { relative: 1e-2, absolute: 5e-2 };

/// An engine whose device has matrix units or emulates them; `None` if there is no device. Then the
/// test prints that it is skipped.
fn engine() -> Option<VulkanEngine> {
    let backend = VulkanBackend::new();
    match backend.discover() {
        Ok(devices) => {
            let mut engine = backend.open_engine(&devices[0], &OpenOptions::default()).unwrap();
            engine.context().profile.wide_matrices = WideMatrices { f16: true, bf16: true };
            Some(engine)
        }
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

fn agree(engine: &mut VulkanEngine, what: &str, op: impl Operation) {
    form::agree(engine, what, op, TOLERANCE);
    assert_eq!(
        engine.context().profile.wide_matrices,
        WideMatrices { f16: true, bf16: true },
        "{what} did not compile"
    );
}

fn wide_tiles(engine: &mut VulkanEngine) -> Vec<WideTile> {
    let tile = |kernel: &Kernel| if let Kernel::Wide(kernel) = kernel { Some(kernel.tile) } else { None };
    engine.context().pipelines.kernels().filter_map(tile).collect()
}

/// Whether to run all forms. Software devices take a second to compile each kernel, so they run
/// only one form for bf16.
fn is_thorough(engine: &mut VulkanEngine, dtype: DType) -> bool {
    !engine.context().profile.is_software || dtype == DType::F16
}

#[test]
fn products_of_every_form_are_those_of_the_reference() {
    let Some(mut engine) = engine() else { return };
    for dtype in [DType::F16, DType::BF16] {
        let numbers = |dims: &[usize], seed| random_tensor(dtype, dims, seed);
        // Parts of tiles, along each dimension of memory.
        let [m, k, n] = [72, 40, 136];
        let (a, b, c) = (numbers(&[8, m, k], 1), numbers(&[8, k, n], 2), numbers(&[8, m, n], 3));
        let bias = numbers(&[n], 4);
        let op = MatMul::new(&a, &b).alpha(0.5).beta(2.0, &c).bias(&bias).activation(Activation::Relu);
        agree(&mut engine, "with addends", op);
        if !is_thorough(&mut engine, dtype) {
            continue;
        }
        agree(&mut engine, "plain", MatMul::new(&a, &b));
        let turned = numbers(&[8, n, k], 5);
        agree(&mut engine, "turned", MatMul::new(&a, &turned).transpose_b());
        let both = numbers(&[8, k, m], 6);
        agree(&mut engine, "both turned", MatMul::new(&both, &turned).transpose_a().transpose_b());
        // Whole tiles, then a width that is not a multiple of four.
        agree(&mut engine, "whole", MatMul::new(&numbers(&[8, 64, 64], 7), &numbers(&[8, 64, 64], 8)));
        let odd = MatMul::new(&numbers(&[8, 33, 16], 9), &numbers(&[8, 70, 16], 10)).transpose_b();
        agree(&mut engine, "odd", odd);
    }
    let expected = if engine.context().profile.is_software { TEST_WIDE_TILE } else { SMALL_WIDE_TILE };
    assert!(wide_tiles(&mut engine).iter().all(|tile| *tile == expected));
    // At least one kernel for each element type; software devices get fewer forms.
    let (kernels, least) = (wide_tiles(&mut engine).len(), if expected == TEST_WIDE_TILE { 2 } else { 5 });
    assert!(kernels >= least, "{kernels} kernels for matrix units");
}

#[test]
fn every_tile_gives_the_same_product() {
    let Some(mut engine) = engine() else { return };
    if engine.context().profile.is_software {
        return eprintln!(
            "skipped: a device in software takes minutes to compile what large tiles are without matrix units"
        );
    }
    let numbers = |dims: &[usize], seed| random_tensor(DType::F16, dims, seed);
    // A batch large enough for tiles of the largest size, with partial tiles.
    let (a, b) = (numbers(&[96, 40, 24], 1), numbers(&[96, 24, 72], 2));
    for (number, tile) in WIDE_TILES.iter().enumerate() {
        if tile.workgroup_bytes() > engine.context().profile.workgroup_bytes_max {
            eprintln!("skipped: {tile:?} is too large for this device");
            continue;
        }
        *engine.context().tuning() = Tuning::fixed(number);
        agree(&mut engine, &format!("{tile:?}"), MatMul::new(&a, &b));
        assert!(wide_tiles(&mut engine).contains(tile), "{tile:?} was not used");
    }
}

/// Tests tiles that are stored early: products and convolutions whose depth is not a multiple of
/// the tile's, on software devices too.
#[test]
fn tiles_that_are_put_early_give_the_same() {
    let Some(mut engine) = engine() else { return };
    let early = WIDE_TILES.iter().position(|tile| tile.early).unwrap();
    *engine.context().tuning() = Tuning::fixed(early);
    let numbers = |dims: &[usize], seed| random_tensor(DType::F16, dims, seed);
    agree(&mut engine, "a product", MatMul::new(&numbers(&[8, 40, 40], 1), &numbers(&[8, 40, 48], 2)));
    if engine.context().profile.is_software {
        assert!(wide_tiles(&mut engine).iter().all(|tile| tile.early) && !wide_tiles(&mut engine).is_empty());
    }
    let op = Conv2d::new(&numbers(&[4, 8, 19, 17], 1), &numbers(&[24, 8, 3, 3], 2)).padding([1, 1, 1, 1]);
    agree(&mut engine, "a convolution", op);
}

#[test]
fn convolutions_are_those_of_the_reference() {
    let Some(mut engine) = engine() else { return };
    let numbers = |dtype, dims: &[usize], seed| random_tensor(dtype, dims, seed);
    for dtype in [DType::F16, DType::BF16] {
        let (images, bias) = (numbers(dtype, &[4, 8, 19, 17], 1), numbers(dtype, &[24], 3));
        let (square, pixel) = (numbers(dtype, &[24, 8, 3, 3], 2), numbers(dtype, &[24, 8, 1, 1], 4));
        let (few, wide) = (numbers(dtype, &[5, 3, 16, 16], 5), numbers(dtype, &[20, 3, 5, 3], 6));
        let forms = [
            Conv2d::new(&images, &square).padding([4, 0, 3, 1]).bias(&bias).activation(Activation::Relu),
            Conv2d::new(&numbers(dtype, &[16, 8, 19, 17], 7), &square).stride([2, 2]).padding([1, 0, 1, 0]),
            Conv2d::new(&images, &square).dilation([2, 1]).padding([1, 0, 1, 1]),
            // Image sizes that are not multiples of four, channel counts that are not multiples of
            // eight.
            Conv2d::new(&images, &pixel).bias(&bias),
            Conv2d::new(&few, &wide).padding([2, 1, 2, 1]),
        ];
        let all = if is_thorough(&mut engine, dtype) { forms.len() } else { 1 };
        for (number, op) in forms.into_iter().enumerate().take(all) {
            agree(&mut engine, &format!("form {number} of {dtype:?}"), op);
        }
    }
    assert!(wide_tiles(&mut engine).len() >= 4);
}

#[test]
fn searches_find_the_same_rows() {
    let Some(mut engine) = engine() else { return };
    if engine.context().profile.is_software {
        return eprintln!("skipped: so many rows take a device in software a minute without matrix units");
    }
    let (rows, queries) = (random_tensor(DType::F16, &[33_000, 16], 1), random_tensor(DType::F16, &[5, 16], 2));
    for metric in [Metric::Dot, Metric::Cosine] {
        let search = || Search::new(&rows, &queries, metric, 10).into_op().unwrap();
        let (expected, got) = (reference(&search()).unwrap(), run_one(&mut engine, search()).unwrap());
        let ids = |value: &panoply_core::Value| value.tensors().next().unwrap().to_vec::<u32>().unwrap();
        let (expected, got) = (ids(&expected), ids(&got));
        let same = expected.iter().zip(&got).filter(|(a, b)| a == b).count();
        // Rows with nearly equal scores may swap.
        assert!(same + 2 >= expected.len(), "{metric:?}: {same} of {}", expected.len());
    }
    assert!(!wide_tiles(&mut engine).is_empty(), "matrix units were not used");
}
