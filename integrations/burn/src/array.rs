//! Tensors of Burn programs: on the host, on a device, or recorded and not run yet.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::{DType, Shape, TensorData, TensorMetadata};
use burn_flex::FlexTensor;
use panoply_core::Tensor;

use crate::device::PanoplyDevice;
use crate::step::Step;

/// A tensor. Cloning copies a handle.
#[derive(Clone)]
pub struct Array {
    handle: Arc<Handle>,
    shape: Shape,
    dtype: DType,
    device: PanoplyDevice,
}

/// What a program holds of a node. Where the last one is gone, nobody can read the node any more, and it need not be kept.
pub(crate) struct Handle {
    pub(crate) node: Arc<Node>,
}

/// A value, or how it will be made.
pub(crate) struct Node {
    state: Mutex<State>,
}

#[derive(Clone)]
pub(crate) enum State {
    /// On the host, as Burn's CPU backend has it.
    Host(FlexTensor),
    /// Where a graph left it.
    There(Tensor),
    /// Recorded, and not run yet.
    Recorded(Arc<Recorded>),
    /// It could not be made.
    Failed(Arc<str>),
}

/// A step with what it is applied to.
pub(crate) struct Recorded {
    pub(crate) step: Step,
    pub(crate) operands: Vec<Arc<Node>>,
    pub(crate) numbers: Vec<f32>,
}

impl Node {
    pub(crate) fn new(state: State) -> Arc<Node> {
        Arc::new(Node { state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> State {
        self.lock().clone()
    }

    pub(crate) fn set(&self, state: State) {
        *self.lock() = state;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Array {
    /// What Burn's CPU backend made.
    pub fn from_host(tensor: FlexTensor, device: PanoplyDevice) -> Array {
        let (shape, dtype) = (tensor.layout().shape().clone(), tensor.dtype());
        Array::of(Node::new(State::Host(tensor)), shape, dtype, device)
    }

    /// A step that is run later.
    pub(crate) fn recorded(
        step: Step,
        operands: &[&Array],
        numbers: Vec<f32>,
        kind: (Shape, DType),
        device: PanoplyDevice,
    ) -> Array {
        let operands = operands.iter().map(|operand| Arc::clone(&operand.handle.node)).collect();
        let node = Node::new(State::Recorded(Arc::new(Recorded { step, operands, numbers })));
        let array = Array::of(node, kind.0, kind.1, device);
        device.place().record(&array.handle);
        array
    }

    fn of(node: Arc<Node>, shape: Shape, dtype: DType, device: PanoplyDevice) -> Array {
        Array { handle: Arc::new(Handle { node }), shape, dtype, device }
    }

    /// Its sizes.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Where it belongs.
    pub fn device(&self) -> PanoplyDevice {
        self.device
    }

    /// The tensor on the host, as Burn's CPU backend has it. What was recorded is run first.
    pub fn to_host(&self) -> Result<FlexTensor, String> {
        let place = self.device.place();
        let node = &self.handle.node;
        if matches!(node.state(), State::Recorded(_)) {
            place.flush();
        }
        // Another thread may have recorded it.
        if matches!(node.state(), State::Recorded(_)) {
            place.flush_all();
        }
        match node.state() {
            State::Host(tensor) => Ok(tensor),
            State::There(tensor) => {
                let bytes = place.fetch(&tensor)?;
                let data = TensorData::try_from_bytes_vec(bytes, self.shape.clone(), self.dtype);
                Ok(FlexTensor::from_data(data.map_err(|error| error.to_string())?))
            }
            State::Failed(cause) => Err(cause.to_string()),
            State::Recorded(recorded) => Err(format!("{:?} was recorded and not run", recorded.step)),
        }
    }

    /// The same on another device.
    pub fn on(self, device: PanoplyDevice) -> Array {
        match self.device == device {
            true => self,
            false => match self.to_host() {
                Ok(tensor) => Array::from_host(tensor, device),
                Err(cause) => Array::of(Node::new(State::Failed(cause.into())), self.shape, self.dtype, device),
            },
        }
    }
}

impl TensorMetadata for Array {
    type Device = PanoplyDevice;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn device(&self) -> PanoplyDevice {
        self.device
    }

    fn can_mut(&self) -> bool {
        false
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} on {:?}", self.dtype, self.dims(), self.device)
    }
}
