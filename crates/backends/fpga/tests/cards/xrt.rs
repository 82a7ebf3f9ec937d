//! Cards behind XRT, emulated by a test library with XRT's functions (`fake_xrt.c`) over the
//! simulated card.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use libloading::Library;
use panoply_conformance::{cases, check_backend};
use panoply_core::{Absence, Api, Backend, Error};
use panoply_fpga::card::simulated::build::library;
use panoply_fpga::card::{CardError, Completion};
use panoply_fpga::driver::Driver;
use panoply_fpga::map::CoreKind;
use panoply_fpga::{Bitstreams, Find, FpgaBackend, XrtCards};

use super::simulation;

/// The numbers of the test library's faults.
const NO_CARD: c_int = 1;
const NO_DEVICE: c_int = 2;
const LOAD_FAILS: c_int = 3;
const REGISTERS_FAIL: c_int = 4;
const HANGS: c_int = 5;
const RUN_FAILS: c_int = 6;
const NO_MEMORY: c_int = 7;
const IN_USE: c_int = 8;
const SYNC_FAILS: c_int = 9;

/// A private copy of the test library, because a process has one set of global state per file.
struct Fake {
    library: Library,
    path: PathBuf,
    bitstream: PathBuf,
}

impl Fake {
    /// Returns `None` if there is no simulation.
    fn new(name: &str) -> Option<Fake> {
        simulation()?;
        let path = std::env::temp_dir().join(format!("panoply-{}-{name}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cards/fake_xrt.c");
        let made =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).args([source, "-ldl"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // SAFETY: the library was just built and has no initialisers.
        let fake = unsafe { Library::new(&path) }.unwrap();
        let card = CString::new(super::simulation().and(library().ok())?.to_str()?).unwrap();
        // SAFETY: the type is that in `fake_xrt.c`, and the name ends with a zero byte.
        let failed = unsafe {
            fake.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"fake_xrt_card\0").unwrap()(card.as_ptr())
        };
        assert_eq!(failed, 0);
        let bitstream = path.with_extension("xclbin");
        std::fs::write(&bitstream, "a bitstream").unwrap();
        Some(Fake { library: fake, path, bitstream })
    }

    fn fault(&self, number: c_int) {
        // SAFETY: the type is that in `fake_xrt.c`.
        unsafe { self.library.get::<unsafe extern "C" fn(c_int)>(b"fake_xrt_fault\0").unwrap()(number) }
    }

    fn cards(&self) -> XrtCards {
        let name = vec![self.path.to_str().unwrap().to_owned()];
        XrtCards::new(vec![name.clone(), name], Some(self.bitstream.clone()))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = (std::fs::remove_file(&self.path), std::fs::remove_file(&self.bitstream));
    }
}

#[test]
fn the_suite_runs_through_xrt_by_interrupt_and_by_polling() {
    for (name, completion) in [("interrupt", Completion::Interrupt), ("polling", Completion::Polling)] {
        let Some(fake) = Fake::new(name) else { return };
        let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(fake.cards().completion(completion))]);
        let device = backend.discover().unwrap().remove(0);
        assert_eq!(device.name, "XRT card 0");
        let claimed = cases().into_iter().filter(|case| backend.supports(&device, &case.op).is_yes()).step_by(9);
        let summary = check_backend(&backend, &device, &claimed.collect::<Vec<_>>()).unwrap();
        assert!(summary.failed.is_empty() && summary.passed >= 15, "{name}: {summary}");
    }
}

