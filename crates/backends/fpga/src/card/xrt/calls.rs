//! XRT's C functions, loaded at run time and checked, and owned handles of the objects that they
//! create.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libloading::Library;
use panoply_core::PciAddress;

use crate::card::CardError;

type Handle = *mut c_void;
/// Writes the path of a file of the device in sysfs: handle, part, file, buffer, size.
type SystemPath = unsafe extern "C" fn(Handle, *const c_char, *const c_char, *mut c_char, usize) -> c_int;

/// Names of the two libraries, in the order in which they are tried.
pub const LIBRARIES: [[&str; 2]; 2] =
    [["libxrt_core.so.2", "libxrt_core.so"], ["libxrt_coreutil.so.2", "libxrt_coreutil.so"]];

macro_rules! functions {
    ($($field:ident: $name:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of XRT's libraries.
        pub struct Xrt {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
            set_argument: unsafe extern "C" fn(Handle, c_int, ...) -> c_int,
            /// Both are missing in some versions.
            shim: Option<unsafe extern "C" fn(Handle) -> Handle>,
            system_path: Option<SystemPath>,
            /// Keeps the functions loaded. Never unloaded, because XRT has threads of its own.
            _libraries: ManuallyDrop<Vec<Library>>,
        }

        impl Xrt {
            fn of(libraries: Vec<Library>) -> Result<Xrt, CardError> {
                // SAFETY: the types are those of XRT's headers (xrt.h, xrt_device.h, xrt_kernel.h,
                // xrt_bo.h), and the libraries stay loaded.
                $(let $field = unsafe { symbol(&libraries, $name) }?;)*
                // SAFETY: as above.
                let set_argument = unsafe { symbol(&libraries, "xrtRunSetArg") }?;
                // SAFETY: as above.
                let shim = unsafe { symbol(&libraries, "xrtDeviceToXclDevice") }.ok();
                // SAFETY: as above.
                let system_path = unsafe { symbol(&libraries, "xclGetSysfsPath") }.ok();
                Ok(Xrt { $($field,)* set_argument, shim, system_path, _libraries: ManuallyDrop::new(libraries) })
            }
        }
    };
}

functions! {
    probe: "xclProbe" () -> c_uint;
    device_open: "xrtDeviceOpen" (c_uint) -> Handle;
    device_close: "xrtDeviceClose" (Handle) -> c_int;
    device_load: "xrtDeviceLoadXclbinFile" (Handle, *const c_char) -> c_int;
    device_uuid: "xrtDeviceGetXclbinUUID" (Handle, *mut u8) -> c_int;
    kernel_open: "xrtPLKernelOpen" (Handle, *const u8, *const c_char) -> Handle;
    kernel_open_exclusive: "xrtPLKernelOpenExclusive" (Handle, *const u8, *const c_char) -> Handle;
    kernel_close: "xrtKernelClose" (Handle) -> c_int;
    kernel_group: "xrtKernelArgGroupId" (Handle, c_int) -> c_int;
    kernel_read: "xrtKernelReadRegister" (Handle, u32, *mut u32) -> c_int;
    kernel_write: "xrtKernelWriteRegister" (Handle, u32, u32) -> c_int;
    buffer_alloc: "xrtBOAlloc" (Handle, usize, u64, u32) -> Handle;
    buffer_free: "xrtBOFree" (Handle) -> c_int;
    buffer_write: "xrtBOWrite" (Handle, *const c_void, usize, usize) -> c_int;
    buffer_read: "xrtBORead" (Handle, *mut c_void, usize, usize) -> c_int;
    buffer_sync: "xrtBOSync" (Handle, c_int, usize, usize) -> c_int;
    run_open: "xrtRunOpen" (Handle) -> Handle;
    run_start: "xrtRunStart" (Handle) -> c_int;
    run_wait: "xrtRunWaitFor" (Handle, c_uint) -> c_int;
    run_state: "xrtRunState" (Handle) -> c_int;
    run_close: "xrtRunClose" (Handle) -> c_int;
}

/// Finds a function by name in the first library that has it.
///
/// # Safety
/// `T` must be the type of the function.
unsafe fn symbol<T: Copy>(libraries: &[Library], name: &'static str) -> Result<T, CardError> {
    // SAFETY: the caller guarantees the type. The copy lives only as long as the libraries.
    let found = libraries.iter().find_map(|library| unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|it| *it));
    found.ok_or_else(|| CardError::system(name, "XRT's libraries do not have it"))
}

