//! Compiles kernels to programs. The cache stores a program's text and, if the driver gives it, its
//! binary. If a driver does not accept the binary (because it was updated, or the cache comes from
//! elsewhere), the text is compiled again; this only costs time.

use std::sync::Arc;

use panoply_c_gpu::compile::Compiler;
use panoply_kernels::c::KernelTarget;

use crate::calls::{Context, Program};
use crate::platform::{DeviceHandle, Facts};
use crate::sys;
use crate::warps::Warps;

/// The most lines of a compiler's message that are repeated.
const MESSAGE_LINES_MAX: usize = 12;
/// Size of an image's header: the length of the text after it.
const HEADER_BYTES: usize = 8;

/// The compiler of one device's driver.
pub(crate) struct ProgramCompiler {
    context: Arc<Context>,
    device: DeviceHandle,
    identity: String,
    options: String,
    text_only: bool,
    /// Whether the compiler has an option for the number of registers per thread.
    limits_registers: bool,
    warps: Warps,
}

/// Stack size of a thread that builds. Untouched stack pages cost nothing.
const STACK_BYTES: usize = 256 << 20;
/// Registers of one multiprocessor of NVIDIA's.
const REGISTERS: u64 = 65536;

impl ProgramCompiler {
    pub(crate) fn new(context: &Arc<Context>, device: DeviceHandle, facts: &Facts, warps: Warps) -> ProgramCompiler {
        let options = [facts.options.as_str(), warps.option].join(" ");
        ProgramCompiler {
            context: Arc::clone(context),
            device,
            identity: [facts.identity.as_str(), &options].join("\0"),
            options,
            text_only: facts.text_only,
            limits_registers: facts.has("cl_nv_compiler_options"),
            warps,
        }
    }

    /// The program of an image, ready for its kernels.
    pub(crate) fn load(&self, image: &[u8]) -> Result<Program, String> {
        let (text, binary) = parts(image).ok_or("the image is none of this driver's")?;
        if !binary.is_empty()
            && let Ok(program) = self.context.program_of_binary(self.device.0, binary)
            && program.build(self.device.0, &self.options).is_ok()
        {
            return Ok(program);
        }
        self.build(text)
    }

    fn build(&self, text: &str) -> Result<Program, String> {
        let program = self.build_with(text, &self.options)?;
        match self.crowded(&program) {
            // The kernel's threads use so many registers that a block of them does not fit.
            Some(threads) if self.limits_registers => {
                self.build_with(text, &format!("{} -cl-nv-maxrregcount={}", self.options, REGISTERS / threads / 8 * 8))
            }
            _ => Ok(program),
        }
    }

    fn build_with(&self, text: &str, options: &str) -> Result<Program, String> {
        let program = self.context.program_of_text(text).map_err(|code| code.to_string())?;
        build_with_room(&program, self.device, options).map_err(|log| shortened(&log))?;
        Ok(program)
    }

    /// Number of threads of the largest block that a kernel's text demands and the driver does not
    /// allow.
    fn crowded(&self, program: &Program) -> Option<u64> {
        let kernels = program.kernel_names().into_iter().filter_map(|name| program.kernel(&name).ok());
        let demanded = kernels.filter_map(|kernel| {
            let told = |what| kernel.on_device(self.device.0, what).ok();
            let threads = told(sys::KERNEL_COMPILE_WORK_GROUP_SIZE)?;
            (threads > told(sys::KERNEL_WORK_GROUP_SIZE)?).then_some(threads)
        });
        demanded.max()
    }
}

impl Compiler for ProgramCompiler {
    fn target(&self) -> KernelTarget {
        self.warps.target()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
        let program = self.build(source)?;
        let binary = if self.text_only { None } else { program.binary() };
        Ok(image(source, &binary.unwrap_or_default()))
    }
}

/// Builds a program on a thread with a large stack. Some compilers, which run in this process, need
/// more than a thread's usual stack for long kernels, and end the process if it overflows.
fn build_with_room(program: &Program, device: DeviceHandle, options: &str) -> Result<(), String> {
    let build = |device: DeviceHandle| program.build(device.0, options);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("panoply-compile".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, move || build(device)) {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err("the build panicked".to_owned())),
            // If no thread can be started, the program is built on this thread.
            Err(_) => build(device),
        }
    })
}

fn image(text: &str, binary: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes(), binary].concat()
}

/// An image's text and binary.
fn parts(image: &[u8]) -> Option<(&str, &[u8])> {
    let (header, rest) = image.split_at_checked(HEADER_BYTES)?;
    let len = usize::try_from(u64::from_le_bytes(header.try_into().ok()?)).ok()?;
    let (text, binary) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(text).ok()?, binary))
}

/// The first messages of a log: from the first line that names an error, or from the beginning if
/// none does.
fn shortened(log: &str) -> String {
    let complaints: Vec<&str> =
        log.lines().skip_while(|line| !line.contains("error")).take(MESSAGE_LINES_MAX).collect();
    match complaints.is_empty() {
        true => log.lines().take(MESSAGE_LINES_MAX).collect::<Vec<_>>().join("\n"),
        false => complaints.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_its_text_and_its_binary() {
        let whole = image("text", &[1, 2, 3]);
        assert_eq!(parts(&whole), Some(("text", &[1, 2, 3][..])));
        assert_eq!(parts(&image("text", &[])), Some(("text", &[][..])));
        for damaged in [&whole[..5], &whole[..10], &[0xff; 40]] {
            assert_eq!(parts(damaged), None);
        }
    }

    #[test]
    fn a_long_log_is_cut_to_its_complaints() {
        let log = "a warning\nx.cl:3: error: no such thing\nx.cl:4: note";
        assert_eq!(shortened(log), "x.cl:3: error: no such thing\nx.cl:4: note");
        assert_eq!(shortened("it failed"), "it failed");
    }
}
