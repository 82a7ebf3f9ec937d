//! The plan of the workers that serve a runtime's devices. `panoply plan`, the runtime that starts
//! the threads and the reports of its workers all use this one plan.
//!
//! 1. Workers of one piece of hardware, reached through several APIs, share their slots: an op goes
//!    to one of them.
//! 2. A worker that feeds an accelerator gets a core of its own under [`CoreUse::Own`], if it asks
//!    for real-time scheduling or for an isolated CPU, and under [`CoreUse::Auto`] on nodes with at
//!    least [`CORES_PER_OWN_CORE`] cores for each such worker. Otherwise it shares the CPUs of its
//!    node.
//! 3. A worker that computes on the cores themselves runs on the CPUs of its node that no other
//!    worker has as its own.
//! 4. The core depends on the place of the device among the machine's accelerators. So processes
//!    that serve different devices get different cores, although they know nothing of each other.
//! 5. A worker keeps its slots when devices come later; cores that are in use are not given out
//!    again.

use std::fmt;

use panoply_core::cpu_set::CpuSet;
use panoply_core::device::{DeviceId, DeviceInfo, PciAddress};

use super::affinity::RealtimePriority;
use super::place::WorkerPlace;
use super::plan::{PlacementPlan, WorkerSlot};
use super::request::{Affinity, Demand, Request, Role};
use super::topology::Topology;

/// Under [`CoreUse::Auto`] a node has this many cores for each worker with a core of its own: the
/// worker takes no more than a sixteenth from the CPU device.
pub const CORES_PER_OWN_CORE: usize = 16;

/// Which workers get a core of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreUse {
    /// Workers of accelerators, on nodes with at least [`CORES_PER_OWN_CORE`] cores for each.
    #[default]
    Auto,
    /// Workers of accelerators, on any machine.
    Own,
    /// Only workers that ask for real-time scheduling or for isolated CPUs.
    Shared,
    /// None: threads are not bound to CPUs at all.
    Off,
}

impl CoreUse {
    /// Every choice.
    pub const ALL: [CoreUse; 4] = [CoreUse::Auto, CoreUse::Own, CoreUse::Shared, CoreUse::Off];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            CoreUse::Auto => "auto",
            CoreUse::Own => "own",
            CoreUse::Shared => "shared",
            CoreUse::Off => "off",
        }
    }
}

/// How the workers of a runtime are placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementOptions {
    /// Which workers get a core of their own.
    pub cores: CoreUse,
    /// The wishes of workers that feed accelerators, and whose pool has none.
    pub wishes: WorkerWishes,
    /// Whether interrupts are moved off the cores of workers that have their own.
    pub interrupts: bool,
}

/// The wishes of the workers of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerWishes {
    /// Run before every normal thread (`SCHED_FIFO`).
    pub realtime: Option<RealtimePriority>,
    /// Run on CPUs to which the scheduler moves no other thread (`isolcpus`).
    pub isolated: bool,
}

/// The workers of one pool of one device.
#[derive(Clone, Debug)]
pub struct DeviceWorkers<'a> {
    /// The device.
    pub info: &'a DeviceInfo,
    /// The pool; `None` if all ops of the device go to the same workers.
    pub pool: Option<&'a str>,
    /// The number of workers.
    pub workers: usize,
    /// Their wishes.
    pub wishes: WorkerWishes,
}

impl<'a> DeviceWorkers<'a> {
    /// The one worker of a device.
    pub fn one(info: &'a DeviceInfo) -> DeviceWorkers<'a> {
        DeviceWorkers { info, pool: None, workers: 1, wishes: WorkerWishes::default() }
    }
}

/// Where the workers of a runtime's devices run. The default has no workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicePlan {
    entries: Vec<PlanEntry>,
    notes: Vec<String>,
}

/// The slots of the workers of one pool of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanEntry {
    /// The device.
    pub device: DeviceId,
    /// The pool, if the device has several.
    pub pool: Option<String>,
    /// The slot of each worker; empty if they are not bound to CPUs.
    pub slots: Vec<WorkerSlot>,
    places: Vec<WorkerPlace>,
    info: DeviceInfo,
    /// The whole cores of the workers that have their own.
    own_cores: CpuSet,
}

