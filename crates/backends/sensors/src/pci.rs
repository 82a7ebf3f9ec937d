//! The sensors that Linux's drivers show for a card: hwmon's temperature and power, amdgpu's load
//! and memory, and the throttling of i915 and xe. The existing files are found once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use panoply_core::{Health, MemoryUse, PciAddress};

/// The most entries of a folder that are looked at.
const ENTRIES_MAX: usize = 256;
/// Sensors of the memory chips, which are meant to be hotter than the limits of the cores.
const MEMORY_SENSORS: [&str; 2] = ["mem", "vram"];

/// One card, and the files that its values are read from.
pub struct PciCard {
    address: PciAddress,
    vendor: Option<u32>,
    temperatures: Vec<PathBuf>,
    /// Microwatts.
    power: Option<PathBuf>,
    /// Microjoules, of drivers that report no power.
    energy: Option<PathBuf>,
    last_energy: Option<(Instant, u64)>,
    busy_percent: PathBuf,
    /// Each contains a number, which is not zero while the card is throttled.
    throttles: Vec<PathBuf>,
    memory_total: PathBuf,
    memory_used: PathBuf,
}

impl PciCard {
    /// The card at this address below `root`, which is `/` except in tests; or why it is not found.
    pub fn find(root: &Path, address: PciAddress) -> Result<PciCard, String> {
        let folder = root.join(format!("sys/bus/pci/devices/{address}"));
        if !folder.is_dir() {
            return Err(format!("there is no folder /sys/bus/pci/devices/{address}"));
        }
        let monitors: Vec<PathBuf> = entries(&folder.join("hwmon"), "hwmon");
        let first = |names: &[&str]| {
            let files = names.iter().flat_map(|name| monitors.iter().map(move |monitor| monitor.join(name)));
            files.into_iter().find(|file| number(file).is_some())
        };
        Ok(PciCard {
            address,
            vendor: fs::read_to_string(folder.join("vendor")).ok().and_then(|text| hex(text.trim())),
            temperatures: monitors.iter().flat_map(|monitor| temperatures(monitor)).collect(),
            power: first(&["power1_average", "power1_input"]),
            energy: first(&["energy1_input"]),
            last_energy: None,
            busy_percent: folder.join("gpu_busy_percent"),
            throttles: throttles(&folder),
            memory_total: folder.join("mem_info_vram_total"),
            memory_used: folder.join("mem_info_vram_used"),
        })
    }

    /// The number of the card's vendor.
    pub fn vendor(&self) -> Option<u32> {
        self.vendor
    }

    /// The current values.
    pub fn health(&mut self) -> Health {
        let hottest = self.temperatures.iter().filter_map(|file| number(file)).max();
        let absent = || format!("the driver of {} shows no temperature (hwmon)", self.address);
        let throttles: Vec<u64> = self.throttles.iter().filter_map(|file| number(file)).collect();
        let memory = number(&self.memory_total).zip(number(&self.memory_used));
        Health {
            temperature_celsius: hottest.map(|millidegrees| millidegrees as f32 / 1e3),
            utilisation_percent: number(&self.busy_percent).map(|percent| percent as f32),
            throttled: (!throttles.is_empty()).then(|| throttles.iter().any(|reason| *reason != 0)),
            memory: memory.map(|(total, used)| MemoryUse::new(total, total.saturating_sub(used))),
            sensors_absent: hottest.is_none().then(absent),
            power_watts: self.power_watts(),
            ..Health::default()
        }
    }

    /// The power now, or the average since the last reading.
    fn power_watts(&mut self) -> Option<f32> {
        if let Some(microwatts) = self.power.as_deref().and_then(number) {
            return Some(microwatts as f32 / 1e6);
        }
        let microjoules = number(self.energy.as_deref()?)?;
        let now = Instant::now();
        let (then, before) = self.last_energy.replace((now, microjoules))?;
        let seconds = (now - then).as_secs_f32();
        // The counter wraps; no power is reported if it has.
        let used = microjoules.checked_sub(before)?;
        (seconds > 0.0).then(|| used as f32 / 1e6 / seconds)
    }
}

/// The temperature files of a monitor, without those of memory chips.
fn temperatures(monitor: &Path) -> Vec<PathBuf> {
    let inputs = entries(monitor, "temp").into_iter().filter_map(|input| {
        let name = input.file_name()?.to_str()?.strip_suffix("_input")?.to_owned();
        let label = fs::read_to_string(monitor.join(format!("{name}_label"))).unwrap_or_default();
        (!MEMORY_SENSORS.contains(&label.trim())).then_some(input)
    });
    inputs.collect()
}

/// The files that tell whether a card is throttled: those of i915, and those of xe.
fn throttles(folder: &Path) -> Vec<PathBuf> {
    let older = entries(&folder.join("drm"), "card").into_iter().flat_map(|card| entries(&card.join("gt"), "gt"));
    let older = older.map(|gt| gt.join("throttle_reason_status"));
    let newer = entries(folder, "tile").into_iter().flat_map(|tile| entries(&tile, "gt"));
    let newer = newer.flat_map(|gt| entries(&gt, "freq")).map(|freq| freq.join("throttle/status"));
    older.chain(newer).filter(|file| number(file).is_some()).collect()
}

/// The entries of a folder whose names begin with `prefix`, in order.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(listed) = fs::read_dir(folder) else { return Vec::new() };
    let begins =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(prefix));
    let mut found: Vec<PathBuf> = listed.take(ENTRIES_MAX).flatten().map(|entry| entry.path()).filter(begins).collect();
    found.sort();
    found
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
