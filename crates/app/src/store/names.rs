//! Names of objects as paths of this system. An object's name consists of parts between slashes. A
//! part with another meaning to the system is refused, so that no name leads out of the folder that
//! objects are written to.

/// Device names on Windows, in every folder and with every extension.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// The parts of a name, each of which is a file or folder name. The error describes the invalid
/// part.
pub fn parts(name: &str, is_windows: bool) -> Result<Vec<&str>, &'static str> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.iter().find_map(|part| fault(part, is_windows)) {
        Some(fault) => Err(fault),
        None => Ok(parts),
    }
}

fn fault(part: &str, is_windows: bool) -> Option<&'static str> {
    if matches!(part, "" | "." | "..") || part.contains(['/', '\0']) {
        return Some("a part of it is no name");
    }
    if !is_windows {
        return None;
    }
    if part.contains(|c: char| matches!(c, '\\' | ':' | '<' | '>' | '"' | '|' | '?' | '*') || c.is_control()) {
        return Some("it has one of \\ : < > \" | ? * or a control character");
    }
    if part.ends_with(['.', ' ']) {
        return Some("a part of it ends in a dot or a space");
    }
    is_device(part).then_some("a part of it is the name of a device")
}

/// Whether Windows takes a part for a device: the text before the first dot, without trailing
/// spaces.
fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end_matches(' ').to_uppercase();
    let is_port = |stem: &str| {
        let number = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
        number.is_some_and(|number| {
            let mut chars = number.chars();
            matches!((chars.next(), chars.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
        })
    };
    DEVICES.contains(&stem.as_str()) || is_port(&stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for name in ["a", "a/b.txt", "CON", "c:\\x", "a\\..\\b", "nul.txt", "ends.", "ends ", "COM1"] {
            assert!(parts(name, false).is_ok(), "{name}");
        }
        for name in ["", "/", "/etc/passwd", "a//b", "a/", ".", "..", "a/../b", "a/./b", "a\0b"] {
            assert!(parts(name, false).is_err() && parts(name, true).is_err(), "{name:?}");
        }
        for name in ["a", "a/b.txt", "CONSOLE", "COM", "COM10", "COMA", "null", ".hidden", "a b", "LPT.txt", "x/é"] {
            assert!(parts(name, true).is_ok(), "{name}");
        }
        let windows = [
            "..\\evil",
            "a\\..\\..\\evil",
            "\\\\host\\share",
            "C:\\evil",
            "C:evil",
            "file:stream",
            "a/C:/b",
            "CON",
            "con",
            "a/NUL",
            "nul.txt",
            "Nul .txt",
            "aux.tar.gz",
            "COM1",
            "com¹",
            "lpt9.x",
            "COM0",
            "CONIN$",
            "conout$",
            "dot.",
            "a/dots..",
            "space ",
            "a /b",
            "a?",
            "a*",
            "a|b",
            "<a>",
            "\"",
            "tab\t",
            "...",
        ];
        for name in windows {
            assert!(parts(name, true).is_err(), "{name:?}");
        }
        assert_eq!(parts("a/b/c", true), Ok(vec!["a", "b", "c"]));
    }
}
