//! Verify with ECDSA over P-256 and P-384: one thread for each signature, all under one key. Many
//! signatures are worth a table of multiples of the base and of the key.

use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, Key, Purpose, SignatureAlgorithm, Verify};
use panoply_core::{Result, Value};
use panoply_kernels::c::{ECDSA, ECDSA_TABLES, Kernel, Unit};

use super::sha;
use super::signatures::{Signatures, thread_each, verdicts};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

/// From this number of signatures on, a table saves more than it costs.
const TABLE_COUNT_MIN: usize = 4096;
/// Bits of the table's windows, and number of entries that a thread computes.
const TABLE_WINDOW: usize = 8;
const TABLE_RUN: usize = 16;
/// Words of the largest numbers.
const WORDS_MAX: usize = 6;
/// The byte before the coordinates of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// A number of a curve, the lowest word first; those of P-256 have four words.
pub(super) type Number = [u64; WORDS_MAX];

/// A curve y² = x³ - 3 x + b modulo p, and the encodings of its keys.
#[derive(Debug)]
pub(super) struct Curve {
    bits: usize,
    pub(super) hash: HashAlgorithm,
    /// The bytes before the point in a SubjectPublicKeyInfo.
    key_prefix: &'static [u8],
    /// The bytes before the private key in PKCS#8, and before both coordinates of the public key.
    pub(super) secret_prefix: &'static [u8],
    pub(super) public_prefix: &'static [u8],
    p: Number,
    b: Number,
    /// The order of the base.
    pub(super) order: Number,
}

pub(super) static P256: Curve = Curve {
    bits: 256,
    hash: HashAlgorithm::Sha256,
    key_prefix: &[
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
        0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ],
    secret_prefix: &[
        0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06,
        0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01, 0x04, 0x20,
    ],
    public_prefix: &[0xa1, 0x44, 0x03, 0x42, 0x00, UNCOMPRESSED],
    p: [u64::MAX, 0xffff_ffff, 0, 0xffff_ffff_0000_0001, 0, 0],
    b: [0x3bce_3c3e_27d2_604b, 0x651d_06b0_cc53_b0f6, 0xb3eb_bd55_7698_86bc, 0x5ac6_35d8_aa3a_93e7, 0, 0],
    order: [0xf3b9_cac2_fc63_2551, 0xbce6_faad_a717_9e84, u64::MAX, 0xffff_ffff_0000_0000, 0, 0],
};

pub(super) static P384: Curve = Curve {
    bits: 384,
    hash: HashAlgorithm::Sha384,
    key_prefix: &[
        0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04,
        0x00, 0x22, 0x03, 0x62, 0x00,
    ],
    secret_prefix: &[
        0x30, 0x81, 0xb6, 0x02, 0x01, 0x00, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06,
        0x05, 0x2b, 0x81, 0x04, 0x00, 0x22, 0x04, 0x81, 0x9e, 0x30, 0x81, 0x9b, 0x02, 0x01, 0x01, 0x04, 0x30,
    ],
    public_prefix: &[0xa1, 0x64, 0x03, 0x62, 0x00, UNCOMPRESSED],
    p: [0xffff_ffff, 0xffff_ffff_0000_0000, u64::MAX - 1, u64::MAX, u64::MAX, u64::MAX],
    b: [
        0x2a85_c8ed_d3ec_2aef,
        0xc656_398d_8a2e_d19d,
        0x0314_088f_5013_875a,
        0x181d_9c6e_fe81_4112,
        0x988e_056b_e3f8_2d19,
        0xb331_2fa7_e23e_e7e4,
    ],
    order: [0xecec_196a_ccc5_2973, 0x581a_0db2_48b0_a77a, 0xc763_4d81_f437_2ddf, u64::MAX, u64::MAX, u64::MAX],
};

/// Whether this is a public key of ECDSA on the host, in a supported form.
pub(super) fn is_for(key: &Key) -> bool {
    curve_of(key).is_some_and(|(curve, _)| curve.coordinates(key).is_some())
}

fn curve_of(key: &Key) -> Option<(&'static Curve, EcdsaEncoding)> {
    match key.purpose() {
        Purpose::Verify(algorithm) => Curve::of(algorithm),
        _ => None,
    }
}

pub(super) fn verify(op: &Verify, context: &mut Context) -> Result<Value> {
    let invalid = || op.key().invalid();
    let (curve, encoding) = curve_of(op.key()).ok_or_else(invalid)?;
    let point = curve.coordinates(op.key()).and_then(|bytes| curve.decoded(bytes)).ok_or_else(invalid)?;
    let is_der = encoding == EcdsaEncoding::Der;
    verdicts(op, context, |all, context| curve.launch_verify(all, &point, is_der, context))
}

