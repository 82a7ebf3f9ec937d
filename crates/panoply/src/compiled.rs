//! The backends of this build, and those that the program registered. No other module looks at the
//! features.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use panoply_core::once::OnceBox;
use panoply_core::{Absence, Api, Backend, DeviceInfo};
use panoply_graph::DeviceTarget;
use panoply_runtime::BuildError;

// Backends of one dialect have one target.
#[cfg(feature = "cuda")]
use panoply_cuda::GRAPH_TARGET as GPU_TARGET;
#[cfg(all(feature = "hip", not(feature = "cuda")))]
use panoply_hip::GRAPH_TARGET as GPU_TARGET;
#[cfg(all(feature = "opencl", not(any(feature = "cuda", feature = "hip"))))]
use panoply_opencl::GRAPH_TARGET as GPU_TARGET;

/// The accepted values of the setting `onnxruntime.providers`.
pub(crate) const ONNX_RUNTIME_PROVIDERS: &str = "a list such as [\"cpu\", \"openvino:device_type=NPU\"], each once (of cpu, cuda, tensorrt, trt-rtx, openvino, coreml, qnn, dml, migraphx, vitisai, xnnpack, webgpu)";

/// An API that Panoply has code for.
pub(crate) struct CompiledApi {
    pub(crate) api: Api,
    /// The backend, or the reason why this build has none.
    pub(crate) backend: Result<Arc<dyn Backend>, Absence>,
    /// Whether it is the CPU backend of this build.
    pub(crate) is_own_cpu: bool,
    /// The cards, if it is the FPGA backend of this build.
    pub(crate) cards: Option<FpgaCards>,
}

impl CompiledApi {
    fn new(api: Api, backend: Result<Arc<dyn Backend>, Absence>) -> CompiledApi {
        CompiledApi { api, backend, is_own_cpu: false, cards: None }
    }
}

/// The cards of the FPGA backend of this build.
#[cfg(feature = "fpga")]
#[derive(Clone)]
pub(crate) struct FpgaCards(Arc<panoply_fpga::FpgaBackend>);

/// A build without FPGAs has no cards.
#[cfg(not(feature = "fpga"))]
#[derive(Clone)]
pub(crate) enum FpgaCards {}

impl FpgaCards {
    /// Sets the bitstream of each card, which is named by its PCI address or its id.
    #[cfg(feature = "fpga")]
    pub(crate) fn set_bitstreams(&self, files: &BTreeMap<String, PathBuf>) -> Result<(), panoply_core::Error> {
        let mut bitstreams = panoply_fpga::Bitstreams::default();
        for (card, file) in files {
            bitstreams = bitstreams.with(card.parse()?, file);
        }
        self.0.set_bitstreams(bitstreams);
        Ok(())
    }

    /// Complaints about cards and bitstreams that the last search had.
    #[cfg(feature = "fpga")]
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.0.troubles()
    }

    /// Never called, because there are no cards.
    #[cfg(not(feature = "fpga"))]
    pub(crate) fn set_bitstreams(&self, _files: &BTreeMap<String, PathBuf>) -> Result<(), panoply_core::Error> {
        match *self {}
    }

    /// Never called, because there are no cards.
    #[cfg(not(feature = "fpga"))]
    pub(crate) fn troubles(&self) -> Vec<String> {
        match *self {}
    }
}

/// Registered backends, in the order of registration. They stay until the process ends. No lock
/// guards the list, so a fork at any moment can read it and append to it.
static REGISTERED: OnceBox<RegistryEntry> = OnceBox::new();

struct RegistryEntry {
    backend: Arc<dyn Backend>,
    next: OnceBox<RegistryEntry>,
}

/// Adds a backend to every runtime that this process builds from now on, as if it were built in.
/// [`Builder::backend`](crate::Builder::backend) adds a backend to a single runtime.
pub fn register(backend: Arc<dyn Backend>) {
    append(&REGISTERED, backend);
}

