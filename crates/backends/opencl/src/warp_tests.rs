//! Checks kernels for devices with subgroups, without such a device. While the emulated device runs
//! a kernel with warps of 64, the machine's OpenCL compiler must accept it too, with shuffles that
//! are declared and do nothing.

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_conformance::{Case, cases, check_backend};
use panoply_core::Backend;

use crate::fault_tests::compiler_for;
use crate::warps::Warps;

/// Definitions that replace subgroups for a compiler without them.
const DECLARED: &str = "-DPANOPLY_SUBGROUPS -Dsub_group_shuffle(x,y)=(x) -Dsub_group_shuffle_xor(x,y)=(x) \
    -Dsub_group_ballot(x)=(uint4)(x) -Dsub_group_barrier(x)=mem_fence(x)";
/// Ops whose kernels use warps, with the step between their tested cases.
const FAMILIES: [(&str, usize); 12] = [
    ("sort/f32", 12),
    ("argsort/f32", 12),
    ("scan/f32", 40),
    ("topk/f32", 12),
    ("search/f32", 40),
    ("reduce/f32", 40),
    ("softmax/f32", 9),
    ("layernorm/f32", 20),
    ("pool2d/f32", 70),
    ("attention/f32", 25),
    ("matmul/f32", 15),
    ("matmul/f16", 15),
];

#[test]
fn kernels_with_warps_compile() {
    let Some(checker) = compiler_for(Warps { lanes: 64, option: DECLARED, tiles: false }) else { return };
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend.wide_warps().checked_by(Arc::new(checker)),
        Err(absence) => return println!("skipped: {absence}"),
    };
    let device = backend.discover().unwrap().remove(0);
    let all = cases();
    let of_family = |(prefix, step): (&str, usize)| -> Vec<Case> {
        all.iter().filter(|case| case.name.starts_with(prefix)).step_by(step).cloned().collect()
    };
    let chosen: Vec<Case> = FAMILIES.into_iter().flat_map(of_family).collect();
    assert!(chosen.len() > FAMILIES.len());
    let summary = check_backend(&backend, &device, &chosen).unwrap();
    assert!(summary.failed.is_empty(), "{:#?}", summary.failed);
}
