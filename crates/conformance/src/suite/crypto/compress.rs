//! Compress and Decompress: every format but zstd, every level, data of every sort; archives that
//! are cut, altered, followed by other data, or too long.

use panoply_core::op::crypto::{Compress, CryptoOp, Decompress, Format, Messages};
use panoply_core::{Bytes, Op, Value};

use super::batches::{batches, random};
use crate::judge::Judge;
use crate::reference::crypto::{decompressed, stored};
use crate::suite::case::Case;

const LENS: [usize; 10] = [0, 1, 2, 13, 64, 255, 256, 1000, 4099, 70_001];
const FORMATS: [Format; 5] = [Format::Deflate, Format::Zlib, Format::Gzip, Format::Lz4Block, Format::Lz4Frame];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in FORMATS {
        let name = format.name();
        for (form, messages) in batches(&LENS, mixed) {
            let compress = Compress::new(format, messages);
            cases.push(Case::new(format!("compress/{name}/{form}"), compress, Judge::Own(round_trip)));
        }
        for level in format.levels() {
            let messages: Messages =
                [mixed(3000), vec![0; 5000], random(2000, 30)].map(Bytes::from_vec).to_vec().into();
            let compress = Compress::new(format, messages).level(level);
            cases.push(Case::new(format!("compress/{name}/level{level}"), compress, Judge::Own(round_trip)));
        }
        for (form, messages) in batches(&LENS, |len| stored(format, &mixed(len))) {
            let decompress = Decompress::new(format, messages).limit(70_001);
            cases.push(Case::new(format!("decompress/{name}/{form}"), decompress, Judge::Bits));
        }
        hostile(&mut cases, format);
    }
    cases
}

/// Data of repeats, runs and noise.
fn mixed(len: usize) -> Vec<u8> {
    let noise = random(len, 31);
    let of = |at: usize| match at / 50 % 4 {
        0 => b"the quick brown fox "[at % 20],
        1 => 7,
        2 => noise[at],
        _ => noise[at % 23],
    };
    (0..len).map(of).collect()
}

/// Checks that the compressed data decompresses to the original message.
fn round_trip(op: &Op, _: &Value, got: &Value) -> Option<String> {
    let Op::Crypto(CryptoOp::Compress(op)) = op else { return Some("not a compression".to_owned()) };
    let packed = match Messages::from_value(got.clone()) {
        Ok(packed) => packed,
        Err(error) => return Some(error.to_string()),
    };
    let (Ok(messages), Ok(packed)) = (op.messages.slices(), packed.slices()) else {
        return Some("not on the host".to_owned());
    };
    if messages.len() != packed.len() {
        return Some(format!("expected {} messages, got {}", messages.len(), packed.len()));
    }
    let differs = |(message, packed): (&&[u8], &&[u8])| decompressed(op.format, packed).as_deref() != Some(message);
    let at = messages.iter().zip(&packed).position(differs)?;
    Some(format!("message {at} does not decompress to itself"))
}

fn hostile(cases: &mut Vec<Case>, format: Format) {
    let whole = stored(format, &mixed(300));
    let mut add = |what: &str, data: Vec<u8>, limit: usize| {
        let op = Decompress::new(format, data).limit(limit);
        cases.push(Case::new(format!("decompress/{}/refused/{what}", format.name()), op, Judge::Bits));
    };
    add("nothing", vec![], 1000);
    add("limit", whole.clone(), 299);
    add("exact limit", whole.clone(), 300);
    add("no limit left", whole.clone(), 0);
    for len in [1, 2, 3, 5, 7, 10, 11, whole.len() / 2, whole.len() - 1] {
        add(&format!("cut{len}"), whole[..len].to_vec(), 1000);
    }
    if format != Format::Lz4Block {
        add("followed", [&whole[..], b"more"].concat(), 1000);
    }
    add("noise", random(500, 32), 100_000);
    if matches!(format, Format::Zlib | Format::Gzip) {
        let mut altered = whole.clone();
        altered[100] ^= 1;
        add("altered", altered, 1000);
        let mut checksum = whole.clone();
        let last = checksum.len() - 5;
        checksum[last] ^= 1;
        add("checksum", checksum, 1000);
    }
}
