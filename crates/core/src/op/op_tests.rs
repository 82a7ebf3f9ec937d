#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::bytes::Bytes;
use crate::device::Api;
use crate::dtype::DType;
use crate::object::{Object, ObjectTable};
use crate::op::compute::Transpose;
use crate::op::signal::Fft;
use crate::shape::Shape;
use crate::sink::{Sink, sink};

/// An op of a foreign crate, with every sort of part.
#[derive(Clone, Debug)]
struct Stamp {
    message: Bytes,
    keys: Vec<Object>,
}

impl Describe for Stamp {
    fn name(&self) -> &'static str {
        "stamp"
    }

    fn validate(&self) -> Result<()> {
        if self.message.is_empty() { Err(Error::invalid("stamp", "a message", "none")) } else { Ok(()) }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.message).into());
        self.keys.iter().for_each(|key| visit(key.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.message).into());
        self.keys.iter_mut().for_each(|key| visit(key.into()));
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}

impl Operation for Stamp {
    type Output = Bytes;

    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }

    fn output(value: Value) -> Result<Bytes> {
        value.into_bytes()
    }
}

fn object(index: u32) -> Object {
    ObjectTable::new(DeviceId { api: Api::SIMULATED, index }).insert("key", (), None).unwrap()
}

#[test]
fn an_extension_is_an_op_like_the_others() {
    let stamp = Stamp { message: Bytes::from_vec(vec![1, 2, 3]), keys: vec![object(1)] };
    let mut op = stamp.into_op().unwrap();
    assert_eq!((op.domain(), op.name(), op.input_bytes(), op.work()), (Domain::Extension, "stamp", 3, 3));
    assert_eq!((op.is_repeatable(), op.dtype()), (false, None));
    assert_eq!(op.bound_to(), Some(DeviceId { api: Api::SIMULATED, index: 1 }));
    op.for_each_part_mut(&mut |part| {
        if let PartMut::Bytes(bytes) = part {
            *bytes = Bytes::from_vec(vec![9]);
        }
    });
    let Op::Extension(extension) = op.clone() else { panic!("{op:?}") };
    assert_eq!(extension.downcast_ref::<Stamp>().unwrap().message.as_slice().unwrap(), [9]);
    assert!(extension.downcast_ref::<u8>().is_none());
}

#[test]
fn objects_of_two_devices_and_bad_arguments_are_refused() {
    let message = Bytes::from_vec(vec![1]);
    let error = Stamp { message, keys: vec![object(1), object(2)] }.into_op().unwrap_err();
    assert!(error.to_string().contains("simulated:2"), "{error}");
    assert!(Stamp { message: Bytes::from_vec(Vec::new()), keys: Vec::new() }.into_op().is_err());
}

#[test]
fn ops_on_tensors_refuse_secret_parts_and_others_take_them() {
    let secret = Bytes::secret(vec![0; 64]).unwrap();
    let of = |dtype: DType, shape: Shape| {
        Tensor::from_parts(dtype, shape, shape.contiguous_strides(), 0, secret.buffer().clone()).unwrap()
    };
    let reals = of(DType::F32, Shape::new([4, 4]).unwrap());
    let complex = of(DType::Complex64, Shape::new([8]).unwrap());
    for refused in [Transpose::new(&reals).into_op(), Fft::new(&complex).into_op()] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("secret"), "{error}");
    }
    assert!(Stamp { message: secret, keys: Vec::new() }.into_op().is_ok());
}

#[test]
fn an_op_with_a_sink_is_a_session_and_not_repeatable_whatever_it_says() {
    #[derive(Clone, Debug)]
    struct Tells(Option<Sink>);
    impl Describe for Tells {
        fn name(&self) -> &'static str {
            "tells"
        }
        fn validate(&self) -> Result<()> {
            Ok(())
        }
        fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
            self.0.iter().for_each(|sink| visit(sink.into()));
        }
        fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
            self.0.iter_mut().for_each(|sink| visit(sink.into()));
        }
        fn is_repeatable(&self) -> bool {
            true
        }
    }
    let (sink, _source) = sink(1);
    let op = Op::extension(Tells(Some(sink))).unwrap();
    assert_eq!((op.is_session(), op.is_repeatable(), op.input_bytes(), op.bound_to()), (true, false, 0, None));
    let op = Op::extension(Tells(None)).unwrap();
    assert_eq!((op.is_session(), op.is_repeatable()), (false, true));
}

#[test]
fn the_list_counts_its_ops() {
    let ops: usize = Op::COUNT;
    assert_eq!(ops, 71, "a new op raises this number");
    let names: Vec<&str> = Domain::ALL.iter().map(|domain| domain.name()).collect();
    assert_eq!(names.first(), Some(&"compute"));
    assert_eq!(names.last(), Some(&"extension"));
}
