//! Cards behind XDMA, emulated by a folder of nodes that a thread serves: a mapped file for the
//! registers, and pipes for streams and events.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use panoply_conformance::{cases, check_backend};
use panoply_core::{Absence, Api, Backend, Operation, Tensor};
use panoply_fpga::card::xdma::XdmaCard;
use panoply_fpga::card::{Card, CardError, Completion};
use panoply_fpga::driver::Driver;
use panoply_fpga::map::*;
use panoply_fpga::{Affine, Bitstreams, FpgaBackend, Xdma};

use super::reference;

/// The server's fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ServerFault {
    Nothing,
    /// The server takes packets and never answers.
    Silent,
    /// The server stops in the middle of an answer.
    Stops,
    /// The server stops in the middle of an answer and closes the stream.
    Ends,
}

/// The nodes of one card, and the thread that serves them.
struct Tree {
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// The registers as the server sees them. All filter taps are written to one address, which plain
/// memory cannot detect, so the card has no filter.
struct Registers(MmapRaw);

impl Registers {
    fn place(&self, register: Register) -> *mut u32 {
        assert!(register.offset < 4096);
        // SAFETY: the mapping has 4096 bytes.
        unsafe { self.0.as_mut_ptr().add(register.offset as usize).cast() }
    }

    fn get(&self, register: Register) -> u32 {
        // SAFETY: the register is mapped and aligned. The driver also uses single accesses.
        unsafe { self.place(register).read_volatile() }
    }

