//! The declarations of qatlib's headers that this crate uses: types and constants, with the
//! headers' names and in their order. Sizes and offsets are checked against C's at compile time.
//! They are those of qatlib 22.07 to 26.08 on 64-bit Linux.
//!
//! The test library includes this file too, so that both sides share one set of declarations.
#![allow(dead_code, unused_imports, unused_macros)] // Each side uses its own part.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// `CpaStatus`.
pub type Status = i32;
/// `CpaBoolean`.
pub type Boolean = u32;
/// `CpaInstanceHandle`.
pub type Instance = *mut c_void;
/// `CpaCySymSessionCtx` and `CpaDcSessionHandle`.
pub type SessionContext = *mut c_void;

pub const SUCCESS: Status = 0;
pub const FAIL: Status = -1;
pub const RETRY: Status = -2;
pub const RESOURCE: Status = -3;
pub const INVALID_PARAM: Status = -4;
pub const FATAL: Status = -5;
pub const UNSUPPORTED: Status = -6;
pub const RESTARTING: Status = -7;

pub const TRUE: Boolean = 1;
pub const FALSE: Boolean = 0;

pub const OPERATIONAL_UP: u32 = 1;
pub const EVENT_RESTARTING: u32 = 0;
pub const EVENT_RESTARTED: u32 = 1;
pub const EVENT_FATAL_ERROR: u32 = 2;

pub const PRIORITY_NORMAL: u32 = 1;
pub const PACKET_FULL: u32 = 1;
pub const OP_CIPHER: u32 = 1;
pub const OP_HASH: u32 = 2;
pub const OP_CHAINING: u32 = 3;
pub const CIPHER_AES_CBC: u32 = 4;
pub const CIPHER_AES_CTR: u32 = 5;
pub const CIPHER_AES_GCM: u32 = 7;
pub const DIRECTION_ENCRYPT: u32 = 1;
pub const DIRECTION_DECRYPT: u32 = 2;
pub const HASH_MODE_PLAIN: u32 = 1;
pub const HASH_MODE_AUTH: u32 = 2;
pub const HASH_SHA256: u32 = 4;
pub const HASH_SHA384: u32 = 5;
pub const HASH_SHA512: u32 = 6;
pub const HASH_AES_GCM: u32 = 9;
pub const HASH_THEN_CIPHER: u32 = 1;
pub const CIPHER_THEN_HASH: u32 = 2;

pub const RSA_TWO_PRIME: u32 = 1;
pub const RSA_KEY_REP_2: u32 = 2;
pub const FIELD_PRIME: u32 = 1;

pub const DC_FLUSH_FINAL: u32 = 1;
pub const DC_STATIC: u32 = 0;
pub const DC_DYNAMIC: u32 = 2;
pub const DC_DEFLATE: u32 = 3;
pub const DC_WINDOW_32K: u32 = 3;
pub const DC_CRC32: u32 = 1;
pub const DC_ADLER32: u32 = 2;
pub const DC_COMPRESS: u32 = 0;
pub const DC_DECOMPRESS: u32 = 1;
pub const DC_STATELESS: u32 = 1;
pub const DC_OK: i32 = 0;
pub const DC_OVERFLOW: i32 = -11;
pub const DC_SOFT_ERROR: i32 = -12;
pub const DC_FATAL_ERROR: i32 = -13;
pub const DC_WATCHDOG: i32 = -16;
pub const DC_HARDWARE_ERROR: i32 = -17;
pub const DC_VERIFY_ERROR: i32 = -18;
pub const DC_INTEGRITY_ERROR: i32 = -20;
pub const DC_PARITY_ERROR: i32 = -27;

macro_rules! declared {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* } = $bytes:literal;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $name {
            /// All bits zero: null pointers, zero lengths, no options.
            pub const fn zeroed() -> $name {
                // SAFETY: all fields are integers, arrays of integers and raw pointers, for which
                // zero is valid.
                unsafe { std::mem::zeroed() }
            }
        }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

