//! Searches for plugins: in files named by environment variables, and in the Python packages that
//! contain plugins.

use std::env;
use std::path::{Path, PathBuf};

/// Environment variable with the plugins' files, separated as in `PATH`. If it is set, no other
/// place is searched. An empty value means no plugins.
pub const VARIABLE: &str = "PANOPLY_PJRT_PLUGINS";
/// The usual variable for the location of libtpu.
const TPU_VARIABLE: &str = "TPU_LIBRARY_PATH";
/// Python packages that contain plugins: either a folder of folders, or a folder with the file
/// itself.
const PACKAGES: [&str; 3] = ["jax_plugins", "xla_plugins", "libtpu"];
/// Maximum number of entries that are read from a folder.
const ENTRIES_MAX: usize = 1024;

/// The files of all plugins that were found.
pub fn plugins() -> Vec<PathBuf> {
    match env::var_os(VARIABLE) {
        Some(named) => env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => env::var_os(TPU_VARIABLE).map(PathBuf::from).into_iter().chain(installed(&package_folders())).collect(),
    }
}

/// Python's package folders: those of the environment, the user and the system.
fn package_folders() -> Vec<PathBuf> {
    let below = |root: PathBuf| entries(&root).into_iter().filter(|path| name(path).starts_with("python3"));
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let roots = [
        variable("VIRTUAL_ENV").map(|root| root.join("lib")),
        variable("CONDA_PREFIX").map(|root| root.join("lib")),
        variable("HOME").map(|root| root.join(".local/lib")),
        Some(PathBuf::from("/usr/local/lib")),
        Some(PathBuf::from("/usr/lib")),
    ];
    let pythons = roots.into_iter().flatten().flat_map(below);
    pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder))).collect()
}

/// The plugins in these package folders, each file name once.
pub fn installed(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders.iter().flat_map(|folder| PACKAGES.map(|package| folder.join(package))) {
        let inner = entries(&folder).into_iter().filter(|path| path.is_dir());
        for folder in std::iter::once(folder.clone()).chain(inner) {
            let plugin = entries(&folder).into_iter().find(|path| is_plugin(path));
            let is_new = |path: &PathBuf| !found.iter().any(|known| known.file_name() == path.file_name());
            found.extend(plugin.filter(is_new));
        }
    }
    found
}

/// Whether the file name is that of a plugin.
fn is_plugin(path: &Path) -> bool {
    let name = name(path);
    name.ends_with(".so") && (name.contains("pjrt") || name.contains("xla") || name == "libtpu.so")
}

/// Whether the file is libtpu. It must not be loaded on a machine without a TPU, because it
/// searches the network for one.
pub(crate) fn is_libtpu(path: &Path) -> bool {
    name(path) == "libtpu.so"
}

/// Whether this machine may have a TPU.
pub(crate) fn has_tpu() -> bool {
    // Other devices use both device paths, so a PCI device of Google (0x1ae0) is required as well.
    let vendor = |path: &PathBuf| std::fs::read_to_string(path.join("vendor")).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    entries(Path::new("/sys/bus/pci/devices")).iter().any(|path| vendor(path).trim() == "0x1ae0")
        && (entries(Path::new("/dev")).iter().any(|path| name(path).strip_prefix("accel").is_some_and(is_number))
            || entries(Path::new("/dev/vfio")).iter().any(|path| is_number(&name(path))))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().take(ENTRIES_MAX).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
