//! The WGSL form of a custom kernel: its text as written, followed by its declarations. WGSL allows
//! declarations in any order, so line numbers start at the caller's first line.

use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use panoply_core::DType;
use panoply_core::op::compute::KernelProgram;

/// A custom kernel with a fixed block size.
#[derive(Clone, Debug)]
pub struct ProgramKernel {
    /// The program.
    pub program: Arc<KernelProgram>,
    /// Invocations of a workgroup along each axis.
    pub block: [u32; 3],
}

impl ProgramKernel {
    /// The entry function.
    pub fn entry(&self) -> &str {
        self.program.wgsl().map_or("", |source| &source.entry)
    }

    /// The complete text. If the program has no WGSL form, only the declarations.
    pub(super) fn source(&self) -> String {
        let program = &self.program;
        let mut text = program.wgsl().map_or_else(String::new, |source| source.text.to_string());
        text.push('\n');
        // Writing to a String cannot fail.
        for (axis, size) in ["X", "Y", "Z"].iter().zip(self.block) {
            let _ = writeln!(text, "const BLOCK_{axis}: u32 = {size}u;");
        }
        if !program.scalars().is_empty() {
            let fields: Vec<String> =
                program.scalars().iter().map(|(name, kind)| format!("{name}: {}", kind.name())).collect();
            let _ = writeln!(text, "struct Scalars {{ {} }}", fields.join(", "));
            let _ = writeln!(text, "@group(0) @binding(0) var<uniform> scalars: Scalars;");
        }
        let outputs = program.outputs().iter().map(|output| {
            let element = element(output.dtype).to_owned();
            let element = if output.atomic { format!("atomic<{element}>") } else { element };
            ("read_write", &output.name, element)
        });
        let inputs = program.inputs().iter().map(|(name, dtype)| ("read", name, element(*dtype).to_owned()));
        for (place, (access, name, element)) in outputs.chain(inputs).enumerate() {
            let _ = writeln!(text, "@group(1) @binding({place}) var<storage, {access}> {name}: array<{element}>;");
        }
        text
    }
}

/// The WGSL element type of a buffer of such elements. Small elements are packed in words, the
/// first in the lowest bits.
fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        DType::Complex64 => "vec2<f32>",
        DType::F64 => "vec2<u32>",
        DType::U32 | DType::F16 | DType::BF16 | DType::I8 | DType::U8 => "u32",
    }
}

impl PartialEq for ProgramKernel {
    fn eq(&self, other: &ProgramKernel) -> bool {
        let (a, b) = (&self.program, &other.program);
        self.block == other.block && (Arc::ptr_eq(a, b) || (a.hash(), a.wgsl()) == (b.hash(), b.wgsl()))
    }
}

impl Eq for ProgramKernel {}

impl Hash for ProgramKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.program.hash(), self.block).hash(state);
    }
}
