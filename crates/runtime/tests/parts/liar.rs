//! A backend of a foreign crate whose engines give the answers that a test requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::Home;
use panoply_core::op::compute::{ComputeOp, Search, Transfer};
use panoply_core::op::graph::GraphOp;
use panoply_core::{
    Absence, Api, Backend, Bytes, DType, Describe, DeviceBuffer, DeviceId, DeviceInfo, DeviceKind, Engine, Error,
    FinishedOp, FirstGuess, Health, Item, Location, MemoryStats, MemoryUse, Object, ObjectTable, Op, OpenOptions,
    Operation, Part, PartMut, PartRef, Result, Shape, Support, Tensor, Value,
};

pub const LIAR: Api = Api::new("liar");

/// The fault of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    #[default]
    None,
    /// No tensor at all.
    Empty,
    /// One tensor too many.
    More,
    /// The right number of bytes instead of a tensor.
    Bytes,
    /// The same number of elements of another type.
    DType,
    /// The same number of elements in another shape.
    Shape,
    /// Too few elements.
    Short,
    /// Tensors of the right type in the memory of an uninvolved device.
    Elsewhere,
    /// Tensors of the largest possible size, in total more than the address space.
    Huge,
    /// A device object of another device.
    Object,
    /// Numbers as large as they can be.
    Figures,
    /// Each token twice.
    Double,
    /// Each token a second time, with the next answer.
    Late,
    /// The right answer among others with made-up tokens.
    MadeUp,
    /// Only answers to made-up tokens.
    MadeUpAlone,
    /// The first op is never answered, and counted as in flight; all others are answered.
    Forget,
    /// The device is lost, and the next engine answers the ops that this one held.
    Lose,
    /// The device is lost, and from then on all objects belong to another device.
    LoseThenObject,
}

/// Every lie about the output of an op.
pub const WRONG: [Lie; 9] =
    [Lie::Empty, Lie::More, Lie::Bytes, Lie::DType, Lie::Shape, Lie::Short, Lie::Elsewhere, Lie::Huge, Lie::Object];

/// The state through which a test observes and controls all engines.
#[derive(Default)]
pub struct Tongue {
    /// The fault of the first device's answers.
    pub lie: Mutex<Lie>,
    /// Whether the fault affects transfers, or all other ops.
    pub transfers: AtomicBool,
    /// Whether outputs stay on their device.
    pub resident: AtomicBool,
    /// The tokens that earlier engines held.
    pub tokens: Mutex<Vec<u64>>,
    /// Number of allocations that were lent and have not come back.
    pub lent: AtomicU64,
    /// The value of vitals and first guesses, if it is to be odd.
    pub odd: Mutex<Option<f32>>,
    home: Home<DeviceAllocation>,
}

impl Tongue {
    pub fn tell(&self, lie: Lie) {
        *self.lie.lock().unwrap() = lie;
    }

    /// Number of allocations that have not come back.
    pub fn away(&self) -> u64 {
        self.home.take_back(|_| _ = self.lent.fetch_sub(1, Ordering::Relaxed));
        self.lent.load(Ordering::Relaxed)
    }

    fn on_device(&self, device: DeviceId, dtype: DType, shape: Shape) -> Tensor {
        let token = self.lent.fetch_add(1, Ordering::Relaxed);
        let len_bytes = shape.elements() * dtype.size_bytes();
        let buffer = DeviceBuffer::new(self.home.lend(DeviceAllocation { device, token, len_bytes }));
        Tensor::from_device(dtype, shape, buffer).unwrap()
    }
}

pub struct Liar {
    pub devices: u32,
    pub tongue: Arc<Tongue>,
    /// Ops that the device with this index lacks.
    pub lacks: &'static [(u32, &'static str)],
}

/// Makes a device object. If `dead` is set, its table is gone when the answer arrives.
#[derive(Clone, Debug)]
pub struct Make {
    pub dead: bool,
    pub with_recipe: bool,
}

/// An op that names a device object.
#[derive(Clone, Debug)]
pub struct Use(pub Object);

impl Describe for Make {
    fn name(&self) -> &'static str {
        "make"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, _visit: &mut dyn FnMut(PartRef<'_>)) {}
    fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
}

impl Operation for Make {
    type Output = Object;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Describe for Use {
    fn name(&self) -> &'static str {
        "use"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.0).into());
    }
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.0).into());
    }
}

impl Operation for Use {
    type Output = Bytes;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Bytes> {
        value.into_bytes()
    }
}

