//! Scripts: the behaviour of a virtual device for each op that reaches it.

use std::collections::BTreeMap;
use std::time::Duration;

use panoply_core::{DeviceKind, Op, PciAddress};

use crate::random::Random;

/// One way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The op fails; the device goes on.
    Error,
    /// The op takes this much longer.
    Slow(Duration),
    /// The device never answers the op, nor those behind it.
    Hang,
    /// The driver's call does not return for this long: the worker's thread is stuck.
    Block(Duration),
    /// The device is gone: the op and all behind it fail until it is opened again.
    Lost,
    /// The answer is wrong: one bit of it is flipped.
    WrongAnswer,
    /// The engine panics.
    Panic,
    /// The device has no memory left for the op.
    OutOfMemory,
    /// The engine forgets the op and never speaks of it again.
    Forget,
    /// The engine answers the op twice.
    Twice,
}

/// How often each fault happens, in a million ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Each field is the rate of the fault of the same name.
pub struct Rates {
    pub error: u32,
    pub hang: u32,
    pub block: u32,
    pub lost: u32,
    pub panic: u32,
    pub out_of_memory: u32,
    pub forget: u32,
    pub twice: u32,
}

/// A virtual device's behaviour.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(super) latency: Duration,
    pub(super) memory_bytes: Option<u64>,
    pub(super) resident: bool,
    pub(super) faults_at: BTreeMap<u64, Fault>,
    pub(super) random: Option<(u64, Rates)>,
    pub(super) block_time: Duration,
    pub(super) failing_opens: u32,
    pub(super) failing_opens_after: u64,
    pub(super) per_kib: Duration,
    pub(super) cost: Option<fn(&Op) -> Duration>,
    pub(super) in_host_memory: bool,
    pub(super) link: Option<Link>,
    pub(super) lacking: Vec<&'static str>,
    pub(super) compile_time: Option<Duration>,
    pub(super) fused: bool,
    pub(super) kind: Option<DeviceKind>,
    pub(super) pci_address: Option<PciAddress>,
}

/// How long data takes to a virtual device and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) latency: Duration,
    pub(super) per_mib: Duration,
}

impl Link {
    pub(super) fn time(&self, bytes: u64) -> Duration {
        if bytes == 0 { Duration::ZERO } else { self.latency + self.per_mib.mul_f64(bytes as f64 / (1 << 20) as f64) }
    }
}

impl Script {
    /// A device that answers at once and never fails.
    pub fn new() -> Script {
        Script::default()
    }

    /// Each op takes this long, one after the other.
    pub fn latency(mut self, latency: Duration) -> Script {
        self.latency = latency;
        self
    }

    /// Each op takes this much longer for every KiB of its inputs.
    pub fn per_kib(mut self, time: Duration) -> Script {
        self.per_kib = time;
        self
    }

    /// Each op takes longer by `cost` of the op.
    pub fn cost(mut self, cost: fn(&Op) -> Duration) -> Script {
        self.cost = Some(cost);
        self
    }

    /// The device computes in the host's memory, as the processor's cores do: nothing crosses a
    /// link.
    pub fn in_host_memory(mut self) -> Script {
        self.in_host_memory = true;
        self
    }

    /// Data takes so long to the device and back, and the device tells.
    pub fn link(mut self, latency: Duration, per_mib: Duration) -> Script {
        self.link = Some(Link { latency, per_mib });
        self
    }

    /// The device does not run ops of this name.
    pub fn without(mut self, op: &'static str) -> Script {
        self.lacking.push(op);
        self
    }

    /// The first op of each name needs a kernel that takes so long to compile.
    pub fn compiles(mut self, time: Duration) -> Script {
        self.compile_time = Some(time);
        self
    }

    /// Ops with equal batch keys that arrive together run as one, in the time of one.
    pub fn fused(mut self) -> Script {
        self.fused = true;
        self
    }

    /// Sets the kind of hardware that the device reports.
    pub fn kind(mut self, kind: DeviceKind) -> Script {
        self.kind = Some(kind);
        self
    }

    /// Where it pretends to sit on the PCI bus.
    pub fn pci_address(mut self, address: PciAddress) -> Script {
        self.pci_address = Some(address);
        self
    }

    /// The device has this much memory.
    pub fn memory_bytes(mut self, bytes: u64) -> Script {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Outputs stay in the device's memory until they are transferred.
    pub fn resident(mut self) -> Script {
        self.resident = true;
        self
    }

    /// The op with this number (counted from 0 over the device's life) meets this fault.
    pub fn fault_at(mut self, number: u64, fault: Fault) -> Script {
        self.faults_at.insert(number, fault);
        self
    }

    /// Faults happen at random, the same for the same seed. A [`Fault::Block`] lasts for
    /// `block_time`.
    pub fn random_faults(mut self, seed: u64, rates: Rates, block_time: Duration) -> Script {
        self.random = Some((seed, rates));
        self.block_time = block_time;
        self
    }

    /// The first `times` attempts to open the device fail.
    pub fn failing_opens(mut self, times: u32) -> Script {
        self.failing_opens = times;
        self
    }

    /// Once it has been opened `opens` times, the device cannot be opened again.
    pub fn gone_after_opens(mut self, opens: u64) -> Script {
        self.failing_opens_after = opens;
        self
    }

    /// The fault that hits the op with this number.
    pub(super) fn fault(&self, number: u64) -> Option<Fault> {
        if let Some(fault) = self.faults_at.get(&number) {
            return Some(*fault);
        }
        let (seed, rates) = self.random?;
        let draw = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9)).below(1_000_000) as u32;
        let mut below = 0;
        let table = [
            (rates.error, Fault::Error),
            (rates.hang, Fault::Hang),
            (rates.block, Fault::Block(self.block_time)),
            (rates.lost, Fault::Lost),
            (rates.panic, Fault::Panic),
            (rates.out_of_memory, Fault::OutOfMemory),
            (rates.forget, Fault::Forget),
            (rates.twice, Fault::Twice),
        ];
        table.into_iter().find_map(|(rate, fault)| {
            below += rate;
            (draw < below).then_some(fault)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_faults_are_repeatable_and_about_as_frequent_as_asked() {
        let rates = Rates { error: 100_000, ..Rates::default() };
        let script = Script::new().random_faults(7, rates, Duration::ZERO).fault_at(3, Fault::Hang);
        assert_eq!(script.fault(3), Some(Fault::Hang));
        let faults = |script: &Script| (0..10_000).filter(|number| script.fault(*number) == Some(Fault::Error)).count();
        let count = faults(&script);
        assert!((800..1200).contains(&count), "{count}");
        assert_eq!(count, faults(&script.clone()));
    }
}
