//! The façade's runtime.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use panoply_core::DeviceId;
use panoply_runtime::{BuildError, DeviceShare, Share};

use crate::builder::Builder;
use crate::settings::{Settings, SettingsError};

/// The devices of this machine, each with one worker. Share a runtime by reference or in an `Arc`.
/// Dropping it finishes the accepted ops.
///
/// Its methods ([`run`](panoply_runtime::Runtime::run),
/// [`try_run`](panoply_runtime::Runtime::try_run), [`devices`](panoply_runtime::Runtime::devices),
/// [`workers`](panoply_runtime::Runtime::workers),
/// [`shutdown`](panoply_runtime::Runtime::shutdown), …) come from [`panoply_runtime::Runtime`], its
/// `Deref` target. This type adds the backends of this build.
pub struct Runtime {
    inner: Arc<panoply_runtime::Runtime>,
    warnings: Vec<String>,
}

/// Builds a runtime with every backend of this build, like [`Runtime::new`].
pub fn runtime() -> Result<Runtime, BuildError> {
    Runtime::new()
}

impl Runtime {
    /// Builds a runtime with every backend of this build.
    pub fn new() -> Result<Runtime, BuildError> {
        Runtime::builder().build()
    }

    /// Returns a builder that starts with every backend of this build.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Builds a runtime with the settings of `panoply.toml` and the environment; see [`Settings`].
    pub fn configured() -> Result<Runtime, SettingsError> {
        Ok(Settings::load()?.builder().build()?)
    }

    /// Claims a device, or a part of it: see [`panoply_runtime::Runtime::claim`].
    pub fn claim(&self, device: DeviceId, share: Share) -> panoply_core::Result<DeviceShare> {
        self.inner.claim(device, share)
    }

    /// Warnings for the user that are not errors, for example that learned figures are not used.
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

/// Shares the runtime with objects that outlive a borrow, such as a collection of vectors.
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
