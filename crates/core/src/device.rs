//! Devices: the hardware that one API reaches, and its description.

use std::fmt;
use std::str::FromStr;

pub use crate::api::Api;
pub use crate::device_id::DeviceId;
use crate::error::Error;
use crate::op::Domain;

/// The sort of hardware that a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Processor cores.
    Cpu,
    /// A graphics processor with memory of its own.
    DiscreteGpu,
    /// A graphics processor that shares the host's memory.
    IntegratedGpu,
    /// A graphics API implemented on the CPU.
    SoftwareGpu,
    /// A tensor processor.
    Tpu,
    /// Programmable logic.
    Fpga,
    /// A crypto or compression accelerator.
    CryptoAccelerator,
    /// A network card or data processing unit.
    NetworkProcessor,
    /// A video encoder or decoder.
    VideoEngine,
    /// A neural processor (NPU) of a system on a chip, for models alone.
    NeuralProcessor,
}

impl DeviceKind {
    /// The name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::DiscreteGpu => "gpu",
            DeviceKind::IntegratedGpu => "integrated gpu",
            DeviceKind::SoftwareGpu => "software gpu",
            DeviceKind::Tpu => "tpu",
            DeviceKind::Fpga => "fpga",
            DeviceKind::CryptoAccelerator => "crypto accelerator",
            DeviceKind::NetworkProcessor => "network processor",
            DeviceKind::VideoEngine => "video engine",
            DeviceKind::NeuralProcessor => "npu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A PCI address: domain, bus, device and function. Written `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// The PCI domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The device's function, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function))
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<PciAddress, Error> {
        let hex = |digits: &str, lengths: std::ops::RangeInclusive<usize>| {
            let valid = lengths.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            valid.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let parse = || {
            let mut parts = text.splitn(3, ':');
            let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let (device, function) = rest.split_once('.')?;
            let address = PciAddress {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)? as u8,
                device: hex(device, 2..=2)? as u8,
                function: hex(function, 1..=1)? as u8,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| Error::invalid("PCI address", "domain:bus:device.function, such as 0000:3b:00.0", text))
    }
}

/// The memory of a device at one moment. No more is available than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    total_bytes: u64,
    available_bytes: u64,
}

impl MemoryUse {
    /// A measurement. If a driver reports more available bytes than there are, all count as
    /// available.
    pub fn new(total_bytes: u64, available_bytes: u64) -> MemoryUse {
        MemoryUse { total_bytes, available_bytes: available_bytes.min(total_bytes) }
    }

    /// The device's memory.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The part that can still be allocated.
    pub fn available_bytes(&self) -> u64 {
        self.available_bytes
    }

    /// The part in use, by this program and others.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes - self.available_bytes
    }

    /// The share in use, from 0 to 100. A device without memory uses none.
    pub fn used_percent(&self) -> f32 {
        (self.used_bytes() as f64 / self.total_bytes.max(1) as f64 * 100.0) as f32
    }

    /// The same memory if another source measured it too: neither source sees every allocation, so
    /// the smaller available amount counts.
    pub fn at_most(self, other: Option<MemoryUse>) -> MemoryUse {
        let available = other.map_or(u64::MAX, |other| other.available_bytes);
        MemoryUse::new(self.total_bytes, self.available_bytes.min(available))
    }
}

