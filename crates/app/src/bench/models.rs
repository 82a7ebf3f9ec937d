//! `panoply bench --models`: measures the models of a folder, from the call until the outputs are
//! ready.
//!
//! A model is `NAME.onnx`, or `NAME/model.onnx`. A folder `b1`, `b8`, … beside the latter has the
//! inputs for that batch size, as files `input_0.pb`, `input_1.pb`, … in the format of ONNX's test
//! cases. Without such folders, floats are random normals and integers are zeros and ones; a model
//! whose first dimension is fixed is measured with that batch size only. Floats are in the device's
//! memory before the clock starts. Integers are few and are sent with each call.
//!
//! `infer/NAME/bN` is one run. `first/NAME` is the time from the file to the first answer.

use std::path::{Path, PathBuf};

use panoply::models::{Array, Dimension, ElementType, Model, ModelValue, Network, Port};
use panoply::{DType, Error, RunOptions};

use super::cases::{Amount, Case, Scale};
use super::place::{BenchDevice, Runner};
use super::random::{Normals, counted};
use crate::configuration::ModelsOptions;
use crate::failure::Failure;

/// The source of a case's inputs.
#[derive(Clone)]
enum Inputs {
    Saved(PathBuf),
    Drawn { sizes: Vec<(String, usize)> },
}

pub(super) struct ModelCase {
    name: String,
    file: PathBuf,
    batch: usize,
    inputs: Inputs,
    /// Whether the time from the file to the first answer is measured, instead of the time of a
    /// run.
    is_first: bool,
}

/// Returns the cases of a folder, sorted by name.
pub fn cases(options: &ModelsOptions) -> Result<Vec<Box<dyn Case>>, Failure> {
    Ok(all(options)?.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect())
}

/// Returns one `infer` case for each model of a folder, with its smallest batch.
pub(super) fn single(options: &ModelsOptions) -> Result<Vec<ModelCase>, Failure> {
    let mut cases = all(options)?;
    cases.retain(|case| !case.is_first);
    cases.dedup_by(|case, before| case.file == before.file);
    Ok(cases)
}

fn all(options: &ModelsOptions) -> Result<Vec<ModelCase>, Failure> {
    let unreadable = |error: std::io::Error| Failure::Run(anyhow::anyhow!("{}: {error}", options.folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&options.folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let inside = path.join("model.onnx");
        let name = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
        match path.extension().is_some_and(|end| end == "onnx") {
            true => files.extend(name(&path).map(|name| (name, path.clone()))),
            false if inside.is_file() => {
                files.extend(path.file_name().map(|name| (name.to_string_lossy().into_owned(), inside)));
            }
            false => {}
        }
    }
    files.sort();
    check_sizes(&files, options)?;
    let mut cases = Vec::new();
    for (name, file) in files {
        for case in cases_of(&name, &file, options).map_err(unreadable)? {
            let wanted = options.prefixes.iter().any(|prefix| case.name().starts_with(prefix));
            if wanted || options.prefixes.is_empty() {
                cases.push(case);
            }
        }
    }
    match cases.is_empty() {
        true => {
            let expected = "expected NAME.onnx or NAME/model.onnx, and cases that begin as asked for";
            Err(Failure::Usage(format!("--models {}: {expected}; got none", options.folder.display())))
        }
        false => Ok(cases),
    }
}

/// Refuses a `--size` of a dimension that no model has: the name is probably misspelt.
fn check_sizes(files: &[(String, PathBuf)], options: &ModelsOptions) -> Result<(), Failure> {
    if options.sizes.is_empty() {
        return Ok(());
    }
    let mut names = std::collections::BTreeSet::new();
    for network in files.iter().filter_map(|(_, file)| Network::load(file).ok()) {
        for dim in network.inputs().iter().flat_map(|port| port.dims.iter().flatten()) {
            if let Dimension::Named(name) = dim {
                names.insert(name.clone());
            }
        }
    }
    match options.sizes.iter().find(|(name, _)| !names.contains(name)) {
        None => Ok(()),
        Some((name, size)) => {
            let names: Vec<String> = names.into_iter().collect();
            let expected = format!("expected one of the models' dimensions ({})", names.join(", "));
            Err(Failure::Usage(format!("--size {name}={size}: {expected}")))
        }
    }
}

fn cases_of(name: &str, file: &Path, options: &ModelsOptions) -> std::io::Result<Vec<ModelCase>> {
    let mut batches = Vec::new();
    if let Some(folder) = file.parent().filter(|_| file.ends_with("model.onnx")) {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let batch = path.file_name().and_then(|name| name.to_str()?.strip_prefix('b')?.parse::<usize>().ok());
            batches.extend(batch.map(|batch| (batch, Inputs::Saved(path))));
        }
    }
    if batches.is_empty() {
        let sizes = options.sizes.clone();
        let wanted = if has_batches(file, &sizes) { &options.batches[..] } else { &[1] };
        batches.extend(wanted.iter().map(|batch| (*batch, Inputs::Drawn { sizes: sizes.clone() })));
    }
    batches.sort_by_key(|(batch, _)| *batch);
    let case = |batch: usize, inputs: &Inputs, is_first: bool| {
        let name = if is_first { format!("first/{name}") } else { format!("infer/{name}/b{batch}") };
        ModelCase { name, file: file.to_owned(), batch, inputs: inputs.clone(), is_first }
    };
    let first = batches.first().map(|(batch, inputs)| case(*batch, inputs, true));
    Ok(first.into_iter().chain(batches.iter().map(|(batch, inputs)| case(*batch, inputs, false))).collect())
}

