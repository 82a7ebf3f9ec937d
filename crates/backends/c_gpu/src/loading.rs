//! The message for a vendor's library that cannot be loaded.

use std::error::Error;

/// The reason why an existing library cannot be loaded, in the system's words; `None` if the
/// library is not installed.
pub fn fault(name: &str, error: &libloading::Error) -> Option<String> {
    let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    // For a missing library the message names that library; for a missing dependency it names the
    // dependency.
    let is_missing = words.starts_with(&format!("{name}: cannot open shared object file: No such file"));
    let is_told = cfg!(target_os = "linux") && !is_missing;
    is_told.then(|| format!("{name} cannot be loaded: {words}"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_from_a_damaged_one() {
        // SAFETY: neither file is a library, so loading runs no code.
        let opened = |name: &str| unsafe { libloading::Library::new(name) }.err().and_then(|error| fault(name, &error));
        assert_eq!(opened("libNoSuchLibrary.so.9"), None);
        let path = std::env::temp_dir().join(format!("panoply-damaged-{}.so", std::process::id()));
        std::fs::write(&path, "no library").unwrap_or_default();
        let told = opened(&path.to_string_lossy()).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        assert!(told.contains("cannot be loaded: ") && told.contains("file too short"), "{told}");
    }
}