impl Backend for Liar {
    fn api(&self) -> Api {
        LIAR
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let device = |index| DeviceInfo::new(DeviceId { api: LIAR, index }, format!("liar {index}"), DeviceKind::Tpu);
        Ok((0..self.devices).map(device).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        let lacks = |op: &Op| self.lacks.contains(&(device.id.index, op.name()));
        let ask = |op: &Op| if lacks(op) { Support::No(format!("it lacks {}", op.name())) } else { Support::Yes };
        match op {
            Op::Graph(GraphOp::RunGraph(run)) => match run.instance() {
                Ok(instance) => instance.support(run.graph(), device.id, &ask),
                Err(error) => Support::No(error.to_string()),
            },
            op => ask(op),
        }
    }

    fn first_guess(&self, device: &DeviceInfo, _op: &Op) -> FirstGuess {
        match *self.tongue.odd.lock().unwrap() {
            Some(odd) => FirstGuess { overhead_ns: odd, work_unit_ns: odd },
            None => FirstGuess::of(device),
        }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let (info, tongue) = (device.clone(), Arc::clone(&self.tongue));
        let (held, objects) = (Vec::new(), ObjectTable::new(device.id));
        Ok(Box::new(Mouth { info, tongue, held, again: Vec::new(), objects, forgotten: 0 }))
    }
}

struct Mouth {
    info: DeviceInfo,
    tongue: Arc<Tongue>,
    held: Vec<Item>,
    /// Ops that are answered a second time.
    again: Vec<(u64, Op)>,
    objects: ObjectTable<()>,
    forgotten: usize,
}

impl Mouth {
    fn lie(&self, op: &Op) -> Lie {
        let transfer = matches!(op, Op::Compute(ComputeOp::Transfer(_)));
        let lies = self.info.id.index == 0 && transfer == self.tongue.transfers.load(Ordering::Relaxed);
        if lies { *self.tongue.lie.lock().unwrap() } else { Lie::None }
    }

    fn make(&self, dtype: DType, shape: Shape) -> Tensor {
        if self.tongue.resident.load(Ordering::Relaxed) {
            return self.tongue.on_device(self.info.id, dtype, shape);
        }
        Tensor::zeros(dtype, shape).unwrap()
    }

    /// The right answer, as far as its types are concerned.
    fn truth(&mut self, op: &Op) -> Result<Value> {
        let value = match op {
            Op::Graph(GraphOp::RunGraph(run)) => {
                let outputs = &run.instance()?.outputs;
                Value::List(outputs.iter().map(|like| Part::Tensor(self.make(like.dtype(), *like.shape()))).collect())
            }
            Op::Compute(ComputeOp::Transfer(Transfer { input, to: Location::Host })) => {
                Value::Tensor(Tensor::zeros(input.dtype(), input.shape())?)
            }
            Op::Compute(ComputeOp::Normalize(op)) => Value::Tensor(self.make(op.output, op.output_shape())),
            Op::Compute(ComputeOp::Conv2dBackwardInput(op)) => {
                Value::Tensor(self.make(op.gradient.dtype(), op.output_shape()?))
            }
            Op::Compute(ComputeOp::Conv2dBackwardWeight(op)) => {
                Value::Tensor(self.make(op.gradient.dtype(), op.output_shape()?))
            }
            Op::Compute(ComputeOp::Search(Search { queries, k, .. })) => {
                let shape = Shape::new([queries.shape()[0], *k])?;
                Value::Pair(self.make(DType::U32, shape), self.make(DType::F32, shape))
            }
            Op::Extension(extension) => match (extension.downcast_ref::<Make>(), extension.downcast_ref::<Use>()) {
                (Some(Make { dead: true, .. }), _) => {
                    Value::Object(ObjectTable::new(self.info.id).insert("thing", (), None)?)
                }
                (Some(make), _) => Value::Object(self.objects.insert("thing", (), make.with_recipe.then_some(op))?),
                (_, Some(Use(object))) => {
                    self.objects.get_mut(object)?;
                    Value::Bytes(Bytes::from_vec(vec![1]))
                }
                _ => return Err(Support::unknown(op).refusal(op)),
            },
            op => match op.outputs()?.as_slice() {
                [(dtype, shape)] if op.name() != "kernel" => Value::Tensor(self.make(*dtype, *shape)),
                [(dtype, shape), (other, also)] => Value::Pair(self.make(*dtype, *shape), self.make(*other, *also)),
                outputs => {
                    Value::List(outputs.iter().map(|(dtype, shape)| Part::Tensor(self.make(*dtype, *shape))).collect())
                }
            },
        };
        Ok(value)
    }

