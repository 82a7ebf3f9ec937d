//! hipFFT, the front end of rocFFT: Fourier transforms of contiguous lines, with one plan for each
//! length, batch size and kind. The op's scratch memory serves as the library's workspace, so
//! cached plans are small.

#![allow(non_snake_case)] // The functions keep their libraries' names.

use std::ffi::{c_int, c_longlong, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use libloading::Library;
use panoply_c_gpu::driver::Address;
use panoply_c_gpu::kept_plans::KeptPlans;
use panoply_c_gpu::library::{TransformKind, TransformPlan, Transforms};
use panoply_core::{DeviceId, Error, Result};

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

/// Maximum number of cached plans.
const PLANS_MAX: usize = 256;

const FORWARD: c_int = -1;
const INVERSE: c_int = 1;
const COMPLEX: c_int = 0x29;
const FROM_REAL: c_int = 0x2a;
const TO_REAL: c_int = 0x2c;
const WIDE_COMPLEX: c_int = 0x69;
const WIDE_FROM_REAL: c_int = 0x6a;
const WIDE_TO_REAL: c_int = 0x6c;

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[
    ("HIPFFT_FORWARD", FORWARD),
    ("HIPFFT_BACKWARD", INVERSE),
    ("HIPFFT_C2C", COMPLEX),
    ("HIPFFT_R2C", FROM_REAL),
    ("HIPFFT_C2R", TO_REAL),
    ("HIPFFT_Z2Z", WIDE_COMPLEX),
    ("HIPFFT_D2Z", WIDE_FROM_REAL),
    ("HIPFFT_Z2D", WIDE_TO_REAL),
];

functions! {
    /// The functions of hipFFT that this crate calls.
    Functions {
        hipfftCreate(plan: *mut Handle) -> c_int;
        hipfftDestroy(plan: Handle) -> c_int;
        hipfftSetAutoAllocation(plan: Handle, wanted: c_int) -> c_int;
        hipfftMakePlanMany64(plan: Handle, rank: c_int, sizes: *mut c_longlong, from: *mut c_longlong, from_step: c_longlong, from_line: c_longlong, to: *mut c_longlong, to_step: c_longlong, to_line: c_longlong, kind: c_int, lines: c_longlong, workspace_bytes: *mut usize) -> c_int;
        hipfftSetStream(plan: Handle, stream: Handle) -> c_int;
        hipfftSetWorkArea(plan: Handle, workspace: *mut c_void) -> c_int;
        hipfftExecC2C(plan: Handle, source: *mut c_void, target: *mut c_void, direction: c_int) -> c_int;
        hipfftExecR2C(plan: Handle, source: *mut c_void, target: *mut c_void) -> c_int;
        hipfftExecC2R(plan: Handle, source: *mut c_void, target: *mut c_void) -> c_int;
        hipfftExecZ2Z(plan: Handle, source: *mut c_void, target: *mut c_void, direction: c_int) -> c_int;
        hipfftExecD2Z(plan: Handle, source: *mut c_void, target: *mut c_void) -> c_int;
        hipfftExecZ2D(plan: Handle, source: *mut c_void, target: *mut c_void) -> c_int;
    }
}

/// The length of a line, the number of lines, the kind, and whether the elements are f64.
type PlanKey = (usize, usize, TransformKind, bool);

/// The library on the engine's stream.
pub(crate) struct HipFft {
    device: DeviceId,
    stream: Handle,
    functions: Functions,
    plans: KeptPlans<PlanKey, FftPlan>,
    /// Held so that the functions stay loaded. Dropped last.
    _library: Rc<Library>,
}

/// A transform of a batch of lines.
pub(crate) struct FftPlan {
    workspace_bytes: usize,
    device: DeviceId,
    functions: Functions,
    handle: Handle,
    kind: TransformKind,
    is_wide: bool,
    _library: Rc<Library>,
}

impl HipFft {
    /// Opens the library, or returns why it is not available.
    pub(crate) fn open(names: &[String], device: DeviceId, stream: Handle) -> Result<HipFft, String> {
        let found = first_whole(names, "hipFFT", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        Ok(HipFft { device, stream, functions, plans: KeptPlans::new(PLANS_MAX), _library: Rc::new(library) })
    }

    fn plan_of(&self, key: PlanKey) -> Option<Rc<dyn TransformPlan>> {
        let plan = self.plans.get(key, || FftPlan::new(self, key).ok());
        plan.map(|plan| plan as Rc<dyn TransformPlan>)
    }
}

impl Transforms for HipFft {
    fn plan(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        self.plan_of((len, lines, kind, false))
    }

    fn plan_wide(&self, len: usize, lines: usize, kind: TransformKind) -> Option<Rc<dyn TransformPlan>> {
        self.plan_of((len, lines, kind, true))
    }
}

impl TransformPlan for FftPlan {
    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    fn run(&self, source: Address, target: Address, workspace: Address) -> Result<()> {
        let [source, target, workspace] = [source, target, workspace].map(|address| address.0 as *mut c_void);
        // SAFETY: the plan is alive. The workspace has the plan's size.
        let set = unsafe { (self.functions.hipfftSetWorkArea)(self.handle, workspace) };
        let (functions, handle) = (&self.functions, self.handle);
        let (complex, from_real, to_real) = match self.is_wide {
            true => (functions.hipfftExecZ2Z, functions.hipfftExecD2Z, functions.hipfftExecZ2D),
            false => (functions.hipfftExecC2C, functions.hipfftExecR2C, functions.hipfftExecC2R),
        };
        // SAFETY: the memory at these addresses has the plan's sizes, and the op keeps it until it
        // has finished.
        let run = || unsafe {
            match self.kind {
                TransformKind::Forward => complex(handle, source, target, FORWARD),
                TransformKind::Inverse => complex(handle, source, target, INVERSE),
                TransformKind::FromReal => from_real(handle, source, target),
                TransformKind::ToReal => to_real(handle, source, target),
            }
        };
        checked(set).and_then(|()| checked(run())).map_err(|reason| Error::DeviceFault { device: self.device, reason })
    }
}

impl FftPlan {
    fn new(library: &HipFft, (len, lines, kind, is_wide): PlanKey) -> Result<FftPlan, String> {
        let HipFft { device, stream, functions, .. } = *library;
        let mut handle = null_mut();
        // SAFETY: the call writes one handle.
        checked(unsafe { (functions.hipfftCreate)(&raw mut handle) })?;
        let mut plan = FftPlan {
            workspace_bytes: 0,
            device,
            functions,
            handle,
            kind,
            is_wide,
            _library: Rc::clone(&library._library),
        };
        let (mut len, lines) = (len as c_longlong, lines as c_longlong);
        let (from, to, transform) = match kind {
            TransformKind::Forward | TransformKind::Inverse => (len, len, COMPLEX),
            TransformKind::FromReal => (len, len / 2 + 1, FROM_REAL),
            TransformKind::ToReal => (len / 2 + 1, len, TO_REAL),
        };
        let transform = match (is_wide, transform) {
            (false, narrow) => narrow,
            (true, FROM_REAL) => WIDE_FROM_REAL,
            (true, TO_REAL) => WIDE_TO_REAL,
            (true, _) => WIDE_COMPLEX,
        };
        let (size, dense, bytes) = (&raw mut len, null_mut(), &raw mut plan.workspace_bytes);
        // SAFETY: the handle was just created. The pointers are to one length and one number. A
        // null embedding means lines without gaps.
        unsafe {
            checked((functions.hipfftSetAutoAllocation)(handle, 0))?;
            let made = (functions.hipfftMakePlanMany64)(
                handle, 1, size, dense, 1, from, dense, 1, to, transform, lines, bytes,
            );
            checked(made)?;
            checked((functions.hipfftSetStream)(handle, stream))?;
        }
        Ok(plan)
    }
}

impl Drop for FftPlan {
    fn drop(&mut self) {
        // SAFETY: the handle was created for this plan and is destroyed once.
        let _ = unsafe { (self.functions.hipfftDestroy)(self.handle) };
    }
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("hipFFT answers {status}")) }
}
