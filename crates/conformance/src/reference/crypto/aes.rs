//! AES of FIPS 197, in CBC mode, counter mode and GCM of NIST SP 800-38. Every byte is computed in
//! the field of 256 elements. Only the substitution is a table, which is computed once.

use std::sync::OnceLock;

type CipherBlock = [u8; 16];

/// A key schedule.
pub(super) struct Aes {
    rounds: Vec<CipherBlock>,
}

/// The product in the field of 256 elements.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    sum
}

/// The substitution table and its inverse.
fn boxes() -> &'static ([u8; 256], [u8; 256]) {
    static BOXES: OnceLock<([u8; 256], [u8; 256])> = OnceLock::new();
    BOXES.get_or_init(|| {
        let (mut forward, mut back) = ([0; 256], [0; 256]);
        for value in 0..=255_u8 {
            let inverse = (1..=255).find(|other| times(value, *other) == 1).unwrap_or(0);
            let turned = (1..5).fold(inverse, |sum, by| sum ^ inverse.rotate_left(by)) ^ 0x63;
            forward[usize::from(value)] = turned;
            back[usize::from(turned)] = value;
        }
        (forward, back)
    })
}

impl Aes {
    /// Expands a key of 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Aes {
        let (words, substitute) = (key.len() / 4, |byte: u8| boxes().0[usize::from(byte)]);
        let mut schedule: Vec<[u8; 4]> = key.chunks(4).map(|word| [word[0], word[1], word[2], word[3]]).collect();
        let mut constant = 1_u8;
        for index in words..4 * (words + 7) {
            let mut word = schedule[index - 1];
            if index % words == 0 {
                word.rotate_left(1);
                word = word.map(substitute);
                word[0] ^= constant;
                constant = times(constant, 2);
            } else if words > 6 && index % words == 4 {
                word = word.map(substitute);
            }
            let before = schedule[index - words];
            schedule.push(std::array::from_fn(|byte| word[byte] ^ before[byte]));
        }
        Aes { rounds: schedule.chunks(4).map(|four| std::array::from_fn(|byte| four[byte / 4][byte % 4])).collect() }
    }

    pub(super) fn encrypt(&self, block: CipherBlock) -> CipherBlock {
        let last = self.rounds.len() - 1;
        let mut state = xor(block, self.rounds[0]);
        for round in 1..=last {
            // Byte `row` of a column comes from the column that is `row` columns further.
            let shifted: CipherBlock =
                std::array::from_fn(|at| boxes().0[usize::from(state[(at + 4 * (at % 4)) % 16])]);
            let mixed = if round == last { shifted } else { mix(shifted, [2, 3, 1, 1]) };
            state = xor(mixed, self.rounds[round]);
        }
        state
    }

    pub(super) fn decrypt(&self, block: CipherBlock) -> CipherBlock {
        let last = self.rounds.len() - 1;
        let mut state = block;
        for round in (1..=last).rev() {
            state = xor(state, self.rounds[round]);
            let unmixed = if round == last { state } else { mix(state, [14, 11, 13, 9]) };
            state = std::array::from_fn(|at| boxes().1[usize::from(unmixed[(at + 16 - 4 * (at % 4)) % 16])]);
        }
        xor(state, self.rounds[0])
    }

    /// Encrypts whole blocks in CBC mode.
    pub(super) fn encrypt_chained(&self, mut before: CipherBlock, blocks: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for chunk in blocks.chunks(16) {
            before = self.encrypt(xor(block_of(chunk), before));
            text.extend_from_slice(&before);
        }
        text
    }

    pub(super) fn decrypt_chained(&self, mut before: CipherBlock, text: &[u8]) -> Vec<u8> {
        let mut blocks = Vec::new();
        for chunk in text.chunks(16) {
            blocks.extend_from_slice(&xor(self.decrypt(block_of(chunk)), before));
            before = block_of(chunk);
        }
        blocks
    }

    /// Encrypts or decrypts in counter mode. The counter is the last `counter_bits` of `start`.
    pub(super) fn counted(&self, start: CipherBlock, counter_bits: u32, message: &[u8]) -> Vec<u8> {
        let mask = u128::MAX >> (128 - counter_bits);
        let mut counter = u128::from_be_bytes(start);
        let mut text = Vec::new();
        for chunk in message.chunks(16) {
            let key = self.encrypt(counter.to_be_bytes());
            text.extend(chunk.iter().zip(key).map(|(byte, key)| byte ^ key));
            counter = counter & !mask | counter.wrapping_add(1) & mask;
        }
        text
    }

    /// Encrypts with GCM. Returns the text and the tag.
    pub(super) fn seal(&self, nonce: &[u8; 12], associated: &[u8], message: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let text = self.counted(self.counter(nonce, 2), 32, message);
        let tag = self.tag(nonce, associated, &text);
        (text, tag)
    }

    /// Decrypts with GCM. Returns the message if the tag is correct.
    pub(super) fn open(&self, nonce: &[u8; 12], associated: &[u8], text: &[u8], tag: &[u8]) -> Option<Vec<u8>> {
        (self.tag(nonce, associated, text) == tag).then(|| self.counted(self.counter(nonce, 2), 32, text))
    }

    fn counter(&self, nonce: &[u8; 12], number: u32) -> CipherBlock {
        block_of(&[&nonce[..], &number.to_be_bytes()].concat())
    }

    fn tag(&self, nonce: &[u8; 12], associated: &[u8], text: &[u8]) -> Vec<u8> {
        let key = u128::from_be_bytes(self.encrypt([0; 16]));
        let lens = ((associated.len() as u128 * 8) << 64) | (text.len() as u128 * 8);
        let blocks = associated.chunks(16).chain(text.chunks(16)).map(|chunk| u128::from_be_bytes(block_of(chunk)));
        let hash = blocks.chain([lens]).fold(0, |sum, block| times_wide(sum ^ block, key));
        xor(hash.to_be_bytes(), self.encrypt(self.counter(nonce, 1))).to_vec()
    }
}

/// The product in GCM's field of 2^128 elements, whose bits are ordered from the highest.
fn times_wide(a: u128, mut b: u128) -> u128 {
    let mut sum = 0;
    for bit in (0..128).rev() {
        if a >> bit & 1 == 1 {
            sum ^= b;
        }
        b = b >> 1 ^ if b & 1 == 1 { 0xe1 << 120 } else { 0 };
    }
    sum
}

/// Multiplies each column by a polynomial, whose first coefficient applies to the byte itself.
fn mix(state: CipherBlock, by: [u8; 4]) -> CipherBlock {
    std::array::from_fn(|at| (0..4).fold(0, |sum, step| sum ^ times(state[at / 4 * 4 + (at + step) % 4], by[step])))
}

fn xor(a: CipherBlock, b: CipherBlock) -> CipherBlock {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// Up to sixteen bytes, padded with zeros.
fn block_of(bytes: &[u8]) -> CipherBlock {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}
