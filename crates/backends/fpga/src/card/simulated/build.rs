//! Builds the library that simulates cards: Verilator translates Verilog to C++, and the system's
//! compiler compiles the C++.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::card::CardError;

/// The library's source files, embedded when this crate was built.
pub const SOURCES: [(&str, &str); 12] = [
    ("panoply_top.v", include_str!("../../../rtl/panoply_top.v")),
    ("registers.v", include_str!("../../../rtl/registers.v")),
    ("affine.v", include_str!("../../../rtl/affine.v")),
    ("crc32.v", include_str!("../../../rtl/crc32.v")),
    ("fir.v", include_str!("../../../rtl/fir.v")),
    ("fft.v", include_str!("../../../rtl/fft.v")),
    ("fft_stage.v", include_str!("../../../rtl/fft_stage.v")),
    ("viterbi.v", include_str!("../../../rtl/viterbi.v")),
    ("generated.vh", include_str!("../../../rtl/generated.vh")),
    ("twiddles.vh", include_str!("../../../rtl/twiddles.vh")),
    ("crc32.vh", include_str!("../../../rtl/crc32.vh")),
    ("harness.cpp", include_str!("../../../sim/harness.cpp")),
];

const LIBRARY: &str = "libpanoply_card.so";
/// How long another process may take to build the library.
const MAKING_TIME_MAX: Duration = Duration::from_secs(180);

/// Why no simulation is available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSimulation {
    /// A required program is not installed.
    #[error("{program} is not installed")]
    ProgramMissing {
        /// The program's name.
        program: &'static str,
    },
    /// A program failed, or a file could not be written.
    #[error(transparent)]
    Failed(#[from] CardError),
}

/// Returns the library. Builds it if the cache folder does not contain it, which takes about ten
/// seconds.
pub fn library() -> Result<PathBuf, NoSimulation> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let version = output("verilator", Command::new("verilator").arg("--version"))?;
    let nowhere = || CardError::system("a cache folder", "neither PANOPLY_CACHE, XDG_CACHE_HOME nor HOME names one");
    let cache = cache_folder().ok_or_else(nowhere)?;
    let folder = cache.join(format!("fpga-{:016x}", fingerprint(&version)));
    let library = folder.join(LIBRARY);
    if !library.is_file() {
        // If several processes need the library, only one builds it.
        let _alone = alone(&cache)?;
        if !library.is_file() {
            make(&folder)?;
        }
    }
    Ok(library)
}

/// Waits until no other process builds the library, at most `MAKING_TIME_MAX`. The returned file
/// holds a lock until it is closed.
fn alone(cache: &Path) -> Result<File, CardError> {
    let failed = |error: std::io::Error| CardError::system(cache.display().to_string(), error);
    std::fs::create_dir_all(cache).map_err(failed)?;
    let lock = File::create(cache.join("fpga.lock")).map_err(failed)?;
    let began = Instant::now();
    while lock.try_lock().is_err() {
        if began.elapsed() > MAKING_TIME_MAX {
            return Err(CardError::system("the simulation", "another process has been making it for too long"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(lock)
}

/// Builds the library in a temporary folder beside `folder`, and renames that folder when the
/// library is complete.
fn make(folder: &Path) -> Result<(), NoSimulation> {
    let beside = folder.with_extension(std::process::id().to_string());
    let written = |error| CardError::system(beside.display().to_string(), error);
    std::fs::create_dir_all(&beside).map_err(written)?;
    for (name, text) in SOURCES {
        std::fs::write(beside.join(name), text).map_err(written)?;
    }
    let made = verilate(&beside).and_then(|()| compile(&beside));
    if made.is_ok() && std::fs::rename(&beside, folder).is_ok() {
        return Ok(());
    }
    // Another process was faster, or the build failed.
    let _ = std::fs::remove_dir_all(&beside);
    if folder.join(LIBRARY).is_file() {
        Ok(())
    } else {
        made.and(Err(written(std::io::Error::other("not moved")).into()))
    }
}

fn verilate(folder: &Path) -> Result<(), NoSimulation> {
    let sources = SOURCES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".v"));
    let mut command = Command::new("verilator");
    command.args(["--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert", "-Wno-WIDTH"]);
    command.args(["--Mdir", ".", "-I.", "--top-module", "panoply_top"]).args(sources).current_dir(folder);
    output("verilator", &mut command).map(drop)
}

/// Compiles everything that Verilator wrote as one unit, so that its headers are read once.
fn compile(folder: &Path) -> Result<(), NoSimulation> {
    let failed = |error: std::io::Error| CardError::system(folder.display().to_string(), error);
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        names.extend((name.starts_with('V') && name.ends_with(".cpp")).then_some(name));
    }
    names.sort();
    names.extend(["verilated.cpp", "verilated_threads.cpp", "harness.cpp"].map(str::to_owned));
    let unit: String = names.iter().map(|name| format!("#include \"{name}\"\n")).collect();
    std::fs::write(folder.join("all.cpp"), unit).map_err(failed)?;
    let root = output("verilator", Command::new("verilator").args(["--getenv", "VERILATOR_ROOT"]))?;
    let include = Path::new(root.trim()).join("include");
    let mut command = Command::new("c++");
    command.args(["-O1", "-std=gnu++17", "-fPIC", "-shared", "-w", "-I."]).arg("-I").arg(&include);
    command.arg("-I").arg(include.join("vltstd")).args(["-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE=0"]);
    command.args(["all.cpp", "-o", LIBRARY, "-lpthread"]).current_dir(folder);
    output("c++", &mut command).map(drop)
}

/// Runs a program and returns its output.
fn output(program: &'static str, command: &mut Command) -> Result<String, NoSimulation> {
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => NoSimulation::ProgramMissing { program },
        _ => CardError::system(program, error).into(),
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(CardError::system(program, String::from_utf8_lossy(&output.stderr).trim()).into()),
    }
}

fn fingerprint(version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (version, SOURCES).hash(&mut hasher);
    hasher.finish()
}

/// The user's own cache folder. A shared folder is never used: anyone who can write there could run
/// code in this process.
fn cache_folder() -> Option<PathBuf> {
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let shared = given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")));
    given("PANOPLY_CACHE").or_else(|| shared.map(|folder| folder.join("panoply")))
}
