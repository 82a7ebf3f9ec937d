//! Builds a runtime, beginning with every backend of this build.

use std::sync::Arc;

use panoply_core::{Absence, Api, Backend, DeviceId, OpenOptions};
use panoply_runtime::{Batching, BuildError, Exploration, FallbackPolicy, HealthRules, WorkerLimits};

use crate::runtime::Runtime;
use crate::selection::Selection;
use crate::{compiled, learned};

/// Chooses what a [`Runtime`] is made of. [`Runtime::builder`] begins with every backend of this build.
///
/// ```
/// use panoply::{Api, OpenOptions, Runtime, WorkerLimits};
///
/// let runtime = Runtime::builder()
///     .only([Api::CPU])
///     .limits(WorkerLimits { queue_depth_max: 64, ..Default::default() })
///     .open_options(OpenOptions { threads: Some(1), ..Default::default() })
///     .build()?;
/// assert!(runtime.devices().count() >= 1);
/// # Ok::<(), panoply::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    backends: Vec<Arc<dyn Backend>>,
    absent: Vec<(Api, Absence)>,
    inner: panoply_runtime::Builder,
    profile: bool,
    selection: Selection,
}

impl Builder {
    /// A builder that begins with every backend of this build.
    pub(crate) fn new() -> Builder {
        let mut builder = Builder {
            backends: Vec::new(),
            absent: Vec::new(),
            inner: panoply_runtime::Runtime::builder(),
            profile: true,
            selection: Selection::default(),
        };
        for known in compiled::known() {
            match known.backend {
                Ok(backend) => builder.backends.push(backend),
                Err(absence) => builder.absent.push((known.api, absence)),
            }
        }
        builder
    }

    /// Keeps the backends of these APIs and leaves out all others that are there so far. An API that Panoply has no
    /// backend for is listed as absent, with that reason.
    pub fn only(mut self, apis: impl AsRef<[Api]>) -> Builder {
        let apis = apis.as_ref();
        // Whoever names an API wants its devices, also those in software, and those that another API has as well.
        self.selection.software = true;
        self.selection.doubles = true;
        self.backends.retain(|backend| apis.contains(&backend.api()));
        self.absent.retain(|(api, _)| apis.contains(api));
        for api in apis {
            let listed = self.backends.iter().any(|backend| backend.api() == *api)
                || self.absent.iter().any(|(absent, _)| absent == api);
            if !listed {
                let reason = "this version of Panoply has no backend for it".to_owned();
                self.absent.push((*api, Absence::NoDevice { reason }));
            }
        }
        self
    }

    /// Adds a backend: one's own, or a virtual one. Devices are tried in the order in which their backends were added.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Builder {
        self.backends.push(backend);
        self
    }

    /// The bounds of every device worker.
    pub fn limits(mut self, limits: WorkerLimits) -> Builder {
        self.inner = self.inner.limits(limits);
        self
    }

    /// How devices are opened.
    pub fn open_options(mut self, open: OpenOptions) -> Builder {
        self.inner = self.inner.open_options(open);
        self
    }

    /// When a device counts as hot, full or faulty.
    pub fn health(mut self, rules: HealthRules) -> Builder {
        self.inner = self.inner.health(rules);
        self
    }

    /// When ops that could run as one go to an engine.
    pub fn batching(mut self, batching: Batching) -> Builder {
        self.inner = self.inner.batching(batching);
        self
    }

    /// What happens to an op when its device fails, unless its caller says otherwise.
    pub fn fallback(mut self, policy: FallbackPolicy) -> Builder {
        self.inner = self.inner.fallback(policy);
        self
    }

    /// How much the router tries out.
    pub fn exploration(mut self, exploration: Exploration) -> Builder {
        self.inner = self.inner.exploration(exploration);
        self
    }

    /// Devices that shall not be opened.
    pub fn leave_out(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Builder {
        self.inner = self.inner.leave_out(devices);
        self
    }

    /// Which of the devices that are there are used. Where nobody says so, all but graphics APIs in software, and devices that
    /// wgpu reaches through Vulkan where the Vulkan backend has them; both are used where [`Builder::only`] names their API.
    pub fn selection(mut self, selection: Selection) -> Builder {
        let software = self.selection.software || selection.software;
        let doubles = self.selection.doubles || selection.doubles;
        self.selection = Selection { software, doubles, ..selection };
        self
    }

    /// Begins without what was learned before.
    pub fn without_profile(mut self) -> Builder {
        self.profile = false;
        self
    }

    /// Finds the devices, starts their workers, waits for them to be opened, and has the router begin with what
    /// `panoply bench --calibrate` has learned about them.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let wanted: Vec<_> = self.backends.iter().map(|one| self.selection.apply(one, &self.backends)).collect();
        let with_backends = wanted.into_iter().fold(self.inner, panoply_runtime::Builder::backend);
        let complete = self.absent.into_iter().fold(with_backends, |inner, (api, absence)| inner.absent(api, absence));
        let runtime = complete.build()?;
        #[cfg_attr(not(feature = "cpu"), expect(unused_mut))]
        let mut warnings = if self.profile { learned::apply(&runtime) } else { Vec::new() };
        #[cfg(feature = "cpu")]
        warnings.extend(unheeded_simd(std::env::var_os("PANOPLY_SIMD").as_deref()));
        Ok(Runtime::new_with(runtime, warnings))
    }
}

/// What there is to say about a level of vector instructions that does not exist. It changes nothing.
#[cfg(feature = "cpu")]
fn unheeded_simd(value: Option<&std::ffi::OsStr>) -> Option<String> {
    use panoply_cpu::simd::Simd;
    let value = value.filter(|value| !value.is_empty())?.to_string_lossy();
    let known = [Simd::Scalar, Simd::Neon, Simd::Avx2, Simd::Avx512].map(Simd::name);
    let is_known = known.contains(&&*value);
    (!is_known).then(|| format!("PANOPLY_SIMD is not heeded: expected one of {}, got {value}", known.join(", ")))
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::ffi::OsStr;

    use super::unheeded_simd;

    #[test]
    fn a_level_that_does_not_exist_is_told() {
        assert_eq!(unheeded_simd(None).or(unheeded_simd(Some(OsStr::new("")))), None);
        assert_eq!(unheeded_simd(Some(OsStr::new("avx2"))), None);
        let told = unheeded_simd(Some(OsStr::new("nonsense"))).unwrap_or_default();
        assert!(told.contains("avx512, got nonsense"), "{told}");
    }
}
