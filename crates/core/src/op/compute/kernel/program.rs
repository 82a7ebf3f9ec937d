//! The parts of a kernel that are written once: its parameters, and a form for each kind of device
//! that will run it.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Kernel, KernelCall};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The most bytes of a source.
pub const KERNEL_SOURCE_BYTES_MAX: usize = 1 << 20;
/// The most parameters of a program, of all kinds together.
pub const KERNEL_PARAMETERS_MAX: usize = 48;
/// The most bytes of the name of a program, an entry or a parameter.
pub const KERNEL_NAME_BYTES_MAX: usize = 64;

type Body = dyn Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync;
type Turn = dyn Fn(&Kernel, &[usize]) -> Option<Kernel> + Send + Sync;

/// A kernel's parameters and its forms: C, WGSL, a closure. A program is checked when it is built,
/// and shared by all its calls.
pub struct KernelProgram {
    name: Arc<str>,
    inputs: Vec<(Arc<str>, DType)>,
    outputs: Vec<KernelOutput>,
    scalars: Vec<(Arc<str>, ScalarType)>,
    c: Option<KernelSource>,
    wgsl: Option<KernelSource>,
    body: Option<Box<Body>>,
    pieces: Option<usize>,
    /// For each input the number of elements in a row, if the closure reads rows with gaps between
    /// them.
    rows: Vec<usize>,
    writes_all: bool,
    turn: Option<Box<Turn>>,
    hash: u64,
    /// An id that is unique in this process.
    id: u64,
}

/// The text of one form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// The caller's text.
    pub text: Arc<str>,
    /// The name of the function to start.
    pub entry: Arc<str>,
}

/// An output of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelOutput {
    /// Name.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Whether WGSL sees the elements as atomics. (In C every pointer can be used atomically.)
    pub atomic: bool,
}

impl KernelProgram {
    /// The name in messages: that of the caller, or else the entry of the first form.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The input tensors.
    pub fn inputs(&self) -> &[(Arc<str>, DType)] {
        &self.inputs
    }

    /// The output tensors.
    pub fn outputs(&self) -> &[KernelOutput] {
        &self.outputs
    }

    /// The scalar parameters.
    pub fn scalars(&self) -> &[(Arc<str>, ScalarType)] {
        &self.scalars
    }

    /// The form for devices that run the C dialect.
    pub fn c(&self) -> Option<&KernelSource> {
        self.c.as_ref()
    }

    /// The form for devices that run WGSL.
    pub fn wgsl(&self) -> Option<&KernelSource> {
        self.wgsl.as_ref()
    }

    /// Whether the program has a form for the CPU.
    pub fn runs_on_cpu(&self) -> bool {
        self.body.is_some()
    }

    /// Number of pieces into which the closure divides its output, if it does.
    pub fn pieces(&self) -> Option<usize> {
        self.pieces
    }

    /// Number of elements in a row of an input, if the closure reads the input with
    /// [`KernelCall::rows`].
    pub fn row_len(&self, input: usize) -> Option<usize> {
        self.rows.get(input).copied()
    }

    /// Whether all forms, including the closure, write every element of every output, so that the
    /// outputs need not be zeroed first.
    pub fn writes_all(&self) -> bool {
        self.writes_all
    }

    /// A hash of everything but the closure. Programs with equal hashes are assumed to have equal
    /// cost.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn body(&self) -> Option<&Body> {
        self.body.as_deref()
    }

    pub(super) fn turn(&self) -> Option<&Turn> {
        self.turn.as_deref()
    }
}

impl fmt::Debug for KernelProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms = [("c", self.c.is_some()), ("wgsl", self.wgsl.is_some()), ("cpu", self.body.is_some())];
        let forms: Vec<&str> = forms.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        // Graphs treat ops with equal debug text as equal, so the id distinguishes programs of one
        // name.
        write!(f, "KernelProgram({} #{} for {})", self.name, self.id, forms.join(", "))
    }
}

/// A program under construction.
#[must_use = "a program is made by `build`"]
pub struct KernelBuilder {
    program: KernelProgram,
}

impl KernelBuilder {
    pub(super) fn new(name: &str) -> KernelBuilder {
        let (inputs, outputs, scalars) = (Vec::new(), Vec::new(), Vec::new());
        let (c, wgsl, body, pieces, hash, id) = (None, None, None, None, 0, 0);
        let (name, rows, writes_all, turn) = (name.into(), Vec::new(), false, None);
        let program =
            KernelProgram { name, inputs, outputs, scalars, c, wgsl, body, pieces, rows, writes_all, turn, hash, id };
        KernelBuilder { program }
    }

