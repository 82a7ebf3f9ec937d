//! Builds a runtime, starting with every backend of this build.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use panoply_core::{Absence, Api, Backend, CryptoProvider, DeviceId, MemoryLimits, OpenOptions};
use panoply_placement::{DevicePlan, PlacementOptions};
use panoply_runtime::{Batching, BuildError, Exploration, FallbackPolicy, HealthRules, Pools, Verify, WorkerLimits};

use crate::compiled::{CompiledApi, FpgaCards};
use crate::runtime::Runtime;
use crate::selection::Selection;
use crate::{compiled, learned, provider};

/// Chooses what a [`Runtime`] is made of. [`Runtime::builder`] begins with every backend of this
/// build.
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
    /// This build's own CPU backend, which obeys `crypto_provider` itself.
    own_cpu: Option<Arc<dyn Backend>>,
    absent: Vec<(Api, Absence)>,
    inner: panoply_runtime::Builder,
    profile: bool,
    selection: Selection,
    open: OpenOptions,
    /// The cards of the FPGA backend of this build, and the bitstreams for them.
    cards: Option<FpgaCards>,
    bitstreams: BTreeMap<String, PathBuf>,
    /// The first wrong argument. [`Builder::build`] returns it.
    refused: Option<BuildError>,
}

impl Builder {
    /// A builder that begins with every backend of this build.
    pub(crate) fn new() -> Builder {
        let mut builder = Builder {
            backends: Vec::new(),
            own_cpu: None,
            absent: Vec::new(),
            inner: panoply_runtime::Runtime::builder(),
            profile: true,
            selection: Selection::default(),
            open: OpenOptions::default(),
            cards: None,
            bitstreams: BTreeMap::new(),
            refused: None,
        };
        compiled::known().into_iter().for_each(|known| builder.add(known));
        builder
    }

    fn add(&mut self, known: CompiledApi) {
        self.cards = self.cards.take().or(known.cards);
        match known.backend {
            Ok(backend) => {
                if known.is_own_cpu {
                    self.own_cpu = Some(Arc::clone(&backend));
                }
                self.backends.push(backend);
            }
            Err(absence) => self.absent.push((known.api, absence)),
        }
    }

    /// Chooses the execution providers of ONNX Runtime, in the place of the processor's cores
    /// alone. Each is a device of its own: `cpu` is `onnxruntime:0`, `cuda` is `ort-cuda:0`, and so
    /// on. Options stand behind a colon: `openvino:device_type=NPU`. The library is the one that
    /// `PANOPLY_ONNXRUNTIME` names; a provider that it lacks is absent, with the reason. Call this
    /// before [`Builder::only`].
    pub fn onnxruntime_providers<T: Into<String>>(mut self, providers: impl IntoIterator<Item = T>) -> Builder {
        let providers: Vec<String> = providers.into_iter().map(Into::into).collect();
        match compiled::onnxruntime_with(&providers) {
            Ok(chosen) => {
                let all = compiled::onnxruntime_apis();
                self.backends.retain(|backend| !all.contains(&backend.api()));
                self.absent.retain(|(api, _)| !all.contains(api));
                chosen.into_iter().for_each(|known| self.add(known));
            }
            Err(error) => self.refused = self.refused.or(Some(error)),
        }
        self
    }

    /// Keeps the backends of these APIs and drops all others added so far. An API without a backend
    /// in Panoply is listed as absent, with that reason.
    pub fn only(mut self, apis: impl AsRef<[Api]>) -> Builder {
        let apis = apis.as_ref();
        // A caller that names an API wants its devices, even software devices, and devices that
        // another API reaches as well.
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

    /// Adds a backend: the program's own, or a virtual one. Devices are tried in the order in which
    /// their backends were added.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Builder {
        self.backends.push(backend);
        self
    }

    /// Sets the bounds of every device worker.
    pub fn limits(mut self, limits: WorkerLimits) -> Builder {
        self.inner = self.inner.limits(limits);
        self
    }

