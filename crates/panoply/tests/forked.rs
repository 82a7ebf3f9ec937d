//! A program that forks: drivers, nonces and keys in the child.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // Real forks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::{PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use panoply::backend::{Absence, Backend, OpenOptions};
use panoply::crypto::{
    AeadAlgorithm, HashAlgorithm, Key, KeyPair, RandomSession, RsaBits, RsaPadding, SignatureAlgorithm, random_session,
};
use panoply::prelude::*;
use panoply_c_gpu::EmulatedBackend;
use panoply_cuda::CudaBackend;
use panoply_fpga::{FpgaBackend, XrtCards};
use panoply_hip::HipBackend;
use panoply_onnxruntime::OnnxRuntimeBackend;
use panoply_opencl::OpenClBackend;
use panoply_openvino::OpenVinoBackend;
use panoply_pjrt::PjrtBackend;
use panoply_qat::{Places, QatBackend};
use panoply_vulkan::VulkanBackend;

/// The time limit of a child. A child that waits for its parent's threads would wait for ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(120);
/// The status of a child that a library has aborted.
const ABORTED: libc::c_int = -libc::SIGABRT;
/// The exit status of a child in which everything was right.
const RIGHT: libc::c_int = 7;

/// The tests fork, so they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this process without its parent's destructors.
fn end(is_right: bool) -> ! {
    // SAFETY: the call ends the process, and does nothing else.
    unsafe { libc::_exit(if is_right { RIGHT } else { RIGHT + 1 }) }
}

/// The exit status of a child; minus its signal if one has ended it. `None` if it does not end.
fn status_of(child: libc::pid_t) -> Option<libc::c_int> {
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
    Some(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) })
}

/// Runs `body` in a fork. Panics unless it returns nothing wrong.
fn in_child(what: &str, body: impl FnOnce() -> Vec<String>) {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child runs `body` on its only thread, and leaves without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let wrong = wrong.unwrap_or_else(|_| vec!["a panic".to_owned()]).join("; ");
        let _ = writer.write_all(wrong.as_bytes());
        end(wrong.is_empty());
    }
    drop(writer);
    let mut wrong = String::new();
    let status = status_of(child);
    reader.read_to_string(&mut wrong).unwrap();
    assert_eq!(status, Some(RIGHT), "{what}: {wrong}");
}

/// A library that every process has, which no driver is.
fn no_driver() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.find(|path| path.contains("/libc.so") || path.contains("/libc-")).map(PathBuf::from).unwrap()
}

/// A PCI bus with one device.
fn bus(folder: &Path) {
    let (device, driver) = (folder.join("bus/pci/devices/0000:6b:00.0"), folder.join("bus/pci/drivers/c6xx"));
    std::fs::create_dir_all(&device).unwrap();
    std::fs::create_dir_all(&driver).unwrap();
    std::fs::write(device.join("vendor"), "0x8086\n").unwrap();
    std::fs::write(device.join("device"), "0x37c8\n").unwrap();
    std::os::unix::fs::symlink(driver, device.join("driver")).unwrap();
}

/// A new backend of every API that loads a vendor's library, with a library to load where the
/// machine may have none.
fn with_drivers(folder: &Path) -> Vec<Arc<dyn Backend>> {
    let library = no_driver();
    let name = library.to_str().unwrap().to_owned();
    let names = vec![vec![name.clone()]; 2];
    let places =
        Places { system: folder.to_owned(), libraries: names.clone(), zip: vec![name.clone()], ..Places::default() };
    vec![
        Arc::new(CudaBackend::new()),
        Arc::new(HipBackend::new().through(&name)),
        Arc::new(VulkanBackend::with_library(&library)),
        Arc::new(VulkanBackend::new()),
        Arc::new(OpenClBackend::new()),
        Arc::new(PjrtBackend::of(vec![library.clone()])),
        Arc::new(OnnxRuntimeBackend::of(Some(library.clone()))),
        Arc::new(OpenVinoBackend::of(Some(library))),
        Arc::new(QatBackend::of(places)),
        Arc::new(FpgaBackend::of(Api::FPGA, vec![Box::new(XrtCards::new(names, None))])),
    ]
}

