//! Tests of ops: extensions, device objects, secret parts, sessions, and the list.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::bytes::Bytes;
use crate::device::Api;
use crate::dtype::DType;
use crate::object::{Object, ObjectTable};
use crate::op::compute::Transpose;
use crate::op::crypto::{Compress, Format, Hash, HashAlgorithm};
use crate::op::signal::Fft;
use crate::part::Part;
use crate::shape::Shape;
use crate::sink::{Sink, sink};
use crate::threads::OneThread;

/// An op of a foreign crate, with parts of every sort.
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
fn only_ops_that_are_marked_for_secrets_take_secret_parts() {
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
    let stamp = Stamp { message: secret.clone(), keys: Vec::new() };
    assert!(stamp.clone().into_op().unwrap_err().to_string().contains("secret"), "a foreign engine may keep copies");
    let op = Op::extension_with_secrets(stamp).unwrap();
    assert!(op.takes_secrets() && op.clone().takes_secrets());
    let hash = Hash::new(HashAlgorithm::Sha256, secret.clone()).into_op().unwrap();
    assert!(hash.takes_secrets());
    let zip = Compress::new(Format::Zstd, vec![1]).into_op().unwrap();
    assert!(!zip.takes_secrets());
    assert!(!Transpose::new(&Tensor::zeros(DType::F32, [2, 2]).unwrap()).into_op().unwrap().takes_secrets());
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

/// An op of a domain of its own: it counts its runs in a state that the first run makes.
#[derive(Clone, Debug)]
struct Count(Option<Object>);

impl Describe for Count {
    fn name(&self) -> &'static str {
        "count"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.0.iter().for_each(|object| visit(object.into()));
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.0.iter_mut().for_each(|object| visit(object.into()));
    }
    fn is_repeatable(&self) -> bool {
        self.0.is_none()
    }
}

impl HostOp for Count {
    const DOMAIN: &'static str = "counting";

    fn run(&self, host: &mut Host<'_>) -> Result<Value> {
        let Some(object) = &self.0 else { return host.keep("count", 0_u8).map(Value::Object) };
        let count = host.state::<u8>(object)?;
        *count += 1;
        Ok(Value::Bytes(Bytes::from_vec(vec![*count])))
    }
}

#[test]
fn an_op_with_code_for_the_host_keeps_state_between_its_runs() {
    let run = |op: &Op, states: &mut HostStates| {
        let Op::Extension(extension) = op else { panic!("{op:?}") };
        extension.run_on_host(&OneThread, states).unwrap()
    };
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    let mut states = HostStates::new(device);
    let first = Op::of_host(Count(None)).unwrap();
    assert_eq!((first.domain(), first.domain().name()), (Domain::Outside("counting"), "counting"));
    let object = run(&first, &mut states).unwrap().into_object().unwrap();
    assert!(object.recipe().is_some_and(|recipe| recipe.name() == "count"), "the op is repeatable");
    let next = Op::of_host(Count(Some(object.clone()))).unwrap();
    for runs in 1..=3 {
        let counted = run(&next, &mut states).unwrap().into_bytes().unwrap();
        assert_eq!(counted.as_slice().unwrap(), [runs]);
    }
    let error = run(&next, &mut HostStates::new(device)).unwrap_err();
    assert!(matches!(error, Error::ObjectLost { .. }), "{error}");
    let Ok(Op::Extension(plain)) = Op::extension(Count(None)) else { panic!("an extension") };
    assert!(!plain.runs_on_host() && plain.run_on_host(&OneThread, &mut states).is_none());
}

/// An op of a foreign crate that states its answer: a list of tensors that it holds.
#[derive(Clone, Debug)]
struct Copies {
    tensors: Vec<Tensor>,
    fails: bool,
}

impl Describe for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    crate::parts!(tensors);
    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        if self.fails { Err(Error::invalid("copies", "types", "none")) } else { Ok(AnswerTypes::ListOf(&self.tensors)) }
    }
}

#[test]
fn the_answer_of_a_foreign_op_is_checked_if_the_op_states_its_types() {
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    let (bytes, floats) = (Tensor::zeros(DType::U8, [3]).unwrap(), Tensor::zeros(DType::F32, [0, 2]).unwrap());
    let list =
        |tensors: &[&Tensor]| Value::List(tensors.iter().map(|tensor| Part::Tensor((*tensor).clone())).collect());
    let op = Op::extension(Copies { tensors: vec![bytes.clone(), floats.clone()], fails: false }).unwrap();
    assert_eq!(op.clone().check_answer(&list(&[&bytes, &floats]), device), Ok(()));
    let wrong =
        [list(&[&bytes]), list(&[&floats, &bytes]), list(&[&bytes, &floats, &bytes]), Value::Tensor(bytes.clone())];
    for value in wrong {
        let error = op.check_answer(&value, device).unwrap_err();
        assert!(matches!(error, Error::DeviceFault { .. }), "{error}");
    }
    assert!(op.outputs().is_err() && op.empty_answer().is_none(), "neither graphs nor engines make its answer");
    assert!(Op::extension(Copies { tensors: vec![bytes], fails: true }).is_err());
    let stamp = Stamp { message: Bytes::from_vec(vec![1]), keys: Vec::new() }.into_op().unwrap();
    assert_eq!(stamp.check_answer(&list(&[&floats]), device), Ok(()), "it states nothing");
}

#[test]
fn a_domain_outside_cannot_take_the_name_of_one_in_the_list() {
    #[derive(Clone, Debug)]
    struct Posing;
    impl Describe for Posing {
        fn name(&self) -> &'static str {
            "posing"
        }
        fn validate(&self) -> Result<()> {
            Ok(())
        }
        fn for_each_part(&self, _visit: &mut dyn FnMut(PartRef<'_>)) {}
        fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
    }
    impl HostOp for Posing {
        const DOMAIN: &'static str = "crypto";
        fn run(&self, _host: &mut Host<'_>) -> Result<Value> {
            Ok(Value::List(Vec::new()))
        }
    }
    let error = Op::of_host(Posing).unwrap_err();
    assert!(error.to_string().contains("crypto"), "{error}");
}

#[test]
fn an_op_has_its_name_in_the_list() {
    let op = Transpose::new(&Tensor::zeros(DType::F32, [2, 3]).unwrap()).into_op().unwrap();
    assert_eq!(op.type_name(), Some("Transpose"));
    let names: Vec<&str> = Domain::ALL.iter().map(|domain| domain.name()).collect();
    assert_eq!(names.first(), Some(&"compute"));
    assert_eq!(names.last(), Some(&"extension"));
}