/// The description of a device. Values that the API does not report are `None`, never zero.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The device's id, unique in this process.
    pub id: DeviceId,
    /// The name that the driver reports.
    pub name: String,
    /// The sort of hardware.
    pub kind: DeviceKind,
    /// Total memory in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Available memory in bytes. A backend may leave it out of its description: an opened device
    /// reports its memory in [`Health::memory`](crate::Health::memory).
    pub memory_available_bytes: Option<u64>,
    /// The driver's version, in the driver's own format.
    pub driver_version: Option<String>,
    /// The compute capability or its equivalent: `9.0`, `gfx942`, `avx512`.
    pub compute_capability: Option<String>,
    /// The most threads in one block or workgroup.
    pub threads_per_block_max: Option<u32>,
    /// The most bytes of shared (workgroup) memory in one block.
    pub shared_memory_bytes_max: Option<u64>,
    /// Cores, multiprocessors or compute units.
    pub compute_units: Option<u32>,
    /// Address of the device on the PCI bus.
    pub pci_address: Option<PciAddress>,
    /// The identity of the hardware, the same through every API that reaches it.
    pub uuid: Option<[u8; 16]>,
    /// The API between the device's own API and the driver, if any: wgpu reaches its adapters
    /// through Vulkan or Metal.
    pub through: Option<Api>,
    /// The NUMA node of the device.
    pub numa_node: Option<u32>,
    /// Whether its ops read and write the host's memory directly, so that no data is moved.
    pub shares_host_memory: bool,
    /// Whether its engine computes in `submit`: the device is the calling thread, and the time that
    /// the engine reports for an op belongs to that op alone.
    pub computes_in_submit: bool,
    /// Whether it computes on the processor's cores, as the CPU backend and software graphics APIs
    /// do. It then competes for the cores with other such devices.
    pub runs_on_cores: bool,
    /// Whether it can be opened only once at a time: pools add no workers of their own to it.
    pub is_exclusive: bool,
    /// Whether it is a virtual device of the test kit.
    pub is_virtual: bool,
    /// The capabilities of the device.
    pub capabilities: Capabilities,
}

/// The capabilities of a device, in words that a person or a filter can read. Ask the backend
/// whether the device runs a particular op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// The domains in which the device runs at least one op.
    pub domains: Vec<Domain>,
    /// Features by name: `avx512`, `amx-bf16`, `tensor-cores`, `subgroups`.
    pub features: Vec<String>,
}

impl Capabilities {
    /// The feature of devices that may flush subnormal numbers: their arithmetic treats a subnormal
    /// f32 or bf16 operand or result as zero of the same sign (rule 11 of [`crate::expr`]).
    pub const FLUSHES_SUBNORMALS: &str = "flushes-subnormals";
    /// The feature of devices that keep their clocks up while they wait for ops. Other GPUs answer
    /// the first ops after a pause more slowly.
    pub const KEEPS_CLOCKS: &str = "keeps-clocks";
    /// The feature of devices that load a model's file and run the whole model as one op. They run
    /// none of Panoply's own ops.
    pub const WHOLE_MODELS: &str = "whole-models";

    /// Whether the device has the feature of this name.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|own| own == feature)
    }
}

impl DeviceInfo {
    /// A device of which only the id, the name and the kind are known.
    pub fn new(id: DeviceId, name: impl Into<String>, kind: DeviceKind) -> DeviceInfo {
        DeviceInfo {
            id,
            name: name.into(),
            kind,
            memory_total_bytes: None,
            memory_available_bytes: None,
            driver_version: None,
            compute_capability: None,
            threads_per_block_max: None,
            shared_memory_bytes_max: None,
            compute_units: None,
            pci_address: None,
            uuid: None,
            through: None,
            numa_node: None,
            shares_host_memory: false,
            computes_in_submit: false,
            runs_on_cores: false,
            is_exclusive: false,
            is_virtual: false,
            capabilities: Capabilities::default(),
        }
    }

    /// Puts a newer measurement of the memory into the description.
    pub fn set_memory(&mut self, memory: MemoryUse) {
        self.memory_total_bytes = Some(memory.total_bytes());
        self.memory_available_bytes = Some(memory.available_bytes());
    }

