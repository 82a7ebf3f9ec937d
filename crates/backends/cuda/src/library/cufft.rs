//! cuFFT: Fourier transforms of contiguous lines, with one plan for each length, batch and kind. The library's work area is
//! the op's scratch memory, so that plans cost little to keep.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_longlong, c_void};
use std::rc::Rc;

use cudarc::cufft::{result, sys};
use panoply_core::{DeviceId, Error, Result};

use crate::driver::Address;

/// Plans that are kept; beyond it the table is emptied.
const PLANS_MAX: usize = 256;

const FORWARD: c_int = -1;
const INVERSE: c_int = 1;

/// What is transformed into what. Nothing is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Complex signals to spectra.
    Forward,
    /// Spectra to complex signals.
    Inverse,
    /// Real signals to halves of spectra. The source starts on 8 bytes.
    FromReal,
    /// Halves of spectra to real signals. The source is overwritten.
    ToReal,
}

/// A line's length, how many lines, and of what kind.
type Key = (usize, usize, Kind);

/// The library on the engine's stream.
pub(crate) struct Cufft {
    device: DeviceId,
    stream: sys::cudaStream_t,
    plans: RefCell<HashMap<Key, Option<Rc<Plan>>>>,
}

/// A transform of a batch of lines.
pub(crate) struct Plan {
    /// Bytes of scratch that [`Plan::run`] wants.
    pub(crate) workspace_bytes: usize,
    device: DeviceId,
    handle: sys::cufftHandle,
    kind: Kind,
}

impl Cufft {
    /// The library, or why it is not there.
    pub(crate) fn open(device: DeviceId, stream: sys::cudaStream_t) -> Result<Cufft, String> {
        // SAFETY: looks for the library by name, which runs no more than its initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcufft was not found".to_owned());
        }
        Ok(Cufft { device, stream, plans: RefCell::default() })
    }

    /// The plan for `lines` lines of `len` elements, which counts the real ones where one side is real; `None` where the
    /// library has none.
    pub(crate) fn plan(&self, len: usize, lines: usize, kind: Kind) -> Option<Rc<Plan>> {
        let key = (len, lines, kind);
        if let Some(plan) = self.plans.borrow().get(&key) {
            return plan.clone();
        }
        let plan = Plan::new(self.device, self.stream, len, lines, kind).ok().map(Rc::new);
        let mut plans = self.plans.borrow_mut();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        plan
    }
}

impl Plan {
    fn new(
        device: DeviceId,
        stream: sys::cudaStream_t,
        len: usize,
        lines: usize,
        kind: Kind,
    ) -> Result<Plan, result::CufftError> {
        let mut plan = Plan { workspace_bytes: 0, device, handle: result::create()?, kind };
        let (mut len, lines) = (len as c_longlong, lines as c_longlong);
        let (from, to) = match kind {
            Kind::Forward | Kind::Inverse => (len, len),
            Kind::FromReal => (len, len / 2 + 1),
            Kind::ToReal => (len / 2 + 1, len),
        };
        let transform = match kind {
            Kind::Forward | Kind::Inverse => sys::cufftType::CUFFT_C2C,
            Kind::FromReal => sys::cufftType::CUFFT_R2C,
            Kind::ToReal => sys::cufftType::CUFFT_C2R,
        };
        let dense = std::ptr::null_mut();
        // SAFETY: the handle was just created; the only pointer is to one length, and no embedding means lines without gaps.
        unsafe {
            result::set_auto_allocation(plan.handle, false)?;
            let length = &raw mut len;
            plan.workspace_bytes =
                result::make_plan_many64(plan.handle, 1, length, dense, 1, from, dense, 1, to, transform, lines)?;
            result::set_stream(plan.handle, stream)?;
        }
        Ok(plan)
    }

    /// Queues the transform.
    pub(crate) fn run(&self, source: Address, target: Address, workspace: Address) -> Result<()> {
        self.try_run(source, target, workspace)
            .map_err(|error| Error::DeviceFault { device: self.device, reason: format!("cufftExec: {error}") })
    }

    fn try_run(&self, source: Address, target: Address, workspace: Address) -> Result<(), result::CufftError> {
        // SAFETY: the plan is alive; the addresses are of memory with the plan's sizes, kept by the op until it has finished.
        unsafe {
            result::set_work_area(self.handle, workspace as *mut c_void)?;
            match self.kind {
                Kind::Forward => result::exec_c2c(self.handle, source as *mut _, target as *mut _, FORWARD),
                Kind::Inverse => result::exec_c2c(self.handle, source as *mut _, target as *mut _, INVERSE),
                Kind::FromReal => result::exec_r2c(self.handle, source as *mut _, target as *mut _),
                Kind::ToReal => result::exec_c2r(self.handle, source as *mut _, target as *mut _),
            }
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the handle was created for this plan and is destroyed once.
        let _ = unsafe { result::destroy(self.handle) };
    }
}
