//! The required part of ONNX Runtime's C API (`onnxruntime_c_api.h`): one exported function, which
//! returns a table of the other functions. New versions only append to the table, so indices are
//! the same in every version.

use std::ffi::{c_char, c_int, c_void};

/// The version of the table, introduced by ONNX Runtime 1.17. All later versions provide it as
/// well.
pub const API_VERSION: u32 = 17;
/// Number of table entries up to the last function in use.
pub const PLACES: usize = 217;
/// The version of the table with [`Assignment`], introduced by ONNX Runtime 1.24.
pub const ASSIGNMENT_VERSION: u32 = 24;
/// Number of entries of that table up to the last function in use.
pub const ASSIGNMENT_PLACES: usize = 410;

/// The error of a call, or null after success.
pub type Status = *mut c_void;
pub type Handle = *mut c_void;

/// A function that the library calls from any thread: the caller's argument, the level, the
/// category, the name of the environment, the place in the code, and the message.
pub type Log = unsafe extern "C" fn(*mut c_void, c_int, *const c_char, *const c_char, *const c_char, *const c_char);

/// The structure that the library exports.
#[repr(C)]
pub struct ApiBase {
    /// A table of functions, which has as many as its version. Null for an unknown version.
    pub get_api: unsafe extern "C" fn(u32) -> *const *const c_void,
    pub get_version: unsafe extern "C" fn() -> *const c_char,
}

/// The kind of values that are tensors.
pub const TENSOR: c_int = 1;
/// The element type of text.
pub const TEXT: c_int = 8;
/// The log level for errors.
pub const LOG_ERRORS: c_int = 3;
/// All graph optimisations.
pub const OPTIMISE_ALL: c_int = 99;
/// The option of sessions that makes the library remember which provider runs which node.
pub const RECORD_ASSIGNMENT: &str = "session.record_ep_graph_assignment_info";
/// Codes of errors that the caller must mend: wrong arguments, files and models.
pub const CALLERS_CODES: [c_int; 6] = [2, 3, 4, 7, 9, 10];
/// The device allocator, and the default kind of memory.
pub const DEVICE_ALLOCATOR: c_int = 0;
pub const MEMORY_DEFAULT: c_int = 0;

macro_rules! table {
    ($table:ident, $places:ident, $version:ident, $($field:ident = $place:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions in use, named after their purpose.
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Picks the functions from the library's table. `None` if an entry is empty.
            ///
            /// # Safety
            /// The table must be ONNX Runtime's, of the version for this struct.
            pub unsafe fn of(places: &[*const c_void; $places]) -> Option<$table> {
                Some($table {
                    $($field: {
                        let function = places[$place];
                        if function.is_null() {
                            return None;
                        }
                        // SAFETY: the header declares a function of this type at this index.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> $result>(function) }
                    },)*
                })
            }

            /// Asks the library for its table. `None` if it has no such version.
            ///
            /// # Safety
            /// The base must be ONNX Runtime's.
            pub unsafe fn load(base: &ApiBase) -> Option<$table> {
                // SAFETY: any version is a valid argument, and a table of this version has at least
                // this many places, which live as long as the library.
                let places = unsafe { (base.get_api)($version).cast::<[*const c_void; $places]>().as_ref() }?;
                // SAFETY: as above.
                unsafe { $table::of(places) }
            }
        }
    };
}

table! {
    Table, PLACES, API_VERSION,
    error_code = 1: fn(Status) -> c_int;
    message = 2: fn(Status) -> *const c_char;
    create_environment = 4: fn(Log, *mut c_void, c_int, *const c_char, *mut Handle) -> Status;
    create_session = 7: fn(Handle, *const c_char, Handle, *mut Handle) -> Status;
    create_session_of_bytes = 8: fn(Handle, *const c_void, usize, Handle, *mut Handle) -> Status;
    run = 9: fn(Handle, Handle, *const *const c_char, *const Handle, usize, *const *const c_char, usize, *mut Handle) -> Status;
    create_options = 10: fn(*mut Handle) -> Status;
    set_optimisation = 23: fn(Handle, c_int) -> Status;
    set_threads = 24: fn(Handle, c_int) -> Status;
    input_count = 30: fn(Handle, *mut usize) -> Status;
    output_count = 31: fn(Handle, *mut usize) -> Status;
    input_name = 36: fn(Handle, usize, Handle, *mut *mut c_char) -> Status;
    output_name = 37: fn(Handle, usize, Handle, *mut *mut c_char) -> Status;
    create_run_options = 39: fn(*mut Handle) -> Status;
    create_tensor = 49: fn(Handle, *mut c_void, usize, *const i64, usize, c_int, *mut Handle) -> Status;
    tensor_data = 51: fn(Handle, *mut *mut c_void) -> Status;
    element_type = 60: fn(Handle, *mut c_int) -> Status;
    rank = 61: fn(Handle, *mut usize) -> Status;
    dims = 62: fn(Handle, *mut i64, usize) -> Status;
    tensor_form = 65: fn(Handle, *mut Handle) -> Status;
    value_kind = 67: fn(Handle, *mut c_int) -> Status;
    create_memory = 69: fn(c_int, c_int, *mut Handle) -> Status;
    free = 76: fn(Handle, *mut c_void) -> Status;
    allocator = 78: fn(*mut Handle) -> Status;
    providers = 125: fn(*mut *mut *mut c_char, *mut c_int) -> Status;
    release_providers = 126: fn(*mut *mut c_char, c_int) -> Status;
    add_config = 130: fn(Handle, *const c_char, *const c_char) -> Status;
    append_tensorrt = 170: fn(Handle, Handle) -> Status;
    create_tensorrt = 171: fn(*mut Handle) -> Status;
    update_tensorrt = 172: fn(Handle, *const *const c_char, *const *const c_char, usize) -> Status;
    release_tensorrt = 174: fn(Handle) -> ();
    append_cuda = 204: fn(Handle, Handle) -> Status;
    create_cuda = 205: fn(*mut Handle) -> Status;
    update_cuda = 206: fn(Handle, *const *const c_char, *const *const c_char, usize) -> Status;
    release_cuda = 208: fn(Handle) -> ();
    append_named = 216: fn(Handle, *const c_char, *const *const c_char, *const *const c_char, usize) -> Status;
    release_environment = 92: fn(Handle) -> ();
    release_status = 93: fn(Status) -> ();
    release_memory = 94: fn(Handle) -> ();
    release_session = 95: fn(Handle) -> ();
    release_value = 96: fn(Handle) -> ();
    release_run_options = 97: fn(Handle) -> ();
    release_form = 99: fn(Handle) -> ();
    release_options = 100: fn(Handle) -> ();
}

table! {
    Assignment, ASSIGNMENT_PLACES, ASSIGNMENT_VERSION,
    shares = 407: fn(Handle, *mut *const Handle, *mut usize) -> Status;
    provider = 408: fn(Handle, *mut *const c_char) -> Status;
    nodes = 409: fn(Handle, *mut *const Handle, *mut usize) -> Status;
}