    /// Sets the name in messages.
    pub fn named(mut self, name: &str) -> KernelBuilder {
        self.program.name = name.into();
        self
    }

    /// Adds an input tensor.
    pub fn input(mut self, name: &str, dtype: DType) -> KernelBuilder {
        self.program.inputs.push((name.into(), dtype));
        self
    }

    /// Adds an output tensor.
    pub fn output(self, name: &str, dtype: DType) -> KernelBuilder {
        self.writes(name, dtype, false)
    }

    /// Adds an output tensor, of i32 or u32, whose elements are atomics in WGSL.
    pub fn atomic_output(self, name: &str, dtype: DType) -> KernelBuilder {
        self.writes(name, dtype, true)
    }

    fn writes(mut self, name: &str, dtype: DType, atomic: bool) -> KernelBuilder {
        self.program.outputs.push(KernelOutput { name: name.into(), dtype, atomic });
        self
    }

    /// Adds a scalar.
    pub fn scalar(mut self, name: &str, kind: ScalarType) -> KernelBuilder {
        self.program.scalars.push((name.into(), kind));
        self
    }

    /// Adds a form for devices that run the C dialect. See [`Kernel::c`](super::Kernel::c).
    pub fn c(mut self, source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        self.program.c = Some(KernelSource { text: source.into(), entry: entry.into() });
        self
    }

    /// Adds a form for devices that run WGSL. See [`Kernel::wgsl`](super::Kernel::wgsl).
    pub fn wgsl(mut self, source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        self.program.wgsl = Some(KernelSource { text: source.into(), entry: entry.into() });
        self
    }

    /// Adds a closure for the CPU. Elements that it does not write are zero. It runs on the
    /// engine's thread, and a panic fails only this op.
    pub fn on_cpu(mut self, body: impl Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync + 'static) -> KernelBuilder {
        self.program.body = Some(Box::new(body));
        self
    }

    /// Divides the closure's only output into `count` pieces of equal length, each computed
    /// independently. Engines request ranges of pieces ([`KernelCall::pieces`]), on several threads
    /// at a time.
    pub fn in_pieces(mut self, count: usize) -> KernelBuilder {
        self.program.pieces = Some(count);
        self
    }

    /// Lets the closure read its inputs with [`KernelCall::rows`], in rows of these lengths. An
    /// input with gaps between such rows is not copied first.
    pub fn reads_rows(mut self, lens: &[usize]) -> KernelBuilder {
        self.program.rows = lens.to_vec();
        self
    }

    /// Declares that all forms, including the closure, write every element of every output. The
    /// outputs are then not zeroed first, and an element that is not written has an arbitrary
    /// value.
    pub fn writes_all(mut self) -> KernelBuilder {
        self.program.writes_all = true;
        self
    }

    /// Sets the function that permutes the axes of a call's images. See
    /// [`Kernel::permuted`](super::Kernel::permuted).
    pub fn permute_with(
        mut self,
        turn: impl Fn(&Kernel, &[usize]) -> Option<Kernel> + Send + Sync + 'static,
    ) -> KernelBuilder {
        self.program.turn = Some(Box::new(turn));
        self
    }

    /// Builds the program. Names must be distinct identifiers, and there must be at least one
    /// output and one form. Sources are compiled at their first use.
    pub fn build(self) -> Result<Arc<KernelProgram>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut program = self.program;
        program.check()?;
        program.id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut hasher = DefaultHasher::new();
        let KernelProgram { name, inputs, outputs, scalars, c, wgsl, writes_all, .. } = &program;
        (name, inputs, outputs, scalars, c, wgsl, writes_all).hash(&mut hasher);
        program.hash = hasher.finish();
        Ok(Arc::new(program))
    }
}

