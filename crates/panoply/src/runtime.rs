//! The runtime as users of the façade hold it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use panoply_runtime::BuildError;

use crate::builder::Builder;
use crate::settings::{Settings, SettingsError};

/// The devices of this machine, each behind one worker. Share it by reference or in an `Arc`; dropping it finishes the
/// ops it has taken.
///
/// Everything that can be done with it ([`run`](panoply_runtime::Runtime::run),
/// [`try_run`](panoply_runtime::Runtime::try_run), [`devices`](panoply_runtime::Runtime::devices),
/// [`workers`](panoply_runtime::Runtime::workers), [`shutdown`](panoply_runtime::Runtime::shutdown), …) comes from
/// [`panoply_runtime::Runtime`], which it derefs to; what is added here is that it knows the backends of this build.
pub struct Runtime {
    inner: Arc<panoply_runtime::Runtime>,
    warnings: Vec<String>,
}

/// A runtime with every backend of this build: the same as [`Runtime::new`].
pub fn runtime() -> Result<Runtime, BuildError> {
    Runtime::new()
}

impl Runtime {
    /// A runtime with every backend of this build.
    pub fn new() -> Result<Runtime, BuildError> {
        Runtime::builder().build()
    }

    /// Chooses what the runtime is made of, beginning with every backend of this build.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A runtime as `panoply.toml` and the environment say; see [`Settings`].
    pub fn configured() -> Result<Runtime, SettingsError> {
        Ok(Settings::load()?.builder().build()?)
    }

    /// What its user should know though it is no error, such as that figures learned before are not used.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn new_with(inner: panoply_runtime::Runtime, warnings: Vec<String>) -> Runtime {
        Runtime { inner: Arc::new(inner), warnings }
    }
}

impl Deref for Runtime {
    type Target = panoply_runtime::Runtime;

    fn deref(&self) -> &panoply_runtime::Runtime {
        &self.inner
    }
}

impl From<panoply_runtime::Runtime> for Runtime {
    fn from(inner: panoply_runtime::Runtime) -> Runtime {
        Runtime { inner: Arc::new(inner), warnings: Vec::new() }
    }
}

/// What outlives a borrow, such as a collection of vectors, shares the runtime.
impl From<&Runtime> for Arc<panoply_runtime::Runtime> {
    fn from(runtime: &Runtime) -> Arc<panoply_runtime::Runtime> {
        Arc::clone(&runtime.inner)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices().map(|device| device.id.to_string())).finish()
    }
}
