//! Machines as folders: what is said about their GPUs.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Hardware, lines};

/// A folder with the `sys`, `dev` and `etc` of a machine, removed at its end.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Machine {
        let root = std::env::temp_dir().join(format!("panoply-hardware-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        Machine(root)
    }

    fn file(self, path: &str, text: &str) -> Machine {
        let file = self.0.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    /// Adds a PCI device of this class and vendor.
    #[cfg(unix)]
    fn device(self, address: &str, class: u32, vendor: u16, driver: Option<&str>) -> Machine {
        let folder = format!("sys/bus/pci/devices/{address}");
        let machine = self
            .file(&format!("{folder}/class"), &format!("{class:#08x}\n"))
            .file(&format!("{folder}/vendor"), &format!("{vendor:#06x}\n"));
        if let Some(driver) = driver {
            let link = machine.0.join(&folder).join("driver");
            std::os::unix::fs::symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
        }
        machine
    }

    /// The lines about this machine, of which every device node can be opened.
    fn said(&self) -> Vec<String> {
        self.said_if(&|_| true, None)
    }

    fn said_if(&self, may_open: &dyn Fn(&Path) -> bool, is_served: Option<bool>) -> Vec<String> {
        let hardware = Hardware::read(&self.0, may_open);
        lines(&hardware, &|_| is_served).into_iter().map(|line| line.text).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;

#[test]
fn a_machine_without_a_gpu_is_told_from_one_without_a_bus() {
    assert_eq!(Machine::new("none").said(), ["no GPU on the PCI bus"]);
    let container = Machine::new("none-inside").file(".dockerenv", "");
    assert_eq!(container.said(), ["no GPU on the PCI bus of this container's host"]);
    let machine = Machine::new("no-bus");
    fs::remove_dir_all(machine.0.join("sys")).unwrap();
    assert_eq!(machine.said(), ["this machine has no PCI bus to look for GPUs on"]);
    let windows = Machine::new("windows").file("dev/dxg", "");
    assert!(windows.said()[0].contains("installed on Windows"), "{:?}", windows.said());
}

#[cfg(unix)]
#[test]
fn a_gpu_without_its_vendors_driver_is_named_with_the_driver_it_has() {
    let nouveau = Machine::new("nouveau").device("0000:41:00.0", 0x030200, NVIDIA, Some("nouveau"));
    let expected = "NVIDIA GPU at 0000:41:00.0, kernel driver nouveau: install NVIDIA's own driver, then restart";
    assert_eq!(nouveau.said(), [expected]);
    let none = Machine::new("driverless").device("0000:41:00.0", 0x030200, NVIDIA, None).file("run/.containerenv", "");
    assert!(none.said()[0].contains("no kernel driver: install") && none.said()[0].contains("host of this container"));
    let kept = Machine::new("kept").device("0000:41:00.0", 0x030000, AMD, Some("vfio-pci"));
    assert!(kept.said()[0].ends_with("kernel driver vfio-pci, which keeps it for a virtual machine"));
}

#[cfg(unix)]
#[test]
fn a_container_without_the_gpu_says_how_to_start_it_with_the_gpu() {
    let machine = Machine::new("outside").device("0000:41:00.0", 0x030200, NVIDIA, Some("nvidia"));
    assert!(machine.said()[0].contains("/dev/nvidiactl is missing: `sudo nvidia-modprobe"), "{:?}", machine.said());
    let inside = machine.file(".dockerenv", "");
    let said = inside.said();
    assert!(said[0].contains("in a container without the GPU (/dev/nvidiactl is missing)"), "{said:?}");
    assert!(said[0].contains("--gpus all"), "{said:?}");
    // The control node alone is not enough.
    let inside = inside.file("dev/nvidiactl", "").file("dev/nvidia-uvm", "");
    assert!(inside.said()[0].contains("(/dev/nvidiaN is missing)"), "{:?}", inside.said());
    let inside = inside.file("dev/nvidia0", "");
    assert_eq!(inside.said(), ["NVIDIA GPU at 0000:41:00.0, kernel driver nvidia"]);
    let amd = Machine::new("inside").device("0000:03:00.0", 0x120000, AMD, Some("amdgpu")).file(".dockerenv", "");
    assert!(amd.said()[0].contains("--device /dev/kfd --device /dev/dri"), "{:?}", amd.said());
}

#[cfg(unix)]
#[test]
fn a_node_of_another_group_is_named_with_the_group() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    const GROUP: u32 = 4321;
    let machine = Machine::new("groups")
        .device("0000:03:00.0", 0x030000, AMD, Some("amdgpu"))
        .file("dev/kfd", "")
        .file("dev/dri/renderD128", "")
        .file("dev/dri/card0", "");
    let kfd = machine.0.join("dev/kfd");
    fs::set_permissions(&kfd, fs::Permissions::from_mode(0o660)).unwrap();
    // Only an administrator can give a file to another group.
    let group = chown(&kfd, None, Some(GROUP)).map_or_else(|_| fs::metadata(&kfd).unwrap().gid(), |()| GROUP);
    let machine = machine.file("etc/group", &format!("root:x:0:\nrender:x:{group}:ada\n"));
    let denied = |path: &Path| !path.ends_with("dev/kfd");
    let said = machine.said_if(&denied, None);
    if group != 0 {
        let expected = "kernel driver amdgpu: only the group render may open /dev/kfd: `sudo usermod -aG render $USER`";
        assert!(said[0].contains(expected), "{said:?}");
    }
    fs::set_permissions(&kfd, fs::Permissions::from_mode(0o600)).unwrap();
    let said = machine.said_if(&denied, None);
    assert!(said[0].contains("this user may not open /dev/kfd: an administrator"), "{said:?}");
    // One node that can be opened is enough.
    let machine = machine.file("dev/dri/renderD129", "");
    let said = machine.said_if(&|path| !path.ends_with("renderD128"), None);
    assert_eq!(said, ["AMD GPU at 0000:03:00.0, kernel driver amdgpu"]);
    let said = machine.said_if(&|_| true, Some(false));
    assert!(said[0].contains("no backend found it; ROCm's runtime"), "{said:?}");
}

#[cfg(unix)]
#[test]
fn gpus_in_the_same_state_are_one_line_and_displays_are_none() {
    let mut machine = Machine::new("many")
        .device("0000:01:00.0", 0x030000, 0x1a03, Some("ast"))
        .device("0000:02:00.0", 0x020000, 0x15b3, Some("mlx5_core"))
        .device("0000:03:00.0", 0x030000, 0xabcd, Some("mystery"));
    for bus in 0x40..0x46 {
        machine = machine.device(&format!("0000:{bus:02x}:00.0"), 0x030200, NVIDIA, Some("nouveau"));
    }
    let said = machine.said();
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0], "GPU of vendor 0xabcd at 0000:03:00.0, kernel driver mystery");
    assert!(said[1].starts_with("NVIDIA GPUs at 0000:40:00.0, 0000:41:00.0, 0000:42:00.0, 0000:43:00.0 and 2 more, "));
}
