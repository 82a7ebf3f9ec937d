//! ONNX Runtime's execution providers: their names in settings, their options, and the hardware
//! that they reach.

use panoply_core::{Api, DeviceKind, Error, Result};

use crate::backend::ONNX_RUNTIME;

/// The names of all providers in settings.
pub const PROVIDERS: &str =
    "cpu, cuda, tensorrt, trt-rtx, openvino, coreml, qnn, dml, migraphx, vitisai, xnnpack, webgpu";

/// The prefix of the APIs of all providers but `cpu`.
const API_PREFIX: &str = "ort-";
/// The longest text of a provider, and the most options in it.
const TEXT_BYTES_MAX: usize = 4096;
const OPTIONS_MAX: usize = 64;

/// How a provider is added to the options of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adding {
    /// Nothing is called: every session has the provider.
    Always,
    /// By a function of its own.
    Cuda,
    TensorRt,
    /// By the function for all others, with this name.
    Named(&'static str),
}

/// A provider that this crate knows.
#[derive(Debug, PartialEq, Eq)]
struct KnownProvider {
    name: &'static str,
    /// The library's name of it.
    full_name: &'static str,
    adding: Adding,
    kind: DeviceKind,
    through: Option<Api>,
}

const fn known(
    name: &'static str,
    full_name: &'static str,
    adding: Adding,
    kind: DeviceKind,
    through: Option<Api>,
) -> KnownProvider {
    KnownProvider { name, full_name, adding, kind, through }
}

const OPENVINO: Api = Api::new("openvino");

static KNOWN: [KnownProvider; 12] = [
    known("cpu", "CPUExecutionProvider", Adding::Always, DeviceKind::Cpu, None),
    known("cuda", "CUDAExecutionProvider", Adding::Cuda, DeviceKind::DiscreteGpu, Some(Api::CUDA)),
    known("tensorrt", "TensorrtExecutionProvider", Adding::TensorRt, DeviceKind::DiscreteGpu, Some(Api::CUDA)),
    known(
        "trt-rtx",
        "NvTensorRTRTXExecutionProvider",
        Adding::Named("NvTensorRtRtx"),
        DeviceKind::DiscreteGpu,
        Some(Api::CUDA),
    ),
    known("openvino", "OpenVINOExecutionProvider", Adding::Named("OpenVINO"), DeviceKind::Cpu, Some(OPENVINO)),
    known("coreml", "CoreMLExecutionProvider", Adding::Named("CoreML"), DeviceKind::NeuralProcessor, None),
    known("qnn", "QNNExecutionProvider", Adding::Named("QNN"), DeviceKind::NeuralProcessor, None),
    known("dml", "DmlExecutionProvider", Adding::Named("DML"), DeviceKind::DiscreteGpu, None),
    known("migraphx", "MIGraphXExecutionProvider", Adding::Named("MIGraphX"), DeviceKind::DiscreteGpu, Some(Api::ROCM)),
    known("vitisai", "VitisAIExecutionProvider", Adding::Named("VitisAI"), DeviceKind::NeuralProcessor, None),
    known("xnnpack", "XnnpackExecutionProvider", Adding::Named("XNNPACK"), DeviceKind::Cpu, None),
    known("webgpu", "WebGpuExecutionProvider", Adding::Named("WebGPU"), DeviceKind::DiscreteGpu, None),
];

/// An execution provider with its options, written `cuda` or
/// `openvino:device_type=NPU,cache_dir=/var/cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    known: &'static KnownProvider,
    /// Options of the provider itself, as the library's documentation has them.
    pub(crate) options: Vec<(String, String)>,
    /// Options of the session, whose names have a point: `session.disable_cpu_ep_fallback=1`.
    pub(crate) session_options: Vec<(String, String)>,
}

impl Provider {
    /// The provider of the processor's cores, which every build of the library has.
    pub fn cpu() -> Provider {
        Provider { known: &KNOWN[0], options: Vec::new(), session_options: Vec::new() }
    }

