//! Finds ONNX Runtime and opens it. The only device is the library's CPU kernels.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support, vendor,
};

use crate::engine::OnnxRuntimeEngine;
use crate::library::{Library, files};
use crate::ops::{LoadModel, RunModel};

/// The API name of the device, which is listed as `onnxruntime:0`.
pub const ONNX_RUNTIME: Api = Api::new("onnxruntime");
/// The environment variable that names the library or its folder.
pub const VARIABLE: &str = "PANOPLY_ONNXRUNTIME";

/// The ONNX Runtime backend.
pub struct OnnxRuntimeBackend {
    named: Option<PathBuf>,
    library: OnceLock<Arc<Library>>,
}

impl OnnxRuntimeBackend {
    /// Uses the library that the variable [`VARIABLE`] names, if any.
    pub fn from_environment() -> OnnxRuntimeBackend {
        OnnxRuntimeBackend::of(
            std::env::var_os(VARIABLE).map(PathBuf::from).filter(|name| !name.as_os_str().is_empty()),
        )
    }

    /// Uses this library, or the library in this folder.
    pub fn of(named: Option<PathBuf>) -> OnnxRuntimeBackend {
        OnnxRuntimeBackend { named, library: OnceLock::new() }
    }

    fn library(&self) -> Result<Arc<Library>, Absence> {
        let missing = || Absence::NoDevice { reason: format!("{VARIABLE} names no library of ONNX Runtime") };
        let files = files(self.named.as_ref().ok_or_else(missing)?);
        vendor::load(|| self.load(&files))
    }

    /// Loads the first of these files that exists, unless one was loaded before.
    fn load(&self, files: &[PathBuf]) -> Result<Arc<Library>, Absence> {
        if let Some(library) = self.library.get() {
            return Ok(Arc::clone(library));
        }
        let mut found = None;
        for file in files {
            found = Library::load(file).map_err(|trouble| Absence::NoDevice { reason: trouble.0 })?;
            if found.is_some() {
                break;
            }
        }
        let tried = || Absence::LibraryMissing { tried: files.iter().map(|file| file.display().to_string()).collect() };
        let library = found.ok_or_else(tried)?;
        Ok(Arc::clone(self.library.get_or_init(|| library)))
    }
}

impl Backend for OnnxRuntimeBackend {
    fn api(&self) -> Api {
        ONNX_RUNTIME
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let library = self.library()?;
        let name = format!("ONNX Runtime {} on the processor's cores", library.version());
        let mut info = DeviceInfo::new(DeviceId { api: ONNX_RUNTIME, index: 0 }, name, DeviceKind::Cpu);
        info.shares_host_memory = true;
        info.runs_on_cores = true;
        info.computes_in_submit = true;
        info.driver_version = Some(library.version().to_owned());
        let features = vec![Capabilities::WHOLE_MODELS.to_owned()];
        info.capabilities = Capabilities { domains: vec![Domain::Extension], features };
        Ok(vec![info])
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        match op {
            Op::Extension(op) if op.downcast_ref::<LoadModel>().is_some() => Support::Yes,
            Op::Extension(op) if op.downcast_ref::<RunModel>().is_some() => Support::Yes,
            op => Support::unknown(op),
        }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable =
            |absence: Absence| Error::DeviceUnavailable { device: device.id, reason: absence.to_string() };
        let library = self.library().map_err(unavailable)?;
        let all = || std::thread::available_parallelism().map_or(1, |count| count.get());
        Ok(Box::new(OnnxRuntimeEngine::new(device.clone(), library, options.threads.unwrap_or_else(all))))
    }
}
