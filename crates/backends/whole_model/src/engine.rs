//! The engine. Such libraries compute on the calling thread and on threads of their own, so ops
//! finish inside `submit`.

use std::time::Duration;

use panoply_core::{
    DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, ObjectTable, Op, Part, Result, Support, Value,
};

use crate::ops::{InspectModel, LoadModel, ModelArray, ModelOutputs, ModelShare, ModelSource, RunModel, packed};

/// The kind of model objects, for messages.
const MODEL: &str = "model";

/// A library that loads and runs models on one device.
pub trait ModelLibrary {
    /// A model that the library has loaded. Dropping it frees the model.
    type Model;

    /// Loads a model.
    fn load(&mut self, source: &ModelSource) -> Result<Self::Model>;

    /// The names of a model's inputs, in its order.
    fn inputs<'m>(&self, model: &'m Self::Model) -> &'m [String];

    /// Runs a model. All names of `inputs` are inputs of the model. The outputs are in the model's
    /// order.
    fn run(&mut self, model: &mut Self::Model, inputs: &[(String, ModelArray)]) -> Result<ModelOutputs>;

    /// The parts of the library that run the model.
    fn shares<'m>(&self, model: &'m Self::Model) -> &'m [ModelShare];
}

/// Whether a device of such a library runs this op.
pub fn supports(op: &Op) -> Support {
    let is_known = |op: &panoply_core::op::Extension| {
        op.downcast_ref::<LoadModel>().is_some()
            || op.downcast_ref::<RunModel>().is_some()
            || op.downcast_ref::<InspectModel>().is_some()
    };
    match op {
        Op::Extension(extension) if is_known(extension) => Support::Yes,
        op => Support::unknown(op),
    }
}

/// The engine of one device of a library.
pub struct WholeModelEngine<L: ModelLibrary> {
    info: DeviceInfo,
    library: L,
    models: ObjectTable<L::Model>,
    done: Vec<FinishedOp>,
}

impl<L: ModelLibrary> WholeModelEngine<L> {
    /// An engine without models.
    pub fn new(info: DeviceInfo, library: L) -> WholeModelEngine<L> {
        let models = ObjectTable::new(info.id);
        WholeModelEngine { info, library, models, done: Vec::new() }
    }

    fn answer(&mut self, op: &Op) -> Result<Value> {
        let Op::Extension(extension) = op else { return Err(Support::unknown(op).refusal(op)) };
        if let Some(LoadModel { source }) = extension.downcast_ref() {
            let model = self.library.load(source)?;
            // The op is stored with the model, so that a lost device can load the model again.
            return Ok(Value::Object(self.models.insert(MODEL, model, Some(op))?));
        }
        if let Some(InspectModel { model }) = extension.downcast_ref() {
            let shares = self.library.shares(self.models.get_mut(model)?);
            return Ok(Value::List(shares.iter().map(ModelShare::packed).collect()));
        }
        let Some(RunModel { model, inputs }) = extension.downcast_ref() else {
            return Err(Support::unknown(op).refusal(op));
        };
        let model = self.models.get_mut(model)?;
        let known = self.library.inputs(model);
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !known.contains(name)) {
            let expected = known.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
            return Err(Error::invalid("an input of a model", expected, format!("{name:?}")));
        }
        let outputs = self.library.run(model, inputs)?;
        let parts: Vec<Part> = outputs.into_iter().flat_map(packed).collect();
        Ok(Value::List(parts))
    }
}

impl<L: ModelLibrary> Engine for WholeModelEngine<L> {
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
