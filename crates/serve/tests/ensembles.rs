//! Ensembles of models and stages give the same results as their members one by one, under one name
//! and one deadline.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::onnx::*;
use panoply_inputs::picture::{Fit, Normalisation, Picture};
use panoply_inputs::tasks::{DetectOptions, Detection, Labels};
use panoply_inputs::text::Tokenizer;
use panoply_models::{Array, ElementType, Model};
use panoply_runtime::{RunOptions, Runtime};
use panoply_serve::tasks::{Detector, classify, frame_of};
use panoply_serve::{Ensemble, Error, Member, Stage};

fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    let make = || Arc::new(Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap());
    Arc::clone(RUNTIME.get_or_init(make))
}

fn loaded(message: &Message) -> Model {
    Model::from_bytes(runtime(), &message.0).unwrap()
}

/// Computes scores from the mean of each colour.
fn classifier() -> Model {
    let nodes = [
        node("GlobalAveragePool", &["x"], &["mean"], &[]),
        node("Flatten", &["mean"], &["flat"], &[]),
        node("MatMul", &["flat", "w"], &["logits"], &[]),
    ];
    let weights = [f32s("w", &[3, 4], &[1.0, -1.0, 0.5, 2.0, -0.5, 3.0, 1.0, 0.0, 0.25, 0.75, -2.0, 1.5])];
    let ports = [port("x", ElementType::F32, &[1, 3, 16, 16])];
    loaded(&model(18, &graph(&nodes, &weights, &ports, &[any("logits")])))
}

/// A picture with colours that change horizontally and vertically.
fn picture(width: u32, height: u32) -> Picture {
    let pixel = |place: u32| [(place % width * 5) as u8, (place / width * 9) as u8, (place * 3) as u8];
    Picture::from_rgb(width, height, (0..width * height).flat_map(pixel).collect()).unwrap()
}

fn file(picture: &Picture) -> Array {
    let bytes = picture.encode(false).unwrap();
    Array::from_slice(&bytes, [bytes.len()]).unwrap()
}

fn run(ensemble: &Ensemble, inputs: &[(&str, Array)]) -> panoply_models::Outputs {
    ensemble.infer(inputs, &RunOptions::default()).unwrap()
}

#[test]
fn a_file_becomes_classes() {
    let model = classifier();
    let frame = frame_of(&model.inputs()[0], None).unwrap();
    let normalisation = Normalisation::IMAGENET;
    let members = vec![
        Member::stage(Stage::top_k(3, -1).unwrap()).reads("x", "likely").writes("indices", "classes"),
        Member::stage(Stage::softmax(-1).unwrap()).reads("x", "logits").writes("y", "likely"),
        Member::new(&model),
        Member::stage(Stage::normalise(frame, normalisation).unwrap()).writes("array", "x"),
        Member::stage(Stage::fit(frame, Fit::Crop)),
        Member::stage(Stage::decode()),
    ];
    let chain = Ensemble::new("colours", &["file"], &["values", "classes", "x"], members).unwrap();
    let picture = picture(40, 24);
    let outputs = run(&chain, &[("file", file(&picture))]);
    let (direct, _) = picture.tensor(&frame, Fit::Crop, normalisation).unwrap();
    let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near(outputs.get("x").unwrap().as_slice().unwrap(), direct.as_slice().unwrap()));
    let expected = classify(&model, &picture, normalisation, 3, &Labels::default()).unwrap();
    let scores: Vec<f32> = expected.iter().map(|class| class.score).collect();
    assert!(near(outputs.get("values").unwrap().as_slice().unwrap(), &scores), "{outputs:?} is not {expected:?}");
    let classes: Vec<i64> = expected.iter().map(|class| class.index as i64).collect();
    assert_eq!(outputs.get("classes").unwrap().as_slice::<i64>().unwrap(), classes);
}

#[test]
fn pixels_become_what_inputs_ask_for() {
    for (kind, dims) in [
        (ElementType::F32, [1, 3, 8, 12]),
        (ElementType::F16, [1, 3, 8, 12]),
        (ElementType::F32, [1, 8, 12, 3]),
        (ElementType::F32, [1, 1, 8, 12]),
        (ElementType::U8, [1, 8, 12, 3]),
        (ElementType::U8, [1, 3, 8, 12]),
    ] {
        let same = [node("Identity", &["x"], &["y"], &[])];
        let model = loaded(&model(18, &graph(&same, &[], &[port("x", kind, &dims)], &[any("y")])));
        let frame = frame_of(&model.inputs()[0], None).unwrap();
        for normalisation in [Normalisation::Bytes, Normalisation::Signed] {
            let members = vec![
                Member::stage(Stage::decode()),
                Member::stage(Stage::fit(frame, Fit::Letterbox)),
                Member::stage(Stage::normalise(frame, normalisation).unwrap()).writes("array", "x"),
                Member::new(&model),
            ];
            let chain = Ensemble::new("same", &["file"], &["y"], members).unwrap();
            let picture = picture(31, 17);
            let outputs = run(&chain, &[("file", file(&picture))]);
            let got = outputs.first().unwrap();
            // Bytes are passed on unchanged.
            let normalisation = if kind == ElementType::U8 { Normalisation::Bytes } else { normalisation };
            let (expected, _) = picture.tensor(&frame, Fit::Letterbox, normalisation).unwrap();
            let expected = Array::from_tensor(&expected).unwrap();
            assert_eq!((got.kind(), got.dims()), (expected.kind(), expected.dims()));
            let (got, expected) = (got.to_floats().unwrap(), expected.to_floats().unwrap());
            assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{kind} {dims:?}");
        }
    }
}