/// Whether a model takes batches of any size: the first dimension of an input is open. True for a
/// file that cannot be read; its cases then report the error.
fn has_batches(file: &Path, sizes: &[(String, usize)]) -> bool {
    let Ok(network) = Network::load(file) else { return true };
    let is_open =
        |dim: &Dimension| matches!(dim, Dimension::Named(name) if sizes.iter().all(|(known, _)| known != name));
    network.inputs().iter().any(|port| port.dims.as_ref().and_then(|dims| dims.first()).is_none_or(is_open))
}

impl Case for ModelCase {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.batch as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Small
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (network, arrays) = self.load()?;
        let inputs = network.inputs().iter().zip(arrays).map(|(port, array)| {
            let is_float = array.kind().is_float() && array.kind().dtype().is_some();
            let held = match is_float {
                true => ModelValue::Tensor(place.resident(&array.tensor().map_err(refused)?)?),
                false => ModelValue::Array(array),
            };
            Ok((port.name.clone(), held))
        });
        let inputs: Vec<(String, ModelValue)> = inputs.collect::<panoply::Result<_>>()?;
        let options = RunOptions { device: Some(place.device.id), ..RunOptions::default() };
        let (place, file, is_first) = (place.clone(), self.file.clone(), self.is_first);
        let kept = Model::new(&*place.runtime, network);
        Ok(Box::new(move || {
            let given: Vec<(&str, ModelValue)> =
                inputs.iter().map(|(name, held)| (name.as_str(), held.clone())).collect();
            let loaded = match is_first {
                true => Some(Model::load(&*place.runtime, &file).map_err(refused)?),
                false => None,
            };
            loaded.as_ref().unwrap_or(&kept).infer_on_device(&given, &options).map_err(refused)?;
            Ok(None)
        }))
    }
}

impl ModelCase {
    /// Loads the model, and an array for each of its inputs.
    pub(super) fn load(&self) -> panoply::Result<(Network, Vec<Array>)> {
        let network = Network::load(&self.file).map_err(refused)?;
        let arrays = network.inputs().iter().enumerate().map(|(index, port)| self.array(index, port));
        let arrays = arrays.collect::<panoply::Result<_>>()?;
        Ok((network, arrays))
    }

    fn array(&self, index: usize, port: &Port) -> panoply::Result<Array> {
        let sizes = match &self.inputs {
            Inputs::Saved(folder) => {
                let path = folder.join(format!("input_{index}.pb"));
                let bytes = std::fs::read(&path).map_err(|error| invalid(&path.display().to_string(), &error))?;
                let value = port.read_value(&bytes).map_err(refused)?;
                return value.array().cloned().map_err(refused);
            }
            Inputs::Drawn { sizes } => sizes,
        };
        let Some(dims) = &port.dims else { return Err(invalid(&port.name, &"no shape in the model's file")) };
        let mut shape = Vec::with_capacity(dims.len());
        for (axis, dim) in dims.iter().enumerate() {
            shape.push(match dim {
                Dimension::Fixed(size) => *size,
                Dimension::Named(name) => match sizes.iter().find(|(known, _)| known == name) {
                    Some((_, size)) => *size,
                    None if axis == 0 => self.batch,
                    None => return Err(invalid(&port.name, &format!("no size of {name:?}: give --size '{name}=N'"))),
                },
            });
        }
        let mut normals = Normals::new(index as u64 + 1);
        match port.kind.unwrap_or(ElementType::F32) {
            ElementType::I64 => {
                let count = counted(&shape, 1)?;
                let numbers: Vec<i64> = normals.values(count).iter().map(|value| i64::from(*value > 0.0)).collect();
                Array::from_slice(&numbers, &shape).map_err(refused)
            }
            kind if kind.is_float() && kind.dtype().is_some() => {
                let tensor = normals.tensor_of(kind.dtype().unwrap_or(DType::F32), &shape)?;
                Array::from_tensor(&tensor).map_err(refused)
            }
            other => Err(invalid(&port.name, &format!("{other}, which only files give"))),
        }
    }
}

pub(super) fn refused(error: impl Into<panoply::serve::Error>) -> Error {
    match error.into() {
        panoply::serve::Error::Run(error) => error,
        other => Error::Unsupported { op: "a model", reason: other.to_string() },
    }
}

fn invalid(what: &str, got: &dyn ToString) -> Error {
    Error::invalid("a model's inputs", format!("values for {what}"), got.to_string())
}
