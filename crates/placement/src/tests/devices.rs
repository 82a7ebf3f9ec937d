//! The plans of a runtime's devices on large and small machines.

use panoply_core::device::{Api, DeviceId, DeviceInfo, DeviceKind};

use super::fixture::{FPGA, Fixture, GPU, NIC};
use crate::affinity::RealtimePriority;
use crate::{
    CoreUse, CpuSet, DevicePlan, DeviceWorkers, PlacementOptions, Topology, WorkerPlace, WorkerWishes, locate,
    numa_node,
};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn cpu(node: u32) -> DeviceInfo {
    let mut info = DeviceInfo::new(DeviceId { api: Api::CPU, index: node }, "processor", DeviceKind::Cpu);
    (info.numa_node, info.runs_on_cores) = (Some(node), true);
    info
}

/// A GPU at this address, as a backend of the API would describe it.
fn gpu(machine: &Fixture, api: Api, index: u32, address: &str) -> DeviceInfo {
    let mut info = DeviceInfo::new(DeviceId { api, index }, "gpu", DeviceKind::DiscreteGpu);
    locate(&mut info, &machine.root().join("sys"), address.parse().unwrap());
    info
}

/// The machine with two sockets of two nodes: 4 × 16 cores with two threads each, a GPU on node 1
/// and three on node 3.
fn large() -> Fixture {
    let machine = Fixture::new().online("0-127");
    for cpu in 0..128 {
        let core = cpu % 64;
        machine.cpu(cpu, core / 32, core % 32, &format!("{core},{}", core + 64));
    }
    for node in 0..4 {
        let first = node * 16;
        let list = format!("{first}-{},{}-{}", first + 15, first + 64, first + 79);
        let distances: Vec<&str> = (0..4)
            .map(|other| {
                if node == other {
                    "10"
                } else if node / 2 == other / 2 {
                    "12"
                } else {
                    "32"
                }
            })
            .collect();
        machine.node(node, &list, 64 << 20, &distances.join(" "));
    }
    machine.pci("0000:18:00.0", GPU, 1).pci("0000:17:00.0", NIC, 1);
    for (slot, address) in ["0000:b1:00.0", "0000:b2:00.0", "0000:b3:00.0"].iter().enumerate() {
        machine.pci(address, [GPU, GPU, FPGA][slot], 3);
    }
    machine
}

fn plan(topology: &Topology, devices: &[&DeviceInfo], options: &PlacementOptions) -> DevicePlan {
    let workers: Vec<DeviceWorkers<'_>> = devices.iter().map(|info| DeviceWorkers::one(info)).collect();
    let mut plan = DevicePlan::default();
    plan.update(topology, &workers, options);
    plan
}

fn place(plan: &DevicePlan, info: &DeviceInfo) -> WorkerPlace {
    plan.place(info.id, None, 0)
}

fn of(cores: CoreUse) -> PlacementOptions {
    PlacementOptions { cores, ..PlacementOptions::default() }
}

#[test]
fn addresses_lead_to_nodes() {
    let machine = large();
    let node = |address: &str| numa_node(&machine.root().join("sys"), address.parse().unwrap());
    assert_eq!((node("0000:18:00.0"), node("0000:b2:00.0"), node("0000:99:00.0")), (Some(1), Some(3), None));
    machine.pci("0000:55:00.0", GPU, -1).pci("0000:56:00.0", GPU, 5000);
    assert_eq!((node("0000:55:00.0"), node("0000:56:00.0")), (None, None));
    let info = gpu(&machine, Api::CUDA, 0, "0000:b1:00.0");
    assert_eq!((info.numa_node, info.pci_address.unwrap().to_string()), (Some(3), "0000:b1:00.0".to_owned()));
}

