//! Ensembles: models one after the other under one name and one deadline. What one hands to the next stays on its device.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use panoply_runtime::RunOptions;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::{Context, Live};
use crate::model::{Model, Outputs};

/// The most members of an ensemble.
const MEMBERS_MAX: usize = 256;

/// A model of an ensemble, with the names under which it reads and writes values.
#[derive(Clone, Debug)]
pub struct Member {
    model: Model,
    reads: Vec<(String, String)>,
    writes: Vec<(String, String)>,
}

impl Member {
    /// A model whose inputs and outputs are values of the ensemble under their own names.
    pub fn new(model: &Model) -> Member {
        let own = |name: &String| (name.clone(), name.clone());
        Member {
            reads: model.inputs().iter().map(|port| own(&port.name)).collect(),
            writes: model.outputs().iter().map(|port| own(&port.name)).collect(),
            model: model.clone(),
        }
    }

    /// Has an input read the ensemble's value of this name.
    pub fn reads(mut self, input: &str, value: &str) -> Member {
        self.reads.iter_mut().filter(|(name, _)| name == input).for_each(|(_, from)| *from = value.to_owned());
        self
    }

    /// Has an output be the ensemble's value of this name.
    pub fn writes(mut self, output: &str, value: &str) -> Member {
        self.writes.iter_mut().filter(|(name, _)| name == output).for_each(|(_, to)| *to = value.to_owned());
        self
    }
}

/// Models that run as one. Members run in the order in which values allow it.
#[derive(Clone, Debug)]
pub struct Ensemble {
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    members: Vec<Member>,
}

impl Ensemble {
    /// An ensemble that is given some values and hands out some. Every value has one origin, and no member waits for itself.
    pub fn new(name: &str, inputs: &[&str], outputs: &[&str], members: Vec<Member>) -> Result<Ensemble> {
        if members.len() > MEMBERS_MAX {
            let (what, limit) = ("the members of an ensemble", MEMBERS_MAX as u64);
            return Err(Error::Limit { what, limit, got: members.len() as u64 });
        }
        let elsewhere = |member: &Member| !Arc::ptr_eq(member.model.runtime(), members[0].model.runtime());
        if members.iter().any(elsewhere) {
            return Err(Error::invalid("an ensemble", "members on one runtime", "several"));
        }
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
        Ok(Ensemble { name: name.to_owned(), inputs: owned(inputs), outputs: owned(outputs), members: ordered })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs all members. The deadline among the options holds for all of them together.
    pub fn infer(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Outputs> {
        let mut values: HashMap<&str, Live> = HashMap::new();
        for name in &self.inputs {
            let mut given = inputs.iter().filter(|(known, _)| known == name);
            let (Some((_, array)), None) = (given.next(), given.next()) else {
                return Err(Error::invalid(
                    format!("the input {name:?} of {:?}", self.name),
                    "one value",
                    "none or two",
                ));
            };
            values.insert(name, Live::Value(array.clone().into()));
        }
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !values.contains_key(name)) {
            return Err(Error::invalid("an input", self.inputs.join(" or "), format!("{name:?}")));
        }
        for (place, member) in self.members.iter().enumerate() {
            let read = |(input, value): &'_ (String, String)| {
                values.get(value.as_str()).map(|live| (input.clone(), live.clone()))
            };
            let given: Vec<(String, Live)> = member.reads.iter().filter_map(read).collect();
            let given: Vec<(&str, Live)> = given.iter().map(|(name, live)| (name.as_str(), live.clone())).collect();
            let made = member.model.infer_live(&given, options)?;
            values.extend(member.writes.iter().map(|(_, value)| value.as_str()).zip(made));
            let needed: HashSet<&str> = self.needed_after(place);
            values.retain(|name, _| needed.contains(name));
        }
        let runtime = self.members.first().map(|member| member.model.runtime().as_ref());
        let context = Context::new(runtime, options.clone());
        let output = |name: &String| {
            let live = values.get(name.as_str()).ok_or_else(|| Error::invalid("an output", "a value", "none"))?;
            Ok((name.clone(), context.fetch(live)?.array()?.clone()))
        };
        self.outputs.iter().map(output).collect::<Result<_>>().map(Outputs)
    }

    /// The values that later members or the outputs need.
    fn needed_after(&self, place: usize) -> HashSet<&str> {
        let later = self.members[place + 1..].iter().flat_map(|member| &member.reads).map(|(_, value)| value.as_str());
        later.chain(self.outputs.iter().map(String::as_str)).collect()
    }
}
