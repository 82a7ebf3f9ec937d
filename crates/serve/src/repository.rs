//! A folder of models: `NAME/VERSION/model.onnx`, where versions are numbers.
//!
//! 1. A model is loaded and warmed up at its first request, and served from then on. The newest
//!    version is used unless another is requested.
//! 2. Loaded models stay within a budget of bytes: the least recently requested models are unloaded
//!    first. A model that exceeds the whole budget is refused with both figures.
//! 3. A caller holds the server that it was given. A model that is unloaded, or replaced by a newer
//!    version, answers its accepted requests before its memory is freed: no request is dropped.
//! 4. The list is locked to look up a model, never while one is loaded; requests for a model that
//!    is being loaded wait for it.
//! 5. In a fork of the process another thread's loading would never end. So in a fork models are
//!    refused, none is loaded or unloaded, and loaded models stay in memory until the fork ends.
//!    A wait for a model that is being loaded ends there, if a signal handler forks meanwhile. The
//!    folder's content can still be listed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use panoply_models::{Model, Network};
use panoply_runtime::Runtime;
use panoply_runtime::process::{self, Process};

use crate::error::{Error, Result};
use crate::server::{ServeOptions, Server};

/// Maximal number of models that a folder is searched for, and of versions of one model.
const ENTRIES_MAX: usize = 1 << 16;
/// Maximal length of a model's name.
const NAME_BYTES_MAX: usize = 128;

/// Options of a repository.
#[derive(Clone, Debug)]
pub struct RepositoryOptions {
    /// Maximal bytes of weights that are loaded at a time.
    pub weight_bytes_max: u64,
    /// How each model is served.
    pub serve: ServeOptions,
    /// Sizes, by name, of open dimensions while a model is warmed up.
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
    /// Number of waiting requests.
    pub waiting: usize,
}

/// Models in a folder, loaded on demand.
pub struct Repository {
    runtime: Arc<Runtime>,
    folder: PathBuf,
    options: RepositoryOptions,
    models: Mutex<HashMap<(String, u64), Arc<ModelEntry>>>,
    clock: AtomicU64,
    process: Process,
}

/// Name of a repository in errors.
const REPOSITORY: &str = "the folder of models";

#[derive(Default)]
struct ModelEntry {
    used: AtomicU64,
    weight_bytes: AtomicU64,
    server: Mutex<Option<Arc<Server>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Repository {
    /// Opens a folder of models. Nothing is loaded yet.
    pub fn open(
        runtime: impl Into<Arc<Runtime>>,
        folder: impl AsRef<Path>,
        options: RepositoryOptions,
    ) -> Result<Repository> {
        let folder = folder.as_ref().to_owned();
        std::fs::read_dir(&folder).map_err(|cause| Error::file(&folder, cause))?;
        let (models, clock, process) = (Mutex::default(), AtomicU64::new(0), Process::current());
        Ok(Repository { runtime: runtime.into(), folder, options, models, clock, process })
    }

    /// The names of the models in the folder.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = entries(&self.folder)?;
        names.retain(|name| is_name(name) && self.versions(name).is_ok_and(|versions| !versions.is_empty()));
        Ok(names)
    }

    /// The versions of a model, ascending.
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

    /// A server for a model: this version, or else the newest.
    pub fn get(&self, name: &str, version: Option<u64>) -> Result<Arc<Server>> {
        self.process.check(REPOSITORY)?;
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
        // Another thread may be loading the model. A fork in a signal handler ends this wait.
        let forked = || Error::Run(self.process.refusal(REPOSITORY));
        let mut server = process::lock(&entry.server, self.process).ok_or_else(forked)?;
        if let Some(server) = &*server {
            return Ok(Arc::clone(server));
        }
        let made = Arc::new(self.load(name, version, &entry)?);
        *server = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Loads the newest version of a served model, and unloads older ones once it is ready. Returns
    /// whether there was a newer one.
    pub fn refresh(&self, name: &str) -> Result<bool> {
        self.process.check(REPOSITORY)?;
        let newest = self.versions(name)?.last().copied();
        let is_loaded = |version: u64| {
            let entry = locked(&self.models).get(&(name.to_owned(), version)).cloned();
            // In a fork `get` below refuses.
            let is_some =
                |entry: Arc<ModelEntry>| process::lock(&entry.server, self.process).is_some_and(|it| it.is_some());
            entry.is_some_and(is_some)
        };
        let Some(newest) = newest.filter(|newest| !is_loaded(*newest)) else { return Ok(false) };
        self.get(name, Some(newest))?;
        self.remove(|(known, version)| known == name && *version != newest);
        Ok(true)
    }

    /// Unloads a model. Accepted requests are still answered. In a fork this does nothing.
    pub fn unload(&self, name: &str) {
        if !self.process.is_here() {
            return;
        }
        self.remove(|(known, _)| known == name);
    }

    /// Removes models from the list, then waits for their last answers.
    fn remove(&self, goes: impl Fn(&(String, u64)) -> bool) {
        let mut models = locked(&self.models);
        let keys: Vec<(String, u64)> = models.keys().filter(|key| goes(key)).cloned().collect();
        let gone: Vec<Option<Arc<ModelEntry>>> = keys.iter().map(|key| models.remove(key)).collect();
        drop(models);
        drop(gone);
    }

    /// The loaded models; empty in a fork.
    pub fn loaded(&self) -> Vec<ModelState> {
        if !self.process.is_here() {
            return Vec::new();
        }
        let entries: Vec<_> =
            locked(&self.models).iter().map(|(key, entry)| (key.clone(), Arc::clone(entry))).collect();
        let state = |((name, version), entry): ((String, u64), Arc<ModelEntry>)| {
            let server = entry.server.try_lock().ok()?.clone()?;
            let weight_bytes = entry.weight_bytes.load(Ordering::Relaxed);
            Some(ModelState { name, version, weight_bytes, waiting: server.waiting() })
        };
        let mut loaded: Vec<ModelState> = entries.into_iter().filter_map(state).collect();
        loaded.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        loaded
    }

    fn load(&self, name: &str, version: u64, entry: &ModelEntry) -> Result<Server> {
        let network = Network::load(file(&self.folder.join(name), version))?;
        let bytes = network.weight_bytes() as u64;
        self.make_room(name, version, bytes)?;
        entry.weight_bytes.store(bytes, Ordering::Relaxed);
        let model = Model::new(Arc::clone(&self.runtime), network);
        let sizes: Vec<(&str, usize)> =
            self.options.warm_up.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        // A model may refuse zeros; the first caller gets such an error, with inputs of its own.
        let _ = model.warm_up(&sizes);
        Server::start(&model, self.options.serve.clone())
    }

    /// Unloads models, least recently requested first, until `bytes` more fit.
    fn make_room(&self, name: &str, version: u64, bytes: u64) -> Result<()> {
        let limit = self.options.weight_bytes_max;
        if bytes > limit {
            return Err(Error::Limit { what: "the bytes of a model's weights in this repository", limit, got: bytes });
        }
        // Declared before the lock, so that the lock is released before unloaded models answer
        // their accepted requests.
        let mut gone: Vec<Arc<ModelEntry>> = Vec::new();
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

impl Drop for Repository {
    fn drop(&mut self) {
        if !self.process.is_here() {
            let models = self.models.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
            std::mem::forget((std::mem::take(models), Arc::clone(&self.runtime)));
        }
    }
}

fn file(folder: &Path, version: u64) -> PathBuf {
    folder.join(version.to_string()).join("model.onnx")
}

/// Whether the name is valid; valid names never lead out of the folder.
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
