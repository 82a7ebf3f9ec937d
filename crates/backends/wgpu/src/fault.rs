//! What a device says by callback: that it is lost, or that something was wrong. Kept until the engine asks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use panoply_core::{DeviceId, Error};

/// The last words of one opened device.
#[derive(Debug)]
pub(crate) struct Faults {
    device: DeviceId,
    is_lost: AtomicBool,
    lost: Mutex<Option<String>>,
    has_error: AtomicBool,
    error: Mutex<Option<wgpu::Error>>,
}

impl Faults {
    pub(crate) fn new(device: DeviceId) -> Faults {
        Faults {
            device,
            is_lost: AtomicBool::new(false),
            lost: Mutex::new(None),
            has_error: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Notes that the device is gone. The first reason stays.
    pub(crate) fn lose(&self, reason: String) {
        if let Ok(mut lost) = self.lost.lock() {
            lost.get_or_insert(reason);
        }
        self.is_lost.store(true, Ordering::Release);
    }

    /// Notes an error that no scope caught. The first one stays.
    pub(crate) fn report(&self, error: wgpu::Error) {
        if let Ok(mut kept) = self.error.lock() {
            kept.get_or_insert(error);
        }
        self.has_error.store(true, Ordering::Release);
    }

    /// The error of a lost device.
    pub(crate) fn lost(&self) -> Option<Error> {
        if !self.is_lost.load(Ordering::Acquire) {
            return None;
        }
        let reason = self.lost.lock().ok().and_then(|lost| lost.clone());
        Some(Error::DeviceLost { device: self.device, reason: reason.unwrap_or_else(|| "no reason given".to_owned()) })
    }

    /// The error since the last call, as one of this device.
    pub(crate) fn take_error(&self) -> Option<Error> {
        if !self.has_error.swap(false, Ordering::AcqRel) {
            return None;
        }
        let error = self.error.lock().ok().and_then(|mut error| error.take())?;
        Some(self.translate(error, 0))
    }

    /// An error of the API as one of this device; `asked` is what an allocation wanted.
    pub(crate) fn translate(&self, error: wgpu::Error, asked: u64) -> Error {
        match error {
            wgpu::Error::OutOfMemory { .. } => {
                Error::OutOfMemory { place: self.device.to_string(), asked, free: 0, largest: 0 }
            }
            other => Error::DeviceFault { device: self.device, reason: other.to_string() },
        }
    }
}

/// Runs `make` and catches what goes wrong in it: memory that is not there, texts that do not compile.
pub(crate) fn checked<T>(
    device: &wgpu::Device,
    faults: &Faults,
    asked: u64,
    make: impl FnOnce() -> T,
) -> Result<T, Error> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = make();
    let mut first = None;
    for error in [at_once(validation.pop()), at_once(internal.pop()), at_once(memory.pop())] {
        first = first.or(error.flatten());
    }
    if let Some(lost) = faults.lost() {
        return Err(lost);
    }
    match first {
        Some(error) => Err(faults.translate(error, asked)),
        None => Ok(made),
    }
}

/// The value of a future that is ready at once, as all of this API's are off the web; nothing where it is not.
pub(crate) fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
