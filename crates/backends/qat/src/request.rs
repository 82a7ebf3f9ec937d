//! One request in flight: its parameters, the memory that the device reads and writes, and the
//! callback for its answer.

use std::ffi::c_void;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::instance::{Mode, OpenInstance};
use crate::keys::{Curve, RsaPrivate, RsaPublic};
use crate::library::{QatError, checked};
use crate::memory::{ALIGN, LentBlock};
use crate::sys::*;

/// The parameters of a request.
pub(crate) enum RequestParameters<'a> {
    /// A cipher or hash, configured by the session.
    Symmetric(Symmetric<'a>),
    /// RSA's public function.
    RsaPublic { key: &'a RsaPublic, input: &'a [u8] },
    /// RSA's private function.
    RsaPrivate { key: &'a RsaPrivate, input: &'a [u8] },
    /// An ECDSA signature with the private number and a nonce.
    EcdsaSign { curve: &'static Curve, private: &'a [u8], once: &'a [u8], digest: &'a [u8] },
    /// The verification of an ECDSA signature.
    EcdsaVerify { curve: &'static Curve, point: &'a [u8], digest: &'a [u8], signature: &'a [u8] },
    /// DEFLATE, configured by the session, with `room` bytes for its output.
    Pack { message: &'a [u8], compresses: bool, room: usize },
}

/// A message for a cipher or hash.
pub(crate) struct Symmetric<'a> {
    pub(crate) mode: Mode,
    pub(crate) iv: &'a [u8],
    pub(crate) aad: &'a [u8],
    pub(crate) message: &'a [u8],
    /// Bytes appended to the message.
    pub(crate) padding: &'a [u8],
    /// The expected tag of the message.
    pub(crate) tag: &'a [u8],
}

/// The result of a request.
pub(crate) struct RequestAnswer<'a> {
    /// The device's status of the whole request.
    pub(crate) status: Status,
    /// Whether the message is authentic or valid, or a signature was made.
    pub(crate) verdict: bool,
    /// The output bytes.
    pub(crate) bytes: &'a [u8],
    /// The tag or digest, or the second number of a signature.
    pub(crate) digest: &'a [u8],
    /// The results of DEFLATE.
    pub(crate) packed: Option<DcResults>,
}

/// Answers that have arrived.
#[derive(Default)]
pub(crate) struct Completions(Mutex<Vec<Completion>>);

/// The answer to the request in a slot.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) slot: usize,
    pub(crate) status: Status,
    pub(crate) verdict: bool,
}

