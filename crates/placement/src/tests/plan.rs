//! The plans of known machines, and the requests that contradict them.

use super::fixture::{Fixture, GPU, QAT};
use crate::{
    Affinity, CpuSet, Demand, PlacementError, PlacementPlan, PlanNote, Request, Role, Topology, WorkerSlot,
    WorkersPerDevice,
};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

const TWO_EACH: WorkersPerDevice = WorkersPerDevice { gpu: 2, qat: 2, nic: 2, tpu: 2, fpga: 1 };

/// A plan with two workers for most devices.
fn for_devices(topology: &Topology) -> Result<PlacementPlan, PlacementError> {
    PlacementPlan::new(topology, &Request::for_devices(topology, &TWO_EACH))
}

/// The CPUs of a role on a node, and how many workers it has there.
fn held(plan: &PlacementPlan, node: u32, role: Role) -> (usize, String) {
    let slots: Vec<&WorkerSlot> = plan.role(role).filter(|slot| slot.node == node).collect();
    (slots.len(), slots.iter().fold(CpuSet::new(), |all, slot| &all | &slot.cpus).to_string())
}

#[test]
fn a_two_socket_host_keeps_workers_beside_their_devices() {
    let plan = for_devices(&Topology::read(Fixture::two_sockets().root())).unwrap();
    assert_eq!(plan.notes(), []);
    let rows = [(Role::Gpu, 4), (Role::Crypto, 2), (Role::Network, 2), (Role::Ml, 2), (Role::Application, 22)];
    for node in [0, 1] {
        let mut next = 32 * node as usize;
        for (role, workers) in rows {
            assert_eq!(held(&plan, node, role), (workers, format!("{next}-{}", next + workers - 1)), "{plan}");
            next += workers;
        }
        assert_eq!(next, 32 * (node as usize + 1), "every core of the node has its worker");
    }
    assert!(plan.slots().iter().all(|slot| slot.affinity == Affinity::Exclusive && slot.cpus.len() == 1));
    let second = plan.role(Role::Gpu).nth(2).unwrap();
    assert_eq!((second.device.unwrap().to_string(), second.cpus.to_string()), ("0000:11:00.0".into(), "2".into()));
}

#[test]
fn the_table_reads_well() {
    let plan = for_devices(&Topology::read(Fixture::two_sockets().root())).unwrap();
    let expected = "\
node role         device         workers  affinity   cpus
0    gpu          0000:10:00.0         2  exclusive  0-1
0    gpu          0000:11:00.0         2  exclusive  2-3
0    crypto       0000:12:00.0         2  exclusive  4-5
0    network      0000:13:00.0         2  exclusive  6-7
0    ml           0000:14:00.0         2  exclusive  8-9
0    application  -                   22  exclusive  10-31
1    gpu          0000:90:00.0         2  exclusive  32-33
";
    assert!(plan.to_string().starts_with(expected), "{plan}");
}

#[test]
fn a_laptop_gives_two_cores_to_its_gpu() {
    let plan = for_devices(&Topology::read(Fixture::laptop().root())).unwrap();
    assert_eq!(held(&plan, 0, Role::Gpu), (2, "0,2".into()), "one hardware thread of each core");
    assert_eq!(held(&plan, 0, Role::Application), (2, "4,6".into()));
    assert_eq!(plan.notes(), []);
}

#[test]
fn a_two_core_container_shares_the_second_core() {
    let plan = for_devices(&Topology::read(Fixture::container().root())).unwrap();
    let network: Vec<_> = plan.role(Role::Network).map(|slot| (slot.cpus.to_string(), slot.affinity)).collect();
    assert_eq!(network, [("0".into(), Affinity::Exclusive), ("1".into(), Affinity::Shared)]);
    let application: Vec<_> = plan.role(Role::Application).map(|slot| (slot.cpus.to_string(), slot.affinity)).collect();
    assert_eq!(application, [("1".into(), Affinity::Shared)]);
    assert!(matches!(plan.notes(), [PlanNote::Degraded { role: Role::Network, shared: 1, wanted: 2, .. }]));
    assert!(plan.to_string().contains("note: 1 of 2 network workers of 0000:00:03.0 share the free CPUs of node 0"));
}

#[test]
fn one_cpu_is_shared_by_everybody() {
    let machine = Fixture::two_sockets();
    let topology = Topology::read_with_affinity(machine.root(), Some(&cpus("40")));
    let plan = for_devices(&topology).unwrap();
    assert!(plan.slots().iter().all(|slot| (slot.cpus.to_string(), slot.affinity) == ("40".into(), Affinity::Shared)));
    assert_eq!(plan.slots().len(), 20 + 1);
    assert!(plan.slots().iter().all(|slot| slot.node == 1));
    assert!(plan.notes().iter().any(|note| matches!(note, PlanNote::Moved { wanted: 0, got: 1, .. })), "{plan}");
}

