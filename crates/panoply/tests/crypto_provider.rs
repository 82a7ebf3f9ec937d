//! With `crypto.provider = "aws-lc"`, set in any way, other devices refuse crypto, and the CPU,
//! opened with that option, runs it.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::process::Command;
use std::sync::{Arc, Mutex};

use panoply::backend::{Absence, Backend, Engine, Op, OpenOptions, Support};
use panoply::crypto::{Format, Hash, HashAlgorithm};
use panoply::testing::{Script, VirtualBackend, virtual_backend};
use panoply::{Api, Builder, CryptoProvider, DeviceInfo, ErrorKind, Result, RunOptions, Runtime, Settings};

const VARIABLE: &str = "PANOPLY_CRYPTO_PROVIDER";
const CHILD: &str = "PANOPLY_TEST_PROVIDER_CHILD";

/// A simulated device that takes every op, and notes how it was opened.
struct Willing {
    device: VirtualBackend,
    opened: Arc<Mutex<Vec<CryptoProvider>>>,
}

impl Backend for Willing {
    fn api(&self) -> Api {
        self.device.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.device.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.device.supports(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        self.opened.lock().unwrap().push(options.crypto_provider);
        self.device.open(device, options)
    }
}

/// Which provider holds in a runtime that is built so, by what its devices do.
fn found(builder: Builder) -> CryptoProvider {
    let opened = Arc::default();
    let device = virtual_backend().unwrap().device(Script::new());
    let willing = Willing { device, opened: Arc::clone(&opened) };
    let runtime = builder.only([Api::CPU]).backend(Arc::new(willing)).without_profile().build().unwrap();
    let there = runtime.devices().find(|device| device.id.api == Api::SIMULATED).unwrap().id;
    let hash = || Hash::new(HashAlgorithm::Sha256, b"a message".to_vec());
    let asked = runtime.run_with(hash(), RunOptions::require(there)).wait();
    let provider = match &asked {
        Ok(_) => CryptoProvider::Fastest,
        Err(error) => {
            assert!(error.to_string().contains("crypto.provider is aws-lc"), "{error}");
            assert_ne!(error.kind(), ErrorKind::Device);
            CryptoProvider::AwsLc
        }
    };
    assert_eq!(*opened.lock().unwrap(), [provider], "engines are told the same");
    for _ in 0..20 {
        let report = runtime.run(hash()).with_report().wait().unwrap().report;
        assert!(provider == CryptoProvider::Fastest || report.device.api == Api::CPU, "{report:?}");
    }
    // Compression has no keys.
    let pack = panoply::crypto::Compress::new(Format::Lz4Frame, vec![7; 100]);
    assert!(runtime.run_with(pack, RunOptions::require(there)).wait().is_ok());
    provider
}

fn settings(provider: &str) -> Settings {
    let path = std::env::temp_dir().join(format!("panoply-provider-{}-{provider}.toml", std::process::id()));
    std::fs::write(&path, format!("[crypto]\nprovider = \"{provider}\"\n")).unwrap();
    let settings = Settings::from_file(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    settings
}

#[test]
fn the_builder_asks_for_audited_code() {
    use CryptoProvider::{AwsLc, Fastest};
    assert_eq!(found(Runtime::builder()), Fastest);
    assert_eq!(found(Runtime::builder().crypto_provider(AwsLc)), AwsLc);
    let options = OpenOptions { crypto_provider: AwsLc, ..OpenOptions::default() };
    assert_eq!(found(Runtime::builder().open_options(options)), AwsLc);
}

#[test]
fn settings_ask_for_it_and_the_strictest_holds_in_any_order() {
    use CryptoProvider::{AwsLc, Fastest};
    assert_eq!(found(settings("fastest").builder()), Fastest);
    assert_eq!(found(settings("aws-lc").builder()), AwsLc);
    assert_eq!(found(settings("aws-lc").builder().crypto_provider(Fastest)), AwsLc);
    assert_eq!(found(settings("aws-lc").builder().open_options(OpenOptions::default())), AwsLc);
    assert_eq!(found(Runtime::builder().crypto_provider(AwsLc).crypto_provider(Fastest)), AwsLc);
}

#[test]
fn the_environment_asks_for_it_whatever_the_program_says() {
    if let Ok(expected) = std::env::var(CHILD) {
        return match CryptoProvider::named(&expected) {
            Some(expected) => {
                assert_eq!(found(Runtime::builder()), expected);
                assert_eq!(found(Runtime::builder().crypto_provider(CryptoProvider::Fastest)), expected);
                assert_eq!(found(Settings::load().unwrap().builder()), expected);
                println!("found");
            }
            None => {
                let error = Runtime::builder().only([Api::CPU]).build().unwrap_err().to_string();
                assert!(error.contains("expected fastest or aws-lc"), "{error}");
                assert!(Settings::load().is_err());
                println!("found");
            }
        };
    }
    let cases = [("aws-lc", "aws-lc"), ("fastest", "fastest"), ("", "refused"), ("openssl", "refused")];
    for (value, expected) in cases {
        let test = "crypto_provider::the_environment_asks_for_it_whatever_the_program_says";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, value)
            .env(CHILD, expected)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("found"), "{value}: {said}");
    }
}

/// Any backend may say that its API is the CPU's. Only this build's own is known to obey.
#[test]
fn a_cpu_backend_of_the_programs_own_is_another_device() {
    let own = || Runtime::builder().only([]).backend(Arc::new(panoply_cpu::CpuBackend::new())).without_profile();
    let hash = || Hash::new(HashAlgorithm::Sha256, b"a message".to_vec());
    assert!(own().build().unwrap().run(hash()).wait().is_ok());
    let strict = own().crypto_provider(CryptoProvider::AwsLc).build().unwrap();
    assert!(strict.run(hash()).wait().is_err());
}
