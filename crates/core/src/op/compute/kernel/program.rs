//! What of a kernel is written once: its parameters, and a form for each kind of device that shall run it.

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

/// A kernel's parameters and its forms: C, WGSL, a closure. It is checked when it is built, and shared by all its calls.
pub struct KernelProgram {
    name: Arc<str>,
    inputs: Vec<(Arc<str>, DType)>,
    outputs: Vec<KernelOutput>,
    scalars: Vec<(Arc<str>, ScalarType)>,
    c: Option<KernelSource>,
    wgsl: Option<KernelSource>,
    body: Option<Box<Body>>,
    pieces: Option<usize>,
    /// For each input the elements of a row, where the closure reads rows with others between them.
    rows: Vec<usize>,
    writes_all: bool,
    turn: Option<Box<Turn>>,
    hash: u64,
    /// Tells it from every other program of the process.
    id: u64,
}

/// The text of one form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// What the caller wrote.
    pub text: Arc<str>,
    /// The function to start.
    pub entry: Arc<str>,
}

/// What a kernel writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelOutput {
    /// Its name.
    pub name: Arc<str>,
    /// Its element type.
    pub dtype: DType,
    /// Whether WGSL sees its elements as atomics. (In C every pointer will do.)
    pub atomic: bool,
}

impl KernelProgram {
    /// The name in messages: the first form's entry, where the caller gave no other.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensors that it reads.
    pub fn inputs(&self) -> &[(Arc<str>, DType)] {
        &self.inputs
    }

    /// The tensors that it writes.
    pub fn outputs(&self) -> &[KernelOutput] {
        &self.outputs
    }

    /// The numbers that it is given.
    pub fn scalars(&self) -> &[(Arc<str>, ScalarType)] {
        &self.scalars
    }

    /// The form for devices of the C dialect.
    pub fn c(&self) -> Option<&KernelSource> {
        self.c.as_ref()
    }

    /// The form for devices that take WGSL.
    pub fn wgsl(&self) -> Option<&KernelSource> {
        self.wgsl.as_ref()
    }

    /// Whether it has a form for the CPU.
    pub fn runs_on_cpu(&self) -> bool {
        self.body.is_some()
    }

    /// The pieces that the closure makes of its output one by one, where it does.
    pub fn pieces(&self) -> Option<usize> {
        self.pieces
    }

    /// The elements of a row of an input, where the closure reads it by [`KernelCall::rows`].
    pub fn row_len(&self, input: usize) -> Option<usize> {
        self.rows.get(input).copied()
    }

    /// Whether all forms, the closure among them, write every element of every output, so that nobody has to fill them with zeros first.
    pub fn writes_all(&self) -> bool {
        self.writes_all
    }

    /// A hash of everything but the closure: programs with the same one are taken to cost the same.
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
        // Graphs take ops that are written alike for equal, so the text tells programs of one name apart.
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

    /// With another name in messages.
    pub fn named(mut self, name: &str) -> KernelBuilder {
        self.program.name = name.into();
        self
    }

    /// Reads another tensor.
    pub fn input(mut self, name: &str, dtype: DType) -> KernelBuilder {
        self.program.inputs.push((name.into(), dtype));
        self
    }

    /// Writes another tensor.
    pub fn output(self, name: &str, dtype: DType) -> KernelBuilder {
        self.writes(name, dtype, false)
    }

    /// Writes another tensor, of i32 or u32, whose elements are atomics in WGSL.
    pub fn atomic_output(self, name: &str, dtype: DType) -> KernelBuilder {
        self.writes(name, dtype, true)
    }

    fn writes(mut self, name: &str, dtype: DType, atomic: bool) -> KernelBuilder {
        self.program.outputs.push(KernelOutput { name: name.into(), dtype, atomic });
        self
    }

    /// Takes another number.
    pub fn scalar(mut self, name: &str, kind: ScalarType) -> KernelBuilder {
        self.program.scalars.push((name.into(), kind));
        self
    }

    /// For devices of the C dialect; see [`Kernel::c`](super::Kernel::c).
    pub fn c(mut self, source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        self.program.c = Some(KernelSource { text: source.into(), entry: entry.into() });
        self
    }

    /// For devices that take WGSL; see [`Kernel::wgsl`](super::Kernel::wgsl).
    pub fn wgsl(mut self, source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        self.program.wgsl = Some(KernelSource { text: source.into(), entry: entry.into() });
        self
    }

    /// For the CPU. What it leaves unwritten is zero. It runs on the engine's thread; a panic ends the op alone.
    pub fn on_cpu(mut self, body: impl Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync + 'static) -> KernelBuilder {
        self.program.body = Some(Box::new(body));
        self
    }

    /// The closure makes each of so many equally long pieces of its one output by itself. Engines ask for runs of them
    /// ([`KernelCall::pieces`]), on several threads at a time.
    pub fn in_pieces(mut self, count: usize) -> KernelBuilder {
        self.program.pieces = Some(count);
        self
    }

    /// The closure reads its inputs by [`KernelCall::rows`], rows of so many elements of each: what lies so, with others between the rows,
    /// is not copied first.
    pub fn reads_rows(mut self, lens: &[usize]) -> KernelBuilder {
        self.program.rows = lens.to_vec();
        self
    }

    /// All forms, the closure among them, write every element of every output. The zeros that outputs begin with otherwise are left out: an
    /// element that is not written after all has whatever was there.
    pub fn writes_all(mut self) -> KernelBuilder {
        self.program.writes_all = true;
        self
    }

    /// How a call is made that does the same with the axes of its images in another order: see [`Kernel::turned`](super::Kernel::turned).
    pub fn turned(
        mut self,
        turn: impl Fn(&Kernel, &[usize]) -> Option<Kernel> + Send + Sync + 'static,
    ) -> KernelBuilder {
        self.program.turn = Some(Box::new(turn));
        self
    }

    /// The program. Names must be identifiers, and differ; there must be an output and a form. Sources are compiled where
    /// they are first needed.
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

/// Names go into the text that compilers see.
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
        /// The type of a number that a kernel is given. WGSL has those of 32 bits alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ScalarType {
            $($(#[$doc])* $name,)*
        }

        /// A number that a kernel is given.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Scalar {
            $($(#[$doc])* $name($rust),)*
        }

        impl ScalarType {
            /// Its name, in C and in WGSL.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ScalarType::$name => $text,)*
                }
            }
        }

        impl Scalar {
            /// Its type.
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
    /// A float.
    F32(f32) = "f32";
    /// A float of 64 bits.
    F64(f64) = "f64";
    /// 32 bits with a sign.
    I32(i32) = "i32";
    /// 32 bits.
    U32(u32) = "u32";
    /// 64 bits with a sign.
    I64(i64) = "i64";
    /// 64 bits.
    U64(u64) = "u64";
}
