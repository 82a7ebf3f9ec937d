//! Where workers run: near their devices, on cores of their own while there are enough.
//!
//! [`Topology`] reads what hardware the machine has and which part of it this process may use. A
//! [`Request`] says which workers are wanted. [`Plan`] gives each of them a [`Slot`]. [`affinity`]
//! moves the calling thread into its slot. Reading never fails (gaps become notes), planning fails
//! only on contradictions, and nothing here starts a thread. [`realtime`] is for threads with
//! deadlines.
//!
//! ```
//! use panoply_runtime::placement::{Plan, Role, Topology};
//!
//! let topology = Topology::current();
//! let plan = Plan::for_devices(&topology)?;
//! assert!(plan.role(Role::Application).count() >= 1);
//! println!("{plan}");
//! # Ok::<(), panoply_runtime::placement::PlacementError>(())
//! ```

pub mod affinity;
mod cgroup;
mod cores;
mod error;
mod histogram;
mod nodes;
mod pci;
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
pub use error::PlacementError;
pub use histogram::Histogram;
pub use nodes::{NODE_MAX, Node};
pub use panoply_core::cpu_set::CpuSet;
pub use panoply_core::device::PciAddress;
pub use pci::{PCI_DEVICES_MAX, PciDevice, PciKind, classify};
pub use plan::{Plan, PlanNote, Slot};
pub use request::{Affinity, DEMANDS_MAX, Demand, Request, Role, WORKERS_MAX, WorkersPerDevice};
pub use sysfs::{ENTRIES_MAX, FILE_BYTES_MAX, NOTES_MAX, Note, Problem};
pub use topology::{Package, Topology};
