//! Finds OpenVINO and its devices, and opens them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use panoply_core::vendor::{self, Loading};
use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support,
};
use panoply_whole_model::WholeModelEngine;
use panoply_whole_model::files::library_files;

use crate::engine::OpenDevice;
use crate::library::{Library, OpenVinoError};

/// The API name of the devices, which are listed as `openvino:0` and so on.
pub const OPENVINO: Api = Api::new("openvino");
/// The environment variable that names the library or its folder.
pub const VARIABLE: &str = "PANOPLY_OPENVINO";

/// The OpenVINO backend: one device for each device that the library shows.
pub struct OpenVinoBackend {
    named: Option<PathBuf>,
    library: OnceLock<Arc<Library>>,
    /// The library's names of the devices seen so far. The position is the device's index.
    seen: Mutex<Vec<String>>,
}

impl OpenVinoBackend {
    /// Uses the library that the variable [`VARIABLE`] names, if any.
    pub fn from_environment() -> OpenVinoBackend {
        OpenVinoBackend::of(std::env::var_os(VARIABLE).map(PathBuf::from).filter(|name| !name.as_os_str().is_empty()))
    }

    /// Uses this library, or the library in this folder.
    pub fn of(named: Option<PathBuf>) -> OpenVinoBackend {
        OpenVinoBackend { named, library: OnceLock::new(), seen: Mutex::default() }
    }

    fn library(&self) -> Result<Arc<Library>, Absence> {
        let missing = || Absence::NoDevice { reason: format!("{VARIABLE} names no library of OpenVINO") };
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
            found = Library::load(file).map_err(absent)?;
            if found.is_some() {
                break;
            }
        }
        let tried = || Absence::LibraryMissing { tried: files.iter().map(|file| file.display().to_string()).collect() };
        let library = found.ok_or_else(tried)?;
        Ok(Arc::clone(self.library.get_or_init(|| library)))
    }

    /// The index of a device of this name.
    fn index(&self, name: &str) -> u32 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.iter().position(|seen| seen == name);
        let index = known.unwrap_or_else(|| {
            seen.push(name.to_owned());
            seen.len() - 1
        });
        index as u32
    }

    fn describe(&self, library: &Library, name: &str) -> DeviceInfo {
        let property = |key: &str| library.property(name, key).ok();
        let full = property("FULL_DEVICE_NAME").unwrap_or_else(|| name.to_owned());
        let kind = kind_of(name, property("DEVICE_TYPE").as_deref());
        let id = DeviceId { api: OPENVINO, index: self.index(name) };
        let text = format!("OpenVINO {} on {name}: {full}", library.version());
        let mut info = DeviceInfo::new(id, text, kind);
        info.runs_on_cores = kind == DeviceKind::Cpu;
        info.shares_host_memory = kind == DeviceKind::Cpu;
        info.computes_in_submit = true;
        info.driver_version = Some(library.version().to_owned());
        let memory = ["GPU_DEVICE_TOTAL_MEM_SIZE", "NPU_DEVICE_TOTAL_MEM_SIZE"].into_iter().find_map(property);
        info.memory_total_bytes = memory.and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0);
        info.uuid = property("DEVICE_UUID").as_deref().and_then(uuid_of);
        let features = vec![Capabilities::WHOLE_MODELS.to_owned(), format!("openvino-{}", name.to_lowercase())];
        info.capabilities = Capabilities { domains: vec![Domain::Extension], features };
        info
    }
}

fn absent(error: OpenVinoError) -> Absence {
    Absence::NoDevice { reason: error.to_string() }
}

/// The files that a name may refer to.
fn files(named: &Path) -> Vec<PathBuf> {
    let is_it = |name: &str| name.starts_with("libopenvino_c.") || name == "openvino_c.dll";
    library_files(named, is_it, "libopenvino_c.so")
}

/// The kind of hardware behind a device's name: `CPU`, `GPU`, `GPU.1`, `NPU`.
fn kind_of(name: &str, device_type: Option<&str>) -> DeviceKind {
    match name.split('.').next().unwrap_or(name) {
        "CPU" => DeviceKind::Cpu,
        "GPU" if device_type == Some("discrete") => DeviceKind::DiscreteGpu,
        "GPU" => DeviceKind::IntegratedGpu,
        _ => DeviceKind::NeuralProcessor,
    }
}

/// A UUID of 32 hexadecimal digits.
fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok().filter(|number| text.len() == 32 && *number != 0)?;
    Some(number.to_be_bytes())
}

impl Backend for OpenVinoBackend {
    fn api(&self) -> Api {
        OPENVINO
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let library = self.library()?;
        let _loading = Loading::begin()?;
        let names = library.devices().map_err(absent)?;
        if names.is_empty() {
            return Err(Absence::NoDevice { reason: format!("OpenVINO {} shows none", library.version()) });
        }
        Ok(names.iter().map(|name| self.describe(&library, name)).collect())
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        panoply_whole_model::supports(op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: device.id, reason };
        let library = self.library().map_err(|absence| unavailable(absence.to_string()))?;
        let _loading = Loading::begin().map_err(|absence| unavailable(absence.to_string()))?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let name = seen.get(device.id.index as usize).cloned();
        drop(seen);
        let name = name.ok_or_else(|| unavailable("it was never found".to_owned()))?;
        let there = library.devices().map_err(|error| unavailable(error.to_string()))?;
        if !there.contains(&name) {
            return Err(unavailable(format!("OpenVINO shows {} and no {name}", there.join(", "))));
        }
        let all = || std::thread::available_parallelism().map_or(1, |count| count.get());
        let threads = options.threads.unwrap_or_else(all);
        let opened = OpenDevice { device: device.id, library, name, threads };
        Ok(Box::new(WholeModelEngine::new(device.clone(), opened)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_tell_the_hardware() {
        assert_eq!(kind_of("CPU", None), DeviceKind::Cpu);
        assert_eq!(kind_of("GPU.1", Some("discrete")), DeviceKind::DiscreteGpu);
        assert_eq!(
            (kind_of("GPU", Some("integrated")), kind_of("GPU.0", None)),
            (DeviceKind::IntegratedGpu, DeviceKind::IntegratedGpu)
        );
        assert_eq!(kind_of("NPU", None), DeviceKind::NeuralProcessor);
        assert_eq!(
            uuid_of("8680a7460c0000000002000000000000").map(|uuid| uuid[..3].to_vec()),
            Some(vec![0x86, 0x80, 0xa7])
        );
        for wrong in ["", "0", "00000000000000000000000000000000", "8680a7460c000000000200000000000g"] {
            assert_eq!(uuid_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_device_keeps_its_index() {
        let backend = OpenVinoBackend::of(None);
        assert_eq!((backend.index("CPU"), backend.index("NPU"), backend.index("CPU")), (0, 1, 0));
    }
}
