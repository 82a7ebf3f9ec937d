//! Reads files of bounded length, even if the path names a device or a pipe.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads the text of a regular file of at most `bytes_max` bytes. A device or a pipe reports no
/// length and may have no end. It is refused before it is opened, because opening it could block
/// forever.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let refused = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused("expected a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(refused(format!("expected at most {bytes_max} bytes, got more")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected text in UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_has_no_end_is_refused() {
        let path = std::env::temp_dir().join(format!("panoply-small-file-{}", std::process::id()));
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("at most 4 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(read_text(&std::env::temp_dir(), 5).unwrap_err().to_string().contains("regular file"));
        #[cfg(unix)]
        assert!(read_text(Path::new("/dev/zero"), 5).unwrap_err().to_string().contains("regular file"));
    }
}