#[test]
fn on_a_large_machine_a_gpu_worker_has_a_core_beside_its_gpu() {
    let machine = large();
    let topology = Topology::read(machine.root());
    let (cuda, vulkan) = (gpu(&machine, Api::CUDA, 0, "0000:18:00.0"), gpu(&machine, Api::VULKAN, 0, "0000:18:00.0"));
    let cores: Vec<DeviceInfo> = (0..4).map(cpu).collect();
    let mut devices: Vec<&DeviceInfo> = cores.iter().collect();
    devices.extend([&cuda, &vulkan]);
    let plan = plan(&topology, &devices, &PlacementOptions::default());
    let worker = place(&plan, &cuda);
    assert_eq!((worker.cpus.clone(), worker.node, worker.own_core), (Some(cpus("16")), Some(1), true), "{plan}");
    assert_eq!(worker.near, Some(cpus("17-31,81-95")), "its driver's threads stay on the node, and off the core");
    assert_eq!(place(&plan, &vulkan), worker, "the same hardware has one core");
    // The CPU device of that node leaves the whole core alone, the other ones have all of theirs.
    assert_eq!(place(&plan, &cores[1]).cpus, Some(cpus("17-31,81-95")), "no sibling of the GPU worker's CPU");
    assert_eq!(place(&plan, &cores[2]).cpus, Some(cpus("32-47,96-111")));
    assert_eq!((plan.own_cores(), plan.notes().len()), (cpus("16,80"), 0), "{plan}");
    assert!(plan.to_string().contains("cuda:0            gpu          1     own core  normal    16"), "{plan}");
}

#[test]
fn a_node_without_cores_enough_shares_them_unless_told_otherwise() {
    let machine = large();
    let topology = Topology::read(machine.root());
    let gpus = ["0000:b1:00.0", "0000:b2:00.0"]
        .map(|address| gpu(&machine, Api::CUDA, u32::from(&address[6..7] == "2"), address));
    let devices = [&gpus[0], &gpus[1]];
    // 16 cores for two workers.
    let shared = plan(&topology, &devices, &PlacementOptions::default());
    assert_eq!(place(&shared, &gpus[1]).cpus, Some(cpus("48-63,112-127")), "{shared}");
    assert!(!place(&shared, &gpus[1]).own_core);
    let own = plan(&topology, &devices, &of(CoreUse::Own));
    let places = [&gpus[0], &gpus[1]].map(|info| place(&own, info));
    assert_eq!(places.clone().map(|place| place.cpus.unwrap()), ["48", "49"].map(cpus), "{own}");
    assert_eq!(plan(&topology, &devices, &of(CoreUse::Shared)), shared);
    let off = plan(&topology, &devices, &of(CoreUse::Off));
    assert_eq!(place(&off, &gpus[0]), WorkerPlace::default());
    // A process that sees the second GPU alone does not take the first one's core.
    assert_eq!(place(&plan(&topology, &devices[1..], &of(CoreUse::Own)), &gpus[1]).cpus, Some(cpus("49")));
}

#[test]
fn on_small_machines_nothing_is_bound() {
    for machine in [Fixture::laptop(), Fixture::container()] {
        let topology = Topology::read(machine.root());
        machine.pci("0000:09:00.0", GPU, -1);
        let (cuda, cores) = (gpu(&machine, Api::CUDA, 0, "0000:09:00.0"), cpu(0));
        let plan = plan(&topology, &[&cores, &cuda], &PlacementOptions::default());
        for info in [&cuda, &cores] {
            assert_eq!((place(&plan, info).cpus, place(&plan, info).notes.len()), (None, 0), "{plan}");
        }
    }
}

#[test]
fn a_container_is_left_within_its_cpuset() {
    let machine = large().file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpuset.cpus.effective", "18-21\n");
    let topology = Topology::read(machine.root());
    let (cuda, cores) = (gpu(&machine, Api::CUDA, 0, "0000:b1:00.0"), cpu(1));
    let plan = plan(&topology, &[&cores, &cuda], &of(CoreUse::Own));
    let worker = place(&plan, &cuda);
    assert_eq!((worker.cpus, worker.node), (Some(cpus("18")), Some(1)), "the nearest node with allowed CPUs");
    assert!(worker.notes[0].contains("no CPU of node 3"), "{:?}", worker.notes);
    assert_eq!(place(&plan, &cores).cpus, Some(cpus("19-21")));
}

