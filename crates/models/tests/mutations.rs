//! Files with bytes changed, cut, repeated and joined. Each is read or refused, and a model that
//! was read runs or returns an error. Nothing panics, hangs or takes much memory.
//! `PANOPLY_FUZZ_MUTATIONS` sets the number of mutations of each file.
//!
//! `PANOPLY_FUZZ_SEEDS` names a folder of models (for example ONNX's node cases) whose mutations
//! are tried for `PANOPLY_FUZZ_SECONDS` on every core. The current file is kept in the folder for
//! temporary files, so that a file that ends the process can be found afterwards.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::mutated::{Numbers, huge, mutated, mutations, varint};
use crate::onnx::*;
use panoply_models::ElementType;
use panoply_models::fuzzing;

/// A field of a message: its key, and its content without the length.
type Field = (u64, Vec<u8>);

/// The fields of a message. `None` if the bytes are not a message.
fn fields(bytes: &[u8]) -> Option<Vec<Field>> {
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if *first < 0x80 {
                return Some(value);
            }
        }
        None
    }
    let (mut bytes, mut fields) = (bytes, Vec::new());
    while !bytes.is_empty() {
        let key = number(&mut bytes)?;
        let before = bytes;
        let len = match key & 7 {
            0 => {
                number(&mut bytes)?;
                before.len() - bytes.len()
            }
            1 => 8,
            2 => number(&mut bytes)? as usize,
            5 => 4,
            _ => return None,
        };
        let from = if key & 7 == 0 { before } else { bytes };
        let content = from.get(..len)?;
        bytes = &from[len..];
        fields.push((key, content.to_vec()));
    }
    Some(fields)
}

/// A message with a field changed, removed, repeated or moved, at this level or deeper. Lengths
/// match the contents.
fn reshaped(bytes: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let Some(mut fields) = fields(bytes).filter(|fields| !fields.is_empty()) else {
        let mut bytes = bytes.to_vec();
        if !bytes.is_empty() {
            let at = numbers.below(bytes.len());
            bytes[at] ^= 1 << numbers.below(8);
        }
        return bytes;
    };
    let at = numbers.below(fields.len());
    match numbers.below(8) {
        0 => drop(fields.remove(at)),
        1 => fields.push(fields[at].clone()),
        2 => fields.swap(at, 0),
        _ => {
            let (key, content) = &mut fields[at];
            *content = match *key & 7 {
                0 if numbers.below(2) == 0 => huge(numbers),
                0 => varint(numbers.below(30) as u64),
                2 => reshaped(content, numbers),
                _ => content.iter().map(|byte| byte ^ numbers.next() as u8).collect(),
            };
        }
    }
    let field = |(key, content): Field| match key & 7 {
        2 => [varint(key), varint(content.len() as u64), content].concat(),
        _ => [varint(key), content].concat(),
    };
    fields.into_iter().flat_map(field).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let x = port("x", ElementType::F32, &[1, 2, 4, 4]);
    let conv = [
        node("Conv", &["x", "w"], &["c"], &[ints("pads", &[1; 4]), int("group", 1)]),
        node("MaxPool", &["c"], &["p"], &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]),
        node("Resize", &["p", "", "s"], &["r"], &[text("mode", "linear")]),
        node("Reshape", &["r", "d"], &["y"], &[]),
    ];
    let weights =
        [f32s("w", &[2, 2, 3, 3], &[0.5; 36]), f32s("s", &[4], &[1.0, 1.0, 2.0, 2.0]), i64s("d", &[2], &[1, -1])];
    let conv = model(18, &graph(&conv, &weights, &[x], &[any("y")]));
    let row = port("x", ElementType::I64, &[4]);
    let shapes = [
        node("Slice", &["x", "a", "b"], &["s"], &[]),
        node("Pad", &["s", "pads"], &["p"], &[]),
        node("Unique", &["p"], &["u", "", "", "n"], &[]),
        node("TopK", &["u", "one"], &["t", "places"], &[]),
        node("Gather", &["x", "places"], &["g"], &[]),
        node("ConstantOfShape", &["one"], &["z"], &[]),
        node("Einsum", &["g", "g"], &["y"], &[text("equation", "i,i->")]),
    ];
    let numbers = [i64s("a", &[1], &[1]), i64s("b", &[1], &[4]), i64s("pads", &[2], &[1, 2]), i64s("one", &[1], &[1])];
    let shapes = model(13, &graph(&shapes, &numbers, std::slice::from_ref(&row), &[any("y"), any("z"), any("n")]));
    let turn = graph(
        &[node("Identity", &["go"], &["on"], &[]), node("Add", &["v", "v"], &["w"], &[])],
        &[],
        &[port("i", ElementType::I64, &[]), port("go", ElementType::Bool, &[]), port("v", ElementType::I64, &[4])],
        &[any("on"), any("w")],
    );
    let branch = |op: &str| graph(&[node(op, &["l"], &["r"], &[])], &[], &[], &[any("r")]);
    let control = [
        node("Loop", &["turns", "", "x"], &["l"], &[graph_of("body", &turn)]),
        node(
            "If",
            &["truth"],
            &["f"],
            &[graph_of("then_branch", &branch("Neg")), graph_of("else_branch", &branch("Abs"))],
        ),
        node("f", &["f"], &["y"], &[]).text(7, "own"),
        node("SequenceConstruct", &["y", "x"], &["list"], &[]),
        node("ConcatFromSequence", &["list"], &["all"], &[int("axis", 0)]),
    ];
    let function = Message::default().text(1, "f").text(10, "own").text(4, "a").text(5, "b");
    let function = function.message(7, &node("Sign", &["a"], &["b"], &[])).message(9, &opset("", 18));
    let constants = [i64s("turns", &[], &[3]), tensor("truth", ElementType::Bool, &[], &[1])];
    let control = model(18, &graph(&control, &constants, &[row], &[any("all")]));
    let control = control.message(8, &opset("own", 1)).message(25, &function);
    let quantised = [
        node("DynamicQuantizeLinear", &["x"], &["q", "scale", "zero"], &[]),
        node("MatMulInteger", &["q", "w", "zero"], &["m"], &[]),
        node("DequantizeLinear", &["m", "scale"], &["d"], &[]),
        node("LSTM", &["d3", "lw", "lr"], &["h"], &[int("hidden_size", 1)]),
        node("Unsqueeze", &["d", "first"], &["d3"], &[]),
    ];
    let constants = [
        tensor("w", ElementType::I8, &[2, 1], &[3, 253]),
        f32s("lw", &[1, 4, 1], &[0.1; 4]),
        f32s("lr", &[1, 4, 1], &[0.2; 4]),
        i64s("first", &[1], &[0]),
    ];
    let quantised = model(13, &graph(&quantised, &constants, &[port("x", ElementType::F32, &[2, 2])], &[any("h")]));
    vec![conv.0, shapes.0, control.0, quantised.0]
}

