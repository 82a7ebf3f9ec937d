//! How a plan is made.
//!
//! The rules, in the order in which they are applied:
//!
//! 1. A pinned worker gets its CPU. The rest of that core stays unused while there are enough
//!    cores.
//! 2. Roles are served in the order of [`Role`]. Within a role, every device gets its first
//!    exclusive worker before any gets its second. A worker goes to its device's node, or to the
//!    nearest node that has allowed CPUs.
//! 3. An exclusive worker gets one CPU of a core, and the core's other hardware threads stay idle.
//! 4. If there are too few cores, an exclusive worker becomes a shared one, on its own node, over
//!    the CPUs that no exclusive worker holds. The plan's notes report it. Every node with shared
//!    workers, and the machine as a whole, keeps a core for them, and the number of exclusive
//!    workers stays below the CPU quota.
//! 5. A worker that asks for an isolated CPU gets one of its node, or of the nearest node that has
//!    one left. Isolated CPUs go to no other worker. If none is left, the worker is exclusive, and
//!    a note reports it.
//! 6. Workers that may run anywhere get every CPU that no exclusive worker holds.
//! 7. Application workers get the cores that are left, one each. On a node with shared workers they
//!    share the CPUs of the shared workers.

use panoply_core::cpu_set::CpuSet;

use super::error::PlacementError;
use super::plan::{PlanNote, WorkerSlot};
use super::request::{Affinity, DEMANDS_MAX, Demand, Request, Role, WORKERS_MAX};
use super::site::{IsolatedCores, Site};
use super::topology::Topology;

/// Plans a slot for every worker of the request.
pub(super) fn place(
    topology: &Topology,
    request: &Request,
) -> Result<(Vec<WorkerSlot>, Vec<PlanNote>), PlacementError> {
    check(topology, request)?;
    let (sites, isolated) = (Site::all(topology, &request.reserved), IsolatedCores::of(topology, &request.reserved));
    let mut planner = Planner { topology, sites, isolated, slots: Vec::new(), notes: Vec::new() };
    let exclusive_max = planner.place_pinned(request);
    let (mut jobs, exclusive_max) = planner.place_isolated(request, exclusive_max);
    planner.assign_sites(&mut jobs);
    planner.grant(&mut jobs, exclusive_max);
    planner.place(&jobs);
    planner.place_anywhere(request);
    planner.place_applications(request);
    planner.slots.sort_by_key(|slot| (slot.node, slot.role));
    Ok((planner.slots, planner.notes))
}

/// Rejects a request that no plan can satisfy.
fn check(topology: &Topology, request: &Request) -> Result<(), PlacementError> {
    if request.demands.len() > DEMANDS_MAX {
        return Err(PlacementError::TooManyDemands { got: request.demands.len(), max: DEMANDS_MAX });
    }
    let counts = request.demands.iter().map(|demand| demand.workers).chain(request.applications);
    let workers = counts.fold(0usize, usize::saturating_add);
    if workers > WORKERS_MAX {
        return Err(PlacementError::TooManyWorkers { got: workers, max: WORKERS_MAX });
    }
    for (index, demand) in request.demands.iter().enumerate() {
        check_demand(topology, demand)?;
        if let Affinity::Pinned(cpu) = demand.affinity {
            let same = request.demands[..index].iter().find(|earlier| earlier.affinity == demand.affinity);
            if let Some(earlier) = same {
                return Err(PlacementError::PinnedTwice { cpu, first: earlier.role, second: demand.role });
            }
        }
    }
    Ok(())
}

fn check_demand(topology: &Topology, demand: &Demand) -> Result<(), PlacementError> {
    let Demand { role, device, workers, .. } = *demand;
    if workers == 0 {
        return Err(PlacementError::ZeroWorkers { role, device });
    }
    if let Some(got) = demand.node.filter(|node| topology.node(*node).is_none()) {
        let expected = topology.nodes().iter().map(|node| node.id).collect();
        return Err(PlacementError::UnknownNode { role, expected, got });
    }
    let Affinity::Pinned(cpu) = demand.affinity else { return Ok(()) };
    if !topology.online().contains(cpu) {
        return Err(PlacementError::PinnedOffline { role, expected: topology.online().clone(), got: cpu });
    }
    if !topology.allowed().contains(cpu) {
        return Err(PlacementError::PinnedNotAllowed { role, expected: topology.allowed().clone(), got: cpu });
    }
    if workers > 1 {
        return Err(PlacementError::PinnedWorkers { role, cpu, got: workers });
    }
    Ok(())
}

/// A demand that is not pinned, and the decisions about it.
struct OpenDemand<'a> {
    demand: &'a Demand,
    /// The index of the demand in the request.
    index: usize,
    /// Workers that have no isolated CPU.
    workers: usize,
    site: usize,
    /// Workers that get a core of their own.
    granted: usize,
}

struct Planner<'a> {
    topology: &'a Topology,
    sites: Vec<Site>,
    isolated: IsolatedCores,
    slots: Vec<WorkerSlot>,
    notes: Vec<PlanNote>,
}

