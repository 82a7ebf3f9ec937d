//! Checkpoints: everything that training needs to go on, in crash-safe files.
//!
//! A checkpoint is written to a temporary file, synced to the disk, and only then renamed to its
//! final name, so a file with that name is complete. If a file gets damaged all the same, its
//! checksum reveals it: the file is refused with the reason, and the previous one is used. The next
//! checkpoint removes the temporary files of killed writers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use panoply_core::Tensor;

use super::session::{Position, Session};
use crate::error::{Error, Result};
use crate::files::{self, ParameterFile};
use crate::parameters::Parameters;

/// The folder of the checkpoints, and how many are kept.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
}

/// One checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Parameters and buffers.
    pub parameters: Parameters,
    /// The optimiser's state tensors.
    pub state: Vec<Tensor>,
    /// The progress of the session.
    pub position: Position,
    /// The progress of the trainer.
    pub marks: Marks,
    /// The path of the file.
    pub path: PathBuf,
}

/// The progress of a trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marks {
    /// The number of the next epoch.
    pub epoch: u64,
    /// The best figure so far, for early stopping.
    pub best: f64,
    /// Number of epochs since the last improvement.
    pub without: u32,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { epoch: 0, best: f64::INFINITY, without: 0 }
    }
}

const PARAMETER: &str = "model.";
const STATE: &str = "optimiser.";
const EXTENSION: &str = "safetensors";
const CHECKSUM: &str = "checksum";

impl Checkpoints {
    /// Keeps the newest `keep` checkpoints in a folder. The folder is created if it does not exist.
    pub fn new(folder: impl Into<PathBuf>, keep: usize) -> Result<Checkpoints> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).map_err(|error| Error::file(&folder, error))?;
        Ok(Checkpoints { folder, keep: keep.max(1) })
    }

    /// Saves a session before its next step. The newest checkpoints up to this step are kept.
    /// Checkpoints of later steps, which were refused or belong to another training, stay until
    /// this training gets past them.
    pub fn save(&self, session: &mut Session, marks: Marks) -> Result<PathBuf> {
        let mut all = Parameters::new();
        for (name, tensor) in session.parameters()?.iter() {
            all.insert(format!("{PARAMETER}{name}"), tensor.clone());
        }
        for (number, tensor) in session.state()?.into_iter().enumerate() {
            all.insert(format!("{STATE}{number:06}"), tensor);
        }
        let position = session.position()?;
        let path = self.folder.join(format!("checkpoint-{:012}.{EXTENSION}", position.step));
        let mut notes = notes(position, marks);
        let checksum = checksum(&all, &notes).map_err(|reason| Error::file(&path, reason))?;
        notes.insert(CHECKSUM.to_owned(), checksum.to_string());
        files::save(&path, &all, notes)?;
        self.remove_unfinished();
        let until_this = self.list()?.into_iter().rev().filter(|(step, _)| *step <= position.step);
        for (_, old) in until_this.skip(self.keep) {
            // A checkpoint that cannot be deleted does no harm.
            let _ = std::fs::remove_file(old);
        }
        Ok(path)
    }

    /// The newest intact checkpoint, and the errors of the newer ones that were refused.
    pub fn newest(&self) -> Result<(Option<Checkpoint>, Vec<Error>)> {
        let mut refused = Vec::new();
        for (_, path) in self.list()?.into_iter().rev() {
            match read(&path) {
                Ok(checkpoint) => return Ok((Some(checkpoint), refused)),
                Err(error) => refused.push(error),
            }
        }
        Ok((None, refused))
    }

    /// Restores a session from the newest intact checkpoint. Returns the trainer's progress if a
    /// checkpoint was found, and the errors of those that were refused.
    pub fn resume(&self, session: &mut Session) -> Result<(Option<Marks>, Vec<Error>)> {
        let (found, refused) = self.newest()?;
        let Some(found) = found else { return Ok((None, refused)) };
        session.restore(&found.parameters, &found.state, found.position)?;
        Ok((Some(found.marks), refused))
    }

    /// The steps that have a checkpoint, in ascending order. The files are not read: a damaged one
    /// counts.
    pub fn steps(&self) -> Result<Vec<u64>> {
        Ok(self.list()?.into_iter().map(|(step, _)| step).collect())
    }

    /// The files with their steps, the oldest first.
    fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        let entries = std::fs::read_dir(&self.folder).map_err(|error| Error::file(&self.folder, error))?;
        let step = |entry: &std::fs::DirEntry| step_of(entry.file_name().to_str()?);
        let mut found: Vec<(u64, PathBuf)> =
            entries.flatten().filter_map(|entry| Some((step(&entry)?, entry.path()))).collect();
        found.sort();
        Ok(found)
    }

    /// Removes the temporary files of killed writers. A file that cannot be removed does no harm.
    fn remove_unfinished(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(files::UNFINISHED));
            if name.is_some_and(|name| step_of(name).is_some()) {
                files::remove_unfinished(&entry.path());
            }
        }
    }
}