impl Completions {
    pub(crate) fn push(&self, completion: Completion) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
    }

    pub(crate) fn take(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The context that the library returns with an answer.
struct Tag {
    slot: usize,
    completions: Arc<Completions>,
}

/// # Safety
/// `tag` is the address of a `Tag` whose request is in flight.
unsafe fn complete(tag: *mut c_void, status: Status, verdict: Boolean) {
    // SAFETY: the caller guarantees the tag, and tags are only read.
    if let Some(tag) = unsafe { tag.cast::<Tag>().as_ref() } {
        let completion = Completion { slot: tag.slot, status, verdict: verdict != FALSE };
        tag.completions.push(completion);
    }
}

/// # Safety
/// As for `complete`, here and below: the library returns the tag of each request once.
pub(crate) unsafe extern "C" fn symmetric_done(
    tag: *mut c_void,
    status: Status,
    _: u32,
    _: *mut c_void,
    _: *mut BufferList,
    verified: Boolean,
) {
    // SAFETY: the caller guarantees the tag.
    unsafe { complete(tag, status, verified) }
}

unsafe extern "C" fn rsa_done(tag: *mut c_void, status: Status, _: *mut c_void, _: *mut FlatBuffer) {
    // SAFETY: as above.
    unsafe { complete(tag, status, TRUE) }
}

unsafe extern "C" fn signed(
    tag: *mut c_void,
    status: Status,
    _: *mut c_void,
    made: Boolean,
    _: *mut FlatBuffer,
    _: *mut FlatBuffer,
) {
    // SAFETY: as above.
    unsafe { complete(tag, status, made) }
}

unsafe extern "C" fn verified(tag: *mut c_void, status: Status, _: *mut c_void, valid: Boolean) {
    // SAFETY: as above.
    unsafe { complete(tag, status, valid) }
}

/// # Safety
/// As for `symmetric_done`.
pub(crate) unsafe extern "C" fn packing_done(tag: *mut c_void, status: Status) {
    // SAFETY: as above.
    unsafe { complete(tag, status, TRUE) }
}

/// The host structures that the library reads and writes while a request is in flight.
struct Frame {
    tag: Tag,
    buffers: [FlatBuffer; 2],
    lists: [BufferList; 2],
    sym: SymOp,
    public_key: RsaPublicKey,
    public: RsaPublicOp,
    private_key: RsaPrivateKey,
    private: RsaPrivateOp,
    sign: EcdsaSignOp,
    verify: EcdsaVerifyOp,
    pack: DcOp,
    results: DcResults,
    verdict: Boolean,
}

/// A request that is in flight or was answered.
pub(crate) struct Request {
    /// The instance, which must not be closed earlier.
    pub(crate) instance: Rc<OpenInstance>,
    /// The number of the op and the index of the message.
    pub(crate) job: u64,
    pub(crate) index: usize,
    memory: LentBlock,
    frame: *mut Frame,
    /// Offset and length of the answer's parts in the memory.
    bytes: (usize, usize),
    digest: (usize, usize),
    is_pack: bool,
    /// The end of the library's metadata for buffer lists.
    lists_end: usize,
}

impl Request {
    /// Size of the device memory that a request needs.
    pub(crate) fn memory_bytes(ask: &RequestParameters<'_>, instance: &OpenInstance) -> usize {
        let lens = match ask {
            RequestParameters::Symmetric(it) => vec![
                instance.meta_bytes,
                IV_ROOM,
                DIGEST_ROOM,
                it.aad.len().next_multiple_of(16),
                (it.message.len() + it.padding.len()).max(DATA_BYTES_MIN),
            ],
            RequestParameters::RsaPublic { key, .. } => vec![key.bytes(); 4],
            RequestParameters::RsaPrivate { key, .. } => vec![key.bytes(); 7],
            RequestParameters::EcdsaSign { curve, .. } => vec![curve.bytes; 11],
            RequestParameters::EcdsaVerify { curve, .. } => vec![curve.bytes; 11],
            RequestParameters::Pack { message, room, .. } => {
                vec![instance.meta_bytes, instance.meta_bytes, message.len(), *room]
            }
        };
        lens.into_iter().map(|len| len.next_multiple_of(ALIGN)).sum()
    }

    /// Starts a request. After an error nothing is in flight.
    pub(crate) fn start(
        ask: &RequestParameters<'_>,
        instance: &Rc<OpenInstance>,
        session: SessionContext,
        mut memory: LentBlock,
        (slot, completions): (usize, &Arc<Completions>),
        (job, index): (u64, usize),
    ) -> Result<Request, QatError> {
        // Messages for DEFLATE are never secret: ops with secrets are refused.
        if !matches!(ask, RequestParameters::Pack { .. }) {
            memory.mark_secret();
        }
        let tag = Tag { slot, completions: completions.clone() };
        let frame = Box::into_raw(Box::new(Frame::new(tag)));
        let mut request = Request {
            instance: instance.clone(),
            job,
            index,
            memory,
            frame,
            bytes: (0, 0),
            digest: (0, 0),
            is_pack: false,
            lists_end: 0,
        };
        match request.call(ask, session) {
            Ok(()) => Ok(request),
            Err(error) => {
                request.finish();
                Err(error)
            }
        }
    }

    fn call(&mut self, ask: &RequestParameters<'_>, session: SessionContext) -> Result<(), QatError> {
        match ask {
            RequestParameters::Symmetric(it) => self.symmetric(it, session),
            RequestParameters::RsaPublic { key, input } => self.rsa_public(key, input),
            RequestParameters::RsaPrivate { key, input } => self.rsa_private(key, input),
            RequestParameters::EcdsaSign { curve, private, once, digest } => {
                self.ecdsa_sign(curve, private, once, digest)
            }
            RequestParameters::EcdsaVerify { curve, point, digest, signature } => {
                self.ecdsa_verify(curve, point, digest, signature)
            }
            RequestParameters::Pack { message, compresses, room } => self.pack(message, *compresses, *room, session),
        }
    }

    fn symmetric(&mut self, it: &Symmetric<'_>, session: SessionContext) -> Result<(), QatError> {
        let len = it.message.len() + it.padding.len();
        let meta_bytes = self.instance.meta_bytes;
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let meta = places.room(meta_bytes).data;
        self.lists_end = places.end;
        let iv = places.put_in(IV_ROOM, &[it.iv]);
        let digest = places.put_in(DIGEST_ROOM, &[it.tag]);
        let aad = places.put_in(it.aad.len().next_multiple_of(16), &[it.aad]);
        let data = places.put_in(len.max(DATA_BYTES_MIN), &[it.message, it.padding]);
        (self.bytes, self.digest) = ((places.offset(&data), len), (places.offset(&digest), DIGEST_ROOM));
        // SAFETY: the frame belongs to this request, and nothing else uses it before the call.
        let frame = unsafe { &mut *self.frame };
        frame.buffers[0] = data;
        let buffers = &raw mut frame.buffers[0];
        frame.lists[0] = BufferList { count: 1, buffers, user: std::ptr::null_mut(), meta: meta.cast() };
        let (cipher_len, hash_len) = if it.mode.hash().is_some() { (0, len as u32) } else { (len as u32, 0) };
        let (iv, iv_len) = if it.iv.is_empty() { (std::ptr::null_mut(), 0) } else { (iv.data, it.iv.len() as u32) };
        let aad = if it.aad.is_empty() { std::ptr::null_mut() } else { aad.data };
        let has_digest = it.mode.is_aead() || it.mode.hash().is_some();
        let digest = if has_digest { digest.data } else { std::ptr::null_mut() };
        let packet = PACKET_FULL;
        frame.sym = SymOp { session, packet, iv, iv_len, cipher_len, hash_len, digest, aad, ..SymOp::zeroed() };
        let (tag, list) = (self.tag(), &raw mut frame.lists[0]);
        let (op, verdict) = (&raw const frame.sym, &raw mut frame.verdict);
        let perform = self.instance.started.qat.sym_perform;
        // SAFETY: all pointers are to the frame or to device memory, and both stay valid until the
        // answer has arrived.
        checked("cpaCySymPerformOp", unsafe { perform(self.instance.handle, tag, op, list, list, verdict) })
    }

    fn rsa_public(&mut self, key: &RsaPublic, input: &[u8]) -> Result<(), QatError> {
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let (modulus, exponent) = (places.put(&key.modulus), places.put(&key.exponent));
        let (input, output) = (places.put(input), places.room(key.bytes()));
        self.bytes = (places.offset(&output), key.bytes());
        // SAFETY: as in `symmetric`.
        let frame = unsafe { &mut *self.frame };
        frame.public_key = RsaPublicKey { modulus, exponent };
        frame.public = RsaPublicOp { key: &raw mut frame.public_key, input };
        frame.buffers[0] = output;
        let (tag, op, out) = (self.tag(), &raw const frame.public, &raw mut frame.buffers[0]);
        let encrypt = self.instance.started.qat.rsa_public;
        // SAFETY: as in `symmetric`.
        checked("cpaCyRsaEncrypt", unsafe { encrypt(self.instance.handle, rsa_done, tag, op, out) })
    }

    fn rsa_private(&mut self, key: &RsaPrivate, input: &[u8]) -> Result<(), QatError> {
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let [p, q, dp, dq, q_inverse] = key.parts().map(|part| places.put(part));
        let (input, output) = (places.put(input), places.room(key.bytes()));
        self.bytes = (places.offset(&output), key.bytes());
        // SAFETY: as in `symmetric`.
        let frame = unsafe { &mut *self.frame };
        let (version, representation) = (RSA_TWO_PRIME, RSA_KEY_REP_2);
        frame.private_key = RsaPrivateKey { version, representation, p, q, dp, dq, q_inverse, ..frame.private_key };
        frame.private = RsaPrivateOp { key: &raw mut frame.private_key, input };
        frame.buffers[0] = output;
        let (tag, op, out) = (self.tag(), &raw const frame.private, &raw mut frame.buffers[0]);
        let decrypt = self.instance.started.qat.rsa_private;
        // SAFETY: as in `symmetric`.
        checked("cpaCyRsaDecrypt", unsafe { decrypt(self.instance.handle, rsa_done, tag, op, out) })
    }

    fn ecdsa_sign(&mut self, curve: &Curve, private: &[u8], once: &[u8], digest: &[u8]) -> Result<(), QatError> {
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let [xg, yg, n, q, a, b] = curve.numbers().map(|number| places.put(number));
        let [k, m, d] = [once, digest, private].map(|number| places.put(number));
        let (r, s) = (places.room(curve.bytes), places.room(curve.bytes));
        (self.bytes, self.digest) = ((places.offset(&r), curve.bytes), (places.offset(&s), curve.bytes));
        // SAFETY: as in `symmetric`.
        let frame = unsafe { &mut *self.frame };
        frame.sign = EcdsaSignOp { xg, yg, n, q, a, b, k, m, d, field: FIELD_PRIME };
        frame.buffers = [r, s];
        let (tag, op, verdict) = (self.tag(), &raw const frame.sign, &raw mut frame.verdict);
        let (r, s) = (&raw mut frame.buffers[0], &raw mut frame.buffers[1]);
        let sign = self.instance.started.qat.ecdsa_sign;
        // SAFETY: as in `symmetric`.
        checked("cpaCyEcdsaSignRS", unsafe { sign(self.instance.handle, signed, tag, op, verdict, r, s) })
    }

    fn ecdsa_verify(&mut self, curve: &Curve, point: &[u8], digest: &[u8], signature: &[u8]) -> Result<(), QatError> {
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let [xg, yg, n, q, a, b] = curve.numbers().map(|number| places.put(number));
        let half = |pair: &[u8], second: usize| pair[second * curve.bytes..(second + 1) * curve.bytes].to_vec();
        let halves = [digest.to_vec(), half(signature, 0), half(signature, 1), half(point, 0), half(point, 1)];
        let [m, r, s, xp, yp] = halves.map(|number| places.put(&number));
        // SAFETY: as in `symmetric`.
        let frame = unsafe { &mut *self.frame };
        frame.verify = EcdsaVerifyOp { xg, yg, n, q, a, b, m, r, s, xp, yp, field: FIELD_PRIME };
        let (tag, op, verdict) = (self.tag(), &raw const frame.verify, &raw mut frame.verdict);
        let verify = self.instance.started.qat.ecdsa_verify;
        // SAFETY: as in `symmetric`.
        checked("cpaCyEcdsaVerify", unsafe { verify(self.instance.handle, verified, tag, op, verdict) })
    }

    fn pack(&mut self, message: &[u8], compresses: bool, room: usize, session: SessionContext) -> Result<(), QatError> {
        self.is_pack = true;
        let meta_bytes = self.instance.meta_bytes;
        let mut places = Places { memory: &mut self.memory, end: 0 };
        let metas = [places.room(meta_bytes), places.room(meta_bytes)];
        self.lists_end = places.end;
        let (input, output) = (places.put(message), places.room(room));
        self.bytes = (places.offset(&output), room);
        // SAFETY: as in `symmetric`.
        let frame = unsafe { &mut *self.frame };
        frame.buffers = [input, output];
        for (index, meta) in metas.iter().enumerate() {
            let (buffers, user) = (&raw mut frame.buffers[index], std::ptr::null_mut());
            frame.lists[index] = BufferList { count: 1, buffers, user, meta: meta.data.cast() };
        }
        let recovers = self.instance.recovers;
        frame.pack = DcOp { flush: DC_FLUSH_FINAL, verify: TRUE, verify_recover: recovers, ..DcOp::zeroed() };
        let (tag, op, results) = (self.tag(), &raw mut frame.pack, &raw mut frame.results);
        let (from, to) = (&raw mut frame.lists[0], &raw mut frame.lists[1]);
        let (qat, handle) = (&self.instance.started.qat, self.instance.handle);
        if compresses {
            // SAFETY: as in `symmetric`.
            let status = unsafe { (qat.dc_compress)(handle, session, from, to, op, results, tag) };
            return checked("cpaDcCompressData2", status);
        }
        // SAFETY: as in `symmetric`.
        let status = unsafe { (qat.dc_decompress)(handle, session, from, to, results, DC_FLUSH_FINAL, tag) };
        checked("cpaDcDecompressData", status)
    }

    fn tag(&self) -> *mut c_void {
        // SAFETY: the frame is alive. Only an address is taken.
        unsafe { &raw mut (*self.frame).tag }.cast()
    }

    /// The result. Call only after the answer has arrived.
    pub(crate) fn answer(&self, completion: Completion) -> RequestAnswer<'_> {
        let bytes = self.memory.block.bytes();
        let part = |(offset, len): (usize, usize)| bytes.get(offset..offset + len).unwrap_or_default();
        // SAFETY: the frame is alive, and the library does not use it any more.
        let packed = self.is_pack.then(|| unsafe { (*self.frame).results });
        let Completion { status, verdict, .. } = completion;
        RequestAnswer { status, verdict, bytes: part(self.bytes), digest: part(self.digest), packed }
    }

    /// Frees the frame and the memory. Call only if the request was answered or never started.
    pub(crate) fn finish(self) {
        // SAFETY: `Box::into_raw` created the frame in `start`, the library does not use it any
        // more, and this is called once.
        drop(unsafe { Box::from_raw(self.frame) });
    }

    /// Wipes everything that the device has not read yet. The device's result is then ignored.
    pub(crate) fn wipe(&mut self) {
        // The library's metadata for buffer lists is kept, because the device follows its pointers.
        for at in self.lists_end..self.memory.block.len() {
            // SAFETY: the pointer is inside the memory. The device may access it at the same time,
            // so no reference is created.
            unsafe { self.memory.block.at(at).write_volatile(0) };
        }
    }

    /// Wipes the frame's memory and leaks both, because the device may still write to them.
    pub(crate) fn abandon(mut self) {
        self.wipe();
        std::mem::forget(self.memory);
    }
}

