//! LdpcEncode, LdpcDecode, Interleave and Scramble: words with and without noise, words beyond
//! repair, every element size.

use panoply_core::op::signal::{
    BaseGraph, Interleave, Interleaver, Ldpc, LdpcDecode, LdpcEncode, Scramble, Scrambler, TelemetryRate,
};
use panoply_core::{DType, Tensor};

use super::fft::random_complex;
use crate::judge::Judge;
use crate::reference::reference;
use crate::suite::case::Case;
use crate::values::{Random, random_tensor};

fn tensor<T: panoply_core::Element>(values: Vec<T>, dims: &[usize]) -> Tensor {
    Tensor::from_vec(values, dims).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(256) as u8).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_ldpc(&mut cases);
    for (name, interleaver) in [
        ("block", Interleaver::Block { rows: 3, columns: 5 }),
        ("line", Interleaver::Block { rows: 1, columns: 15 }),
        ("custom", Interleaver::Custom([4, 0, 2, 1, 3].as_slice().into())),
    ] {
        for dims in [&[0][..], &[15], &[2, 30], &[40, 15]] {
            let inputs = [
                random_tensor(DType::U8, dims, 140),
                random_tensor(DType::F32, dims, 141),
                random_complex(dims, 142),
                random_tensor(DType::F16, dims, 143),
            ];
            for input in inputs {
                let what = format!("interleave/{name}/{}/{dims:?}", input.dtype().name());
                cases.push(Case::new(what.clone(), Interleave::new(interleaver.clone(), &input), Judge::Bits));
                let op = Interleave::inverse(interleaver.clone(), &input);
                cases.push(Case::new(format!("{what}/inverse"), op, Judge::Bits));
            }
        }
    }
    for (name, scrambler) in [("wifi", Scrambler::wifi(0x5d)), ("dvb", Scrambler::DVB), ("v34", Scrambler::V34)] {
        for (lines, len) in [(1, 0), (1, 1), (3, 100), (2, 5000)] {
            let input = tensor(bytes(lines * len, 144), &[lines, len]);
            let what = format!("scramble/{name}/{lines}x{len}");
            cases.push(Case::new(what.clone(), Scramble::new(scrambler, &input), Judge::Bits));
            cases.push(Case::new(format!("{what}/inverse"), Scramble::inverse(scrambler, &input), Judge::Bits));
        }
    }
    cases
}

fn add_ldpc(cases: &mut Vec<Case>) {
    let codes = [
        Ldpc::Nr { graph: BaseGraph::One, lifting: 2 },
        Ldpc::Nr { graph: BaseGraph::One, lifting: 13 },
        Ldpc::Nr { graph: BaseGraph::Two, lifting: 7 },
        Ldpc::Nr { graph: BaseGraph::Two, lifting: 12 },
        Ldpc::Telemetry { data: 1024, rate: TelemetryRate::FourFifths },
        Ldpc::Telemetry { data: 1024, rate: TelemetryRate::TwoThirds },
        Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half },
    ];
    for code in codes {
        let (name, data) = (format!("{}-{}", code.name(), code.block()), code.data_bits().div_ceil(8));
        for words in [0, 1, 3] {
            let op = LdpcEncode::new(code, &tensor(bytes(words * data, 145), &[words, data]));
            cases.push(Case::new(format!("ldpc_encode/{name}/{words}"), op, Judge::Bits));
        }
        // Enough words for several rounds, with correctable noise, and one word beyond repair.
        let op = LdpcEncode::new(code, &tensor(bytes(data, 146), &[1, data]));
        let op = panoply_core::Operation::into_op(op).unwrap_or_else(|error| panic!("{name}: {error}"));
        let sent = reference(&op).and_then(panoply_core::Value::into_tensor);
        let sent = sent.unwrap_or_else(|error| panic!("{name}: {error}"));
        let sent = sent.as_slice::<u8>().unwrap_or(&[]).to_vec();
        let mut random = Random::new(147);
        let words = 18;
        let mut likelihoods = Vec::new();
        for word in 0..words {
            for at in 0..code.coded_bits() {
                let bit = if sent[at / 8] >> (7 - at % 8) & 1 == 1 { -1.0 } else { 1.0 };
                let noise = (0..4).map(|_| random.signed_unit()).sum::<f64>() * 0.45;
                likelihoods.push(if word == 2 { random.signed_unit() as f32 } else { (4.0 * (bit + noise)) as f32 });
            }
        }
        (likelihoods[0], likelihoods[1]) = (f32::NAN, f32::INFINITY.copysign(likelihoods[1]));
        let input = tensor(likelihoods, &[words, code.coded_bits()]);
        let judge = Judge::Own(same_words);
        cases.push(Case::new(format!("ldpc_decode/{name}"), LdpcDecode::new(code, &input).iterations(12), judge));
        let nothing = tensor(vec![0.0_f32; code.coded_bits()], &[code.coded_bits()]);
        cases.push(Case::new(format!("ldpc_decode/{name}/nothing"), LdpcDecode::new(code, &nothing), judge));
    }
}

/// Accepts an answer that decodes the same words to the same data, with a difference of at most one
/// iteration. The data of other words is ignored.
fn same_words(_: &panoply_core::Op, expected: &panoply_core::Value, got: &panoply_core::Value) -> Option<String> {
    use panoply_core::Value;
    let (Value::Pair(data, counts), Value::Pair(got_data, got_counts)) = (expected, got) else {
        return Some("the answer is no pair".to_owned());
    };
    let (counts, got_counts) = (counts.to_vec::<i32>().ok()?, got_counts.to_vec::<i32>().ok()?);
    let (data, got_data) = (data.to_vec::<u8>().ok()?, got_data.to_vec::<u8>().ok()?);
    if counts.len() != got_counts.len() || data.len() != got_data.len() {
        return Some("the answer has other shapes".to_owned());
    }
    let each = data.len() / counts.len().max(1);
    for (word, (count, got)) in counts.iter().zip(&got_counts).enumerate() {
        if (*count < 0) != (*got < 0) || count.abs_diff(*got) > 1 {
            return Some(format!("word {word} took {got} iterations, not {count}"));
        }
        let place = word * each..(word + 1) * each;
        if *count >= 0 && data[place.clone()] != got_data[place] {
            return Some(format!("word {word} has other data"));
        }
    }
    None
}
