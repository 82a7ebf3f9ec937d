//! Finds ONNX Runtime and opens it. A backend is one execution provider, and has one device. The
//! provider of the processor's cores is always in the library; others are asked for by name.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support, vendor,
};
use panoply_whole_model::WholeModelEngine;

use crate::engine::OpenProvider;
use crate::library::{Library, OnnxRuntimeError, files};
use crate::provider::Provider;
use crate::sys;

/// The API name of the device on the processor's cores, which is listed as `onnxruntime:0`.
pub const ONNX_RUNTIME: Api = Api::new("onnxruntime");
/// The environment variable that names the library or its folder.
pub const VARIABLE: &str = "PANOPLY_ONNXRUNTIME";

/// ONNX Runtime with one execution provider.
pub struct OnnxRuntimeBackend {
    source: Arc<Source>,
    provider: Provider,
}

/// Where the library is. Backends of several providers share it.
struct Source {
    named: Option<PathBuf>,
    library: OnceLock<Arc<Library>>,
}

impl OnnxRuntimeBackend {
    /// Uses the library that the variable [`VARIABLE`] names, if any, on the processor's cores.
    pub fn from_environment() -> OnnxRuntimeBackend {
        OnnxRuntimeBackend::of(named_by_environment())
    }

    /// Uses this library, or the library in this folder, on the processor's cores.
    pub fn of(named: Option<PathBuf>) -> OnnxRuntimeBackend {
        let source = Arc::new(Source { named, library: OnceLock::new() });
        OnnxRuntimeBackend { source, provider: Provider::cpu() }
    }

    /// A backend for each of these providers, of the library that [`VARIABLE`] names. Fails for an
    /// unknown provider, and for one that is named twice.
    pub fn with_providers<T: AsRef<str>>(providers: &[T]) -> Result<Vec<OnnxRuntimeBackend>> {
        OnnxRuntimeBackend::of(named_by_environment()).for_providers(providers)
    }

    /// A backend of the same library for each of these providers, such as `cuda` or
    /// `openvino:device_type=NPU`.
    pub fn for_providers<T: AsRef<str>>(&self, providers: &[T]) -> Result<Vec<OnnxRuntimeBackend>> {
        let mut backends: Vec<OnnxRuntimeBackend> = Vec::new();
        for text in providers {
            let provider = Provider::parse(text.as_ref())?;
            if backends.iter().any(|backend| backend.provider.name() == provider.name()) {
                let got = format!("{} twice", provider.name());
                return Err(Error::invalid("execution providers of ONNX Runtime", "each once", got));
            }
            backends.push(OnnxRuntimeBackend { source: Arc::clone(&self.source), provider });
        }
        Ok(backends)
    }

    fn library(&self) -> Result<Arc<Library>, Absence> {
        let missing = || Absence::NoDevice { reason: format!("{VARIABLE} names no library of ONNX Runtime") };
        let files = files(self.source.named.as_ref().ok_or_else(missing)?);
        vendor::load(|| self.load(&files))
    }

    /// Loads the first of these files that exists, unless one was loaded before, and checks that
    /// the provider can be used.
    fn load(&self, files: &[PathBuf]) -> Result<Arc<Library>, Absence> {
        let failed = |error: OnnxRuntimeError| Absence::NoDevice { reason: error.to_string() };
        let library = match self.source.library.get() {
            Some(library) => Arc::clone(library),
            None => {
                let mut found = None;
                for file in files {
                    found = Library::load(file).map_err(failed)?;
                    if found.is_some() {
                        break;
                    }
                }
                let shown = |file: &PathBuf| file.display().to_string();
                let tried = || Absence::LibraryMissing { tried: files.iter().map(shown).collect() };
                let library = found.ok_or_else(tried)?;
                Arc::clone(self.source.library.get_or_init(|| library))
            }
        };
        if !self.provider.is_cpu() {
            self.check(&library)?;
        }
        Ok(library)
    }

    /// Whether the library has the provider, and can load the libraries that the provider needs.
    fn check(&self, library: &Library) -> Result<(), Absence> {
        let (name, version) = (self.provider.name(), library.version());
        let absent = |reason: String| Absence::NoDevice { reason };
        let failed = |error: OnnxRuntimeError| absent(format!("ONNX Runtime {version}, provider {name}: {error}"));
        let there = library.providers().map_err(failed)?;
        if !there.iter().any(|there| there == self.provider.full_name()) {
            let there = there.join(", ");
            return Err(absent(format!(
                "ONNX Runtime {version} was built without the provider {name}; it has {there}"
            )));
        }
        if library.assignment.is_none() {
            let expected = format!("API {}, which ONNX Runtime 1.24 introduced", sys::ASSIGNMENT_VERSION);
            return Err(absent(format!(
                "ONNX Runtime {version} cannot tell which nodes the provider {name} runs: expected {expected}"
            )));
        }
        library.check(&self.provider).map_err(failed)
    }

    fn describe(&self, library: &Library) -> DeviceInfo {
        let provider = &self.provider;
        let version = library.version();
        let name = match provider.is_cpu() {
            true => format!("ONNX Runtime {version} on the processor's cores"),
            false => format!("ONNX Runtime {version} with the provider {}", provider.full_name()),
        };
        let mut info = DeviceInfo::new(DeviceId { api: provider.api(), index: 0 }, name, provider.kind());
        info.runs_on_cores = info.kind == DeviceKind::Cpu;
        info.shares_host_memory = provider.is_cpu();
        info.computes_in_submit = true;
        info.through = provider.through();
        info.driver_version = Some(version.to_owned());
        let features = vec![Capabilities::WHOLE_MODELS.to_owned(), format!("provider-{}", provider.name())];
        info.capabilities = Capabilities { domains: vec![Domain::Extension], features };
        info
    }
}

fn named_by_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from).filter(|name| !name.as_os_str().is_empty())
}

impl Backend for OnnxRuntimeBackend {
    fn api(&self) -> Api {
        self.provider.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        Ok(vec![self.describe(&*self.library()?)])
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        panoply_whole_model::supports(op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable =
            |absence: Absence| Error::DeviceUnavailable { device: device.id, reason: absence.to_string() };
        let library = self.library().map_err(unavailable)?;
        let all = || std::thread::available_parallelism().map_or(1, |count| count.get());
        let provider = OpenProvider {
            device: device.id,
            library,
            provider: self.provider.clone(),
            threads: options.threads.unwrap_or_else(all),
        };
        Ok(Box::new(WholeModelEngine::new(device.clone(), provider)))
    }
}
