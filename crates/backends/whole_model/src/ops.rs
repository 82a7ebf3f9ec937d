//! The ops of a library for whole models: a model is loaded once and runs many times. Arrays are
//! bytes with ONNX's number of their element type, because such libraries have element types that
//! tensors do not have.

use std::hash::{Hash, Hasher};
use std::path::PathBuf;

use panoply_core::op::{CostClass, Op};
use panoply_core::{Bytes, Describe, Error, Object, Operation, Part, PartMut, PartRef, Result, Value};

/// The source of a model.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A file. Files with weights beside it are found.
    File(PathBuf),
    /// The contents of a file.
    Bytes(Bytes),
}

/// Loads a model onto the device. The output is the model, which is freed with its last handle.
#[derive(Clone, Debug)]
pub struct LoadModel {
    /// The source of the model.
    pub source: ModelSource,
}

/// Runs a model that is on the device.
#[derive(Clone, Debug)]
pub struct RunModel {
    /// The model.
    pub model: Object,
    /// The inputs by name.
    pub inputs: Vec<(String, ModelArray)>,
}

/// Asks which parts of the library run a model that is on the device.
#[derive(Clone, Debug)]
pub struct InspectModel {
    /// The model.
    pub model: Object,
}

/// The share of a model that one part of the library runs: an execution provider of ONNX Runtime,
/// or a device of OpenVINO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShare {
    /// The library's name of that part.
    pub by: String,
    /// Number of the model's nodes there, if the library counts them.
    pub nodes: Option<usize>,
}

impl ModelShare {
    /// Encodes the share as a part of an op's answer.
    pub(crate) fn packed(&self) -> Part {
        let nodes = self.nodes.map_or(u64::MAX, |nodes| nodes as u64);
        Part::Bytes(Bytes::from_vec([&nodes.to_le_bytes()[..], self.by.as_bytes()].concat()))
    }

    fn unpacked(part: Part) -> Result<ModelShare> {
        let wrong = || Error::invalid("the engine's answer", "a share of a model", "something else");
        let Part::Bytes(bytes) = part else { return Err(wrong()) };
        let (nodes, by) = bytes.as_slice()?.split_first_chunk::<8>().ok_or_else(wrong)?;
        let nodes = Some(u64::from_le_bytes(*nodes)).filter(|nodes| *nodes != u64::MAX).map(|nodes| nodes as usize);
        Ok(ModelShare { by: String::from_utf8_lossy(by).into_owned(), nodes })
    }
}

/// The outputs of a model with their names, in the model's order.
pub type ModelOutputs = Vec<(String, ModelArray)>;

/// A contiguous array of elements of one type.
#[derive(Clone, Debug)]
pub struct ModelArray {
    /// ONNX's number of the element type.
    pub element_type: i32,
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The elements.
    pub bytes: Bytes,
}

impl ModelArray {
    /// Size in bytes of such an array. `None` for types without a fixed size, and if the size
    /// overflows.
    pub fn size_bytes(element_type: i32, dims: &[usize]) -> Option<usize> {
        let size = match element_type {
            2 | 3 | 9 | 17..=20 => 1,
            4 | 5 | 10 | 16 => 2,
            1 | 6 | 12 => 4,
            7 | 11 | 13 => 8,
            _ => return None,
        };
        dims.iter().try_fold(size, |bytes: usize, dim| bytes.checked_mul(*dim))
    }

    fn check(&self, name: &str) -> Result<()> {
        let (expected, got) = (ModelArray::size_bytes(self.element_type, &self.dims), self.bytes.len());
        match expected {
            Some(expected) if expected == got => Ok(()),
            Some(expected) => Err(Error::invalid("the bytes of an input", format!("{expected} for {name:?}"), got)),
            None => Err(Error::invalid("the element type of an input", "numbers or truth", self.element_type)),
        }
    }
}

impl Describe for LoadModel {
    fn name(&self) -> &'static str {
        "load_model"
    }

    fn validate(&self) -> Result<()> {
        match &self.source {
            ModelSource::Bytes(bytes) if bytes.is_empty() => Err(Error::invalid("a model", "bytes", "none")),
            _ => Ok(()),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        if let ModelSource::Bytes(bytes) = &self.source {
            visit(bytes.into());
        }
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        if let ModelSource::Bytes(bytes) = &mut self.source {
            visit(bytes.into());
        }
    }
}

