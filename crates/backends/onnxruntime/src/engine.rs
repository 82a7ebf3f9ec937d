//! Loads and runs models for the shared engine, and says whose fault an error is.

use std::sync::Arc;

use panoply_core::{DeviceId, Error, Result};
use panoply_whole_model::{ModelArray, ModelLibrary, ModelOutputs, ModelShare, ModelSource};

use crate::library::{Library, OnnxRuntimeError};
use crate::provider::Provider;
use crate::session::Session;

/// One provider of the library, on an opened device.
pub(crate) struct OpenProvider {
    pub(crate) device: DeviceId,
    pub(crate) library: Arc<Library>,
    pub(crate) provider: Provider,
    pub(crate) threads: usize,
}

impl OpenProvider {
    /// Converts an error of ONNX Runtime. A wrong model or input is the caller's fault, and on the
    /// processor's cores every error is. Everything else that fails on another provider is a fault
    /// of the device, so that the op may go on elsewhere.
    fn fault(&self, op: &'static str) -> impl Fn(OnnxRuntimeError) -> Error {
        let (device, is_cpu, provider) = (self.device, self.provider.is_cpu(), self.provider.name());
        move |error| {
            let reason = format!("ONNX Runtime says: {error}");
            match is_cpu || error.is_callers() {
                true => Error::Unsupported { op, reason },
                false => Error::DeviceFault { device, reason: format!("provider {provider}: {reason}") },
            }
        }
    }
}

impl ModelLibrary for OpenProvider {
    type Model = Session;

    fn load(&mut self, source: &ModelSource) -> Result<Session> {
        let session = Session::new(&self.library, &self.provider, source, self.threads);
        let session = session.map_err(self.fault("load_model"))?;
        let is_own = |share: &ModelShare| share.by == self.provider.full_name();
        if !session.shares().is_empty() && !session.shares().iter().any(is_own) {
            // ONNX Runtime would run the whole model on the processor, and say nothing.
            let name = self.provider.name();
            let reason = format!("provider {name}: it takes none of the model's nodes");
            return Err(Error::DeviceFault { device: self.device, reason });
        }
        Ok(session)
    }

    fn inputs<'m>(&self, model: &'m Session) -> &'m [String] {
        model.inputs()
    }

    fn run(&mut self, model: &mut Session, inputs: &[(String, ModelArray)]) -> Result<ModelOutputs> {
        model.run(inputs).map_err(self.fault("run_model"))
    }

    fn shares<'m>(&self, model: &'m Session) -> &'m [ModelShare] {
        model.shares()
    }
}