#[test]
fn a_file_becomes_boxes_in_its_own_pixels() {
    // The boxes are constants, independent of the picture.
    let nodes = [
        node("ReduceSum", &["x"], &["sum"], &[int("keepdims", 0)]),
        node("Mul", &["sum", "zero"], &["none"], &[]),
        node("Add", &["found", "none"], &["output"], &[]),
    ];
    let rows = [[4.0, 6.0, 20.0, 18.0, 0.9, 1.0], [5.0, 6.0, 20.0, 18.0, 0.8, 1.0], [8.0, 20.0, 30.0, 28.0, 0.7, 0.0]];
    let rows: Vec<f32> = rows.concat().into_iter().chain([0.0; 24]).collect();
    let constants = [f32s("zero", &[], &[0.0]), f32s("found", &[1, 7, 6], &rows)];
    let ports = [port("x", ElementType::F32, &[1, 3, 32, 32])];
    let model = loaded(&model(18, &graph(&nodes, &constants, &ports, &[any("output")])));
    let frame = frame_of(&model.inputs()[0], None).unwrap();
    let options = DetectOptions::default();
    let members = vec![
        Member::stage(Stage::decode()),
        Member::stage(Stage::fit(frame, Fit::Letterbox)),
        Member::stage(Stage::normalise(frame, options.normalisation).unwrap()).writes("array", "x"),
        Member::new(&model),
        Member::stage(Stage::suppress(options)),
        Member::stage(Stage::in_picture()),
    ];
    let chain = Ensemble::new("boxes", &["file"], &["placed", "boxes"], members).unwrap();
    let picture = picture(64, 48);
    let outputs = run(&chain, &[("file", file(&picture))]);
    let expected =
        Detector::new(&model).detect(&picture, &options, &Labels::default(), &RunOptions::default()).unwrap();
    assert_eq!(expected.len(), 2);
    let row = |found: &Detection| {
        let [left, top, right, bottom] = found.corners;
        [left, top, right, bottom, found.score, found.class as f32]
    };
    let expected: Vec<f32> = expected.iter().flat_map(row).collect();
    assert_eq!(outputs.get("placed").unwrap().as_slice::<f32>().unwrap(), expected);
    assert_eq!(outputs.get("boxes").unwrap().as_slice::<f32>().unwrap()[..4], [4.0, 6.0, 20.0, 18.0]);
}

#[test]
fn texts_become_vectors() {
    let nodes = [node("Gather", &["table", "input_ids"], &["vectors"], &[])];
    let table: Vec<f32> = (0..12).map(|number| number as f32).collect();
    let ports = [port("input_ids", ElementType::I64, &[-1, -2])];
    let model = loaded(&model(18, &graph(&nodes, &[f32s("table", &[6, 2], &table)], &ports, &[any("vectors")])));
    let tokenizer = Tokenizer::from_lines("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld").unwrap();
    let members = vec![Member::new(&model), Member::stage(Stage::tokenize(tokenizer, 8)).writes("ids", "input_ids")];
    let chain = Ensemble::new("texts", &["texts"], &["vectors", "mask"], members).unwrap();
    let texts = Array::from_strings(vec!["hello world".to_owned(), "hello".to_owned()], [2]).unwrap();
    let outputs = run(&chain, &[("texts", texts)]);
    let vectors = outputs.get("vectors").unwrap();
    assert_eq!(vectors.dims(), [2, 4, 2]);
    assert_eq!(vectors.as_slice::<f32>().unwrap()[8..], [4.0, 5.0, 8.0, 9.0, 6.0, 7.0, 0.0, 1.0]);
    assert_eq!(outputs.get("mask").unwrap().as_slice::<i64>().unwrap(), [1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let model = classifier();
    let softmax = || Member::stage(Stage::softmax(-1).unwrap());
    let refused = |members: Vec<Member>| Ensemble::new("wrong", &["x"], &["y"], members).unwrap_err().to_string();
    assert!(refused(vec![softmax()]).contains("a model"));
    assert!(refused(vec![Member::new(&model), softmax().reads("z", "logits")]).contains("\"z\""));
    assert!(refused(vec![Member::new(&model), softmax().reads("x", "elsewhere")]).contains("elsewhere"));
    let frame = frame_of(&model.inputs()[0], None).unwrap();
    let members = vec![
        Member::stage(Stage::decode()),
        Member::stage(Stage::fit(frame, Fit::Crop)),
        Member::stage(Stage::normalise(frame, Normalisation::Unit).unwrap()).writes("array", "x"),
        Member::new(&model),
    ];
    let chain = Ensemble::new("pictures", &["file"], &["logits"], members).unwrap();
    let given = |array: Array| [("file", array)];
    let good = file(&picture(9, 9));
    assert!(chain.infer(&given(good.clone()), &RunOptions::default()).is_ok());
    let late = RunOptions::default().deadline(Instant::now());
    assert!(matches!(chain.infer(&given(good), &late), Err(Error::Run(_))));
    let noise = Array::from_slice(&[1_u8, 2, 3], [3]).unwrap();
    assert!(chain.infer(&given(noise), &RunOptions::default()).is_err());
    let floats = Array::from_slice(&[1.0_f32], [1]).unwrap();
    assert!(chain.infer(&given(floats), &RunOptions::default()).is_err());
    // `top_k` fails if it asks for more elements than there are.
    let members = vec![
        Member::new(&model),
        Member::stage(Stage::top_k(9, -1).unwrap()).reads("x", "logits").writes("values", "y"),
    ];
    let chain = Ensemble::new("top", &["x"], &["y"], members).unwrap();
    let x = Array::from_slice(&[0.5_f32; 768], [1, 3, 16, 16]).unwrap();
    assert!(chain.infer(&[("x", x)], &RunOptions::default()).is_err());
}
