//! Reads of a device's memory: a caller that asks for a tensor's elements gets a copy on the host.
//!
//! 1. A runtime attaches itself to the buffers that it hands out ([`DeviceBuffer::attach`]). A
//!    buffer without a runtime cannot be read ([`Error::NotOnHost`]).
//! 2. The first read of a range asks the runtime for it, and waits for a bounded time. The copy is
//!    kept with the buffer, for all tensors that share it: later reads of the range cost nothing.
//! 3. One thread at a time fetches from a buffer. The others wait for its copy.
//! 4. A buffer keeps at most [`PARTS_MAX`] copies of parts, with no more bytes than its own. The
//!    next read fetches all of it.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::buffer::{Buffer, DeviceBuffer};
use crate::device_id::Location;
use crate::error::{Error, Result};
use crate::once::OnceBox;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most copies of parts that a buffer keeps.
const PARTS_MAX: usize = 32;

/// Copies device memory to the host, on behalf of callers that read tensors.
pub trait ReadBack: Send + Sync {
    /// Fails if the calling thread or process must not wait for a copy.
    fn check(&self) -> Result<()>;

    /// Copies a tensor to the host. Waits for a bounded time.
    fn read_back(self: Arc<Self>, tensor: &Tensor) -> Result<Tensor>;
}

/// The copies of one buffer's memory on the host, and the runtime that makes them. See the module.
#[derive(Default)]
pub(crate) struct HostCopies {
    reader: OnceLock<Weak<dyn ReadBack>>,
    first: OnceBox<HostCopy>,
    /// Held by the thread that fetches.
    fetching: Mutex<()>,
}

/// A copy of a part of the buffer.
struct HostCopy {
    /// Offset of the part in the buffer.
    start: usize,
    elements: Tensor,
    next: OnceBox<HostCopy>,
}

impl HostCopies {
    /// Names the runtime that reads the buffer. Later calls change nothing.
    pub(crate) fn attach(&self, reader: impl FnOnce() -> Weak<dyn ReadBack>) {
        if self.reader.get().is_none() {
            let _ = self.reader.set(reader());
        }
    }

    /// The bytes of the elements of `view`, from its first byte in memory to its last. They are
    /// fetched if there is no copy of them yet.
    pub(crate) fn read(&self, buffer: &DeviceBuffer, view: &Tensor) -> Result<&[u8]> {
        let (span, align) = (view.span_bytes(), view.dtype().align_bytes());
        if let Some(bytes) = self.find(&span, align) {
            return Ok(bytes);
        }
        let device = buffer.device();
        let reader = self.reader.get().ok_or(Error::NotOnHost { device })?;
        let reader = reader.upgrade().ok_or_else(|| ended(buffer))?;
        // Before the lock: a fork may find it locked for ever.
        reader.check()?;
        let _one_at_a_time = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = self.find(&span, align) {
            return Ok(bytes);
        }
        let part = self.part_to_fetch(buffer, view, span.len())?;
        let start = part.span_bytes().start;
        let elements = reader.read_back(&part)?;
        let is_right = elements.location() == Location::Host && elements.is_contiguous();
        if !is_right || (elements.dtype(), elements.shape()) != (part.dtype(), part.shape()) {
            let reason = format!("its transfer of {part:?} brought {elements:?}");
            return Err(Error::DeviceFault { device, reason });
        }
        self.append(HostCopy { start, elements, next: OnceBox::new() });
        let fault = || Error::DeviceFault { device, reason: "its transfer brought too little".to_owned() };
        self.find(&span, align).ok_or_else(fault)
    }

    /// The view, or all of the buffer if that is better. Both are contiguous.
    fn part_to_fetch(&self, buffer: &DeviceBuffer, view: &Tensor, len_bytes: usize) -> Result<Tensor> {
        let (count, kept) =
            self.all().fold((0, 0), |(count, bytes), copy| (count + 1, bytes + copy.elements.len_bytes()));
        if count < PARTS_MAX && kept + len_bytes <= buffer.len_bytes() {
            return if view.is_contiguous() { Ok(view.clone()) } else { view.span() };
        }
        let shape = Shape::new([buffer.len_bytes() / view.dtype().size_bytes()])?;
        let whole = Buffer::Device(buffer.clone());
        Tensor::from_parts(view.dtype(), shape, shape.contiguous_strides(), 0, whole)
    }

    fn all(&self) -> impl Iterator<Item = &HostCopy> {
        std::iter::successors(self.first.get(), |copy| copy.next.get())
    }

    /// The copy of a range, if there is one whose memory is aligned.
    fn find(&self, span: &Range<usize>, align: usize) -> Option<&[u8]> {
        self.all().find_map(|copy| {
            let first = span.start.checked_sub(copy.start)?;
            let bytes = copy.elements.as_bytes().ok()?.get(first..first + span.len())?;
            bytes.as_ptr().addr().is_multiple_of(align).then_some(bytes)
        })
    }

    /// Adds a copy at the end of the list. Only the thread that fetches calls this.
    fn append(&self, copy: HostCopy) {
        let mut place = &self.first;
        while let Some(copy) = place.get() {
            place = &copy.next;
        }
        drop(place.set(copy));
    }
}