declared! {
    /// `CpaFlatBuffer`.
    FlatBuffer { len: u32, data: *mut u8, } = 16;
    /// `CpaBufferList`.
    BufferList { count: u32, buffers: *mut FlatBuffer, user: *mut c_void, meta: *mut c_void, } = 32;
    /// `CpaInstanceInfo2`.
    InstanceInfo {
        service: u32, vendor: [u8; 64], part: [u8; 64], version: [u8; 64], name: [u8; 64], id: [u8; 128], package: u16,
        accelerator: u16, execution_engine: u16, bus_address: u16, key_protection: u32, cores: [u32; 128], node: u32, state: u32,
        needs_contiguous: Boolean, is_polled: Boolean, is_offloaded: Boolean,
    } = 932;
    /// `CpaCyCapabilitiesInfo`, with space for fields that later versions append.
    CyCapabilities {
        sym: Boolean, sym_dp: Boolean, dh: Boolean, dsa: Boolean, rsa: Boolean, ec: Boolean, ecdh: Boolean, ecdsa: Boolean,
        others: [Boolean; 11], later: [u32; 45],
    } = 256;
    /// `CpaCySymCapabilitiesInfo`, with space as above.
    SymCapabilities { ciphers: u32, hashes: u32, partial: Boolean, later: [u32; 61], } = 256;
    /// `CpaCySymCipherSetupData`.
    CipherSetup { algorithm: u32, key_len: u32, key: *mut u8, direction: u32, } = 24;
    /// `CpaCySymHashSetupData`, with its two nested structures.
    HashSetup {
        algorithm: u32, mode: u32, digest_len: u32, key: *mut u8, key_len: u32, aad_len: u32, inner: *mut u8, inner_len: u32,
        outer_algorithm: u32, outer: *mut u8, outer_len: u32,
    } = 64;
    /// `CpaCySymSessionSetupData`.
    SymSetup {
        priority: u32, operation: u32, cipher: CipherSetup, hash: HashSetup, order: u32, digest_is_appended: Boolean,
        verify_digest: Boolean, no_partials: Boolean,
    } = 112;
    /// `CpaCySymOpData`.
    SymOp {
        session: SessionContext, packet: u32, iv: *mut u8, iv_len: u32, cipher_offset: u32, cipher_len: u32, hash_offset: u32,
        hash_len: u32, digest: *mut u8, aad: *mut u8,
    } = 64;
    /// `CpaCyRsaPublicKey`.
    RsaPublicKey { modulus: FlatBuffer, exponent: FlatBuffer, } = 32;
    /// `CpaCyRsaPrivateKey`, with both representations.
    RsaPrivateKey {
        version: u32, representation: u32, modulus: FlatBuffer, exponent: FlatBuffer, p: FlatBuffer, q: FlatBuffer,
        dp: FlatBuffer, dq: FlatBuffer, q_inverse: FlatBuffer,
    } = 120;
    /// `CpaCyRsaEncryptOpData`.
    RsaPublicOp { key: *mut RsaPublicKey, input: FlatBuffer, } = 24;
    /// `CpaCyRsaDecryptOpData`.
    RsaPrivateOp { key: *mut RsaPrivateKey, input: FlatBuffer, } = 24;
    /// `CpaCyEcdsaSignRSOpData`.
    EcdsaSignOp {
        xg: FlatBuffer, yg: FlatBuffer, n: FlatBuffer, q: FlatBuffer, a: FlatBuffer, b: FlatBuffer, k: FlatBuffer, m: FlatBuffer,
        d: FlatBuffer, field: u32,
    } = 152;
    /// `CpaCyEcdsaVerifyOpData`.
    EcdsaVerifyOp {
        xg: FlatBuffer, yg: FlatBuffer, n: FlatBuffer, q: FlatBuffer, a: FlatBuffer, b: FlatBuffer, m: FlatBuffer, r: FlatBuffer,
        s: FlatBuffer, xp: FlatBuffer, yp: FlatBuffer, field: u32,
    } = 184;
    /// `CpaDcInstanceCapabilities`, with space as above.
    DcCapabilities {
        lz: [Boolean; 14], deflate: Boolean, inflate: Boolean, lz4: [Boolean; 4], crc32: Boolean, adler32: Boolean,
        xxhash32: Boolean, dynamic_huffman: Boolean, more: [Boolean; 3], windows: [u8; 4], huffman_memory: u32, flags: [Boolean; 3],
        verify: Boolean, verify_strict: Boolean, verify_recover: Boolean, later: [u32; 29],
    } = 256;
    /// `CpaDcSessionSetupData`.
    DcSetup {
        level: u32, kind: u32, huffman: u32, best_tree: u32, direction: u32, state: u32, window: u32, min_match: u32,
        lz4_block: u32, lz4_checksum: Boolean, lz4_independent: Boolean, checksum: u32, accumulate: Boolean,
    } = 52;
    /// `CpaDcOpData`.
    DcOp {
        flush: u32, verify: Boolean, verify_recover: Boolean, integrity: Boolean, verify_hardware: Boolean, crc_size: u32,
        input_skip: [u32; 4], output_skip: [u32; 4], crc: *mut c_void,
    } = 64;
    /// `CpaDcRqResults`.
    DcResults {
        status: i32, produced: u32, consumed: u32, checksum: u32, end_of_last_block: Boolean, uncompressed: Boolean,
    } = 24;
}

