//! Parameters by name: their specifications, their initial values, and the tensors that hold them.

use std::collections::BTreeMap;

use panoply_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::net::Recording;
use crate::random::Random;

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// This value for every element.
    Constant(f32),
    /// Uniformly distributed between minus and plus this bound.
    Uniform(f32),
    /// Normally distributed around zero with this standard deviation.
    Normal(f32),
}

impl Init {
    /// The initialisation of PyTorch's linear and convolutional layers: uniform with the bound
    /// `1 / √fan_in`.
    pub fn fan_in(inputs: usize) -> Init {
        Init::Uniform(1.0 / (inputs.max(1) as f32).sqrt())
    }
}

/// A parameter or buffer of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The name; PyTorch's name for layers that exist there.
    pub name: String,
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The initial values.
    pub init: Init,
    /// Whether it is a trained parameter. A buffer is not trained.
    pub trained: bool,
}

impl Spec {
    /// The initial values for a seed. They depend on the seed, the name and the shape alone, and
    /// not on the other parameters.
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

/// Tensors by name. Cloning copies handles, not elements.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    tensors: BTreeMap<String, Tensor>,
}

impl Parameters {
    /// An empty collection.
    pub fn new() -> Parameters {
        Parameters::default()
    }

    /// The initial values of a network's parameters and buffers.
    pub fn first(recording: &Recording, seed: u64) -> Result<Parameters> {
        let mut tensors = BTreeMap::new();
        for spec in &recording.specs {
            tensors.insert(spec.name.clone(), spec.first(seed)?);
        }
        Ok(Parameters { tensors })
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor);
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// All tensors, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Total number of elements in all tensors.
    pub fn elements(&self) -> usize {
        self.tensors.values().map(Tensor::elements).sum()
    }

    /// The tensor for a spec. Fails unless it has the name and the shape of the spec and the
    /// element type f32.
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
