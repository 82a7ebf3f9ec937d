//! Serves unchanged Burn programs: their remote device is any device that the Panoply runtime
//! finds.
//!
//! A Burn program with a remote device (`Device::remote_options(&RemoteHost::websocket("ws://…"))`)
//! sends its tensor operations as data. This crate is the server side. It records the operations of
//! a session and runs them as graphs:
//!
//! 1. An operation is recorded, not run. When the program reads a tensor or requests a sync,
//!    everything recorded since the last run is run as one graph. Values that no client can read
//!    any more by then are never written to memory.
//! 2. A recording that occurred before is run again unchanged, so a training loop is planned once.
//!    Numbers in operations (a learning rate) that differ between two otherwise equal recordings
//!    become inputs of the graph.
//! 3. An operation that this crate does not know, or whose operands do not fit, fails alone:
//!    reading a tensor that depends on it gives an error that names the operation. There is no
//!    silent fallback. Only random numbers are computed on the host, and they are counted
//!    ([`Counters::host_ops`]).
//! 4. A client is not trusted: messages, tensors and sessions are bounded ([`Limits`]), and an
//!    error in one session ends only that session.
//!
//! `wire` has the messages, [`server`] the sockets, `timed` their timeouts, `session` one client's
//! tensors and `recording` the operations that have not run yet. `lower` turns operations into
//! nodes of a graph, and `convert` converts tensors from and to Burn's.
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
