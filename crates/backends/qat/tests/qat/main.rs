//! The backend over the test library with qatlib's functions: discovery, results, and behaviour
//! after failures.
#![allow(unsafe_code)] // The test library is loaded.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libloading::Library;
use panoply_conformance::{cases, check_backend, run_one, vectors, wrong_domains};
use panoply_core::op::crypto::*;
use panoply_core::*;
use panoply_cpu::CpuBackend;
use panoply_qat::pci::endpoints;
use panoply_qat::{Places, QatBackend};
use panoply_runtime::{RunOptions, Runtime};
use panoply_store::{Compression, MasterKey, Options, Store};

mod zip;

/// The numbers of the test library's faults.
const NO_START: c_int = 1;
const SILENT: c_int = 2;
const REQUEST_FAILS: c_int = 3;
const NO_SESSION: c_int = 4;
const NO_MEMORY: c_int = 5;
const RING_FULL: c_int = 6;
const WRONG_RSA: c_int = 7;
const DOWN: c_int = 8;
const FATAL_SUBMIT: c_int = 9;
const INTERRUPTS: c_int = 10;

const EVENT_RESTARTING: u32 = 0;

/// A private copy of the test library, because a process has one set of global state per file, and
/// an emulated machine made of files.
struct Bench {
    library: Library,
    folder: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let folder = std::env::temp_dir().join(format!("panoply-qat-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let file = libloading::library_filename("panoply_qat_test_library");
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let built = [beside.join(&file), beside.join("deps").join(&file)].into_iter().find(|path| path.exists());
        std::fs::copy(built.expect("cargo leaves the test library beside the tests"), folder.join("libqat.so"))
            .unwrap();
        machine(&folder);
        // SAFETY: the library belongs to this repository. Loading it runs no code.
        let library = unsafe { Library::new(folder.join("libqat.so")) }.unwrap();
        Bench { library, folder }
    }

    fn backend(&self) -> QatBackend {
        let name = vec![self.folder.join("libqat.so").to_str().unwrap().to_owned()];
        QatBackend::of(Places {
            system: self.folder.clone(),
            libraries: vec![name.clone(), name.clone()],
            zip: name,
            silence_max: Duration::from_secs(1),
        })
    }

    fn fault(&self, number: c_int) {
        // SAFETY: the exported function has this signature.
        unsafe { self.library.get::<unsafe extern "C" fn(c_int)>(b"panoply_test_fault\0").unwrap()(number) }
    }

    /// Removes the instances for compression, so that QATzip is used.
    fn without_compression(self) -> Bench {
        // SAFETY: as above.
        unsafe { self.library.get::<unsafe extern "C" fn()>(b"panoply_test_no_compression\0").unwrap()() };
        self
    }

    fn event(&self, event: u32) {
        // SAFETY: as above.
        unsafe { self.library.get::<unsafe extern "C" fn(u32)>(b"panoply_test_event\0").unwrap()(event) }
    }

    fn live(&self) -> i64 {
        // SAFETY: as above.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i64>(b"panoply_test_live\0").unwrap()() }
    }

    /// Sessions that were begun so far, and those that have not ended.
    fn sessions(&self) -> (i64, i64) {
        // SAFETY: as above.
        let count = unsafe { self.library.get::<unsafe extern "C" fn(usize) -> i64>(b"panoply_test_sessions\0") };
        // SAFETY: as above, and the library counts these two.
        count.map(|count| unsafe { (count(0), count(1)) }).unwrap()
    }

    fn dirty(&self) -> i64 {
        // SAFETY: as above.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i64>(b"panoply_test_dirty\0").unwrap()() }
    }

    fn served(&self, instance: u32) -> u32 {
        // SAFETY: as above.
        unsafe { self.library.get::<unsafe extern "C" fn(u32) -> u32>(b"panoply_test_served\0").unwrap()(instance) }
    }

    /// Opens the first device.
    fn open(&self) -> Box<dyn Engine> {
        let backend = self.backend();
        let device = backend.discover().unwrap().remove(0);
        backend.open(&device, &OpenOptions::default()).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A PCI bus with a device, a device with virtual functions, a device without a driver, a device
/// that is down, and a network card.
fn machine(folder: &Path) {
    let devices = folder.join("bus/pci/devices");
    let device = |address: &str, product: &str, driver: Option<&str>, state: Option<&str>| {
        let path = devices.join(address);
        std::fs::create_dir_all(path.join("qat")).unwrap();
        std::fs::write(path.join("vendor"), "0x8086\n").unwrap();
        std::fs::write(path.join("device"), format!("{product}\n")).unwrap();
        std::fs::write(path.join("numa_node"), "0\n").unwrap();
        std::fs::write(path.join("qat/cfg_services"), "sym;asym\n").unwrap();
        state.into_iter().for_each(|state| std::fs::write(path.join("qat/state"), state).unwrap());
        if let Some(driver) = driver {
            let target = folder.join("bus/pci/drivers").join(driver);
            std::fs::create_dir_all(&target).unwrap();
            std::os::unix::fs::symlink(target, path.join("driver")).unwrap();
        }
        path
    };
    device("0000:6b:00.0", "0x37c8", Some("c6xx"), Some("up\n"));
    let physical = device("0000:70:00.0", "0x4940", Some("4xxx"), Some("up\n"));
    for function in 1..4 {
        let path = device(&format!("0000:70:00.{function}"), "0x4941", Some("vfio-pci"), None);
        std::os::unix::fs::symlink(&physical, path.join("physfn")).unwrap();
        std::os::unix::fs::symlink(&path, physical.join(format!("virtfn{}", function - 1))).unwrap();
    }
    device("0000:80:00.0", "0x4940", None, None);
    device("0000:81:00.0", "0x4940", Some("4xxx"), Some("down\n"));
    device("0000:90:00.0", "0x1572", Some("i40e"), None);
}

fn key() -> Key {
    Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap()
}

/// `count` messages of ten bytes, sealed with counted nonces.
fn many(count: usize) -> Op {
    let bytes = Bytes::from_vec((0..count * 10).map(|byte| byte as u8).collect());
    let nonces = Nonces::Counted { prefix: [1; 4], first: 0 };
    Seal::new(&key(), nonces, Messages::split(bytes, 10).unwrap()).into_op().unwrap()
}

#[test]
fn devices_are_found_on_the_bus_with_their_instances() {
    let bench = Bench::new("found");
    let found = endpoints(&bench.folder);
    let shown: Vec<String> = found.iter().map(|endpoint| format!("{} {}", endpoint.address, endpoint.family)).collect();
    assert_eq!(shown, ["0000:6b:00.0 c6xx", "0000:70:00.0 4xxx", "0000:80:00.0 4xxx", "0000:81:00.0 4xxx"]);
    assert_eq!(found[1].functions.len(), 3);
    assert_eq!((found[0].services.as_deref(), found[0].state.as_deref()), (Some("sym;asym"), Some("up")));
    let troubles: Vec<String> = found.iter().filter_map(|endpoint| endpoint.trouble()).collect();
    assert_eq!(troubles, ["0000:80:00.0 (4xxx) has no driver", "0000:81:00.0 (4xxx) is down"]);
    let devices = bench.backend().discover().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].name, "Intel QAT 4xxx (3 instances)");
    assert_eq!((devices[0].numa_node, devices[0].driver_version.as_deref()), (Some(0), Some("26.8")));
    assert_eq!(devices[0].capabilities.features.len(), 9);
    assert_eq!(bench.live(), 0, "a search leaves nothing open");
}

#[test]
fn what_is_missing_is_said() {
    let bench = Bench::new("missing");
    let reason = |places: Places| QatBackend::of(places).discover().unwrap_err().to_string();
    let places = |system: PathBuf, library: &str| {
        let names = vec![vec![library.to_owned()]; 2];
        Places { system, libraries: names, ..Places::default() }
    };
    let nowhere = bench.folder.join("nowhere");
    assert_eq!(reason(places(nowhere, "libqat.so")), "no device: no QAT device on the PCI bus");
    let missing = reason(places(bench.folder.clone(), "libpanoply-none.so"));
    assert!(missing.contains("library not found (tried libpanoply-none.so)"), "{missing}");
    let other = reason(places(bench.folder.clone(), "libc.so.6"));
    assert!(other.contains("icp_sal_userStart"), "{other}");
    for (fault, word) in [(NO_START, "group qat"), (DOWN, "is down"), (INTERRUPTS, "answers by interrupt")] {
        bench.fault(fault);
        let said = bench.backend().discover().unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    // The result of discovery on the real machine is unknown, but it must not panic.
    let _ = QatBackend::new().discover();
}

#[test]
fn every_case_of_the_suite_gives_what_the_reference_gives() {
    let bench = Bench::new("suite");
    let backend = bench.backend();
    let device = backend.discover().unwrap().remove(0);
    let claimed: Vec<_> = cases().into_iter().filter(|case| backend.supports(&device, &case.op).is_yes()).collect();
    let summary = check_backend(&backend, &device, &claimed).unwrap();
    assert!(summary.failed.is_empty() && summary.passed > 300, "{summary}");
    println!("{summary}");
    assert_eq!(wrong_domains(&backend, &device), []);
    assert_eq!((bench.live(), bench.dirty()), (0, 0), "everything is given back, and wiped");
}

#[test]
fn every_published_vector_gives_what_it_must() {
    let bench = Bench::new("vectors");
    let backend = bench.backend();
    let device = backend.discover().unwrap().remove(1);
    let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
    let summary = vectors::check(&|op| backend.supports(&device, op), &mut |op| run_one(&mut *engine, op));
    println!("{summary}");
    assert!(summary.failed.is_empty() && summary.passed > 3000, "{summary}");
    drop(engine);
    assert_eq!((bench.live(), bench.dirty()), (0, 0));
}

#[test]
fn a_large_batch_goes_over_all_instances_and_a_long_queue_is_told() {
    let bench = Bench::new("batch");
    let mut engine = bench.open();
    let (mut batch, mut finished) = (vec![Item { token: 1, op: many(12_000) }, Item { token: 2, op: many(3) }], vec![]);
    engine.submit(&mut batch);
    assert!(engine.health().queue_depth > Some(10_000));
    while engine.poll(&mut finished, Duration::from_millis(10)) > 0 {}
    assert_eq!(finished.iter().map(|done| done.token).collect::<Vec<_>>(), [1, 2]);
    for done in finished {
        let Op::Crypto(op) = &done.op else { panic!() };
        let mut state = panoply_cpu_crypto::State::default();
        let expected = panoply_cpu_crypto::run(op, &mut state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
        let bytes = |value: Value| Messages::from_value(value).unwrap().into_list().unwrap();
        let (got, expected) = (bytes(done.result.unwrap()), bytes(expected));
        assert!(got.iter().zip(&expected).all(|(got, expected)| got.as_slice() == expected.as_slice()));
        assert_eq!(got.len(), expected.len());
    }
    assert_eq!(engine.health().queue_depth, Some(0));
    assert!(bench.served(0) > 3_000 && bench.served(1) > 3_000, "both instances work");
}

#[test]
fn ops_with_one_key_share_sessions_until_the_key_is_gone() {
    let bench = Bench::new("sessions");
    let mut engine = bench.open();
    let shared = key();
    let seal = |key: &Key, number: u8| Seal::new(key, [number; 12], vec![number; 100]).into_op().unwrap();
    // One instance after the other has its turn, so there are as many sessions as instances.
    for number in 0..40 {
        let sealed = run_one(&mut *engine, seal(&shared, number)).unwrap();
        assert_eq!(sealed.into_bytes().unwrap().len(), 116);
    }
    assert_eq!(bench.sessions(), (2, 2), "40 ops of one key on two instances");
    // The other direction, another length of associated data and another key are other sessions.
    let open = |key: &Key, text: Vec<u8>| Open::new(key, [1; 12], text).into_op().unwrap();
    let text = run_one(&mut *engine, seal(&shared, 1)).unwrap().into_bytes().unwrap();
    run_one(&mut *engine, open(&shared, text.as_slice().unwrap().to_vec())).unwrap();
    let other = key();
    assert!(run_one(&mut *engine, open(&other, vec![0; 40])).is_err(), "the keys are told apart");
    let begun = bench.sessions().0;
    assert_eq!(bench.sessions(), (begun, begun));
    // Once a key has no handle left its sessions end with the engine's next step.
    drop(shared);
    engine.poll(&mut Vec::new(), Duration::ZERO);
    assert_eq!(bench.sessions().1, 1, "only the other key's session is left");
    assert_eq!(bench.dirty(), 0);
    drop((other, engine));
    assert_eq!((bench.sessions().1, bench.live(), bench.dirty()), (0, 0, 0), "everything is given back, and wiped");
}

#[test]
fn sessions_are_bounded_and_end_when_no_op_needs_them() {
    let bench = Bench::new("bounded");
    let mut engine = bench.open();
    let keys: Vec<Key> = (0..100).map(|_| key()).collect();
    for key in &keys {
        run_one(&mut *engine, Seal::new(key, [1; 12], vec![1; 20]).into_op().unwrap()).unwrap();
    }
    assert_eq!(bench.sessions(), (100, 64), "the oldest have ended");
    // All of them were used since the last look; at the second one they were not.
    engine.health();
    assert_eq!(bench.sessions().1, 64);
    run_one(&mut *engine, Seal::new(&keys[99], [2; 12], vec![1; 20]).into_op().unwrap()).unwrap();
    let used = bench.sessions();
    engine.health();
    assert!((1..=2).contains(&bench.sessions().1), "{used:?} {:?}", bench.sessions());
    engine.health();
    assert_eq!((bench.sessions().1, bench.dirty()), (0, 0), "an idle engine keeps nothing of a key");
    run_one(&mut *engine, Seal::new(&keys[99], [3; 12], vec![1; 20]).into_op().unwrap()).unwrap();
}

#[test]
fn an_idle_runtime_keeps_no_session() {
    let bench = Bench::new("idle");
    let rules = panoply_runtime::HealthRules { look_every: Duration::from_millis(20), ..Default::default() };
    let runtime = Runtime::builder().backend(Arc::new(bench.backend())).health(rules).build().unwrap();
    let key = key();
    for number in 0..10 {
        runtime.run(Seal::new(&key, [number; 12], vec![1; 20])).wait().unwrap();
    }
    assert!(bench.sessions().0 >= 1);
    let began = Instant::now();
    while bench.sessions().1 > 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "the key is alive, but its sessions are to end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(bench.dirty(), 0);
}

#[test]
fn one_bad_message_fails_its_op_alone() {
    let bench = Bench::new("bad");
    let mut engine = bench.open();
    let sealed = run_one(&mut *engine, Seal::new(&key(), [1; 12], vec![5; 100]).into_op().unwrap()).unwrap();
    let sealed = sealed.into_bytes().unwrap();
    let open = |text: Vec<u8>| Open::new(&key(), [1; 12], text).into_op().unwrap();
    let mut wrong = sealed.as_slice().unwrap().to_vec();
    wrong[3] ^= 1;
    let ops = [open(wrong), open(sealed.as_slice().unwrap().to_vec())];
    let mut batch = ops.into_iter().enumerate().map(|(token, op)| Item { token: token as u64, op }).collect();
    engine.submit(&mut batch);
    let mut finished = Vec::new();
    while engine.poll(&mut finished, Duration::from_millis(10)) > 0 {}
    assert_eq!(finished[0].result.as_ref().unwrap_err(), &Error::Rejected { op: "open", index: 0 });
    let opened = finished.remove(1).result.unwrap().into_bytes().unwrap();
    assert_eq!(opened.as_slice().unwrap(), [5; 100]);
}

#[test]
fn failures_of_the_device_are_typed_and_pass() {
    let bench = Bench::new("failures");
    let mut engine = bench.open();
    let generated =
        panoply_cpu_crypto::signature::generate(SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pss));
    let private = Key::sign(SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pss), &generated.unwrap().pkcs8);
    let sign = Sign::new(&private.unwrap(), vec![1; 50]).into_op().unwrap();
    let pack = Compress::new(Format::Gzip, vec![1; 5000]).into_op().unwrap();
    for (fault, op, word) in [
        (REQUEST_FAILS, many(40), "cpaCySymPerformOp: it failed"),
        (REQUEST_FAILS, sign.clone(), "cpaCyRsaDecrypt: it failed"),
        (REQUEST_FAILS, pack.clone(), "DEFLATE"),
        (NO_SESSION, many(3), "cpaCySymInitSession: a parameter is not valid"),
    ] {
        bench.fault(fault);
        match run_one(&mut *engine, op.clone()).unwrap_err() {
            Error::DeviceFault { reason, .. } => assert!(reason.contains(word), "{reason}"),
            other => panic!("{other}"),
        }
        bench.fault(0);
        run_one(&mut *engine, op).unwrap();
    }
    bench.fault(NO_MEMORY);
    // The pool has no block of this size yet.
    let long = Hash::new(HashAlgorithm::Sha256, vec![0; 700_000]).into_op().unwrap();
    assert!(matches!(run_one(&mut *engine, long.clone()), Err(Error::OutOfMemory { .. })));
    bench.fault(0);
    run_one(&mut *engine, long).unwrap();
    // A full ring only delays an op.
    bench.fault(RING_FULL);
    engine.submit(&mut vec![Item { token: 9, op: many(5) }]);
    let mut finished = Vec::new();
    assert_eq!(engine.poll(&mut finished, Duration::from_millis(20)), 1);
    bench.fault(0);
    while engine.poll(&mut finished, Duration::from_millis(10)) > 0 {}
    assert!(finished.remove(0).result.is_ok());
    drop(engine);
    assert_eq!((bench.live(), bench.dirty()), (0, 0));
}

#[test]
fn a_signature_that_is_wrong_does_not_leave() {
    let bench = Bench::new("wrong");
    let mut engine = bench.open();
    let algorithm = SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pkcs1);
    let private = Key::sign(algorithm, &panoply_cpu_crypto::signature::generate(algorithm).unwrap().pkcs8).unwrap();
    bench.fault(WRONG_RSA);
    let error = run_one(&mut *engine, Sign::new(&private, vec![1]).into_op().unwrap()).unwrap_err();
    assert!(error.to_string().contains("a signature does not verify"), "{error}");
    for algorithm in [EcdsaEncoding::Fixed, EcdsaEncoding::Der].map(SignatureAlgorithm::EcdsaP256) {
        let private = Key::sign(algorithm, &panoply_cpu_crypto::signature::generate(algorithm).unwrap().pkcs8).unwrap();
        let error = run_one(&mut *engine, Sign::new(&private, vec![1]).into_op().unwrap()).unwrap_err();
        assert!(error.to_string().contains("a signature does not verify"), "{error}");
    }
}

