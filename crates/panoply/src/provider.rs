//! Keeps ops of the crypto domain away from devices whose code has not been audited outside this
//! project.

use std::sync::Arc;

use panoply_core::{Absence, Api, Backend, CryptoProvider, DeviceInfo, Engine, Op, OpenOptions, Result, Support};
use panoply_runtime::BuildError;

/// The variable that sets the provider for every runtime of the process.
const VARIABLE: &str = "PANOPLY_CRYPTO_PROVIDER";

/// The stricter of two providers.
pub(crate) fn stricter(one: CryptoProvider, other: CryptoProvider) -> CryptoProvider {
    if one == CryptoProvider::AwsLc { one } else { other }
}

/// The provider that the program requests, or the one in the environment if that is stricter. An
/// unknown or empty name is an error, because the user relies on it.
pub(crate) fn effective(asked: CryptoProvider) -> Result<CryptoProvider, BuildError> {
    let value = std::env::var_os(VARIABLE);
    combined(asked, value.as_deref().map(|value| value.to_string_lossy()).as_deref())
}

fn combined(asked: CryptoProvider, named: Option<&str>) -> Result<CryptoProvider, BuildError> {
    let Some(name) = named else { return Ok(asked) };
    let unknown = || BuildError::BadLimit { what: VARIABLE, expected: "fastest or aws-lc", got: name.to_owned() };
    // Settings files accept quotes too.
    let named = CryptoProvider::named(name.trim_matches('"')).ok_or_else(unknown)?;
    Ok(stricter(named, asked))
}

/// The backend as permitted by this provider. `heeds` is set for this build's own CPU backend,
/// which obeys the option itself. A backend's own statements do not count: any backend may call its
/// API the CPU's.
pub(crate) fn restricted(backend: Arc<dyn Backend>, provider: CryptoProvider, heeds: bool) -> Arc<dyn Backend> {
    match provider {
        CryptoProvider::AwsLc if !heeds => Arc::new(RestrictedBackend { backend, provider }),
        CryptoProvider::AwsLc | CryptoProvider::Fastest => backend,
    }
}

/// A backend that refuses ops which the provider does not permit.
struct RestrictedBackend {
    backend: Arc<dyn Backend>,
    provider: CryptoProvider,
}

impl Backend for RestrictedBackend {
    fn api(&self) -> Api {
        self.backend.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.backend.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        match self.provider.refusal(op) {
            Some(reason) => Support::No(reason),
            None => self.backend.supports(device, op),
        }
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        self.provider.refusal(op).is_none() && self.backend.can_run(device, op)
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.backend)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        self.backend.open(device, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_makes_the_provider_stricter_and_never_looser() {
        use CryptoProvider::{AwsLc, Fastest};
        let cases = [
            (Fastest, None, Fastest),
            (Fastest, Some("aws-lc"), AwsLc),
            (Fastest, Some("\"aws-lc\""), AwsLc),
            (AwsLc, Some("fastest"), AwsLc),
            (AwsLc, None, AwsLc),
        ];
        for (asked, named, expected) in cases {
            assert_eq!(combined(asked, named).ok(), Some(expected), "{asked:?} {named:?}");
        }
        for name in ["openssl", ""] {
            let error = combined(Fastest, Some(name)).unwrap_err().to_string();
            assert!(error.contains(&format!("expected fastest or aws-lc, got {name}")), "{error}");
        }
    }

    /// A device that accepts every op.
    struct Willing;

    impl Backend for Willing {
        fn api(&self) -> Api {
            Api::SIMULATED
        }

        fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
            Ok(Vec::new())
        }

        fn supports(&self, _: &DeviceInfo, _: &Op) -> Support {
            Support::Yes
        }

        fn open(&self, _: &DeviceInfo, _: &OpenOptions) -> Result<Box<dyn Engine>> {
            Err(panoply_core::Error::invalid("device", "one that is there", "none"))
        }
    }

    #[test]
    fn with_audited_code_alone_other_devices_refuse_everything_but_compression() {
        use panoply_core::op::crypto::*;
        use panoply_core::{DeviceId, DeviceKind, Operation};
        let id = DeviceId { api: Api::SIMULATED, index: 0 };
        let info = DeviceInfo::new(id, "a device", DeviceKind::DiscreteGpu);
        let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[1; 32]).unwrap();
        let sign = Key::sign(SignatureAlgorithm::Ed25519, &[1; 48]).unwrap();
        let aes = Key::encrypt(CipherAlgorithm::Aes128, &[1; 16]).unwrap();
        let refused = [
            Seal::new(&key, [0; 12], vec![1]).into_op().unwrap(),
            Open::new(&key, [0; 12], vec![1; 16]).into_op().unwrap(),
            Encrypt::new(&aes, CipherMode::Ctr, vec![0; 16].into(), vec![1]).into_op().unwrap(),
            Hash::new(HashAlgorithm::Sha256, vec![1]).into_op().unwrap(),
            Sign::new(&sign, vec![1]).into_op().unwrap(),
        ];
        let strict = restricted(Arc::new(Willing), CryptoProvider::AwsLc, false);
        let loose = restricted(Arc::new(Willing), CryptoProvider::Fastest, false);
        for op in &refused {
            let Support::No(reason) = strict.supports(&info, op) else { panic!("{op:?}") };
            assert!(reason.contains("crypto.provider is aws-lc") && !strict.can_run(&info, op), "{reason}");
            assert!(loose.supports(&info, op).is_yes());
        }
        let pack = Compress::new(Format::Zstd, vec![1]).into_op().unwrap();
        assert!(strict.supports(&info, &pack).is_yes());
    }
}