/// The error for a tensor whose runtime is gone.
fn ended(buffer: &DeviceBuffer) -> Error {
    let reason = "the runtime that held the tensor has ended; read it before, or run its op with `to_host`".to_owned();
    Error::DeviceUnavailable { device: buffer.device(), reason }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::buffer::DeviceAllocation;
    use crate::device::{Api, DeviceId};
    use crate::dtype::DType;
    use crate::lease::Home;
    use crate::{Bytes, HostBuffer};

    /// A device whose memory holds the numbers from zero on.
    struct CountingDevice {
        memory: HostBuffer,
        fetched: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl ReadBack for CountingDevice {
        fn check(&self) -> Result<()> {
            Ok(())
        }

        fn read_back(self: Arc<Self>, tensor: &Tensor) -> Result<Tensor> {
            assert!(tensor.is_contiguous());
            self.fetched.fetch_add(1, Ordering::SeqCst);
            self.bytes.fetch_add(tensor.len_bytes(), Ordering::SeqCst);
            let (shape, strides) = (*tensor.shape(), *tensor.strides());
            let memory = Buffer::Host(self.memory.clone());
            Tensor::from_parts(tensor.dtype(), shape, strides, tensor.offset(), memory)
        }
    }

    const DEVICE: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

    /// A tensor of `count` numbers in the memory of a device, and the device.
    fn there(count: usize) -> (Tensor, Arc<CountingDevice>) {
        let numbers: Vec<f32> = (0..count).map(|number| number as f32).collect();
        let memory = HostBuffer::from_owner::<f32, _>(numbers);
        let device = Arc::new(CountingDevice { memory, fetched: AtomicUsize::new(0), bytes: AtomicUsize::new(0) });
        let allocation = DeviceAllocation { device: DEVICE, token: 1, len_bytes: 4 * count };
        let buffer = DeviceBuffer::new(Home::new().lend(allocation));
        let reader = Arc::downgrade(&device);
        buffer.attach(|| reader);
        (Tensor::from_device(DType::F32, Shape::new([count]).unwrap(), buffer).unwrap(), device)
    }

    #[test]
    fn a_second_read_is_free_for_every_view_of_the_buffer() {
        let (tensor, device) = there(12);
        assert_eq!(tensor.as_slice::<f32>().unwrap()[5], 5.0);
        assert_eq!(tensor.clone().as_slice::<f32>().unwrap()[11], 11.0);
        let turned = tensor.reshape([3, 4]).unwrap().transpose().unwrap();
        assert!(matches!(turned.as_slice::<f32>(), Err(Error::NotContiguous { .. })));
        assert_eq!(turned.to_vec::<f32>().unwrap()[..4], [0.0, 4.0, 8.0, 1.0]);
        assert_eq!(turned.contiguous().unwrap().as_slice::<f32>().unwrap()[..4], [0.0, 4.0, 8.0, 1.0]);
        assert_eq!(tensor.slice(0, 3, 5).unwrap().as_slice::<f32>().unwrap(), [3.0, 4.0]);
        assert_eq!(device.fetched.load(Ordering::SeqCst), 1);
        assert!(matches!(tensor.location(), Location::Device(_)), "the tensor itself stays where it is");
        assert!(matches!(tensor.host_bytes(), Err(Error::NotOnHost { .. })), "this never fetches");
        let wrong = tensor.as_slice::<u32>().unwrap_err();
        assert!(matches!(wrong, Error::DTypeMismatch { .. }), "{wrong}");
    }

    #[test]
    fn a_small_view_of_a_large_buffer_brings_no_more_than_itself() {
        let (tensor, device) = there(1000);
        assert_eq!(tensor.slice(0, 10, 20).unwrap().as_slice::<f32>().unwrap()[0], 10.0);
        assert_eq!(tensor.slice_step(0, 100, 110, 3).unwrap().to_vec::<f32>().unwrap(), [100.0, 103.0, 106.0, 109.0]);
        assert_eq!(device.bytes.load(Ordering::SeqCst), 4 * 10 + 4 * 10);
        assert_eq!(tensor.slice(0, 7, 7).unwrap().as_slice::<f32>().unwrap(), []);
        let bytes = Tensor::from_parts(
            DType::U8,
            Shape::new([3]).unwrap(),
            Shape::new([3]).unwrap().contiguous_strides(),
            41,
            tensor.buffer().clone(),
        );
        let bytes = Bytes::from_tensor(&bytes.unwrap()).unwrap();
        assert_eq!(bytes.as_slice().unwrap(), &10.0_f32.to_le_bytes()[1..]);
        assert_eq!(device.fetched.load(Ordering::SeqCst), 2, "they are part of the first copy");
        for place in 0..2 * PARTS_MAX {
            let one = tensor.slice(0, 500 + place, 501 + place).unwrap();
            assert_eq!(one.as_slice::<f32>().unwrap(), [(500 + place) as f32]);
        }
        let fetched = device.fetched.load(Ordering::SeqCst);
        assert_eq!(fetched, PARTS_MAX + 1, "then all of it");
        assert_eq!(tensor.to_vec::<f32>().unwrap().len(), 1000);
        assert_eq!(device.fetched.load(Ordering::SeqCst), fetched);
    }

    #[test]
    fn threads_that_read_at_once_fetch_once() {
        let (tensor, device) = there(64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(tensor.as_slice::<f32>().unwrap()[63], 63.0));
            }
        });
        assert_eq!(device.fetched.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_tensor_without_a_runtime_cannot_be_read_and_what_was_read_stays() {
        let (tensor, device) = there(8);
        let (early, late) = (tensor.slice(0, 0, 4).unwrap(), tensor.slice(0, 4, 8).unwrap());
        assert_eq!(early.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
        drop(device);
        assert_eq!(early.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
        let gone = late.as_slice::<f32>().unwrap_err();
        assert!(matches!(gone, Error::DeviceUnavailable { .. }) && gone.to_string().contains("has ended"), "{gone}");
        let allocation = DeviceAllocation { device: DEVICE, token: 2, len_bytes: 4 };
        let alone = DeviceBuffer::new(Home::new().lend(allocation));
        let alone = Tensor::from_device(DType::F32, Shape::new([1]).unwrap(), alone).unwrap();
        assert!(matches!(alone.to_vec::<f32>(), Err(Error::NotOnHost { .. })));
    }
}
