//! Keys and secret messages on the device. Their device memory is wiped before it is lent again,
//! and they are uploaded from pinned memory that is wiped too.

use panoply_core::{Error, HostBufferMut, Result, Tensor};
use zeroize::Zeroize;

use super::{Context, Finish};
use crate::driver::{Address, Stream};

/// Pinned memory that is wiped before it returns to its pool.
pub(crate) struct WipedBuffer(pub(crate) HostBufferMut);

impl Drop for WipedBuffer {
    fn drop(&mut self) {
        self.0.bytes_mut().zeroize();
    }
}

impl Context {
    /// Scratch memory for secrets: it is wiped after all work that the current op queues, even if
    /// the op fails.
    pub(crate) fn secret_scratch(&mut self, bytes: usize) -> Result<Address> {
        let address = self.scratch(bytes)?;
        self.queued.secrets.push((address, bytes));
        Ok(address)
    }

    /// Uploads a secret, which `fill` creates, into memory of this context.
    pub(crate) fn place_secret(&mut self, target: Address, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut pinned = WipedBuffer(self.staging.target(bytes)?);
        fill(pinned.0.bytes_mut());
        let placed = self.upload(target, pinned.0.bytes());
        // Kept even after a failure: a copy of it may be in flight.
        self.queued.secret_pinned.push(pinned);
        placed
    }

    /// Like `input`, but memory to which the tensor is copied for the op is wiped afterwards.
    pub(crate) fn input_wiped(&mut self, tensor: &Tensor) -> Result<Address> {
        if self.owns(tensor) {
            return self.input(tensor);
        }
        if let Some(address) = self.lent(tensor)? {
            return Ok(address);
        }
        let address = self.secret_scratch(tensor.len_bytes())?;
        self.place(address, tensor)?;
        Ok(address)
    }

    /// Downloads the content of this address at this point of the compute stream to pinned memory.
    /// It may be read when the op has finished.
    pub(crate) fn download_wiped(&mut self, source: Address, bytes: usize) -> Result<WipedBuffer> {
        let mut target = WipedBuffer(self.staging.target(bytes)?);
        if bytes > 0 && !self.is_rehearsal() {
            let start = target.0.bytes_mut().as_mut_ptr();
            let queued = self.await_kernels().and_then(|()| {
                // SAFETY: the buffer is kept until the op has finished, and is not read before.
                unsafe { self.download_into(start, source, bytes) }
            });
            if let Err(error) = queued {
                // A copy into it may be in flight: it is wiped after that.
                self.queued.secret_pinned.push(target);
                return Err(error);
            }
        }
        Ok(target)
    }

    /// Sets the host's final step, run when the device has finished the current op.
    pub(crate) fn finish_with(&mut self, finish: Finish) {
        self.queued.finish = Some(finish);
    }