const _: () = {
    assert!(offset_of!(InstanceInfo, package) == 388 && offset_of!(InstanceInfo, node) == 912);
    assert!(offset_of!(InstanceInfo, state) == 916 && offset_of!(InstanceInfo, is_polled) == 924);
    assert!(offset_of!(SymSetup, hash) == 32 && offset_of!(SymSetup, order) == 96);
    assert!(offset_of!(SymSetup, verify_digest) == 104 && offset_of!(SymOp, digest) == 48);
    assert!(offset_of!(RsaPrivateKey, p) == 40 && offset_of!(CyCapabilities, later) == 76);
    assert!(offset_of!(DcCapabilities, deflate) == 56 && offset_of!(DcCapabilities, crc32) == 80);
    assert!(offset_of!(DcCapabilities, dynamic_huffman) == 92 && offset_of!(DcCapabilities, windows) == 108);
    assert!(offset_of!(DcCapabilities, verify) == 128 && offset_of!(DcCapabilities, verify_recover) == 136);
    assert!(offset_of!(DcSetup, checksum) == 44 && offset_of!(DcOp, crc) == 56);
};

/// `CpaCySymCbFunc`.
pub type SymDone = unsafe extern "C" fn(*mut c_void, Status, u32, *mut c_void, *mut BufferList, Boolean);
/// `CpaCyGenFlatBufCbFunc`.
pub type RsaDone = unsafe extern "C" fn(*mut c_void, Status, *mut c_void, *mut FlatBuffer);
/// `CpaCyEcdsaSignRSCbFunc`.
pub type EcdsaSignDone =
    unsafe extern "C" fn(*mut c_void, Status, *mut c_void, Boolean, *mut FlatBuffer, *mut FlatBuffer);
/// `CpaCyEcdsaVerifyCbFunc`.
pub type EcdsaVerifyDone = unsafe extern "C" fn(*mut c_void, Status, *mut c_void, Boolean);
/// `CpaDcCallbackFn`.
pub type DcDone = unsafe extern "C" fn(*mut c_void, Status);
/// `CpaCyInstanceNotificationCbFunc` and `CpaDcInstanceNotificationCbFunc`.
pub type Notify = unsafe extern "C" fn(Instance, *mut c_void, u32);
/// `CpaVirtualToPhysical`, the type of `qaeVirtToPhysNUMA`.
pub type Translate = unsafe extern "C" fn(*mut c_void) -> u64;

