//! The files that a setting with the name of a library may mean.

use std::path::{Path, PathBuf};

/// Maximum number of entries that are read from a folder.
const ENTRIES_MAX: usize = 4096;

/// The file of this name, or the libraries in the folder of this name. `is_it` answers whether a
/// file name is the library's. A folder without any gives the place where `usual` would be.
pub fn library_files(named: &Path, is_it: impl Fn(&str) -> bool, usual: &str) -> Vec<PathBuf> {
    if !named.is_dir() {
        return vec![named.to_owned()];
    }
    let entries = std::fs::read_dir(named).into_iter().flatten().take(ENTRIES_MAX);
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let has_name = |path: &PathBuf| path.file_name().is_some_and(|name| is_it(&name.to_string_lossy()));
    let mut found: Vec<PathBuf> = paths.filter(has_name).collect();
    found.sort();
    if found.is_empty() { vec![named.join(usual)] } else { found }
}

/// The loader's own message about a file that is there and cannot be loaded. It names the library
/// that is missing. `None` if there is no such file.
pub fn load_failure(file: &Path, error: &dyn std::error::Error) -> Option<String> {
    let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    file.exists().then(|| format!("{} cannot be loaded: {words}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_means_the_libraries_in_it() {
        let folder = std::env::temp_dir().join(format!("panoply-whole-model-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let is_it = |name: &str| name.starts_with("libone.so");
        assert_eq!(library_files(&folder, is_it, "libone.so"), [folder.join("libone.so")], "none is there");
        for name in ["libone.so.2", "libone.so.1", "libother.so"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = library_files(&folder, is_it, "libone.so");
        assert_eq!(found, [folder.join("libone.so.1"), folder.join("libone.so.2")]);
        assert_eq!(library_files(&folder.join("any"), is_it, "libone.so"), [folder.join("any")], "a file's name");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_is_there_has_a_reason_of_its_own() {
        let error = std::io::Error::other("libtbb.so.12: no such file");
        let told = load_failure(Path::new("/"), &error).unwrap();
        assert_eq!(told, "/ cannot be loaded: libtbb.so.12: no such file");
        assert_eq!(load_failure(Path::new("/nonexistent/lib.so"), &error), None);
    }
}
