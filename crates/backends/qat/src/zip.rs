//! QATzip: compression for devices without qatlib instances for it. QATzip's instances are
//! configured separately.
//!
//! QATzip's calls block, so a thread makes them one after the other and reports answers to the
//! engine like those of requests. If a call never returns, the device counts as silent and is lost.
//! The blocked thread stays, and there are at most [`THREADS_MAX`] threads.
//!
//! QATzip compresses in software if the hardware fails, unless this is disabled, and always for
//! very short messages. Both are avoided here: the software backup is disabled, and short messages
//! are refused. QATzip may not decompress foreign data in hardware, and its errors do not
//! distinguish invalid data from a faulty device. So decompression is left to other devices.

use std::ffi::{c_int, c_long, c_uint};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};

use libloading::Library;
use panoply_core::op::crypto::Format;
use panoply_cpu_crypto::deflate::checksum;

use crate::library::QatError;
use crate::request::{Completion, Completions, RequestAnswer};
use crate::sys::{DC_ADLER32, DC_OK, DC_OVERFLOW, DcResults, RETRY, SUCCESS};
use crate::zip_sys::*;

/// Names of the library, in the order in which they are tried.
pub(crate) const LIBRARY: [&str; 2] = ["libqatzip.so.3", "libqatzip.so"];
/// Minimum size of a message that is compressed in hardware.
pub(crate) const MESSAGE_BYTES_MIN: usize = QZ_COMP_THRESHOLD_MINIMUM as usize;
/// The highest level that every version compresses in hardware.
const LEVEL_MAX: u32 = 8;
/// Maximum number of requests that wait for the thread.
const WAITING_MAX: usize = 64;
/// Maximum number of threads inside the library.
const THREADS_MAX: usize = 8;

macro_rules! table {
    ($($field:ident: $name:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of QATzip.
        pub(crate) struct Qatzip {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Number of threads inside the library.
            threads: AtomicUsize,
            /// Keeps the functions loaded. Never unloaded, because the library has threads that
            /// never end.
            _library: ManuallyDrop<Library>,
        }

        impl Qatzip {
            fn of(library: Library) -> Result<Qatzip, QatError> {
                $(
                    // SAFETY: the type is that of QATzip's header, and the library stays loaded.
                    let $field = *unsafe { library.get($name.as_bytes()) }.map_err(|_| QatError::Symbol { name: $name })?;
                )*
                Ok(Qatzip { $($field,)* threads: AtomicUsize::new(0), _library: ManuallyDrop::new(library) })
            }
        }
    };
}

zip_functions!(table);

impl Qatzip {
    /// Loads the first of these names that exists, if the library compresses in hardware.
    pub(crate) fn load(names: &[String]) -> Result<Arc<Qatzip>, QatError> {
        // SAFETY: this is QATzip's own library, or one that a test names. Its initialisers may run.
        let found = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library = found.ok_or_else(|| QatError::Broken { what: format!("no library {}", names.join(", ")) })?;
        let zip = Arc::new(Qatzip::of(library)?);
        ZipLevelSession::new(&zip, 1)?;
        Ok(zip)
    }
}

/// An open session, which compresses at one level.
struct ZipLevelSession<'a> {
    zip: &'a Qatzip,
    level: u32,
    session: ZipSession,
}

impl<'a> ZipLevelSession<'a> {
    fn new(zip: &'a Qatzip, level: u32) -> Result<ZipLevelSession<'a>, QatError> {
        let mut params = ZipParams::zeroed();
        let mut open = ZipLevelSession { zip, level, session: ZipSession::zeroed() };
        // SAFETY: session and parameters are at least as large as the library's, and nothing else
        // uses them.
        match unsafe { (zip.init)(&mut open.session, 0) } {
            QZ_OK | QZ_DUPLICATE => {}
            code => return Err(QatError::Zip { call: "qzInit", code }),
        }
        // SAFETY: as above.
        zip_checked("qzGetDefaults", unsafe { (zip.defaults)(&mut params) })?;
        (params.direction, params.format) = (QZ_DIR_COMPRESS, QZ_DEFLATE_RAW);
        (params.algorithm, params.level) = (QZ_DEFLATE, level);
        (params.software_backup, params.input_bytes_min) = (0, QZ_COMP_THRESHOLD_MINIMUM);
        // SAFETY: as above.
        zip_checked("qzSetupSession", unsafe { (zip.setup)(&mut open.session, &mut params) })?;
        open.expect_hardware()?;
        Ok(open)
    }

    /// Checks that the session compresses in hardware.
    fn expect_hardware(&self) -> Result<(), QatError> {
        match self.session.hardware {
            hardware if hardware == c_long::from(QZ_OK) => Ok(()),
            other => Err(QatError::Zip { call: "QATzip's session", code: other as c_int }),
        }
    }

    fn compress(&mut self, message: &[u8], out: &mut [u8]) -> Result<DcResults, QatError> {
        let (from, to) = (message.as_ptr(), out.as_mut_ptr());
        let (mut read, mut made) = (message.len() as c_uint, out.len() as c_uint);
        // SAFETY: the session is open and belongs to this thread. Message and buffer have the given
        // lengths, and the call writes the numbers before it returns.
        let code = unsafe { (self.zip.compress)(&mut self.session, from, &mut read, to, &mut made, 1) };
        let results = |status: i32| DcResults { status, produced: made, consumed: read, ..DcResults::zeroed() };
        match code {
            QZ_OK => self.expect_hardware().map(|()| results(DC_OK)),
            QZ_BUF_ERROR => Ok(results(DC_OVERFLOW)),
            code => Err(QatError::Zip { call: "qzCompress", code }),
        }
    }
}

impl Drop for ZipLevelSession<'_> {
    fn drop(&mut self) {
        // SAFETY: the session belongs to `self` and ends once. Ending a session that was never set
        // up has no effect.
        unsafe { (self.zip.teardown)(&mut self.session) };
        // SAFETY: as above.
        unsafe { (self.zip.close)(&mut self.session) };
    }
}

