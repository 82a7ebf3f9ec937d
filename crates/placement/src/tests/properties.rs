//! Properties of every plan of every machine.

use proptest::prelude::*;

use super::fixture::{Fixture, GPU, NIC, QAT, TPU};
use crate::{Affinity, CpuSet, Demand, PlacementPlan, Request, Role, Topology, WorkerSlot};

/// A machine: cores per node, hardware threads per core, CPUs that are offline, the affinity mask,
/// a quota in CPUs, and devices with their nodes.
#[derive(Clone, Debug)]
struct Machine {
    cores: Vec<usize>,
    threads: usize,
    offline: Vec<bool>,
    mask: Option<Vec<bool>>,
    quota: Option<u8>,
    devices: Vec<(usize, i64)>,
}

fn machines() -> impl Strategy<Value = Machine> {
    (
        proptest::collection::vec(0..7usize, 1..4),
        1..4usize,
        proptest::collection::vec(proptest::bool::weighted(0.2), 64),
        proptest::option::of(proptest::collection::vec(any::<bool>(), 64)),
        proptest::option::weighted(0.3, 1..8u8),
        proptest::collection::vec((0..4usize, -1..4i64), 0..5),
    )
        .prop_map(|(cores, threads, offline, mask, quota, devices)| Machine {
            cores,
            threads,
            offline,
            mask,
            quota,
            devices,
        })
}

fn select(cpus: usize, wanted: impl Fn(usize) -> bool) -> CpuSet {
    CpuSet::from_cpus((0..cpus).filter(|cpu| wanted(*cpu))).unwrap()
}

impl Machine {
    fn read(&self) -> Topology {
        let total: usize = self.cores.iter().sum();
        let count = total * self.threads;
        let online = select(count, |cpu| !self.offline[cpu]);
        let mut tree = Fixture::new().online(&online.to_string());
        let mut first = 0;
        for (node, cores) in self.cores.iter().enumerate() {
            let own = |cpu: usize| (first..first + cores).contains(&(cpu % total));
            tree.node(node, &select(count, own).to_string(), 1024, &"20 ".repeat(self.cores.len()));
            first += cores;
        }
        for cpu in 0..count {
            let siblings = select(count, |other| other % total == cpu % total);
            tree.cpu(cpu, 0, cpu % total, &(&siblings & &online).to_string());
        }
        for (index, (kind, node)) in self.devices.iter().enumerate() {
            tree.pci(&format!("0000:{index:02x}:00.0"), [GPU, QAT, NIC, TPU][*kind], *node);
        }
        if let Some(quota) = self.quota {
            let text = format!("{}50000 100000\n", quota);
            tree = tree.file("proc/self/cgroup", "0::/\n").file("sys/fs/cgroup/cpu.max", text);
        }
        let mask = self.mask.as_ref().map(|mask| select(count, |cpu| mask[cpu]));
        Topology::read_with_affinity(tree.root(), mask.as_ref())
    }
}

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let affinity = prop_oneof![
        4 => Just(Affinity::Exclusive),
        2 => Just(Affinity::Shared),
        1 => (0..64usize).prop_map(Affinity::Pinned),
    ];
    let demand =
        (0..7usize, proptest::option::of(0..3u32), 0..6usize, affinity).prop_map(|(role, node, workers, affinity)| {
            let workers = if matches!(affinity, Affinity::Pinned(_)) { 1 } else { workers.max(1) };
            Demand { node, affinity, ..Demand::new(Role::ALL[role], workers) }
        });
    proptest::collection::vec(demand, 0..6)
}

/// The whole core that holds this slot's only CPU.
fn core_of<'a>(topology: &'a Topology, slot: &WorkerSlot) -> &'a CpuSet {
    let cpu = slot.cpus.first().unwrap();
    &topology.cores().iter().find(|core| core.cpus.contains(cpu)).unwrap().cpus
}

fn check(topology: &Topology, request: &Request, plan: &PlacementPlan) -> Result<(), TestCaseError> {
    let slots = plan.slots();
    for (index, slot) in slots.iter().enumerate() {
        prop_assert!(!slot.cpus.is_empty() && slot.cpus.is_subset(topology.allowed()), "{}", plan);
        prop_assert!(topology.node(slot.node).is_some());
        if let Affinity::Pinned(cpu) = slot.affinity {
            prop_assert_eq!(slot.cpus.to_string(), cpu.to_string());
        }
        if slot.affinity == Affinity::Exclusive {
            prop_assert_eq!(slot.cpus.len(), 1);
            let core = core_of(topology, slot);
            let others = slots.iter().enumerate().filter(|(other, _)| *other != index);
            for (_, other) in others {
                prop_assert!(other.cpus.is_disjoint(core), "core {} is double-booked:\n{}", core, plan);
            }
        }
    }
    let exclusive = slots.iter().filter(|slot| slot.affinity == Affinity::Exclusive).count();
    prop_assert!(exclusive <= topology.cores().len());
    for role in Role::ALL {
        let wanted: usize = request.demands.iter().filter(|d| d.role == role).map(|d| d.workers).sum();
        let got = plan.role(role).count();
        if role == Role::Application {
            prop_assert!(got > wanted, "at least one worker more than the explicit demands:\n{}", plan);
        } else {
            prop_assert_eq!(got, wanted, "{}", plan);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_stay_within_the_machine(
        machine in machines(),
        extra in demands(),
        applications in proptest::option::of(1..40usize),
    ) {
        let topology = machine.read();
        let mut request = Request::for_devices(&topology, &Default::default());
        request.demands.extend(extra);
        request.applications = applications;
        // Contradictions are tested elsewhere, so they are removed here.
        request.demands.retain(|demand| demand.node.is_none_or(|node| topology.node(node).is_some()));
        let mut pins = CpuSet::new();
        request.demands.retain(|demand| match demand.affinity {
            Affinity::Pinned(cpu) => topology.allowed().contains(cpu) && pins.insert(cpu).unwrap(),
            _ => true,
        });
        let plan = PlacementPlan::new(&topology, &request).unwrap();
        check(&topology, &request, &plan)?;
    }

    #[test]
    fn any_request_gives_a_plan_or_an_error(machine in machines(), demands in demands()) {
        let topology = machine.read();
        let request = Request { demands, ..Request::new() };
        if let Ok(plan) = PlacementPlan::new(&topology, &request) {
            check(&topology, &request, &plan)?;
        }
    }
}