impl DevicePlan {
    /// Plans the workers that have no slots yet, and forgets those of devices that are not listed.
    /// Nothing fails here: a wish that cannot be met becomes a note.
    pub fn update(&mut self, topology: &Topology, workers: &[DeviceWorkers<'_>], options: &PlacementOptions) {
        let is = |entry: &PlanEntry, one: &DeviceWorkers<'_>| {
            let (before, now) = (&entry.info, one.info);
            let is_there = (before.pci_address, before.numa_node) == (now.pci_address, now.numa_node);
            entry.device == now.id && entry.pool.as_deref() == one.pool && is_there
        };
        self.entries.retain(|entry| workers.iter().any(|one| is(entry, one)));
        let fresh: Vec<&DeviceWorkers<'_>> =
            workers.iter().filter(|one| !self.entries.iter().any(|entry| is(entry, one))).collect();
        let draft = Draft::new(topology, options, &self.entries, &fresh);
        let plan = PlacementPlan::new(topology, &draft.request);
        let (slots, notes) = match &plan {
            Ok(plan) => (plan.slots(), plan.notes().iter().map(ToString::to_string).collect()),
            Err(error) => (&[][..], vec![format!("threads are not bound to CPUs: {error}")]),
        };
        self.notes = notes;
        let own: CpuSet = slots
            .iter()
            .filter(|slot| slot.affinity.is_own_core())
            .fold(draft.request.reserved, |all, slot| &all | &whole_cores(topology, &slot.cpus));
        for (one, source) in fresh.iter().zip(&draft.sources) {
            let slots: Vec<WorkerSlot> = match source {
                SlotSource::Unbound => Vec::new(),
                SlotSource::Demand(demand) => {
                    slots.iter().filter(|slot| slot.demand == Some(*demand)).take(one.workers).cloned().collect()
                }
                SlotSource::Entry(entry) => self.entries[*entry].slots.clone(),
            };
            let wishes = wishes_of(one, options);
            let place = |slot: &WorkerSlot| place_of(topology, one.info, wishes, slot, &own);
            let unbound =
                WorkerPlace { realtime: wishes.realtime, notes: unbound_notes(wishes), ..WorkerPlace::default() };
            let places = if slots.is_empty() { vec![unbound] } else { slots.iter().map(place).collect() };
            let held = slots.iter().filter(|slot| slot.affinity.is_own_core());
            let own_cores = held.fold(CpuSet::new(), |all, slot| &all | &whole_cores(topology, &slot.cpus));
            let (device, pool) = (one.info.id, one.pool.map(str::to_owned));
            self.entries.push(PlanEntry { device, pool, slots, places, info: one.info.clone(), own_cores });
        }
    }

    /// Where a worker runs: the `worker`-th of a pool of a device, counted from 0. A worker that
    /// the plan does not know runs anywhere.
    pub fn place(&self, device: DeviceId, pool: Option<&str>, worker: usize) -> WorkerPlace {
        let of_device = || self.entries.iter().filter(|entry| entry.device == device);
        let entry = of_device().find(|entry| entry.pool.as_deref() == pool).or_else(|| of_device().next());
        let place = entry.and_then(|entry| entry.places.get(worker % entry.places.len().max(1)));
        place.cloned().unwrap_or_default()
    }

    /// The pools of all devices, with the slots of their workers.
    pub fn entries(&self) -> &[PlanEntry] {
        &self.entries
    }

    /// The wishes that the plan could not meet.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// All CPUs of the cores that belong to one worker each.
    pub fn own_cores(&self) -> CpuSet {
        self.entries.iter().fold(CpuSet::new(), |all, entry| &all | &entry.own_cores)
    }

    /// Adds notes to every worker with a core of its own.
    pub fn note_own_cores(&mut self, notes: &[String]) {
        let places = self.entries.iter_mut().flat_map(|entry| &mut entry.places);
        for place in places.filter(|place| place.own_core) {
            let known = std::mem::take(&mut place.notes);
            let fresh = notes.iter().filter(|note| !known.contains(note)).cloned().collect::<Vec<_>>();
            place.notes = [known, fresh].concat();
        }
    }
}

impl PlanEntry {
    /// The places of the workers: one for each slot, or one for all if they have none.
    pub fn places(&self) -> &[WorkerPlace] {
        &self.places
    }

    /// The work of the workers.
    pub fn role(&self) -> Role {
        role_of(&self.info)
    }

    /// The device's address on the PCI bus.
    pub fn pci_address(&self) -> Option<PciAddress> {
        self.info.pci_address
    }
}

