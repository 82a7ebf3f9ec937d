//! Cards made of files, and an NVML made of C.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use panoply_core::{Api, DeviceId, DeviceInfo, DeviceKind, Health, MemoryUse};

use crate::CardSensors;

const CARD: &str = "sys/bus/pci/devices/0000:03:00.0";

/// A folder that is deleted with this value.
struct Root(PathBuf);

impl Root {
    fn new(files: &[(&str, &str)]) -> Root {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = Root(std::env::temp_dir().join(format!("panoply-card-{}-{number}", std::process::id())));
        files.iter().for_each(|(file, content)| root.write(file, content));
        root
    }

    fn write(&self, file: &str, content: &str) {
        let path = self.0.join(CARD).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn device(kind: DeviceKind, address: Option<&str>) -> DeviceInfo {
    let mut info = DeviceInfo::new(DeviceId { api: Api::VULKAN, index: 0 }, "a card", kind);
    info.pci_address = address.map(|address| address.parse().unwrap());
    info
}

fn sensors(root: &Path, kind: DeviceKind) -> CardSensors {
    CardSensors::of(&device(kind, Some("0000:03:00.0"))).below(root).with_nvml(&["libno-such-nvml.so"])
}

const AMD: [(&str, &str); 11] = [
    ("vendor", "0x1002\n"),
    ("hwmon/hwmon4/temp1_input", "61000\n"),
    ("hwmon/hwmon4/temp1_label", "edge\n"),
    ("hwmon/hwmon4/temp2_input", "74500\n"),
    ("hwmon/hwmon4/temp2_label", "junction\n"),
    ("hwmon/hwmon4/temp3_input", "96000\n"),
    ("hwmon/hwmon4/temp3_label", "mem\n"),
    ("hwmon/hwmon4/power1_average", "187000000\n"),
    ("gpu_busy_percent", "43\n"),
    ("mem_info_vram_total", "17163091968\n"),
    ("mem_info_vram_used", "4290772992\n"),
];

#[test]
fn an_amd_card_is_read_from_the_files_of_its_driver() {
    let root = Root::new(&AMD);
    let mut sensors = sensors(&root.0, DeviceKind::DiscreteGpu);
    let health = sensors.read();
    assert_eq!(health.temperature_celsius, Some(74.5), "the memory is meant to be hotter");
    assert_eq!((health.power_watts, health.utilisation_percent), (Some(187.0), Some(43.0)));
    assert_eq!(health.memory, Some(MemoryUse::new(17_163_091_968, 17_163_091_968 - 4_290_772_992)));
    assert_eq!((health.throttled, health.sensors_absent), (None, None));
    root.write("mem_info_vram_used", "17163091968\n");
    root.write("hwmon/hwmon4/temp1_input", "90000\n");
    let later = sensors.read();
    assert_eq!((later.memory.unwrap().available_bytes(), later.temperature_celsius), (0, Some(90.0)), "read anew");
}

#[test]
fn the_carve_out_of_an_integrated_gpu_is_not_its_memory() {
    let root = Root::new(&AMD);
    let health = sensors(&root.0, DeviceKind::IntegratedGpu).read();
    assert_eq!((health.memory, health.temperature_celsius), (None, Some(74.5)));
}

#[test]
fn intels_cards_tell_that_they_are_throttled() {
    for file in ["drm/card1/gt/gt0/throttle_reason_status", "tile0/gt1/freq0/throttle/status"] {
        let root = Root::new(&[("vendor", "0x8086\n"), (file, "0\n"), ("hwmon/hwmon2/energy1_input", "5000000\n")]);
        let mut sensors = sensors(&root.0, DeviceKind::DiscreteGpu);
        let health = sensors.read();
        assert_eq!((health.throttled, health.power_watts), (Some(false), None), "{file}");
        let reason = health.sensors_absent.unwrap();
        assert_eq!(reason, "the driver of 0000:03:00.0 shows no temperature (hwmon)");
        root.write(file, "1\n");
        root.write("hwmon/hwmon2/energy1_input", "9000000\n");
        let later = sensors.read();
        assert!(later.throttled == Some(true) && later.power_watts.is_some_and(|watts| watts > 0.0), "{file}");
    }
}

#[test]
fn missing_sensors_have_a_reason() {
    let nowhere = CardSensors::of(&device(DeviceKind::SoftwareGpu, None)).read();
    assert_eq!(
        nowhere,
        Health {
            sensors_absent: Some("the device has no PCI address by which its sensors could be found".to_owned()),
            ..Health::default()
        }
    );
    let empty = Root::new(&[]);
    let gone = sensors(&empty.0, DeviceKind::DiscreteGpu).read();
    assert_eq!(gone.sensors_absent.unwrap(), "there is no folder /sys/bus/pci/devices/0000:03:00.0");
    let nvidia = Root::new(&[("vendor", "0x10de\n")]);
    let unread = sensors(&nvidia.0, DeviceKind::DiscreteGpu).read().sensors_absent.unwrap();
    assert_eq!(unread, "NVML: library not found (tried libno-such-nvml.so)");
}

/// The functions of NVML that are called, for one GPU at the address of [`CARD`].
const NVML: &str = r#"
#include <string.h>
typedef unsigned long long big;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    if (strcmp(id, "0000:03:00.0")) return 6;
    *device = (void *)7;
    return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = 71; return sensor; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 250500; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) { rates[0] = 88; rates[1] = 12; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, big *reasons) { *reasons = 0x40; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, big bytes[3]) {
    static big used = 0;
    used += 1000;
    bytes[0] = 80000; bytes[1] = 80000 - used; bytes[2] = used;
    return 0;
}
"#;

#[cfg(target_os = "linux")]
#[test]
fn an_nvidia_card_is_read_through_nvml() {
    let root = Root::new(&[("vendor", "0x10de\n")]);
    let (text, library) = (root.0.join("nvml.c"), root.0.join("libnvml.so"));
    fs::write(&text, NVML).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &text]).output();
    match compiled {
        Ok(compiled) => assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr)),
        Err(error) => return println!("skipped: no C compiler: {error}"),
    }
    let names = [library.to_str().unwrap()];
    let mut sensors = sensors(&root.0, DeviceKind::DiscreteGpu).with_nvml(&names);
    let health = sensors.read();
    assert_eq!((health.temperature_celsius, health.power_watts), (Some(71.0), Some(250.5)));
    assert_eq!((health.utilisation_percent, health.throttled), (Some(88.0), Some(true)));
    assert_eq!((health.memory, health.sensors_absent), (Some(MemoryUse::new(80_000, 79_000)), None));
    assert_eq!(sensors.read().memory.unwrap().used_bytes(), 2000, "read anew");
    let other = device(DeviceKind::DiscreteGpu, Some("0000:04:00.0"));
    let unknown = CardSensors::of(&other).below(&root.0).with_nvml(&names).read();
    assert_eq!(unknown.sensors_absent.unwrap(), "there is no folder /sys/bus/pci/devices/0000:04:00.0");
}