impl Describe for RunModel {
    fn name(&self) -> &'static str {
        "run_model"
    }

    fn validate(&self) -> Result<()> {
        self.inputs.iter().try_for_each(|(name, array)| array.check(name))
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.model).into());
        self.inputs.iter().for_each(|(_, array)| visit((&array.bytes).into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.model).into());
        self.inputs.iter_mut().for_each(|(_, array)| visit((&mut array.bytes).into()));
    }

    /// Only models with the same names and types of inputs share a cost class.
    fn cost_class(&self) -> CostClass {
        let mut hasher = std::hash::DefaultHasher::new();
        self.inputs.iter().for_each(|(name, array)| (name, array.element_type).hash(&mut hasher));
        CostClass::numbered(hasher.finish())
    }
}

impl Describe for InspectModel {
    fn name(&self) -> &'static str {
        "inspect_model"
    }

    fn validate(&self) -> Result<()> {
        Ok(())
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.model).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.model).into());
    }
}

impl Operation for LoadModel {
    type Output = Object;

    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }

    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Operation for InspectModel {
    type Output = Vec<ModelShare>;

    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }

    fn output(value: Value) -> Result<Vec<ModelShare>> {
        value.into_list()?.into_iter().map(ModelShare::unpacked).collect()
    }
}

impl Operation for RunModel {
    type Output = ModelOutputs;

    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }

    fn output(value: Value) -> Result<ModelOutputs> {
        let mut parts = value.into_list()?.into_iter();
        let mut outputs = Vec::new();
        while let (Some(head), Some(body)) = (parts.next(), parts.next()) {
            let (Part::Bytes(head), Part::Bytes(bytes)) = (head, body) else {
                return Err(Error::invalid("the engine's answer", "bytes", "something else"));
            };
            let (name, element_type, dims) = unpacked(head.as_slice()?)?;
            outputs.push((name, ModelArray { element_type, dims, bytes }));
        }
        Ok(outputs)
    }
}

/// Encodes an output as two parts: its description and its elements.
pub(crate) fn packed((name, array): (String, ModelArray)) -> [Part; 2] {
    let numbers = [array.element_type as u64, array.dims.len() as u64];
    let numbers = numbers.into_iter().chain(array.dims.iter().map(|dim| *dim as u64));
    let mut head: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    head.extend_from_slice(name.as_bytes());
    [Part::Bytes(Bytes::from_vec(head)), Part::Bytes(array.bytes)]
}

fn unpacked(head: &[u8]) -> Result<(String, i32, Vec<usize>)> {
    let wrong = || Error::invalid("the engine's answer", "an array and its name", "something else");
    let (numbers, _) = head.as_chunks::<8>();
    let number = |place: usize| numbers.get(place).map(|bytes| u64::from_le_bytes(*bytes) as usize).ok_or_else(wrong);
    let (element_type, rank) = (number(0)?, number(1)?);
    let dims = (0..rank).map(|axis| number(2 + axis)).collect::<Result<Vec<usize>>>()?;
    let name = head.get(8 * (2 + rank)..).ok_or_else(wrong)?;
    Ok((String::from_utf8_lossy(name).into_owned(), i32::try_from(element_type).map_err(|_| wrong())?, dims))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_come_back_as_they_were() {
        let array = ModelArray { element_type: 7, dims: vec![2, 1], bytes: Bytes::from_vec(vec![3; 16]) };
        let value = Value::List(packed(("logits".to_owned(), array)).to_vec());
        let outputs = RunModel::output(value).unwrap();
        assert_eq!((outputs[0].0.as_str(), outputs[0].1.element_type), ("logits", 7));
        assert_eq!((outputs[0].1.dims.as_slice(), outputs[0].1.bytes.len()), (&[2, 1][..], 16));
        assert!(unpacked(&[1, 2, 3]).is_err() && unpacked(&[0xff; 24]).is_err());
    }

    #[test]
    fn shares_come_back_as_they_were() {
        let share = |by: &str, nodes| ModelShare { by: by.to_owned(), nodes };
        let shares = vec![share("CUDAExecutionProvider", Some(12)), share("NPU", None)];
        let value = Value::List(shares.iter().map(ModelShare::packed).collect());
        assert_eq!(InspectModel::output(value).unwrap(), shares);
        assert!(InspectModel::output(Value::List(vec![Part::Bytes(Bytes::from_vec(vec![1; 7]))])).is_err());
    }

    #[test]
    fn sizes_are_checked_before_anything_is_sent() {
        let array = |element_type, dims: &[usize], len| ModelArray {
            element_type,
            dims: dims.to_vec(),
            bytes: Bytes::from_vec(vec![0; len]),
        };
        assert!(array(1, &[2, 3], 24).check("x").is_ok() && array(10, &[], 2).check("x").is_ok());
        assert!(array(1, &[2, 3], 23).check("x").is_err(), "a byte is missing");
        assert!(array(8, &[1], 1).check("x").is_err(), "text");
        assert!(array(11, &[usize::MAX, 2], 0).check("x").is_err(), "beyond all memory");
    }
}