#[test]
fn a_device_that_falls_silent_restarts_or_breaks_down_is_lost_and_opened_again() {
    for (name, word) in [("silent", "has not answered"), ("restart", "restarting"), ("fatal", "fatal error")] {
        let bench = Bench::new(name);
        let mut engine = bench.open();
        match name {
            "silent" => bench.fault(SILENT),
            "restart" => {
                bench.fault(SILENT);
                bench.event(EVENT_RESTARTING);
            }
            _ => bench.fault(FATAL_SUBMIT),
        }
        engine.submit(&mut vec![Item { token: 1, op: many(50) }, Item { token: 2, op: many(50) }]);
        let (mut finished, began) = (Vec::new(), Instant::now());
        while engine.poll(&mut finished, Duration::from_millis(10)) > 0 {
            assert!(began.elapsed() < Duration::from_secs(5));
        }
        assert_eq!(finished.len(), 2, "{name}");
        for done in &finished {
            let error = done.result.as_ref().unwrap_err();
            assert!(matches!(error, Error::DeviceLost { .. }) && error.to_string().contains(word), "{name}: {error}");
        }
        assert!(matches!(engine.health().fault, Some(Error::DeviceLost { .. })));
        drop(engine);
        bench.fault(0);
        run_one(&mut *bench.open(), many(20)).unwrap();
        assert_eq!(bench.dirty(), 0, "{name}");
    }
}

