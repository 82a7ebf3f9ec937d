//! Where workers run: near their devices, on cores of their own while there are enough.
//!
//! [`Topology`] reads what hardware the machine has and which part of it this process may use. A
//! [`Request`] says which workers are wanted. [`PlacementPlan`] gives each of them a
//! [`WorkerSlot`]. [`DevicePlan`] makes the request for a runtime's devices, and gives each
//! worker's thread its [`WorkerPlace`]. Reading never fails (gaps become notes), planning fails
//! only on contradictions, and nothing here starts a thread. [`realtime`] is for threads with
//! deadlines.
//!
//! Modules in reading order:
//!
//! * `topology`: the machine, from files that `sysfs` reads: `nodes`, `cores`, `pci`, and the
//!   limits of `cgroup`.
//! * `memory`: the part of a machine's or a node's memory that the process may use.
//! * `request`, `plan`: what is asked for, and the answer. `planner` makes one from the other;
//!   `site` is the part of the machine that it has left.
//! * `devices`: the plan of the workers of a runtime's devices. `place`: where one of them runs.
//!   `interrupts`: which interrupts were moved off the workers' cores.
//! * [`affinity`]: the calling thread's CPUs and priority. [`realtime`]: threads with deadlines,
//!   and `histogram`: by how much they missed them.
//! * `sys_linux`, `sys_other`: the system calls. `error`: why one of them, or a plan, failed.
//!
//! ```
//! use panoply_placement::{PlacementPlan, Role, Topology};
//!
//! let topology = Topology::current();
//! let plan = PlacementPlan::for_devices(&topology)?;
//! assert!(plan.role(Role::Application).count() >= 1);
//! println!("{plan}");
//! # Ok::<(), panoply_placement::PlacementError>(())
//! ```

pub mod affinity;
mod cgroup;
mod cores;
mod devices;
mod error;
mod histogram;
mod interrupts;
mod memory;
mod nodes;
mod pci;
mod place;
mod plan;
mod planner;
pub mod realtime;
mod request;
mod site;
#[cfg(target_os = "linux")]
mod sys_linux;
#[cfg(not(target_os = "linux"))]
mod sys_other;
mod sysfs;
mod topology;

#[cfg(test)]
mod tests;

pub use cgroup::CpuQuota;
pub use cores::{Core, THREADS_PER_CORE_MAX};
pub use devices::{CORES_PER_OWN_CORE, CoreUse, DevicePlan, DeviceWorkers, PlacementOptions, PlanEntry, WorkerWishes};
pub use error::PlacementError;
pub use histogram::Histogram;
pub use interrupts::Interrupts;
pub use memory::Memory;
pub use nodes::{NODE_MAX, Node};
pub use panoply_core::cpu_set::CpuSet;
pub use panoply_core::device::PciAddress;
pub use pci::{PCI_DEVICES_MAX, PciDevice, PciKind, SYSTEM, classify, locate, numa_node};
pub use place::{Placement, WorkerPlace};
pub use plan::{PlacementPlan, PlanNote, WorkerSlot};
pub use request::{Affinity, DEMANDS_MAX, Demand, Request, Role, WORKERS_MAX, WorkersPerDevice};
pub use sysfs::{ENTRIES_MAX, FILE_BYTES_MAX, NOTES_MAX, Note, Problem};
pub use topology::{Package, Topology};
