//! Parts: what goes into an op, and what comes out of it. A part is a tensor, bytes or a device object; a list is several
//! parts, one after the other. A sink is a part of the op that answers through it, and of no output.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::sink::Sink;
use crate::tensor::{Location, Tensor};

/// One part, owned.
#[derive(Clone, Debug)]
pub enum Part {
    /// Elements of one type in a shape.
    Tensor(Tensor),
    /// Bytes without a shape.
    Bytes(Bytes),
    /// State on a device.
    Object(Object),
}

impl Part {
    /// The part, borrowed.
    pub fn as_ref(&self) -> PartRef<'_> {
        match self {
            Part::Tensor(tensor) => PartRef::Tensor(tensor),
            Part::Bytes(bytes) => PartRef::Bytes(bytes),
            Part::Object(object) => PartRef::Object(object),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Part::Tensor(_) => "a tensor",
            Part::Bytes(_) => "bytes",
            Part::Object(_) => "a device object",
        }
    }
}

/// One part of an op, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum PartRef<'a> {
    /// Elements of one type in a shape.
    Tensor(&'a Tensor),
    /// Bytes without a shape.
    Bytes(&'a Bytes),
    /// State on a device.
    Object(&'a Object),
    /// Where the op sends values while it is under way.
    Sink(&'a Sink),
}

impl<'a> PartRef<'a> {
    /// The tensor, where it is one.
    pub fn tensor(self) -> Option<&'a Tensor> {
        match self {
            PartRef::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The device object, where it is one.
    pub fn object(self) -> Option<&'a Object> {
        match self {
            PartRef::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The sink, where it is one.
    pub fn sink(self) -> Option<&'a Sink> {
        match self {
            PartRef::Sink(sink) => Some(sink),
            _ => None,
        }
    }

    /// How many bytes would have to move if it lived elsewhere. Objects and sinks do not move.
    pub fn len_bytes(self) -> usize {
        match self {
            PartRef::Tensor(tensor) => tensor.len_bytes(),
            PartRef::Bytes(bytes) => bytes.len(),
            PartRef::Object(_) | PartRef::Sink(_) => 0,
        }
    }

    /// Where it is.
    pub fn location(self) -> Location {
        match self {
            PartRef::Tensor(tensor) => tensor.location(),
            PartRef::Bytes(bytes) => bytes.location(),
            PartRef::Object(object) => Location::Device(object.device()),
            PartRef::Sink(_) => Location::Host,
        }
    }

    /// Whether it is wiped when its last handle is dropped, and must leave no copy behind.
    pub fn is_secret(self) -> bool {
        match self {
            PartRef::Tensor(tensor) => tensor.buffer().is_secret(),
            PartRef::Bytes(bytes) => bytes.is_secret(),
            PartRef::Object(_) | PartRef::Sink(_) => false,
        }
    }
}

/// One part of an op, to be replaced by an equal one elsewhere.
#[derive(Debug)]
pub enum PartMut<'a> {
    /// Elements of one type in a shape.
    Tensor(&'a mut Tensor),
    /// Bytes without a shape.
    Bytes(&'a mut Bytes),
    /// State on a device.
    Object(&'a mut Object),
    /// Where the op sends values while it is under way.
    Sink(&'a mut Sink),
}

impl<'a> From<&'a Tensor> for PartRef<'a> {
    fn from(tensor: &'a Tensor) -> PartRef<'a> {
        PartRef::Tensor(tensor)
    }
}

impl<'a> From<&'a Bytes> for PartRef<'a> {
    fn from(bytes: &'a Bytes) -> PartRef<'a> {
        PartRef::Bytes(bytes)
    }
}

impl<'a> From<&'a Object> for PartRef<'a> {
    fn from(object: &'a Object) -> PartRef<'a> {
        PartRef::Object(object)
    }
}

impl<'a> From<&'a Sink> for PartRef<'a> {
    fn from(sink: &'a Sink) -> PartRef<'a> {
        PartRef::Sink(sink)
    }
}

impl<'a> From<&'a mut Tensor> for PartMut<'a> {
    fn from(tensor: &'a mut Tensor) -> PartMut<'a> {
        PartMut::Tensor(tensor)
    }
}

impl<'a> From<&'a mut Bytes> for PartMut<'a> {
    fn from(bytes: &'a mut Bytes) -> PartMut<'a> {
        PartMut::Bytes(bytes)
    }
}

impl<'a> From<&'a mut Object> for PartMut<'a> {
    fn from(object: &'a mut Object) -> PartMut<'a> {
        PartMut::Object(object)
    }
}

impl<'a> From<&'a mut Sink> for PartMut<'a> {
    fn from(sink: &'a mut Sink) -> PartMut<'a> {
        PartMut::Sink(sink)
    }
}

/// What an engine returns for an op: one part, or several.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Moved once from the engine into the task record; a box would be an allocation per op.
pub enum Value {
    /// One tensor.
    Tensor(Tensor),
    /// Two tensors, such as sorted keys with their values.
    Pair(Tensor, Tensor),
    /// Bytes.
    Bytes(Bytes),
    /// A device object.
    Object(Object),
    /// Any number of parts, also none.
    List(Vec<Part>),
}

impl Value {
    /// The one tensor.
    pub fn into_tensor(self) -> Result<Tensor> {
        match self {
            Value::Tensor(tensor) => Ok(tensor),
            other => Err(other.unexpected("one tensor")),
        }
    }

    /// The two tensors.
    pub fn into_pair(self) -> Result<(Tensor, Tensor)> {
        match self {
            Value::Pair(first, second) => Ok((first, second)),
            other => Err(other.unexpected("two tensors")),
        }
    }

    /// The bytes.
    pub fn into_bytes(self) -> Result<Bytes> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(other.unexpected("bytes")),
        }
    }

    /// The device object.
    pub fn into_object(self) -> Result<Object> {
        match self {
            Value::Object(object) => Ok(object),
            other => Err(other.unexpected("a device object")),
        }
    }

    /// The parts, however many.
    pub fn into_list(self) -> Result<Vec<Part>> {
        match self {
            Value::List(parts) => Ok(parts),
            other => Err(other.unexpected("a list")),
        }
    }

    /// Every part, in order.
    pub fn parts(&self) -> impl Iterator<Item = PartRef<'_>> {
        let none: &[Part] = &[];
        let (first, second, list) = match self {
            Value::Tensor(tensor) => (Some(tensor.into()), None, none),
            Value::Pair(first, second) => (Some(first.into()), Some(second.into()), none),
            Value::Bytes(bytes) => (Some(bytes.into()), None, none),
            Value::Object(object) => (Some(object.into()), None, none),
            Value::List(parts) => (None, None, parts.as_slice()),
        };
        first.into_iter().chain(second).chain(list.iter().map(Part::as_ref))
    }

    /// The tensors among the parts.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.parts().filter_map(PartRef::tensor)
    }

    /// Bytes of all parts.
    pub fn len_bytes(&self) -> usize {
        self.parts().fold(0, |sum, part| sum.saturating_add(part.len_bytes()))
    }

    /// The value with each tensor, and bytes as a tensor of bytes, replaced by what `change` makes of it.
    pub fn try_map(self, mut change: impl FnMut(Tensor) -> Result<Tensor>) -> Result<Value> {
        let bytes_of = |bytes: Bytes, change: &mut dyn FnMut(Tensor) -> Result<Tensor>| {
            Bytes::from_tensor(&change(bytes.to_tensor()?)?)
        };
        Ok(match self {
            Value::Tensor(tensor) => Value::Tensor(change(tensor)?),
            Value::Pair(first, second) => Value::Pair(change(first)?, change(second)?),
            Value::Bytes(bytes) => Value::Bytes(bytes_of(bytes, &mut change)?),
            Value::Object(object) => Value::Object(object),
            Value::List(parts) => {
                let changed = parts.into_iter().map(|part| match part {
                    Part::Tensor(tensor) => change(tensor).map(Part::Tensor),
                    Part::Bytes(bytes) => bytes_of(bytes, &mut change).map(Part::Bytes),
                    Part::Object(object) => Ok(Part::Object(object)),
                });
                Value::List(changed.collect::<Result<_>>()?)
            }
        })
    }

    fn unexpected(&self, expected: &'static str) -> Error {
        let got = match self {
            Value::Tensor(_) => "one tensor".to_owned(),
            Value::Pair(..) => "two tensors".to_owned(),
            Value::Bytes(_) => "bytes".to_owned(),
            Value::Object(_) => "a device object".to_owned(),
            Value::List(parts) => format!("a list of {}: {:?}", parts.len(), parts.first().map(Part::kind)),
        };
        Error::invalid("the engine's answer", expected, got)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn a_value_shows_its_parts_in_order() {
        let tensor = Tensor::zeros(DType::F32, [3]).unwrap();
        let bytes = Bytes::from_vec(vec![1, 2]);
        let list = Value::List(vec![Part::Bytes(bytes.clone()), Part::Tensor(tensor.clone())]);
        let lens: Vec<usize> = list.parts().map(PartRef::len_bytes).collect();
        assert_eq!((lens, list.len_bytes(), list.tensors().count()), (vec![2, 12], 14, 1));
        assert_eq!(Value::Pair(tensor.clone(), tensor).parts().count(), 2);
        assert_eq!(Value::List(Vec::new()).parts().count(), 0);
        assert!(Value::Bytes(bytes).into_tensor().is_err());
    }

    #[test]
    fn bytes_in_a_value_are_changed_as_tensors_of_bytes() {
        let value = Value::List(vec![Part::Bytes(Bytes::from_vec(vec![1, 2, 3]))]);
        let changed = value.try_map(|tensor| tensor.slice(0, 1, 3)).unwrap().into_list().unwrap();
        let [Part::Bytes(bytes)] = changed.as_slice() else { panic!("{changed:?}") };
        assert_eq!(bytes.as_slice().unwrap(), [2, 3]);
    }
}
