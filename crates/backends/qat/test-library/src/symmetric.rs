//! Ciphers and hashes.

use std::ffi::c_void;

use panoply_core::op::crypto::{AeadAlgorithm, CipherAlgorithm, HashAlgorithm};
use panoply_cpu_crypto::aead::AeadKey;
use panoply_cpu_crypto::cipher::CipherKey;
use panoply_cpu_crypto::hash::{self, HmacKey};

use crate::sys::*;
use crate::{
    NO_SESSION, REQUEST_FAILS, SharedAddress, bytes, enqueue, has_fault, is_reached, session_begins, session_ends,
};

/// The context of a session: the setup, with copies of the keys.
#[repr(C)]
struct Context {
    setup: SymSetup,
    done: SymDone,
    cipher_key: [u8; 32],
    auth_key: [u8; 128],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCySymSessionCtxGetSize(_: Instance, _: *const SymSetup, size: *mut u32) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { size.write(size_of::<Context>() as u32) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCySymInitSession(
    _: Instance,
    done: SymDone,
    setup: *const SymSetup,
    context: SessionContext,
) -> Status {
    // SAFETY: the caller's setup outlives the call.
    let setup = unsafe { *setup };
    let is_aead = setup.operation == OP_CHAINING;
    if has_fault(NO_SESSION) || setup.hash.aad_len > 240 || (is_aead && setup.hash.digest_len != 16) {
        return INVALID_PARAM;
    }
    let (mut cipher_key, mut auth_key) = ([0; 32], [0; 128]);
    let (cipher_len, auth_len) = (setup.cipher.key_len as usize, setup.hash.key_len as usize);
    if cipher_len > 32 || auth_len > 128 {
        return INVALID_PARAM;
    }
    if cipher_len > 0 {
        // SAFETY: the key has this length, and the copy has enough space.
        unsafe { setup.cipher.key.copy_to(cipher_key.as_mut_ptr(), cipher_len) };
    }
    if auth_len > 0 {
        // SAFETY: as above.
        unsafe { setup.hash.key.copy_to(auth_key.as_mut_ptr(), auth_len) };
    }
    // SAFETY: the context has the requested size.
    unsafe { context.cast::<Context>().write(Context { setup, done, cipher_key, auth_key }) };
    session_begins();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaCySymRemoveSession(_: Instance, _: SessionContext) -> Status {
    session_ends()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCySymPerformOp(
    instance: Instance,
    tag: *mut c_void,
    op: *const SymOp,
    from: *const BufferList,
    _: *mut BufferList,
    _: *mut Boolean,
) -> Status {
    // SAFETY: the caller keeps its structures until the callback.
    let (buffer, is_one) = unsafe { (*(*from).buffers, (*from).count == 1) };
    // SAFETY: as above.
    let lens = unsafe { (*op).cipher_len.max((*op).hash_len) };
    if !is_one || !is_reached(&buffer) || lens > buffer.len {
        return INVALID_PARAM;
    }
    let (tag, op, list) = (SharedAddress(tag), SharedAddress(op.cast_mut()), SharedAddress(from.cast_mut()));
    enqueue(
        instance,
        Box::new(move || {
            let (tag, op, list) = (tag.get(), op.get(), list.get());
            // SAFETY: as above.
            let (op_data, buffer, context) = unsafe { (&*op, *(*list).buffers, &*(*op).session.cast::<Context>()) };
            let verified = if has_fault(REQUEST_FAILS) { None } else { perform(context, op_data, &buffer) };
            let (status, verdict) = if verified.is_some() { (SUCCESS, verified) } else { (FAIL, None) };
            let verdict = if verdict == Some(true) { TRUE } else { FALSE };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { (context.done)(tag, status, context.setup.operation, op.cast(), list, verdict) };
        }),
    )
}

fn perform(context: &Context, op: &SymOp, buffer: &FlatBuffer) -> Option<bool> {
    // SAFETY: the buffers have their stated lengths.
    let data = unsafe { bytes(buffer) };
    let key = &context.cipher_key[..context.setup.cipher.key_len as usize];
    let encrypts = context.setup.cipher.direction == DIRECTION_ENCRYPT;
    if context.setup.operation == OP_HASH {
        return digest(context, op, &data[..op.hash_len as usize]);
    }
    let data = &mut data[..op.cipher_len as usize];
    let copy = data.to_vec();
    // SAFETY: the initial vector has its stated length.
    let iv = unsafe { bytes(&FlatBuffer { len: op.iv_len, data: op.iv }) };
    if context.setup.cipher.algorithm == CIPHER_AES_GCM {
        return sealed(context, op, key, encrypts, (&copy, data), (*iv).try_into().ok()?);
    }
    let algorithm = CipherAlgorithm::ALL.into_iter().find(|algorithm| algorithm.key_bytes() == key.len())?;
    let (cipher, iv) = (CipherKey::new(algorithm, key)?, (*iv).try_into().ok()?);
    match (context.setup.cipher.algorithm, encrypts) {
        (CIPHER_AES_CTR, _) => cipher.apply_counted(&iv, 0, &copy, data, false).ok()?,
        (_, true) => cipher.encrypt_chained(&iv, data).ok()?,
        (_, false) => cipher.decrypt_chained(&iv, &copy, data, false).ok()?,
    }
    Some(true)
}

fn sealed(
    context: &Context,
    op: &SymOp,
    key: &[u8],
    encrypts: bool,
    (from, to): (&[u8], &mut [u8]),
    nonce: [u8; 12],
) -> Option<bool> {
    let algorithm = AeadAlgorithm::ALL.into_iter().find(|algorithm| algorithm.key_bytes() == key.len())?;
    let key = AeadKey::new(algorithm, key)?;
    // SAFETY: the associated data has the length of the session's setup, and the tag has sixteen
    // bytes.
    let (aad, tag) = unsafe {
        (
            bytes(&FlatBuffer { len: context.setup.hash.aad_len, data: op.aad }),
            bytes(&FlatBuffer { len: 16, data: op.digest }),
        )
    };
    match encrypts {
        true => key.seal(&nonce, aad, from, to, tag, false).is_ok().then_some(true),
        false => Some(key.open(&nonce, aad, from, tag, to, false).is_ok()),
    }
}

fn digest(context: &Context, op: &SymOp, message: &[u8]) -> Option<bool> {
    let algorithm = match context.setup.hash.algorithm {
        HASH_SHA256 => HashAlgorithm::Sha256,
        HASH_SHA384 => HashAlgorithm::Sha384,
        HASH_SHA512 => HashAlgorithm::Sha512,
        _ => return None,
    };
    // SAFETY: the digest's buffer has the size of the session's setup.
    let out = unsafe { bytes(&FlatBuffer { len: context.setup.hash.digest_len, data: op.digest }) };
    match context.setup.hash.mode {
        HASH_MODE_PLAIN => hash::hash(algorithm, message, out),
        _ => {
            let key = HmacKey::new(algorithm, &context.auth_key[..context.setup.hash.key_len as usize]);
            key.tag(message, out).ok()?;
        }
    }
    Some(true)
}
