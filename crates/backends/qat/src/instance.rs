//! An open instance, and its sessions.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::op::crypto::HashAlgorithm;

use crate::library::{LibraryHandle, Qat, QatError, Service, checked};
use crate::memory::DmaBlock;
use crate::request;
use crate::sys::*;

/// The abilities of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Does {
    pub(crate) gcm: bool,
    pub(crate) cbc: bool,
    pub(crate) ctr: bool,
    pub(crate) sha256: bool,
    pub(crate) sha384: bool,
    pub(crate) sha512: bool,
    pub(crate) rsa: bool,
    pub(crate) ecdsa: bool,
    pub(crate) deflate: bool,
    /// Whether QATzip compresses, if no instance does.
    pub(crate) zip: bool,
}

impl Does {
    fn named(&mut self) -> [(&'static str, &mut bool); 10] {
        [
            ("aes-gcm", &mut self.gcm),
            ("aes-cbc", &mut self.cbc),
            ("aes-ctr", &mut self.ctr),
            ("sha256", &mut self.sha256),
            ("sha384", &mut self.sha384),
            ("sha512", &mut self.sha512),
            ("rsa", &mut self.rsa),
            ("ecdsa", &mut self.ecdsa),
            ("deflate", &mut self.deflate),
            ("deflate-qatzip", &mut self.zip),
        ]
    }

    /// Converts to the names of a device's features.
    pub(crate) fn features(mut self) -> Vec<String> {
        self.named().into_iter().filter(|(_, has)| **has).map(|(name, _)| name.to_owned()).collect()
    }

    /// Parses the names of a device's features.
    pub(crate) fn from_features(features: &[String]) -> Does {
        let mut does = Does::default();
        does.named().into_iter().for_each(|(name, has)| *has = features.iter().any(|feature| feature == name));
        does
    }

    /// The abilities of either.
    pub(crate) fn or(mut self, mut other: Does) -> Does {
        self.named().into_iter().zip(other.named()).for_each(|((_, has), (_, more))| *has |= *more);
        self
    }

    pub(crate) fn hash(&self, algorithm: HashAlgorithm) -> bool {
        match algorithm {
            HashAlgorithm::Sha256 => self.sha256,
            HashAlgorithm::Sha384 => self.sha384,
            HashAlgorithm::Sha512 => self.sha512,
        }
    }
}

/// Queries the abilities of an instance.
pub(crate) fn abilities(started: &LibraryHandle, service: Service, handle: Instance) -> Result<Does, QatError> {
    let (qat, mut does) = (&started.qat, Does::default());
    if service == Service::Compression {
        let can = dc_capabilities(started, handle)?;
        does.deflate = [can.deflate, can.inflate, can.crc32, can.adler32].iter().all(|has| *has != FALSE);
        return Ok(does);
    }
    let mut can = CyCapabilities::zeroed();
    // SAFETY: the library returned the handle. The structure has space for later versions' fields,
    // and the call writes it before it returns.
    checked("cpaCyQueryCapabilities", unsafe { (qat.cy_capabilities)(handle, &mut can) })?;
    (does.rsa, does.ecdsa) = (can.rsa != FALSE, can.ecdsa != FALSE);
    if can.sym != FALSE {
        let mut sym = SymCapabilities::zeroed();
        // SAFETY: as above.
        checked("cpaCySymQueryCapabilities", unsafe { (qat.sym_capabilities)(handle, &mut sym) })?;
        let (cipher, hash) = (|bit: u32| sym.ciphers >> bit & 1 == 1, |bit: u32| sym.hashes >> bit & 1 == 1);
        does.gcm = cipher(CIPHER_AES_GCM) && hash(HASH_AES_GCM);
        (does.cbc, does.ctr) = (cipher(CIPHER_AES_CBC), cipher(CIPHER_AES_CTR));
        (does.sha256, does.sha384, does.sha512) = (hash(HASH_SHA256), hash(HASH_SHA384), hash(HASH_SHA512));
    }
    Ok(does)
}

fn dc_capabilities(started: &LibraryHandle, handle: Instance) -> Result<DcCapabilities, QatError> {
    let mut can = DcCapabilities::zeroed();
    // SAFETY: as in `abilities`.
    checked("cpaDcQueryCapabilities", unsafe { (started.qat.dc_capabilities)(handle, &mut can) })?;
    Ok(can)
}

/// An instance that is started, with its address translation and restart notifications set.
pub(crate) struct OpenInstance {
    pub(crate) started: Arc<LibraryHandle>,
    pub(crate) service: Service,
    pub(crate) handle: Instance,
    pub(crate) does: Does,
    /// Size of the library's metadata for a list of one buffer.
    pub(crate) meta_bytes: usize,
    /// The kind of Huffman codes for DEFLATE, and whether blocks that fail verification are stored
    /// instead.
    pub(crate) huffman: u32,
    pub(crate) recovers: Boolean,
    /// The NUMA node of the instance's memory, or -1.
    pub(crate) node: c_int,
    news: &'static AtomicU32,
}

/// The last event of an instance plus one, or `NOTHING`.
const NOTHING: u32 = 0;

/// The location of an instance's last event. The library may call back at any time, so the location
/// is leaked, once for each handle of a library.
fn news_of(qat: &Qat, handle: Instance) -> &'static AtomicU32 {
    static PLACES: Mutex<Option<HashMap<(usize, usize), &'static AtomicU32>>> = Mutex::new(None);
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let places = places.get_or_insert_default();
    // Two libraries may use the same handle values.
    places.entry((qat.user_start as usize, handle as usize)).or_insert_with(|| Box::leak(Box::default()))
}

