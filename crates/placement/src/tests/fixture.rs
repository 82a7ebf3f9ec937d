//! Builds the `/sys` and `/proc` of simulated machines in a folder that is removed afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Fixture {
    root: PathBuf,
}

pub const GPU: (u32, u16, u16) = (0x030200, 0x10de, 0x2335);
pub const QAT: (u32, u16, u16) = (0x0b4000, 0x8086, 0x4940);
pub const NIC: (u32, u16, u16) = (0x020000, 0x15b3, 0x1021);
pub const FPGA: (u32, u16, u16) = (0x120000, 0x10ee, 0x5000);
pub const TPU: (u32, u16, u16) = (0x088000, 0x1ae0, 0x005e);

impl Fixture {
    pub fn new() -> Fixture {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Thousands of small files, so they are kept in memory if the system offers that.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let root = parent.join(format!("panoply-placement-{}-{count}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Fixture { root }
    }

    /// Two sockets of 32 cores with two hardware threads each (CPU i and i + 64), and half of the
    /// devices on each.
    pub fn two_sockets() -> Fixture {
        let machine = Fixture::new().online("0-127").file("sys/devices/system/cpu/possible", "0-127\n");
        for cpu in 0..128 {
            let core = cpu % 64;
            machine.cpu(cpu, core / 32, core % 32, &format!("{core},{}", core + 64));
        }
        machine.node(0, "0-31,64-95", 256 << 20, "10 21").node(1, "32-63,96-127", 256 << 20, "21 10");
        for (node, bus) in [(0, 0x10), (1, 0x90)] {
            let address = |slot: u32| format!("0000:{:02x}:00.0", bus + slot);
            for (slot, id) in [GPU, GPU, QAT, NIC, TPU].into_iter().enumerate() {
                machine.pci(&address(slot as u32), id, node);
            }
            machine.pci(&address(0xf), (0x060400, 0x8086, 0x352a), node);
        }
        machine.pci("0000:03:00.0", (0x030000, 0x1a03, 0x2000), 0);
        machine
    }

    /// Four cores with two hardware threads each (CPU 2i and 2i + 1), no NUMA folders, one GPU.
    pub fn laptop() -> Fixture {
        let machine = Fixture::new().online("0-7").file("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");
        for cpu in 0..8 {
            machine.cpu(cpu, 0, cpu / 2, &format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1));
        }
        machine.pci("0000:01:00.0", GPU, -1);
        machine
    }

    /// Two cores without hardware threads, one node, a network card.
    pub fn container() -> Fixture {
        let machine = Fixture::new().online("0-1");
        machine.cpu(0, 0, 0, "0");
        machine.cpu(1, 0, 1, "1");
        machine.node(0, "0-1", 8 << 20, "10").pci("0000:00:03.0", NIC, -1);
        machine
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn file(self, path: &str, text: impl AsRef<[u8]>) -> Fixture {
        self.write(path, text);
        self
    }

    pub fn without(self, path: &str) -> Fixture {
        let full = self.root.join(path);
        if full.is_dir() {
            fs::remove_dir_all(full).unwrap()
        } else {
            fs::remove_file(full).unwrap()
        }
        self
    }

    pub fn online(self, cpus: &str) -> Fixture {
        self.file("sys/devices/system/cpu/online", format!("{cpus}\n"))
    }

    pub fn cpu(&self, cpu: usize, package: usize, core: usize, siblings: &str) -> &Fixture {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        self.write(&format!("{folder}/physical_package_id"), format!("{package}\n"));
        self.write(&format!("{folder}/core_id"), format!("{core}\n"));
        self.write(&format!("{folder}/thread_siblings_list"), format!("{siblings}\n"));
        self
    }

    pub fn node(&self, id: usize, cpus: &str, memory_kib: u64, distances: &str) -> &Fixture {
        let folder = format!("sys/devices/system/node/node{id}");
        self.write(&format!("{folder}/cpulist"), format!("{cpus}\n"));
        self.write(
            &format!("{folder}/meminfo"),
            format!("Node {id} MemTotal:       {memory_kib} kB\nNode {id} MemFree: 0 kB\n"),
        );
        self.write(&format!("{folder}/distance"), format!("{distances}\n"));
        self
    }

    pub fn pci(&self, address: &str, (class, vendor, product): (u32, u16, u16), node: i64) -> &Fixture {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/class"), format!("{class:#08x}\n"));
        self.write(&format!("{folder}/vendor"), format!("{vendor:#06x}\n"));
        self.write(&format!("{folder}/device"), format!("{product:#06x}\n"));
        self.write(&format!("{folder}/numa_node"), format!("{node}\n"));
        self
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let full = self.root.join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        fs::write(full, text).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
