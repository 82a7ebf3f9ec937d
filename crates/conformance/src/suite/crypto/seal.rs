//! Seal and Open: every algorithm, with and without associated data, tags appended and detached;
//! altered tags, texts, nonces and associated data.

use panoply_core::op::crypto::{AeadAlgorithm, Key, Messages, Nonces, Open, Seal, SealedMessages, TAG_BYTES};
use panoply_core::{Bytes, Operation};

use super::batches::{LENS, batches, random};
use crate::judge::Judge;
use crate::reference::reference;
use crate::suite::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for algorithm in AeadAlgorithm::ALL {
        let key = key(algorithm);
        for (form, messages) in batches(&LENS, |len| random(len, len as u64)) {
            add(&mut cases, &format!("{}/{form}", algorithm.name()), &key, &messages);
        }
        refused(&mut cases, algorithm, &key);
    }
    cases
}

fn key(algorithm: AeadAlgorithm) -> Key {
    Key::seal(algorithm, &random(algorithm.key_bytes(), 5)).unwrap_or_else(|error| panic!("a key: {error}"))
}

fn add(cases: &mut Vec<Case>, name: &str, key: &Key, messages: &Messages) {
    let given = Nonces::Given(Bytes::from_vec(random(12 * messages.count(), 6)));
    let counted = Nonces::Counted { prefix: *b"four", first: u64::from(u32::MAX) - 1 };
    let each: Messages =
        (0..messages.count()).map(|index| Bytes::from_vec(random(index % 40, 7))).collect::<Vec<_>>().into();
    let plain = Seal::new(key, given.clone(), messages.clone());
    let with_one = Seal::new(key, counted.clone(), messages.clone()).associated(random(13, 8)).detached();
    let with_each = Seal::new(key, given.clone(), messages.clone()).associated(each.clone());
    for (what, op) in [("plain", &plain), ("one", &with_one), ("each", &with_each)] {
        cases.push(Case::new(format!("seal/{name}/{what}"), op.clone(), Judge::Bits));
    }
    let text = |op: &Seal| sealed(op).text;
    let tags = sealed(&with_one).tags.unwrap_or_else(|| panic!("{name}: no tags"));
    let one = Open::new(key, counted, text(&with_one)).associated(random(13, 8)).tags(tags);
    cases.push(Case::new(format!("open/{name}/plain"), Open::new(key, given.clone(), text(&plain)), Judge::Bits));
    cases.push(Case::new(format!("open/{name}/one"), one.secret(), Judge::Bits));
    let each = Open::new(key, given, text(&with_each)).associated(each);
    cases.push(Case::new(format!("open/{name}/each"), each, Judge::Bits));
}

/// The reference's answer.
fn sealed(op: &Seal) -> SealedMessages {
    let value = op.clone().into_op().and_then(|op| reference(&op)).and_then(Seal::output);
    value.unwrap_or_else(|error| panic!("a sealed message: {error}"))
}

/// One altered bit in the text and in the tag of a message of 33 bytes; the wrong nonce, associated
/// data or key; one bad message among good ones.
fn refused(cases: &mut Vec<Case>, algorithm: AeadAlgorithm, key: &Key) {
    let wrong = |error| -> Bytes { panic!("a sealed message: {error}") };
    let nonce = [3; 12];
    let whole = sealed(&Seal::new(key, nonce, random(33, 9)).associated(vec![1, 2])).text;
    let whole = whole.into_one().unwrap_or_else(wrong).as_slice().map_or_else(|_| Vec::new(), <[u8]>::to_vec);
    let name = |what: &str| format!("open/{}/refused/{what}", algorithm.name());
    let open = |text: Vec<u8>| Open::new(key, nonce, text).associated(vec![1, 2]);
    for at in (0..whole.len()).step_by(8).chain([32, 33, whole.len() - 1]) {
        let mut altered = whole.clone();
        altered[at] ^= 1 << (at % 8);
        cases.push(Case::new(name(&format!("byte{at}")), open(altered), Judge::Bits));
    }
    cases.push(Case::new(name("cut"), open(whole[..whole.len() - 1].to_vec()), Judge::Bits));
    cases.push(Case::new(name("tag alone"), open(whole[33..].to_vec()), Judge::Bits));
    let other = Open::new(key, [4; 12], whole.clone()).associated(vec![1, 2]);
    cases.push(Case::new(name("nonce"), other, Judge::Bits));
    cases.push(Case::new(name("data"), Open::new(key, nonce, whole.clone()), Judge::Bits));
    let key_of_zeros = Key::seal(algorithm, &vec![0; algorithm.key_bytes()]);
    let key_of_zeros = key_of_zeros.unwrap_or_else(|error| panic!("a key: {error}"));
    let other = Open::new(&key_of_zeros, nonce, whole.clone()).associated(vec![1, 2]);
    cases.push(Case::new(name("key"), other, Judge::Bits));
    let nonces = Nonces::Given(Bytes::from_vec(nonce.repeat(3)));
    let mut bad = whole.clone();
    bad[33 + TAG_BYTES / 2] ^= 0x10;
    let among: Vec<Bytes> = [whole.clone(), bad, whole].map(Bytes::from_vec).to_vec();
    cases.push(Case::new(name("one of three"), Open::new(key, nonces, among).associated(vec![1, 2]), Judge::Bits));
}
