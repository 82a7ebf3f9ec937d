//! `cargo xtask check-kernels`: compiles every kernel of the HIP backend for AMD's GPUs, without
//! the hardware.
//!
//! The backend's own tests write the sources to files, as hiprtc would get them. A clang that knows
//! the architecture compiles each source with HIP's headers, which are precompiled once for all
//! kernels.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process::{Workspace, find_program, run, say, succeeds};

const ARCHITECTURES: [&str; 4] = ["gfx90a", "gfx942", "gfx1030", "gfx1100"];
/// Compiler names on Linux systems and in ROCm, in order of preference.
const COMPILERS: [&str; 9] = [
    "/opt/rocm/llvm/bin/clang",
    "clang-22",
    "clang-21",
    "clang-20",
    "clang-19",
    "clang-18",
    "clang-17",
    "clang",
    "clang-16",
];
/// Folders that may contain HIP's headers.
const HEADER_FOLDERS: [&str; 2] = ["/opt/rocm", "/usr"];
/// The most failures that are shown.
const SHOWN_MAX: usize = 5;
/// The most lines of a failure that are shown.
const LINES_MAX: usize = 12;

/// Compiles for every architecture, or for the named ones. `--every N` takes every n-th kernel.
pub fn command(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let (wanted, every) = parse(arguments)?;
    let Some(headers) =
        HEADER_FOLDERS.iter().find(|folder| Path::new(folder).join("include/hip/hip_runtime.h").exists())
    else {
        say("skipped: HIP's headers are not installed (Debian's libamdhip64-dev, or ROCm)");
        return Ok(());
    };
    let found: Vec<(&str, Option<PathBuf>)> = wanted.iter().map(|name| (*name, compiler_for(name))).collect();
    for (name, _) in found.iter().filter(|(_, compiler)| compiler.is_none()) {
        say(&format!("skipped: {name}: no clang that knows it (Debian's clang-19, or ROCm's)"));
    }
    if found.iter().all(|(_, compiler)| compiler.is_none()) {
        return Ok(());
    }
    let folder = workspace.target().join("kernels");
    write_out(workspace, &folder)?;
    let mut failed = 0;
    for (name, compiler) in found {
        if let Some(compiler) = compiler {
            failed += check(&Clang { compiler, headers, architecture: name }, &folder, every)?;
        }
    }
    if failed > 0 {
        bail!("{failed} kernels do not compile");
    }
    Ok(())
}

/// Parses the architectures and the step.
fn parse<'a>(arguments: &[&'a str]) -> Result<(Vec<&'a str>, usize)> {
    let (names, every) = match arguments {
        ["--every", step, names @ ..] | [names @ .., "--every", step] => {
            (names, step.parse().context("--every takes a number")?)
        }
        names => (names, 1),
    };
    if let Some(unknown) = names.iter().find(|name| !ARCHITECTURES.contains(name)) {
        bail!("`{unknown}` is none of the architectures: {}", ARCHITECTURES.join(", "));
    }
    if every == 0 {
        bail!("--every takes a number above zero");
    }
    Ok((if names.is_empty() { ARCHITECTURES.to_vec() } else { names.to_vec() }, every))
}

/// Finds the first compiler that knows an architecture.
fn compiler_for(architecture: &str) -> Option<PathBuf> {
    let installed = COMPILERS.iter().filter_map(|name| match Path::new(name).is_absolute() {
        true => Some(PathBuf::from(name)).filter(|path| path.is_file()),
        false => find_program(name),
    });
    let knows = |compiler: &PathBuf| {
        let mut empty = Command::new(compiler);
        empty.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "-fsyntax-only", "-x", "c", "-"]);
        succeeds(empty.arg(format!("-mcpu={architecture}")))
    };
    installed.into_iter().find(knows)
}