fn zip_checked(call: &'static str, code: c_int) -> Result<(), QatError> {
    if code == QZ_OK { Ok(()) } else { Err(QatError::Zip { call, code }) }
}

/// The result of a message.
struct ZipResult {
    bytes: Vec<u8>,
    outcome: Result<DcResults, QatError>,
}

/// A message for the thread.
struct Order {
    message: Vec<u8>,
    room: usize,
    level: u32,
    checksum: u32,
    slot: usize,
    completions: Arc<Completions>,
    made: Arc<OnceLock<ZipResult>>,
}

/// A message that is in flight or was answered.
pub(crate) struct ZipMessage {
    pub(crate) job: u64,
    pub(crate) index: usize,
    made: Arc<OnceLock<ZipResult>>,
}

impl ZipMessage {
    /// The result. Call only after the answer has arrived.
    pub(crate) fn answer(&self) -> Result<RequestAnswer<'_>, QatError> {
        let made = self.made.get().ok_or_else(|| QatError::Broken { what: "QATzip's answer is missing".to_owned() })?;
        let packed = Some(made.outcome.clone()?);
        Ok(RequestAnswer { status: SUCCESS, verdict: true, bytes: &made.bytes, digest: &[], packed })
    }
}

/// The thread that calls QATzip. It ends after its current call when this is dropped.
pub(crate) struct Zipper {
    orders: SyncSender<Order>,
}

impl Zipper {
    pub(crate) fn new(zip: &Arc<Qatzip>) -> Result<Zipper, QatError> {
        let broken = |what: String| QatError::Broken { what };
        if zip.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            zip.threads.fetch_sub(1, Ordering::Relaxed);
            return Err(broken(format!("QATzip does not return from {THREADS_MAX} calls")));
        }
        let ((orders, inlet), shared) = (sync_channel(WAITING_MAX), Arc::clone(zip));
        let work = move || {
            serve(&shared, &inlet);
            shared.threads.fetch_sub(1, Ordering::Relaxed);
        };
        match std::thread::Builder::new().name("qatzip".to_owned()).spawn(work) {
            Ok(_) => Ok(Zipper { orders }),
            Err(error) => {
                zip.threads.fetch_sub(1, Ordering::Relaxed);
                Err(broken(format!("no thread for QATzip: {error}")))
            }
        }
    }

    /// Passes a message to the thread. After an error nothing is in flight.
    pub(crate) fn start(
        &self,
        (message, room): (&[u8], usize),
        (level, checksum): (u32, u32),
        (slot, completions): (usize, &Arc<Completions>),
        (job, index): (u64, usize),
    ) -> Result<ZipMessage, QatError> {
        let made = Arc::new(OnceLock::new());
        let (message, level, completions) = (message.to_vec(), level.min(LEVEL_MAX), Arc::clone(completions));
        let order = Order { message, room, level, checksum, slot, completions, made: Arc::clone(&made) };
        match self.orders.try_send(order) {
            Ok(()) => Ok(ZipMessage { job, index, made }),
            Err(TrySendError::Full(_)) => Err(QatError::Status { call: "QATzip", status: RETRY }),
            Err(TrySendError::Disconnected(_)) => Err(QatError::Broken { what: "QATzip's thread ended".to_owned() }),
        }
    }
}

/// Compresses incoming messages until all senders are gone.
fn serve(zip: &Qatzip, orders: &Receiver<Order>) {
    let mut open: Option<ZipLevelSession<'_>> = None;
    while let Ok(order) = orders.recv() {
        let mut bytes = vec![0; order.room];
        let mut outcome =
            session(zip, &mut open, order.level).and_then(|open| open.compress(&order.message, &mut bytes));
        match &mut outcome {
            Ok(results) if results.status == DC_OK => {
                let format = if order.checksum == DC_ADLER32 { Format::Zlib } else { Format::Gzip };
                results.checksum = checksum(format, &order.message);
            }
            Ok(_) => {}
            // After an error the state of the session is unknown.
            Err(_) => open = None,
        }
        // `made` is set once, because each order has its own.
        let _ = order.made.set(ZipResult { bytes, outcome });
        order.completions.push(Completion { slot: order.slot, status: SUCCESS, verdict: true });
    }
}

/// Returns the session of this level. A session of another level is closed first.
fn session<'o, 'a>(
    zip: &'a Qatzip,
    open: &'o mut Option<ZipLevelSession<'a>>,
    level: u32,
) -> Result<&'o mut ZipLevelSession<'a>, QatError> {
    if open.as_ref().is_none_or(|open| open.level != level) {
        *open = None;
        *open = Some(ZipLevelSession::new(zip, level)?);
    }
    open.as_mut().ok_or_else(|| QatError::Broken { what: "QATzip has no session".to_owned() })
}
