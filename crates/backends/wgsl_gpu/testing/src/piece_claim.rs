//! Checks the claimed support for tensors just within a kernel's reach and just beyond it, on the
//! simulated adapter.

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::op::compute::{
    Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, LayerNorm, Normalize, Pool2d, Resize, Scan, Softmax, Sort, TopK,
    Transpose,
};
use panoply_core::{DType, Describe, Op, Operation, Tensor};
use panoply_wgsl_gpu::ops::support;

use crate::piece::{engine, here};
use crate::{TestBackend, TestEngine, run_one};

/// Around the sizes at which tensors go out of reach, the adapter runs every op that it claims to
/// run, also on views that do not begin at windows. All other ops are refused before anything is
/// recorded.
pub fn what_is_claimed_around_the_limit_runs(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (mut ran, mut refused) = (0, 0);
    // The size that the adapter binds, the size that a kernel sees at any offset, and the same
    // sizes in carriers of four bytes.
    for (dtype, most) in
        [(DType::F32, 16_320), (DType::F32, 16_384), (DType::F16, 16_384), (DType::F16, 32_768), (DType::U8, 65_280)]
    {
        for line in [most, most + 1] {
            let large = random_tensor(dtype, &[3 * line + 65], 1);
            let moved = here(&mut *engine, &large);
            for (first, lines) in [(0, 1), (65, 1), (3, 2)] {
                let part = |tensor: &Tensor| tensor.slice(0, first, first + lines * line).unwrap();
                let (here, there) = (part(&moved), part(&large));
                for (op, same) in
                    around_the_limit(&here, lines, line).into_iter().zip(around_the_limit(&there, lines, line))
                {
                    let what = format!("{} of {lines} x {line} {dtype} at {first}", op.name());
                    if runs_as_claimed(&mut *engine, op, &same, &what) { ran += 1 } else { refused += 1 }
                }
            }
        }
    }
    assert!(ran > 150 && refused > 70, "{ran} ran, {refused} were refused");
}

/// Returns whether the op is claimed to run. If so it must give the same result as on the host,
/// otherwise it must be refused.
fn runs_as_claimed(engine: &mut dyn TestEngine, op: Op, same: &Op, what: &str) -> bool {
    let claimed = support(engine.profile(), &op).is_ok();
    let answer = run_one(engine, op);
    assert_eq!(answer.is_ok(), claimed, "{what}: {answer:?}");
    if let Ok(answer) = answer {
        let tolerance = Tolerance::Close { relative: 1e-2, absolute: 0.1 };
        let expected = reference(same).unwrap();
        for (expected, got) in expected.tensors().zip(answer.tensors()) {
            assert_eq!(difference(expected, got, tolerance), None, "{what}");
        }
    }
    claimed
}

/// Ops on lines of these elements, and on the same elements as images. Some ops do not exist for
/// all types.
fn around_the_limit(flat: &Tensor, lines: usize, line: usize) -> Vec<Op> {
    let table = flat.reshape([lines, line]).unwrap();
    let images = flat.reshape([lines, 1, 1, line]).unwrap();
    let weights = random_tensor(flat.dtype(), &[1, 1, 1, 1], 2);
    let mut ops = vec![
        Softmax::new(&table).into_op(),
        Softmax::new(&flat.reshape([line, lines]).unwrap()).axis(0).into_op(),
        LayerNorm::new(&table).into_op(),
        Scan::sum(&table).into_op(),
        Scan::sum(&flat.reshape([line, lines]).unwrap()).axis(0).into_op(),
        Sort::new(&table).into_op(),
        TopK::new(&table, 1).into_op(),
        TopK::new(&table, 600).into_op(),
        Transpose::new(&table).into_op(),
        Resize::new(&table.reshape([lines, 1, line]).unwrap(), 1, 7).into_op(),
        Pool2d::max(&images, [1, 2]).into_op(),
        Normalize::new(&images, &[0.5], &[2.0]).into_op(),
    ];
    // Software adapters take long for convolutions.
    if lines > 1 {
        ops.push(Conv2d::new(&images, &weights).into_op());
        ops.push(Conv2dBackwardInput::new(&images, &weights, [1, line]).into_op());
        ops.push(Conv2dBackwardWeight::new(&images, &images, [1, 1]).into_op());
    }
    ops.into_iter().flatten().collect()
}
