//! Quantised tensors: those of Burn's CPU backend.

use burn_backend::ops::QTensorOps;
use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::{DType, ExecutionError, Shape, TensorData, TensorMetadata};
use burn_flex::{Flex, FlexDevice, FlexQTensor};
use burn_std::FloatDType;

use crate::array::Array;
use crate::backend::Panoply;
use crate::device::PanoplyDevice;
use crate::host::{OfHost, ToHost, on_host};

/// A quantised tensor, on the host.
#[derive(Clone, Debug)]
pub struct Quantized {
    tensor: FlexQTensor,
    device: PanoplyDevice,
}

impl TensorMetadata for Quantized {
    type Device = PanoplyDevice;

    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn shape(&self) -> Shape {
        self.tensor.shape()
    }

    fn device(&self) -> PanoplyDevice {
        self.device
    }

    fn can_mut(&self) -> bool {
        false
    }
}

impl ToHost for Quantized {
    type Host = FlexQTensor;

    fn to_host(self) -> FlexQTensor {
        self.tensor
    }

    fn place(&self) -> Option<PanoplyDevice> {
        Some(self.device)
    }
}

impl OfHost<FlexQTensor> for Quantized {
    fn of_host(tensor: FlexQTensor, device: PanoplyDevice) -> Quantized {
        Quantized { tensor, device }
    }
}

impl QTensorOps<Panoply> for Panoply {
    fn q_from_data(data: TensorData, device: &PanoplyDevice) -> Quantized {
        Quantized { tensor: Flex::q_from_data(data, &FlexDevice), device: *device }
    }

    fn quantize(tensor: Array, scheme: &QuantScheme, parameters: QuantizationParametersPrimitive<Panoply>) -> Quantized {
        let device = tensor.device();
        let QuantizationParametersPrimitive { scales, global } = parameters;
        let parameters = QuantizationParametersPrimitive { scales: ToHost::to_host(scales), global: global.to_host() };
        Quantized { tensor: Flex::quantize(ToHost::to_host(tensor), scheme, parameters), device }
    }

    fn q_to_device(tensor: Quantized, device: &PanoplyDevice) -> Quantized {
        Quantized { device: *device, ..tensor }
    }

    async fn q_into_data(tensor: Quantized) -> Result<TensorData, ExecutionError> {
        Flex::q_into_data(tensor.tensor).await
    }

    on_host! {
        fn dequantize(tensor: Quantized, dtype: FloatDType) -> Array;
        fn q_reshape(tensor: Quantized, shape: Shape) -> Quantized;
        fn q_swap_dims(tensor: Quantized, dim1: usize, dim2: usize) -> Quantized;
        fn q_permute(tensor: Quantized, axes: &[usize]) -> Quantized;
        fn q_flip(tensor: Quantized, axes: &[usize]) -> Quantized;
    }
}
