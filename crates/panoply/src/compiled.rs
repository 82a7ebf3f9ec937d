//! The backends of this build. The only place that looks at the features.

use std::sync::Arc;

use panoply_core::{Absence, Api, Backend};

/// One API that Panoply has code for.
pub(crate) struct Known {
    pub(crate) api: Api,
    /// Its backend, or why this build has none.
    pub(crate) backend: Result<Arc<dyn Backend>, Absence>,
}

/// The APIs that Panoply has code for, whether or not this build has it.
pub fn apis() -> Vec<Api> {
    known().into_iter().map(|known| known.api).collect()
}

/// Every API that Panoply has code for. Where several devices suit an op equally well, the earlier is taken.
pub(crate) fn known() -> Vec<Known> {
    vec![
        Known { api: Api::CPU, backend: cpu() },
        Known { api: Api::CUDA, backend: cuda() },
        Known { api: Api::WGPU, backend: wgpu() },
    ]
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

#[cfg(feature = "wgpu")]
fn wgpu() -> Result<Arc<dyn Backend>, Absence> {
    Ok(Arc::new(panoply_wgpu::WgpuBackend::new()))
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Result<Arc<dyn Backend>, Absence> {
    Err(Absence::NotCompiled { feature: "wgpu" })
}