fn append(list: &OnceBox<RegistryEntry>, backend: Arc<dyn Backend>) {
    let mut end = list;
    let mut entry = RegistryEntry { backend, next: OnceBox::new() };
    loop {
        while let Some(taken) = end.get() {
            end = &taken.next;
        }
        match end.set(entry) {
            Ok(()) => return,
            // Another thread was faster.
            Err(unused) => entry = *unused,
        }
    }
}

fn registered(list: &OnceBox<RegistryEntry>) -> impl Iterator<Item = &Arc<dyn Backend>> {
    std::iter::successors(list.get(), |entry| entry.next.get()).map(|entry| &entry.backend)
}

/// Returns the APIs that Panoply has code for, even if this build lacks it, and the registered
/// APIs.
pub fn apis() -> Vec<Api> {
    known().into_iter().map(|known| known.api).collect()
}

/// Finds an API by name among Panoply's own APIs and the registered ones. Parsing alone is not
/// enough, because any word could be the name of an API.
pub fn api_named(name: &str) -> Option<Api> {
    let is_known = |api: &Api| Api::NAMED.contains(api) || apis().contains(api) || onnxruntime_apis().contains(api);
    name.parse().ok().filter(is_known)
}

/// Returns every API that Panoply has code for. If several devices suit an op equally well, the
/// earlier API wins.
pub(crate) fn known() -> Vec<CompiledApi> {
    let mut known = vec![
        CompiledApi { is_own_cpu: true, ..CompiledApi::new(Api::CPU, cpu()) },
        CompiledApi::new(Api::CUDA, cuda()),
        CompiledApi::new(Api::ROCM, hip()),
        CompiledApi::new(Api::VULKAN, vulkan()),
        CompiledApi::new(Api::WGPU, wgpu()),
        CompiledApi::new(Api::OPENCL, opencl()),
        CompiledApi::new(Api::PJRT, pjrt()),
        fpga(),
        onnxruntime(),
        openvino(),
        CompiledApi::new(Api::QAT, qat()),
        af_alg(),
    ];
    let registered = registered(&REGISTERED).cloned();
    known.extend(registered.map(|backend| CompiledApi::new(backend.api(), Ok(backend))));
    known
}

/// The graph compiler's target for a device: what it knows of the processor, or of GPUs. Devices
/// whose limits only their driver knows get the target of the kind that is nearest.
pub fn target_of(device: &DeviceInfo) -> Result<DeviceTarget, Absence> {
    if device.is_processor() { processor_target() } else { gpu_target() }
}

/// The graph compiler's target for the processor.
#[cfg(feature = "cpu")]
pub fn processor_target() -> Result<DeviceTarget, Absence> {
    Ok(panoply_cpu::GRAPH_TARGET)
}

/// The graph compiler's target for the processor.
#[cfg(not(feature = "cpu"))]
pub fn processor_target() -> Result<DeviceTarget, Absence> {
    Err(Absence::NotCompiled { feature: "cpu" })
}

/// The graph compiler's target for large GPUs.
#[cfg(any(feature = "cuda", feature = "hip", feature = "opencl"))]
pub fn gpu_target() -> Result<DeviceTarget, Absence> {
    Ok(GPU_TARGET)
}

