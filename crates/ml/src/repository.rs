//! A folder of models: `NAME/VERSION/model.onnx`, versions being numbers.
//!
//! 1. A model is loaded when it is first asked for, warmed up, and served from then on. The newest version counts unless another is
//!    asked for.
//! 2. What is loaded stays within a budget of bytes: the models that were asked for longest ago go first. One that does not fit at
//!    all is refused with both figures.
//! 3. A caller holds the server that it was given. A model that goes, or is replaced by a newer version, answers what it has taken
//!    before its memory does: no request is dropped.
//! 4. The list is locked to look a model up, never while one is loaded; who asks for a model that is being loaded waits for that.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use panoply_runtime::Runtime;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::network::Network;
use crate::serve::{ServeOptions, Server};

/// The most models that a folder is searched for, and the most versions of one.
const ENTRIES_MAX: usize = 1 << 16;
/// The longest name of a model.
const NAME_BYTES_MAX: usize = 128;

/// How a folder of models is kept.
#[derive(Clone, Debug)]
pub struct RepositoryOptions {
    /// The most bytes of weights that are loaded at a time.
    pub weight_bytes_max: u64,
    /// How each model is served.
    pub serve: ServeOptions,
    /// Sizes by name that open dimensions have while a model is warmed up.
    pub warm_up: Vec<(String, usize)>,
}

impl Default for RepositoryOptions {
    fn default() -> RepositoryOptions {
        RepositoryOptions { weight_bytes_max: 4 << 30, serve: ServeOptions::default(), warm_up: Vec::new() }
    }
}

/// A model that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelState {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// The bytes of its weights.
    pub weight_bytes: u64,
    /// How many requests wait for it.
    pub waiting: usize,
}

/// Models in a folder, loaded on demand.
pub struct Repository {
    runtime: Arc<Runtime>,
    folder: PathBuf,
    options: RepositoryOptions,
    models: Mutex<HashMap<(String, u64), Arc<Entry>>>,
    clock: AtomicU64,
}

#[derive(Default)]
struct Entry {
    used: AtomicU64,
    weight_bytes: AtomicU64,
    server: Mutex<Option<Arc<Server>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Repository {
    /// A folder of models. Nothing is loaded yet.
    pub fn open(
        runtime: impl Into<Arc<Runtime>>,
        folder: impl AsRef<Path>,
        options: RepositoryOptions,
    ) -> Result<Repository> {
        let folder = folder.as_ref().to_owned();
        std::fs::read_dir(&folder).map_err(|cause| Error::file(&folder, cause))?;
        let (models, clock) = (Mutex::default(), AtomicU64::new(0));
        Ok(Repository { runtime: runtime.into(), folder, options, models, clock })
    }

    /// The names of the models in the folder.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = entries(&self.folder)?;
        names.retain(|name| is_name(name) && self.versions(name).is_ok_and(|versions| !versions.is_empty()));
        Ok(names)
    }

