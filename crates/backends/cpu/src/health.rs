//! The processor's health as reported by the kernel: temperature from hwmon, power from RAPL,
//! throttling from the processor's own counters, memory from `meminfo` and the control group. The
//! existing files are found once; values that cannot be read are `None`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use panoply_core::{DeviceInfo, Health, MemoryUse};
use panoply_placement::Memory;

/// The drivers whose sensors are in the processor.
const PROCESSOR_SENSORS: [&str; 6] = ["coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "apple_soc"];
/// Maximum number of sensors and packages.
const FILES_MAX: usize = 64;

/// The files from which each value is read.
pub(crate) struct Sensors {
    temperatures: Vec<PathBuf>,
    energies: Vec<PathBuf>,
    throttles: Vec<PathBuf>,
    /// The folder that `sys` and `proc` lie in.
    root: PathBuf,
    numa_node: Option<u32>,
    last_energy: Option<(Instant, u64)>,
    last_throttles: Option<u64>,
}

impl Sensors {
    /// Finds the sensors below `root`, which is `/` except in tests.
    pub(crate) fn find(root: &Path, device: &DeviceInfo) -> Sensors {
        let throttle = root.join("sys/devices/system/cpu/cpu0/thermal_throttle");
        let throttles = ["core_throttle_count", "package_throttle_count"].map(|name| throttle.join(name));
        Sensors {
            temperatures: temperatures(root),
            energies: energies(root),
            throttles: throttles.into_iter().filter(|file| file.exists()).collect(),
            root: root.to_owned(),
            numa_node: device.numa_node,
            last_energy: None,
            last_throttles: None,
        }
    }

    /// Reads the current health.
    pub(crate) fn read(&mut self) -> Health {
        let hottest = self.temperatures.iter().filter_map(|file| number(file)).max();
        let memory = Memory::read(&self.root, self.numa_node);
        let absent = || "the kernel shows no temperature of the processor (hwmon)".to_owned();
        Health {
            temperature_celsius: hottest.map(|millidegrees| millidegrees as f32 / 1000.0),
            power_watts: self.power_watts(),
            utilisation_percent: None,
            memory: memory.total_bytes.zip(memory.available_bytes).map(|(total, free)| MemoryUse::new(total, free)),
            throttled: self.throttled(),
            queue_depth: None,
            fault: None,
            sensors_absent: hottest.is_none().then(absent),
        }
    }

    /// The average power since the last reading.
    fn power_watts(&mut self) -> Option<f32> {
        let energies: Option<Vec<u64>> = self.energies.iter().map(|file| number(file)).collect();
        let microjoules: u64 = energies.filter(|energies| !energies.is_empty())?.into_iter().sum();
        let now = Instant::now();
        let (then, before) = self.last_energy.replace((now, microjoules))?;
        let seconds = (now - then).as_secs_f32();
        // The counters wrap; no power is reported if they have.
        let used = microjoules.checked_sub(before)?;
        (seconds > 0.0).then(|| used as f32 / 1e6 / seconds)
    }

    /// Whether the processor throttled itself since the last reading.
    fn throttled(&mut self) -> Option<bool> {
        let counts: Option<Vec<u64>> = self.throttles.iter().map(|file| number(file)).collect();
        let count: u64 = counts.filter(|counts| !counts.is_empty())?.into_iter().sum();
        let before = self.last_throttles.replace(count)?;
        Some(count > before)
    }
}

/// Available bytes of the machine's memory, within the control group, if the kernel reports them.
pub(crate) fn available_bytes() -> Option<u64> {
    Memory::read(Path::new("/"), None).available_bytes
}

fn temperatures(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for chip in folder(&root.join("sys/class/hwmon")) {
        let name = fs::read_to_string(chip.join("name")).unwrap_or_default();
        if PROCESSOR_SENSORS.contains(&name.trim()) {
            let is_input = |file: &PathBuf| {
                let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.starts_with("temp") && name.ends_with("_input")
            };
            found.extend(folder(&chip).into_iter().filter(is_input));
        }
    }
    found.truncate(FILES_MAX);
    found
}

/// The readable energy counters of whole packages.
fn energies(root: &Path) -> Vec<PathBuf> {
    let packages = folder(&root.join("sys/class/powercap"));
    let is_package = |zone: &PathBuf| {
        let name = fs::read_to_string(zone.join("name")).unwrap_or_default();
        name.starts_with("package")
    };
    let files = packages.into_iter().filter(is_package).map(|zone| zone.join("energy_uj"));
    files.filter(|file| number(file).is_some()).take(FILES_MAX).collect()
}

fn folder(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.take(FILES_MAX * 16).flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use panoply_core::{Api, DeviceId, DeviceKind};

    use super::*;

    fn write(root: &Path, file: &str, content: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn sensors_are_found_and_read() {
        let root = std::env::temp_dir().join(format!("panoply-sensors-{}", std::process::id()));
        write(&root, "sys/class/hwmon/hwmon0/name", "nvme\n");
        write(&root, "sys/class/hwmon/hwmon0/temp1_input", "99000\n");
        write(&root, "sys/class/hwmon/hwmon1/name", "coretemp\n");
        write(&root, "sys/class/hwmon/hwmon1/temp1_input", "51000\n");
        write(&root, "sys/class/hwmon/hwmon1/temp2_input", "63500\n");
        write(&root, "sys/class/hwmon/hwmon1/temp3_input", "not a number\n");
        write(&root, "sys/class/powercap/intel-rapl:0/name", "package-0\n");
        write(&root, "sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n");
        write(&root, "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
        write(&root, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n");
        let mut device = DeviceInfo::new(DeviceId { api: Api::CPU, index: 0 }, "cpu", DeviceKind::Cpu);
        device.memory_total_bytes = Some(1000 * 1024);
        let mut sensors = Sensors::find(&root, &device);
        let health = sensors.read();
        assert_eq!(health.temperature_celsius, Some(63.5), "the hottest of the processor's own");
        assert_eq!(health.memory, Some(MemoryUse::new(1000 * 1024, 250 * 1024)));
        assert_eq!((health.throttled, health.power_watts, health.sensors_absent), (None, None, None));
        write(&root, "sys/class/powercap/intel-rapl:0/energy_uj", "3000000\n");
        write(&root, "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "5\n");
        let later = sensors.read();
        assert_eq!(later.throttled, Some(true));
        assert!(later.power_watts.is_some_and(|watts| watts > 0.0));
        fs::remove_dir_all(&root).unwrap();
        let gone = sensors.read();
        assert_eq!((gone.temperature_celsius, gone.memory), (None, None), "what is gone is not known");
        assert!(gone.sensors_absent.is_some_and(|reason| reason.contains("hwmon")));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_well() {
        let device = DeviceInfo::new(DeviceId { api: Api::CPU, index: 0 }, "cpu", DeviceKind::Cpu);
        let health = Sensors::find(Path::new("/nonexistent"), &device).read();
        assert_eq!(Health { sensors_absent: None, ..health }, Health::default());
    }
}
