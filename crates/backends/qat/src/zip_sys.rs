//! The declarations of QATzip's header that this crate uses, with the header's names and in its
//! order. Sizes are those of C, from API 1.0 to 2.5 on 64-bit Linux.
//!
//! The test library includes this file too, so that both sides share one set of declarations.
#![allow(dead_code, unused_imports, unused_macros)] // Each side uses its own part.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::{offset_of, size_of};

pub const QZ_OK: c_int = 0;
pub const QZ_DUPLICATE: c_int = 1;
pub const QZ_FAIL: c_int = -2;
pub const QZ_BUF_ERROR: c_int = -3;
pub const QZ_TIMEOUT: c_int = -5;
pub const QZ_NO_HW: c_int = 11;
pub const QZ_NOSW_NO_HW: c_int = -101;
pub const QZ_DIR_COMPRESS: c_uint = 0;
pub const QZ_DEFLATE_RAW: c_uint = 3;
pub const QZ_DEFLATE: u8 = 8;
/// `QZ_COMP_THRESHOLD_MINIMUM`: shorter messages are always compressed in software.
pub const QZ_COMP_THRESHOLD_MINIMUM: c_uint = 128;

/// `QzSession_T`.
#[repr(C)]
#[derive(Debug)]
pub struct ZipSession {
    pub hardware: c_long,
    pub thread: c_int,
    pub internal: *mut c_void,
    pub total_in: c_ulong,
    pub total_out: c_ulong,
}

/// `QzSessionParams_T`, with space for fields that later versions append.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ZipParams {
    pub huffman: c_uint,
    pub direction: c_uint,
    pub format: c_uint,
    pub level: c_uint,
    pub algorithm: u8,
    pub forks_max: c_uint,
    pub software_backup: u8,
    pub hardware_buffer_bytes: c_uint,
    pub stream_buffer_bytes: c_uint,
    pub input_bytes_min: c_uint,
    pub request_count: c_uint,
    pub wait_count: c_uint,
    pub later: [u64; 8],
}

impl ZipSession {
    pub const fn zeroed() -> ZipSession {
        ZipSession { hardware: 0, thread: 0, internal: std::ptr::null_mut(), total_in: 0, total_out: 0 }
    }
}

impl ZipParams {
    pub const fn zeroed() -> ZipParams {
        // SAFETY: all fields are integers, for which zero is valid.
        unsafe { std::mem::zeroed() }
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ZipParams>() == 48 + 64 && offset_of!(ZipParams, forks_max) == 20);
    assert!(offset_of!(ZipParams, hardware_buffer_bytes) == 28 && offset_of!(ZipParams, later) == 48);
};
#[cfg(all(target_pointer_width = "64", unix))]
const _: () = assert!(size_of::<ZipSession>() == 40 && offset_of!(ZipSession, internal) == 16);

/// Calls a macro with every function in use: our name, the library's name, the arguments and the
/// result.
macro_rules! zip_functions {
    ($with:ident) => {
        $with! {
            init: "qzInit" (*mut ZipSession, u8) -> c_int;
            defaults: "qzGetDefaults" (*mut ZipParams) -> c_int;
            setup: "qzSetupSession" (*mut ZipSession, *mut ZipParams) -> c_int;
            compress: "qzCompress"
                (*mut ZipSession, *const u8, *mut c_uint, *mut u8, *mut c_uint, c_uint) -> c_int;
            teardown: "qzTeardownSession" (*mut ZipSession) -> c_int;
            close: "qzClose" (*mut ZipSession) -> c_int;
        }
    };
}

pub(crate) use zip_functions;