impl Xrt {
    /// Loads the libraries, each by the first of its names that exists. The outer error lists the
    /// names that were tried for a missing library.
    pub fn load(names: &[Vec<String>]) -> Result<Result<Arc<Xrt>, CardError>, Vec<String>> {
        let mut libraries = Vec::new();
        for names in names {
            // SAFETY: these are XRT's own libraries, or libraries that a test names. Their
            // initialisers may run.
            let found = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
            libraries.push(found.ok_or_else(|| names.clone())?);
        }
        Ok(Xrt::of(libraries).map(Arc::new))
    }

    /// The address of a card on the PCI bus, from its path in sysfs. `None` if the card cannot be
    /// opened, or if this version of XRT does not tell.
    pub fn address(self: &Arc<Xrt>, number: u32) -> Option<PciAddress> {
        let (shim, system_path) = (self.shim?, self.system_path?);
        let device = Device::open(self, number).ok()?;
        let mut path = [0_u8; 512];
        // SAFETY: the handle is open.
        let handle = unsafe { shim(device.handle) };
        if handle.is_null() {
            return None;
        }
        let (room, nothing) = (path.len() - 1, c"".as_ptr());
        // SAFETY: the handle is the open device's. XRT writes at most `room` bytes, and the last
        // byte stays zero.
        let failed = unsafe { system_path(handle, nothing, nothing, path.as_mut_ptr().cast(), room) };
        let path = CStr::from_bytes_until_nul(&path).ok().filter(|_| failed == 0)?.to_str().ok()?;
        path.split('/').find_map(|name| name.parse().ok())
    }

    /// Number of cards that XRT knows.
    pub fn cards(&self) -> u32 {
        // SAFETY: the function takes no arguments.
        unsafe { (self.probe)() }
    }
}

fn checked(what: &'static str, code: c_int) -> Result<(), CardError> {
    if code == 0 { Ok(()) } else { Err(CardError::system(what, format!("XRT says {code}"))) }
}

fn given(what: &'static str, handle: Handle) -> Result<Handle, CardError> {
    if handle.is_null() { Err(CardError::system(what, "XRT gives none")) } else { Ok(handle) }
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $close:ident) => {
        $(#[$doc])*
        pub struct $name {
            xrt: Arc<Xrt>,
            handle: Handle,
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: XRT created the handle, and it is closed once.
                unsafe { (self.xrt.$close)(self.handle) };
            }
        }
    };
}

owned!(
    /// An opened card.
    Device, device_close
);
owned!(
    /// A kernel of the card's bitstream.
    Kernel, kernel_close
);
owned!(
    /// Memory that both host and card can access.
    Buffer, buffer_free
);
owned!(
    /// A reusable run of one kernel.
    Run, run_close
);

impl Device {
    /// Opens a card by its number.
    pub fn open(xrt: &Arc<Xrt>, number: u32) -> Result<Device, CardError> {
        // SAFETY: any number is valid.
        let handle = given("xrtDeviceOpen", unsafe { (xrt.device_open)(number) })?;
        Ok(Device { xrt: xrt.clone(), handle })
    }

    /// Loads a bitstream onto the card.
    pub fn load(&self, file: &Path) -> Result<(), CardError> {
        let name = CString::new(file.to_string_lossy().as_bytes());
        let name = name.map_err(|error| CardError::Bitstream { reason: error.to_string() })?;
        // SAFETY: the handle is open, and the name ends with a zero byte.
        match unsafe { (self.xrt.device_load)(self.handle, name.as_ptr()) } {
            0 => Ok(()),
            code => Err(CardError::Bitstream { reason: format!("XRT says {code} to {}", file.display()) }),
        }
    }

    /// Opens a kernel of the loaded bitstream. `exclusive` reserves the kernel for this process,
    /// which register access requires.
    pub fn kernel(&self, name: &'static str, exclusive: bool) -> Result<Kernel, CardError> {
        let mut uuid = [0; 16];
        // SAFETY: the handle is open, and a UUID has sixteen bytes.
        checked("xrtDeviceGetXclbinUUID", unsafe { (self.xrt.device_uuid)(self.handle, uuid.as_mut_ptr()) })?;
        let open = if exclusive { self.xrt.kernel_open_exclusive } else { self.xrt.kernel_open };
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: as above, and the name ends with a zero byte.
        let handle = given(name, unsafe { open(self.handle, uuid.as_ptr(), c_name.as_ptr()) })?;
        Ok(Kernel { xrt: self.xrt.clone(), handle })
    }

