//! Reading of complete, broken and missing trees.

use std::path::Path;

use proptest::prelude::*;

use super::fixture::{Fixture, GPU, NIC};
use crate::{CpuSet, FILE_BYTES_MAX, NOTES_MAX, PciKind, PlacementPlan, Problem, Topology};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// The guarantees of every topology, however broken the tree.
fn check(topology: &Topology) {
    assert!(!topology.allowed().is_empty() && topology.allowed().is_subset(topology.online()));
    assert!(topology.online().is_subset(topology.possible()) && topology.online().is_disjoint(topology.offline()));
    let total = |sets: Vec<&CpuSet>| {
        assert!(sets.iter().map(|set| set.len()).sum::<usize>() == topology.online().len(), "no CPU twice");
        sets.iter().fold(CpuSet::new(), |all, set| &all | set)
    };
    assert_eq!(&total(topology.cores().iter().map(|core| &core.cpus).collect()), topology.online());
    assert_eq!(&total(topology.nodes().iter().map(|node| &node.cpus).collect()), topology.online());
    assert!(topology.cores().iter().all(|core| topology.node(core.node).is_some()));
    assert!((1..=topology.allowed().len()).contains(&topology.effective_cpus()));
    assert!(topology.notes().len() <= NOTES_MAX + 1);
    PlacementPlan::for_devices(topology).unwrap();
}

fn read(machine: &Fixture) -> Topology {
    let topology = Topology::read(machine.root());
    check(&topology);
    topology
}

#[test]
fn a_two_socket_host_is_read_without_a_hole() {
    let topology = read(&Fixture::two_sockets());
    assert_eq!(topology.notes(), []);
    assert_eq!((topology.online(), topology.allowed()), (&cpus("0-127"), &cpus("0-127")));
    assert_eq!(topology.cores().len(), 64);
    assert_eq!(topology.cores()[33].cpus, cpus("33,97"));
    assert_eq!((topology.cores()[33].package, topology.cores()[33].node), (1, 1));
    let packages: Vec<_> = topology.packages().into_iter().map(|package| (package.id, package.cpus)).collect();
    assert_eq!(packages, [(0, cpus("0-31,64-95")), (1, cpus("32-63,96-127"))]);
    assert_eq!(topology.nodes()[1].memory_bytes, Some(256 << 30));
    assert_eq!(topology.nodes()[0].distance_to(1), 21);
    let count = |kind, node| topology.devices().iter().filter(|d| (d.kind, d.node) == (kind, Some(node))).count();
    for node in [0, 1] {
        let kinds = [PciKind::Gpu, PciKind::Qat, PciKind::Nic, PciKind::Tpu, PciKind::Fpga];
        assert_eq!(kinds.map(|kind| count(kind, node)), [2, 1, 1, 1, 0]);
    }
}

#[test]
fn a_laptop_without_numa_is_one_node() {
    let topology = read(&Fixture::laptop());
    assert_eq!(topology.nodes().len(), 1);
    assert_eq!(topology.nodes()[0].memory_bytes, Some(16_000_000 * 1024));
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(topology.devices()[0].node, None);
    assert_eq!(topology.notes().len(), 1, "{:?}", topology.notes());
}

#[test]
fn the_affinity_mask_and_the_control_group_narrow_what_is_allowed() {
    let machine = Fixture::two_sockets()
        .file("proc/self/cgroup", "0::/tenant/job\n")
        .file("sys/fs/cgroup/tenant/cpuset.cpus.effective", "0-15\n")
        .file("sys/fs/cgroup/tenant/cpu.max", "400000 100000\n")
        .file("sys/fs/cgroup/tenant/job/cpu.max", "max 100000\n");
    let topology = read(&machine);
    assert_eq!((topology.allowed(), topology.effective_cpus()), (&cpus("0-15"), 4));
    let topology = Topology::read_with_affinity(machine.root(), Some(&cpus("14-40")));
    check(&topology);
    assert_eq!((topology.allowed(), topology.effective_cpus()), (&cpus("14-15"), 2));
}