    /// The versions of a model, increasing.
    pub fn versions(&self, name: &str) -> Result<Vec<u64>> {
        if !is_name(name) {
            return Err(Error::invalid(
                "the name of a model",
                "letters, digits, '-', '_' and '.'",
                format!("{name:?}"),
            ));
        }
        let folder = self.folder.join(name);
        let numbers = entries(&folder)?.into_iter().filter_map(|entry| entry.parse::<u64>().ok());
        let mut versions: Vec<u64> = numbers.filter(|version| file(&folder, *version).is_file()).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// A model that is ready to serve: this version, or else the newest.
    pub fn get(&self, name: &str, version: Option<u64>) -> Result<Arc<Server>> {
        let versions = self.versions(name)?;
        let chosen = version.or(versions.last().copied()).filter(|version| versions.contains(version));
        let Some(version) = chosen else {
            let expected = format!("one of the versions {versions:?} of {name:?}");
            return Err(Error::invalid(
                "a model",
                expected,
                version.map_or("none".to_owned(), |version| version.to_string()),
            ));
        };
        let entry = Arc::clone(locked(&self.models).entry((name.to_owned(), version)).or_default());
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut server = locked(&entry.server);
        if let Some(server) = &*server {
            return Ok(Arc::clone(server));
        }
        let made = Arc::new(self.load(name, version, &entry)?);
        *server = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Loads the newest version of a model that is served, and lets older ones go once it is ready. Whether there was a newer one.
    pub fn refresh(&self, name: &str) -> Result<bool> {
        let newest = self.versions(name)?.last().copied();
        let is_loaded = |version: u64| {
            let entry = locked(&self.models).get(&(name.to_owned(), version)).cloned();
            entry.is_some_and(|entry| locked(&entry.server).is_some())
        };
        let Some(newest) = newest.filter(|newest| !is_loaded(*newest)) else { return Ok(false) };
        self.get(name, Some(newest))?;
        self.remove(|(known, version)| known == name && *version != newest);
        Ok(true)
    }

    /// Lets a model go. What it has taken is still answered.
    pub fn unload(&self, name: &str) {
        self.remove(|(known, _)| known == name);
    }

    /// Takes models off the list, then waits for their last answers.
    fn remove(&self, goes: impl Fn(&(String, u64)) -> bool) {
        let mut models = locked(&self.models);
        let keys: Vec<(String, u64)> = models.keys().filter(|key| goes(key)).cloned().collect();
        let gone: Vec<Option<Arc<Entry>>> = keys.iter().map(|key| models.remove(key)).collect();
        drop(models);
        drop(gone);
    }

    /// What is loaded.
    pub fn loaded(&self) -> Vec<ModelState> {
        let entries: Vec<_> =
            locked(&self.models).iter().map(|(key, entry)| (key.clone(), Arc::clone(entry))).collect();
        let state = |((name, version), entry): ((String, u64), Arc<Entry>)| {
            let server = entry.server.try_lock().ok()?.clone()?;
            let weight_bytes = entry.weight_bytes.load(Ordering::Relaxed);
            Some(ModelState { name, version, weight_bytes, waiting: server.waiting() })
        };
        let mut loaded: Vec<ModelState> = entries.into_iter().filter_map(state).collect();
        loaded.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        loaded
    }

    fn load(&self, name: &str, version: u64, entry: &Entry) -> Result<Server> {
        let network = Network::load(file(&self.folder.join(name), version))?;
        let bytes = network.weight_bytes() as u64;
        self.make_room(name, version, bytes)?;
        entry.weight_bytes.store(bytes, Ordering::Relaxed);
        let model = Model::new(Arc::clone(&self.runtime), network);
        let sizes: Vec<(&str, usize)> =
            self.options.warm_up.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        // Zeros may be what a model refuses; the first caller will be told why, with inputs of its own.
        let _ = model.warm_up(&sizes);
        Server::start(&model, self.options.serve.clone())
    }

    /// Lets models go, those asked for longest ago first, until so many bytes more fit.
    fn make_room(&self, name: &str, version: u64, bytes: u64) -> Result<()> {
        let limit = self.options.weight_bytes_max;
        if bytes > limit {
            return Err(Error::Limit { what: "the bytes of a model's weights in this repository", limit, got: bytes });
        }
        // Declared before the lock, so that it is given back before a model that goes has answered what it took.
        let mut gone: Vec<Arc<Entry>> = Vec::new();
        let mut models = locked(&self.models);
        loop {
            let others = models.iter().filter(|((known, at), _)| (known.as_str(), *at) != (name, version));
            let taken: u64 = others.clone().map(|(_, entry)| entry.weight_bytes.load(Ordering::Relaxed)).sum();
            let oldest = others
                .filter(|(_, entry)| entry.weight_bytes.load(Ordering::Relaxed) > 0)
                .min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed))
                .map(|(key, _)| key.clone());
            match oldest {
                Some(key) if taken + bytes > limit => gone.extend(models.remove(&key)),
                _ => return Ok(()),
            }
        }
    }
}

fn file(folder: &Path, version: u64) -> PathBuf {
    folder.join(version.to_string()).join("model.onnx")
}

/// Names never lead out of the folder.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(plain)
}

fn entries(folder: &Path) -> Result<Vec<String>> {
    let error = |cause| Error::file(folder, cause);
    let names = std::fs::read_dir(folder).map_err(error)?.take(ENTRIES_MAX);
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}
