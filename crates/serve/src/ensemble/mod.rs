//! Ensembles: models and the stages around them under one name and one deadline. Values passed from
//! one member to the next stay on their device.

mod stage;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use panoply_models::{Array, Context, Model, ModelValue, Outputs, RunValue, finished};
use panoply_runtime::{PendingTask, RunOptions, Runtime, TaskOutcome};

use crate::error::{Error, Result};

pub use stage::Stage;

/// The most members of an ensemble.
const MEMBERS_MAX: usize = 256;

/// A model or a stage of an ensemble, with the names of the values that it reads and writes.
#[derive(Clone, Debug)]
pub struct Member {
    runs: Runs,
    reads: Vec<(String, String)>,
    writes: Vec<(String, String)>,
    /// A name passed to `reads` or `writes` that the member lacks.
    unknown: Option<String>,
}

#[derive(Clone, Debug)]
enum Runs {
    Model(Model),
    Stage(Stage),
}

impl Member {
    /// A model whose inputs and outputs are values of the ensemble under their own names.
    pub fn new(model: &Model) -> Member {
        let (inputs, outputs) = (model.inputs().iter(), model.outputs().iter());
        Member::named(Runs::Model(model.clone()), inputs.map(|port| &*port.name), outputs.map(|port| &*port.name))
    }

    /// A stage whose inputs and outputs are values of the ensemble under their own names.
    pub fn stage(stage: Stage) -> Member {
        let (inputs, outputs) = (stage.inputs(), stage.outputs());
        Member::named(Runs::Stage(stage), inputs.iter().copied(), outputs.iter().copied())
    }

    fn named<'a>(runs: Runs, inputs: impl Iterator<Item = &'a str>, outputs: impl Iterator<Item = &'a str>) -> Member {
        let own = |name: &str| (name.to_owned(), name.to_owned());
        Member { reads: inputs.map(own).collect(), writes: outputs.map(own).collect(), runs, unknown: None }
    }

    /// Connects an input to the ensemble's value of this name.
    pub fn reads(mut self, input: &str, value: &str) -> Member {
        match self.reads.iter_mut().find(|(name, _)| name == input) {
            Some((_, from)) => *from = value.to_owned(),
            None => self.unknown = Some(input.to_owned()),
        }
        self
    }

    /// Connects an output to the ensemble's value of this name.
    pub fn writes(mut self, output: &str, value: &str) -> Member {
        match self.writes.iter_mut().find(|(name, _)| name == output) {
            Some((_, to)) => *to = value.to_owned(),
            None => self.unknown = Some(output.to_owned()),
        }
        self
    }

    fn model(&self) -> Option<&Model> {
        match &self.runs {
            Runs::Model(model) => Some(model),
            Runs::Stage(_) => None,
        }
    }

    /// The name of its steps in a report.
    fn name(&self) -> &str {
        match &self.runs {
            Runs::Model(model) => model.name(),
            Runs::Stage(stage) => stage.outputs().first().copied().unwrap_or("stage"),
        }
    }

    async fn run(&self, context: &Context<'_>, given: &[(&str, RunValue)]) -> Result<Vec<RunValue>> {
        let part = context.part();
        let made = match &self.runs {
            Runs::Model(model) => model.run_live(&part, given).await?,
            Runs::Stage(stage) => stage.run(&part, given).await?,
        };
        context.absorb(self.name(), part);
        Ok(made)
    }
}

/// Models and stages that run as one. Each member runs after the members whose values it reads.
///
/// ```
/// # use std::sync::Arc;
/// # use panoply_inputs::text::Tokenizer;
/// # use panoply_models::Model;
/// # use panoply_serve::{Ensemble, Error, Member, Stage};
/// # fn chain(model: &Model, tokenizer: Tokenizer) -> Result<Ensemble, Error> {
/// let members = vec![
///     Member::stage(Stage::tokenize(tokenizer, 128)).writes("ids", "input_ids").writes("mask", "attention_mask"),
///     Member::new(model).writes("logits", "scores"),
///     Member::stage(Stage::softmax(-1)?).reads("x", "scores").writes("y", "likelihoods"),
///     Member::stage(Stage::top_k(5, -1)?).reads("x", "likelihoods").writes("indices", "classes"),
/// ];
/// Ensemble::new("sentiment", &["texts"], &["values", "classes"], members)
/// # }
/// ```
#[derive(Clone)]
pub struct Ensemble {
    name: String,
    runtime: Arc<Runtime>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    members: Vec<Member>,
}

