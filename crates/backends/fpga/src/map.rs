//! The only description of a card's contents: the register map, the cores, their parameters and
//! their latencies.
//!
//! The driver uses the constants here. `tests/generated.rs` generates `rtl/generated.vh`,
//! `rtl/twiddles.vh` and the tables of `docs/fpga.md` from the same lists, and fails if these files
//! are out of date.

/// How a driver may access a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Write only.
    Write,
    /// Read and write.
    ReadWrite,
}

/// A 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The register's name.
    pub name: &'static str,
    /// The offset in bytes.
    pub offset: u32,
    /// The permitted access.
    pub access: Access,
    /// The meaning of the register's contents.
    pub meaning: &'static str,
}

macro_rules! registers {
    ($($name:ident $offset:literal $access:ident $meaning:literal;)*) => {
        $(#[doc = $meaning]
        pub const $name: Register =
            Register { name: stringify!($name), offset: $offset, access: Access::$access, meaning: $meaning };)*

        /// Every register, in the order of the map.
        pub const REGISTERS: &[Register] = &[$($name),*];
    };
}

registers! {
    IDENT 0x00 Read "`0x504e4650`: this is a card of Panoply's";
    VERSION 0x04 Read "the map's version: major in the upper, minor in the lower half";
    CORES 0x08 Read "which cores are there: a bit for each kind";
    SESSION 0x0c ReadWrite "the driver's own number; zero after every reset";
    CONTROL 0x10 ReadWrite "bits 0 to 3: the chosen core; bit 8: reset, while set; bit 9: interrupts";
    STATUS 0x14 Read "bit 0: a packet is under way; bit 1: an answer waits; bit 2: a header was wrong";
    PACKETS_IN 0x18 Read "packets begun since the reset";
    PACKETS_OUT 0x1c Read "packets answered since the reset";
    BEATS_IN 0x20 Read "beats taken since the reset";
    BEATS_OUT 0x24 Read "beats given since the reset";
    CYCLES 0x28 Read "clocks since power came on, the lower 32 bits";
    ANSWERS 0x2c Read "answers begun since the reset";
    ACKNOWLEDGED 0x30 ReadWrite "answers that the driver knows of; an interrupt is due while it differs from ANSWERS";
    FIR_TAPS 0x40 Read "taps of the filter";
    FIR_WIDTH 0x44 Read "bits of its samples and taps";
    FIR_TAP_INDEX 0x48 ReadWrite "the tap that is written next";
    FIR_TAP_VALUE 0x4c Write "its value; the index goes on by one";
    FFT_SIZE 0x60 Read "samples of a transform";
    FFT_WIDTH 0x64 Read "bits of each part of its samples";
    VITERBI_STEPS_MAX 0x80 Read "the most steps of a frame";
    VITERBI_CODE 0x84 ReadWrite "bits 0 to 6 and 8 to 14: the polynomials; bit 16: any first state; bit 17: the likeliest last state";
}

macro_rules! values {
    ($($name:ident $value:literal $bits:literal $meaning:literal;)*) => {
        $(#[doc = $meaning]
        pub const $name: u32 = $value;)*

        /// Values that the driver and the cores agree on: name, value, bits and meaning.
        pub const VALUES: &[(&str, u32, u32, &str)] = &[$((stringify!($name), $name, $bits, $meaning)),*];
    };
}

/// The parameters of this build's cores. Some have the same names as registers.
pub mod build {
    macro_rules! parameters {
        ($($name:ident $value:literal $meaning:literal;)*) => {
            $(#[doc = $meaning]
            pub const $name: u32 = $value;)*

            /// The parameters: name, value and meaning.
            pub const PARAMETERS: &[(&str, u32, &str)] = &[$((stringify!($name), $name, $meaning)),*];
        };
    }

    parameters! {
        FIR_TAPS 64 "taps of the filter";
        FIR_WIDTH 24 "bits of the filter's samples and taps";
        FFT_SIZE 128 "samples of a transform: a power of two from 4 to 128";
        FFT_WIDTH 24 "bits of each part of the transform's samples";
        VITERBI_STEPS_MAX 4096 "steps of the longest frame: a power of two from 128 on";
    }
}

