//! One suite that every backend runs, and engines that fail on command.
//!
//! * [`reference`](mod@reference): what each op means, in plain loops that favour clarity over speed. It is checked
//!   against independent figures (`fixtures/`), and every engine is checked against it.
//! * [`suite`]: the cases, every op with every element type and the awkward shapes, each with its judge.
//! * [`judge`]: what makes an answer right.
//! * [`chains`]: graphs that programs write, and that must become one kernel.
//! * [`check`]: runs cases on an engine and compares.
//! * [`random_graph`]: graphs of random ops, by the thousand, for [`check::check_graphs`].
//! * [`vectors`]: published vectors of the crypto domain, for any engine.
//! * [`fixture`]: reads the independent figures.
//! * [`virtual_device`]: simulated devices with scripted latency, errors, hangs and loss, for the runtime's tests and for
//!   users who test how their own programs degrade.

pub mod chains;
pub mod check;
pub mod fixture;
pub mod judge;
pub mod random_graph;
pub mod reference;
pub mod suite;
pub mod values;
pub mod vectors;
pub mod virtual_device;

pub use check::{Summary, check_backend, check_graphs, run_one, run_there};
pub use judge::{Judge, Tolerance};
pub use random_graph::Seeds;
pub use suite::{Case, cases, op_names, print_op_names};
