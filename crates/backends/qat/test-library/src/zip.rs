//! The functions of QATzip.

use std::ffi::{c_int, c_long, c_uint};
use std::time::Duration;

use panoply_core::op::crypto::Format;
use panoply_cpu_crypto::deflate::Deflater;

use crate::zip_sys::*;
use crate::{
    ZIP_FAILS, ZIP_HANGS, ZIP_NO_HARDWARE, ZIP_READS_LESS, ZIP_SOFTWARE, ZIP_TIMES_OUT, ZIP_WRITES_MORE, has_fault,
    session_begins, session_ends,
};

#[unsafe(no_mangle)]
pub extern "C" fn qzInit(_: *mut ZipSession, software_backup: u8) -> c_int {
    if has_fault(ZIP_NO_HARDWARE) || software_backup != 0 { QZ_NOSW_NO_HW } else { QZ_DUPLICATE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qzGetDefaults(params: *mut ZipParams) -> c_int {
    let defaults = ZipParams {
        direction: 2,
        format: 2,
        level: 1,
        algorithm: QZ_DEFLATE,
        software_backup: 1,
        hardware_buffer_bytes: 64 << 10,
        stream_buffer_bytes: 64 << 10,
        input_bytes_min: 1024,
        ..ZipParams::zeroed()
    };
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { params.write(defaults) };
    QZ_OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qzSetupSession(session: *mut ZipSession, params: *mut ZipParams) -> c_int {
    // SAFETY: both belong to the caller and outlive the call.
    let (session, params) = unsafe { (&mut *session, *params) };
    let is_sound = params.format == QZ_DEFLATE_RAW
        && params.direction == QZ_DIR_COMPRESS
        && params.algorithm == QZ_DEFLATE
        && params.software_backup == 0
        && params.input_bytes_min == QZ_COMP_THRESHOLD_MINIMUM
        && (1..=8).contains(&params.level);
    if !is_sound || !session.internal.is_null() {
        return -1;
    }
    session.internal = Box::into_raw(Box::new(params)).cast();
    session.hardware = c_long::from(QZ_OK);
    session_begins();
    QZ_OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qzCompress(
    session: *mut ZipSession,
    from: *const u8,
    from_len: *mut c_uint,
    to: *mut u8,
    to_len: *mut c_uint,
    last: c_uint,
) -> c_int {
    while has_fault(ZIP_HANGS) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: all of them belong to the caller and outlive the call.
    let (session, read, made) = unsafe { (&mut *session, &mut *from_len, &mut *to_len) };
    // SAFETY: as above. Both buffers have their stated lengths.
    let (message, room) = unsafe {
        (std::slice::from_raw_parts(from, *read as usize), std::slice::from_raw_parts_mut(to, *made as usize))
    };
    // SAFETY: the pointer is null or was created by `qzSetupSession`.
    let Some(params) = (unsafe { session.internal.cast::<ZipParams>().as_ref() }) else { return -1 };
    if last != 1 || message.len() < QZ_COMP_THRESHOLD_MINIMUM as usize {
        return -1;
    }
    let trouble = [(ZIP_FAILS, QZ_FAIL), (ZIP_TIMES_OUT, QZ_TIMEOUT)].into_iter().find(|(fault, _)| has_fault(*fault));
    if let Some((_, code)) = trouble {
        (*read, *made) = (0, 0);
        return code;
    }
    let packed = Deflater::new(params.level as i32).map(|mut packer| packer.compress(Format::Deflate, message, room));
    let Some(Ok(len)) = packed else {
        (*read, *made) = (0, 0);
        return QZ_BUF_ERROR;
    };
    *made = if has_fault(ZIP_WRITES_MORE) { *made + 1 } else { len as c_uint };
    *read -= c_uint::from(has_fault(ZIP_READS_LESS));
    if has_fault(ZIP_SOFTWARE) {
        session.hardware = c_long::from(QZ_NO_HW);
    }
    QZ_OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qzTeardownSession(session: *mut ZipSession) -> c_int {
    // SAFETY: the session belongs to the caller.
    let internal = std::mem::replace(unsafe { &mut (*session).internal }, std::ptr::null_mut());
    if !internal.is_null() {
        // SAFETY: `qzSetupSession` created the parameters, and they are freed once.
        drop(unsafe { Box::from_raw(internal.cast::<ZipParams>()) });
        session_ends();
    }
    QZ_OK
}

#[unsafe(no_mangle)]
pub extern "C" fn qzClose(_: *mut ZipSession) -> c_int {
    QZ_OK
}