impl Planner<'_> {
    /// Applies rule 1. Returns the number of exclusive workers that the CPU quota allows beside one
    /// application worker.
    fn place_pinned(&mut self, request: &Request) -> usize {
        let (effective, allowed) = (self.topology.effective_cpus(), self.topology.allowed().len());
        if effective < allowed {
            self.notes.push(PlanNote::Quota { cpus: effective, allowed });
        }
        let mut pinned = 0;
        for (index, demand) in request.demands.iter().enumerate() {
            let Affinity::Pinned(cpu) = demand.affinity else { continue };
            let Some(site) = self.sites.iter_mut().find(|site| site.cpus.contains(cpu)) else { continue };
            site.pin(cpu);
            pinned += 1;
            let node = site.node;
            if let Some(wanted) = demand.node.filter(|wanted| *wanted != node) {
                self.notes.push(PlanNote::PinnedFar { role: demand.role, cpu, wanted, got: node });
            }
            self.add(demand, Some(index), node, CpuSet::from_cpus([cpu]).unwrap_or_default(), demand.affinity);
        }
        effective.saturating_sub(pinned + 1)
    }

    /// Applies rule 5. Returns the demands for a node, with the workers that are still to be
    /// placed, and how many of them may be exclusive. Isolated CPUs are not among the allowed ones,
    /// so that only a quota is used up by them.
    fn place_isolated<'r>(&mut self, request: &'r Request, exclusive_max: usize) -> (Vec<OpenDemand<'r>>, usize) {
        let mut left = self.topology.quota().map_or(usize::MAX, |quota| quota.cpus() - 1);
        let indexed = request.demands.iter().enumerate();
        let of_nodes = indexed.filter(|(_, demand)| matches!(demand.affinity, Affinity::Exclusive | Affinity::Shared));
        let open = |(index, demand): (usize, &'r Demand)| OpenDemand {
            demand,
            index,
            workers: demand.workers,
            site: 0,
            granted: 0,
        };
        let mut jobs: Vec<OpenDemand<'r>> = of_nodes.map(open).collect();
        jobs.sort_by_key(|job| job.demand.role);
        let asks = |job: &&mut OpenDemand<'_>| job.demand.isolated && job.demand.affinity == Affinity::Exclusive;
        // Each node's isolated cores go to the workers of that node first.
        for is_near in [true, false] {
            for job in jobs.iter_mut().filter(asks) {
                while job.workers > 0
                    && left > 0
                    && let Some((node, cpu)) = self.isolated.take(self.topology, job.demand.node, is_near)
                {
                    self.add(job.demand, Some(job.index), node, cpu, Affinity::Exclusive);
                    (job.workers, left) = (job.workers - 1, left - 1);
                }
            }
        }
        for job in jobs.iter_mut().filter(asks).filter(|job| job.workers > 0) {
            let Demand { role, device, workers, .. } = *job.demand;
            self.notes.push(PlanNote::NotIsolated { role, device, others: job.workers, wanted: workers });
        }
        jobs.retain(|job| job.workers > 0);
        (jobs, exclusive_max.min(left))
    }

    /// Applies the second half of rule 2: chooses a node for every demand.
    fn assign_sites(&mut self, jobs: &mut [OpenDemand<'_>]) {
        // Demands with a known node come first, so that the others go where there is room.
        for named in [true, false] {
            for job in jobs.iter_mut().filter(|job| job.demand.node.is_some() == named) {
                job.site = self.site_for(job.demand);
                match job.demand.affinity {
                    Affinity::Exclusive => self.sites[job.site].wanted += job.workers,
                    _ => self.sites[job.site].has_shared = true,
                }
            }
        }
    }

    fn site_for(&mut self, demand: &Demand) -> usize {
        let Some(wanted) = demand.node else {
            // The site with the most room; the first of equal sites.
            let room = |site: &Site| site.free.len() as isize - site.wanted as isize;
            let roomiest = (0..self.sites.len()).min_by_key(|index| -room(&self.sites[*index]));
            return roomiest.unwrap_or(0);
        };
        let home = self.topology.node(wanted);
        let distance = |site: &Site| home.map_or(u32::MAX, |home| home.distance_to(site.node));
        let nearest = (0..self.sites.len()).min_by_key(|index| distance(&self.sites[*index])).unwrap_or(0);
        let got = self.sites[nearest].node;
        if got != wanted {
            self.notes.push(PlanNote::Moved { role: demand.role, device: demand.device, wanted, got });
        }
        nearest
    }

    /// Applies rules 2 and 4: decides which exclusive workers get a core of their own.
    fn grant(&mut self, jobs: &mut [OpenDemand<'_>], exclusive_max: usize) {
        let mut left: Vec<usize> = self.sites.iter().map(Site::exclusive_max).collect();
        let none_remains = self.sites.iter().zip(&left).all(|(site, left)| site.free.len() <= site.wanted.min(*left));
        if none_remains && let Some(last) = left.iter().rposition(|left| *left > 0) {
            left[last] = self.sites[last].free.len() - 1;
        }
        let mut budget = exclusive_max;
        for role in Role::ALL {
            let mut progress = true;
            while progress {
                progress = false;
                let same_role = jobs.iter_mut().filter(|job| job.demand.role == role);
                for job in same_role.filter(|job| job.demand.affinity == Affinity::Exclusive) {
                    if job.granted < job.workers && left[job.site] > 0 && budget > 0 {
                        job.granted += 1;
                        left[job.site] -= 1;
                        budget -= 1;
                        progress = true;
                    }
                }
            }
        }
    }

    /// Applies rules 3 and 4: assigns cores to the granted workers, then the rest of the node to
    /// those that share.
    fn place(&mut self, jobs: &[OpenDemand<'_>]) {
        for job in jobs {
            for nth in 0..job.granted {
                let Some(cpu) = self.sites[job.site].take_core(job.demand.turn + nth) else { break };
                self.add(job.demand, Some(job.index), self.sites[job.site].node, cpu, Affinity::Exclusive);
            }
        }
        for job in jobs {
            let Demand { role, device, affinity, .. } = *job.demand;
            let shared = job.workers - job.granted;
            if shared == 0 {
                continue;
            }
            let node = self.sites[job.site].node;
            if affinity == Affinity::Exclusive {
                self.notes.push(PlanNote::Degraded { role, device, node, shared, wanted: job.workers });
            }
            let cpus = self.share(job.site);
            for _ in 0..shared {
                self.add(job.demand, Some(job.index), node, cpus.clone(), Affinity::Shared);
            }
        }
    }

    /// Applies rule 6.
    fn place_anywhere(&mut self, request: &Request) {
        let indexed = request.demands.iter().enumerate();
        for (index, demand) in indexed.filter(|(_, demand)| demand.affinity == Affinity::Anywhere) {
            let open: Vec<usize> = (0..self.sites.len()).filter(|site| !self.sites[*site].free.is_empty()).collect();
            let sites = if open.is_empty() { (0..self.sites.len()).collect() } else { open };
            let cpus = sites.iter().fold(CpuSet::new(), |all, site| &all | &self.share(*site));
            let node = self.sites[sites.first().copied().unwrap_or(0)].node;
            for _ in 0..demand.workers {
                self.add(demand, Some(index), node, cpus.clone(), Affinity::Anywhere);
            }
        }
    }

    /// Applies rule 7.
    fn place_applications(&mut self, request: &Request) {
        let cores: usize = self.sites.iter().map(|site| site.free.len()).sum();
        let busy = self.slots.iter().filter(|slot| slot.affinity.is_own_core()).count();
        let within_quota = self.topology.effective_cpus().saturating_sub(busy);
        let workers = request.applications.unwrap_or(cores.min(within_quota).max(1));
        let crowded = workers > cores;
        if crowded {
            self.notes.push(PlanNote::ApplicationsShared { workers, cores });
        }
        for site in self.deal(workers) {
            let node = self.sites[site].node;
            let demand = Demand::new(Role::Application, 1);
            if crowded || self.sites[site].has_sharers {
                let cpus = self.share(site);
                self.add(&demand, None, node, cpus, Affinity::Shared);
            } else if let Some(cpu) = self.sites[site].take_core(0) {
                self.add(&demand, None, node, cpu, Affinity::Exclusive);
            }
        }
    }

    /// The site of each application worker. The sites take turns, each as often as it has cores
    /// left. Further workers go round the sites that have any core left, or round all sites when no
    /// core is left anywhere.
    fn deal(&self, workers: usize) -> Vec<usize> {
        let sites = 0..self.sites.len();
        let cores = |index: usize| self.sites[index].free.len();
        let rounds = sites.clone().map(cores).max().unwrap_or(0);
        let in_turn = (0..rounds).flat_map(|round| sites.clone().filter(move |index| cores(*index) > round));
        let mut dealt: Vec<usize> = in_turn.take(workers).collect();
        let open: Vec<usize> = sites.filter(|index| rounds == 0 || cores(*index) > 0).collect();
        dealt.extend(open.iter().cycle().copied().take(workers - dealt.len()));
        dealt
    }

    /// The CPUs of a site for its shared workers.
    fn share(&mut self, site: usize) -> CpuSet {
        let site = &mut self.sites[site];
        let first_time = !site.has_sharers;
        site.has_sharers = true;
        if first_time && site.free.is_empty() {
            self.notes.push(PlanNote::PinnedShared { node: site.node });
        }
        site.shared_cpus()
    }

    fn add(&mut self, demand: &Demand, index: Option<usize>, node: u32, cpus: CpuSet, affinity: Affinity) {
        let isolated = affinity.is_own_core() && cpus.is_subset(self.topology.isolated());
        let Demand { role, device, .. } = *demand;
        self.slots.push(WorkerSlot { role, device, node, cpus, affinity, isolated, demand: index });
    }
}
