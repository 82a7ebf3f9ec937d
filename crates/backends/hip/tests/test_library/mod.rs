//! The test library, which cargo leaves beside the tests: HIP's C functions over an emulated device, or over CUDA where the variable
//! `PANOPLY_HIP_TEST` is `cuda`.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

use libloading::{Library, Symbol};

/// The library, whose own functions tell it what tests want.
pub struct TestLibrary {
    library: Library,
    path: String,
}

impl TestLibrary {
    pub fn open() -> TestLibrary {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let name = libloading::library_filename("panoply_hip_test_library");
        // Tests of a profile lie in `deps`, and so does what they were built with.
        let path: PathBuf = [folder.join(&name), folder.join("deps").join(&name)]
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{} is not in {}", name.display(), folder.display()));
        // SAFETY: the library is this repository's own; loading it runs nothing.
        let library = unsafe { Library::new(&path) }.unwrap();
        TestLibrary { library, path: path.to_str().unwrap().to_owned() }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Has the next calls of a function on this thread answer with an error.
    #[allow(dead_code)] // Not every test makes trouble.
    pub fn fail(&self, name: &str, status: c_int, times: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the library's function has this signature.
        let fail: Symbol<'_, unsafe extern "C" fn(*const c_char, c_int, u32)> =
            unsafe { self.library.get("panoply_test_fail\0") }.unwrap();
        // SAFETY: the name has its closing zero.
        unsafe { fail(name.as_ptr(), status, times) };
    }

    /// Gives the emulated device another architecture, for this thread.
    #[allow(dead_code)] // As above.
    pub fn architecture(&self, name: &str) {
        let name = CString::new(name).unwrap();
        // SAFETY: the library's function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(*const c_char)> =
            unsafe { self.library.get("panoply_test_architecture\0") }.unwrap();
        // SAFETY: the name has its closing zero.
        unsafe { set(name.as_ptr()) };
    }

    /// How many emulated devices there are from now on.
    #[allow(dead_code)] // As above.
    pub fn devices(&self, count: c_int) {
        // SAFETY: the library's function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(c_int)> =
            unsafe { self.library.get("panoply_test_devices\0") }.unwrap();
        // SAFETY: any number will do.
        unsafe { set(count) };
    }

    /// Whether AMD SMI knows the GPU from now on, for this thread.
    #[allow(dead_code)] // As above.
    pub fn amd_smi(&self, knows: bool) {
        // SAFETY: the library's function has this signature.
        let set: Symbol<'_, unsafe extern "C" fn(bool)> =
            unsafe { self.library.get("panoply_test_amd_smi\0") }.unwrap();
        // SAFETY: either will do.
        unsafe { set(knows) };
    }

    /// How often this thread has initialised AMD SMI or ROCm SMI and has not shut it down.
    #[allow(dead_code)] // As above.
    pub fn monitors(&self) -> i64 {
        // SAFETY: the library's function has this signature.
        let ask: Symbol<'_, unsafe extern "C" fn() -> i64> =
            unsafe { self.library.get("panoply_test_monitors\0") }.unwrap();
        // SAFETY: it takes nothing.
        unsafe { ask() }
    }

    /// What this thread has made and not given back.
    #[allow(dead_code)] // As above.
    pub fn live(&self) -> i64 {
        // SAFETY: the library's function has this signature.
        let ask: Symbol<'_, unsafe extern "C" fn() -> i64> =
            unsafe { self.library.get("panoply_test_live\0") }.unwrap();
        // SAFETY: it takes nothing.
        unsafe { ask() }
    }
}

/// Whether the device behind the library is a real GPU, so that the whole suite is run.
#[allow(dead_code)] // Not every test asks.
pub fn is_cuda() -> bool {
    std::env::var("PANOPLY_HIP_TEST").is_ok_and(|wanted| wanted == "cuda")
}
