//! Serves unchanged Burn programs: their remote device is whatever the Panoply runtime finds.
//!
//! A Burn program with a remote device (`Device::remote_options(&RemoteHost::websocket("ws://…"))`) sends its tensor operations as
//! data. This crate is the other end of that line. It records the operations of a session and runs them as graphs:
//!
//! 1. An operation is recorded, not run. What runs is everything recorded since the last time, as one graph, when the program reads a
//!    tensor or asks for a sync. What nobody can read any more by then is never written to memory.
//! 2. A recording that was met before is run again as it is: a training loop is planned once. Numbers in operations (a learning rate)
//!    that differ between two recordings which are otherwise the same become inputs of the graph.
//! 3. An operation that this crate does not know, or whose operands do not fit, fails alone: reading what depends on it gives an error
//!    that names the operation. Nothing is computed in another way in silence; what runs on the host ([`Counters::host_ops`]) is random
//!    numbers, and they are counted.
//! 4. A client is not trusted: messages, tensors and sessions are bounded ([`Limits`]), and a session that goes wrong ends alone.
//!
//! `wire` has the messages, [`server`] the sockets, `timed` how long they may take, `session` one client's tensors, `recording` what was not run yet, `lower` the
//! operations as nodes of a graph, `convert` tensors from and to Burn's.
#![deny(unsafe_code)]
#![warn(missing_docs, clippy::unwrap_used)]

mod convert;
mod error;
mod lower;
mod recording;
pub mod server;
mod session;
mod timed;
mod wire;

pub use error::Error;
pub use server::{Counters, Limits, Server, Serving};
