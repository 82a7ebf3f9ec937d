//! Facts about the vendors of GPUs, as data: ids on the PCI bus, kernel drivers and device nodes.

/// A vendor of GPUs.
#[derive(Debug)]
pub struct Vendor {
    /// The id on the PCI bus.
    pub id: u16,
    pub name: &'static str,
    /// The kernel drivers that compute libraries work with. Empty if none is known.
    pub drivers: &'static [&'static str],
    /// How to get such a kernel driver.
    pub driver_advice: &'static str,
    /// The device nodes that programs open, without the leading slash; `#` stands for a number.
    pub nodes: &'static [&'static str],
    /// How the nodes come to be.
    pub node_advice: &'static str,
    /// How a container is started with the GPU.
    pub container: &'static str,
    /// The libraries that programs load.
    pub libraries: &'static str,
}

/// Kernel drivers that reserve a device for a virtual machine.
pub const PASS_THROUGH: [&str; 2] = ["vfio-pci", "pci-stub"];

const VENDORS: [Vendor; 6] = [
    Vendor {
        id: 0x10de,
        name: "NVIDIA",
        drivers: &["nvidia"],
        driver_advice: "install NVIDIA's own driver, then restart",
        nodes: &["dev/nvidiactl", "dev/nvidia#"],
        node_advice: "`sudo nvidia-modprobe -c 0` makes it",
        container: "--gpus all (Docker with NVIDIA's container toolkit), --device nvidia.com/gpu=all (Podman), or \
                    nvidia.com/gpu among a pod's limits (Kubernetes)",
        libraries: "the libraries of NVIDIA's driver (libcuda.so.1)",
    },
    Vendor {
        id: 0x1002,
        name: "AMD",
        drivers: &["amdgpu"],
        driver_advice: "load the kernel driver amdgpu (`sudo modprobe amdgpu`)",
        nodes: &["dev/kfd", "dev/dri/renderD#"],
        node_advice: "restart; if it is still missing, `sudo dmesg | grep amdgpu` says why",
        container: "--device /dev/kfd --device /dev/dri, and --group-add with the numbers of their groups",
        libraries: "ROCm's runtime (libamdhip64.so), or a Vulkan driver such as Mesa's",
    },
    Vendor {
        id: 0x8086,
        name: "Intel",
        drivers: &["i915", "xe"],
        driver_advice: "load the kernel driver i915 or xe (`sudo modprobe xe`)",
        nodes: &["dev/dri/renderD#"],
        node_advice: "restart; if it is still missing, `sudo dmesg | grep -e i915 -e xe` says why",
        container: "--device /dev/dri, and --group-add with the number of its group",
        libraries: "Intel's OpenCL driver (intel-opencl-icd), or a Vulkan driver such as Mesa's",
    },
    named(0x1ed5, "Moore Threads"),
    named(0x1d17, "Zhaoxin"),
    named(0x17cb, "Qualcomm"),
];

/// A vendor of which nothing but the name is known.
const fn named(id: u16, name: &'static str) -> Vendor {
    Vendor {
        id,
        name,
        drivers: &[],
        driver_advice: "install its vendor's driver",
        nodes: &[],
        node_advice: "",
        container: "",
        libraries: "its vendor's libraries",
    }
}

/// The vendor with this id.
pub fn by_id(id: u16) -> Option<&'static Vendor> {
    VENDORS.iter().find(|vendor| vendor.id == id)
}