    /// Queues the wiping of every secret of the current op, on the stream that ends with it. After
    /// a failure it is unknown which stream waits for which, so all are waited for first. A device
    /// that does not wipe its memory is lost: none of its memory is lent again.
    pub(crate) fn wipe_secrets(&mut self, has_failed: bool) -> Result<()> {
        let secrets = std::mem::take(&mut self.queued.secrets);
        if secrets.is_empty() && self.queued.secret_pinned.is_empty() {
            return Ok(());
        }
        let stream = if self.queued.downloads { Stream::Download } else { Stream::Compute };
        let synchronized = match has_failed {
            true => [Stream::Upload, Stream::Compute, Stream::Download].map(|stream| self.driver.synchronize(stream)),
            false => [const { Ok(()) }; 3],
        };
        let fill = |(address, bytes): (Address, usize)| match bytes {
            0 => Ok(()),
            bytes => self.driver.fill(address, 0, bytes, stream),
        };
        let wiped = secrets.into_iter().map(fill).chain(synchronized).fold(Ok(()), Result::and);
        wiped.map_err(|error| Error::DeviceLost {
            device: self.device,
            reason: format!("a secret in its memory could not be overwritten: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::crypto::{
        AeadAlgorithm, CipherAlgorithm, CipherMode, Encrypt, Key, Open, Seal, Sign, SignatureAlgorithm,
    };
    use panoply_core::{Backend, Bytes, Error, OpenOptions, Operation};

    use crate::driver::Address;
    use crate::{EmulatedBackend, GpuBackend, GpuEngine};

    const SECRET: u8 = 0xa7;

    fn with_engine(test: impl FnOnce(&mut GpuEngine)) {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        test(&mut backend.open_engine(&info, &OpenOptions::default()).unwrap());
    }

    /// The content of an address of the emulated device.
    fn read(address: Address, bytes: usize) -> Vec<u8> {
        // SAFETY: the emulated device's addresses are the host's, and the caller holds this many
        // bytes there.
        unsafe { std::slice::from_raw_parts(address.0 as *const u8, bytes) }.to_vec()
    }

    #[test]
    fn secrets_are_overwritten_behind_the_op() {
        with_engine(|engine| {
            let context = engine.context_mut();
            let address = context.secret_scratch(100).unwrap();
            context.place_secret(address, 100, |target| target.fill(SECRET)).unwrap();
            context.driver.synchronize(crate::driver::Stream::Compute).unwrap();
            assert_eq!(read(address, 100), [SECRET; 100]);
            context.wipe_secrets(false).unwrap();
            context.driver.synchronize(crate::driver::Stream::Compute).unwrap();
            assert_eq!(read(address, 100), [0; 100]);
            context.forget_queued();
        });
    }

    #[test]
    fn a_device_that_does_not_overwrite_a_secret_is_lost() {
        for has_failed in [false, true] {
            with_engine(|engine| {
                engine.context_mut().secret_scratch(64).unwrap();
                // While another device is current on this thread, every call to this one's driver
                // fails.
                with_engine(|_| {
                    let wiped = engine.context_mut().wipe_secrets(has_failed);
                    assert!(matches!(wiped, Err(Error::DeviceLost { .. })), "{wiped:?}");
                });
            });
        }
    }

    /// Every block that the pools have lent to an op is free of its key when it is lent again, even
    /// if the op was refused.
    #[test]
    fn nothing_of_a_key_is_left_in_the_pools() {
        with_engine(|engine| {
            let key = Key::encrypt(CipherAlgorithm::Aes256, &[SECRET; 32]).unwrap();
            let op = Encrypt::new(&key, CipherMode::Ctr, Bytes::from_vec(vec![1; 16]), vec![2; 64]);
            run_one(engine, op.into_op().unwrap()).unwrap();
            let key = Key::seal(AeadAlgorithm::ChaCha20Poly1305, &[SECRET; 32]).unwrap();
            let sealed = Seal::new(&key, [1; 12], vec![2; 64]).into_op().unwrap();
            run_one(engine, sealed).unwrap();
            let refused = Open::new(&key, [1; 12], vec![2; 64]).secret().into_op().unwrap();
            assert!(run_one(engine, refused).is_err());
            // A PKCS#8 prefix, followed by the seed.
            let head = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
            let key = Key::sign(SignatureAlgorithm::Ed25519, &[&head[..], &[SECRET; 32]].concat()).unwrap();
            run_one(engine, Sign::new(&key, vec![2; 64]).into_op().unwrap()).unwrap();
            let context = engine.context_mut();
            let (mut found, mut looked_at) = (0, 0);
            for bytes in [32, 256, 512, 1024, 2048, 4096] {
                for _ in 0..32 {
                    let address = context.scratch(bytes).unwrap();
                    found += read(address, bytes).windows(16).filter(|piece| *piece == [SECRET; 16]).count();
                    let pinned = context.staging.target(bytes).unwrap();
                    found += pinned.bytes().windows(16).filter(|piece| *piece == [SECRET; 16]).count();
                    looked_at += 1;
                }
            }
            assert_eq!((found, looked_at), (0, 192));
            context.forget_queued();
        });
    }
}