#[test]
fn wishes_for_real_time_and_isolated_cpus_are_met_or_noted() {
    let machine = large().file("sys/devices/system/cpu/isolated", "62-63,126-127\n");
    let topology = Topology::read(machine.root());
    let mut card = gpu(&machine, Api::FPGA, 0, "0000:b3:00.0");
    card.kind = DeviceKind::Fpga;
    let (cuda, cores) = (gpu(&machine, Api::CUDA, 0, "0000:18:00.0"), cpu(3));
    let priority = RealtimePriority::SIGNAL;
    let wishes = WorkerWishes { realtime: Some(priority), isolated: true };
    let one = |info, wishes| DeviceWorkers { wishes, ..DeviceWorkers::one(info) };
    let mut plan = DevicePlan::default();
    plan.update(
        &topology,
        &[one(&card, wishes), one(&cuda, WorkerWishes::default()), one(&cores, WorkerWishes::default())],
        &of(CoreUse::Shared),
    );
    let worker = place(&plan, &card);
    assert_eq!((worker.cpus, worker.isolated, worker.realtime), (Some(cpus("62")), true, Some(priority)), "{plan}");
    assert_eq!(worker.notes, [""; 0]);
    assert_eq!((place(&plan, &cuda).realtime, place(&plan, &cuda).own_core), (None, false));
    assert_eq!(place(&plan, &cores).cpus, Some(cpus("48-61,112-125")), "isolated CPUs are left alone");
    assert!(plan.to_string().contains("isolated  fifo 50   62"), "{plan}");
    // The options' wishes are those of every worker that feeds hardware.
    let options = PlacementOptions { wishes, ..of(CoreUse::Auto) };
    let workers = [&card, &cuda, &cores].map(|info| one(info, WorkerWishes::default()));
    let mut plan = DevicePlan::default();
    plan.update(&topology, &workers, &options);
    assert_eq!([&card, &cuda].map(|info| place(&plan, info).cpus.unwrap()), ["62", "63"].map(cpus), "{plan}");
    assert_eq!(place(&plan, &cores).realtime, None);
    // A team that asks itself shares CPUs, and its notes say what that means.
    let mut plan = DevicePlan::default();
    plan.update(&topology, &[one(&cores, wishes)], &PlacementOptions::default());
    let notes = place(&plan, &cores).notes;
    assert!(notes[0].contains("threads of a team") && notes[1].contains("without a core of its own"), "{notes:?}");
    assert_eq!(place(&plan, &cores).realtime, Some(priority));
}

#[test]
fn pools_of_one_device_have_slots_of_their_own() {
    let machine = large();
    let topology = Topology::read(machine.root());
    let (cuda, vulkan) = (gpu(&machine, Api::CUDA, 0, "0000:18:00.0"), gpu(&machine, Api::VULKAN, 0, "0000:18:00.0"));
    let pool = |info, pool, workers| DeviceWorkers { pool, workers, ..DeviceWorkers::one(info) };
    let mut plan = DevicePlan::default();
    let workers = [pool(&cuda, Some("long"), 2), pool(&cuda, Some("short"), 1), pool(&vulkan, Some("long"), 1)];
    plan.update(&topology, &workers, &of(CoreUse::Own));
    let at = |info: &DeviceInfo, pool, worker| plan.place(info.id, Some(pool), worker).cpus.unwrap().to_string();
    let long = [at(&cuda, "long", 0), at(&cuda, "long", 1)];
    assert_eq!((long, at(&cuda, "short", 0)), (["16".to_owned(), "17".to_owned()], "18".to_owned()), "{plan}");
    assert_eq!(at(&vulkan, "long", 0), "16");
}

#[test]
fn devices_that_come_later_leave_the_cores_of_others_alone() {
    let machine = large();
    let topology = Topology::read(machine.root());
    let [first, second] =
        [("0000:b1:00.0", 0), ("0000:b2:00.0", 1)].map(|(at, index)| gpu(&machine, Api::CUDA, index, at));
    let one = DeviceWorkers::one;
    let mut plan = DevicePlan::default();
    plan.update(&topology, &[one(&second)], &of(CoreUse::Own));
    let before = place(&plan, &second);
    // The memory that a device has left differs at each search.
    let later = DeviceInfo { memory_available_bytes: Some(1), ..second.clone() };
    plan.update(&topology, &[one(&first), one(&later)], &of(CoreUse::Own));
    assert_eq!((place(&plan, &later), place(&plan, &first).cpus), (before, Some(cpus("48"))), "{plan}");
    // Another API finds the same hardware.
    let again = gpu(&machine, Api::OPENCL, 0, "0000:b2:00.0");
    plan.update(&topology, &[one(&first), one(&later), one(&again)], &of(CoreUse::Own));
    assert_eq!(place(&plan, &again).cpus, Some(cpus("49")), "{plan}");
    plan.update(&topology, &[one(&first)], &of(CoreUse::Own));
    assert_eq!((plan.entries().len(), plan.own_cores()), (1, cpus("48,112")), "{plan}");
    plan.note_own_cores(&["told".to_owned()]);
    plan.note_own_cores(&["told".to_owned()]);
    assert_eq!(place(&plan, &first).notes, ["told"]);
}
