//! Callers' own kernels in WGSL on the adapters of this machine.

use panoply_wgpu::WgpuBackend;
use panoply_wgsl_gpu_testing::kernel;

#[test]
fn what_does_not_compile_says_why_and_where() {
    kernel::what_does_not_compile_says_why_and_where(&WgpuBackend::new(), &[]);
}

#[test]
fn indices_end_with_the_tensors() {
    kernel::indices_end_with_the_tensors(&WgpuBackend::new());
}

#[test]
fn what_wgsl_has_not_is_refused_before_it_runs() {
    kernel::what_wgsl_has_not_is_refused_before_it_runs(&WgpuBackend::new());
}
