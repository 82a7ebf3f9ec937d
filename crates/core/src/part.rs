//! Parts: the inputs and outputs of an op. A part is a tensor, bytes or a device object. A list is
//! several parts in order. A sink is an input part only: the op that answers through the sink
//! carries it.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::sink::Sink;
use crate::tensor::{Location, Tensor};

/// An owned part.
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
    /// Borrows the part.
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

/// A borrowed part of an op.
#[derive(Clone, Copy, Debug)]
pub enum PartRef<'a> {
    /// Elements of one type in a shape.
    Tensor(&'a Tensor),
    /// Bytes without a shape.
    Bytes(&'a Bytes),
    /// State on a device.
    Object(&'a Object),
    /// The sink that receives values while the op runs.
    Sink(&'a Sink),
}

impl<'a> PartRef<'a> {
    /// The tensor, if the part is one.
    pub fn tensor(self) -> Option<&'a Tensor> {
        match self {
            PartRef::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The device object, if the part is one.
    pub fn object(self) -> Option<&'a Object> {
        match self {
            PartRef::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The sink, if the part is one.
    pub fn sink(self) -> Option<&'a Sink> {
        match self {
            PartRef::Sink(sink) => Some(sink),
            _ => None,
        }
    }

    /// Number of bytes to move if the part lived elsewhere. Objects and sinks do not move.
    pub fn len_bytes(self) -> usize {
        match self {
            PartRef::Tensor(tensor) => tensor.len_bytes(),
            PartRef::Bytes(bytes) => bytes.len(),
            PartRef::Object(_) | PartRef::Sink(_) => 0,
        }
    }

    /// Location of the part.
    pub fn location(self) -> Location {
        match self {
            PartRef::Tensor(tensor) => tensor.location(),
            PartRef::Bytes(bytes) => bytes.location(),
            PartRef::Object(object) => Location::Device(object.device()),
            PartRef::Sink(_) => Location::Host,
        }
    }

    /// Whether the part is wiped when its last handle is dropped, so that no copy of it may remain.
    pub fn is_secret(self) -> bool {
        match self {
            PartRef::Tensor(tensor) => tensor.buffer().is_secret(),
            PartRef::Bytes(bytes) => bytes.is_secret(),
            PartRef::Object(_) | PartRef::Sink(_) => false,
        }
    }
}

/// A mutable reference to a part of an op, for replacing it by an equal part elsewhere.
#[derive(Debug)]
pub enum PartMut<'a> {
    /// Elements of one type in a shape.
    Tensor(&'a mut Tensor),
    /// Bytes without a shape.
    Bytes(&'a mut Bytes),
    /// State on a device.
    Object(&'a mut Object),
    /// The sink that receives values while the op runs.
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

/// A field of an op that holds parts: one, several, or possibly none. Used by
/// [`parts!`](crate::parts).
pub trait Parts {
    /// Calls `visit` for each part, in a fixed order.
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>));

    /// Lets `visit` replace each part by an equal one.
    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>));
}

macro_rules! one_part {
    ($($part:ty),*) => {
        $(impl Parts for $part {
            fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
                visit(self.into());
            }

            fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
                visit(self.into());
            }
        })*
    };
}

one_part!(Tensor, Bytes, Object, Sink);

impl<T: Parts> Parts for Option<T> {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.iter().for_each(|parts| parts.visit(visit));
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.iter_mut().for_each(|parts| parts.visit_mut(visit));
    }
}

impl<T: Parts> Parts for Vec<T> {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.iter().for_each(|parts| parts.visit(visit));
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.iter_mut().for_each(|parts| parts.visit_mut(visit));
    }
}

/// Writes `for_each_part` and `for_each_part_mut` of [`Describe`](crate::Describe) for an op whose
/// parts are in these fields, in this order. Each field's type implements [`Parts`].
///
/// ```
/// use panoply_core::{Bytes, Describe, Object, Result};
///
/// struct Add {
///     sum: Object,
///     numbers: Option<Bytes>,
/// }
///
/// impl Describe for Add {
///     fn name(&self) -> &'static str {
///         "add"
///     }
///     fn validate(&self) -> Result<()> {
///         Ok(())
///     }
///     panoply_core::parts!(sum, numbers);
/// }
/// ```
#[macro_export]
macro_rules! parts {
    ($($($field:ident).+),* $(,)?) => {
        fn for_each_part(&self, _visit: &mut dyn FnMut($crate::PartRef<'_>)) {
            $($crate::part::Parts::visit(&self.$($field).+, _visit);)*
        }

        fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut($crate::PartMut<'_>)) {
            $($crate::part::Parts::visit_mut(&mut self.$($field).+, _visit);)*
        }
    };
}

/// The output of an engine for one op: one part or several.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Moved once per op; a box would allocate.
pub enum Value {
    /// One tensor.
    Tensor(Tensor),
    /// Two tensors, such as sorted keys with their values.
    Pair(Tensor, Tensor),
    /// Bytes.
    Bytes(Bytes),
    /// A device object.
    Object(Object),
    /// Any number of parts, possibly none.
    List(Vec<Part>),
}

impl Value {
    /// The tensor. Fails for any other value.
    pub fn into_tensor(self) -> Result<Tensor> {
        match self {
            Value::Tensor(tensor) => Ok(tensor),
            other => Err(other.unexpected("one tensor")),
        }
    }

    /// The two tensors. Fails for any other value.
    pub fn into_pair(self) -> Result<(Tensor, Tensor)> {
        match self {
            Value::Pair(first, second) => Ok((first, second)),
            other => Err(other.unexpected("two tensors")),
        }
    }

    /// The bytes. Fails for any other value.
    pub fn into_bytes(self) -> Result<Bytes> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(other.unexpected("bytes")),
        }
    }

    /// The device object. Fails for any other value.
    pub fn into_object(self) -> Result<Object> {
        match self {
            Value::Object(object) => Ok(object),
            other => Err(other.unexpected("a device object")),
        }
    }

    /// The parts of a list. Fails for any other value.
    pub fn into_list(self) -> Result<Vec<Part>> {
        match self {
            Value::List(parts) => Ok(parts),
            other => Err(other.unexpected("a list")),
        }
    }

    /// All parts, in order.
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

    /// Total bytes of all parts.
    pub fn len_bytes(&self) -> usize {
        self.parts().fold(0, |sum, part| sum.saturating_add(part.len_bytes()))
    }

    /// Replaces each tensor by the result of `change`. Bytes are passed to `change` as a tensor of
    /// `u8`. Objects stay unchanged.
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
