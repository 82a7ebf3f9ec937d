//! The backend as Burn knows it.

use burn_backend::distributed::DistributedOps;
use burn_backend::ops::TransactionOps;
use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, GraphUnsupported};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{BackendIr, HandleKind, TensorHandle};

use crate::array::Array;
use crate::device::{self, PanoplyDevice};
use crate::quantized::Quantized;

/// Burn's ops as graphs of Panoply's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Panoply;

impl BackendTypes for Panoply {
    type Device = PanoplyDevice;
    type FloatTensorPrimitive = Array;
    type IntTensorPrimitive = Array;
    type BoolTensorPrimitive = Array;
    type QuantizedTensorPrimitive = Quantized;
    type GraphPrimitive = GraphUnsupported;
}

impl Backend for Panoply {
    fn name(_: &PanoplyDevice) -> String {
        "panoply".to_owned()
    }

    /// Random numbers are those of Burn's CPU backend, so that the same seed gives the same.
    fn seed(_: &PanoplyDevice, seed: u64) {
        Flex::seed(&FlexDevice, seed);
    }

    fn sync(device: &PanoplyDevice) -> Result<(), ExecutionError> {
        device.place().flush();
        Ok(())
    }

    fn flush(device: &PanoplyDevice) -> Result<(), ExecutionError> {
        device.place().flush();
        Ok(())
    }

    fn dtype_usage(_: &PanoplyDevice, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(&FlexDevice, dtype)
    }

    fn device_count(_: u16) -> usize {
        device::count()
    }
}

impl TransactionOps<Panoply> for Panoply {}
impl DistributedOps<Panoply> for Panoply {}

macro_rules! of_kind {
    ($name:ident, $kind:ident, $ty:ty) => {
        fn $name(handle: TensorHandle<HandleKind<Panoply>>) -> $ty {
            match handle.handle {
                HandleKind::$kind(tensor) => tensor,
                // The interpreter of Burn's server keeps kinds apart; its own backends answer the same.
                other => panic!("expected {}, got {}", stringify!($kind), other.name()),
            }
        }
    };
}

impl BackendIr for Panoply {
    type Handle = HandleKind<Panoply>;

    of_kind!(float_tensor, Float, Array);
    of_kind!(int_tensor, Int, Array);
    of_kind!(bool_tensor, Bool, Array);
    of_kind!(quantized_tensor, Quantized, Quantized);

    fn float_tensor_handle(tensor: Array) -> HandleKind<Panoply> {
        HandleKind::Float(tensor)
    }

    fn int_tensor_handle(tensor: Array) -> HandleKind<Panoply> {
        HandleKind::Int(tensor)
    }

    fn bool_tensor_handle(tensor: Array) -> HandleKind<Panoply> {
        HandleKind::Bool(tensor)
    }

    fn quantized_tensor_handle(tensor: Quantized) -> HandleKind<Panoply> {
        HandleKind::Quantized(tensor)
    }
}