/// The backends of a child that are not refused, with their answers.
fn not_refused(backends: &[Arc<dyn Backend>]) -> Vec<String> {
    let told = backends.iter().map(|backend| (backend.api(), backend.discover()));
    let told = told.filter(|(_, found)| !matches!(found, Err(Absence::Forked)));
    told.map(|(api, found)| format!("{api}: {found:?}")).collect()
}

/// The answer of an op on this runtime, if it is wrong.
fn wrong_answer(runtime: &Runtime) -> Vec<String> {
    let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
    let turned = runtime.run(Transpose::new(&matrix)).wait();
    let turned = turned.and_then(|turned| runtime.run(Transfer::to_host(&turned)).wait());
    let is_right =
        turned.as_ref().is_ok_and(|turned| turned.to_vec::<f32>().is_ok_and(|all| all == [1.0, 3.0, 2.0, 4.0]));
    if is_right { Vec::new() } else { vec![format!("{turned:?}")] }
}

/// The faults of a program's own runtime in a child: the CPU must work, and no driver be used.
fn wrong_runtime() -> Vec<String> {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return vec![error.to_string()],
    };
    let refused = [Api::CUDA, Api::ROCM, Api::VULKAN, Api::OPENCL];
    let reports = runtime.backends().into_iter().filter(|report| refused.contains(&report.api));
    let mut wrong: Vec<String> = reports
        .filter(|report| !matches!(report.devices, Err(Absence::Forked)))
        .map(|report| format!("the runtime has {}: {:?}", report.api, report.devices))
        .collect();
    wrong.extend(wrong_answer(&runtime));
    wrong
}

/// The wrong answer of the emulated device, which has no driver and works in every process.
fn wrong_emulation() -> Vec<String> {
    let Ok(backend) = EmulatedBackend::new() else { return Vec::new() };
    let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).build();
    runtime.map_or_else(|error| vec![error.to_string()], |runtime| wrong_answer(&runtime))
}

/// One test, because what was loaded is noted for the whole process.
#[test]
fn a_child_uses_no_driver_that_its_parent_has_loaded_and_computes_on() {
    let _alone = alone();
    let folder = std::env::temp_dir().join(format!("panoply-forked-{}", std::process::id()));
    bus(&folder);
    in_child("a child of a process that has loaded nothing", || {
        let backends = with_drivers(&folder);
        let refused = backends.iter().filter(|backend| matches!(backend.discover(), Err(Absence::Forked)));
        let mut wrong: Vec<String> = refused.map(|backend| format!("{} is refused", backend.api())).collect();
        wrong.extend(wrong_emulation());
        wrong
    });

    let parents = with_drivers(&folder);
    let found: Vec<_> = parents.iter().map(|backend| backend.discover()).collect();
    assert!(found.iter().all(|found| !matches!(found, Err(Absence::Forked))), "{found:?}");
    assert_eq!(wrong_emulation(), Vec::<String>::new());
    let runtime = Runtime::new().unwrap();
    assert_eq!(wrong_answer(&runtime), Vec::<String>::new());

    in_child("a child with its parent's backends", || not_refused(&parents));
    in_child("a child with backends of its own", || {
        // Elsewhere the simulated card would be built first.
        let simulated: [Arc<dyn Backend>; 1] = [Arc::new(FpgaBackend::simulated())];
        [not_refused(&with_drivers(&folder)), not_refused(&simulated)].concat()
    });
    in_child("a child of a child", || {
        in_child("the inner one", || not_refused(&with_drivers(&folder)));
        Vec::new()
    });
    in_child("a child that opens its parent's devices", || {
        let devices = parents.iter().zip(&found).flat_map(|(backend, found)| {
            found.iter().flatten().filter(move |device| backend.open(device, &OpenOptions::default()).is_ok())
        });
        devices.map(|device| format!("{} was opened", device.id)).collect()
    });
    in_child("a child with a runtime of its own", || [wrong_runtime(), wrong_emulation()].concat());
    assert_eq!(wrong_answer(&runtime), Vec::<String>::new(), "the parent goes on");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Number of messages that parent and child seal each, with a nonce of 12 bytes.
const MESSAGES: usize = 50;

fn nonces(session: &RandomSession) -> Vec<u8> {
    let one = || session.seal(vec![1]).unwrap().nonces().list(1).unwrap()[0];
    (0..MESSAGES).flat_map(|_| one()).collect()
}

/// The bytes that `make` gives before a fork, in the parent after it, and in the child.
fn around_fork(make: impl Fn() -> Vec<u8>) -> [Vec<u8>; 3] {
    let before = make();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child uses its own data alone, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let send = |writer: &mut PipeWriter| writer.write_all(&make()).is_ok();
        end(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| send(&mut writer))).unwrap_or(false));
    }
    drop(writer);
    let (after, mut forked) = (make(), Vec::new());
    reader.read_to_end(&mut forked).unwrap();
    assert_eq!((status_of(child), forked.len()), (Some(RIGHT), before.len()));
    [before, after, forked]
}