/// # Safety
/// `tag` is null or the address of an `AtomicU32` that is never freed.
unsafe extern "C" fn notified(_: Instance, tag: *mut c_void, event: u32) {
    // SAFETY: the caller guarantees the tag.
    if let Some(news) = unsafe { tag.cast::<AtomicU32>().as_ref() } {
        news.store(event.saturating_add(1), Ordering::Release);
    }
}

impl OpenInstance {
    pub(crate) fn open(
        started: &Arc<LibraryHandle>,
        service: Service,
        handle: Instance,
    ) -> Result<OpenInstance, QatError> {
        let (qat, news) = (&started.qat, news_of(&started.qat, handle));
        let info = qat.info(service, handle)?;
        if info.state != OPERATIONAL_UP {
            return Err(QatError::Status { call: "an instance is down", status: RESTARTING });
        }
        news.store(NOTHING, Ordering::Release);
        let does = abilities(started, service, handle)?;
        let (mut meta_bytes, mut huffman, mut recovers) = (0, DC_STATIC, FALSE);
        let tag: *mut c_void = std::ptr::from_ref(news).cast_mut().cast();
        // SAFETY (of all calls below): the library returned the handle, and the calls write numbers
        // before they return. The translation function is the library's own, and the news location
        // is never freed.
        match service {
            Service::Crypto => {
                // SAFETY: as above.
                checked("cpaCySetAddressTranslation", unsafe { (qat.cy_translation)(handle, qat.memory_address) })?;
                // SAFETY: as above.
                checked("cpaCyBufferListGetMetaSize", unsafe { (qat.cy_meta_bytes)(handle, 1, &mut meta_bytes) })?;
                // SAFETY: as above.
                checked("cpaCyStartInstance", unsafe { (qat.cy_start)(handle) })?;
                // SAFETY: as above.
                unsafe { (qat.cy_notify)(handle, Some(notified), tag) };
            }
            Service::Compression => {
                let (can, mut buffers) = (dc_capabilities(started, handle)?, 0);
                // SAFETY: as above.
                checked("cpaDcSetAddressTranslation", unsafe { (qat.dc_translation)(handle, qat.memory_address) })?;
                // SAFETY: as above.
                checked("cpaDcBufferListGetMetaSize", unsafe { (qat.dc_meta_bytes)(handle, 1, &mut meta_bytes) })?;
                // SAFETY: as above.
                let asked = unsafe { (qat.dc_buffer_count)(handle, &mut buffers) };
                checked("cpaDcGetNumIntermediateBuffers", asked)?;
                // Older devices support dynamic codes only with intermediate buffers. They use
                // static codes here.
                huffman = if buffers == 0 && can.dynamic_huffman != FALSE { DC_DYNAMIC } else { DC_STATIC };
                recovers = can.verify_recover;
                // SAFETY: as above. Without buffers the list may be null.
                checked("cpaDcStartInstance", unsafe { (qat.dc_start)(handle, 0, std::ptr::null_mut()) })?;
                // SAFETY: as above.
                unsafe { (qat.dc_notify)(handle, Some(notified), tag) };
            }
        }
        let node = c_int::try_from(info.node).unwrap_or(-1);
        let (started, meta_bytes) = (started.clone(), meta_bytes as usize);
        Ok(OpenInstance { started, service, handle, does, meta_bytes, huffman, recovers, node, news })
    }

