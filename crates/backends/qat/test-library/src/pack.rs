//! DEFLATE.

use std::ffi::c_void;

use panoply_core::op::crypto::Format;
use panoply_cpu_crypto::Failure;
use panoply_cpu_crypto::deflate::{Deflater, Inflater};

use crate::sys::*;
use crate::{REQUEST_FAILS, SharedAddress, bytes, enqueue, has_fault, is_reached, session_begins, session_ends};

#[repr(C)]
struct Context {
    setup: DcSetup,
    done: DcDone,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcQueryCapabilities(_: Instance, can: *mut DcCapabilities) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    let can = unsafe { &mut *can };
    (can.deflate, can.inflate, can.crc32, can.adler32, can.dynamic_huffman) = (TRUE, TRUE, TRUE, TRUE, TRUE);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcGetNumIntermediateBuffers(_: Instance, count: *mut u16) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { count.write(0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcGetSessionSize(_: Instance, _: *mut DcSetup, size: *mut u32, state: *mut u32) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { size.write(size_of::<Context>() as u32) };
    // SAFETY: as above.
    unsafe { state.write(0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcInitSession(
    _: Instance,
    context: SessionContext,
    setup: *mut DcSetup,
    _: *mut BufferList,
    done: DcDone,
) -> Status {
    // SAFETY: the caller's setup outlives the call.
    let setup = unsafe { *setup };
    if setup.kind != DC_DEFLATE || setup.state != DC_STATELESS || !(1..=12).contains(&setup.level) {
        return INVALID_PARAM;
    }
    // SAFETY: the context has the requested size.
    unsafe { context.cast::<Context>().write(Context { setup, done }) };
    session_begins();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaDcRemoveSession(_: Instance, _: SessionContext) -> Status {
    session_ends()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcDeflateCompressBound(_: Instance, _: u32, len: u32, bound: *mut u32) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { bound.write(len + len / 8 + 1024) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcCompressData2(
    instance: Instance,
    session: SessionContext,
    from: *mut BufferList,
    to: *mut BufferList,
    _: *mut DcOp,
    results: *mut DcResults,
    tag: *mut c_void,
) -> Status {
    // SAFETY: the caller guarantees the arguments.
    unsafe { begin(instance, session, from, to, results, tag) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcDecompressData(
    instance: Instance,
    session: SessionContext,
    from: *mut BufferList,
    to: *mut BufferList,
    results: *mut DcResults,
    _: u32,
    tag: *mut c_void,
) -> Status {
    // SAFETY: the caller guarantees the arguments.
    unsafe { begin(instance, session, from, to, results, tag) }
}

unsafe fn begin(
    instance: Instance,
    session: SessionContext,
    from: *mut BufferList,
    to: *mut BufferList,
    results: *mut DcResults,
    tag: *mut c_void,
) -> Status {
    // SAFETY: the caller keeps its structures until the callback.
    let (input, output) = unsafe { (*(*from).buffers, *(*to).buffers) };
    if !is_reached(&input) || !is_reached(&output) || input.len == 0 {
        return INVALID_PARAM;
    }
    let (session, results, tag) = (SharedAddress(session), SharedAddress(results), SharedAddress(tag));
    let (input, output) = ((SharedAddress(input.data), input.len), (SharedAddress(output.data), output.len));
    enqueue(
        instance,
        Box::new(move || {
            // SAFETY: as above.
            let context = unsafe { &*session.get().cast::<Context>() };
            let ((input, input_len), (output, output_len)) = (input, output);
            let input = FlatBuffer { len: input_len, data: input.get() };
            let output = FlatBuffer { len: output_len, data: output.get() };
            // SAFETY: the buffers have their stated lengths.
            let (message, room) = unsafe { (bytes(&input), bytes(&output)) };
            let made = if has_fault(REQUEST_FAILS) {
                DcResults { status: DC_HARDWARE_ERROR, ..DcResults::zeroed() }
            } else if context.setup.direction == DC_COMPRESS {
                compressed(&context.setup, message, room)
            } else {
                decompressed(&context.setup, message, room)
            };
            // SAFETY: as above.
            unsafe { results.get().write(made) };
            let status = if made.status == DC_OK || made.status == DC_OVERFLOW { SUCCESS } else { FAIL };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { (context.done)(tag.get(), status) };
        }),
    )
}

fn checksum(setup: &DcSetup, bytes: &[u8]) -> u32 {
    let format = if setup.checksum == DC_ADLER32 { Format::Zlib } else { Format::Gzip };
    panoply_cpu_crypto::deflate::checksum(format, bytes)
}

fn compressed(setup: &DcSetup, message: &[u8], room: &mut [u8]) -> DcResults {
    let made = Deflater::new(setup.level as i32).map(|mut packer| packer.compress(Format::Deflate, message, room));
    match made {
        Some(Ok(len)) => DcResults {
            status: DC_OK,
            produced: len as u32,
            consumed: message.len() as u32,
            checksum: checksum(setup, message),
            ..DcResults::zeroed()
        },
        _ => DcResults { status: DC_OVERFLOW, ..DcResults::zeroed() },
    }
}

fn decompressed(setup: &DcSetup, message: &[u8], room: &mut [u8]) -> DcResults {
    let Some(mut unpacker) = Inflater::new() else {
        return DcResults { status: DC_FATAL_ERROR, ..DcResults::zeroed() };
    };
    match unpacker.stream(message, room) {
        Ok((consumed, produced)) => DcResults {
            status: DC_OK,
            produced: produced as u32,
            consumed: consumed as u32,
            checksum: checksum(setup, &room[..produced]),
            end_of_last_block: TRUE,
            uncompressed: FALSE,
        },
        Err(Failure::Limit) => DcResults { status: DC_OVERFLOW, ..DcResults::zeroed() },
        Err(_) => DcResults { status: -5, ..DcResults::zeroed() },
    }
}