#[test]
fn parent_and_child_draw_no_nonce_twice() {
    let _alone = alone();
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    let session = random_session(&key).unwrap();
    let lists = around_fork(|| nonces(&session));
    let mut all: Vec<&[u8]> = lists.iter().flat_map(|list| list.chunks(12)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3 * MESSAGES);
}

#[test]
fn parent_and_child_generate_different_keys() {
    let _alone = alone();
    let lists = around_fork(|| {
        let pairs = (0..8).map(|_| KeyPair::generate(SignatureAlgorithm::Ed25519).unwrap());
        pairs.flat_map(|pair| pair.public.as_slice().unwrap()[..32].to_vec()).collect()
    });
    let mut all: Vec<&[u8]> = lists.iter().flat_map(|list| list.chunks(32)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3 * 8);
}

/// The child that the handler has forked.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Whether a pair is being generated.
static IS_GENERATING: AtomicBool = AtomicBool::new(false);
/// Whether a pair was being generated when the handler forked.
static WAS_GENERATING: AtomicBool = AtomicBool::new(false);

/// Forks by the system call: the C library's function takes the locks of the allocator, which the
/// interrupted thread may hold. The child continues the interrupted code.
extern "C" fn fork_here(_: libc::c_int) {
    let (signal, none): (libc::c_long, libc::c_long) = (libc::SIGCHLD.into(), 0);
    WAS_GENERATING.store(IS_GENERATING.load(Ordering::SeqCst), Ordering::SeqCst);
    // SAFETY: without flags and a stack the call is that of a fork.
    let child = unsafe { libc::syscall(libc::SYS_clone, signal, none, none, none, none) };
    if child != 0 {
        CHILD.store(child as i32, Ordering::SeqCst);
    }
}

/// RSA takes long to generate, so forks are in the middle of it. Between two pairs is too short a
/// time for most of them.
#[test]
fn a_fork_in_the_middle_gives_no_pair_to_two_processes() {
    const FORKS: usize = 8;
    let _alone = alone();
    // SAFETY: a struct of numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = fork_here as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes a system call and writes an atomic number.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
    let algorithm =
        SignatureAlgorithm::Rsa { bits: RsaBits::Bits2048, padding: RsaPadding::Pss, hash: HashAlgorithm::Sha256 };
    let (thread, over, parent) = (AtomicU64::new(0), AtomicBool::new(false), std::process::id());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: returns the calling thread's own handle.
            thread.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                IS_GENERATING.store(true, Ordering::SeqCst);
                let pair = KeyPair::generate(algorithm);
                IS_GENERATING.store(false, Ordering::SeqCst);
                if std::process::id() != parent {
                    // A child that was forked between two pairs has one of its own.
                    end(pair.is_none() == WAS_GENERATING.load(Ordering::SeqCst));
                }
                assert!(pair.is_some());
            }
        });
        while thread.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let ends: Vec<_> = (0..FORKS).map(|_| fork_in(thread.load(Ordering::SeqCst))).collect();
        over.store(true, Ordering::SeqCst);
        // The library ends a child that it finds in the middle of a draw.
        let wrong: Vec<_> = ends.iter().filter(|end| !matches!(end, Some(RIGHT | ABORTED))).collect();
        assert!(wrong.is_empty(), "{} of {FORKS} children: {wrong:?}", wrong.len());
    });
}

/// Forks inside what a thread does, and returns the child's status.
fn fork_in(thread: u64) -> Option<libc::c_int> {
    CHILD.store(0, Ordering::SeqCst);
    // SAFETY: the thread runs until the test is over.
    assert_eq!(unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR2) }, 0);
    while CHILD.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    status_of(CHILD.load(Ordering::SeqCst))
}