#[test]
fn cards_that_cannot_be_opened_say_why() {
    let Some(fake) = Fake::new("opening") else { return };
    for (fault, word) in [
        (NO_CARD, "XRT sees no card"),
        (NO_DEVICE, "xrtDeviceOpen"),
        (LOAD_FAILS, "the bitstream is not loaded"),
        (REGISTERS_FAIL, "xrtKernelReadRegister"),
        (IN_USE, "panoply: XRT gives none"),
    ] {
        fake.fault(fault);
        let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(fake.cards())]);
        match backend.discover() {
            Err(Absence::NoDevice { reason }) => assert!(reason.contains(word), "{reason}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    // If no bitstream is loaded or given, there is no kernel.
    fake.fault(0);
    let fresh = Fake::new("no-bitstream").unwrap();
    let name = vec![fresh.path.to_str().unwrap().to_owned()];
    let error = XrtCards::new(vec![name.clone(), name], None).open(0, None).map(drop).unwrap_err();
    assert!(error.to_string().contains("xrtDeviceGetXclbinUUID"), "{error}");
}

#[test]
fn each_card_gets_its_own_bitstream_and_knows_its_node() {
    let Some(fake) = Fake::new("own-bitstream") else { return };
    let system = std::env::temp_dir().join(format!("panoply-xrt-{}", std::process::id()));
    std::fs::create_dir_all(system.join("bus/pci/devices/0000:65:00.1")).unwrap();
    std::fs::write(system.join("bus/pci/devices/0000:65:00.1/numa_node"), "1\n").unwrap();
    let name = vec![fake.path.to_str().unwrap().to_owned()];
    let cards = XrtCards::new(vec![name.clone(), name], None);
    let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(cards)]).in_system(&system);
    let reason = || backend.discover().unwrap_err().to_string();
    assert!(reason().contains("xrtDeviceGetXclbinUUID"), "{}", reason());
    let set = |card: &str, file: &std::path::Path| {
        backend.set_bitstreams(Bitstreams::default().with(card.parse().unwrap(), file));
    };
    // Each wrong file is refused before the card is touched.
    for (file, word) in
        [("/nonexistent/card.xclbin", "No such file"), ("/dev", "not a file"), ("/dev/null", "not a file")]
    {
        set("fpga:0", std::path::Path::new(file));
        assert!(reason().contains("the bitstream is not loaded") && reason().contains(file), "{}", reason());
        assert!(reason().contains(word), "{}", reason());
    }
    set("fpga:0", &fake.bitstream);
    fake.fault(LOAD_FAILS);
    assert!(reason().contains("XRT says -22") && reason().contains(fake.bitstream.to_str().unwrap()), "{}", reason());
    fake.fault(0);
    // A card of another name does not get it.
    set("0000:66:00.1", &fake.bitstream);
    let said = "no card is called 0000:66:00.1, for which a bitstream is set; cards: fpga:0 (0000:65:00.1)";
    assert!(reason().contains(said), "{}", reason());
    set("0000:65:00.1", &fake.bitstream);
    let device = backend.discover().unwrap().remove(0);
    assert_eq!((device.pci_address.unwrap().to_string(), device.numa_node), ("0000:65:00.1".to_owned(), Some(1)));
    assert_eq!(backend.troubles(), [""; 0]);
    backend.open(&device, &Default::default()).unwrap();
    std::fs::remove_dir_all(&system).unwrap();
}

#[test]
fn libraries_that_are_not_there_or_are_others_say_so() {
    let missing = vec!["libpanoply-no-such-library.so".to_owned()];
    match XrtCards::new(vec![missing.clone()], None).find() {
        Err(Absence::LibraryMissing { tried }) => assert_eq!(tried, missing),
        other => panic!("{other:?}"),
    }
    match XrtCards::new(vec![vec!["libc.so.6".to_owned()]], None).find() {
        Err(Absence::NoDevice { reason }) => assert!(reason.contains("xclProbe"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_and_time_limits_while_packets_are_under_way_are_typed() {
    let Some(fake) = Fake::new("under-way") else { return };
    let after = Duration::from_millis(100);
    for (fault, word) in [
        (HANGS, "has not answered for 100ms"),
        (RUN_FAILS, "it ended in state 5"),
        (NO_MEMORY, "xrtBOAlloc"),
        (SYNC_FAILS, "xrtBOSync"),
    ] {
        fake.fault(0);
        let mut driver = Driver::open(fake.cards().open(0, None).unwrap()).unwrap();
        driver.set_silence_max(after);
        driver.set_up(CoreKind::Crc32, &[]).unwrap();
        fake.fault(fault);
        let began = Instant::now();
        let error: Result<(), CardError> = driver.start(&[7; 99], 8).and_then(|()| {
            loop {
                if let Some(answer) = driver.finish(Duration::from_millis(10))? {
                    return Err(CardError::PacketSize { got: answer.payload.len() });
                }
            }
        });
        assert!(error.clone().unwrap_err().to_string().contains(word), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(2));
    }
    fake.fault(0);
    let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(fake.cards())]);
    let device = backend.discover().unwrap().remove(0);
    fake.fault(IN_USE);
    assert!(matches!(backend.open(&device, &Default::default()), Err(Error::DeviceUnavailable { .. })));
}