/// The graph compiler's target for large GPUs.
#[cfg(not(any(feature = "cuda", feature = "hip", feature = "opencl")))]
pub fn gpu_target() -> Result<DeviceTarget, Absence> {
    Err(Absence::NotCompiled { feature: "cuda" })
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

/// The API has another name if cards are simulated.
#[cfg(feature = "fpga")]
fn fpga() -> CompiledApi {
    let backend = Arc::new(panoply_fpga::FpgaBackend::from_environment());
    let cards = Some(FpgaCards(Arc::clone(&backend)));
    CompiledApi { cards, ..CompiledApi::new(backend.api(), Ok(backend)) }
}

#[cfg(not(feature = "fpga"))]
fn fpga() -> CompiledApi {
    CompiledApi::new(Api::FPGA, Err(Absence::NotCompiled { feature: "fpga" }))
}

#[cfg(feature = "onnxruntime")]
fn onnxruntime() -> CompiledApi {
    let backend = panoply_onnxruntime::OnnxRuntimeBackend::from_environment();
    CompiledApi::new(backend.api(), Ok(Arc::new(backend)))
}

#[cfg(not(feature = "onnxruntime"))]
fn onnxruntime() -> CompiledApi {
    CompiledApi::new(Api::new("onnxruntime"), Err(Absence::NotCompiled { feature: "onnxruntime" }))
}

/// The backends of these execution providers of ONNX Runtime, such as `cuda`. An unknown name is
/// an error.
#[cfg(feature = "onnxruntime")]
pub(crate) fn onnxruntime_with(providers: &[String]) -> Result<Vec<CompiledApi>, BuildError> {
    let backends = panoply_onnxruntime::OnnxRuntimeBackend::with_providers(providers);
    let backends = backends.map_err(|_| BuildError::BadLimit {
        what: "onnxruntime.providers",
        expected: ONNX_RUNTIME_PROVIDERS,
        got: format!("{providers:?}"),
    })?;
    let chosen = backends.into_iter().map(|backend| CompiledApi::new(backend.api(), Ok(Arc::new(backend))));
    let mut chosen: Vec<CompiledApi> = chosen.collect();
    let cores = panoply_onnxruntime::ONNX_RUNTIME;
    if chosen.iter().all(|known| known.api != cores) {
        let reason = "the setting onnxruntime.providers does not name cpu".to_owned();
        chosen.push(CompiledApi::new(cores, Err(Absence::NoDevice { reason })));
    }
    Ok(chosen)
}

/// This build has no execution provider, and says so in its list of devices.
#[cfg(not(feature = "onnxruntime"))]
pub(crate) fn onnxruntime_with(_providers: &[String]) -> Result<Vec<CompiledApi>, BuildError> {
    Ok(vec![onnxruntime()])
}

/// The APIs of all execution providers of ONNX Runtime.
#[cfg(feature = "onnxruntime")]
pub(crate) fn onnxruntime_apis() -> Vec<Api> {
    panoply_onnxruntime::apis()
}

#[cfg(not(feature = "onnxruntime"))]
pub(crate) fn onnxruntime_apis() -> Vec<Api> {
    vec![onnxruntime().api]
}

/// The APIs of devices that run whole models.
#[cfg(all(feature = "ml", any(feature = "onnxruntime", feature = "openvino")))]
pub(crate) fn whole_model_apis() -> Vec<Api> {
    onnxruntime_apis().into_iter().chain([openvino().api]).collect()
}

#[cfg(feature = "openvino")]
fn openvino() -> CompiledApi {
    let backend = panoply_openvino::OpenVinoBackend::from_environment();
    CompiledApi::new(backend.api(), Ok(Arc::new(backend)))
}

#[cfg(not(feature = "openvino"))]
fn openvino() -> CompiledApi {
    CompiledApi::new(Api::new("openvino"), Err(Absence::NotCompiled { feature: "openvino" }))
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
fn af_alg() -> CompiledApi {
    let backend = panoply_af_alg::AfAlgBackend::from_environment();
    CompiledApi::new(backend.api(), Ok(Arc::new(backend)))
}

#[cfg(not(feature = "af_alg"))]
fn af_alg() -> CompiledApi {
    CompiledApi::new(Api::new("af_alg"), Err(Absence::NotCompiled { feature: "af_alg" }))
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

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    #[cfg(feature = "onnxruntime")]
    #[test]
    fn all_execution_providers_are_in_the_message() {
        let list = format!("(of {})", panoply_onnxruntime::PROVIDERS);
        assert!(ONNX_RUNTIME_PROVIDERS.ends_with(&list), "{list}");
    }

    #[test]
    fn what_several_threads_register_is_all_there() {
        let (list, backend) = (OnceBox::new(), cpu().unwrap());
        assert_eq!(registered(&list).count(), 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| append(&list, Arc::clone(&backend))));
            }
        });
        assert_eq!(registered(&list).count(), 100);
        assert!(registered(&list).all(|one| one.api() == Api::CPU));
    }
}
