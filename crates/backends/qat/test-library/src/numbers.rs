//! RSA and ECDSA with AWS-LC's big numbers.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use aws_lc_sys::*;

use crate::sys::*;
use crate::{REQUEST_FAILS, SharedAddress, WRONG_RSA, bytes, enqueue, has_fault, is_reached};

/// An owned big number.
struct BigNumber(*mut BIGNUM);

impl BigNumber {
    fn of(buffer: &FlatBuffer) -> BigNumber {
        // SAFETY: the buffer has its stated length. A null result means no memory and ends the
        // test.
        let made = unsafe { BN_bin2bn(bytes(buffer).as_ptr(), buffer.len as usize, null_mut()) };
        assert!(!made.is_null());
        BigNumber(made)
    }

    fn new() -> BigNumber {
        // SAFETY: the function takes no arguments.
        BigNumber(unsafe { BN_new() })
    }

    /// Writes the number to the whole buffer. Returns false if it does not fit.
    fn write(&self, buffer: &FlatBuffer) -> bool {
        // SAFETY: as above.
        unsafe { BN_bn2bin_padded(bytes(buffer).as_mut_ptr(), buffer.len as usize, self.0) == 1 }
    }
}

impl Drop for BigNumber {
    fn drop(&mut self) {
        // SAFETY: the library created the number, and it is freed once.
        unsafe { BN_free(self.0) };
    }
}

struct Workspace(*mut BN_CTX);

impl Workspace {
    fn new() -> Workspace {
        // SAFETY: the function takes no arguments.
        Workspace(unsafe { BN_CTX_new() })
    }

    fn power(&self, base: &BigNumber, exponent: &BigNumber, modulus: &BigNumber) -> BigNumber {
        let (result, below) = (BigNumber::new(), BigNumber::new());
        // SAFETY: all numbers are alive, here and below.
        assert_eq!(1, unsafe { BN_nnmod(below.0, base.0, modulus.0, self.0) });
        // SAFETY: as above.
        assert_eq!(1, unsafe { BN_mod_exp(result.0, below.0, exponent.0, modulus.0, self.0) });
        result
    }

