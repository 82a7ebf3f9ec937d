//! Files with bytes changed, cut, repeated and joined: whatever they say, they are read or refused, and what was read runs or says
//! why not. Nothing panics, hangs or takes much memory. `PANOPLY_FUZZ_MUTATIONS` sets how many of each file are tried.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

mod onnx;

use onnx::*;
use panoply_ml::ElementType;
use panoply_ml::fuzzing;

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn mutated(seed: &[u8], other: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
            1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, numbers.next() as u8),
            4 if !bytes.is_empty() => drop(bytes.remove(at)),
            _ => {
                let from = numbers.below(other.len());
                let piece = &other[from..(from + numbers.below(32)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
    bytes
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

fn mutations() -> usize {
    std::env::var("PANOPLY_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(1500)
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

#[test]
fn arrays_pictures_and_vocabularies() {
    let array = panoply_ml::npy::write(&panoply_ml::Array::from_slice(&[1.0_f32; 6], [2, 3]).unwrap()).unwrap();
    let picture = panoply_ml::picture::Picture::from_rgb(4, 4, vec![7; 48]).unwrap();
    let pictures = [picture.encode(false).unwrap(), picture.encode(true).unwrap()];
    let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\nhello".to_vec();
    assert!(fuzzing::npy(&array) && pictures.iter().all(|picture| fuzzing::picture(picture)));
    let files = ["byte-level", "clip", "llama3", "marked"].map(|kind| {
        let path = format!("{}/tests/tokenizers/{kind}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    });
    assert!(files.iter().all(|file| fuzzing::vocabulary(std::str::from_utf8(file).unwrap())));
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for turn in 0..mutations() / 10 {
        let file = &files[turn % files.len()];
        fuzzing::vocabulary(&String::from_utf8_lossy(&mutated(file, file, &mut numbers)));
    }
    for _ in 0..mutations() {
        fuzzing::npy(&mutated(&array, &array, &mut numbers));
        fuzzing::vocabulary(&String::from_utf8_lossy(&mutated(&vocabulary, &vocabulary, &mut numbers)));
    }
    for _ in 0..mutations() / 10 {
        pictures.iter().for_each(|picture| {
            fuzzing::picture(&mutated(picture, &array, &mut numbers));
        });
    }
}
