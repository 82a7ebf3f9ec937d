//! The C dialect: C99 plus the macros of `prelude.h`. It is compiled by NVRTC for CUDA, by hiprtc
//! for HIP, by the drivers of OpenCL, and by a C++ compiler for the host, which runs the same
//! kernels block by block in tests. The macro `WARP` is the width of a warp: 32, 64, or 1. Kernels
//! use only features of OpenCL C (no templates, no headers, explicit address spaces, shared memory
//! declared only in kernels). Another API thus needs another header beside the prelude, not another
//! set of files.
//!
//! A [`Unit`] is one file of kernels. A [`Kernel`] names one entry of a unit with its parameters;
//! [`Kernel::source`] is the complete text for a compiler. A kernel is cheap to build and to hash,
//! and a backend finds the compiled kernel without an allocation.

use std::borrow::Cow;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use panoply_core::DType;
use panoply_core::op::compute::{Activation, KernelProgram};

pub mod generate;
pub mod interpret;
mod opencl;
mod program;
pub mod row_map;

pub use program::CHECKED;

/// The macros that make one text compile for every target.
pub const PRELUDE: &str = include_str!("prelude.h");
/// The header for CUDA.
const CUDA: &str = include_str!("cuda.h");
/// The prefix of entry names in OpenCL programs, where some names are built-in functions.
pub const OPENCL_ENTRY_PREFIX: &str = "panoply_entry_";
/// The header for HIP.
const HIP: &str = include_str!("hip.h");
/// The header for OpenCL.
const OPENCL: &str = include_str!("opencl.h");
/// The header for the host: threads of a block as fibres, for tests without a GPU.
const HOST: &str = concat!(include_str!("emulation.h"), include_str!("host.h"));
/// Threads of a block as fibres without the macros of a dialect, for tests of other dialects.
pub const EMULATION: &str = include_str!("emulation.h");

/// The most parameters of one kernel.
const PARAMETERS_MAX: usize = 18;

/// The compiler of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// NVRTC.
    Cuda,
    /// hiprtc, for AMD's GPUs.
    Hip,
    /// A C++ compiler for the host; blocks run one after the other.
    Host,
    /// The compiler of an OpenCL driver. The driver passes macros that describe the device; see
    /// `opencl.h`.
    OpenCl,
}

/// The target of a kernel's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelTarget {
    /// The compiler.
    pub dialect: Dialect,
    /// Lanes of a warp: 32 or 64, or 1 if threads cannot exchange values. The text sees it as
    /// `WARP`.
    pub warp_lanes: u32,
}

impl KernelTarget {
    /// NVIDIA's GPUs.
    pub const CUDA: KernelTarget = KernelTarget { dialect: Dialect::Cuda, warp_lanes: 32 };
}

