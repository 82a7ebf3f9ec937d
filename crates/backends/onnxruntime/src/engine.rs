//! The engine. ONNX Runtime computes on the calling thread and on threads of its own, so ops finish
//! inside `submit`.

use std::sync::Arc;
use std::time::Duration;

use panoply_core::{
    DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, ObjectTable, Op, Part, Result, Support, Value,
};

use crate::library::{Library, OnnxRuntimeError, Session};
use crate::ops::{LoadModel, RunModel, packed};

/// The kind of model objects, for messages.
const MODEL: &str = "model";

pub(crate) struct OnnxRuntimeEngine {
    info: DeviceInfo,
    library: Arc<Library>,
    threads: usize,
    models: ObjectTable<Session>,
    done: Vec<FinishedOp>,
}

impl OnnxRuntimeEngine {
    pub(crate) fn new(info: DeviceInfo, library: Arc<Library>, threads: usize) -> OnnxRuntimeEngine {
        let models = ObjectTable::new(info.id);
        OnnxRuntimeEngine { info, library, threads, models, done: Vec::new() }
    }

    fn answer(&mut self, op: &Op) -> Result<Value> {
        let Op::Extension(extension) = op else { return Err(Support::unknown(op).refusal(op)) };
        if let Some(LoadModel { source }) = extension.downcast_ref() {
            let session = Session::new(&self.library, source, self.threads).map_err(refused("load_model"))?;
            // The op is stored with the model, so that a lost device can load the model again.
            return Ok(Value::Object(self.models.insert(MODEL, session, Some(op))?));
        }
        let Some(RunModel { model, inputs }) = extension.downcast_ref() else {
            return Err(Support::unknown(op).refusal(op));
        };
        let session = self.models.get_mut(model)?;
        let known: Vec<&str> = session.inputs().collect();
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let expected = known.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
            return Err(Error::invalid("an input of a model", expected, format!("{name:?}")));
        }
        let outputs = session.run(inputs).map_err(refused("run_model"))?;
        let parts: Vec<Part> = outputs.into_iter().flat_map(packed).collect();
        Ok(Value::List(parts))
    }
}

/// Converts an error of ONNX Runtime about a model or its inputs. Callers must fix these errors,
/// and the device is not at fault.
fn refused(op: &'static str) -> impl Fn(OnnxRuntimeError) -> Error {
    move |OnnxRuntimeError(reason)| Error::Unsupported { op, reason: format!("ONNX Runtime says: {reason}") }
}

impl Engine for OnnxRuntimeEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.models.collect();
        for item in batch.drain(..) {
            let result = self.answer(&item.op);
            self.done.push(FinishedOp::alone(item, result));
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, _wait_max: Duration) -> usize {
        self.models.collect();
        finished.append(&mut self.done);
        0
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats::default()
    }

    fn health(&mut self) -> Health {
        self.models.collect();
        Health::default()
    }
}
