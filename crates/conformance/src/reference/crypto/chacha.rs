//! ChaCha20-Poly1305 of RFC 8439.

/// Encrypts a message. Returns the text and the tag.
pub(super) fn seal(key: &[u8], nonce: &[u8; 12], associated: &[u8], message: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let text = applied(key, nonce, message);
    let tag = tag(key, nonce, associated, &text);
    (text, tag)
}

/// Decrypts a text. Returns the message if the tag is correct.
pub(super) fn open(key: &[u8], nonce: &[u8; 12], associated: &[u8], text: &[u8], given: &[u8]) -> Option<Vec<u8>> {
    (tag(key, nonce, associated, text) == given).then(|| applied(key, nonce, text))
}

fn applied(key: &[u8], nonce: &[u8; 12], message: &[u8]) -> Vec<u8> {
    let chunks = message.chunks(64).zip(1_u32..);
    chunks.flat_map(|(chunk, number)| xor(chunk, &block(key, nonce, number))).collect()
}

fn xor(chunk: &[u8], key: &[u8]) -> Vec<u8> {
    chunk.iter().zip(key).map(|(byte, key)| byte ^ key).collect()
}

fn block(key: &[u8], nonce: &[u8; 12], number: u32) -> Vec<u8> {
    let mut words: Vec<u32> = words_of(b"expand 32-byte k");
    words.extend(words_of(key));
    words.push(number);
    words.extend(words_of(nonce));
    let start = words.clone();
    for _ in 0..10 {
        for column in 0..4 {
            quarter(&mut words, [column, column + 4, column + 8, column + 12]);
        }
        for column in 0..4 {
            quarter(&mut words, [column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12]);
        }
    }
    words.iter().zip(start).flat_map(|(word, start)| word.wrapping_add(start).to_le_bytes()).collect()
}

fn quarter(words: &mut [u32], [a, b, c, d]: [usize; 4]) {
    for (into, from, turned, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        words[into] = words[into].wrapping_add(words[from]);
        words[turned] = (words[turned] ^ words[into]).rotate_left(by);
    }
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|four| four.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))).collect()
}

/// Poly1305 of the associated data and the text, each padded to a multiple of sixteen bytes, and
/// their lengths.
fn tag(key: &[u8], nonce: &[u8; 12], associated: &[u8], text: &[u8]) -> Vec<u8> {
    let once = block(key, nonce, 0);
    let mut all = Vec::new();
    for part in [associated, text] {
        all.extend_from_slice(part);
        all.resize(all.len().next_multiple_of(16), 0);
    }
    all.extend_from_slice(&(associated.len() as u64).to_le_bytes());
    all.extend_from_slice(&(text.len() as u64).to_le_bytes());
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u128, |word, byte| word << 8 | u128::from(*byte));
    let r = limbs(number(&once[..16]) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff, 0);
    let sum = all.chunks(16).fold([0; 5], |sum, chunk| {
        let block = limbs(number(chunk), 1);
        times(std::array::from_fn(|limb| sum[limb] + block[limb]), r)
    });
    whole(sum).wrapping_add(number(&once[16..32])).to_le_bytes().to_vec()
}

/// A number of 130 bits in limbs of 26 bits. `above` holds the bits above the lowest 128.
fn limbs(number: u128, above: u64) -> [u64; 5] {
    std::array::from_fn(|limb| match limb {
        4 => (number >> 104) as u64 | above << 24,
        _ => (number >> (26 * limb)) as u64 & 0x3ff_ffff,
    })
}

/// The product modulo 2^130 − 5, with limbs of about 26 bits.
fn times(a: [u64; 5], b: [u64; 5]) -> [u64; 5] {
    let mut product = [0_u64; 5];
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            // 2^130 is congruent to 5.
            product[(i + j) % 5] += a * b * if i + j > 4 { 5 } else { 1 };
        }
    }
    carried(product)
}

fn carried(mut limbs: [u64; 5]) -> [u64; 5] {
    for _ in 0..2 {
        for limb in 0..5 {
            let carry = limbs[limb] >> 26;
            limbs[limb] &= 0x3ff_ffff;
            limbs[(limb + 1) % 5] += if limb == 4 { 5 * carry } else { carry };
        }
    }
    limbs
}

/// The reduced number of these limbs, modulo 2^128.
fn whole(limbs: [u64; 5]) -> u128 {
    let limbs = carried(limbs);
    // If adding 5 carries beyond 2^130, the number is at least 2^130 − 5.
    let mut more = limbs;
    more[0] += 5;
    for limb in 0..4 {
        more[limb + 1] += more[limb] >> 26;
        more[limb] &= 0x3ff_ffff;
    }
    let reduced = if more[4] >> 26 != 0 { more } else { limbs };
    (0..5).fold(0_u128, |sum, limb| sum.wrapping_add(u128::from(reduced[limb]).wrapping_shl(26 * limb as u32)))
}
