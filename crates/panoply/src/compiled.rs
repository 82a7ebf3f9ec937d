//! The backends of this build, and those that the program registered. The only place that looks at the features.

use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::{Absence, Api, Backend};

/// One API that Panoply has code for.
pub(crate) struct Known {
    pub(crate) api: Api,
    /// Its backend, or why this build has none.
    pub(crate) backend: Result<Arc<dyn Backend>, Absence>,
}

/// Backends from outside, in the order in which they were registered.
static REGISTERED: Mutex<Vec<Arc<dyn Backend>>> = Mutex::new(Vec::new());

/// Adds a backend from outside to every runtime that this process builds from now on, as if it were one of Panoply's own.
/// [`Builder::backend`](crate::Builder::backend) adds one to a single runtime.
pub fn register(backend: Arc<dyn Backend>) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).push(backend);
}

/// The APIs that Panoply has code for, whether or not this build has it, and those that were registered.
pub fn apis() -> Vec<Api> {
    known().into_iter().map(|known| known.api).collect()
}

/// The API of this name, where it is one that somebody could mean: Panoply's own and those that were registered. Any word
/// could be the name of an API.
pub fn api_named(name: &str) -> Option<Api> {
    name.parse().ok().filter(|api| Api::NAMED.contains(api) || apis().contains(api))
}

/// Every API that Panoply has code for. Where several devices suit an op equally well, the earlier is taken.
pub(crate) fn known() -> Vec<Known> {
    let mut known = vec![
        Known { api: Api::CPU, backend: cpu() },
        Known { api: Api::CUDA, backend: cuda() },
        Known { api: Api::ROCM, backend: hip() },
        Known { api: Api::VULKAN, backend: vulkan() },
        Known { api: Api::WGPU, backend: wgpu() },
        Known { api: Api::OPENCL, backend: opencl() },
        Known { api: Api::PJRT, backend: pjrt() },
        fpga(),
        onnxruntime(),
        Known { api: Api::QAT, backend: qat() },
        af_alg(),
    ];
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    known.extend(registered.into_iter().map(|backend| Known { api: backend.api(), backend: Ok(backend) }));
    known
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_cpu::CpuBackend::new()))
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "cpu" })
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_cuda::CudaBackend::new()))
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "cuda" })
}

#[cfg(feature = "hip")]
fn hip() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_hip::HipBackend::new()))
}

#[cfg(not(feature = "hip"))]
fn hip() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "hip" })
}

#[cfg(feature = "pjrt")]
fn pjrt() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_pjrt::PjrtBackend::new()))
}

#[cfg(not(feature = "pjrt"))]
fn pjrt() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "pjrt" })
}

#[cfg(feature = "opencl")]
fn opencl() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_opencl::OpenClBackend::new()))
}

#[cfg(not(feature = "opencl"))]
fn opencl() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "opencl" })
}

/// Under another name where cards are to be simulated.
#[cfg(feature = "fpga")]
fn fpga() -> Known {
    let backend = panoply_fpga::FpgaBackend::from_environment();
    Known { api: backend.api(), backend: Ok(Arc::new(backend)) }
}

#[cfg(not(feature = "fpga"))]
fn fpga() -> Known {
    Known { api: Api::FPGA, backend: Err(Absence::NotCompiled { feature: "fpga" }) }
}

#[cfg(feature = "onnxruntime")]
fn onnxruntime() -> Known {
    let backend = panoply_onnxruntime::OnnxRuntimeBackend::from_environment();
    Known { api: backend.api(), backend: Ok(Arc::new(backend)) }
}

#[cfg(not(feature = "onnxruntime"))]
fn onnxruntime() -> Known {
    Known { api: Api::new("onnxruntime"), backend: Err(Absence::NotCompiled { feature: "onnxruntime" }) }
}

#[cfg(feature = "qat")]
fn qat() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_qat::QatBackend::new()))
}

#[cfg(not(feature = "qat"))]
fn qat() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "qat" })
}

#[cfg(feature = "af_alg")]
fn af_alg() -> Known {
    let backend = panoply_af_alg::AfAlgBackend::from_environment();
    Known { api: backend.api(), backend: Ok(Arc::new(backend)) }
}

#[cfg(not(feature = "af_alg"))]
fn af_alg() -> Known {
    Known { api: Api::new("af_alg"), backend: Err(Absence::NotCompiled { feature: "af_alg" }) }
}

#[cfg(feature = "vulkan")]
fn vulkan() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_vulkan::VulkanBackend::new()))
}

#[cfg(not(feature = "vulkan"))]
fn vulkan() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "vulkan" })
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_wgpu::WgpuBackend::new()))
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "wgpu" })
}