impl Ensemble {
    /// An ensemble with these inputs and outputs. Every value has exactly one origin, and the
    /// members form no cycle. Stages run on the runtime of the models, so at least one member is a
    /// model.
    pub fn new(name: &str, inputs: &[&str], outputs: &[&str], members: Vec<Member>) -> Result<Ensemble> {
        if members.len() > MEMBERS_MAX {
            let (what, limit) = ("the members of an ensemble", MEMBERS_MAX as u64);
            return Err(Error::Limit { what, limit, got: members.len() as u64 });
        }
        if let Some(name) = members.iter().find_map(|member| member.unknown.as_ref()) {
            return Err(Error::invalid("an ensemble", "names that its members have", format!("{name:?}")));
        }
        let mut runtimes = members.iter().filter_map(Member::model).map(Model::runtime);
        let runtime = runtimes.next().ok_or_else(|| Error::invalid("an ensemble", "a model", "none"))?;
        if runtimes.any(|other| !Arc::ptr_eq(other, runtime)) {
            return Err(Error::invalid("an ensemble", "members on one runtime", "several"));
        }
        let runtime = Arc::clone(runtime);
        let mut known: HashSet<String> = inputs.iter().map(|name| (*name).to_owned()).collect();
        let (mut ordered, mut left) = (Vec::with_capacity(members.len()), members);
        while !left.is_empty() {
            let ready = left.iter().position(|member| member.reads.iter().all(|(_, value)| known.contains(value)));
            let Some(place) = ready else {
                let stuck = left[0].reads.iter().find(|(_, value)| !known.contains(value));
                let stuck = stuck.map_or("", |(_, value)| value.as_str());
                return Err(Error::invalid("an ensemble", "an origin for every value", format!("none of {stuck:?}")));
            };
            let member = left.remove(place);
            for (_, value) in &member.writes {
                if !known.insert(value.clone()) {
                    let got = format!("two of {value:?}");
                    return Err(Error::invalid("an ensemble", "one origin for every value", got));
                }
            }
            ordered.push(member);
        }
        if let Some(missing) = outputs.iter().find(|output| !known.contains(**output)) {
            return Err(Error::invalid("an ensemble", "an origin for every output", format!("none of {missing:?}")));
        }
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (name, inputs, outputs) = (name.to_owned(), owned(inputs), owned(outputs));
        Ok(Ensemble { name, runtime, inputs, outputs, members: ordered })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs all members. The deadline in the options holds for the whole run.
    pub fn infer(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Outputs> {
        let given: Vec<(&str, RunValue)> =
            inputs.iter().map(|(name, array)| (*name, RunValue::Value(array.clone().into()))).collect();
        // Values between members stay where they are.
        let context = Context::blocking(Some(&self.runtime), RunOptions { to_host: false, ..options.clone() });
        finished(async {
            let mut outputs = Vec::new();
            for (name, live) in self.run_live(&context, &given).await? {
                outputs.push((name, context.fetch(&live).await?.array()?.clone()));
            }
            Ok(Outputs(outputs))
        })
    }

    /// Runs all members as one task: a future that also blocks (`wait`), can be cancelled by
    /// dropping it, and reports its steps. Outputs stay in the memory where they were computed.
    pub fn run(&self, inputs: &[(&str, ModelValue)]) -> PendingTask<Outputs<ModelValue>, Error> {
        self.run_with(inputs, &RunOptions::default())
    }

    /// As [`Ensemble::run`], with options: those of every graph of its members. The deadline bounds
    /// the whole run, and with [`RunOptions::to_host`] the outputs come as arrays on the host.
    ///
    /// Pictures are decoded and resized, and texts are tokenized, on the thread that polls or
    /// waits.
    pub fn run_with(
        &self,
        inputs: &[(&str, ModelValue)],
        options: &RunOptions,
    ) -> PendingTask<Outputs<ModelValue>, Error> {
        let own = |(name, value): &(&str, ModelValue)| ((*name).to_owned(), RunValue::from(value));
        let given: Vec<(String, RunValue)> = inputs.iter().map(own).collect();
        let (ensemble, run, to_host) = (self.clone(), options.clone(), options.to_host);
        self.runtime.task(options, async move {
            let begun = Instant::now();
            let context = Context::awaiting(&ensemble.runtime, RunOptions { to_host: false, ..run });
            let given: Vec<(&str, RunValue)> = given.iter().map(|(name, value)| (&**name, value.clone())).collect();
            let mut outputs = Vec::new();
            for (name, live) in ensemble.run_live(&context, &given).await? {
                outputs.push((name, ModelValue::of(&context, live, to_host).await?));
            }
            Ok(TaskOutcome { output: Outputs(outputs), report: context.into_report(begun) })
        })
    }

    /// Runs all members on values that stay where they are.
    async fn run_live(&self, context: &Context<'_>, inputs: &[(&str, RunValue)]) -> Result<Vec<(String, RunValue)>> {
        let mut values: HashMap<&str, RunValue> = HashMap::new();
        for name in &self.inputs {
            let mut given = inputs.iter().filter(|(known, _)| known == name);
            let (Some((_, value)), None) = (given.next(), given.next()) else {
                return Err(Error::invalid(
                    format!("the input {name:?} of {:?}", self.name),
                    "one value",
                    "none or two",
                ));
            };
            values.insert(name, value.clone());
        }
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !values.contains_key(name)) {
            return Err(Error::invalid("the name of an input", self.inputs.join(" or "), format!("{name:?}")));
        }
        for (place, member) in self.members.iter().enumerate() {
            let read = |(input, value): &'_ (String, String)| {
                values.get(value.as_str()).map(|live| (input.clone(), live.clone()))
            };
            let given: Vec<(String, RunValue)> = member.reads.iter().filter_map(read).collect();
            let given: Vec<(&str, RunValue)> = given.iter().map(|(name, live)| (name.as_str(), live.clone())).collect();
            context.in_time()?;
            let made = member.run(context, &given).await?;
            values.extend(member.writes.iter().map(|(_, value)| value.as_str()).zip(made));
            let needed: HashSet<&str> = self.needed_after(place);
            values.retain(|name, _| needed.contains(name));
        }
        let output = |name: &String| {
            let live = values.get(name.as_str()).ok_or_else(|| Error::invalid("an output", "a value", "none"))?;
            Ok((name.clone(), live.clone()))
        };
        self.outputs.iter().map(output).collect()
    }

    /// The values that later members or the outputs need.
    fn needed_after(&self, place: usize) -> HashSet<&str> {
        let later = self.members[place + 1..].iter().flat_map(|member| &member.reads).map(|(_, value)| value.as_str());
        later.chain(self.outputs.iter().map(String::as_str)).collect()
    }
}

impl std::fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ensemble({:?}, {} members)", self.name, self.members.len())
    }
}
