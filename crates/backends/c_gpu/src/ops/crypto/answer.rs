//! Outputs: on the device if the messages were there, else on the host; secret ones in host memory
//! that is wiped.

use panoply_core::op::crypto::Messages;
use panoply_core::{Bytes, DType, HostBufferMut, Result, Shape, Tensor, Value};

use crate::context::{Context, Output, WipedBuffer};
use crate::driver::Address;

/// The destination of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputPlace {
    /// Stays on the device.
    Device,
    /// Goes to the host.
    Host,
    /// Goes to the host, and nothing of it stays on the device.
    Secret,
}

impl OutputPlace {
    /// The location of the messages, if these are not secret.
    pub(super) fn of(is_resident: bool) -> OutputPlace {
        if is_resident { OutputPlace::Device } else { OutputPlace::Host }
    }
}

/// Bytes that kernels write.
pub(super) struct KernelOutput {
    pub(super) address: Address,
    bytes: usize,
    place: OutputPlace,
    /// The tensor, if the output stays on the device.
    output: Option<Output>,
}

impl KernelOutput {
    pub(super) fn new(bytes: usize, place: OutputPlace, context: &mut Context) -> Result<KernelOutput> {
        let output = match place {
            OutputPlace::Device => Some(context.output(DType::U8, Shape::new([bytes])?)?),
            OutputPlace::Host | OutputPlace::Secret => None,
        };
        let address = match &output {
            Some(output) => output.address,
            // Plaintext is wiped even if it is not secret: other ops get this memory.
            None => context.secret_scratch(bytes)?,
        };
        Ok(KernelOutput { address, bytes, place, output })
    }

    /// The bytes, which must not be secret.
    pub(super) fn into_bytes(self, context: &mut Context) -> Result<Bytes> {
        let tensor = match self.output {
            Some(output) => output.into_tensor(),
            None => context.download(self.address, DType::U8, Shape::new([self.bytes])?)?,
        };
        Bytes::from_tensor(&tensor)
    }

    /// One message for each of the op's own, between these offsets.
    pub(super) fn into_value(self, like: &Messages, offsets: Vec<usize>, context: &mut Context) -> Result<Value> {
        if self.place == OutputPlace::Secret {
            let like = like.clone();
            return self
                .finished(context, move |pinned| like.like(secret_copy(pinned.0.bytes())?, offsets)?.into_value());
        }
        like.like(self.into_bytes(context)?, offsets)?.into_value()
    }

    /// The output that the host makes of the bytes when the op has finished.
    pub(super) fn finished(
        self,
        context: &mut Context,
        finish: impl FnOnce(WipedBuffer) -> Result<Value> + 'static,
    ) -> Result<Value> {
        let pinned = context.download_wiped(self.address, self.bytes)?;
        context.finish_with(Box::new(move |_| finish(pinned)));
        Ok(Value::Tensor(Tensor::zeros(DType::U8, [0])?))
    }
}

/// A copy that is wiped with its last handle.
pub(super) fn secret_copy(bytes: &[u8]) -> Result<Bytes> {
    let mut copy = HostBufferMut::secret(bytes.len())?;
    copy.bytes_mut().copy_from_slice(bytes);
    Ok(Bytes::from_host(copy.freeze()))
}