/// The step in the name of a checkpoint.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("checkpoint-")?.strip_suffix(".safetensors")?.parse().ok()
}

fn read(path: &Path) -> Result<Checkpoint> {
    let ParameterFile { parameters: all, notes, .. } = files::load(path)?;
    let damaged = |reason: String| Error::file(path, reason);
    let own = checksum(&all, &notes).map_err(damaged)?;
    let noted: u32 = note(&notes, CHECKSUM).map_err(damaged)?;
    if own != noted {
        return Err(damaged(format!("its checksum is {own:08x} and not {noted:08x} as noted: it is damaged")));
    }
    let mut parameters = Parameters::new();
    let mut state = Vec::new();
    for (name, tensor) in all.iter() {
        if let Some(name) = name.strip_prefix(PARAMETER) {
            parameters.insert(name, tensor.clone());
        } else if name.starts_with(STATE) {
            state.push(tensor.clone());
        }
    }
    let (position, marks) = noted_position(&notes).map_err(damaged)?;
    Ok(Checkpoint { parameters, state, position, marks, path: path.to_owned() })
}

/// The progress of session and trainer as notes. Rust's text form of a float parses to the same
/// number.
fn notes(position: Position, marks: Marks) -> HashMap<String, String> {
    let Position { step, applied, scale, scale_good } = position;
    let Marks { epoch, best, without } = marks;
    let notes = [
        ("step", step.to_string()),
        ("applied", applied.to_string()),
        ("scale", scale.to_string()),
        ("scale_good", scale_good.to_string()),
        ("epoch", epoch.to_string()),
        ("best", best.to_string()),
        ("without", without.to_string()),
    ];
    notes.into_iter().map(|(name, note)| (name.to_owned(), note)).collect()
}

fn noted_position(notes: &HashMap<String, String>) -> Result<(Position, Marks), String> {
    let (step, applied) = (note(notes, "step")?, note(notes, "applied")?);
    let (scale, scale_good): (f32, u32) = (note(notes, "scale")?, note(notes, "scale_good")?);
    if !(scale.is_finite() && scale > 0.0) {
        return Err(format!("its scale is {scale} and no finite number above 0"));
    }
    let marks = Marks { epoch: note(notes, "epoch")?, best: note(notes, "best")?, without: note(notes, "without")? };
    Ok((Position { step, applied, scale, scale_good }, marks))
}

fn note<T: std::str::FromStr>(notes: &HashMap<String, String>, name: &str) -> Result<T, String> {
    let text = notes.get(name).ok_or_else(|| format!("it has no note of its {name}: it is no checkpoint"))?;
    text.parse().map_err(|_| format!("its {name} is no number"))
}

/// A checksum of names, element types, shapes and contents, and of all notes but the checksum
/// itself.
fn checksum(parameters: &Parameters, notes: &HashMap<String, String>) -> Result<u32, String> {
    let mut hasher = crc32fast::Hasher::new();
    // The length in front of each text keeps the boundaries between texts unambiguous.
    let text = |hasher: &mut crc32fast::Hasher, text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for (name, tensor) in parameters.iter() {
        text(&mut hasher, name);
        text(&mut hasher, tensor.dtype().name());
        hasher.update(&(tensor.shape().rank() as u64).to_le_bytes());
        tensor.shape().iter().for_each(|size| hasher.update(&(*size as u64).to_le_bytes()));
        hasher.update(tensor.as_bytes().map_err(|error| error.to_string())?);
    }
    let notes: std::collections::BTreeMap<_, _> = notes.iter().filter(|(name, _)| *name != CHECKSUM).collect();
    for (name, note) in notes {
        text(&mut hasher, name);
        text(&mut hasher, note);
    }
    Ok(hasher.finalize())
}
