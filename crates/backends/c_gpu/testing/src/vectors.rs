//! Published test vectors of the crypto domain on the devices of a backend: every vector of every
//! supported op.

use panoply_c_gpu::GpuBackend;
use panoply_conformance::{run_one, vectors};
use panoply_core::op::crypto::{EcdsaEncoding, Key, Messages, Sign, SignatureAlgorithm, Verify};
use panoply_core::{Bytes, Op, OpenOptions, Operation};

/// Minimum number of vectors of ciphers and hashes that must run.
const PASSED_MIN: usize = 900;

/// Keys of RFC 8032 (7.1, the second) and RFC 6979 (A.2.5 and A.2.6): the private key in PKCS#8,
/// and the public key.
pub(crate) const KEYS: [(SignatureAlgorithm, &str, &str); 3] = [
    (
        SignatureAlgorithm::Ed25519,
        "302e020100300506032b6570042204204ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
    (
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der),
        "308187020100301306072a8648ce3d020106082a8648ce3d030107046d306b0201010420\
         c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721a144034200\
         0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
         7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
        "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
         7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
    ),
    (
        SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der),
        "3081b6020100301006072a8648ce3d020106052b8104002204819e30819b0201010430\
         6b9d3dad2e1b8c1c05b19875b6659f4de23c3b667bf297ba9aa47740787137d8\
         96d5724e4c70a825f872c9ea60d2edf5a164036200\
         04ec3a4e415b4e19a4568618029f427fa5da9a8bc4ae92e02e06aae5286b300c64\
         def8f0ea9055866064a254515480bc138015d9b72d7d57244ea8ef9ac0c62189\
         6708a59367f9dfb9f54ca84b3f1c9db1288b231c3ae0d4fe7344fd2533264720",
        "04ec3a4e415b4e19a4568618029f427fa5da9a8bc4ae92e02e06aae5286b300c64\
         def8f0ea9055866064a254515480bc138015d9b72d7d57244ea8ef9ac0c62189\
         6708a59367f9dfb9f54ca84b3f1c9db1288b231c3ae0d4fe7344fd2533264720",
    ),
];

pub fn run(backend: &dyn GpuBackend) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let supports = |op: &Op| backend.supports(&device, op);
        let summary = vectors::check(&supports, &mut |op| run_one(&mut engine, op));
        println!("{}: {} passed, {} unsupported", device.id, summary.passed, summary.unsupported.len());
        assert!(summary.failed.is_empty(), "{} failed: {:#?}", device.id, summary.failed);
        assert!(summary.passed >= PASSED_MIN, "{summary}");
    }
}

/// Signs `count` messages on every device, which must then verify the signatures, and must refuse
/// each for another message.
pub fn sign(backend: &dyn GpuBackend, count: usize) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let text = |index: usize| Bytes::from_vec(index.to_le_bytes()[..4 + index % 5].repeat(index % 9));
    let messages: Messages = (0..count).map(text).collect::<Vec<_>>().into();
    let others: Messages = (0..count).map(|index| Bytes::from_vec(vec![index as u8; 70])).collect::<Vec<_>>().into();
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        for (algorithm, private, public) in KEYS {
            let private = Key::sign(algorithm, &bytes(private)).unwrap();
            let public = Key::verify(algorithm, &bytes(public)).unwrap();
            let op = Sign::new(&private, messages.clone()).into_op().unwrap();
            let signatures = Sign::output(run_one(&mut engine, op).unwrap()).unwrap();
            for (messages, expected) in [(&messages, true), (&others, false)] {
                let op = Verify::new(&public, messages.clone(), signatures.clone()).into_op().unwrap();
                let verdicts = Verify::output(run_one(&mut engine, op).unwrap()).unwrap();
                assert_eq!(verdicts, vec![expected; count], "{} {}", device.id, algorithm.name());
            }
            println!("{}: {count} messages signed with {}, and verified", device.id, algorithm.name());
        }
    }
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}