#[test]
fn version_1_groups_and_container_paths_are_understood() {
    let machine = Fixture::container()
        .file("proc/self/cgroup", "3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
        .file("sys/fs/cgroup/cpuset/cpuset.cpus", "1\n")
        .file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
        .file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    let topology = read(&machine);
    assert_eq!((topology.allowed(), topology.effective_cpus()), (&cpus("1"), 1));
    assert_eq!(topology.quota().map(|quota| (quota.quota_us, quota.period_us)), Some((50_000, 100_000)));
    let unlimited = machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    assert_eq!(read(&unlimited).quota(), None);
}

#[test]
fn offline_cpus_are_left_out() {
    let machine = Fixture::two_sockets().online("0-31,65-95").file("sys/devices/system/cpu/offline", "32-64,96-127\n");
    let topology = read(&machine);
    assert_eq!(topology.offline(), &cpus("32-64,96-127"));
    assert_eq!(topology.cores().len(), 32);
    assert_eq!(topology.cores()[0].cpus, cpus("0"), "its sibling is offline");
    assert!(topology.nodes()[1].cpus.is_empty(), "a node without CPUs stays a node");
}

#[test]
fn no_sys_at_all_is_one_cpu_or_the_mask() {
    let empty = Fixture::new();
    let topology = read(&empty);
    assert_eq!(topology.online(), &cpus("0"));
    assert!(topology.notes().iter().any(|note| note.problem == Problem::Missing));
    let topology = Topology::read_with_affinity(Path::new("/nonexistent/root"), Some(&cpus("2,5")));
    check(&topology);
    assert_eq!(topology.allowed(), &cpus("2,5"));
    check(&Topology::read_with_affinity(empty.root(), Some(&CpuSet::new())));
}

#[test]
fn missing_files_are_filled_in_and_noted() {
    let machine = Fixture::laptop()
        .without("sys/devices/system/cpu/online")
        .without("sys/devices/system/cpu/cpu2/topology/thread_siblings_list")
        .without("sys/devices/system/cpu/cpu3/topology/thread_siblings_list")
        .without("sys/devices/system/cpu/cpu4/topology")
        .without("sys/bus/pci/devices/0000:01:00.0/class")
        .file("sys/devices/system/cpu/cpu7/online", "0\n");
    let topology = read(&machine);
    assert_eq!(topology.online(), &cpus("0-6"), "counted from the folders");
    let cores: Vec<String> = topology.cores().iter().map(|core| core.cpus.to_string()).collect();
    assert_eq!(cores, ["0-1", "2-3", "4", "5", "6"], "2 and 3 share a core number; 4 does not say");
    assert!(topology.devices().is_empty());
    let noted = |path: &str| topology.notes().iter().any(|note| note.path.ends_with(path));
    assert!(noted("cpu/online") && noted("cpu4/topology") && noted("0000:01:00.0/class"), "{:?}", topology.notes());
}

#[test]
fn nodes_with_gaps_without_memory_or_overlapping_are_read() {
    let machine = Fixture::new().online("0-5");
    machine.node(2, "0-2", 0, "10 20").node(5, "2-4", 1024, "20").node(7, "", 4096, "10 20 30");
    machine.pci("0000:05:00.0", GPU, 7).pci("0000:06:00.0", NIC, 9);
    let topology = read(&machine.file("sys/devices/system/node/node5/meminfo", "lots\n"));
    let nodes: Vec<_> = topology.nodes().iter().map(|node| (node.id, node.cpus.to_string())).collect();
    assert_eq!(nodes, [(2, "0-2,5".into()), (5, "3-4".into()), (7, String::new())]);
    assert_eq!(topology.nodes()[0].memory_bytes, Some(0));
    assert_eq!(topology.nodes()[1].memory_bytes, None);
    assert_eq!(topology.devices()[0].node, Some(7));
    assert_eq!(topology.devices()[1].node, None, "there is no node 9");
}

#[test]
fn siblings_that_disagree_are_kept_apart() {
    let machine = Fixture::new().online("0-3");
    machine.cpu(0, 0, 0, "0-3").cpu(1, 0, 1, "1-2").cpu(2, 0, 1, "1-2").cpu(3, 0, 3, "9");
    let topology = read(&machine);
    let cores: Vec<String> = topology.cores().iter().map(|core| core.cpus.to_string()).collect();
    assert_eq!(cores, ["0", "1-2", "3"]);
}

/// Every kind of file that is read.
const FILES: [&str; 17] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/offline",
    "sys/devices/system/cpu/possible",
    "sys/devices/system/cpu/cpu0/topology/core_id",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node0/distance",
    "sys/bus/pci/devices/0000:00:03.0/class",
    "sys/bus/pci/devices/0000:00:03.0/vendor",
    "sys/bus/pci/devices/0000:00:03.0/device",
    "sys/bus/pci/devices/0000:00:03.0/numa_node",
    "sys/bus/pci/devices/not-an-address/class",
    "proc/self/cgroup",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
];