values! {
    IDENT_VALUE 0x504e_4650 32 "what IDENT reads";
    VERSION_VALUE 0x0001_0000 32 "what VERSION reads";
    PACKET_MAGIC 0x5051 16 "the upper 16 bits of a packet's header";
    ANSWER_MAGIC 0x5041 16 "the upper 16 bits of an answer's header";
    CONTROL_RESET_BIT 8 4 "CONTROL: reset";
    CONTROL_INTERRUPT_BIT 9 4 "CONTROL: interrupts";
    TWIDDLE_FRACTION 23 8 "bits of a twiddle behind the point";
    TWIDDLE_WIDTH 25 8 "bits of a twiddle in all";
}

/// STATUS: a packet's header was wrong. Only a reset recovers.
pub const STATUS_BROKEN: u32 = 1 << 2;
/// VITERBI_CODE: paths may begin in any state.
pub const VITERBI_ANY_START: u32 = 1 << 16;
/// VITERBI_CODE: paths end in the likeliest state, not in state 0.
pub const VITERBI_BEST_END: u32 = 1 << 17;
/// Size of one beat of the stream.
pub const BEAT_BYTES: usize = 8;

/// A kind of core. The number is the core's bit in CORES, and its selection in CONTROL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CoreKind {
    /// `y = 2x + 1`.
    Affine = 0,
    /// CRC-32.
    Crc32 = 1,
    /// A finite impulse response filter.
    Fir = 2,
    /// A Fourier transform.
    Fft = 3,
    /// A Viterbi decoder of convolutional codes.
    Viterbi = 4,
}

impl CoreKind {
    /// All kinds, ordered by number.
    pub const ALL: [CoreKind; 5] = [CoreKind::Affine, CoreKind::Crc32, CoreKind::Fir, CoreKind::Fft, CoreKind::Viterbi];

    /// The name in features, tables and Verilog.
    pub const fn name(self) -> &'static str {
        match self {
            CoreKind::Affine => "affine",
            CoreKind::Crc32 => "crc32",
            CoreKind::Fir => "fir",
            CoreKind::Fft => "fft",
            CoreKind::Viterbi => "viterbi",
        }
    }

    /// Clocks from the first beat of a packet to the first beat of its answer, if the streams never
    /// stall: a fixed number, and a number for each beat or step. The numbers follow from the
    /// Verilog, and a test verifies them.
    pub const fn latency(self) -> Latency {
        match self {
            CoreKind::Affine => Latency { fixed: 1, each: 0, unit: "" },
            CoreKind::Crc32 => Latency { fixed: 1, each: 1, unit: "beat" },
            CoreKind::Fir => Latency { fixed: 3, each: 0, unit: "" },
            CoreKind::Fft => Latency { fixed: 2 * build::FFT_SIZE + 3 * build::FFT_SIZE.ilog2(), each: 0, unit: "" },
            CoreKind::Viterbi => Latency { fixed: 67, each: 2, unit: "step" },
        }
    }
}

/// The time until a core begins its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Fixed number of clocks per packet.
    pub fixed: u32,
    /// Clocks per unit of the packet.
    pub each: u32,
    /// The unit: none, beats or steps.
    pub unit: &'static str,
}

impl Latency {
    /// Clocks for a packet of `units` units.
    pub const fn clocks(self, units: u32) -> u32 {
        self.fixed + self.each * units
    }
}

/// `exp(-2πi·k/size)` as integers with [`TWIDDLE_FRACTION`] fraction bits.
pub fn twiddle(k: usize, size: usize) -> (i64, i64) {
    let (sine, cosine) = (-std::f64::consts::TAU * k as f64 / size as f64).sin_cos();
    let scale = f64::from(1_u32 << TWIDDLE_FRACTION);
    ((cosine * scale).round() as i64, (sine * scale).round() as i64)
}

/// Advances the CRC-32 by `count` bytes. The lowest 32 bits of `sum_and_bytes` are the previous
/// sum. The bytes follow, the first in the lowest bits.
pub fn crc32_next(sum_and_bytes: u128, count: u32) -> u32 {
    let mut sum = sum_and_bytes as u32;
    for at in 0..count {
        sum ^= (sum_and_bytes >> (32 + 8 * at)) as u32 & 0xff;
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    sum
}
