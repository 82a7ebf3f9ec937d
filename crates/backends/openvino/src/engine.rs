//! Loads and runs models for the shared engine, and says whose fault an error is.

use std::sync::Arc;

use panoply_core::{DeviceId, Error, Result};
use panoply_whole_model::{ModelArray, ModelLibrary, ModelOutputs, ModelShare, ModelSource};

use crate::library::{Library, OpenVinoError};
use crate::session::Session;

/// A device of OpenVINO, opened as a device of Panoply.
pub(crate) struct OpenDevice {
    pub(crate) device: DeviceId,
    pub(crate) library: Arc<Library>,
    /// The library's name of the device, such as `NPU`.
    pub(crate) name: String,
    pub(crate) threads: usize,
}

impl OpenDevice {
    /// Converts an error of OpenVINO. A wrong model or input is the caller's fault, and on the
    /// processor's cores every error is. Everything else is a fault of the device, so that the op
    /// may go on elsewhere.
    fn fault(&self, op: &'static str) -> impl Fn(OpenVinoError) -> Error {
        let (device, name) = (self.device, self.name.clone());
        move |error| {
            let reason = format!("OpenVINO says: {error}");
            match name == "CPU" || error.is_callers {
                true => Error::Unsupported { op, reason },
                false => Error::DeviceFault { device, reason: format!("{name}: {reason}") },
            }
        }
    }
}

impl ModelLibrary for OpenDevice {
    type Model = Session;

    fn load(&mut self, source: &ModelSource) -> Result<Session> {
        Session::new(&self.library, &self.name, source, self.threads).map_err(self.fault("load_model"))
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