impl Curve {
    /// The curve of an algorithm, and the encoding of its signatures.
    pub(super) fn of(algorithm: SignatureAlgorithm) -> Option<(&'static Curve, EcdsaEncoding)> {
        match algorithm {
            SignatureAlgorithm::EcdsaP256(encoding) => Some((&P256, encoding)),
            SignatureAlgorithm::EcdsaP384(encoding) => Some((&P384, encoding)),
            _ => None,
        }
    }

    /// Bytes of a number; a signature and a point have two.
    pub(super) const fn number_bytes(&self) -> usize {
        self.bits / 8
    }

    const fn words(&self) -> usize {
        self.bits / 64
    }

    /// A kernel for this curve.
    pub(super) fn kernel(&self, unit: Unit, entry: &'static str) -> Kernel {
        let is_wide = self.hash != HashAlgorithm::Sha256;
        Kernel::new(unit, entry).flag("WIDE", is_wide).integer("CURVE", self.bits as i64)
    }

    /// Verifies under a key.
    pub(super) fn launch_verify(
        &self,
        all: &Signatures,
        point: &[Number; 2],
        is_der: bool,
        context: &mut Context,
    ) -> Result<()> {
        let has_table = all.count() >= TABLE_COUNT_MIN;
        let words = point.map(|number| number[..self.words()].to_vec()).concat();
        let key = place_plain(bytemuck::cast_slice(&words), context)?;
        let table = if has_table { self.multiples(key, context)? } else { key };
        let first = place_plain(sha::first_state(self.hash), context)?;
        let kernel = self.kernel(ECDSA, "ecdsa_verify").flag("TABLE", has_table);
        let arguments = all.arguments().address(table).address(first);
        context.launch(&kernel, thread_each(all.count()), &mut all.add_to(arguments).u32(u32::from(is_der)))
    }

    /// The table of multiples of the base and of the key.
    fn multiples(&self, key: Address, context: &mut Context) -> Result<Address> {
        let table = context.scratch(self.multiples_bytes(TABLE_WINDOW, 2))?;
        self.make_multiples(table, key, TABLE_WINDOW, 2, context)?;
        Ok(table)
    }

    /// Bytes of a table of the multiples of `points` points.
    pub(super) const fn multiples_bytes(&self, window: usize, points: usize) -> usize {
        points * ((self.bits / window) << window) * 2 * self.number_bytes()
    }

    /// Computes the table for windows of `window` bits: of one point, the base, or of two, the base
    /// and the key.
    pub(super) fn make_multiples(
        &self,
        table: Address,
        key: Address,
        window: usize,
        points: usize,
        context: &mut Context,
    ) -> Result<()> {
        let kernel = |entry| self.kernel(ECDSA_TABLES, entry).integer("WINDOW", window as i64);
        let bases = context.scratch(points * (self.bits / window) * 3 * self.number_bytes())?;
        let mut arguments = Arguments::new().address(bases).address(key).size(points);
        context.launch(&kernel("ecdsa_bases"), Launch::new(1, 32), &mut arguments)?;
        let runs = self.multiples_bytes(window, points) / (2 * self.number_bytes()) / TABLE_RUN;
        let mut arguments = Arguments::new().address(table).address(bases).size(runs);
        context.launch(&kernel("ecdsa_table"), thread_each(runs), &mut arguments)
    }

    /// Both coordinates of the point, bare or in a SubjectPublicKeyInfo, big-endian.
    fn coordinates<'a>(&self, key: &'a Key) -> Option<&'a [u8]> {
        let bytes = key.material().as_slice().ok()?;
        let bytes = bytes.strip_prefix(self.key_prefix).unwrap_or(bytes);
        bytes.strip_prefix(&[UNCOMPRESSED]).filter(|bytes| bytes.len() == 2 * self.number_bytes())
    }

    /// A big-endian number.
    pub(super) fn number(&self, bytes: &[u8]) -> Number {
        let mut number = [0; WORDS_MAX];
        for (word, bytes) in number.iter_mut().zip(bytes.as_rchunks::<8>().1.iter().rev()) {
            *word = u64::from_be_bytes(*bytes);
        }
        number
    }

    /// A point of the curve: x and y below p. `None` if the bytes are not a point. Keys are public,
    /// so this need not run in constant time.
    pub(super) fn decoded(&self, coordinates: &[u8]) -> Option<[Number; 2]> {
        let (x, y) = coordinates.split_at_checked(self.number_bytes())?;
        let (x, y) = (self.number(x), self.number(y));
        if !is_below(&x, &self.p) || !is_below(&y, &self.p) {
            return None;
        }
        let cube = self.product(&self.product(&x, &x), &x);
        let thrice = self.sum(&self.sum(&x, &x), &x);
        (self.sum(&self.product(&y, &y), &thrice) == self.sum(&cube, &self.b)).then_some([x, y])
    }

    /// The sum modulo p of two numbers below p.
    fn sum(&self, a: &Number, b: &Number) -> Number {
        let (mut words, mut carry) = ([0; WORDS_MAX], 0_u128);
        for ((word, a), b) in words.iter_mut().zip(a).zip(b).take(self.words()) {
            carry += u128::from(*a) + u128::from(*b);
            *word = carry as u64;
            carry >>= 64;
        }
        if carry == 0 && is_below(&words, &self.p) {
            return words;
        }
        let mut borrow = 0_i128;
        for (word, p) in words.iter_mut().zip(&self.p).take(self.words()) {
            borrow += i128::from(*word) - i128::from(*p);
            *word = borrow as u64;
            borrow >>= 64;
        }
        words
    }

    /// The product modulo p, bit by bit.
    fn product(&self, a: &Number, b: &Number) -> Number {
        let mut result = [0; WORDS_MAX];
        for bit in (0..self.bits).rev() {
            result = self.sum(&result, &result);
            if a[bit / 64] >> (bit % 64) & 1 == 1 {
                result = self.sum(&result, b);
            }
        }
        result
    }
}

