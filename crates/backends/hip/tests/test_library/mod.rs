//! Loads the test library, which cargo builds beside the tests: HIP's C functions over an emulated
//! device, or over CUDA if `PANOPLY_HIP_TEST` is `cuda`.
#![allow(unsafe_code)] // The test library is a C library.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

use libloading::{Library, Symbol};

/// The library with its functions for tests.
pub struct TestLibrary {
    library: Library,
    path: String,
}

impl TestLibrary {
    pub fn open() -> TestLibrary {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let name = libloading::library_filename("panoply_hip_test_library");
        // The tests' executables are in `deps`, and so are the libraries that were built with them.
        let path: PathBuf = [folder.join(&name), folder.join("deps").join(&name)]
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{} is not in {}", name.display(), folder.display()));
        // SAFETY: the library belongs to this repository. Loading it runs no code.
        let library = unsafe { Library::new(&path) }.unwrap();
        TestLibrary { library, path: path.to_str().unwrap().to_owned() }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Makes the next `times` calls of a function on this thread return `status`.
    #[allow(dead_code)] // Not every test injects failures.
    pub fn fail(&self, name: &str, status: c_int, times: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the exported function has this signature.
        let fail: Symbol<'_, unsafe extern "C" fn(*const c_char, c_int, u32)> =
            unsafe { self.library.get("panoply_test_fail\0") }.unwrap();
        // SAFETY: the text ends with a zero byte.
        unsafe { fail(name.as_ptr(), status, times) };
    }

    /// Sets the architecture of the emulated device for this thread.
    #[allow(dead_code)] // As above.
    pub fn architecture(&self, name: &str) {
        let name = CString::new(name).unwrap();
        // SAFETY: the exported function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(*const c_char)> =
            unsafe { self.library.get("panoply_test_architecture\0") }.unwrap();
        // SAFETY: the text ends with a zero byte.
        unsafe { set(name.as_ptr()) };
    }

    /// Sets whether the emulated device shares the host's memory, for this thread.
    #[allow(dead_code)] // As above.
    pub fn integrated(&self, is_integrated: bool) {
        // SAFETY: the exported function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(bool)> =
            unsafe { self.library.get("panoply_test_integrated\0") }.unwrap();
        // SAFETY: both values are valid.
        unsafe { set(is_integrated) };
    }

    /// Sets the number of emulated devices.
    #[allow(dead_code)] // As above.
    pub fn devices(&self, count: c_int) {
        // SAFETY: the exported function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(c_int)> =
            unsafe { self.library.get("panoply_test_devices\0") }.unwrap();
        // SAFETY: any number is valid.
        unsafe { set(count) };
    }

    /// Sets whether AMD SMI knows the GPU, for this thread.
    #[allow(dead_code)] // As above.
    pub fn amd_smi(&self, knows: bool) {
        // SAFETY: the exported function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(bool)> =
            unsafe { self.library.get("panoply_test_amd_smi\0") }.unwrap();
        // SAFETY: both values are valid.
        unsafe { set(knows) };
    }

    /// How often this thread has initialised AMD SMI or ROCm SMI without shutting it down.
    #[allow(dead_code)] // As above.
    pub fn monitors(&self) -> i64 {
        // SAFETY: the exported function has this signature.
        let ask: Symbol<'_, unsafe extern "C" fn() -> i64> =
            unsafe { self.library.get("panoply_test_monitors\0") }.unwrap();
        // SAFETY: the function takes no arguments.
        unsafe { ask() }
    }

    /// Number of objects that this thread has created and not destroyed.
    #[allow(dead_code)] // As above.
    pub fn live(&self) -> i64 {
        // SAFETY: the exported function has this signature.
        let ask: Symbol<'_, unsafe extern "C" fn() -> i64> =
            unsafe { self.library.get("panoply_test_live\0") }.unwrap();
        // SAFETY: the function takes no arguments.
        unsafe { ask() }
    }
}

/// Whether the device behind the library is a real GPU, on which the whole suite runs.
#[allow(dead_code)] // Not every test uses it.
pub fn is_cuda() -> bool {
    std::env::var("PANOPLY_HIP_TEST").is_ok_and(|wanted| wanted == "cuda")
}
