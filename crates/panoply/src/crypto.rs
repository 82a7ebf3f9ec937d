//! Ciphers, hashes, signatures and compression: a single message, or thousands as one op.
//!
//! ```
//! use panoply::crypto::{AeadAlgorithm, Key, Session};
//!
//! let runtime = panoply::Runtime::new()?;
//! // A key belongs to no device: it is expanded once, and wiped with the last handle.
//! let key = Key::seal(AeadAlgorithm::Aes256Gcm, panoply::crypto::random(32)?.as_slice()?)?;
//!
//! // A session counts nonces, and never gives one twice.
//! let session = Session::new(&key, *b"mail")?;
//! let seal = session.seal(b"meet me at noon".to_vec())?.associated(b"to: alice".to_vec());
//! let number = seal.first_number().unwrap();
//! let sealed = runtime.run(seal).wait()?.text.into_one()?;
//!
//! let open = session.open(number, sealed.clone()).associated(b"to: alice".to_vec());
//! assert_eq!(runtime.run(open).wait()?.into_one()?.as_slice()?, b"meet me at noon");
//!
//! // What was altered is rejected, and nothing of it is handed out.
//! let forged = session.open(number, sealed).associated(b"to: mallory".to_vec());
//! assert!(matches!(runtime.run(forged).wait(), Err(panoply::Error::Rejected { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Thousands of messages are one op, as a list or in one buffer. Messages of concurrent callers
//! that share a key are batched as well.
//!
//! ```
//! use panoply::crypto::{Format, Hash, HashAlgorithm, Compress, Decompress, Messages};
//!
//! let runtime = panoply::Runtime::new()?;
//! let records = Messages::split(vec![7; 1 << 20].into(), 1024)?;
//! let digests = runtime.run(Hash::new(HashAlgorithm::Sha256, records.clone())).wait()?;
//! assert_eq!((digests.count(), digests.len_of(0)), (1024, 32));
//!
//! let packed = runtime.run(Compress::new(Format::Zstd, records).level(1)).wait()?;
//! // No message may become longer than the limit, for any length that it claims.
//! let back = runtime.run(Decompress::new(Format::Zstd, packed).limit(1024)).wait()?;
//! assert_eq!(back.total_bytes(), 1 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use panoply_core::op::crypto::*;

#[cfg(feature = "cpu")]
pub use made_here::{KeyPair, random, random_session};

/// Functions that need the system's randomness, and therefore the CPU backend.
#[cfg(feature = "cpu")]
mod made_here {
    use panoply_core::op::crypto::{Key, RandomSession, SignatureAlgorithm};
    use panoply_core::process::Process;
    use panoply_core::{Bytes, Error, Result};

    /// A new key pair.
    ///
    /// ```
    /// use panoply::crypto::{Key, KeyPair, Sign, SignatureAlgorithm, Verify};
    ///
    /// let runtime = panoply::Runtime::new()?;
    /// let pair = KeyPair::generate(SignatureAlgorithm::Ed25519).ok_or("no randomness")?;
    /// let private = Key::sign(SignatureAlgorithm::Ed25519, pair.private.as_slice()?)?;
    /// let public = Key::verify(SignatureAlgorithm::Ed25519, pair.public.as_slice()?)?;
    ///
    /// let signature = runtime.run(Sign::new(&private, b"pay 5".to_vec())).wait()?;
    /// assert_eq!(runtime.run(Verify::new(&public, b"pay 5".to_vec(), signature.clone())).wait()?, [true]);
    /// assert_eq!(runtime.run(Verify::new(&public, b"pay 6".to_vec(), signature)).wait()?, [false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug)]
    pub struct KeyPair {
        /// The private key for `Key::sign`, in PKCS#8, secret.
        pub private: Bytes,
        /// The public key for `Key::verify`.
        pub public: Bytes,
    }

    impl KeyPair {
        /// Generates a pair from AWS-LC's generator, which the system's randomness seeds; `None` if
        /// there is none. RSA takes up to seconds.
        ///
        /// A child of an ordinary fork generates other pairs than its parent. A child that a signal
        /// handler has forked in the middle of this call also gets `None`, because its parent may
        /// have the same pair, or AWS-LC ends the child. Fork while no other thread generates keys:
        /// otherwise start a program (exec) in the child before it generates any.
        pub fn generate(algorithm: SignatureAlgorithm) -> Option<KeyPair> {
            let process = Process::current();
            let made = panoply_cpu::keys::generate(algorithm)?;
            let pair = KeyPair { private: Bytes::secret(made.pkcs8).ok()?, public: Bytes::from_vec(made.public) };
            process.is_current().then_some(pair)
        }
    }

    /// Returns a session that draws the nonces of each message from the system's randomness, for
    /// programs that fork or whose virtual machine is resumed from snapshots: see
    /// [`RandomSession`].
    ///
    /// ```
    /// use panoply::crypto::{AeadAlgorithm, Key, Open, random, random_session};
    ///
    /// let runtime = panoply::Runtime::new()?;
    /// let key = Key::seal(AeadAlgorithm::Aes256Gcm, random(32)?.as_slice()?)?;
    /// let session = random_session(&key)?;
    /// let seal = session.seal(b"meet me at noon".to_vec())?;
    /// // The nonces go with the texts.
    /// let nonces = seal.nonces().clone();
    /// let sealed = runtime.run(seal).wait()?.text;
    /// assert_eq!(runtime.run(Open::new(&key, nonces, sealed)).wait()?.into_one()?.as_slice()?, b"meet me at noon");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn random_session(key: &Key) -> Result<RandomSession> {
        RandomSession::new(key, panoply_cpu::keys::fill_random_anew)
    }

    /// Returns secret bytes from the system's randomness, for keys. Fails in the child if a signal
    /// handler forks meanwhile, since the parent may have the same bytes; the child may draw again.
    pub fn random(len: usize) -> Result<Bytes> {
        let process = Process::current();
        let mut bytes = vec![0; len];
        if !panoply_cpu::keys::fill_random_anew(&mut bytes) {
            let (expected, got) = ("the system's randomness", "none");
            return Err(Error::invalid("random bytes", expected, got));
        }
        let bytes = Bytes::secret(bytes)?;
        if !process.is_current() {
            return Err(Error::invalid("random bytes", "the same process throughout the call", "a fork meanwhile"));
        }
        Ok(bytes)
    }
}
