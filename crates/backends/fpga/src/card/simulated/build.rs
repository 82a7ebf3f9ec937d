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
/// The name of a library's folder begins with this. 16 digits follow: its fingerprint.
const PREFIX: &str = "fpga-";
const FINGERPRINT_DIGITS: usize = 16;
/// The file in the cache folder that a process locks while it builds.
const LOCK: &str = "fpga.lock";
/// How long another process may take to build the library.
const MAKING_TIME_MAX: Duration = Duration::from_secs(180);
/// Maximal number of names in the cache folder that are checked for leftovers.
const NAMES_MAX: usize = 100_000;

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
    let folder = cache.join(format!("{PREFIX}{:016x}", fingerprint(&version)));
    let library = folder.join(LIBRARY);
    if library.is_file() {
        tidy_up(&cache);
        return Ok(library);
    }
    // If several processes need the library, only one builds it.
    let _alone = alone(&cache)?;
    remove_leftovers(&cache);
    if !library.is_file() {
        make(&folder)?;
    }
    Ok(library)
}

/// Waits until no other process builds the library, at most `MAKING_TIME_MAX`. The returned file
/// holds a lock until it is closed.
fn alone(cache: &Path) -> Result<File, CardError> {
    let failed = |error: std::io::Error| CardError::system(cache.display().to_string(), error);
    std::fs::create_dir_all(cache).map_err(failed)?;
    let lock = File::create(cache.join(LOCK)).map_err(failed)?;
    let began = Instant::now();
    while lock.try_lock().is_err() {
        if began.elapsed() > MAKING_TIME_MAX {
            return Err(CardError::system("the simulation", "another process has been making it for too long"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(lock)
}

/// Removes the temporary folders of killed processes, unless a process is building.
fn tidy_up(cache: &Path) {
    if !leftovers(cache).is_empty()
        && let Ok(lock) = File::create(cache.join(LOCK))
        && lock.try_lock().is_ok()
    {
        remove_leftovers(cache);
    }
}

/// Removes the temporary folders of killed processes. The caller holds the lock of the cache
/// folder, so no living process has such a folder. A folder that cannot be removed stays.
fn remove_leftovers(cache: &Path) {
    leftovers(cache).iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
}

/// The temporary folders in the cache folder.
fn leftovers(cache: &Path) -> Vec<PathBuf> {
    let is_temporary = |name: &str| {
        let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
        parts.is_some_and(|(fingerprint, process)| {
            fingerprint.len() == FINGERPRINT_DIGITS
                && fingerprint.bytes().all(|digit| digit.is_ascii_hexdigit())
                && process.parse::<u32>().is_ok()
        })
    };
    let Ok(entries) = std::fs::read_dir(cache) else { return Vec::new() };
    let entries = entries.take(NAMES_MAX).flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter(|entry| entry.file_name().to_str().is_some_and(is_temporary)).map(|entry| entry.path()).collect()
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

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Output;

    const CHILD: &str = "PANOPLY_FPGA_TEST_CHILD";
    const KILLS: &str = "PANOPLY_FPGA_TEST_KILLS";
    /// A program in Verilator's place. It fails, or kills the process that builds.
    const FAKE: &str = r#"#!/bin/sh
case "$1" in
--version) echo "a fake" ;;
*)
    [ -n "$PANOPLY_FPGA_TEST_KILLS" ] && kill -9 $PPID
    exit 1
    ;;
esac
"#;

    /// A folder that is removed at the end of a test.
    struct TemporaryFolder(PathBuf);

    impl TemporaryFolder {
        fn new(name: &str) -> TemporaryFolder {
            let path = std::env::temp_dir().join(format!("panoply-fpga-build-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            TemporaryFolder(path)
        }

        /// The names in the folder, sorted.
        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for TemporaryFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Child process: builds the library with the fake.
    #[test]
    fn build_with_the_fake() {
        if std::env::var_os(CHILD).is_some() {
            assert!(matches!(library(), Err(NoSimulation::Failed(_))));
        }
    }

    fn child(programs: &TemporaryFolder, cache: &TemporaryFolder, kills: bool) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["card::simulated::build::tests::build_with_the_fake", "--exact"]);
        command.env("PATH", &programs.0).env("PANOPLY_CACHE", &cache.0).env(CHILD, "1");
        if kills {
            command.env(KILLS, "1");
        }
        command.output().unwrap()
    }

    /// Regression: a process that was killed while it built left its folder in the cache for ever.
    #[test]
    fn the_next_build_removes_the_folders_of_killed_ones() {
        let (programs, cache) = (TemporaryFolder::new("programs"), TemporaryFolder::new("killed"));
        // Another process writes the program: this one could not run a file that it has open in a
        // fork of another thread.
        let write = "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh", FAKE]).arg(programs.0.join("verilator"));
        assert!(shell.status().unwrap().success());
        let killed = child(&programs, &cache, true);
        assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
        let left = cache.names();
        assert!(left.len() == 2 && left[0].starts_with(PREFIX) && left[1] == LOCK, "{left:?}");
        let failed = child(&programs, &cache, false);
        assert!(failed.status.success(), "{failed:?}");
        assert_eq!(cache.names(), [LOCK]);
    }

    #[test]
    fn only_temporary_folders_are_removed_and_only_while_nobody_builds() {
        let cache = TemporaryFolder::new("tidy");
        let left = ["fpga-0123456789abcdef.123", "fpga-fedcba9876543210.4"];
        let kept = ["fpga-0123456789abcdef", "fpga-0123456789abcdef.12a", "fpga-0123.12", "other.12"];
        for name in left.iter().chain(&kept) {
            fs::create_dir(cache.0.join(name)).unwrap();
            fs::write(cache.0.join(name).join("harness.cpp"), "").unwrap();
        }
        fs::write(cache.0.join("fpga-0123456789abcdef.5"), "a file").unwrap();
        std::os::unix::fs::symlink("other.12", cache.0.join("fpga-0123456789abcdef.6")).unwrap();
        let building = alone(&cache.0).unwrap();
        let before = cache.names();
        tidy_up(&cache.0);
        assert_eq!(cache.names(), before);
        drop(building);
        tidy_up(&cache.0);
        let expected: Vec<String> = before.into_iter().filter(|name| !left.contains(&name.as_str())).collect();
        assert_eq!(cache.names(), expected);
    }
}