/// A table with one line for each worker.
impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18}{:<13}{:<6}{:<10}{:<10}cpus", "worker", "role", "node", "affinity", "priority")?;
        for entry in &self.entries {
            let pool = entry.pool.as_ref().map(|pool| format!(" {pool}")).unwrap_or_default();
            let (worker, role) = (format!("{}{pool}", entry.device), role_of(&entry.info));
            for (index, place) in entry.places.iter().enumerate() {
                let slot = entry.slots.get(index);
                let node = place.node.map_or_else(|| "any".to_owned(), |node| node.to_string());
                let affinity = slot.map_or("unbound", affinity_text);
                let priority =
                    place.realtime.map_or_else(|| "normal".to_owned(), |fifo| format!("fifo {}", fifo.get()));
                let cpus = slot.map_or_else(|| "all".to_owned(), |slot| slot.cpus.to_string());
                writeln!(f, "{worker:<18}{role:<13}{node:<6}{affinity:<10}{priority:<10}{cpus}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// The affinity of a slot as tables name it.
fn affinity_text(slot: &WorkerSlot) -> &'static str {
    match slot.affinity {
        _ if slot.isolated => "isolated",
        Affinity::Exclusive | Affinity::Pinned(_) => "own core",
        Affinity::Shared => "shared",
        Affinity::Anywhere => "anywhere",
    }
}

/// Where the slots of new workers come from.
enum SlotSource {
    Unbound,
    /// The demand with this index.
    Demand(usize),
    /// The same hardware has slots already.
    Entry(usize),
}

/// The request for workers that have no slots yet.
struct Draft {
    request: Request,
    /// One for each of them.
    sources: Vec<SlotSource>,
}

impl Draft {
    fn new(
        topology: &Topology,
        options: &PlacementOptions,
        entries: &[PlanEntry],
        fresh: &[&DeviceWorkers<'_>],
    ) -> Draft {
        let reserved = entries.iter().fold(CpuSet::new(), |all, entry| &all | &entry.own_cores);
        let mut draft = Draft { request: Request { reserved, ..Request::new() }, sources: Vec::new() };
        draft.request.applications = Some(0);
        let held =
            entries.iter().filter(|entry| !entry.own_cores.is_empty()).map(|entry| (&entry.info, entry.slots.len()));
        let feeding: Vec<(&DeviceInfo, usize)> = held.chain(distinct(fresh)).collect();
        for (index, one) in fresh.iter().enumerate() {
            let source = match options.cores {
                CoreUse::Off => SlotSource::Unbound,
                _ => draft.source(entries, &fresh[..index], one).unwrap_or_else(|| {
                    draft.request.demands.push(demand_of(topology, options, &feeding, one));
                    SlotSource::Demand(draft.request.demands.len() - 1)
                }),
            };
            draft.sources.push(source);
        }
        draft
    }

    /// The slots of the same pool of the same hardware, through another API.
    fn source(
        &mut self,
        entries: &[PlanEntry],
        before: &[&DeviceWorkers<'_>],
        one: &DeviceWorkers<'_>,
    ) -> Option<SlotSource> {
        let same = |info: &DeviceInfo, pool: Option<&str>| {
            feeds(one.info) && feeds(info) && pool == one.pool && info.is_same_hardware(one.info)
        };
        let held = entries.iter().position(|entry| !entry.slots.is_empty() && same(&entry.info, entry.pool.as_deref()));
        if let Some(entry) = held {
            return Some(SlotSource::Entry(entry));
        }
        let earlier = before.iter().position(|other| same(other.info, other.pool))?;
        let SlotSource::Demand(demand) = self.sources[earlier] else { return None };
        let workers = &mut self.request.demands[demand].workers;
        *workers = (*workers).max(one.workers);
        Some(SlotSource::Demand(demand))
    }
}

/// One worker group for each piece of hardware, and its workers.
fn distinct<'a>(fresh: &[&DeviceWorkers<'a>]) -> Vec<(&'a DeviceInfo, usize)> {
    let mut found: Vec<(&DeviceInfo, Option<&str>, usize)> = Vec::new();
    for one in fresh.iter().filter(|one| feeds(one.info)) {
        match found.iter_mut().find(|(info, pool, _)| *pool == one.pool && info.is_same_hardware(one.info)) {
            Some((.., workers)) => *workers = (*workers).max(one.workers),
            None => found.push((one.info, one.pool, one.workers)),
        }
    }
    found.into_iter().map(|(info, _, workers)| (info, workers)).collect()
}

/// Whether the workers of a device feed hardware beside the cores.
fn feeds(info: &DeviceInfo) -> bool {
    role_of(info) != Role::Application
}

fn role_of(info: &DeviceInfo) -> Role {
    if info.runs_on_cores { Role::Application } else { Role::for_kind(info.kind) }
}

fn wishes_of(one: &DeviceWorkers<'_>, options: &PlacementOptions) -> WorkerWishes {
    let of_all = if feeds(one.info) { options.wishes } else { WorkerWishes::default() };
    WorkerWishes { realtime: one.wishes.realtime.or(of_all.realtime), isolated: one.wishes.isolated || of_all.isolated }
}

fn demand_of(
    topology: &Topology,
    options: &PlacementOptions,
    feeding: &[(&DeviceInfo, usize)],
    one: &DeviceWorkers<'_>,
) -> Demand {
    let wishes = wishes_of(one, options);
    let node = one.info.numa_node.filter(|node| topology.node(*node).is_some());
    let mut demand = Demand { node, ..Demand::for_info(one.info, one.workers) };
    demand.role = role_of(one.info);
    let is_wanted = match options.cores {
        CoreUse::Own => true,
        CoreUse::Auto => has_cores_enough(topology, feeding, node),
        CoreUse::Shared | CoreUse::Off => false,
    };
    demand.affinity = match feeds(one.info) && (is_wanted || wishes.isolated || wishes.realtime.is_some()) {
        true => Affinity::Exclusive,
        false if node.is_some() => Affinity::Shared,
        false => Affinity::Anywhere,
    };
    Demand { isolated: wishes.isolated, turn: turn_of(topology, one.info), ..demand }
}

/// Whether a node, or the machine if no node is known, has cores enough for the workers that feed
/// its accelerators.
fn has_cores_enough(topology: &Topology, feeding: &[(&DeviceInfo, usize)], node: Option<u32>) -> bool {
    let is_here = |other: Option<u32>| node.is_none() || other.is_none() || other == node;
    let usable = topology.cores().iter().filter(|core| !core.cpus.is_disjoint(topology.allowed()));
    let cores = usable.filter(|core| is_here(Some(core.node))).count().min(topology.effective_cpus());
    let workers: usize = feeding.iter().filter(|(info, _)| is_here(info.numa_node)).map(|(_, workers)| workers).sum();
    cores >= workers.saturating_mul(CORES_PER_OWN_CORE)
}

/// The number of a device among the accelerators of its node, by their addresses.
fn turn_of(topology: &Topology, info: &DeviceInfo) -> usize {
    let Some(address) = info.pci_address else { return 0 };
    let node = topology.devices().iter().find(|device| device.address == address).and_then(|device| device.node);
    let is_beside = |device: &&super::pci::PciDevice| {
        !device.is_virtual_function
            && device.node == node
            && matches!(Role::for_pci(device.kind), Some(role) if role != Role::Network)
    };
    topology.devices().iter().filter(is_beside).take_while(|device| device.address < address).count()
}

/// All CPUs of the cores that these CPUs are on.
fn whole_cores(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    let touched = topology.cores().iter().filter(|core| !core.cpus.is_disjoint(cpus));
    touched.fold(CpuSet::new(), |all, core| &all | &core.cpus)
}

/// The place of the worker of a slot. `own` has the cores that belong to single workers.
fn place_of(
    topology: &Topology,
    info: &DeviceInfo,
    wishes: WorkerWishes,
    slot: &WorkerSlot,
    own: &CpuSet,
) -> WorkerPlace {
    let own_core = slot.affinity.is_own_core();
    let restricts = own_core || !topology.allowed().is_subset(&slot.cpus);
    let near = own_core.then(|| {
        let of_node = topology.node(slot.node).map(|node| &(&node.cpus & topology.allowed()) - own);
        of_node.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| slot.cpus.clone())
    });
    let mut notes = Vec::new();
    if let Some(node) = info.numa_node.filter(|node| *node != slot.node) {
        notes.push(format!("it runs on node {}: no CPU of node {node}, where its device is, is free", slot.node));
    }
    if wishes.isolated && !slot.isolated {
        let why = match (feeds(info), topology.isolated().is_empty()) {
            (false, _) => "the threads of a team share their CPUs, and isolated ones hold one thread each",
            (true, true) => "the machine has none that this process may use (isolcpus)",
            (true, false) => "other workers have them",
        };
        notes.push(format!("no isolated CPU: {why}"));
    }
    if wishes.realtime.is_some() && !own_core {
        notes.push("real-time without a core of its own: it may keep other threads off their CPUs".to_owned());
    }
    WorkerPlace {
        cpus: restricts.then(|| slot.cpus.clone()),
        near,
        node: (slot.affinity != Affinity::Anywhere).then_some(slot.node),
        own_core,
        isolated: slot.isolated,
        realtime: wishes.realtime,
        notes,
    }
}

/// The notes of a worker that is not bound to CPUs.
fn unbound_notes(wishes: WorkerWishes) -> Vec<String> {
    let note = "no isolated CPU: threads are not bound to CPUs (placement.cores is off)".to_owned();
    if wishes.isolated { vec![note] } else { Vec::new() }
}