#[test]
fn models() {
    let (seeds, mut numbers) = (seeds(), Numbers(0x9e37_79b9_7f4a_7c15));
    for (place, seed) in seeds.iter().enumerate() {
        assert_eq!(fuzzing::model(seed), (true, true), "seed {place} itself");
    }
    let (mut read, mut ran) = (0, 0);
    for round in 0..mutations() {
        for seed in &seeds {
            let (was_read, has_run) = fuzzing::model(&mutated(seed, &seeds[round % seeds.len()], &mut numbers));
            read += usize::from(was_read);
            ran += usize::from(has_run);
        }
    }
    println!("{read} read and {ran} run of {}", mutations() * seeds.len());
    assert!(read > ran && ran > 0, "mutations should reach beyond the reader: {read} read, {ran} run");
}

/// The longest time for one file, and the largest seed in bytes.
const CASE_TIME_MAX: Duration = Duration::from_secs(10);
const SEED_BYTES_MAX: u64 = 1 << 16;

/// The models in a folder and in its subfolders.
fn seeds_of(folder: &Path) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let path = if path.is_dir() { path.join("model.onnx") } else { path };
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        if path.extension().is_some_and(|extension| extension == "onnx") && (1..=SEED_BYTES_MAX).contains(&size) {
            seeds.push(std::fs::read(path).unwrap());
        }
    }
    seeds.sort();
    seeds
}

/// Tries mutations until `end`. Returns the numbers of files that were read, that ran, and that
/// were tried.
fn tried_until(end: Instant, seeds: &[Vec<u8>], mut numbers: Numbers, file: &Path) -> [u64; 3] {
    let mut counts = [0; 3];
    while Instant::now() < end {
        let (seed, other) = (&seeds[numbers.below(seeds.len())], &seeds[numbers.below(seeds.len())]);
        let bytes = match numbers.below(4) {
            0 => mutated(seed, other, &mut numbers),
            _ => (0..=numbers.below(3)).fold(seed.clone(), |bytes, _| reshaped(&bytes, &mut numbers)),
        };
        std::fs::write(file, &bytes).unwrap();
        let started = Instant::now();
        let (read, ran) = fuzzing::model(&bytes);
        assert!(started.elapsed() < CASE_TIME_MAX, "{} took {:?}", file.display(), started.elapsed());
        counts = [counts[0] + u64::from(read), counts[1] + u64::from(ran), counts[2] + 1];
    }
    std::fs::remove_file(file).unwrap();
    counts
}

#[test]
fn models_of_a_folder() {
    let Some(folder) = std::env::var_os("PANOPLY_FUZZ_SEEDS") else {
        println!("skipped: PANOPLY_FUZZ_SEEDS names no folder of models");
        return;
    };
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let seeds = seeds_of(Path::new(&folder));
    assert!(!seeds.is_empty(), "no models in {folder:?}");
    let end = Instant::now() + Duration::from_secs(number("PANOPLY_FUZZ_SECONDS", 30));
    let first = number("PANOPLY_FUZZ_SEED", 1);
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let counts: Vec<[u64; 3]> = std::thread::scope(|scope| {
        let seeds = &seeds;
        let work = move |worker: u64| {
            let file = std::env::temp_dir().join(format!("panoply-mutation-{}-{worker}.onnx", std::process::id()));
            let numbers = Numbers((first + worker).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            tried_until(end, seeds, numbers, &file)
        };
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [read, ran, tried] = [0, 1, 2].map(|place| counts.iter().map(|counts| counts[place]).sum::<u64>());
    println!("{read} read and {ran} run of {tried} mutations of {} models", seeds.len());
    assert!(read > ran && ran > 0, "mutations should reach beyond the reader");
}

#[test]
fn arrays() {
    let array = panoply_models::npy::write(&panoply_models::Array::from_slice(&[1.0_f32; 6], [2, 3]).unwrap()).unwrap();
    assert!(fuzzing::npy(&array));
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for _ in 0..mutations() {
        fuzzing::npy(&mutated(&array, &array, &mut numbers));
    }
}
