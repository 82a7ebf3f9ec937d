//! A card simulated by Verilator: the cores' own Verilog, compiled once to a library in a cache
//! folder.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libloading::Library;

use super::{Card, CardError, RING_PACKETS};
use crate::map::Register;

pub mod build;

/// Number of clocks between two checks of the time limit.
const CLOCKS_AT_A_TIME: u64 = 2_000;

/// The functions of a library that simulates cards (`sim/harness.cpp`).
pub struct Simulation {
    new: unsafe extern "C" fn() -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    read: unsafe extern "C" fn(*mut c_void, u32, *mut u32) -> i32,
    write: unsafe extern "C" fn(*mut c_void, u32, u32) -> i32,
    push: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    run: unsafe extern "C" fn(*mut c_void, usize, u64) -> usize,
    pull: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
    interrupt: unsafe extern "C" fn(*mut c_void) -> i32,
    clocks: unsafe extern "C" fn(*mut c_void) -> u64,
    stall: unsafe extern "C" fn(*mut c_void, u32),
    reset: unsafe extern "C" fn(*mut c_void),
    kill: unsafe extern "C" fn(*mut c_void),
    /// Keeps the functions loaded. Never unloaded, because C++ destructors at a thread's end may
    /// need its code.
    _library: ManuallyDrop<Library>,
}

impl Simulation {
    /// Loads a library that [`build::library`] built.
    pub fn load(path: &Path) -> Result<Arc<Simulation>, CardError> {
        let failed = |error: libloading::Error| CardError::system(path.display().to_string(), error);
        // SAFETY: the library was built from this crate's own sources, and its initialisers may
        // run.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the fields' types are those of the functions in `sim/harness.cpp`, and
                // the library outlives them.
                *unsafe { library.get($name) }.map_err(failed)?
            };
        }
        Ok(Arc::new(Simulation {
            new: function!(b"panoply_card_new\0"),
            free: function!(b"panoply_card_free\0"),
            read: function!(b"panoply_card_read\0"),
            write: function!(b"panoply_card_write\0"),
            push: function!(b"panoply_card_push\0"),
            run: function!(b"panoply_card_run\0"),
            pull: function!(b"panoply_card_pull\0"),
            interrupt: function!(b"panoply_card_interrupt\0"),
            clocks: function!(b"panoply_card_clocks\0"),
            stall: function!(b"panoply_card_stall\0"),
            reset: function!(b"panoply_card_reset\0"),
            kill: function!(b"panoply_card_kill\0"),
            _library: ManuallyDrop::new(library),
        }))
    }
}

/// One simulated card. Dropping it ends the simulation.
pub struct SimulatedCard {
    simulation: Arc<Simulation>,
    card: *mut c_void,
    /// Expected size of each answer in flight.
    ring: VecDeque<usize>,
}

impl SimulatedCard {
    /// Creates a card in its power-on state.
    pub fn new(simulation: &Arc<Simulation>) -> Result<SimulatedCard, CardError> {
        // SAFETY: the function takes no arguments and returns a card, or null if there is no
        // memory.
        let card = unsafe { (simulation.new)() };
        if card.is_null() {
            return Err(CardError::system("a simulated card", "no memory"));
        }
        Ok(SimulatedCard { simulation: simulation.clone(), card, ring: VecDeque::new() })
    }

    /// Number of clocks so far.
    pub fn clocks(&self) -> u64 {
        // SAFETY: the card lives as long as `self`, and `self` stays on one thread.
        unsafe { (self.simulation.clocks)(self.card) }
    }

    /// Makes both streams pause at random times from now on. Zero ends the pauses.
    pub fn stall(&mut self, seed: u32) {
        // SAFETY: as above.
        unsafe { (self.simulation.stall)(self.card, seed) }
    }

    /// Resets the card like its reset pin, at any point of its work. The contents of its streams
    /// are lost.
    pub fn reset(&mut self) {
        // SAFETY: as above.
        unsafe { (self.simulation.reset)(self.card) }
    }

    /// Stops the card's clock permanently.
    pub fn kill(&mut self) {
        // SAFETY: as above.
        unsafe { (self.simulation.kill)(self.card) }
    }

    /// Clocks the card until `bytes` bytes of answers are waiting, at most `clocks_max` times.
    /// Returns the number of bytes that wait.
    pub fn run(&mut self, bytes: usize, clocks_max: u64) -> usize {
        // SAFETY: as above.
        unsafe { (self.simulation.run)(self.card, bytes, clocks_max) }
    }

    /// Whether the interrupt line is active.
    pub fn interrupt(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.simulation.interrupt)(self.card) != 0 }
    }
}

impl Card for SimulatedCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        let mut value = 0;
        // SAFETY: as above. The call writes `value` before it returns.
        match unsafe { (self.simulation.read)(self.card, register.offset, &mut value) } {
            0 => Ok(value),
            _ => Err(CardError::Gone),
        }
    }

    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError> {
        // SAFETY: as above.
        match unsafe { (self.simulation.write)(self.card, register.offset, value) } {
            0 => Ok(()),
            _ => Err(CardError::Gone),
        }
    }

    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError> {
        if self.ring.len() >= RING_PACKETS {
            return Err(CardError::RingFull);
        }
        // SAFETY: as above. The call copies the bytes before it returns.
        unsafe { (self.simulation.push)(self.card, packet.as_ptr(), packet.len()) };
        self.ring.push_back(answer_bytes);
        Ok(())
    }

    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError> {
        let Some(bytes) = self.ring.front().copied() else { return Ok(None) };
        let began = Instant::now();
        while self.run(bytes, CLOCKS_AT_A_TIME) < bytes {
            if began.elapsed() >= wait_max {
                return Ok(None);
            }
        }
        self.ring.pop_front();
        let mut answer = vec![0; bytes];
        // SAFETY: as above. The buffer has `bytes` bytes.
        let got = unsafe { (self.simulation.pull)(self.card, answer.as_mut_ptr(), bytes) };
        if got == bytes { Ok(Some(answer)) } else { Err(CardError::Short { expected: bytes, got }) }
    }

    fn load(&mut self, _bitstream: &Path) -> Result<(), CardError> {
        Err(CardError::Bitstream { reason: "a simulated card is its Verilog, and takes none".to_owned() })
    }

    /// A simulation runs less than a million clocks per second.
    fn silence_max(&self) -> Duration {
        Duration::from_secs(10)
    }
}

impl Drop for SimulatedCard {
    fn drop(&mut self) {
        // SAFETY: `new` created the card, and it is not used again.
        unsafe { (self.simulation.free)(self.card) }
    }
}
