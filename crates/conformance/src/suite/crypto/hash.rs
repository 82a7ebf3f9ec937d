//! Hash, Hmac and Hkdf, and Verify of tags: every algorithm, keys and salts shorter and longer than
//! a block.

use panoply_core::Bytes;
use panoply_core::op::crypto::{Hash, HashAlgorithm, Hkdf, Hmac, Key, Messages, Verify};

use super::batches::{LENS, batches, random};
use crate::judge::Judge;
use crate::suite::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let wrong = |error| -> Key { panic!("a key: {error}") };
    for algorithm in HashAlgorithm::ALL {
        for (form, messages) in batches(&LENS, |len| random(len, len as u64 + 20)) {
            let name = format!("{}/{form}", algorithm.name());
            cases.push(Case::new(format!("hash/{name}"), Hash::new(algorithm, messages.clone()), Judge::Bits));
            for key_len in [1, 64, 128, 200] {
                let key = Key::hmac(algorithm, &random(key_len, 21)).unwrap_or_else(wrong);
                let op = Hmac::new(&key, messages.clone());
                cases.push(Case::new(format!("hmac/{name}/key{key_len}"), op, Judge::Bits));
            }
        }
        for (secret, salt, len) in [(1, 0, 1), (32, 64, 42), (200, 200, 100), (64, 13, 255 * algorithm.digest_bytes())]
        {
            let key = Key::hkdf(algorithm, &random(secret, 22)).unwrap_or_else(wrong);
            let infos: Messages = [0, 1, 50].map(|len| Bytes::from_vec(random(len, 23))).to_vec().into();
            let op = Hkdf::new(&key, infos, len).salt(Bytes::from_vec(random(salt, 24)));
            let name = format!("hkdf/{}/secret{secret}/salt{salt}/{len}", algorithm.name());
            cases.push(Case::new(name, op, Judge::Bits));
        }
        let key = Key::hkdf(algorithm, &random(32, 25)).unwrap_or_else(wrong);
        cases.push(Case::new(
            format!("hkdf/{}/without salt", algorithm.name()),
            Hkdf::new(&key, vec![1], 32),
            Judge::Bits,
        ));
        cases.push(tags(algorithm));
    }
    cases
}

/// The right tag, tags altered in the first and in the last byte, one that is too short, one that
/// is too long, and an empty one.
fn tags(algorithm: HashAlgorithm) -> Case {
    let key = Key::hmac(algorithm, &random(40, 26)).unwrap_or_else(|error| panic!("a key: {error}"));
    let right = crate::reference::crypto::tag_of(&key, b"message");
    let (mut first, mut last) = (right.clone(), right.clone());
    first[0] ^= 1;
    last[right.len() - 1] ^= 0x80;
    let (cut, long) = (right[..right.len() - 1].to_vec(), [&right[..], &[0]].concat());
    let signatures: Vec<Bytes> = [right, first, last, cut, long, vec![]].map(Bytes::from_vec).to_vec();
    let messages: Vec<Bytes> = signatures.iter().map(|_| Bytes::from_vec(b"message".to_vec())).collect();
    let op = Verify::new(&key, messages, signatures);
    Case::new(format!("verify/hmac-{}", algorithm.name()), op, Judge::Bits)
}