    /// Sets how devices are opened.
    pub fn open_options(mut self, open: OpenOptions) -> Builder {
        // A strict provider is never relaxed.
        let crypto_provider = provider::stricter(self.open.crypto_provider, open.crypto_provider);
        self.open = OpenOptions { crypto_provider, ..open };
        self
    }

    /// Sets the sizes of one device's memory pools. Limits that are `None` are those of
    /// [`Builder::open_options`].
    pub fn memory_of(mut self, device: DeviceId, limits: MemoryLimits) -> Builder {
        self.inner = self.inner.memory_of(device, limits);
        self
    }

    /// Chooses the code that runs ciphers, hashes and signatures: see `docs/crypto.md`. With
    /// [`CryptoProvider::AwsLc`] they run only on the CPU and only in AWS-LC; every other device
    /// refuses them. `PANOPLY_CRYPTO_PROVIDER=aws-lc` does the same for every runtime of the
    /// process, even if the program asks for less. The strictest of all requests wins, in any
    /// order: settings, options, this call and the variable. A CPU backend that the program adds
    /// itself counts as another device.
    pub fn crypto_provider(mut self, provider: CryptoProvider) -> Builder {
        self.open.crypto_provider = provider::stricter(self.open.crypto_provider, provider);
        self
    }

    /// Sets where the workers' threads run; see [`PlacementOptions`]. A wish that the system
    /// refuses is a note in [`Runtime::workers`](panoply_runtime::Runtime::workers).
    pub fn placement(mut self, options: PlacementOptions) -> Builder {
        self.inner = self.inner.placement(options);
        self
    }

    /// Loads a bitstream onto an FPGA card before its cores are looked at. `card` is its PCI
    /// address (`0000:3b:00.1`) or its id (`fpga:0`). If the file cannot be loaded, the card is
    /// left out and the reason is in [`Runtime::warnings`], or in the report of the API if it has
    /// no other card.
    pub fn bitstream(mut self, card: impl Into<String>, file: impl Into<PathBuf>) -> Builder {
        self.bitstreams.insert(card.into(), file.into());
        self
    }

    /// Sets when a device counts as hot, full or faulty.
    pub fn health(mut self, rules: HealthRules) -> Builder {
        self.inner = self.inner.health(rules);
        self
    }

    /// Sets when ops that could run as one are sent to an engine.
    pub fn batching(mut self, batching: Batching) -> Builder {
        self.inner = self.inner.batching(batching);
        self
    }

    /// Sets what happens to an op when its device fails, unless its caller decides otherwise.
    pub fn fallback(mut self, policy: FallbackPolicy) -> Builder {
        self.inner = self.inner.fallback(policy);
        self
    }

    /// Sets how much the router explores.
    pub fn exploration(mut self, exploration: Exploration) -> Builder {
        self.inner = self.inner.exploration(exploration);
        self
    }

    /// Compares a share of the results with another device's, so that a device with wrong results
    /// is detected.
    pub fn verify(mut self, verify: Verify) -> Builder {
        self.inner = self.inner.verify(verify);
        self
    }

    /// Sets which kinds of work have workers of their own. By default the processor has one for
    /// short ops, so that they never wait for long ones; `Pools::none()` switches it off.
    pub fn pools(mut self, pools: Pools) -> Builder {
        self.inner = self.inner.pools(pools);
        self
    }