#[test]
fn a_quota_counts_as_fewer_cpus() {
    let machine =
        Fixture::two_sockets().file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpu.max", "600000 100000\n");
    let plan = for_devices(&Topology::read(machine.root())).unwrap();
    let exclusive = plan.slots().iter().filter(|slot| slot.affinity == Affinity::Exclusive);
    assert_eq!(exclusive.count(), 5, "{plan}");
    assert_eq!(plan.role(Role::Gpu).filter(|slot| slot.affinity == Affinity::Exclusive).count(), 5);
    assert_eq!(plan.role(Role::Application).count(), 1);
    assert!(plan.notes().contains(&PlanNote::Quota { cpus: 6, allowed: 128 }));
}

#[test]
fn every_device_gets_its_first_core_before_any_gets_its_second() {
    let machine = Fixture::laptop();
    machine.pci("0000:02:00.0", GPU, -1).pci("0000:03:00.0", QAT, -1);
    let plan = for_devices(&Topology::read(machine.root())).unwrap();
    let exclusive: Vec<_> = plan.slots().iter().filter(|slot| slot.affinity == Affinity::Exclusive).collect();
    let devices: Vec<String> = exclusive.iter().map(|slot| slot.device.unwrap().to_string()).collect();
    assert_eq!(devices, ["0000:01:00.0", "0000:01:00.0", "0000:02:00.0"], "{plan}");
    let machine = Fixture::laptop();
    machine.pci("0000:02:00.0", GPU, -1);
    let mask = cpus("0-5");
    let plan = for_devices(&Topology::read_with_affinity(machine.root(), Some(&mask))).unwrap();
    let exclusive: Vec<_> = plan.slots().iter().filter(|slot| slot.affinity == Affinity::Exclusive).collect();
    assert_eq!(exclusive.len(), 2);
    assert_ne!(exclusive[0].device, exclusive[1].device);
}

#[test]
fn the_table_of_workers_can_be_overridden() {
    let topology = Topology::read(Fixture::two_sockets().root());
    let workers = WorkersPerDevice { gpu: 3, nic: 0, ..TWO_EACH };
    let plan = PlacementPlan::new(&topology, &Request::for_devices(&topology, &workers).with_applications(8)).unwrap();
    assert_eq!(plan.role(Role::Gpu).count(), 12);
    assert_eq!(plan.role(Role::Network).count(), 0);
    assert_eq!((held(&plan, 0, Role::Application), held(&plan, 1, Role::Application).0), ((4, "10-13".into()), 4));
}

#[test]
fn virtual_functions_are_the_same_hardware() {
    let machine = Fixture::container();
    machine.pci("0000:00:03.1", (0x020000, 0x15b3, 0x101e), 0);
    let machine = machine.file("sys/bus/pci/devices/0000:00:03.1/physfn/vendor", "0x15b3\n");
    let request = Request::for_devices(&Topology::read(machine.root()), &WorkersPerDevice::default());
    assert_eq!(request.demands.len(), 1);
}

#[test]
fn opened_devices_say_where_they_are() {
    use panoply_core::device::{Api, DeviceId, DeviceInfo, DeviceKind};
    let id = DeviceId { api: Api::CUDA, index: 0 };
    let mut info = DeviceInfo::new(id, "test", DeviceKind::DiscreteGpu);
    (info.pci_address, info.numa_node) = ("0000:90:00.0".parse().ok(), Some(1));
    let topology = Topology::read(Fixture::two_sockets().root());
    let plan = PlacementPlan::new(&topology, &Request::new().with(Demand::for_info(&info, 1))).unwrap();
    let slot = plan.role(Role::Gpu).next().unwrap();
    assert_eq!((slot.node, slot.device, slot.cpus.to_string()), (1, info.pci_address, "32".into()));
}

#[test]
fn a_node_without_cpus_borrows_from_the_nearest() {
    let machine = Fixture::new().online("0-7");
    machine.node(0, "0-3", 1024, "10 30 40").node(1, "4-7", 1024, "30 10 20").node(2, "", 1024, "40 20 10");
    machine.pci("0000:05:00.0", GPU, 2);
    let plan = for_devices(&Topology::read(machine.root())).unwrap();
    assert_eq!(held(&plan, 1, Role::Gpu), (2, "4-5".into()));
    assert!(matches!(plan.notes(), [PlanNote::Moved { wanted: 2, got: 1, .. }]), "{plan}");
}