    /// Allocates memory for an argument of a kernel.
    pub fn buffer(&self, bytes: usize, kernel: &Kernel, argument: c_int) -> Result<Buffer, CardError> {
        // SAFETY: both handles are open.
        let group = unsafe { (self.xrt.kernel_group)(kernel.handle, argument) };
        let group = u32::try_from(group).map_err(|_| CardError::system("xrtKernelArgGroupId", group))?;
        // SAFETY: as above. Zero flags request a normal buffer.
        let handle = given("xrtBOAlloc", unsafe { (self.xrt.buffer_alloc)(self.handle, bytes, 0, group) })?;
        Ok(Buffer { xrt: self.xrt.clone(), handle })
    }
}

impl Kernel {
    /// Reads a register.
    pub fn read(&self, offset: u32) -> Result<u32, CardError> {
        let mut value = 0;
        // SAFETY: the handle is open, and the call writes `value` before it returns.
        checked("xrtKernelReadRegister", unsafe { (self.xrt.kernel_read)(self.handle, offset, &mut value) })?;
        Ok(value)
    }

    /// Writes a register.
    pub fn write(&self, offset: u32, value: u32) -> Result<(), CardError> {
        // SAFETY: the handle is open.
        checked("xrtKernelWriteRegister", unsafe { (self.xrt.kernel_write)(self.handle, offset, value) })
    }

    /// Creates a run of this kernel.
    pub fn run(&self) -> Result<Run, CardError> {
        // SAFETY: the handle is open.
        let handle = given("xrtRunOpen", unsafe { (self.xrt.run_open)(self.handle) })?;
        Ok(Run { xrt: self.xrt.clone(), handle })
    }
}

const TO_CARD: c_int = 0;
const FROM_CARD: c_int = 1;

impl Buffer {
    /// Copies bytes to the card.
    pub fn upload(&self, bytes: &[u8]) -> Result<(), CardError> {
        // SAFETY: the handle is open. XRT checks the length against the buffer's.
        checked("xrtBOWrite", unsafe { (self.xrt.buffer_write)(self.handle, bytes.as_ptr().cast(), bytes.len(), 0) })?;
        // SAFETY: as above.
        checked("xrtBOSync", unsafe { (self.xrt.buffer_sync)(self.handle, TO_CARD, bytes.len(), 0) })
    }

    /// Copies bytes from the card.
    pub fn download(&self, bytes: &mut [u8]) -> Result<(), CardError> {
        // SAFETY: as above.
        checked("xrtBOSync", unsafe { (self.xrt.buffer_sync)(self.handle, FROM_CARD, bytes.len(), 0) })?;
        let place = bytes.as_mut_ptr().cast();
        // SAFETY: as above. The destination has as many bytes.
        checked("xrtBORead", unsafe { (self.xrt.buffer_read)(self.handle, place, bytes.len(), 0) })
    }
}

/// The state of a run, from the numbers in `ert.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The run has finished.
    Done,
    /// The run is in flight.
    UnderWay,
    /// The run failed with this state.
    Failed(c_int),
}

impl RunState {
    fn of(state: c_int) -> RunState {
        match state {
            4 => RunState::Done,
            // New, queued, running, submitted, and timed out.
            1..=3 | 7 | 8 => RunState::UnderWay,
            state => RunState::Failed(state),
        }
    }
}

impl Run {
    /// Starts a data mover with a buffer and the number of bytes to move.
    pub fn start(&self, buffer: &Buffer, bytes: usize) -> Result<(), CardError> {
        let bytes = u32::try_from(bytes).map_err(|_| CardError::PacketSize { got: bytes })?;
        // SAFETY: the handles are open. A buffer is passed by its handle and a number by its value,
        // as `xrtRunSetArg` expects.
        checked("xrtRunSetArg", unsafe { (self.xrt.set_argument)(self.handle, 0, buffer.handle) })?;
        // SAFETY: as above.
        checked("xrtRunSetArg", unsafe { (self.xrt.set_argument)(self.handle, 1, bytes) })?;
        // SAFETY: as above.
        checked("xrtRunStart", unsafe { (self.xrt.run_start)(self.handle) })
    }

    /// Waits at most `wait_max` for the run to finish.
    pub fn wait(&self, wait_max: Duration) -> RunState {
        let milliseconds = u32::try_from(wait_max.as_millis()).unwrap_or(u32::MAX);
        match milliseconds {
            // XRT treats a timeout of zero as infinite.
            0 => self.state(),
            // SAFETY: the handle is open.
            _ => RunState::of(unsafe { (self.xrt.run_wait)(self.handle, milliseconds) }),
        }
    }

    /// The current state.
    pub fn state(&self) -> RunState {
        // SAFETY: the handle is open.
        RunState::of(unsafe { (self.xrt.run_state)(self.handle) })
    }
}
