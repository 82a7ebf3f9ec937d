//! Memory of other GPUs that a GPU reads by itself, where the hardware lets it. The rules:
//!
//! 1. Each engine has a [`Peer`] in the backend's table, at its device's place; it says where the engine's tensors are.
//! 2. Only what has been handed out is read, so it is complete. The op that reads holds the tensor's handle, so its memory is not
//!    lent again; and it holds the peer, whose context handle keeps the memory valid, so an engine may be dropped meanwhile.
//! 3. Nobody waits for anybody: the table's locks are held for one look, and only where there is more than one GPU.
//! 4. What a device that is lost holds is not read any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use panoply_core::{DeviceBuffer, DeviceId};

use crate::devices::DEVICES_MAX;
use crate::driver::{Address, ContextHandle};

/// The engines of one backend that may read each other's memory.
#[derive(Default)]
pub struct Peers {
    places: [Mutex<Weak<Peer>>; DEVICES_MAX],
}

/// One engine's memory, as others see it.
pub(crate) struct Peer {
    pub(crate) context_handle: ContextHandle,
    tensors: Mutex<HashMap<u64, Address>>,
    is_lost: AtomicBool,
}

impl Peers {
    /// An engine that was just opened; it takes the place of the one before.
    pub(crate) fn join(&self, device: DeviceId, context_handle: ContextHandle) -> Arc<Peer> {
        let (tensors, is_lost) = (Mutex::default(), AtomicBool::new(false));
        let peer = Arc::new(Peer { context_handle, tensors, is_lost });
        *locked(self.place(device)) = Arc::downgrade(&peer);
        peer
    }

    /// Where a tensor of another engine is, and what must be held while it is read.
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
    /// The engine has a tensor of this name.
    pub(crate) fn insert(&self, token: u64, address: Address) {
        locked(&self.tensors).insert(token, address);
    }

    /// And has it no more.
    pub(crate) fn remove(&self, token: u64) {
        locked(&self.tensors).remove(&token);
    }

    /// The device is lost, or the engine gone.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }
}

/// What a lock guards is whole after every statement, so that a panic elsewhere changes nothing.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
