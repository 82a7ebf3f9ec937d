//! Compiles kernels for the host.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_kernels::c::{CHECKED, Dialect, KernelTarget};

use crate::compile::Compiler;

/// Flags for all kernels.
const FLAGS: [&str; 5] = ["-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-w"];
/// Kernels use only C's library. Omitting C++'s headers and libraries cuts compile time to three
/// fifths.
#[cfg(target_os = "linux")]
const PLAIN_FLAGS: [&str; 1] = ["-nostdinc++"];
#[cfg(target_os = "linux")]
const LIBRARIES: [&str; 4] = ["-nodefaultlibs", "-lm", "-lc", "-lgcc"];
#[cfg(not(target_os = "linux"))]
const PLAIN_FLAGS: [&str; 0] = [];
#[cfg(not(target_os = "linux"))]
const LIBRARIES: [&str; 0] = [];
/// Flags for this project's kernels. A misaligned address stops the launch: x86 would tolerate it,
/// GPUs do not.
const TRUSTED_FLAGS: [&str; 4] = ["-O1", "-shared", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"];
/// Flags for the caller's own kernels. These kernels call `host.h` before every access and division
/// and in every loop, and no code is removed for having no effect. They are linked separately,
/// since `host.h` replaces all of the sanitizer runtime that they need. Without exceptions, arrays
/// local to loops need nothing from C++'s library.
const CHECKED_FLAGS: [&str; 6] = [
    "-O0",
    "-c",
    "-fno-exceptions",
    "-fsanitize=kernel-address",
    "-fsanitize=integer-divide-by-zero",
    "-fsanitize-coverage=trace-pc",
];
const CHECKED_BY_GCC: [&str; 6] =
    ["--param", "asan-instrumentation-with-call-threshold=0", "--param", "asan-stack=0", "--param", "asan-globals=0"];
const CHECKED_BY_CLANG: [&str; 6] =
    ["-mllvm", "-asan-instrumentation-with-call-threshold=0", "-mllvm", "-asan-stack=0", "-mllvm", "-asan-globals=0"];
/// Maximum number of lines of a compiler's message that are repeated.
const MESSAGE_LINES_MAX: usize = 12;

/// Counter for unique file names, since several threads compile concurrently.
static FILES: AtomicU64 = AtomicU64::new(0);

/// The system's C++ compiler. Its images are shared libraries.
pub struct HostCompiler {
    program: PathBuf,
    warp_lanes: u32,
    version: OnceLock<String>,
    /// A line of kernels, and what is run behind it.
    altered: Option<(&'static str, &'static str)>,
}

impl HostCompiler {
    /// Uses this compiler, for warps of `warp_lanes` lanes.
    pub fn new(program: PathBuf, warp_lanes: u32) -> HostCompiler {
        HostCompiler { program, warp_lanes, version: OnceLock::new(), altered: None }
    }

    /// With a fault, for tests: behind this line of a kernel this statement is run too.
    pub(super) fn altered(mut self, line: &'static str, statement: &'static str) -> HostCompiler {
        self.altered = Some((line, statement));
        self
    }
}

impl Compiler for HostCompiler {
    fn target(&self) -> KernelTarget {
        KernelTarget { dialect: Dialect::Host, warp_lanes: self.warp_lanes }
    }

    fn identity(&self) -> String {
        let (trusted, checked) = (self.flags("").join(" "), self.flags(CHECKED).join(" "));
        let libraries = LIBRARIES.join(" ");
        let (program, lanes, altered) = (self.program.display(), self.warp_lanes, self.altered.unwrap_or_default());
        format!("{program} {trusted} {checked} {libraries} {lanes} {} {altered:?}", self.version())
    }

    fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
        let file = fresh_file("compiled");
        let altered = self.altered.map(|(line, statement)| source.replace(line, &format!("{line} {statement}")));
        let source = altered.as_deref().unwrap_or(source);
        let compiled = self.compile_to(source, &file).and_then(|()| std::fs::read(&file).map_err(|e| e.to_string()));
        // If the file was not created, there is nothing to remove.
        let _ = std::fs::remove_file(&file);
        compiled
    }
}

impl HostCompiler {
    fn version(&self) -> &str {
        self.version.get_or_init(|| {
            let told = Command::new(&self.program).arg("--version").output();
            told.map_or_else(|error| error.to_string(), |told| String::from_utf8_lossy(&told.stdout).into_owned())
        })
    }

    /// The flags for a text.
    fn flags(&self, source: &str) -> Vec<&'static str> {
        let mut flags = FLAGS.to_vec();
        flags.extend(PLAIN_FLAGS);
        if !source.starts_with(CHECKED) {
            flags.extend(TRUSTED_FLAGS);
            return flags;
        }
        flags.extend(CHECKED_FLAGS);
        flags.extend(if self.version().contains("clang") { CHECKED_BY_CLANG } else { CHECKED_BY_GCC });
        flags
    }

    fn compile_to(&self, source: &str, file: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args(self.flags(source)).args(["-x", "c++", "-", "-o"]);
        if !source.starts_with(CHECKED) {
            return self.run(command.arg(file).args(LIBRARIES), source);
        }
        let object = fresh_file("object");
        let compiled = self.run(command.arg(&object), source);
        let linked = compiled.and_then(|()| {
            let mut link = Command::new(&self.program);
            self.run(link.arg("-shared").arg(&object).arg("-o").arg(file).args(LIBRARIES), "")
        });
        // If the file was not created, there is nothing to remove.
        let _ = std::fs::remove_file(&object);
        linked
    }

    /// Runs the compiler on this text. The error is the beginning of its message.
    fn run(&self, command: &mut Command, source: &str) -> Result<(), String> {
        let spawned = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", self.program.display()))?;
        if let Some(mut input) = child.stdin.take() {
            // A compiler that stops reading reports the reason on its error output.
            let _ = input.write_all(source.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(message.lines().take(MESSAGE_LINES_MAX).collect::<Vec<_>>().join("\n"))
    }
}

/// A file name that this process has not used yet.
pub(super) fn fresh_file(what: &str) -> PathBuf {
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("panoply-{what}-{}-{number}.so", std::process::id()))
}