/// Makes the backend's tests write the sources. They use an empty cache, because with the user's
/// cache no kernel would be compiled again.
fn write_out(workspace: &Workspace, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be emptied", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    let mut cargo =
        workspace.cargo("test --package panoply-hip --test main -- --exact conformance::kernels_are_written_out");
    cargo.env("PANOPLY_HIP_KERNELS_OUT", folder).env("PANOPLY_CACHE", folder.join("cache"));
    run(&mut cargo)
}

/// A compiler for one architecture.
struct Clang<'a> {
    compiler: PathBuf,
    headers: &'a str,
    architecture: &'a str,
}

impl Clang<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args([
            "-x",
            "hip",
            "--cuda-device-only",
            "-D__HIP_PLATFORM_AMD__",
            "-nogpulib",
            "-std=c++17",
            "-O3",
            "-w",
        ]);
        command.arg(format!("--rocm-path={}", self.headers)).arg(format!("--hip-path={}", self.headers));
        command.arg(format!("--offload-arch={}", self.architecture));
        command.stdin(Stdio::null());
        command
    }

    /// Precompiles HIP's headers.
    fn headers(&self, folder: &Path) -> Result<PathBuf> {
        let (text, read) = (folder.join("headers.hip"), folder.join(format!("{}.pch", self.architecture)));
        fs::write(&text, "#include <hip/hip_runtime.h>\n").context("the header's text cannot be written")?;
        let told = self.command().args(["-fsyntax-only", "-Xclang", "-emit-pch"]).arg(&text).output();
        let told = told.with_context(|| format!("{} cannot be started", self.compiler.display()))?;
        if !told.status.success() {
            bail!("HIP's headers do not compile for {}: {}", self.architecture, String::from_utf8_lossy(&told.stderr));
        }
        fs::write(&read, told.stdout).context("what was read of the headers cannot be written")?;
        Ok(read)
    }

    /// Compiles one kernel. The error is the compiler's output.
    fn compile(&self, headers: &Path, text: &Path) -> Result<(), String> {
        let mut command = self.command();
        command.args([OsStr::new("-Xclang"), OsStr::new("-include-pch"), OsStr::new("-Xclang"), headers.as_os_str()]);
        command.args(["-S", "-o", "-"]).arg(text).stdout(Stdio::null());
        let told = command.output().map_err(|error| error.to_string())?;
        if told.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&told.stderr).into_owned()) }
    }
}

/// Compiles all kernels of an architecture on all CPUs. Returns the number of failures.
fn check(clang: &Clang<'_>, folder: &Path, every: usize) -> Result<usize> {
    let own = folder.join(clang.architecture);
    let listed = fs::read_dir(&own).with_context(|| format!("no kernels were written to {}", own.display()))?;
    let mut texts = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    texts.sort();
    let texts: Vec<PathBuf> = texts.into_iter().step_by(every).collect();
    let (start, headers) = (Instant::now(), clang.headers(folder)?);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(reason) = clang.compile(&headers, text)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push((text.clone(), reason));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    let (count, seconds) = (texts.len(), start.elapsed().as_secs_f64());
    let (name, compiler) = (clang.architecture, clang.compiler.display());
    say(&format!("{name}: {count} kernels, {} failed, by {compiler} in {seconds:.0} s", failed.len()));
    for (text, reason) in failed.iter().take(SHOWN_MAX) {
        let shown: Vec<&str> = reason.lines().take(LINES_MAX).collect();
        say(&format!("  {}:\n{}", text.display(), shown.join("\n")));
    }
    if texts.is_empty() {
        bail!("no kernels were written to {}", own.display());
    }
    Ok(failed.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_and_the_step_are_understood() {
        assert_eq!(parse(&[]).unwrap(), (ARCHITECTURES.to_vec(), 1));
        assert_eq!(parse(&["gfx942", "--every", "7"]).unwrap(), (vec!["gfx942"], 7));
        assert_eq!(parse(&["--every", "7"]).unwrap(), (ARCHITECTURES.to_vec(), 7));
        assert!(parse(&["gfx1"]).is_err() && parse(&["--every", "0"]).is_err() && parse(&["--every", "x"]).is_err());
    }
}