    /// Bytes of memory in use, if the total and the available amount are known.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        Some(self.memory_total_bytes?.saturating_sub(self.memory_available_bytes?))
    }

    /// Share of the memory in use, from 0 to 100. `None` if it is unknown, or if the device has no
    /// memory.
    pub fn memory_usage_percent(&self) -> Option<f64> {
        let total = self.memory_total_bytes.filter(|total| *total > 0)?;
        Some(self.memory_used_bytes()? as f64 / total as f64 * 100.0)
    }

    /// Whether both are the same piece of hardware, seen through two APIs. Devices without a UUID
    /// or an address are different, except that all devices on the processor's cores are the
    /// processor.
    pub fn is_same_hardware(&self, other: &DeviceInfo) -> bool {
        let same_uuid = self.uuid.is_some() && self.uuid == other.uuid;
        let same_address = self.pci_address.is_some() && self.pci_address == other.pci_address;
        let both_on_cores = self.runs_on_cores && other.runs_on_cores;
        self.id.api != other.id.api && (same_uuid || same_address || both_on_cores)
    }

    /// Whether this is the processor itself, whose ops are the last resort of every fallback.
    pub fn is_processor(&self) -> bool {
        self.kind == DeviceKind::Cpu && self.shares_host_memory
    }

    /// Whether this is a virtual device of the test kit.
    pub fn is_simulated(&self) -> bool {
        self.is_virtual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_addresses_round_trip() {
        for text in ["cpu:0", "cuda:3", "simulated:12"] {
            assert_eq!(text.parse::<DeviceId>().unwrap().to_string(), text);
        }
        assert_eq!("cpu".parse::<DeviceId>().unwrap().to_string(), "cpu:0");
        assert_eq!("0000:3b:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:3b:00.0");
        assert_eq!("10000:e1:1f.7".parse::<PciAddress>().unwrap().to_string(), "10000:e1:1f.7");
        for text in ["", "cpu:", "cpu:-1", "GPU:0"] {
            assert!(text.parse::<DeviceId>().is_err(), "{text}");
        }
        for text in ["", "3b:00.0", "0000:3b:20.0", "0000:3b:00.8", "a:b:c:d.0", "+000:3b:00.0", "0000:3b:00.é"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_adapter_on_the_processors_cores_is_the_processor() {
        let device = |api, index, runs_on_cores| {
            let mut info = DeviceInfo::new(DeviceId { api, index }, "some device", DeviceKind::Cpu);
            info.runs_on_cores = runs_on_cores;
            info
        };
        let cpu = device(Api::CPU, 0, true);
        assert!(cpu.is_same_hardware(&device(Api::WGPU, 0, true)));
        assert!(!cpu.is_same_hardware(&device(Api::WGPU, 0, false)));
        assert!(!cpu.is_same_hardware(&device(Api::CPU, 1, true)), "another NUMA node");
        assert!(!cpu.is_same_hardware(&device(Api::SIMULATED, 0, false)), "made up to be apart");
    }

    #[test]
    fn no_more_memory_is_available_than_there_is() {
        let memory = MemoryUse::new(1000, 1001);
        assert_eq!((memory.available_bytes(), memory.used_bytes(), memory.used_percent()), (1000, 0, 0.0));
        let memory = MemoryUse::new(1000, 250);
        assert_eq!((memory.used_bytes(), memory.used_percent()), (750, 75.0));
        assert_eq!(MemoryUse::new(0, 7).used_percent(), 0.0);
        assert_eq!(memory.at_most(Some(MemoryUse::new(2000, 100))).available_bytes(), 100);
        assert_eq!(memory.at_most(None), memory);
    }

    #[test]
    fn memory_figures() {
        let id = DeviceId { api: Api::CPU, index: 0 };
        let mut info = DeviceInfo::new(id, "test", DeviceKind::Cpu);
        assert_eq!(info.memory_usage_percent(), None);
        info.memory_total_bytes = Some(1000);
        info.memory_available_bytes = Some(250);
        assert_eq!(info.memory_used_bytes(), Some(750));
        assert_eq!(info.memory_usage_percent(), Some(75.0));
        info.memory_total_bytes = Some(0);
        assert_eq!(info.memory_usage_percent(), None);
        info.set_memory(MemoryUse::new(2000, 500));
        assert_eq!((info.memory_used_bytes(), info.memory_usage_percent()), (Some(1500), Some(75.0)));
    }
}
