//! The functions of hiprtc.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::device::device;
use crate::trouble::asked_for;

const COMPILATION: c_int = 6;
const INVALID_PROGRAM: c_int = 5;

/// A source text and the result of its compilation.
struct Program {
    source: String,
    code: Vec<u8>,
    log: CString,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // SAFETY: the caller passes two valid pointers.
    unsafe {
        major.write(9);
        minor.write(0);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(error: c_int) -> *const c_char {
    if error == COMPILATION { c"HIPRTC_ERROR_COMPILATION".as_ptr() } else { c"HIPRTC_ERROR_INVALID_PROGRAM".as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    if let Some(status) = asked_for("hiprtcCreateProgram") {
        return status;
    }
    // SAFETY: the caller passes a text that ends with a zero byte.
    let source = unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned();
    let made = Box::new(Program { source, code: Vec::new(), log: CString::default() });
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { program.write(Box::into_raw(made).cast()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCompileProgram(
    program: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    // SAFETY: `hiprtcCreateProgram` created the program. There are `count` options, each ending
    // with a zero byte.
    let (Some(program), options) =
        (unsafe { program.cast::<Program>().as_mut() }, unsafe { std::slice::from_raw_parts(options, count as usize) })
    else {
        return INVALID_PROGRAM;
    };
    // SAFETY: as above.
    let mut options = options.iter().map(|option| unsafe { CStr::from_ptr(*option) }.to_string_lossy());
    let architecture = options.find_map(|option| option.strip_prefix("--offload-arch=").map(str::to_owned));
    match device().compile(&program.source, &architecture.unwrap_or_default()) {
        Ok(code) => program.code = code,
        Err(log) => {
            program.log = CString::new(log.replace('\0', "")).unwrap_or_default();
            return COMPILATION;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCodeSize(program: *const c_void, bytes: *mut usize) -> c_int {
    // SAFETY: `hiprtcCreateProgram` created the program. The caller passes a valid pointer for the
    // result.
    unsafe { bytes.write((*program.cast::<Program>()).code.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCode(program: *const c_void, code: *mut u8) -> c_int {
    // SAFETY: `hiprtcCreateProgram` created the program.
    let made = unsafe { &(*program.cast::<Program>()).code };
    // SAFETY: the caller's buffer has the size that `hiprtcGetCodeSize` returned.
    unsafe { code.copy_from_nonoverlapping(made.as_ptr(), made.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(program: *const c_void, bytes: *mut usize) -> c_int {
    // SAFETY: as above.
    unsafe { bytes.write((*program.cast::<Program>()).log.as_bytes_with_nul().len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLog(program: *const c_void, log: *mut u8) -> c_int {
    // SAFETY: as above.
    let told = unsafe { (*program.cast::<Program>()).log.as_bytes_with_nul() };
    // SAFETY: the caller's buffer has the size that `hiprtcGetProgramLogSize` returned.
    unsafe { log.copy_from_nonoverlapping(told.as_ptr(), told.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut *mut c_void) -> c_int {
    // SAFETY: the handle is null or was created by `hiprtcCreateProgram`. The program is destroyed
    // once.
    unsafe {
        if !(*program).is_null() {
            drop(Box::from_raw((*program).cast::<Program>()));
        }
        program.write(std::ptr::null_mut());
    }
    0
}
