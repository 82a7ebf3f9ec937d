//! Finds the algorithms of the kernel. The kernel is the only device.

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, FirstGuess, Op, OpenOptions,
    Result, Support,
};

use crate::engine::AfAlgEngine;
use crate::ops::{self, Algorithm};
use crate::socket::Transform;

/// The API name of the device, which is listed as `af_alg:0`.
pub const AF_ALG: Api = Api::new("af_alg");
/// The environment variable that enables the device.
pub const VARIABLE: &str = "PANOPLY_AF_ALG";

/// Estimated cost of an op (sockets and key), and of a message (two system calls with the kernel's
/// set-up).
const OP_NS: f32 = 20_000.0;
const MESSAGE_NS: f32 = 4_000.0;
/// Estimated cost of a byte: the kernel's arithmetic and the copy into its memory. It is higher
/// than for a fast kernel. The router should rather miss an opportunity than move the CPU backend's
/// work to a slower device. It learns the real costs from ops that request the device explicitly.
const BYTE_NS: f32 = 2.0;

/// The kernel's crypto, if enabled.
pub struct AfAlgBackend {
    is_wanted: bool,
}

impl AfAlgBackend {
    /// Enables the device if the variable [`VARIABLE`] is `1`.
    pub fn from_environment() -> AfAlgBackend {
        AfAlgBackend { is_wanted: std::env::var_os(VARIABLE).is_some_and(|value| value == "1") }
    }

    /// Enables the device on every kernel that has it.
    pub fn new() -> AfAlgBackend {
        AfAlgBackend { is_wanted: true }
    }
}

impl Default for AfAlgBackend {
    fn default() -> AfAlgBackend {
        AfAlgBackend::new()
    }
}

impl Backend for AfAlgBackend {
    fn api(&self) -> Api {
        AF_ALG
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        if !self.is_wanted {
            let reason = format!("{VARIABLE}=1 asks for it; on the same cores the CPU backend is faster");
            return Err(Absence::NoDevice { reason });
        }
        let (mut features, mut reason) = (Vec::new(), String::new());
        for algorithm in Algorithm::ALL {
            match Transform::bind(algorithm.family(), algorithm.name()) {
                Ok(_) => features.push(algorithm.name().to_owned()),
                Err(trouble) => reason = trouble.to_string(),
            }
        }
        if features.is_empty() {
            return Err(Absence::NoDevice { reason });
        }
        let id = DeviceId { api: AF_ALG, index: 0 };
        let mut info = DeviceInfo::new(id, "Linux kernel (AF_ALG)", DeviceKind::CryptoAccelerator);
        info.shares_host_memory = true;
        info.runs_on_cores = true;
        info.computes_in_submit = true;
        info.capabilities = Capabilities { domains: vec![Domain::Crypto], features };
        Ok(vec![info])
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        match ops::refusal(op, &|algorithm| device.capabilities.features.iter().any(|name| name == algorithm.name())) {
            None => Support::Yes,
            Some(refusal) => refusal,
        }
    }

    fn first_guess(&self, _device: &DeviceInfo, op: &Op) -> FirstGuess {
        let overhead_ns = OP_NS + MESSAGE_NS * ops::message_count(op) as f32;
        FirstGuess { overhead_ns, work_unit_ns: BYTE_NS }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(AfAlgEngine::new(device.clone())))
    }
}