#[test]
fn demands_without_a_node_go_where_there_is_room() {
    let topology = Topology::read(Fixture::two_sockets().root());
    let request = Request::new().with(Demand::new(Role::Video, 3)).with(Demand::new(Role::Gpu, 4).on_node(0));
    let plan = PlacementPlan::new(&topology, &request).unwrap();
    assert_eq!(held(&plan, 1, Role::Video), (3, "32-34".into()));
}

#[test]
fn shared_workers_and_applications_share_what_nobody_holds() {
    let topology = Topology::read(Fixture::laptop().root());
    let request = Request::new()
        .with(Demand::new(Role::Network, 3).with_affinity(Affinity::Shared))
        .with(Demand::new(Role::Gpu, 1))
        .with(Demand::new(Role::Signal, 1).with_affinity(Affinity::Pinned(3)));
    let plan = PlacementPlan::new(&topology, &request).unwrap();
    assert_eq!(held(&plan, 0, Role::Gpu), (1, "0".into()));
    assert_eq!(held(&plan, 0, Role::Signal), (1, "3".into()));
    assert_eq!(held(&plan, 0, Role::Network), (3, "4-7".into()));
    assert_eq!(held(&plan, 0, Role::Application), (2, "4-7".into()));
}

#[test]
fn applications_keep_a_cpu_when_everything_is_asked_for() {
    let topology = Topology::read(Fixture::laptop().root());
    let plan = PlacementPlan::new(&topology, &Request::new().with(Demand::new(Role::Gpu, 4))).unwrap();
    assert_eq!(plan.role(Role::Gpu).filter(|slot| slot.affinity == Affinity::Exclusive).count(), 3);
    assert_eq!(held(&plan, 0, Role::Application), (1, "6-7".into()));
    let pins = (0..8).fold(Request::new(), |request, cpu| {
        request.with(Demand::new(Role::Gpu, 1).with_affinity(Affinity::Pinned(cpu)))
    });
    let plan = PlacementPlan::new(&topology, &pins).unwrap();
    assert_eq!(held(&plan, 0, Role::Application), (1, "0-7".into()));
    assert!(plan.notes().contains(&PlanNote::PinnedShared { node: 0 }));
    let plan = PlacementPlan::new(&topology, &Request::new().with_applications(9)).unwrap();
    assert_eq!(held(&plan, 0, Role::Application), (9, "0-7".into()));
    assert!(plan.notes().contains(&PlanNote::ApplicationsShared { workers: 9, cores: 4 }));
}

#[test]
fn no_application_workers_are_planned_if_none_are_wanted() {
    let topology = Topology::read(Fixture::laptop().root());
    let plan = PlacementPlan::new(&topology, &Request::new().with(Demand::new(Role::Gpu, 1)).with_applications(0));
    let roles: Vec<Role> = plan.unwrap().slots().iter().map(|slot| slot.role).collect();
    assert_eq!(roles, [Role::Gpu]);
}

#[test]
fn isolated_cpus_go_to_those_that_ask_for_them_alone() {
    let machine = Fixture::two_sockets().file("sys/devices/system/cpu/isolated", "30-31,62-63,94-95,126-127\n");
    let topology = Topology::read(machine.root());
    assert_eq!(topology.allowed(), &cpus("0-29,32-61,64-93,96-125"));
    assert_eq!(topology.isolated(), &cpus("30-31,62-63,94-95,126-127"));
    let signal = Demand::new(Role::Signal, 3).on_node(1).on_isolated();
    let request = Request::new().with(signal).with(Demand::new(Role::Gpu, 1).on_node(1));
    let plan = PlacementPlan::new(&topology, &request).unwrap();
    let isolated: Vec<_> =
        plan.slots().iter().filter(|slot| slot.isolated).map(|slot| (slot.node, slot.cpus.to_string())).collect();
    let near_and_then_far = [(0, "30".to_owned()), (1, "62".to_owned()), (1, "63".to_owned())];
    assert_eq!(isolated, near_and_then_far, "one hardware thread of each core, {plan}");
    assert_eq!(held(&plan, 1, Role::Gpu), (1, "32".into()));
    assert!(plan.role(Role::Application).all(|slot| slot.cpus.is_disjoint(topology.isolated())), "{plan}");
    // More than there are: the rest is exclusive, and a note tells.
    let plan = PlacementPlan::new(&topology, &Request::new().with(Demand { workers: 6, ..signal })).unwrap();
    assert_eq!(plan.role(Role::Signal).filter(|slot| slot.isolated).count(), 4);
    assert_eq!(held(&plan, 1, Role::Signal).0, 4, "{plan}");
    assert!(matches!(plan.notes(), [PlanNote::NotIsolated { others: 2, wanted: 6, .. }]), "{plan}");
    // Shared workers do not spread over CPUs on which nothing balances threads.
    let shared = Demand { affinity: Affinity::Shared, ..signal };
    let plan = PlacementPlan::new(&topology, &Request::new().with(shared)).unwrap();
    assert!(plan.slots().iter().all(|slot| slot.cpus.is_disjoint(topology.isolated())), "{plan}");
}

