//! Two emulated devices that reach each other's memory.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::peers;

/// Two devices. If there are none, prints the reason.
fn backend() -> Option<EmulatedBackend> {
    let backend = EmulatedBackend::new().map(|backend| backend.devices(2));
    backend.inspect_err(|absence| println!("skipped: {absence}")).ok()
}

#[test]
fn an_engine_reads_what_lives_on_another() {
    backend().iter().for_each(|backend| peers::an_engine_reads_what_lives_on_another(backend));
}

#[test]
fn the_runtime_makes_no_detour() {
    backend().into_iter().for_each(|backend| peers::the_runtime_makes_no_detour(Arc::new(backend)));
}
