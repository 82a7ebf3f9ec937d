//! One suite that every backend runs.
//!
//! * [`reference`](mod@reference): the meaning of each op, in plain loops that favour clarity over
//!   speed. It is checked against independent figures (`fixtures/`), and every engine is checked
//!   against it.
//! * [`suite`]: the cases: every op with every element type and difficult shapes, each with its
//!   judge.
//! * [`judge`], [`tolerance`]: the criteria for a result.
//! * [`chains`]: graphs as in programs, which must be fused into one kernel.
//! * [`check`]: runs cases on an engine and compares.
//! * [`random_graph`]: thousands of graphs of random ops, for [`check::check_graphs`].
//! * [`suite_graph`]: graphs of the suite's own ops, for [`repeat::check_suite_graphs`].
//! * [`past_failures`]: graphs for which an engine once gave a wrong result.
//! * [`repeat`]: runs graphs repeatedly with other inputs, and checks all results once more at the
//!   end.
//! * [`values`]: makes and compares test values, in the layouts of `layout`. [`extent`]: how much
//!   of a long test runs.
//! * [`random_op`]: ops of random kinds, strides and values, for any device.
//! * [`required`]: the devices that tests run on, and when a missing one is a failure.
//! * [`vectors`]: published vectors of the crypto domain, for any engine.
//! * [`fixture`]: reads the independent figures.
//! * [`virtual_device`]: simulated devices with scripted latency, errors, hangs and loss. They are
//!   a crate of their own, `panoply-simulated`, which programs use without the suite.

pub mod check;
pub mod extent;
pub mod fixture;
pub mod judge;
mod layout;
pub mod past_failures;
pub mod random_graph;
pub mod random_op;
pub mod reference;
pub mod repeat;
pub mod required;
pub mod suite;
pub mod suite_graph;
pub mod tolerance;
pub mod values;
pub mod vectors;

pub use check::{Summary, check_backend, check_graphs, wrong_domains};
pub use extent::few_or_all;
pub use judge::Judge;
pub use panoply_simulated as virtual_device;
pub use panoply_simulated::{chains, run_one, run_there};
pub use random_graph::Seeds;
pub use random_op::{OpSeeds, check_ops, run_ops};
pub use repeat::check_suite_graphs;
pub use required::{devices, discovered};
pub use suite::{Case, cases, op_names, print_op_names};
pub use tolerance::Tolerance;
