//! Translates wgpu's errors into this project's.

use panoply_core::Error;
use panoply_wgsl_gpu::fault::Faults;

/// Translates an API error into an error of this device; `asked` is the size of the allocation in
/// bytes.
pub(crate) fn translate(faults: &Faults, error: wgpu::Error, asked: u64) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => {
            Error::OutOfMemory { place: faults.device().to_string(), asked, free: 0, largest: 0 }
        }
        other => faults.fault(other.to_string()),
    }
}

/// Runs `make` and catches its errors, such as missing memory or texts that do not compile.
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
        Some(error) => Err(translate(faults, error, asked)),
        None => Ok(made),
    }
}

/// The value of a future that is ready at once, as all futures of this API are except on the web;
/// otherwise `None`.
pub(crate) fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