#[test]
fn a_device_that_is_restarted_under_a_runtime_serves_again() {
    let bench = Bench::new("runtime");
    let runtime = Runtime::builder().backend(Arc::new(bench.backend())).build().unwrap();
    let seal = |byte: u8| runtime.run(Seal::new(&key(), [byte; 12], vec![byte; 64])).wait();
    let sealed = seal(1).unwrap().text;
    assert_eq!(sealed.total_bytes(), 80);
    bench.fault(SILENT);
    bench.event(EVENT_RESTARTING);
    let error = seal(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    bench.fault(0);
    let began = Instant::now();
    while seal(3).is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "the device is not opened again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_store_compresses_here_where_it_is_asked_for() {
    let bench = Bench::new("store");
    let cpu = || Runtime::builder().backend(Arc::new(CpuBackend::new()));
    let both = Arc::new(cpu().backend(Arc::new(bench.backend())).build().unwrap());
    let device = both.devices().find(|info| info.id.api == Api::QAT).unwrap().id;
    let (folder, key) = (bench.folder.join("store"), || MasterKey::from_bytes(vec![9; 32]).unwrap());
    let wish =
        Options { compression: Compression::Deflate, compress_with: RunOptions::require(device), ..Options::default() };
    let content: Vec<u8> = (0..900_000_u32).map(|at| b"the words of a store "[(at + at / 500) as usize % 21]).collect();
    let mut store = Store::create(Arc::clone(&both), &folder, &key(), wish).unwrap();
    let entry = store.put("words", &mut &content[..], false).unwrap();
    assert!(entry.stored < entry.len / 2, "{entry:?}");
    let mut whole = Vec::new();
    store.read("words", &mut whole).unwrap();
    assert!(whole == content);
    let uses = store.compression_uses();
    assert!(uses.len() == 1 && uses[0].device == device, "{uses:?}");
    assert!(uses[0].compressed > 0 && uses[0].decompressed > 0 && uses[0].fallbacks == 0, "{uses:?}");
    // A failing device fails the put, which it is required for; the store stays as it was.
    bench.fault(REQUEST_FAILS);
    assert!(store.put("more", &mut &content[..], false).is_err());
    bench.fault(0);
    assert_eq!(store.entries().count(), 1);
    drop((store, both));
    // Without the hardware it is readable as well.
    let store = Store::open_read_only(cpu().build().unwrap(), &folder, &key(), Options::default()).unwrap();
    let mut whole = Vec::new();
    store.read("words", &mut whole).unwrap();
    assert!(whole == content && store.compression_uses()[0].device.to_string() == "cpu:0");
}
