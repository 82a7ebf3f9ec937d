//! Callers' own kernels in WGSL on the devices of this machine. This backend also reports bindings
//! that a kernel declares itself.

use panoply_vulkan::VulkanBackend;
use panoply_wgsl_gpu_testing::kernel::{self, FaultyKernel};

/// Declarations beyond the kernel's tensors, each with part of the error's message: bindings that
/// do not exist, bindings of the kernel's tensors with another length, access or kind, and
/// immediates.
const DECLARATIONS: [(&str, &str); 7] = [
    ("@group(1) @binding(2) var<storage, read_write> z: array<f32>;", "z: a kernel declares no"),
    ("@group(1) @binding(0) var<storage, read_write> z: array<f32, 100000>;", "z: a kernel declares"),
    ("@group(1) @binding(1) var<storage, read_write> z: array<f32>;", "z: a kernel declares no"),
    ("@group(2) @binding(0) var<storage, read_write> z: array<f32>;", "z: a kernel declares no"),
    ("@group(0) @binding(1) var<uniform> u: vec4<f32>; var<private> z: array<f32, 1>;", "u: a kernel"),
    ("@group(0) @binding(0) var<uniform> u: vec4<f32>; var<private> z: array<f32, 1>;", "a kernel"),
    ("var<immediate> u: u32; var<private> z: array<f32, 1>;", "a kernel declares no"),
];

#[test]
fn what_does_not_compile_says_why_and_where() {
    let sources = DECLARATIONS.map(|(declaration, message)| {
        (format!("{declaration}\n@compute @workgroup_size(1) fn f() {{ z[0] = 1.0; }}"), message)
    });
    let faulty: Vec<FaultyKernel<'_>> =
        sources.iter().map(|(source, message)| FaultyKernel { source, entry: "f", message }).collect();
    kernel::what_does_not_compile_says_why_and_where(&VulkanBackend::new(), &faulty);
}

#[test]
fn indices_end_with_the_tensors() {
    kernel::indices_end_with_the_tensors(&VulkanBackend::new());
}

#[test]
fn what_wgsl_has_not_is_refused_before_it_runs() {
    kernel::what_wgsl_has_not_is_refused_before_it_runs(&VulkanBackend::new());
}
