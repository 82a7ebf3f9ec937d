//! The C form of a custom kernel: its text as written, and a check of its entry.

use std::fmt::Write;

use panoply_core::op::compute::KernelProgram;

use super::{Dialect, opencl, stored};

/// The first line of texts for the emulated device, which checks memory accesses, barriers and
/// time.
pub const CHECKED: &str = "#define PANOPLY_CHECKED 1\n";

/// A type comparison without a header.
const SAME: &str = "template <class A, class B> struct panoply_same { enum { value = 0 }; };
template <class A> struct panoply_same<A, A> { enum { value = 1 }; };";

/// The program's text with `#line` directives, followed by a compile-time check that the entry
/// exists and takes the program's arguments. A launch passes arguments by address, so it could not
/// detect a mismatch.
pub(super) fn text(program: &KernelProgram, dialect: Dialect) -> String {
    let Some(source) = program.c() else { return String::new() };
    let (name, entry, arguments) = (program.name(), &source.entry, arguments(program));
    let mut text = format!("\n#line 1 \"{name}\"\n{}\n#line 1 \"entry of {name}\"\n", source.text);
    let wrong = format!("the program says KERNEL {entry}({})", arguments.join(", "));
    // Writing into a string does not fail.
    let _ = match dialect {
        Dialect::OpenCl => match opencl::parameter_types(&source.text, entry) {
            Some(types) if types.iter().map(|one| one.replace("GLOBAL ", "")).eq(arguments) => Ok(()),
            _ => writeln!(text, "#error {wrong}"),
        },
        _ => writeln!(
            text,
            "{SAME}\nstatic_assert(panoply_same<decltype(&{entry}), void (*)({})>::value, \"{wrong}\");",
            arguments.join(", ")
        ),
    };
    text
}

/// The types of the entry's arguments: inputs, outputs, scalars.
fn arguments(program: &KernelProgram) -> Vec<String> {
    let inputs = program.inputs().iter().map(|(_, dtype)| format!("const {} *", stored(*dtype)));
    let outputs = program.outputs().iter().map(|output| format!("{} *", stored(output.dtype)));
    let scalars = program.scalars().iter().map(|(_, kind)| kind.name().to_owned());
    inputs.chain(outputs).chain(scalars).collect()
}

#[cfg(test)]
mod tests {
    use panoply_core::DType;
    use panoply_core::op::compute::{Kernel, ScalarType};

    use crate::c;

    #[test]
    fn lines_count_from_the_callers_first() {
        let program = Kernel::c("KERNEL f(GLOBAL const u16 *x, GLOBAL f32 *y, u64 n) {}", "f")
            .input("x", DType::F16)
            .output("y", DType::F32)
            .scalar("n", ScalarType::U64)
            .named("halves")
            .build()
            .unwrap();
        let kernel = c::Kernel::of_program(&program);
        assert_eq!((kernel.name().as_str(), kernel.entry()), ("halves/f", "f"));
        let host = kernel.source(c::KernelTarget { dialect: c::Dialect::Host, warp_lanes: 32 });
        assert!(host.starts_with(c::CHECKED) && host.contains("PANOPLY_HOST_ENTRY(f)"));
        let cuda = kernel.source(c::KernelTarget::CUDA);
        assert!(!cuda.starts_with(c::CHECKED));
        for text in [host, cuda] {
            assert!(text.contains("#line 1 \"halves\"\nKERNEL f("));
            assert!(text.contains("void (*)(const u16 *, f32 *, u64)"));
        }
        assert_eq!(kernel, c::Kernel::of_program(&program));
    }
}
