//! Parameters by name: their first values, and the tensors that they are.

use std::collections::BTreeMap;

use panoply_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::net::Recording;
use crate::random::Random;

/// What a parameter's first values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f32),
    /// Evenly spread between minus and plus this.
    Uniform(f32),
    /// Normally spread around zero with this deviation.
    Normal(f32),
}

impl Init {
    /// As PyTorch's linear and convolutional layers: evenly up to `1 / √fan_in`.
    pub fn fan_in(inputs: usize) -> Init {
        Init::Uniform(1.0 / (inputs.max(1) as f32).sqrt())
    }
}

/// A parameter or buffer of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name, as PyTorch would have it where the layer exists there.
    pub name: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its first values.
    pub init: Init,
    /// Whether it is trained; a buffer is not.
    pub trained: bool,
}

impl Spec {
    /// The first values for a seed. They depend on the seed, the name and the shape, and not on what other parameters there are.
    pub fn first(&self, seed: u64) -> Result<Tensor> {
        let mut random = Random::new(seed, &self.name);
        let count = self.dims.iter().product();
        let values: Vec<f32> = match self.init {
            Init::Constant(value) => vec![value; count],
            Init::Uniform(bound) => (0..count).map(|_| (random.uniform() * 2.0 - 1.0) * bound).collect(),
            Init::Normal(deviation) => (0..count).map(|_| random.normal() * deviation).collect(),
        };
        Ok(Tensor::from_vec(values, &self.dims)?)
    }
}

/// Tensors by name. Cloning copies handles, not values.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    tensors: BTreeMap<String, Tensor>,
}

impl Parameters {
    /// None.
    pub fn new() -> Parameters {
        Parameters::default()
    }

    /// The first values of a network's parameters and buffers.
    pub fn first(recording: &Recording, seed: u64) -> Result<Parameters> {
        let mut tensors = BTreeMap::new();
        for spec in &recording.specs {
            tensors.insert(spec.name.clone(), spec.first(seed)?);
        }
        Ok(Parameters { tensors })
    }

    /// Adds or replaces one.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor);
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// All, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// All elements of all of them.
    pub fn elements(&self) -> usize {
        self.tensors.values().map(Tensor::elements).sum()
    }

    /// The tensor for a spec: of its name, shape and type.
    pub fn for_spec(&self, spec: &Spec) -> Result<&Tensor> {
        let expected = || format!("f32 {:?}", spec.dims);
        match self.tensors.get(&spec.name) {
            Some(tensor) if tensor.shape().dims() == spec.dims && tensor.dtype() == DType::F32 => Ok(tensor),
            Some(tensor) => {
                let got = format!("{} {:?}", tensor.dtype(), tensor.shape().dims());
                Err(Error::Parameter { name: spec.name.clone(), expected: expected(), got })
            }
            None => {
                let got = format!("none of this name among {}", self.tensors.len());
                Err(Error::Parameter { name: spec.name.clone(), expected: expected(), got })
            }
        }
    }
}

impl FromIterator<(String, Tensor)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> Parameters {
        Parameters { tensors: tensors.into_iter().collect() }
    }
}
