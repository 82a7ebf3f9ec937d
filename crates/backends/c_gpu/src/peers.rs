//! Direct access of a GPU to the memory of other GPUs, if the hardware allows it. The rules:
//!
//! 1. Each engine has a [`Peer`] in the backend's table, at its device's index; the peer knows the
//!    addresses of the engine's tensors.
//! 2. Only tensors that were handed out are read, so they are complete. The reading op holds the
//!    tensor's handle, so the memory is not lent again. The op also holds the peer, whose context
//!    handle keeps the memory valid, so the owning engine may be dropped meanwhile.
//! 3. No engine waits for another: the table's locks are held for a single lookup, and only if
//!    there are several GPUs.
//! 4. The memory of a lost device is no longer read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use panoply_core::{DeviceBuffer, DeviceId};

use crate::driver::{Address, ContextHandle};

/// Maximum number of devices with access to each other's memory, and with separate records of warm
/// ops.
pub const DEVICES_MAX: usize = 32;

/// The engines of one backend that may read each other's memory.
#[derive(Default)]
pub struct Peers {
    places: [Mutex<Weak<Peer>>; DEVICES_MAX],
}

/// One engine's memory as other engines see it.
pub(crate) struct Peer {
    pub(crate) context_handle: ContextHandle,
    tensors: Mutex<HashMap<u64, Address>>,
    is_lost: AtomicBool,
}

impl Peers {
    /// Registers an engine that was just opened; it replaces the previous engine of the device.
    pub(crate) fn join(&self, device: DeviceId, context_handle: ContextHandle) -> Arc<Peer> {
        let (tensors, is_lost) = (Mutex::default(), AtomicBool::new(false));
        let peer = Arc::new(Peer { context_handle, tensors, is_lost });
        *locked(self.place(device)) = Arc::downgrade(&peer);
        peer
    }

    /// The address of another engine's tensor, and the peer that must be held while the tensor is
    /// read.
    pub(crate) fn find(&self, buffer: &DeviceBuffer) -> Option<(Arc<Peer>, Address)> {
        let peer = locked(self.place(buffer.device())).upgrade()?;
        let address = locked(&peer.tensors).get(&buffer.token()).copied()?;
        (!peer.is_lost.load(Ordering::Acquire)).then_some((peer, address))
    }

    fn place(&self, device: DeviceId) -> &Mutex<Weak<Peer>> {
        &self.places[device.index as usize % DEVICES_MAX]
    }
}

impl Peer {
    /// Records a tensor of the engine.
    pub(crate) fn insert(&self, token: u64, address: Address) {
        locked(&self.tensors).insert(token, address);
    }

    /// Removes a tensor.
    pub(crate) fn remove(&self, token: u64) {
        locked(&self.tensors).remove(&token);
    }

    /// Marks the device as lost, or the engine as dropped.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }
}

/// Every statement leaves the locked state consistent, so a poisoned lock can be used.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