#[test]
fn garbage_in_any_file_is_a_note() {
    let garbage: [&[u8]; 8] =
        [b"", b"\n", b"\xff\xfe\x00", b"-1", b"999999999999999999999", b"0-8192", b"0x", b"max max max"];
    for text in garbage {
        for file in FILES {
            read(&Fixture::container().file("proc/self/cgroup", "0::/\n").file(file, text));
        }
        let all = FILES.iter().fold(Fixture::container(), |machine, file| machine.file(file, text));
        assert!(!read(&all).notes().is_empty());
    }
    let long = Fixture::container().file("sys/devices/system/cpu/online", vec![b'0'; FILE_BYTES_MAX + 1]);
    assert!(read(&long).notes().iter().any(|note| matches!(note.problem, Problem::TooLarge { .. })));
}
#[test]
fn folders_pipes_and_paths_upwards_do_not_hold_the_reader_up() {
    let machine = Fixture::container()
        .without("sys/devices/system/cpu/online")
        .file("sys/devices/system/cpu/online/folder", "")
        .file("proc/self/cgroup", "0::/../../etc\nno colons\n\n0::\n");
    #[cfg(unix)]
    {
        let pipe = machine.root().join("sys/devices/system/cpu/possible");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo is needed for this test");
    }
    let topology = read(&machine);
    assert_eq!(topology.online(), &cpus("0-1"));
    assert!(topology.notes().iter().any(|note| matches!(note.problem, Problem::Unreadable(_))));
}

#[test]
fn notes_are_bounded() {
    let topology = read(&Fixture::new().online("0-2047"));
    assert_eq!(topology.cores().len(), 2048);
    let last = topology.notes().last().map(|note| &note.problem);
    assert!(matches!(last, Some(Problem::NotesDropped { count }) if *count > 1000), "{last:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn this_machine_is_read() {
    let topology = Topology::current();
    check(&topology);
    assert_eq!(topology.allowed(), &(&crate::affinity::current().unwrap() & topology.online()));
    println!("{}", PlacementPlan::for_devices(&topology).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mixture_of_broken_files_gives_a_topology(
        changes in proptest::collection::vec((0..FILES.len(), "[0-9a-fx,: \\-\n]{0,20}|\\PC{0,20}"), 0..8),
        mask in proptest::option::of(proptest::collection::vec(0..12usize, 0..4)),
    ) {
        let mut machine = Fixture::container().file("proc/self/cgroup", "0::/\n");
        for (file, text) in &changes {
            machine = machine.file(FILES[*file], text);
        }
        let mask = mask.map(|cpus| CpuSet::from_cpus(cpus).unwrap());
        check(&Topology::read_with_affinity(machine.root(), mask.as_ref()));
    }
}
