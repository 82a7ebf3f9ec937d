//! Paths that commands which write out data must not overwrite: the store or collection itself, its
//! key, and anchors.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{is_same_file, is_within, state_path};
use crate::configuration::store::{AnchorPlace, KeySource, StorePlace};
use crate::failure::Failure;
use crate::partial::{folder_of, is_same_place};

/// Protected folders and files, each with a description.
#[derive(Debug)]
pub struct ProtectedPlaces {
    folders: Vec<(PathBuf, &'static str)>,
    files: Vec<(PathBuf, &'static str)>,
}

impl ProtectedPlaces {
    /// The paths that belong to a collection.
    pub fn of_collection(path: &Path, key: Option<&KeySource>) -> ProtectedPlaces {
        let mut folders = vec![(path.to_owned(), "the collection itself")];
        folders.extend(state_path().ok().map(|folder| (folder, "the folder of anchors")));
        let files = key.and_then(key_file).map(|file| (file.clone(), "the collection's key"));
        ProtectedPlaces { folders, files: files.into_iter().collect() }
    }

    /// The paths that belong to a store.
    pub fn of(place: &StorePlace, key: &KeySource) -> ProtectedPlaces {
        let mut folders = vec![(place.path.clone(), "the store itself")];
        let mut files = Vec::new();
        match &place.anchor {
            AnchorPlace::None => {}
            AnchorPlace::File(file) => files.push((file.clone(), "the store's anchor")),
            AnchorPlace::StateFolder => {
                folders.extend(state_path().ok().map(|folder| (folder, "the folder of anchors")));
            }
        }
        files.extend(key_file(key).map(|file| (file.clone(), "the store's key")));
        ProtectedPlaces { folders, files }
    }

    /// Refuses targets that are one of these files, or lie in one of these folders. Each folder is
    /// checked once.
    pub fn expect_outside(&self, option: &str, targets: impl IntoIterator<Item = PathBuf>) -> Result<(), Failure> {
        let mut seen = HashSet::new();
        for target in targets {
            let folder = folder_of(&target);
            if !seen.contains(folder) {
                seen.insert(folder.to_owned());
                refuse(self.folders.iter().find(|(own, _)| is_within(own, folder)), option, &target)?;
            }
            let is_file = |file: &Path| {
                file.file_name() == target.file_name() && is_same_place(file, &target) || is_same_file(file, &target)
            };
            refuse(self.files.iter().find(|(file, _)| is_file(file)), option, &target)?;
        }
        Ok(())
    }
}

/// The file that a key comes from.
fn key_file(key: &KeySource) -> Option<&PathBuf> {
    match key {
        KeySource::File(file) | KeySource::PassphraseFile(file) | KeySource::Generated(file) => Some(file),
        KeySource::Environment(_) | KeySource::PassphraseEnvironment(_) | KeySource::Terminal => None,
    }
}

fn refuse(found: Option<&(PathBuf, &'static str)>, option: &str, target: &Path) -> Result<(), Failure> {
    let Some((_, what)) = found else { return Ok(()) };
    Err(Failure::Usage(format!("{option}: expected a place outside of {what}, got {}", target.display())))
}