fn is_below(a: &Number, b: &Number) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::crypto::Messages;
    use panoply_core::{Backend, Bytes, OpenOptions, Operation};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The keys of RFC 6979, A.2.5 and A.2.6, and their signatures of "sample" and "test" with the
    /// curve's hash.
    struct PublishedKey {
        algorithm: SignatureAlgorithm,
        point: &'static str,
        sample: &'static str,
        test: &'static str,
    }

    const KEYS: [PublishedKey; 2] = [
        PublishedKey {
            algorithm: SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed),
            point: "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
                7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
            sample: "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
                f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
            test: "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367\
                019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
        },
        PublishedKey {
            algorithm: SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Fixed),
            point: "04ec3a4e415b4e19a4568618029f427fa5da9a8bc4ae92e02e06aae5286b300c64\
                def8f0ea9055866064a254515480bc138015d9b72d7d57244ea8ef9ac0c62189\
                6708a59367f9dfb9f54ca84b3f1c9db1288b231c3ae0d4fe7344fd2533264720",
            sample: "94edbb92a5ecb8aad4736e56c691916b3f88140666ce9fa73d64c4ea95ad133c\
                81a648152e44acf96e36dd1e80fabe4699ef4aeb15f178cea1fe40db2603138f\
                130e740a19624526203b6351d0a3a94fa329c145786e679e7b82c71a38628ac8",
            test: "8203b63d3c853e8d77227fb377bcf7b7b772e97892a80f36ab775d509d7a5feb\
                0542a7f0812998da8f1dd3ca3cf023dbddd0760448d42d8a43af45af836fce4d\
                e8be06b485e9b61b827c2f13173923e06a739f040649a667bf3b828246baa5a5",
        },
    ];

    /// A message, its signature, and the verdict.
    type SignatureCase<'a> = (&'a [u8], &'a [u8], u8);

    #[test]
    fn points_that_are_not_on_the_curve_are_refused() {
        for PublishedKey { algorithm, point, .. } in KEYS {
            let (curve, _) = Curve::of(algorithm).unwrap();
            let (point, len) = (bytes(point)[1..].to_vec(), 2 * curve.number_bytes());
            assert!(curve.decoded(&point).is_some());
            for place in [0, len / 2 - 1, len / 2, len - 1] {
                let mut wrong = point.clone();
                wrong[place] ^= 1;
                assert_eq!(curve.decoded(&wrong), None, "{place}");
            }
            assert_eq!(curve.decoded(&vec![0xff; len]), None);
            assert_eq!(curve.decoded(&vec![0; len]), None);
        }
    }

    /// Few signatures, and enough for a table: valid ones, of another message, altered, too short.
    #[test]
    fn few_and_many_signatures_are_verified() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
        for published in KEYS {
            let key = Key::verify(published.algorithm, &bytes(published.point)).unwrap();
            let (sample, test) = (bytes(published.sample), bytes(published.test));
            let mut altered = sample.clone();
            altered[40] ^= 4;
            let kinds = [
                (&b"sample"[..], &sample[..], 1),
                (b"test", &test, 1),
                (b"test", &sample, 0),
                (b"sample", &altered, 0),
                (b"test", &test[..test.len() - 1], 0),
            ];
            for count in [7, TABLE_COUNT_MIN + 1] {
                let each = || kinds.iter().cycle().take(count);
                let list = |part: fn(&SignatureCase<'_>) -> Vec<u8>| {
                    Messages::from(each().map(|kind| Bytes::from_vec(part(kind))).collect::<Vec<_>>())
                };
                let op = Verify::new(&key, list(|kind| kind.0.to_vec()), list(|kind| kind.1.to_vec()));
                let verdicts = run_one(&mut engine, op.into_op().unwrap()).unwrap().into_bytes().unwrap();
                let expected: Vec<u8> = each().map(|kind| kind.2).collect();
                assert_eq!(verdicts.as_slice().unwrap(), expected, "{count}");
            }
        }
    }
}