impl KernelProgram {
    fn check(&self) -> Result<()> {
        check_name("kernel: name", &self.name)?;
        for source in [&self.c, &self.wgsl].into_iter().flatten() {
            check_name("kernel: entry", &source.entry)?;
            let (limit, got) = (KERNEL_SOURCE_BYTES_MAX, source.text.len());
            if got > limit {
                return Err(Error::OutOfBounds { what: "kernel: bytes of the source", limit, got });
            }
            if source.text.contains('\0') || source.text.trim().is_empty() {
                return Err(Error::invalid("kernel: source", "text without zero bytes", format!("{got} bytes")));
            }
        }
        if self.c.is_none() && self.wgsl.is_none() && self.body.is_none() {
            return Err(Error::invalid("kernel: forms", "C, WGSL or a closure", "none"));
        }
        if self.outputs.is_empty() {
            return Err(Error::invalid("kernel: outputs", "at least one", 0));
        }
        if let Some(count) = self.pieces
            && (count == 0 || self.body.is_none() || self.outputs.len() != 1)
        {
            let got = format!("{count} for {} outputs", self.outputs.len());
            return Err(Error::invalid("kernel: pieces", "at least one, of the one output of a closure", got));
        }
        if !self.rows.is_empty() && (self.rows.len() != self.inputs.len() || self.rows.contains(&0)) {
            let got = format!("{:?} for {} inputs", self.rows, self.inputs.len());
            return Err(Error::invalid("kernel: elements of rows", "at least one for each input", got));
        }
        self.check_parameters()
    }

    fn check_parameters(&self) -> Result<()> {
        let inputs = self.inputs.iter().map(|(name, _)| name);
        let outputs = self.outputs.iter().map(|output| &output.name);
        let mut names: Vec<&str> =
            inputs.chain(outputs).chain(self.scalars.iter().map(|(name, _)| name)).map(|name| &**name).collect();
        let (limit, got) = (KERNEL_PARAMETERS_MAX, names.len());
        if got > limit {
            return Err(Error::OutOfBounds { what: "kernel: parameters", limit, got });
        }
        names.iter().try_for_each(|name| check_name("kernel: parameter", name))?;
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("kernel: parameters", "different names", format!("{} twice", twice[0])));
        }
        let is_word = |dtype| matches!(dtype, DType::I32 | DType::U32);
        match self.outputs.iter().find(|output| output.atomic && !is_word(output.dtype)) {
            None => Ok(()),
            Some(output) => {
                let what = "kernel: atomic output";
                Err(Error::DTypeUnsupported { what, expected: "i32 or u32", got: output.dtype })
            }
        }
    }
}

/// Checks a name, which becomes part of the text that compilers see.
fn check_name(what: &'static str, name: &str) -> Result<()> {
    let is_first = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let fits = (1..=KERNEL_NAME_BYTES_MAX).contains(&name.len())
        && name.as_bytes().first().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(&byte) || byte.is_ascii_digit());
    if fits {
        return Ok(());
    }
    let expected = format!("an identifier of at most {KERNEL_NAME_BYTES_MAX} letters, digits and underscores");
    Err(Error::invalid(what, expected, format!("{:?}", name.chars().take(KERNEL_NAME_BYTES_MAX).collect::<String>())))
}

macro_rules! scalars {
    ($($(#[$doc:meta])* $name:ident($rust:ty) = $text:literal;)*) => {
        /// The type of a scalar parameter. WGSL supports only those of 32 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ScalarType {
            $($(#[$doc])* $name,)*
        }

        /// The value of a scalar parameter.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Scalar {
            $($(#[$doc])* $name($rust),)*
        }

        impl ScalarType {
            /// The type's name, in C and in WGSL.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ScalarType::$name => $text,)*
                }
            }
        }

        impl Scalar {
            /// The type of the value.
            pub const fn kind(&self) -> ScalarType {
                match self {
                    $(Scalar::$name(_) => ScalarType::$name,)*
                }
            }
        }

        $(
            impl From<$rust> for Scalar {
                fn from(value: $rust) -> Scalar {
                    Scalar::$name(value)
                }
            }

            impl TryFrom<Scalar> for $rust {
                type Error = Error;

                fn try_from(scalar: Scalar) -> Result<$rust> {
                    match scalar {
                        Scalar::$name(value) => Ok(value),
                        other => Err(Error::invalid("kernel: type of a scalar", other.kind().name(), $text)),
                    }
                }
            }
        )*
    };
}

scalars! {
    /// A 32-bit float.
    F32(f32) = "f32";
    /// A 64-bit float.
    F64(f64) = "f64";
    /// A signed 32-bit integer.
    I32(i32) = "i32";
    /// An unsigned 32-bit integer.
    U32(u32) = "u32";
    /// A signed 64-bit integer.
    I64(i64) = "i64";
    /// An unsigned 64-bit integer.
    U64(u64) = "u64";
}