/// One file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The file's name, without its extension.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Declares a unit per file of this folder. A unit may include headers, which precede its own text.
macro_rules! units {
    ($($(#[$doc:meta])* $name:ident = $file:literal $(on $($header:literal),*)?;)*) => {
        $(
            $(#[$doc])*
            pub const $name: Unit = Unit {
                name: $file,
                text: concat!($($(include_str!($header),)*)? include_str!(concat!($file, ".c"))),
            };
        )*
        /// Every unit.
        pub const UNITS: &[Unit] = &[$($name),*];
    };
}

units! {
    /// Products of matrices.
    MATMUL = "matmul" on "matmul_finish.h";
    /// Products of f32 matrices, at the full rate of the multipliers.
    MATMUL_TILES = "matmul_tiles" on "matmul_finish.h";
    /// Products of 16-bit floats on matrix units.
    MATMUL_UNITS = "matmul_units" on "matmul_finish.h";
    /// Products of floats with few rows or few columns.
    MATMUL_THIN = "matmul_thin" on "matmul_finish.h";
    /// Copies between layouts.
    STRIDED = "strided" on "walk.h";
    /// Elementwise expressions that are too long to compile.
    INTERPRET = "interpret" on "elementwise.h";
    /// Reductions along axes.
    REDUCE = "reduce" on "walk.h", "accumulate.h";
    /// Prefix sums and related scans.
    SCAN = "scan" on "walk.h";
    /// Softmax along an axis.
    SOFTMAX = "softmax" on "rows.h";
    /// Elements or rows selected by index.
    GATHER = "gather";
    /// Images scaled and shifted channel by channel.
    NORMALIZE = "normalize";
    /// Layer normalisation.
    LAYERNORM = "layernorm" on "rows.h";
    /// Colour conversions of images.
    COLOR = "color";
    /// Convolutions and their gradients.
    CONV = "conv";
    /// Fourier transforms.
    FFT = "fft";
    /// Fourier transforms of long lines.
    FFT_TILES = "fft_tiles";
    /// Maxima and averages of windows.
    POOL = "pool";
    /// Resized images.
    RESIZE = "resize";
    /// Sort, argsort and sort by key.
    SORT = "sort";
    /// Round keys of AES.
    AES_EXPAND = "aes_expand" on "aes.h";
    /// AES in counter mode.
    AES_COUNTER = "aes_counter" on "messages.h", "aes.h";
    /// AES with chained blocks.
    AES_CHAIN = "aes_chain" on "messages.h", "aes.h";
    /// The tags of GCM.
    GCM = "gcm" on "messages.h";
    /// ChaCha20.
    CHACHA = "chacha" on "messages.h", "chacha.h";
    /// The tags of ChaCha20-Poly1305.
    POLY1305 = "poly1305" on "messages.h", "chacha.h";
    /// SHA-2 and HMAC-SHA-2.
    SHA = "sha" on "messages.h", "sha2.h";
    /// Signatures of Ed25519, verified.
    ED25519 = "ed25519" on "messages.h", "sha2.h", "ed25519.h";
    /// The same, made.
    ED25519_SIGN = "ed25519_sign" on "messages.h", "sha2.h", "ed25519.h";
    /// Multiples for both.
    ED25519_TABLES = "ed25519_tables" on "messages.h", "sha2.h", "ed25519.h";
    /// Signatures of ECDSA over P-256 and P-384, verified.
    ECDSA = "ecdsa" on "messages.h", "sha2.h", "ecdsa.h";
    /// The same, made.
    ECDSA_SIGN = "ecdsa_sign" on "messages.h", "sha2.h", "ecdsa.h";
    /// Multiples for both.
    ECDSA_TABLES = "ecdsa_tables" on "messages.h", "sha2.h", "ecdsa.h";
    /// Signatures of RSA.
    RSA = "rsa" on "messages.h", "sha2.h";
    /// Streams of DEFLATE.
    INFLATE = "inflate" on "messages.h";
    /// Blocks of LZ4.
    LZ4 = "lz4" on "messages.h";
    /// Finite impulse response (FIR) filters.
    FIR = "fir";
    /// Long FIR filters, by multiplication of spectra.
    FIR_SPECTRA = "fir_spectra";
    /// Frames of signals, before and after transforms.
    FRAMES = "frames";
    /// Cosine transforms, as steps before and after Fourier transforms.
    DCT = "dct";
    /// Convolutions of planes.
    CONVOLVE = "convolve";
    /// Peaks of lines and planes.
    PEAKS = "peaks";
    /// Recursive (IIR) filters.
    IIR = "iir";
    /// Mapping between symbols and constellation points.
    MODEM = "modem";
    /// Cyclic redundancy checks.
    CRC = "crc" on "messages.h";
    /// Reed–Solomon and erasure codes.
    GALOIS = "galois";
    /// The Viterbi decoder.
    VITERBI = "viterbi";
    /// Low-density parity-check (LDPC) codes.
    LDPC = "ldpc";
    /// Rows padded with zeros, for search.
    SEARCH_PACK = "search_pack";
}

/// Attention in plain arithmetic.
pub const ATTENTION: Unit =
    Unit { name: "attention", text: concat!(include_str!("attention.h"), include_str!("attention.c")) };
/// Attention with tiles multiplied by one warp.
pub const ATTENTION_TILES: Unit = Unit {
    name: "attention_tiles",
    text: concat!(include_str!("attention.h"), include_str!("attention_soften.h"), include_str!("attention_tiles.c")),
};
/// Attention with tiles multiplied by four warps together.
pub const ATTENTION_GROUPS: Unit = Unit {
    name: "attention_groups",
    text: concat!(
        include_str!("attention.h"),
        include_str!("group_multiply.h"),
        include_str!("attention_soften.h"),
        include_str!("attention_groups.c")
    ),
};

/// Attention of f32 with tiles multiplied by four warps together.
pub const ATTENTION_SPLIT: Unit = Unit {
    name: "attention_split",
    text: concat!(
        include_str!("attention.h"),
        include_str!("group_multiply.h"),
        include_str!("attention_soften.h"),
        include_str!("attention_split.c")
    ),
};

/// Search with few queries: scores and selection of the nearest in one pass.
pub const SEARCH_FEW: Unit = Unit {
    name: "search_few",
    text: concat!(
        include_str!("search_keys.h"),
        include_str!("search_score.h"),
        include_str!("sorted_keys.h"),
        include_str!("nearest_keys.h"),
        include_str!("search_few.c")
    ),
};

/// Search for devices whose threads cannot exchange values.
pub const SEARCH_HEAPS: Unit = Unit {
    name: "search_heaps",
    text: concat!(
        include_str!("search_keys.h"),
        include_str!("search_score.h"),
        include_str!("sorted_keys.h"),
        include_str!("heaps.h"),
        include_str!("search_heaps.c")
    ),
};

/// Search with many queries: the precomputation on queries.
pub const SEARCH_MEASURE: Unit = Unit {
    name: "search_measure",
    text: concat!(include_str!("search_keys.h"), include_str!("search_score.h"), include_str!("search_measure.c")),
};
/// Search with many queries: candidates computed on matrix units.
pub const SEARCH_MANY: Unit = Unit {
    name: "search_many",
    text: concat!(
        include_str!("search_keys.h"),
        include_str!("search_score.h"),
        include_str!("search_bounds.h"),
        include_str!("group_multiply.h"),
        include_str!("search_choose.h"),
        include_str!("search_many.c")
    ),
};
/// Search with many queries: selection of the nearest candidates.
pub const SEARCH_SELECT: Unit = Unit {
    name: "search_select",
    text: concat!(include_str!("search_keys.h"), include_str!("sorted_keys.h"), include_str!("search_select.c")),
};

/// The largest or smallest elements along an axis.
pub const TOPK: Unit = Unit {
    name: "topk",
    text: concat!(include_str!("sorted_keys.h"), include_str!("nearest_keys.h"), include_str!("topk.c")),
};
/// [`TOPK`] for devices whose threads cannot exchange values, with the flag `HEAPS`.
pub const TOPK_HEAPS: Unit = Unit {
    name: "topk_heaps",
    text: concat!(include_str!("sorted_keys.h"), include_str!("heaps.h"), include_str!("topk.c")),
};

/// The number of an activation in kernels.
pub const fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::Silu => 3,
        Activation::Sigmoid => 4,
        _ => 5,
    }
}

/// A kernel: an entry of a unit, with its parameters.
#[derive(Clone, Debug)]
pub struct Kernel {
    text: Text,
    entry: &'static str,
    parameters: [(&'static str, Parameter); PARAMETERS_MAX],
    count: usize,
}

#[derive(Clone, Debug)]
enum Text {
    Unit(Unit),
    /// Generated text, its name, and its hash, so that finding the compiled kernel does not read
    /// the text.
    Generated(Arc<str>, &'static str, u64),
    /// A custom kernel of the caller.
    Program(Arc<KernelProgram>),
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Parameter {
    /// An element type; see [`Kernel::dtype`].
    DType(DType),
    /// An integer.
    Integer(i64),
    /// A name defined in the prelude or in the unit.
    Word(&'static str),
}

impl Kernel {
    /// An entry of a unit.
    pub fn new(unit: Unit, entry: &'static str) -> Kernel {
        Kernel::of(Text::Unit(unit), entry)
    }

    /// An entry of generated text. `name` is for messages.
    pub fn generated(name: &'static str, text: Arc<str>, entry: &'static str) -> Kernel {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Kernel::of(Text::Generated(text, name, hasher.finish()), entry)
    }

    /// The C form of a custom kernel. If the program has no C form, the text is empty and lacks its
    /// entry.
    pub fn of_program(program: &Arc<KernelProgram>) -> Kernel {
        Kernel::of(Text::Program(Arc::clone(program)), "")
    }

    /// The custom kernel's program. `None` for other kernels.
    pub fn program(&self) -> Option<&KernelProgram> {
        match &self.text {
            Text::Program(program) => Some(program),
            _ => None,
        }
    }

    /// The name of the entry function.
    pub fn entry(&self) -> &str {
        match self.program() {
            Some(program) => program.c().map_or("", |source| &source.entry),
            None => self.entry,
        }
    }

    fn of(text: Text, entry: &'static str) -> Kernel {
        Kernel { text, entry, parameters: [("", Parameter::Integer(0)); PARAMETERS_MAX], count: 0 }
    }

    /// Adds an element type as a parameter. For the name `T` the text sees `T` (the storage type),
    /// `T_ACC` (the type of computations), `T_LOAD(x)` and `T_STORE(x)` (the conversions between
    /// them), `T_BYTES`, and a macro like `T_IS_f16` as 1.
    pub fn dtype(self, name: &'static str, dtype: DType) -> Kernel {
        self.with(name, Parameter::DType(dtype))
    }

    /// Adds an integer as a parameter.
    pub fn integer(self, name: &'static str, value: impl TryInto<i64>) -> Kernel {
        self.with(name, Parameter::Integer(value.try_into().unwrap_or(i64::MAX)))
    }

    /// Adds 1 or 0 as a parameter.
    pub fn flag(self, name: &'static str, value: bool) -> Kernel {
        self.integer(name, i64::from(value))
    }

    /// Adds a name known to the text as a parameter.
    pub fn word(self, name: &'static str, value: &'static str) -> Kernel {
        self.with(name, Parameter::Word(value))
    }

    /// Adds a parameter. More than [`PARAMETERS_MAX`] is a bug in this workspace, and the first
    /// test of that kernel finds it: the text then lacks a macro and does not compile.
    fn with(mut self, name: &'static str, value: Parameter) -> Kernel {
        if let Some(place) = self.parameters.get_mut(self.count) {
            *place = (name, value);
            self.count += 1;
        }
        self
    }

    /// The name for messages: the unit's and the entry's.
    pub fn name(&self) -> String {
        let unit = match &self.text {
            Text::Unit(unit) => unit.name,
            Text::Generated(_, name, _) => name,
            Text::Program(program) => program.name(),
        };
        format!("{unit}/{}", self.entry())
    }

    /// The complete text for a compiler.
    pub fn source(&self, target: KernelTarget) -> String {
        let KernelTarget { dialect, warp_lanes } = target;
        let mut text = String::new();
        if self.program().is_some() && dialect == Dialect::Host {
            text.push_str(CHECKED);
        }
        let (compiler, own_words) = match dialect {
            Dialect::Cuda => ("PANOPLY_CUDA", CUDA),
            Dialect::Hip => ("PANOPLY_HIP", HIP),
            Dialect::Host => ("PANOPLY_HOST", HOST),
            Dialect::OpenCl => ("PANOPLY_OPENCL", OPENCL),
        };
        // Writing into a string does not fail.
        let _ = writeln!(text, "#define {compiler} 1\n#define WARP {warp_lanes}");
        for (name, value) in &self.parameters[..self.count] {
            let _ = match value {
                Parameter::DType(dtype) => write_dtype(&mut text, name, *dtype),
                Parameter::Integer(value) => writeln!(text, "#define {name} {value}"),
                Parameter::Word(word) => writeln!(text, "#define {name} {word}"),
            };
        }
        text.push_str(own_words);
        text.push_str(PRELUDE);
        let own = match &self.text {
            Text::Unit(unit) => Cow::Borrowed(unit.text),
            Text::Generated(generated, ..) => Cow::Borrowed(&**generated),
            Text::Program(own) => Cow::Owned(program::text(own, dialect)),
        };
        match dialect {
            Dialect::OpenCl => text.push_str(&opencl::with_plain_parameters(&own)),
            _ => text.push_str(&own),
        }
        if dialect == Dialect::Host {
            let _ = writeln!(text, "\nPANOPLY_HOST_ENTRY({})", self.entry());
        }
        text
    }
}

/// The storage type of an element.
fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 | DType::BF16 => "u16",
        DType::F64 => "f64",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::I8 => "i8",
        DType::U8 => "u8",
        DType::Complex64 => "complex64",
    }
}

/// The macros of one element type.
fn write_dtype(text: &mut String, name: &str, dtype: DType) -> std::fmt::Result {
    let (computed, load, store) = match dtype {
        DType::F16 => ("f32", "f16_to_f32", "f32_to_f16"),
        DType::BF16 => ("f32", "bf16_to_f32", "f32_to_bf16"),
        DType::I8 => ("i32", "(i32)", "(i8)"),
        DType::U8 => ("u32", "(u32)", "(u8)"),
        same => (stored(same), "", ""),
    };
    writeln!(text, "#define {name} {}", stored(dtype))?;
    writeln!(text, "#define {name}_ACC {computed}")?;
    writeln!(text, "#define {name}_LOAD(x) {load}(x)")?;
    writeln!(text, "#define {name}_STORE(x) {store}(x)")?;
    writeln!(text, "#define {name}_BYTES {}", dtype.size_bytes())?;
    writeln!(text, "#define {name}_IS_{} 1", dtype.name())
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        let same_text = match (&self.text, &other.text) {
            (Text::Unit(a), Text::Unit(b)) => a.name == b.name,
            (Text::Generated(a, ..), Text::Generated(b, ..)) => Arc::ptr_eq(a, b) || a == b,
            (Text::Program(a), Text::Program(b)) => Arc::ptr_eq(a, b) || (a.hash(), a.c()) == (b.hash(), b.c()),
            _ => false,
        };
        same_text && self.entry == other.entry && self.parameters[..self.count] == other.parameters[..other.count]
    }
}

impl Eq for Kernel {}

impl Hash for Kernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.text {
            Text::Unit(unit) => unit.name.hash(state),
            Text::Generated(_, _, hash) => hash.hash(state),
            Text::Program(program) => program.hash().hash(state),
        }
        self.entry.hash(state);
        self.parameters[..self.count].hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a kernel would fail to compile with OpenCL only.
    #[test]
    fn no_unit_has_a_keyword_of_opencl_as_a_name() {
        let keywords = ["constant", "global", "local", "private", "kernel", "pipe"];
        for unit in UNITS {
            for (number, line) in unit.text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or("");
                let mut words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                assert!(!words.any(|word| keywords.contains(&word)), "{}, line {}: {line}", unit.name, number + 1);
            }
        }
    }

    #[test]
    fn parameters_become_macros() {
        let kernel = Kernel::new(STRIDED, "copy_view").dtype("T", DType::BF16).integer("BLOCK", 256).flag("WIDE", true);
        let source = kernel.source(KernelTarget::CUDA);
        for line in [
            "#define PANOPLY_CUDA 1",
            "#define WARP 32",
            "#define T u16",
            "#define T_LOAD(x) bf16_to_f32(x)",
            "#define BLOCK 256",
        ] {
            assert!(source.contains(line), "{line}");
        }
        assert!(source.contains("#define T_IS_bf16 1"));
        assert_eq!(kernel, kernel.clone());
        assert_ne!(kernel, kernel.clone().flag("MORE", true));
    }
}
