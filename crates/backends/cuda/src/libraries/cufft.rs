//! cuFFT: Fourier transforms of contiguous lines, with one plan for each length, batch and kind.
//! The library's work area is the op's scratch memory, so a kept plan uses little memory.

use std::cell::Cell;
use std::ffi::{c_int, c_longlong, c_void};
use std::rc::Rc;

use cudarc::cufft::{result, sys};
use cudarc::driver::sys::CUstream;
use panoply_core::{DeviceId, Error, Result};

use panoply_c_gpu::driver::Address;
use panoply_c_gpu::kept_plans::KeptPlans;
use panoply_c_gpu::library::{TransformKind, TransformPlan, Transforms};

use super::CurrentStream;

/// The most plans that are kept.
const PLANS_MAX: usize = 256;

const FORWARD: c_int = -1;
const INVERSE: c_int = 1;

/// The length of a line, the number of lines, the kind, and whether in f64.
type PlanKey = (usize, usize, TransformKind, bool);

/// The library.
pub(crate) struct Cufft {
    device: DeviceId,
    stream: CurrentStream,
    plans: KeptPlans<PlanKey, FftPlan>,
}

/// A transform of a batch of lines.
pub(crate) struct FftPlan {
    workspace_bytes: usize,
    device: DeviceId,
    handle: sys::cufftHandle,
    stream: CurrentStream,
    /// The stream that the handle was last told. Runs on several streams may overlap, because each
    /// has a work area of its own.
    told: Cell<CUstream>,
    kind: TransformKind,
    wide: bool,
}

impl Cufft {
    /// Opens the library, or returns why it is missing.
    pub(crate) fn open(device: DeviceId, stream: CurrentStream) -> Result<Cufft, String> {
        // SAFETY: looks for the library by name, which only runs its initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcufft was not found".to_owned());
        }
        Ok(Cufft { device, stream, plans: KeptPlans::new(PLANS_MAX) })
    }
}

impl Transforms for Cufft {
    fn plan(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        self.planned((len, lines, kind, false))
    }

    fn plan_wide(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        self.planned((len, lines, kind, true))
    }
}

impl Cufft {
    fn planned(&self, key: PlanKey) -> Option<Rc<dyn TransformPlan>> {
        let plan = self.plans.get(key, || FftPlan::new(self.device, &self.stream, key).ok());
        plan.map(|plan| plan as Rc<dyn TransformPlan>)
    }
}

impl TransformPlan for FftPlan {
    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    fn run(&self, source: Address, target: Address, workspace: Address) -> Result<()> {
        self.try_run(source, target, workspace)
            .map_err(|error| Error::DeviceFault { device: self.device, reason: format!("cufftExec: {error}") })
    }
}

impl FftPlan {
    fn new(device: DeviceId, stream: &CurrentStream, key: PlanKey) -> Result<FftPlan, result::CufftError> {
        let (len, lines, kind, wide) = key;
        let (handle, told) = (result::create()?, Cell::new(std::ptr::null_mut()));
        let mut plan = FftPlan { workspace_bytes: 0, device, handle, stream: Rc::clone(stream), told, kind, wide };
        let (mut len, lines) = (len as c_longlong, lines as c_longlong);
        let (from, to) = match kind {
            TransformKind::Forward | TransformKind::Inverse => (len, len),
            TransformKind::FromReal => (len, len / 2 + 1),
            TransformKind::ToReal => (len / 2 + 1, len),
        };
        let transform = match (kind, wide) {
            (TransformKind::Forward | TransformKind::Inverse, false) => sys::cufftType::CUFFT_C2C,
            (TransformKind::FromReal, false) => sys::cufftType::CUFFT_R2C,
            (TransformKind::ToReal, false) => sys::cufftType::CUFFT_C2R,
            (TransformKind::Forward | TransformKind::Inverse, true) => sys::cufftType::CUFFT_Z2Z,
            (TransformKind::FromReal, true) => sys::cufftType::CUFFT_D2Z,
            (TransformKind::ToReal, true) => sys::cufftType::CUFFT_Z2D,
        };
        let dense = std::ptr::null_mut();
        // SAFETY: the handle was just created; the only pointer is to one length; null embeddings
        // mean lines without gaps.
        unsafe {
            result::set_auto_allocation(plan.handle, false)?;
            let length = &raw mut len;
            plan.workspace_bytes =
                result::make_plan_many64(plan.handle, 1, length, dense, 1, from, dense, 1, to, transform, lines)?;
        }
        Ok(plan)
    }

    fn try_run(&self, source: Address, target: Address, workspace: Address) -> Result<(), result::CufftError> {
        let (source, target, workspace) = (source.0, target.0, workspace.0);
        // SAFETY: the plan is alive; the addresses point to memory with the plan's sizes, kept by
        // the op until it has finished.
        unsafe {
            let (handle, stream) = (self.handle, self.stream.get());
            if self.told.get() != stream {
                result::set_stream(handle, stream.cast())?;
                self.told.set(stream);
            }
            result::set_work_area(handle, workspace as *mut c_void)?;
            let direction = if self.kind == TransformKind::Forward { FORWARD } else { INVERSE };
            match (self.kind, self.wide) {
                (TransformKind::Forward | TransformKind::Inverse, false) => {
                    result::exec_c2c(handle, source as *mut _, target as *mut _, direction)
                }
                (TransformKind::FromReal, false) => result::exec_r2c(handle, source as *mut _, target as *mut _),
                (TransformKind::ToReal, false) => result::exec_c2r(handle, source as *mut _, target as *mut _),
                (TransformKind::Forward | TransformKind::Inverse, true) => {
                    result::exec_z2z(handle, source as *mut _, target as *mut _, direction)
                }
                (TransformKind::FromReal, true) => result::exec_d2z(handle, source as *mut _, target as *mut _),
                (TransformKind::ToReal, true) => result::exec_z2d(handle, source as *mut _, target as *mut _),
            }
        }
    }
}

impl Drop for FftPlan {
    fn drop(&mut self) {
        // SAFETY: the handle was created for this plan and is destroyed once.
        let _ = unsafe { result::destroy(self.handle) };
    }
}