    /// Excludes devices from being opened.
    pub fn leave_out(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Builder {
        self.inner = self.inner.leave_out(devices);
        self
    }

    /// Selects among the available devices. By default all are used except graphics APIs in
    /// software and devices that wgpu reaches through Vulkan if the Vulkan backend has them; both
    /// are used if [`Builder::only`] names their API.
    pub fn selection(mut self, selection: Selection) -> Builder {
        let software = self.selection.software || selection.software;
        let doubles = self.selection.doubles || selection.doubles;
        self.selection = Selection { software, doubles, ..selection };
        self
    }

    /// Starts without the learned profile.
    pub fn without_profile(mut self) -> Builder {
        self.profile = false;
        self
    }

    /// Finds the devices and plans where their workers would run, without starting any.
    pub fn plan(self) -> Result<DevicePlan, BuildError> {
        self.set_bitstreams()?;
        Ok(self.with_backends()?.plan())
    }

    /// Finds the devices, starts their workers, waits until they are open, and loads the profile
    /// that `panoply bench --calibrate` has learned into the router.
    pub fn build(self) -> Result<Runtime, BuildError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        #[cfg(feature = "cpu")]
        check_simd(std::env::var_os("PANOPLY_SIMD").as_deref())?;
        learned::check_folder()?;
        self.set_bitstreams()?;
        let (profile, cards) = (self.profile, self.cards.clone());
        let mut warnings = self.bitstream_warnings();
        let runtime = self.with_backends()?.build()?;
        warnings.extend(cards.map(|cards| cards.troubles()).unwrap_or_default());
        if profile {
            warnings.extend(learned::apply(&runtime));
        }
        Ok(Runtime::new_with(runtime, warnings))
    }

    /// Sets the bitstreams before any card is looked at.
    fn set_bitstreams(&self) -> Result<(), BuildError> {
        let Some(cards) = &self.cards else { return Ok(()) };
        cards.set_bitstreams(&self.bitstreams).map_err(|error| BuildError::BadLimit {
            what: "devices.bitstreams",
            expected: "cards by PCI address (0000:3b:00.1) or id (fpga:0), each with a file",
            got: error.to_string(),
        })
    }

    /// A warning if bitstreams are set and no card could get one.
    fn bitstream_warnings(&self) -> Vec<String> {
        let is_used = self.cards.is_some() || self.bitstreams.is_empty();
        let unused = "bitstreams are set, and this build has no FPGA backend (feature `fpga`)".to_owned();
        if is_used { Vec::new() } else { vec![unused] }
    }

    /// The runtime's builder with the wanted backends.
    fn with_backends(self) -> Result<panoply_runtime::Builder, BuildError> {
        let provider = provider::effective(self.open.crypto_provider)?;
        let open = OpenOptions { crypto_provider: provider, ..self.open };
        let is_own = |one: &Arc<dyn Backend>| self.own_cpu.as_ref().is_some_and(|own| Arc::ptr_eq(own, one));
        let wanted = |one| provider::restricted(self.selection.apply(one, &self.backends), provider, is_own(one));
        let wanted: Vec<_> = self.backends.iter().map(wanted).collect();
        let with_backends = wanted.into_iter().fold(self.inner.open_options(open), panoply_runtime::Builder::backend);
        let complete = self.absent.into_iter().fold(with_backends, |inner, (api, absence)| inner.absent(api, absence));
        Ok(complete)
    }
}

/// Refuses an unknown level of vector instructions: its user relies on it.
#[cfg(feature = "cpu")]
fn check_simd(value: Option<&std::ffi::OsStr>) -> Result<(), BuildError> {
    use panoply_cpu::simd::Simd;
    let Some(value) = value.filter(|value| !value.is_empty()).map(std::ffi::OsStr::to_string_lossy) else {
        return Ok(());
    };
    let known = [Simd::Scalar, Simd::Neon, Simd::Avx2, Simd::Avx512].map(Simd::name);
    match known.contains(&&*value) {
        true => Ok(()),
        false => Err(BuildError::BadLimit {
            what: "PANOPLY_SIMD",
            expected: "scalar, neon, avx2 or avx512",
            got: value.into_owned(),
        }),
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::ffi::OsStr;

    use super::check_simd;

    #[test]
    fn a_level_that_does_not_exist_is_refused() {
        assert!(check_simd(None).is_ok() && check_simd(Some(OsStr::new(""))).is_ok());
        assert!(check_simd(Some(OsStr::new("avx2"))).is_ok());
        let refused = check_simd(Some(OsStr::new("avx9"))).unwrap_err().to_string();
        assert_eq!(refused, "PANOPLY_SIMD: expected scalar, neon, avx2 or avx512, got avx9");
    }
}