    fn answer(&mut self, op: &Op) -> Result<Value> {
        let lie = self.lie(op);
        let value = self.truth(op)?;
        let elsewhere = DeviceId { api: LIAR, index: 99 };
        Ok(match lie {
            Lie::Empty => Value::List(Vec::new()),
            Lie::More => {
                let more = Tensor::zeros(DType::F32, [1]).unwrap();
                Value::List(value.tensors().chain([&more]).cloned().map(Part::Tensor).collect())
            }
            Lie::Bytes => Value::Bytes(Bytes::from_vec(vec![0; value.len_bytes()])),
            Lie::DType => value.try_map(|tensor| Tensor::zeros(DType::I8, tensor.shape()))?,
            Lie::Shape => value.try_map(|tensor| Tensor::zeros(tensor.dtype(), [1, tensor.elements(), 1]))?,
            Lie::Short => value.try_map(|tensor| Tensor::zeros(tensor.dtype(), [tensor.elements() / 2]))?,
            Lie::Elsewhere => {
                value.try_map(|tensor| Ok(self.tongue.on_device(elsewhere, tensor.dtype(), *tensor.shape())))?
            }
            Lie::Huge => {
                let huge = Tensor::zeros(DType::U8, [1]).unwrap().broadcast_to([isize::MAX as usize / 16]).unwrap();
                Value::List(vec![Part::Tensor(huge); 40])
            }
            Lie::Object => Value::Object(ObjectTable::new(elsewhere).insert("thing", (), None)?),
            _ => value,
        })
    }
}

impl Engine for Mouth {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.held.append(batch);
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, _wait_max: Duration) -> usize {
        self.objects.collect();
        let alone = |token, op: Op, result| FinishedOp::alone(Item { token, op }, result);
        for item in std::mem::take(&mut self.held) {
            let (lie, Item { token, op }) = (self.lie(&item.op), item);
            if lie == Lie::LoseThenObject {
                self.tongue.tell(Lie::Object);
            }
            if matches!(lie, Lie::Lose | Lie::LoseThenObject) {
                self.tongue.tokens.lock().unwrap().push(token);
                let lost = Error::DeviceLost { device: self.info.id, reason: "the test says so".to_owned() };
                finished.push(alone(token, op, Err(lost)));
                continue;
            }
            if lie == Lie::Forget && self.forgotten == 0 {
                self.forgotten = 1;
                continue;
            }
            // The ops that earlier engines held.
            let before = std::mem::take(&mut *self.tongue.tokens.lock().unwrap());
            for token in before {
                finished.push(alone(token, op.clone(), self.truth(&op)));
            }
            for (token, op) in std::mem::take(&mut self.again) {
                let value = self.truth(&op);
                finished.push(alone(token, op, value));
            }
            let value = self.answer(&op);
            if matches!(lie, Lie::MadeUp | Lie::MadeUpAlone) {
                for token in [0, u64::MAX, token ^ 1, token ^ (1 << 32), token + (7 << 32), token | 0xffff_ffff] {
                    finished.push(alone(token, op.clone(), self.truth(&op)));
                }
            }
            match lie {
                Lie::Double => finished.push(alone(token, op.clone(), self.truth(&op))),
                Lie::Late => self.again.push((token, op.clone())),
                Lie::MadeUpAlone => {
                    self.held.push(Item { token, op });
                    continue;
                }
                _ => {}
            }
            let mut done = alone(token, op, value);
            if lie == Lie::Figures {
                (done.batch_size, done.bytes_moved) = (u32::MAX, u64::MAX);
                (done.transferred, done.device_time) = (Some(Duration::MAX), Some(Duration::MAX));
            }
            finished.push(done);
        }
        self.held.len() + self.forgotten
    }

    fn memory(&mut self) -> MemoryStats {
        let figure = if self.tongue.odd.lock().unwrap().is_some() { u64::MAX } else { 0 };
        MemoryStats { lent_bytes: figure, cached_bytes: figure, peak_bytes: figure, hits: figure, misses: figure }
    }

    fn health(&mut self) -> Health {
        let odd = *self.tongue.odd.lock().unwrap();
        let (temperature_celsius, power_watts, utilisation_percent) = (odd, odd, odd);
        let memory = odd.map(|odd| MemoryUse::new(odd as u64, u64::MAX - odd as u64));
        Health { temperature_celsius, power_watts, utilisation_percent, memory, ..Health::default() }
    }
}
