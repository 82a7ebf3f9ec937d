//! The card as Verilator simulates it: the cores' own Verilog, compiled to a library once and kept in a cache folder.

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

/// Clocks between two looks at the time.
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
    /// Keeps the functions where they are. It is never unloaded: what C++ leaves to a thread's end must find its code.
    _library: ManuallyDrop<Library>,
}

impl Simulation {
    /// Loads a library that [`build::library`] made.
    pub fn load(path: &Path) -> Result<Arc<Simulation>, CardError> {
        let failed = |error: libloading::Error| CardError::system(path.display().to_string(), error);
        // SAFETY: the library is the one that was built from this crate's own sources, and running its initialisers is its purpose.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the fields' types are those of the functions in `sim/harness.cpp`, and the library outlives them.
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

/// One simulated card. Dropping it ends it.
pub struct SimulatedCard {
    simulation: Arc<Simulation>,
    card: *mut c_void,
    /// Bytes of each answer under way.
    ring: VecDeque<usize>,
}

impl SimulatedCard {
    /// A card that has just been switched on.
    pub fn new(simulation: &Arc<Simulation>) -> Result<SimulatedCard, CardError> {
        // SAFETY: the function takes nothing and gives a card, or null where there is no memory.
        let card = unsafe { (simulation.new)() };
        if card.is_null() {
            return Err(CardError::system("a simulated card", "no memory"));
        }
        Ok(SimulatedCard { simulation: simulation.clone(), card, ring: VecDeque::new() })
    }

    /// Clocks so far.
    pub fn clocks(&self) -> u64 {
        // SAFETY: the card lives as long as `self`, and `self` is on one thread.
        unsafe { (self.simulation.clocks)(self.card) }
    }

    /// Has both streams pause at random from now on, or with zero no more.
    pub fn stall(&mut self, seed: u32) {
        // SAFETY: as above.
        unsafe { (self.simulation.stall)(self.card, seed) }
    }

    /// Resets the card as its reset pin does, in the middle of whatever it does. What its streams hold is lost.
    pub fn reset(&mut self) {
        // SAFETY: as above.
        unsafe { (self.simulation.reset)(self.card) }
    }

    /// Stops the card's clock for good.
    pub fn kill(&mut self) {
        // SAFETY: as above.
        unsafe { (self.simulation.kill)(self.card) }
    }

    /// Turns the clock until so many bytes of answers wait, at most so often; gives the bytes that wait.
    pub fn run(&mut self, bytes: usize, clocks_max: u64) -> usize {
        // SAFETY: as above.
        unsafe { (self.simulation.run)(self.card, bytes, clocks_max) }
    }

    /// Whether the interrupt line is raised.
    pub fn interrupt(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.simulation.interrupt)(self.card) != 0 }
    }
}

impl Card for SimulatedCard {
    fn read(&mut self, register: Register) -> Result<u32, CardError> {
        let mut value = 0;
        // SAFETY: as above; `value` is written before the call returns.
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
        // SAFETY: as above; the bytes are copied before the call returns.
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
        // SAFETY: as above; the answer has room for as many bytes as are asked for.
        let got = unsafe { (self.simulation.pull)(self.card, answer.as_mut_ptr(), bytes) };
        if got == bytes { Ok(Some(answer)) } else { Err(CardError::Short { expected: bytes, got }) }
    }

    fn load(&mut self, _bitstream: &Path) -> Result<(), CardError> {
        Err(CardError::Bitstream { reason: "a simulated card is its Verilog, and takes none".to_owned() })
    }

    /// A simulation makes less than a million clocks a second.
    fn silence_max(&self) -> Duration {
        Duration::from_secs(10)
    }
}

impl Drop for SimulatedCard {
    fn drop(&mut self) {
        // SAFETY: the card came from `new`, and nobody uses it any more.
        unsafe { (self.simulation.free)(self.card) }
    }
}