    fn set(&self, register: Register, value: u32) {
        // SAFETY: as above.
        unsafe { self.place(register).write_volatile(value) }
    }
}

impl Tree {
    fn new(name: &str, events: bool, wrong: ServerFault) -> Tree {
        let folder = std::env::temp_dir().join(format!("panoply-xdma-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("xdma0_user"), [0; 4096]).unwrap();
        let nodes = ["xdma0_h2c_0", "xdma0_c2h_0", "xdma0_events_0"];
        nodes[..if events { 3 } else { 2 }].iter().for_each(|node| pipe(&folder.join(node)));
        let user = OpenOptions::new().read(true).write(true).open(folder.join("xdma0_user")).unwrap();
        let registers = Registers(MmapOptions::new().len(4096).map_raw(&user).unwrap());
        let known = [(IDENT, IDENT_VALUE), (VERSION, VERSION_VALUE), (CORES, 0b11011), (FFT_SIZE, build::FFT_SIZE)];
        let more = [(FFT_WIDTH, build::FFT_WIDTH), (VITERBI_STEPS_MAX, build::VITERBI_STEPS_MAX)];
        known.into_iter().chain(more).for_each(|(register, value)| registers.set(register, value));
        let open = |node: &str, flags| {
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder.join(node)).unwrap()
        };
        let mut server = Server {
            registers,
            packets: open(nodes[0], libc::O_NONBLOCK),
            answers: Some(open(nodes[1], 0)),
            events: events.then(|| open(nodes[2], libc::O_NONBLOCK)),
            waiting: Vec::new(),
            was_reset: false,
            wrong,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || {
            while !stopped.load(Ordering::Relaxed) {
                if !server.serve() {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        };
        Tree { folder, stop, server: Some(std::thread::spawn(serve)) }
    }

    fn driver(&self, completion: Completion) -> Driver {
        let mut driver = Driver::open(Box::new(XdmaCard::open(&self.folder, 0, completion).unwrap())).unwrap();
        driver.set_silence_max(Duration::from_millis(150));
        driver
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.server.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn pipe(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

struct Server {
    registers: Registers,
    packets: File,
    answers: Option<File>,
    events: Option<File>,
    waiting: Vec<u8>,
    was_reset: bool,
    wrong: ServerFault,
}

impl Server {
    /// Polls the registers and the stream once. Returns false if there was nothing to do.
    fn serve(&mut self) -> bool {
        let control = self.registers.get(CONTROL);
        let is_reset = control >> CONTROL_RESET_BIT & 1 == 1;
        if is_reset && !self.was_reset {
            self.take_bytes();
            self.waiting.clear();
            // SESSION is cleared last, because the driver reads it first.
            [VITERBI_CODE, ACKNOWLEDGED, PACKETS_OUT, ANSWERS, SESSION]
                .iter()
                .for_each(|it| self.registers.set(*it, 0));
        }
        self.was_reset = is_reset;
        self.take_bytes();
        let Some(header) = self.waiting.first_chunk::<8>().copied() else { return false };
        let (tag, bytes) = reference::header(header);
        let whole = 8 + bytes.next_multiple_of(8);
        if self.waiting.len() < whole {
            return false;
        }
        let packet: Vec<u8> = self.waiting.drain(..whole).collect();
        let core = CoreKind::ALL[(self.registers.get(CONTROL) & 15) as usize];
        let code = self.registers.get(VITERBI_CODE);
        self.answer(&reference::framed(tag, &reference::answer(core, &packet[8..8 + bytes], &[], code)));
        true
    }

    fn take_bytes(&mut self) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = self.packets.read(&mut bytes) {
            self.waiting.extend_from_slice(&bytes[..count]);
        }
    }

    fn answer(&mut self, answer: &[u8]) {
        if self.wrong == ServerFault::Silent {
            return;
        }
        self.registers.set(PACKETS_OUT, self.registers.get(PACKETS_OUT) + 1);
        self.registers.set(ANSWERS, self.registers.get(ANSWERS) + 1);
        if self.registers.get(CONTROL) >> CONTROL_INTERRUPT_BIT & 1 == 1 {
            self.events.as_mut().unwrap().write_all(&1_u32.to_le_bytes()).unwrap();
        }
        let given = if self.wrong == ServerFault::Nothing { answer.len() } else { answer.len() / 2 };
        if let Some(stream) = &mut self.answers {
            stream.write_all(&answer[..given]).unwrap();
        }
        if self.wrong == ServerFault::Ends {
            self.answers = None;
        }
    }
}

#[test]
fn the_suite_runs_through_the_nodes_by_interrupt_and_by_polling() {
    // A quarter of the cases that the card supports covers every core and many sizes.
    let ours: Vec<_> = cases()
        .into_iter()
        .filter(|case| ["crc", "fft", "viterbi"].iter().any(|op| case.name.starts_with(op)))
        .collect();
    for (name, events, completion) in [("events", true, Completion::Interrupt), ("polled", false, Completion::Polling)]
    {
        let tree = Tree::new(name, events, ServerFault::Nothing);
        let place = Xdma::new(tree.folder.clone()).completion(completion);
        let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(place)]);
        let device = backend.discover().unwrap().remove(0);
        assert_eq!(device.capabilities.features, ["affine", "crc32", "fft:128x24", "viterbi:4096x1"]);
        let claimed = ours.iter().filter(|case| backend.supports(&device, &case.op).is_yes()).step_by(4).cloned();
        let summary = check_backend(&backend, &device, &claimed.collect::<Vec<_>>()).unwrap();
        assert!(summary.failed.is_empty() && summary.passed >= 20, "{name}: {summary}");
        // More data than the pipes can hold, in many packets.
        let values: Vec<i32> = (0..100_000).collect();
        let op = Affine::new(&Tensor::from_vec(values.clone(), [values.len()]).unwrap()).into_op().unwrap();
        let mut engine = backend.open(&device, &Default::default()).unwrap();
        let got = panoply_conformance::run_one(&mut *engine, op).unwrap().into_tensor().unwrap();
        assert_eq!(got.as_slice::<i32>().unwrap(), reference::affine(&values), "{name}");
    }
}

#[test]
fn a_card_that_stops_answering_is_found_out_in_time() {
    for (wrong, expected) in [
        (ServerFault::Silent, CardError::Silent { after: Duration::from_millis(150) }),
        (ServerFault::Stops, CardError::Silent { after: Duration::from_millis(150) }),
        (ServerFault::Ends, CardError::Short { expected: 808, got: 404 }),
    ] {
        for completion in [Completion::Interrupt, Completion::Polling] {
            let tree = Tree::new(&format!("{wrong:?}-{completion:?}"), true, wrong);
            let mut driver = tree.driver(completion);
            driver.set_up(CoreKind::Affine, &[]).unwrap();
            driver.start(&[3; 800], 800).unwrap();
            let began = Instant::now();
            let error = loop {
                match driver.finish(Duration::from_millis(20)) {
                    Ok(None) => assert!(began.elapsed() < Duration::from_secs(2)),
                    Ok(Some(answer)) => panic!("{answer:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, expected, "{completion:?}");
        }
    }
}

#[test]
fn a_tree_that_lacks_something_says_what() {
    let folder = std::env::temp_dir().join(format!("panoply-xdma-{}-lacks", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let discover = || FpgaBackend::of(Api::FPGA, vec![Box::new(Xdma::new(folder.clone()))]).discover();
    assert!(matches!(discover(), Err(Absence::NoDevice { reason }) if reason.contains("no xdma*_user")));
    std::fs::write(folder.join("xdma0_user"), [0; 100]).unwrap();
    assert!(matches!(discover(), Err(Absence::NoDevice { reason }) if reason.contains("xdma0_user")));
    std::fs::write(folder.join("xdma0_user"), [0; 4096]).unwrap();
    assert!(matches!(discover(), Err(Absence::NoDevice { reason }) if reason.contains("h2c_0")));
    std::fs::write(folder.join("xdma0_h2c_0"), []).unwrap();
    std::fs::write(folder.join("xdma0_c2h_0"), []).unwrap();
    assert!(matches!(discover(), Err(Absence::NoDevice { reason }) if reason.contains("not a card of Panoply's")));
    std::fs::write(folder.join("xdma0_user"), [0xff; 4096]).unwrap();
    assert!(matches!(discover(), Err(Absence::NoDevice { reason }) if reason.contains("gone from the bus")));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_card_knows_its_node_and_refuses_its_bitstream() {
    let tree = Tree::new("node", false, ServerFault::Nothing);
    let system = tree.folder.join("sys");
    let device = system.join("bus/pci/devices/0000:3b:00.0");
    std::fs::create_dir_all(&device).unwrap();
    std::fs::create_dir_all(system.join("class/xdma/xdma0_user")).unwrap();
    std::fs::write(device.join("numa_node"), "1\n").unwrap();
    std::os::unix::fs::symlink(&device, system.join("class/xdma/xdma0_user/device")).unwrap();
    let place = Xdma::new(tree.folder.clone()).completion(Completion::Polling).in_system(&system);
    let backend = FpgaBackend::of(Api::FPGA, vec![Box::new(place)]).in_system(&system);
    let info = backend.discover().unwrap().remove(0);
    assert_eq!((info.pci_address.unwrap().to_string(), info.numa_node), ("0000:3b:00.0".to_owned(), Some(1)));
    let file = tree.folder.join("card.bit");
    std::fs::write(&file, "a bitstream").unwrap();
    backend.set_bitstreams(Bitstreams::default().with("0000:3b:00.0".parse().unwrap(), file));
    let reason = backend.discover().unwrap_err().to_string();
    assert!(reason.contains("XDMA card 0") && reason.contains("JTAG"), "{reason}");
}

#[test]
fn bitstreams_are_refused_with_what_to_do_instead() {
    let tree = Tree::new("bitstream", false, ServerFault::Nothing);
    let mut card = XdmaCard::open(&tree.folder, 0, Completion::Polling).unwrap();
    let error = card.load(Path::new("some.bit")).unwrap_err();
    assert!(matches!(&error, CardError::Bitstream { reason } if reason.contains("JTAG")), "{error}");
}
