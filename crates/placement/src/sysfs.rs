//! Bounded reading of a tree of small text files that are not trusted.
//!
//! Nothing here fails: a file that is missing, unreadable, too large or malformed becomes a
//! [`Note`] and a `None`. Only regular files are opened, so that a named pipe in a prepared tree
//! cannot block the reader.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use panoply_core::cpu_set::{CpuSet, LIST_BYTES_MAX};

/// The longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = LIST_BYTES_MAX;

/// The most names that are taken from one folder.
pub const ENTRIES_MAX: usize = 65_536;

/// The most notes that are kept; the rest are counted.
pub const NOTES_MAX: usize = 256;

const EXCERPT_CHARS_MAX: usize = 40;

/// One gap in the description of the machine, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file or folder, relative to the root that was read.
    pub path: PathBuf,
    /// The problem with it.
    pub problem: Problem,
}

/// A problem with a file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It does not exist.
    Missing,
    /// It cannot be read, or is not a regular file.
    Unreadable(io::ErrorKind),
    /// It is longer than [`FILE_BYTES_MAX`].
    TooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// It holds more entries than are read.
    TooMany {
        /// The bound.
        max: usize,
    },
    /// Its text is malformed.
    Malformed {
        /// The expected content.
        expected: &'static str,
        /// The actual content, shortened.
        got: String,
    },
    /// It contradicts another file; the text says which one was used.
    Inconsistent(&'static str),
    /// Further notes that were not kept.
    NotesDropped {
        /// The number of dropped notes.
        count: usize,
    },
}

impl Problem {
    pub(super) fn malformed(expected: &'static str, got: &str) -> Problem {
        Problem::Malformed { expected, got: excerpt(got) }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing => write!(f, "missing"),
            Problem::Unreadable(kind) => write!(f, "cannot be read: {kind}"),
            Problem::TooLarge { bytes_max } => write!(f, "longer than {bytes_max} bytes"),
            Problem::TooMany { max } => write!(f, "more than {max} entries; the rest is ignored"),
            Problem::Malformed { expected, got } => write!(f, "expected {expected}, got {got:?}"),
            Problem::Inconsistent(what) => write!(f, "{what}"),
            Problem::NotesDropped { count } => write!(f, "{count} more notes"),
        }
    }
}

/// A tree of files below a root, and the notes made while it is read.
pub(super) struct Tree<'a> {
    root: &'a Path,
    notes: Vec<Note>,
    dropped: usize,
}

impl<'a> Tree<'a> {
    pub fn new(root: &'a Path) -> Tree<'a> {
        Tree { root, notes: Vec::new(), dropped: 0 }
    }

    pub fn note(&mut self, path: &str, problem: Problem) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { path: path.into(), problem });
        } else {
            self.dropped += 1;
        }
    }

    pub fn into_notes(mut self) -> Vec<Note> {
        if self.dropped > 0 {
            self.notes.push(Note { path: "".into(), problem: Problem::NotesDropped { count: self.dropped } });
        }
        self.notes
    }

    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The file's text. A missing file is noted.
    pub fn text(&mut self, path: &str) -> Option<String> {
        self.read(path).map_err(|problem| self.note(path, problem)).ok()
    }

    /// The file's text. A missing file is not noted.
    pub fn optional_text(&mut self, path: &str) -> Option<String> {
        match self.read(path) {
            Ok(text) => Some(text),
            Err(Problem::Missing) => None,
            Err(problem) => {
                self.note(path, problem);
                None
            }
        }
    }

    /// A CPU list such as `0-3,8-11`.
    pub fn cpus(&mut self, path: &str) -> Option<CpuSet> {
        let text = self.text(path)?;
        self.parse_cpus(path, &text)
    }

    /// A CPU list from an optional file.
    pub fn optional_cpus(&mut self, path: &str) -> Option<CpuSet> {
        let text = self.optional_text(path)?;
        self.parse_cpus(path, &text)
    }

    /// A decimal number, possibly negative.
    pub fn number(&mut self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        let number = text.trim_ascii().parse().ok();
        if number.is_none() {
            self.note(path, Problem::malformed("a number", &text));
        }
        number
    }

    /// A number written `0x8086`, of at most `max`.
    pub fn hex(&mut self, path: &str, max: u32) -> Option<u32> {
        let text = self.text(path)?;
        let digits = text.trim_ascii().strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).filter(|number| *number <= max);
        if number.is_none() {
            self.note(path, Problem::malformed("a number such as 0x8086", &text));
        }
        number
    }

    /// The names in a folder, sorted; empty if the folder does not exist. Names that are not UTF-8
    /// are left out.
    pub fn entries(&mut self, path: &str) -> Vec<String> {
        let folder = match fs::read_dir(self.root.join(path)) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                self.note(path, Problem::Unreadable(error.kind()));
                return Vec::new();
            }
        };
        let mut names = Vec::new();
        for (index, entry) in folder.enumerate() {
            if index == ENTRIES_MAX {
                self.note(path, Problem::TooMany { max: ENTRIES_MAX });
                break;
            }
            names.extend(entry.ok().and_then(|entry| entry.file_name().into_string().ok()));
        }
        names.sort_unstable();
        names
    }

    /// The numbers N of the folder's entries `<prefix>N`, ascending, up to `max`.
    pub fn numbered(&mut self, path: &str, prefix: &str, max: usize) -> Vec<usize> {
        let digits = |name: &String| name.strip_prefix(prefix).filter(|digits| !digits.starts_with('+'))?.parse().ok();
        let mut numbers: Vec<usize> = self.entries(path).iter().filter_map(digits).filter(|n| *n <= max).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn parse_cpus(&mut self, path: &str, text: &str) -> Option<CpuSet> {
        let cpus = text.parse().ok();
        if cpus.is_none() {
            self.note(path, Problem::malformed("a CPU list such as 0-3,8-11", text));
        }
        cpus
    }

    fn read(&self, path: &str) -> Result<String, Problem> {
        let problem = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Problem::Missing,
            kind => Problem::Unreadable(kind),
        };
        let full = self.root.join(path);
        if !fs::metadata(&full).map_err(problem)?.is_file() {
            return Err(Problem::Unreadable(io::ErrorKind::InvalidInput));
        }
        let mut bytes = Vec::new();
        let file = File::open(&full).map_err(problem)?;
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(problem)?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(Problem::TooLarge { bytes_max: FILE_BYTES_MAX });
        }
        String::from_utf8(bytes).map_err(|error| {
            Problem::malformed("text", &String::from_utf8_lossy(&error.as_bytes()[..error.as_bytes().len().min(64)]))
        })
    }
}

/// The beginning of a text, for messages.
pub(super) fn excerpt(text: &str) -> String {
    let text = text.trim_ascii_end();
    match text.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
