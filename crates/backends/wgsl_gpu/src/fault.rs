//! Keeps a device's own reports until the engine asks: that it is lost, or that an error occurred.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use panoply_core::{DeviceId, Error};

/// The reports of one opened device.
#[derive(Debug)]
pub struct Faults {
    device: DeviceId,
    is_lost: AtomicBool,
    lost: Mutex<Option<String>>,
    has_error: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Faults {
    /// Without any report.
    pub fn new(device: DeviceId) -> Faults {
        Faults {
            device,
            is_lost: AtomicBool::new(false),
            lost: Mutex::new(None),
            has_error: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Notes that the device is lost. The first reason stays.
    pub fn lose(&self, reason: String) {
        if let Ok(mut lost) = self.lost.lock() {
            lost.get_or_insert(reason);
        }
        self.is_lost.store(true, Ordering::Release);
    }

    /// Notes an error that belongs to no call: everything in the submission under construction is
    /// answered with it. The first error stays.
    pub fn report(&self, error: Error) {
        if let Ok(mut kept) = self.error.lock() {
            kept.get_or_insert(error);
        }
        self.has_error.store(true, Ordering::Release);
    }

    /// The error of a lost device.
    pub fn lost(&self) -> Option<Error> {
        if !self.is_lost.load(Ordering::Acquire) {
            return None;
        }
        let reason = self.lost.lock().ok().and_then(|lost| lost.clone());
        Some(Error::DeviceLost { device: self.device, reason: reason.unwrap_or_else(|| "no reason given".to_owned()) })
    }

    /// Takes the error that was reported since the last call.
    pub fn take_error(&self) -> Option<Error> {
        if !self.has_error.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.error.lock().ok().and_then(|mut error| error.take())
    }

    /// A fault of this device as an error.
    pub fn fault(&self, reason: impl Into<String>) -> Error {
        Error::DeviceFault { device: self.device, reason: reason.into() }
    }
}