    fn times(&self, a: &BigNumber, b: &BigNumber, modulus: &BigNumber) -> BigNumber {
        let result = BigNumber::new();
        // SAFETY: as above.
        assert_eq!(1, unsafe { BN_mod_mul(result.0, a.0, b.0, modulus.0, self.0) });
        result
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: the library created the context, and it is freed once.
        unsafe { BN_CTX_free(self.0) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyRsaEncrypt(
    instance: Instance,
    done: RsaDone,
    tag: *mut c_void,
    op: *const RsaPublicOp,
    out: *mut FlatBuffer,
) -> Status {
    // SAFETY: the caller keeps its structures until the callback.
    let (input, output) = unsafe { ((*op).input, *out) };
    if !is_reached(&input) || !is_reached(&output) {
        return INVALID_PARAM;
    }
    let (tag, op, out) = (SharedAddress(tag), SharedAddress(op.cast_mut()), SharedAddress(out));
    enqueue(
        instance,
        Box::new(move || {
            let (tag, op, out) = (tag.get(), op.get(), out.get());
            // SAFETY: as above.
            let (key, input, output) = unsafe { (*(*op).key, (*op).input, *out) };
            let result = Workspace::new().power(
                &BigNumber::of(&input),
                &BigNumber::of(&key.exponent),
                &BigNumber::of(&key.modulus),
            );
            let status = if result.write(&output) && !has_fault(REQUEST_FAILS) { SUCCESS } else { FAIL };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { done(tag, status, op.cast(), out) };
        }),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyRsaDecrypt(
    instance: Instance,
    done: RsaDone,
    tag: *mut c_void,
    op: *const RsaPrivateOp,
    out: *mut FlatBuffer,
) -> Status {
    // SAFETY: the caller keeps its structures until the callback.
    let (key, input, output) = unsafe { (*(*op).key, (*op).input, *out) };
    let is_half = [key.p, key.q, key.dp, key.dq, key.q_inverse].iter().all(|part| 2 * part.len == output.len);
    if !is_reached(&input) || !is_reached(&output) || !is_reached(&key.p) || !is_half {
        return INVALID_PARAM;
    }
    let (tag, op, out) = (SharedAddress(tag), SharedAddress(op.cast_mut()), SharedAddress(out));
    enqueue(
        instance,
        Box::new(move || {
            let (tag, op, out) = (tag.get(), op.get(), out.get());
            // SAFETY: as above.
            let (key, input, output) = unsafe { (*(*op).key, (*op).input, *out) };
            let is_written = remainders(&key, &input).write(&output);
            if has_fault(WRONG_RSA) {
                // SAFETY: the buffers have their stated lengths.
                unsafe { bytes(&output)[5] ^= 1 };
            }
            let status = if is_written && !has_fault(REQUEST_FAILS) { SUCCESS } else { FAIL };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { done(tag, status, op.cast(), out) };
        }),
    )
}

/// The private function with both primes (RFC 8017, 5.1.2).
fn remainders(key: &RsaPrivateKey, input: &FlatBuffer) -> BigNumber {
    let (workspace, message) = (Workspace::new(), BigNumber::of(input));
    let [p, q, dp, dq, q_inverse] = [key.p, key.q, key.dp, key.dq, key.q_inverse].map(|part| BigNumber::of(&part));
    let (first, second) = (workspace.power(&message, &dp, &p), workspace.power(&message, &dq, &q));
    let difference = BigNumber::new();
    // SAFETY: all numbers are alive, here and below.
    assert_eq!(1, unsafe { BN_mod_sub(difference.0, first.0, second.0, p.0, workspace.0) });
    let factor = workspace.times(&difference, &q_inverse, &p);
    let (product, sum) = (BigNumber::new(), BigNumber::new());
    // SAFETY: as above.
    assert_eq!(1, unsafe { BN_mul(product.0, factor.0, q.0, workspace.0) });
    // SAFETY: as above.
    assert_eq!(1, unsafe { BN_add(sum.0, product.0, second.0) });
    sum
}

fn curve(bytes: u32) -> *mut EC_GROUP {
    let name = if bytes == 32 { NID_X9_62_prime256v1 } else { NID_secp384r1 };
    // SAFETY: the curve is one of the library's own, which are never freed.
    unsafe { EC_GROUP_new_by_curve_name(name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyEcdsaSignRS(
    instance: Instance,
    done: EcdsaSignDone,
    tag: *mut c_void,
    op: *const EcdsaSignOp,
    _: *mut Boolean,
    r: *mut FlatBuffer,
    s: *mut FlatBuffer,
) -> Status {
    // SAFETY: the caller keeps its structures until the callback.
    let (d, k) = unsafe { ((*op).d, (*op).k) };
    if !is_reached(&d) || !is_reached(&k) {
        return INVALID_PARAM;
    }
    let (tag, op, r, s) = (SharedAddress(tag), SharedAddress(op.cast_mut()), SharedAddress(r), SharedAddress(s));
    enqueue(
        instance,
        Box::new(move || {
            let (tag, op, r, s) = (tag.get(), op.get(), r.get(), s.get());
            // SAFETY: as above.
            let (data, first, second) = unsafe { (*op, *r, *s) };
            let made = signed(&data).filter(|(one, two)| one.write(&first) && two.write(&second));
            if has_fault(WRONG_RSA) {
                // SAFETY: the buffers have their stated lengths.
                unsafe { bytes(&second)[5] ^= 1 };
            }
            let status = if has_fault(REQUEST_FAILS) { FAIL } else { SUCCESS };
            let made = if made.is_some() { TRUE } else { FALSE };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { done(tag, status, op.cast(), made, r, s) };
        }),
    )
}

fn signed(op: &EcdsaSignOp) -> Option<(BigNumber, BigNumber)> {
    let (group, workspace, n) = (curve(op.q.len), Workspace::new(), BigNumber::of(&op.n));
    let (k, m, d) = (BigNumber::of(&op.k), BigNumber::of(&op.m), BigNumber::of(&op.d));
    let (x, r, inverse, sum) = (BigNumber::new(), BigNumber::new(), BigNumber::new(), BigNumber::new());
    // SAFETY: all objects are alive until they are freed, here and below.
    let point = unsafe { EC_POINT_new(group) };
    // SAFETY: as above.
    let multiplied = unsafe { EC_POINT_mul(group, point, k.0, null(), null(), workspace.0) };
    // SAFETY: as above.
    let got = unsafe { EC_POINT_get_affine_coordinates(group, point, x.0, null_mut(), workspace.0) };
    // SAFETY: the library created the point, and it is freed once.
    unsafe { EC_POINT_free(point) };
    (multiplied == 1 && got == 1).then_some(())?;
    // SAFETY: as above.
    assert_eq!(1, unsafe { BN_nnmod(r.0, x.0, n.0, workspace.0) });
    let product = workspace.times(&r, &d, &n);
    // SAFETY: as above.
    assert_eq!(1, unsafe { BN_mod_add(sum.0, product.0, m.0, n.0, workspace.0) });
    // SAFETY: as above.
    let inverted = unsafe { BN_mod_inverse(inverse.0, k.0, n.0, workspace.0) };
    (!inverted.is_null()).then_some(())?;
    let s = workspace.times(&inverse, &sum, &n);
    Some((r, s))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyEcdsaVerify(
    instance: Instance,
    done: EcdsaVerifyDone,
    tag: *mut c_void,
    op: *const EcdsaVerifyOp,
    _: *mut Boolean,
) -> Status {
    let (tag, op) = (SharedAddress(tag), SharedAddress(op.cast_mut()));
    enqueue(
        instance,
        Box::new(move || {
            let (tag, op) = (tag.get(), op.get());
            // SAFETY: the caller keeps its structures until the callback.
            let valid = if is_signature(unsafe { &*op }) { TRUE } else { FALSE };
            let status = if has_fault(REQUEST_FAILS) { FAIL } else { SUCCESS };
            // SAFETY: the caller passed the callback together with its tag.
            unsafe { done(tag, status, op.cast(), valid) };
        }),
    )
}

fn is_signature(op: &EcdsaVerifyOp) -> bool {
    let (x, y, r, s) = (BigNumber::of(&op.xp), BigNumber::of(&op.yp), BigNumber::of(&op.r), BigNumber::of(&op.s));
    // SAFETY: all objects are alive until they are freed. The signature takes ownership of its
    // numbers.
    unsafe {
        let key = EC_KEY_new();
        EC_KEY_set_group(key, curve(op.q.len));
        let is_point = EC_KEY_set_public_key_affine_coordinates(key, x.0, y.0) == 1;
        let signature = ECDSA_SIG_new();
        ECDSA_SIG_set0(signature, BN_dup(r.0), BN_dup(s.0));
        let digest = bytes(&op.m);
        let valid = is_point && ECDSA_do_verify(digest.as_ptr(), digest.len(), signature, key) == 1;
        ECDSA_SIG_free(signature);
        EC_KEY_free(key);
        valid
    }
}