#[test]
fn a_process_that_has_isolated_cpus_alone_uses_them() {
    let machine = Fixture::two_sockets().file("sys/devices/system/cpu/isolated", "4-7\n");
    let topology = Topology::read_with_affinity(machine.root(), Some(&cpus("5-6")));
    assert_eq!((topology.allowed(), topology.isolated()), (&cpus("5-6"), &cpus("4,7")));
    // A cpuset without them leaves none.
    let machine = machine.file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpuset.cpus.effective", "0-3\n");
    assert!(Topology::read(machine.root()).isolated().is_empty());
}

#[test]
fn a_worker_that_may_run_anywhere_leaves_out_the_cores_of_others() {
    let topology = Topology::read(Fixture::two_sockets().root());
    let anywhere = Demand::new(Role::Application, 1).with_affinity(Affinity::Anywhere);
    let request = Request::new().with(anywhere).with(Demand::new(Role::Gpu, 1).on_node(1)).with_applications(0);
    let plan = PlacementPlan::new(&topology, &request).unwrap();
    let slot = plan.role(Role::Application).next().unwrap();
    assert_eq!((slot.cpus.to_string(), slot.affinity), ("0-31,33-95,97-127".into(), Affinity::Anywhere));
}

#[test]
fn reserved_cores_and_turns_keep_workers_apart() {
    let topology = Topology::read(Fixture::two_sockets().root());
    let gpu = Demand::new(Role::Gpu, 1).on_node(0);
    let first = |request: Request| {
        PlacementPlan::new(&topology, &request).unwrap().role(Role::Gpu).next().unwrap().cpus.to_string()
    };
    assert_eq!(first(Request::new().with(gpu)), "0");
    assert_eq!(first(Request::new().with(gpu.with_turn(3))), "3");
    assert_eq!(first(Request::new().with(gpu.with_turn(35))), "3", "turns go round");
    let reserved = cpus("0,65");
    assert_eq!(first(Request { reserved, ..Request::new().with(gpu) }), "2", "the core of a reserved CPU is not free");
}

#[test]
fn contradictions_are_errors_that_name_expected_and_got() {
    let machine = Fixture::two_sockets().online("0-100");
    let topology = Topology::read_with_affinity(machine.root(), Some(&cpus("0-9")));
    let error = |request: Request| PlacementPlan::new(&topology, &request).unwrap_err();
    let pinned = |cpu| Demand::new(Role::Signal, 1).with_affinity(Affinity::Pinned(cpu));

    let offline = error(Request::new().with(pinned(101)));
    assert!(matches!(&offline, PlacementError::PinnedOffline { expected, got: 101, .. } if *expected == cpus("0-100")));
    let denied = error(Request::new().with(pinned(10)));
    assert!(matches!(&denied, PlacementError::PinnedNotAllowed { expected, got: 10, .. } if *expected == cpus("0-9")));
    assert!(denied.to_string().contains("CPU 10") && denied.to_string().contains("0-9"), "{denied}");
    let twice = error(Request::new().with(pinned(1)).with(Demand { role: Role::Video, ..pinned(1) }));
    assert!(matches!(twice, PlacementError::PinnedTwice { cpu: 1, first: Role::Signal, second: Role::Video }));
    let several = error(Request::new().with(Demand { workers: 2, ..pinned(1) }));
    assert!(matches!(several, PlacementError::PinnedWorkers { cpu: 1, got: 2, .. }));
    let none = error(Request::new().with(Demand::new(Role::Ml, 0)));
    assert!(matches!(none, PlacementError::ZeroWorkers { role: Role::Ml, device: None }));
    let node = error(Request::new().with(Demand::new(Role::Gpu, 1).on_node(7)));
    assert!(matches!(&node, PlacementError::UnknownNode { expected, got: 7, .. } if *expected == [0, 1]));
    let many = error(Request::new().with(Demand::new(Role::Gpu, usize::MAX)).with(Demand::new(Role::Gpu, 1)));
    assert!(matches!(many, PlacementError::TooManyWorkers { got: usize::MAX, .. }));
    let demands = Request { demands: vec![Demand::new(Role::Gpu, 1); 9000], ..Request::new() };
    assert!(matches!(error(demands), PlacementError::TooManyDemands { got: 9000, .. }));
}
