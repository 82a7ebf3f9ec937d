//! The memory of machines and nodes, within control groups of both versions.

use super::fixture::Fixture;
use crate::{Memory, Topology};

const WHOLE: &str = "MemTotal: 131072 kB\nMemFree: 1000 kB\nMemAvailable: 65536 kB\n";
const KIB: u64 = 1024;

fn read(machine: &Fixture, node: Option<u32>) -> (Option<u64>, Option<u64>) {
    let memory = Memory::read(machine.root(), node);
    (memory.total_bytes.map(|bytes| bytes / KIB), memory.available_bytes.map(|bytes| bytes / KIB))
}

#[test]
fn the_only_node_has_the_whole_machines_memory() {
    // The host has 128 MiB, and its only node shows 4.5 of them.
    let machine = Fixture::new().online("0-1").file("proc/meminfo", WHOLE);
    machine.node(0, "0-1", 4608, "10");
    assert_eq!(read(&machine, Some(0)), (Some(131_072), Some(65_536)));
    assert_eq!(read(&machine, None), (Some(131_072), Some(65_536)));
    assert_eq!(Topology::read(machine.root()).nodes()[0].memory_bytes, Some(131_072 * KIB));
    // Without the machine's figures the node's are all there is.
    let machine = machine.without("proc/meminfo");
    assert_eq!(read(&machine, Some(0)), (Some(4608), Some(0)));
    assert_eq!(Topology::read(machine.root()).nodes()[0].memory_bytes, Some(4608 * KIB));
}

#[test]
fn one_of_several_nodes_has_its_own() {
    let machine = Fixture::new().online("0-3").file("proc/meminfo", WHOLE);
    machine.node(0, "0-1", 1000, "10 20").node(1, "2-3", 2000, "20 10");
    let machine = machine.file(
        "sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal: 2000 kB\nNode 1 MemFree: 300 kB\nNode 1 FilePages: 200 kB\n",
    );
    assert_eq!(read(&machine, Some(1)), (Some(2000), Some(500)), "free pages and the page cache");
    assert_eq!(read(&machine, None), (Some(131_072), Some(65_536)));
    assert_eq!(Topology::read(machine.root()).nodes()[1].memory_bytes, Some(2000 * KIB));
    assert_eq!(read(&machine, Some(7)), (Some(131_072), Some(65_536)), "there is no node 7");
}

#[test]
fn a_group_of_version_2_bounds_it() {
    let machine = Fixture::new().online("0-1").file("proc/meminfo", WHOLE).file("proc/self/cgroup", "0::/tenant/job\n");
    machine.node(0, "0-1", 131_072, "10");
    let machine = machine
        .file("sys/fs/cgroup/tenant/memory.max", format!("{}\n", 8000 * KIB))
        .file("sys/fs/cgroup/tenant/memory.current", format!("{}\n", 7000 * KIB))
        .file("sys/fs/cgroup/tenant/memory.stat", format!("anon 1\ninactive_file {}\n", 2000 * KIB))
        .file("sys/fs/cgroup/tenant/job/memory.max", "max\n");
    assert_eq!(read(&machine, Some(0)), (Some(8000), Some(3000)), "cached files can be dropped");
    assert_eq!(Memory::read(machine.root(), None).used_percent(), Some(62.5));
    let machine = machine
        .file("sys/fs/cgroup/tenant/job/memory.max", format!("{}\n", 4000 * KIB))
        .file("sys/fs/cgroup/tenant/job/memory.current", format!("{}\n", 3900 * KIB));
    assert_eq!(read(&machine, Some(0)), (Some(4000), Some(100)), "the tightest of the groups counts");
    // A limit beyond the machine changes nothing.
    let machine = machine
        .file("sys/fs/cgroup/tenant/memory.max", "max\n")
        .file("sys/fs/cgroup/tenant/job/memory.max", format!("{}\n", 1_u64 << 40));
    assert_eq!(read(&machine, Some(0)), (Some(131_072), Some(65_536)));
}

#[test]
fn a_group_of_version_1_bounds_it() {
    let groups = "4:memory:/docker/abc\n3:cpuset:/docker/abc\n0::/\n";
    let machine = Fixture::new().online("0-1").file("proc/meminfo", WHOLE).file("proc/self/cgroup", groups);
    let machine = machine
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", format!("{}\n", 6000 * KIB))
        .file("sys/fs/cgroup/memory/memory.usage_in_bytes", format!("{}\n", 5000 * KIB))
        .file("sys/fs/cgroup/memory/memory.stat", format!("inactive_file 1\ntotal_inactive_file {}\n", 500 * KIB));
    assert_eq!(read(&machine, None), (Some(6000), Some(1500)), "a container sees its group at the root");
    let machine = machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(read(&machine, None), (Some(131_072), Some(65_536)));
    let machine = machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "lots\n");
    assert_eq!(read(&machine, None), (Some(131_072), Some(65_536)));
}

#[test]
fn a_machine_that_tells_nothing_has_no_figures() {
    assert_eq!(read(&Fixture::new(), Some(0)), (None, None));
    assert_eq!(Memory::default().used_percent(), None);
}
