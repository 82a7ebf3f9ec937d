//! The required part of OpenVINO's C API (`openvino/c/openvino.h`). Every function is exported by
//! name, and returns zero after success.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// The result of a call: zero, or the number of an error.
pub type Status = c_int;
pub type Handle = *mut c_void;

/// `ov_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shape {
    pub rank: i64,
    pub dims: *mut i64,
}

impl Shape {
    pub const EMPTY: Shape = Shape { rank: 0, dims: std::ptr::null_mut() };
}

/// `ov_version_t`.
#[repr(C)]
pub struct Version {
    pub number: *const c_char,
    pub description: *const c_char,
}

/// `ov_available_devices_t`.
#[repr(C)]
pub struct Devices {
    pub names: *mut *mut c_char,
    pub len: usize,
}

/// Element types: OpenVINO's number, ONNX's number, and bytes of eight elements. OpenVINO 2025.4
/// and 2026.4 have these numbers, and `library` checks those of the version at hand.
pub const ELEMENT_TYPES: [(c_int, i32, usize); 13] = [
    (1, 9, 8),    // bool
    (2, 16, 16),  // bf16
    (3, 10, 16),  // f16
    (4, 1, 32),   // f32
    (5, 11, 64),  // f64
    (7, 3, 8),    // i8
    (8, 5, 16),   // i16
    (9, 6, 32),   // i32
    (10, 7, 64),  // i64
    (16, 2, 8),   // u8
    (17, 4, 16),  // u16
    (18, 12, 32), // u32
    (19, 13, 64), // u64
];

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions in use, named after their purpose.
        pub struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Compiles a model: core, model, device, number of the texts behind, the compiled
            /// model, then texts.
            pub compile: unsafe extern "C" fn(Handle, Handle, *const c_char, usize, *mut Handle, ...) -> Status,
        }

        impl Functions {
            /// Finds the functions, or returns the name of one that is missing.
            ///
            /// # Safety
            /// The library must be OpenVINO's C library.
            pub unsafe fn of(library: &Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    // SAFETY: OpenVINO's header declares each function with this type.
                    $($field: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(|_| $symbol)?,)*
                    // SAFETY: as above.
                    compile: *unsafe { library.get(b"ov_core_compile_model\0") }.map_err(|_| "ov_core_compile_model")?,
                })
            }
        }
    };
}

functions! {
    version = "ov_get_openvino_version": fn(*mut Version) -> Status;
    free_version = "ov_version_free": fn(*mut Version) -> ();
    error_text = "ov_get_error_info": fn(Status) -> *const c_char;
    last_message = "ov_get_last_err_msg": fn() -> *const c_char;
    free_text = "ov_free": fn(*const c_char) -> ();
    create_core = "ov_core_create": fn(*mut Handle) -> Status;
    free_core = "ov_core_free": fn(Handle) -> ();
    devices = "ov_core_get_available_devices": fn(Handle, *mut Devices) -> Status;
    free_devices = "ov_available_devices_free": fn(*mut Devices) -> ();
    property = "ov_core_get_property": fn(Handle, *const c_char, *const c_char, *mut *mut c_char) -> Status;
    read_file = "ov_core_read_model": fn(Handle, *const c_char, *const c_char, *mut Handle) -> Status;
    read_bytes = "ov_core_read_model_from_memory_buffer": fn(Handle, *const c_char, usize, Handle, *mut Handle) -> Status;
    free_model = "ov_model_free": fn(Handle) -> ();
    free_compiled = "ov_compiled_model_free": fn(Handle) -> ();
    compiled_property = "ov_compiled_model_get_property": fn(Handle, *const c_char, *mut *mut c_char) -> Status;
    input_count = "ov_compiled_model_inputs_size": fn(Handle, *mut usize) -> Status;
    output_count = "ov_compiled_model_outputs_size": fn(Handle, *mut usize) -> Status;
    input_at = "ov_compiled_model_input_by_index": fn(Handle, usize, *mut Handle) -> Status;
    output_at = "ov_compiled_model_output_by_index": fn(Handle, usize, *mut Handle) -> Status;
    input_named = "ov_compiled_model_input_by_name": fn(Handle, *const c_char, *mut Handle) -> Status;
    output_named = "ov_compiled_model_output_by_name": fn(Handle, *const c_char, *mut Handle) -> Status;
    port_name = "ov_port_get_any_name": fn(Handle, *mut *mut c_char) -> Status;
    port_type = "ov_port_get_element_type": fn(Handle, *mut c_int) -> Status;
    free_port = "ov_output_const_port_free": fn(Handle) -> ();
    create_request = "ov_compiled_model_create_infer_request": fn(Handle, *mut Handle) -> Status;
    set_tensor = "ov_infer_request_set_tensor_by_const_port": fn(Handle, Handle, Handle) -> Status;
    get_tensor = "ov_infer_request_get_tensor_by_const_port": fn(Handle, Handle, *mut Handle) -> Status;
    infer = "ov_infer_request_infer": fn(Handle) -> Status;
    free_request = "ov_infer_request_free": fn(Handle) -> ();
    create_tensor = "ov_tensor_create": fn(c_int, Shape, *mut Handle) -> Status;
    tensor_shape = "ov_tensor_get_shape": fn(Handle, *mut Shape) -> Status;
    tensor_type = "ov_tensor_get_element_type": fn(Handle, *mut c_int) -> Status;
    tensor_bytes = "ov_tensor_get_byte_size": fn(Handle, *mut usize) -> Status;
    tensor_data = "ov_tensor_data": fn(Handle, *mut *mut c_void) -> Status;
    free_tensor = "ov_tensor_free": fn(Handle) -> ();
    free_shape = "ov_shape_free": fn(*mut Shape) -> Status;
}
