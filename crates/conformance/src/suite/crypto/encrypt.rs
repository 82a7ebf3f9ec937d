//! Encrypt and Decrypt: every key length and mode, counters that wrap, malformed padding.

use panoply_core::Bytes;
use panoply_core::op::crypto::{CipherAlgorithm, CipherMode, Decrypt, Encrypt, Key, Messages};

use super::batches::{LENS, batches, random};
use crate::judge::Judge;
use crate::suite::case::Case;

const MODES: [(CipherMode, &str); 3] =
    [(CipherMode::Cbc, "cbc"), (CipherMode::CbcUnpadded, "cbc-unpadded"), (CipherMode::Ctr, "ctr")];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for algorithm in CipherAlgorithm::ALL {
        let key = Key::encrypt(algorithm, &random(algorithm.key_bytes(), 15));
        let key = key.unwrap_or_else(|error| panic!("a key: {error}"));
        for (mode, mode_name) in MODES {
            let fits = |len: &usize| mode != CipherMode::CbcUnpadded || len.is_multiple_of(16);
            let lens: Vec<usize> = LENS.into_iter().filter(fits).collect();
            for (form, messages) in batches(&lens, |len| random(len, len as u64 + 16)) {
                let name = format!("{}-{mode_name}/{form}", algorithm.name());
                let encrypt = Encrypt::new(&key, mode, vectors(&messages), messages);
                cases.push(Case::new(format!("encrypt/{name}"), encrypt, Judge::Bits));
            }
            // Any text of whole blocks can be decrypted, except in CBC, which checks the padding.
            let lens: Vec<usize> = LENS.into_iter().filter(|len| mode == CipherMode::Ctr || len % 16 == 0).collect();
            if mode != CipherMode::Cbc {
                for (form, messages) in batches(&lens, |len| random(len, len as u64 + 17)) {
                    let name = format!("decrypt/{}-{mode_name}/{form}", algorithm.name());
                    let decrypt = Decrypt::new(&key, mode, vectors(&messages), messages);
                    cases.push(Case::new(name, decrypt.secret(), Judge::Bits));
                }
            }
        }
        padded(&mut cases, algorithm, &key);
    }
    cases
}

/// Initial vectors. The first wraps in the first block, the second in its lower half.
fn vectors(messages: &Messages) -> Bytes {
    let mut vectors = random(16 * messages.count(), 18);
    vectors.iter_mut().take(16).for_each(|byte| *byte = 0xff);
    vectors.iter_mut().skip(24).take(8).for_each(|byte| *byte = 0xff);
    Bytes::from_vec(vectors)
}

/// The last block decrypts to a value that is combined with the initial vector. So the initial
/// vector can be chosen to produce any last bytes, and any padding.
fn padded(cases: &mut Vec<Case>, algorithm: CipherAlgorithm, key: &Key) {
    let text = random(16, 19);
    let plain = crate::reference::crypto::decrypt_block(key, &text);
    let endings: [&[u8]; 9] = [
        &[1],
        &[2, 2],
        &[16; 16],
        &[15; 15],
        &[0],
        &[17; 16],
        &[3, 2, 2],
        &[1, 3, 3],
        &[16, 16, 16, 16, 16, 16, 16, 1, 16, 16, 16, 16, 16, 16, 16, 16],
    ];
    for ending in endings {
        let mut message = vec![7; 16 - ending.len()];
        message.extend_from_slice(ending);
        let vector: Vec<u8> = message.iter().zip(&plain).map(|(wanted, plain)| wanted ^ plain).collect();
        let name = format!("decrypt/{}-cbc/ending{ending:?}", algorithm.name());
        let decrypt = Decrypt::new(key, CipherMode::Cbc, Bytes::from_vec(vector), text.clone());
        cases.push(Case::new(name, decrypt, Judge::Bits));
    }
}
