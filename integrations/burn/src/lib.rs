//! Serves unchanged Burn programs on Panoply's devices.
//!
//! Burn's tensors have a closed list of backends; what is open is its remote backend, whose ops arrive as data at a server over any backend.
//! This crate is such a backend, [`Panoply`], and [`serve`] is that server: a Burn program that uses `Device::remote_options` runs here without
//! a change.
//!
//! * [`device`]: where ops run. Number 0 leaves the choice to Panoply's router, the others are one device each.
//! * [`array`]: tensors. What a program asks for is recorded, and runs as one graph when it reads a number ([`place`]).
//! * [`step`] and [`formula`]: what is recorded, and how it becomes nodes of a graph.
//! * `float`, `whole`, `truth`, `module`, `quantized`: Burn's traits. Ops on f32 are recorded; the rest is run by Burn's own CPU backend, and
//!   [`on_host`](host::counts) says how often.
//!
//! As with every backend of Burn, an op that cannot be run ends the session that sent it with a message; other sessions go on.

pub mod array;
pub mod device;
pub mod formula;
pub mod host;
pub mod place;
pub mod step;

mod backend;
mod float;
mod module;
mod quantized;
mod truth;
mod whole;

use std::net::TcpListener;

use burn_remote::server::{BackendServer, ServeError, WebSocketTransport};

pub use backend::Panoply;
pub use device::PanoplyDevice;

/// Serves these devices to Burn programs that connect to this address, until the future is dropped.
///
/// Whoever can reach the address may run ops: the transport is for one machine or a trusted network, as Burn says of it.
pub async fn serve(devices: Vec<PanoplyDevice>, listener: TcpListener) -> Result<(), ServeError> {
    BackendServer::<Panoply>::new(devices).serve_async(WebSocketTransport::from_listener(listener)).await
}