    /// Parses a provider and its options. Unknown names are refused with the list of those known.
    pub fn parse(text: &str) -> Result<Provider> {
        const WHAT: &str = "an execution provider of ONNX Runtime";
        let wrong = |expected: &str| Error::invalid(WHAT, expected.to_owned(), format!("{text:?}"));
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::invalid(WHAT, format!("at most {TEXT_BYTES_MAX} bytes"), text.len()));
        }
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let known = KNOWN.iter().find(|known| known.name == name.trim());
        let known = known.ok_or_else(|| wrong(&format!("one of {PROVIDERS}")))?;
        let mut provider = Provider { known, options: Vec::new(), session_options: Vec::new() };
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let pair = option.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
            let pair = pair.filter(|(key, _)| !key.is_empty() && !text.contains('\0'));
            let pair = pair.ok_or_else(|| wrong("options such as cuda:device_id=0,gpu_mem_limit=1000000000"))?;
            let options = if pair.0.contains('.') { &mut provider.session_options } else { &mut provider.options };
            if options.len() >= OPTIONS_MAX {
                return Err(wrong(&format!("at most {OPTIONS_MAX} options")));
            }
            options.push(pair);
        }
        if provider.is_cpu() && !provider.options.is_empty() {
            return Err(wrong("cpu without options of its own; those of the session have a point in their names"));
        }
        Ok(provider)
    }

    /// The name in settings, such as `cuda`.
    pub fn name(&self) -> &'static str {
        self.known.name
    }

    /// The library's name, such as `CUDAExecutionProvider`.
    pub fn full_name(&self) -> &'static str {
        self.known.full_name
    }

    /// Whether it is the provider of the processor's cores.
    pub fn is_cpu(&self) -> bool {
        self.known.adding == Adding::Always
    }

    pub(crate) fn adding(&self) -> Adding {
        self.known.adding
    }

    /// The API of its device: `onnxruntime` of `cpu`, and such as `ort-cuda` of the others.
    pub fn api(&self) -> Api {
        api_of(self.known)
    }

    /// The kind of hardware, as far as the options say it.
    pub fn kind(&self) -> DeviceKind {
        let option = |name: &str| {
            let found = self.options.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.to_ascii_lowercase()).unwrap_or_default()
        };
        let wanted = match self.known.name {
            "openvino" => option("device_type"),
            "qnn" => option("backend_type"),
            _ => String::new(),
        };
        match wanted.as_str() {
            "cpu" => DeviceKind::Cpu,
            "gpu" => DeviceKind::IntegratedGpu,
            wanted if wanted.starts_with("gpu.") => DeviceKind::DiscreteGpu,
            "npu" | "htp" => DeviceKind::NeuralProcessor,
            _ => self.known.kind,
        }
    }

    /// The API behind the provider.
    pub fn through(&self) -> Option<Api> {
        self.known.through
    }
}

/// The APIs of all providers, `onnxruntime` first.
pub fn apis() -> Vec<Api> {
    KNOWN.iter().map(api_of).collect()
}

fn api_of(known: &KnownProvider) -> Api {
    // Every name is short enough, which a test checks.
    let api = || format!("{API_PREFIX}{}", known.name).parse().unwrap_or(ONNX_RUNTIME);
    if known.adding == Adding::Always { ONNX_RUNTIME } else { api() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_has_a_name_and_an_api_of_its_own() {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        assert_eq!(names.join(", "), PROVIDERS);
        let mut apis = apis();
        assert_eq!((apis[0], apis[1]), (ONNX_RUNTIME, Api::new("ort-cuda")));
        apis.sort();
        apis.dedup();
        assert_eq!(apis.len(), KNOWN.len());
    }

    #[test]
    fn options_are_the_providers_or_the_sessions() {
        let provider = Provider::parse("openvino: device_type=NPU, session.disable_cpu_ep_fallback=1").unwrap();
        assert_eq!((provider.name(), provider.kind()), ("openvino", DeviceKind::NeuralProcessor));
        assert_eq!(provider.options, [("device_type".to_owned(), "NPU".to_owned())]);
        assert_eq!(provider.session_options, [("session.disable_cpu_ep_fallback".to_owned(), "1".to_owned())]);
        let kind = |text: &str| Provider::parse(text).unwrap().kind();
        assert_eq!(kind("openvino"), DeviceKind::Cpu);
        assert_eq!(
            (kind("openvino:device_type=GPU"), kind("qnn")),
            (DeviceKind::IntegratedGpu, DeviceKind::NeuralProcessor)
        );
        assert_eq!((kind("qnn:backend_type=cpu"), kind("cuda")), (DeviceKind::Cpu, DeviceKind::DiscreteGpu));
    }

    #[test]
    fn unknown_names_are_refused_with_those_known() {
        for text in ["", "gpu", "CUDA", "cuda:device_id", "cuda:=1", "cpu:threads=2", "cuda:a=\0"] {
            assert!(Provider::parse(text).is_err(), "{text:?}");
        }
        let refused = Provider::parse("tpu").unwrap_err().to_string();
        assert!(refused.contains("cpu, cuda, tensorrt") && refused.contains("\"tpu\""), "{refused}");
        assert!(Provider::parse(&format!("cuda:a={}", "1".repeat(5000))).is_err());
        let many = (0..70).map(|number| format!("a{number}=1")).collect::<Vec<_>>().join(",");
        assert!(Provider::parse(&format!("cuda:{many}")).is_err());
    }
}