/// Calls a macro with every function in use: our name, the library's name, the arguments and the
/// result.
macro_rules! qat_functions {
    ($with:ident) => {
        $with! {
            user_start: "icp_sal_userStart" (*const c_char) -> Status;
            user_stop: "icp_sal_userStop" () -> Status;
            poll_events: "icp_sal_poll_device_events" () -> Status;
            cy_poll: "icp_sal_CyPollInstance" (Instance, u32) -> Status;
            dc_poll: "icp_sal_DcPollInstance" (Instance, u32) -> Status;
            cy_count: "cpaCyGetNumInstances" (*mut u16) -> Status;
            cy_instances: "cpaCyGetInstances" (u16, *mut Instance) -> Status;
            cy_info: "cpaCyInstanceGetInfo2" (Instance, *mut InstanceInfo) -> Status;
            cy_capabilities: "cpaCyQueryCapabilities" (Instance, *mut CyCapabilities) -> Status;
            cy_start: "cpaCyStartInstance" (Instance) -> Status;
            cy_stop: "cpaCyStopInstance" (Instance) -> Status;
            cy_translation: "cpaCySetAddressTranslation" (Instance, Translate) -> Status;
            cy_notify: "cpaCyInstanceSetNotificationCb" (Instance, Option<Notify>, *mut c_void) -> Status;
            cy_meta_bytes: "cpaCyBufferListGetMetaSize" (Instance, u32, *mut u32) -> Status;
            sym_capabilities: "cpaCySymQueryCapabilities" (Instance, *mut SymCapabilities) -> Status;
            sym_session_bytes: "cpaCySymSessionCtxGetSize" (Instance, *const SymSetup, *mut u32) -> Status;
            sym_session_start: "cpaCySymInitSession" (Instance, SymDone, *const SymSetup, SessionContext) -> Status;
            sym_session_end: "cpaCySymRemoveSession" (Instance, SessionContext) -> Status;
            sym_perform: "cpaCySymPerformOp"
                (Instance, *mut c_void, *const SymOp, *const BufferList, *mut BufferList, *mut Boolean) -> Status;
            rsa_public: "cpaCyRsaEncrypt"
                (Instance, RsaDone, *mut c_void, *const RsaPublicOp, *mut FlatBuffer) -> Status;
            rsa_private: "cpaCyRsaDecrypt"
                (Instance, RsaDone, *mut c_void, *const RsaPrivateOp, *mut FlatBuffer) -> Status;
            ecdsa_sign: "cpaCyEcdsaSignRS"
                (Instance, EcdsaSignDone, *mut c_void, *const EcdsaSignOp, *mut Boolean, *mut FlatBuffer, *mut FlatBuffer) -> Status;
            ecdsa_verify: "cpaCyEcdsaVerify"
                (Instance, EcdsaVerifyDone, *mut c_void, *const EcdsaVerifyOp, *mut Boolean) -> Status;
            dc_count: "cpaDcGetNumInstances" (*mut u16) -> Status;
            dc_instances: "cpaDcGetInstances" (u16, *mut Instance) -> Status;
            dc_info: "cpaDcInstanceGetInfo2" (Instance, *mut InstanceInfo) -> Status;
            dc_capabilities: "cpaDcQueryCapabilities" (Instance, *mut DcCapabilities) -> Status;
            dc_buffer_count: "cpaDcGetNumIntermediateBuffers" (Instance, *mut u16) -> Status;
            dc_start: "cpaDcStartInstance" (Instance, u16, *mut *mut BufferList) -> Status;
            dc_stop: "cpaDcStopInstance" (Instance) -> Status;
            dc_translation: "cpaDcSetAddressTranslation" (Instance, Translate) -> Status;
            dc_notify: "cpaDcInstanceSetNotificationCb" (Instance, Option<Notify>, *mut c_void) -> Status;
            dc_meta_bytes: "cpaDcBufferListGetMetaSize" (Instance, u32, *mut u32) -> Status;
            dc_session_bytes: "cpaDcGetSessionSize" (Instance, *mut DcSetup, *mut u32, *mut u32) -> Status;
            dc_session_start: "cpaDcInitSession" (Instance, SessionContext, *mut DcSetup, *mut BufferList, DcDone) -> Status;
            dc_session_end: "cpaDcRemoveSession" (Instance, SessionContext) -> Status;
            dc_compress: "cpaDcCompressData2"
                (Instance, SessionContext, *mut BufferList, *mut BufferList, *mut DcOp, *mut DcResults, *mut c_void) -> Status;
            dc_decompress: "cpaDcDecompressData"
                (Instance, SessionContext, *mut BufferList, *mut BufferList, *mut DcResults, u32, *mut c_void) -> Status;
            memory_allocate: "qaeMemAllocNUMA" (usize, c_int, usize) -> *mut c_void;
            memory_free: "qaeMemFreeNUMA" (*mut *mut c_void) -> ();
            memory_address: "qaeVirtToPhysNUMA" (*mut c_void) -> u64;
        }
    };
}

pub(crate) use qat_functions;
