//! A child that was forked while another thread loaded a driver, or after one was loaded, gets no
//! device of that driver but the reason, and works on the CPU.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // Real forks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transpose;
use panoply_core::{Absence, Api, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_vulkan::VulkanBackend;

/// The time limit of a child. A child that waits for its parent's threads would wait for ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(60);

/// A driver that signals when its initialiser begins, and ends the initialiser on command. It works
/// in the process that loaded it, and ends any other process that uses it, as real drivers do.
const DRIVER: &str = r#"
#include <stdlib.h>
#include <unistd.h>

static pid_t ready;

__attribute__((constructor)) static void begin(void) {
    char byte = 1;
    if (write(BEGUN, &byte, 1) == 1 && read(GO_ON, &byte, 1) == 1) ready = getpid();
}

void *vkGetInstanceProcAddr(void *instance, const char *name) {
    if (ready != getpid()) abort();
    return NULL;
}
"#;

/// Compiles the driver, or returns the reason why there is none.
fn driver(folder: &Path, begun: i32, go_on: i32) -> Result<PathBuf, String> {
    let (text, library) = (folder.join("driver.c"), folder.join("libdriver.so"));
    std::fs::write(&text, DRIVER).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC"]).args([format!("-DBEGUN={begun}"), format!("-DGO_ON={go_on}")]);
    match compiler.arg("-o").args([&library, &text]).output() {
        Ok(output) if output.status.success() => Ok(library),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("cc: {error}")),
    }
}

/// Runs `body` in a fork and returns its result. `None` if the child does not end.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and leaves without running the parent's
    // destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: the call ends the process, and does nothing else.
        unsafe { libc::_exit(if right { 7 } else { 8 }) }
    }
    assert!(child > 0, "no fork");
    let (start, mut status) = (Instant::now(), 0);
    // SAFETY: `status` is a valid place for a number, and the child is this process's own.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > CHILD_TIME_MAX {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7)
}

/// Makes a runtime of the CPU and this backend. Returns why the backend has no device, once an op
/// has run on the CPU.
fn absence(backend: &Arc<VulkanBackend>) -> Option<Absence> {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).backend(backend.clone()).build().unwrap();
    let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
    let turned = runtime.run(Transpose::new(&matrix)).wait().unwrap();
    assert_eq!(turned.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    runtime.backends().into_iter().find(|report| report.api == Api::VULKAN).and_then(|report| report.devices.err())
}

/// One test, because what was loaded is noted for the whole process.
#[test]
fn a_child_uses_no_driver_that_its_parent_was_loading() {
    let folder = std::env::temp_dir().join(format!("panoply-forked-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let missing = || Arc::new(VulkanBackend::with_library(folder.join("libmissing.so")));
    assert!(matches!(absence(&missing()), Some(Absence::LibraryMissing { .. })));
    let looks = in_child(|| matches!(absence(&missing()), Some(Absence::LibraryMissing { .. })));
    assert_eq!(looks, Some(true), "a search that found nothing keeps no child from searching");

    let (mut has_begun, begun) = std::io::pipe().unwrap();
    let (go_on, mut goes_on) = std::io::pipe().unwrap();
    let library = match driver(&folder, begun.as_raw_fd(), go_on.as_raw_fd()) {
        Ok(library) => library,
        Err(reason) => return println!("skipped: no driver could be compiled: {reason}"),
    };
    let backend = Arc::new(VulkanBackend::with_library(&library));
    let fresh = || Arc::new(VulkanBackend::with_library(&library));
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| absence(&backend));
        has_begun.read_exact(&mut [0]).unwrap();
        // The other thread is inside the driver's initialiser.
        let refused = in_child(|| absence(&fresh()) == Some(Absence::Forked));
        assert_eq!(refused, Some(true), "a child with a backend of its own");
        let refused = in_child(|| absence(&backend) == Some(Absence::Forked));
        assert_eq!(refused, Some(true), "a child with its parent's backend");
        let refused = in_child(|| in_child(|| absence(&fresh()) == Some(Absence::Forked)) == Some(true));
        assert_eq!(refused, Some(true), "a child of a child");
        // Enough for every later load: a driver without a device is unloaded again.
        goes_on.write_all(&[1; 8]).unwrap();
        let told = loads.join().unwrap();
        assert!(matches!(told, Some(Absence::NoDevice { .. })), "the parent has the driver's answer: {told:?}");
    });
    let refused = in_child(|| absence(&fresh()) == Some(Absence::Forked));
    assert_eq!(refused, Some(true), "the driver belongs to the parent");
    let told = absence(&fresh());
    assert!(matches!(told, Some(Absence::NoDevice { .. })), "the parent goes on: {told:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