    /// Lets the library deliver the available answers.
    pub(crate) fn poll(&self) -> Result<(), QatError> {
        let (qat, all) = (&self.started.qat, 0);
        let (call, status) = match self.service {
            // SAFETY: the instance is open. The poll calls the callbacks of `request`.
            Service::Crypto => ("icp_sal_CyPollInstance", unsafe { (qat.cy_poll)(self.handle, all) }),
            // SAFETY: as above.
            Service::Compression => ("icp_sal_DcPollInstance", unsafe { (qat.dc_poll)(self.handle, all) }),
        };
        // RETRY means that there were no answers.
        if status == RETRY { Ok(()) } else { checked(call, status) }
    }

    /// The error, if an event has made the device unusable.
    pub(crate) fn trouble(&self) -> Option<QatError> {
        match self.news.load(Ordering::Acquire).checked_sub(1)? {
            EVENT_RESTARTED => Some(QatError::Broken { what: "the device was restarted".to_owned() }),
            EVENT_RESTARTING => Some(QatError::Broken { what: "the device is restarting".to_owned() }),
            _ => Some(QatError::Broken { what: "the device has a fatal error".to_owned() }),
        }
    }
}

impl Drop for OpenInstance {
    fn drop(&mut self) {
        match self.service {
            // SAFETY: the instance was started, and is stopped once.
            Service::Crypto => unsafe { (self.started.qat.cy_stop)(self.handle) },
            // SAFETY: as above.
            Service::Compression => unsafe { (self.started.qat.dc_stop)(self.handle) },
        };
    }
}

/// The configuration of a session, shared by all requests of one op.
#[derive(Clone, Copy)]
pub(crate) enum Setup<'a> {
    /// No session is needed.
    None,
    /// A cipher or hash with its key.
    Symmetric(Mode, &'a [u8]),
    /// DEFLATE in one direction, with a level and a checksum.
    Pack {
        /// Whether to compress.
        compresses: bool,
        level: u32,
        checksum: u32,
    },
}

/// A symmetric operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Seal,
    Open,
    CbcEncrypt,
    CbcDecrypt,
    Ctr,
    Hash(HashAlgorithm),
    Hmac(HashAlgorithm),
}

impl Mode {
    pub(crate) fn is_aead(self) -> bool {
        matches!(self, Mode::Seal | Mode::Open)
    }

    pub(crate) fn hash(self) -> Option<HashAlgorithm> {
        match self {
            Mode::Hash(algorithm) | Mode::Hmac(algorithm) => Some(algorithm),
            _ => None,
        }
    }
}

/// A session. Its context contains data derived from the key, and is wiped at the end.
pub(crate) struct Session {
    instance: Rc<OpenInstance>,
    context: DmaBlock,
}

impl Session {
    /// Starts a session on an instance. All its requests must have `aad_len` bytes of associated
    /// data. `None` if no session is needed.
    pub(crate) fn begin(
        instance: &Rc<OpenInstance>,
        setup: Setup<'_>,
        aad_len: usize,
    ) -> Result<Option<Session>, QatError> {
        match setup {
            Setup::None => Ok(None),
            Setup::Symmetric(mode, key) => Session::symmetric(instance, &symmetric(mode, key, aad_len)).map(Some),
            Setup::Pack { compresses, level, checksum } => {
                let direction = if compresses { DC_COMPRESS } else { DC_DECOMPRESS };
                let (kind, huffman, state) = (DC_DEFLATE, instance.huffman, DC_STATELESS);
                let window = DC_WINDOW_32K;
                let setup = DcSetup { level, kind, huffman, direction, state, window, checksum, ..DcSetup::zeroed() };
                Session::pack(instance, setup).map(Some)
            }
        }
    }

    fn symmetric(instance: &Rc<OpenInstance>, setup: &SymSetup) -> Result<Session, QatError> {
        let (qat, mut bytes) = (&instance.started.qat, 0);
        // SAFETY: the instance is open. The setup and the data that it points to outlive the call.
        let status = unsafe { (qat.sym_session_bytes)(instance.handle, setup, &mut bytes) };
        checked("cpaCySymSessionCtxGetSize", status)?;
        let context = context(instance, bytes)?;
        let place = context.at(0).cast();
        // SAFETY: as above. The context has the requested size, and the callback has the library's
        // type.
        let status = unsafe { (qat.sym_session_start)(instance.handle, request::symmetric_done, setup, place) };
        checked("cpaCySymInitSession", status)?;
        Ok(Session { instance: instance.clone(), context })
    }