/// Space for an initial vector, which the device may write to.
const IV_ROOM: usize = 16;
/// Space for a tag or digest.
const DIGEST_ROOM: usize = 64;
/// Minimum buffer size, so that an empty message has an address.
const DATA_BYTES_MIN: usize = 16;

impl Frame {
    fn new(tag: Tag) -> Frame {
        Frame {
            tag,
            buffers: [FlatBuffer::zeroed(); 2],
            lists: [BufferList::zeroed(); 2],
            sym: SymOp::zeroed(),
            public_key: RsaPublicKey::zeroed(),
            public: RsaPublicOp::zeroed(),
            private_key: RsaPrivateKey::zeroed(),
            private: RsaPrivateOp::zeroed(),
            sign: EcdsaSignOp::zeroed(),
            verify: EcdsaVerifyOp::zeroed(),
            pack: DcOp::zeroed(),
            results: DcResults::zeroed(),
            verdict: FALSE,
        }
    }
}

/// Allocates consecutive parts of a request's memory.
struct Places<'a> {
    memory: &'a mut LentBlock,
    end: usize,
}

impl Places<'_> {
    /// Allocates `len` bytes.
    fn room(&mut self, len: usize) -> FlatBuffer {
        let offset = self.end;
        self.end += len.next_multiple_of(ALIGN);
        FlatBuffer { len: len as u32, data: self.memory.block.at(offset) }
    }

    /// Allocates space for these bytes and writes them.
    fn put(&mut self, bytes: &[u8]) -> FlatBuffer {
        self.put_in(bytes.len(), &[bytes])
    }

    /// Allocates `len` bytes and writes `parts` at their start.
    fn put_in(&mut self, len: usize, parts: &[&[u8]]) -> FlatBuffer {
        let (mut at, place) = (self.end, self.room(len));
        for part in parts {
            if let Some(room) = self.memory.block.bytes_mut().get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
            }
            at += part.len();
        }
        place
    }

    fn offset(&self, place: &FlatBuffer) -> usize {
        place.data as usize - self.memory.block.at(0) as usize
    }
}
