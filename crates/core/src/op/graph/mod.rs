//! The graph domain: many ops that run as one.

mod run_graph;

pub use super::list::GraphOp;
pub use run_graph::RunGraph;