    fn pack(instance: &Rc<OpenInstance>, mut setup: DcSetup) -> Result<Session, QatError> {
        let (qat, mut bytes, mut state_bytes) = (&instance.started.qat, 0, 0);
        // SAFETY: the instance is open. The call writes the numbers before it returns.
        let status = unsafe { (qat.dc_session_bytes)(instance.handle, &mut setup, &mut bytes, &mut state_bytes) };
        checked("cpaDcGetSessionSize", status)?;
        let context = context(instance, bytes)?;
        let (place, no_list) = (context.at(0).cast(), std::ptr::null_mut());
        // SAFETY: as in `symmetric`. A stateless session needs no further list.
        let status =
            unsafe { (qat.dc_session_start)(instance.handle, place, &mut setup, no_list, request::packing_done) };
        checked("cpaDcInitSession", status)?;
        Ok(Session { instance: instance.clone(), context })
    }

    pub(crate) fn place(&self) -> SessionContext {
        self.context.at(0).cast()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (qat, handle, place) = (&self.instance.started.qat, self.instance.handle, self.place());
        match self.instance.service {
            // SAFETY: the session was started on this instance, no request uses it, and it ends
            // once.
            Service::Crypto => unsafe { (qat.sym_session_end)(handle, place) },
            // SAFETY: as above.
            Service::Compression => unsafe { (qat.dc_session_end)(handle, place) },
        };
    }
}

fn context(instance: &OpenInstance, bytes: u32) -> Result<DmaBlock, QatError> {
    let bytes = (bytes as usize).max(1);
    DmaBlock::new(&instance.started, bytes, instance.node).ok_or(QatError::Memory { bytes })
}

fn symmetric(mode: Mode, key: &[u8], aad_len: usize) -> SymSetup {
    let mut setup = SymSetup { priority: PRIORITY_NORMAL, no_partials: TRUE, ..SymSetup::zeroed() };
    let (key, key_len) = (key.as_ptr().cast_mut(), key.len() as u32);
    let encrypts = matches!(mode, Mode::Seal | Mode::CbcEncrypt | Mode::Ctr);
    let direction = if encrypts { DIRECTION_ENCRYPT } else { DIRECTION_DECRYPT };
    let cipher = |algorithm: u32| CipherSetup { algorithm, key_len, key, direction };
    match mode {
        Mode::Seal | Mode::Open => {
            (setup.operation, setup.cipher) = (OP_CHAINING, cipher(CIPHER_AES_GCM));
            (setup.hash.algorithm, setup.hash.mode) = (HASH_AES_GCM, HASH_MODE_AUTH);
            (setup.hash.digest_len, setup.hash.aad_len) = (TAG_LEN, aad_len as u32);
            setup.order = if encrypts { CIPHER_THEN_HASH } else { HASH_THEN_CIPHER };
            setup.verify_digest = if encrypts { FALSE } else { TRUE };
        }
        Mode::CbcEncrypt | Mode::CbcDecrypt => (setup.operation, setup.cipher) = (OP_CIPHER, cipher(CIPHER_AES_CBC)),
        Mode::Ctr => (setup.operation, setup.cipher) = (OP_CIPHER, cipher(CIPHER_AES_CTR)),
        Mode::Hash(algorithm) | Mode::Hmac(algorithm) => {
            setup.operation = OP_HASH;
            (setup.hash.algorithm, setup.hash.digest_len) = (hash_number(algorithm), algorithm.digest_bytes() as u32);
            setup.hash.mode = HASH_MODE_PLAIN;
            if matches!(mode, Mode::Hmac(_)) {
                (setup.hash.mode, setup.hash.key, setup.hash.key_len) = (HASH_MODE_AUTH, key, key_len);
            }
        }
    }
    setup
}

const TAG_LEN: u32 = 16;

fn hash_number(algorithm: HashAlgorithm) -> u32 {
    match algorithm {
        HashAlgorithm::Sha256 => HASH_SHA256,
        HashAlgorithm::Sha384 => HASH_SHA384,
        HashAlgorithm::Sha512 => HASH_SHA512,
    }
}
