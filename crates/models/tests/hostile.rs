//! Hostile and broken models: each is an error, soon and in little memory. Also regression tests.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::sync::{Arc, OnceLock};

use crate::onnx::*;
use panoply_models::{Array, ElementType, Error, Network, Result, Value};
use panoply_runtime::{RunOptions, Runtime};

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap())
}

fn load(model: &Message) -> Result<Network> {
    Network::from_bytes(&model.0)
}

/// Runs a node on inputs `x0`, `x1`, … on the host and on devices, which must agree on success.
fn run(version: i64, op: &str, attributes: &[Message], inputs: &[Array], outputs: usize) -> Result<Vec<Array>> {
    let names: Vec<String> = (0..inputs.len()).map(|place| format!("x{place}")).collect();
    let out: Vec<String> = (0..outputs).map(|place| format!("y{place}")).collect();
    let [names, out] = [&names, &out].map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    let sizes = |array: &Array| array.dims().iter().map(|dim| *dim as i64).collect::<Vec<_>>();
    let ports: Vec<Message> =
        names.iter().zip(inputs).map(|(name, array)| port(name, array.kind(), &sizes(array))).collect();
    let outs: Vec<Message> = out.iter().map(|name| any(name)).collect();
    let network = load(&model(version, &graph(&[node(op, &names, &out, attributes)], &[], &ports, &outs)))?;
    let given: Vec<(&str, Value)> = names.iter().copied().zip(inputs.iter().cloned().map(Value::Array)).collect();
    let host = network.reference(&given);
    let devices = network.infer_values(runtime(), &given, &RunOptions::default());
    assert_eq!(host.is_ok(), devices.is_ok(), "{op}: on the host {host:?}, on devices {devices:?}");
    let (host, devices) = (host?, devices?);
    for (host, device) in host.iter().zip(&devices) {
        let (host, device) = (host.array()?, device.array()?);
        assert_eq!((host.kind(), host.dims()), (device.kind(), device.dims()), "{op}");
        if host.kind() != ElementType::String {
            let pairs = host.to_floats()?.into_iter().zip(device.to_floats()?);
            assert!(pairs.into_iter().all(|(a, b)| a == b || (a - b).abs() < 1e-5), "{op}: {host:?} {device:?}");
        }
    }
    host.iter().map(|value| value.array().cloned()).collect()
}

fn f32s_of(values: &[f32], dims: &[usize]) -> Array {
    Array::from_slice(values, dims).unwrap()
}

fn i64s_of(values: &[i64]) -> Array {
    Array::from_slice(values, [values.len()]).unwrap()
}

fn words(values: &[&str]) -> Array {
    Array::from_strings(values.iter().map(|text| (*text).to_owned()).collect(), [values.len()]).unwrap()
}

#[track_caller]
fn refused(result: Result<Vec<Array>>) {
    assert!(result.is_err(), "{result:?}");
}

#[test]
fn softmax_of_old_versions_counts_axes_from_the_back() {
    let x = f32s_of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1, 2, 3]);
    for op in ["Softmax", "LogSoftmax", "Hardmax"] {
        let old = run(11, op, &[int("axis", -1)], std::slice::from_ref(&x), 1).unwrap();
        let new = run(13, op, &[int("axis", -1)], std::slice::from_ref(&x), 1).unwrap();
        assert_eq!(old[0].to_floats().unwrap(), new[0].to_floats().unwrap(), "{op}");
        assert!(run(11, op, &[int("axis", -4)], std::slice::from_ref(&x), 1).is_err());
    }
}

#[test]
fn values_are_no_deeper_than_a_list_in_an_optional_one() {
    let mut nodes = vec![node("Optional", &["x"], &["v0"], &[])];
    nodes.push(node("Optional", &["v0"], &["v1"], &[]));
    let x = port("x", ElementType::F32, &[1]);
    let nested = load(&model(18, &graph(&nodes, &[], std::slice::from_ref(&x), &[any("v1")]))).unwrap();
    assert!(nested.reference(&[("x", f32s_of(&[1.0], &[1]).into())]).is_err());
    let lists = [node("SequenceConstruct", &["x"], &["s"], &[]), node("SequenceConstruct", &["s"], &["t"], &[])];
    let nested = load(&model(18, &graph(&lists, &[], &[x], &[any("t")]))).unwrap();
    assert!(nested.reference(&[("x", f32s_of(&[1.0], &[1]).into())]).is_err());
}

#[test]
fn slices_name_an_axis_once() {
    let x = f32s_of(&[0.0; 8], &[4, 2]);
    let bounds = |values: &[i64]| i64s_of(values);
    refused(run(13, "Slice", &[], &[x, bounds(&[1, 1]), bounds(&[4, 4]), bounds(&[0, 0])], 1));
}

#[test]
fn tensors_in_files_and_raw_bytes_are_numbers() {
    let external = Message::default()
        .number(1, 3)
        .number(2, 8)
        .text(8, "w")
        .number(14, 1)
        .message(13, &Message::default().text(1, "location").text(2, "weights.bin"));
    let with = |constant: Message| model(18, &graph(&[], &[constant], &[], &[any("w")]));
    assert!(load(&with(external)).is_err());
    assert!(load(&with(tensor("w", ElementType::String, &[3], b"abc"))).is_err());
    let bytes = load(&with(tensor("w", ElementType::Bool, &[3], &[0, 7, 255]))).unwrap();
    assert_eq!(bytes.reference(&[]).unwrap()[0].array().unwrap().bytes(), [0, 1, 1]);
}

#[test]
fn sizes_from_outside_are_checked_before_anything_is_made() {
    let x = f32s_of(&[1.0, 2.0], &[2]);
    let huge = i64s_of(&[i64::MAX, i64::MAX]);
    refused(run(13, "Pad", &[], &[x.clone(), huge.clone()], 1));
    refused(run(13, "Pad", &[], &[x.clone(), i64s_of(&[1 << 40, 0])], 1));
    refused(run(13, "Pad", &[], &[x.clone(), i64s_of(&[1, 1]), f32s_of(&[], &[0])], 1));
    refused(run(18, "CenterCropPad", &[], &[x.clone(), i64s_of(&[i64::MAX])], 1));
    refused(run(18, "CenterCropPad", &[], &[x.clone(), i64s_of(&[i64::MIN])], 1));
    refused(run(13, "Tile", &[], &[x.clone(), i64s_of(&[1 << 40])], 1));
    refused(run(13, "Expand", &[], &[x.clone(), i64s_of(&vec![1; 100_000])], 1));
    refused(run(13, "Unsqueeze", &[], &[x.clone(), i64s_of(&(0..100_000).collect::<Vec<_>>())], 1));
    refused(run(13, "ConstantOfShape", &[], &[i64s_of(&[1 << 31, 1 << 31])], 1));
    let single = |value: i64| Array::from_slice(&[value], []).unwrap();
    refused(run(11, "Range", &[], &[single(0), single(i64::MAX), single(1)], 1));
    refused(run(11, "Range", &[], &[f32s_of(&[0.0], &[]), f32s_of(&[1e30], &[]), f32s_of(&[1.0], &[])], 1));
    refused(run(17, "HannWindow", &[], &[single(1 << 40)], 1));
    let scales = [x.clone(), f32s_of(&[], &[0]), f32s_of(&[1e12], &[1])];
    refused(run(13, "Resize", &[text("mode", "nearest")], &scales, 1));
    let scales = [x.clone(), f32s_of(&[], &[0]), f32s_of(&[1e-30], &[1])];
    refused(run(13, "Resize", &[text("mode", "linear")], &scales, 1));
    refused(run(17, "DFT", &[int("axis", 0)], &[f32s_of(&[0.0; 4], &[4, 1]), single(1 << 30)], 1));
    // Regression: a frame step of zero was treated as one.
    refused(run(17, "STFT", &[], &[f32s_of(&[0.0; 8], &[1, 8, 1]), single(0), f32s_of(&[1.0; 4], &[4])], 1));
}

#[test]
fn texts_are_bounded_as_well() {
    let word = tensor_text("value", "a text that is repeated");
    refused(run(13, "ConstantOfShape", &[word], &[i64s_of(&[1 << 30])], 1));
    refused(run(13, "Expand", &[], &[words(&["x"]), i64s_of(&[1 << 30])], 1));
    for op in ["Trilu", "ReverseSequence"] {
        let x = words(&["a", "b", "c", "d"]).reshape([2, 2]).unwrap();
        let second = if op == "Trilu" { i64s_of(&[0]) } else { i64s_of(&[1, 1]) };
        refused(run(14, op, &[], &[x, second], 1));
    }
    let hot = [i64s_of(&[0, 1]), Array::from_slice(&[2_i64], []).unwrap(), words(&["off", "on"])];
    refused(run(11, "OneHot", &[], &hot, 1));
    refused(run(13, "Less", &[], &[words(&["a"]), words(&["b"])], 1));
}

fn tensor_text(name: &str, text: &str) -> Message {
    let tensor = Message::default().number(1, 1).number(2, 8).text(6, text);
    Message::default().text(1, name).message(5, &tensor).number(20, 4)
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let x = f32s_of(&[1.0; 4], &[2, 2]);
    refused(run(13, "Gemm", &[], &[x.clone(), f32s_of(&[1.0, 2.0], &[2])], 1));
    let image = f32s_of(&[0.0; 4], &[1, 4, 1, 1]);
    refused(run(13, "DepthToSpace", &[int("blocksize", 1 << 33)], std::slice::from_ref(&image), 1));
    refused(run(13, "SpaceToDepth", &[int("blocksize", i64::MAX)], &[f32s_of(&[], &[1, 4, 0, 0])], 1));
    refused(run(18, "Split", &[int("num_outputs", 1 << 40)], &[f32s_of(&[1.0; 4], &[4])], 2));
    refused(run(13, "QuantizeLinear", &[], &[x.clone(), f32s_of(&[1.0], &[]), bytes_of(&[1, 2])], 1));
    refused(run(13, "DequantizeLinear", &[], &[bytes_of(&[1, 2]), f32s_of(&[1.0, 1.0], &[2]), bytes_of(&[1])], 1));
    refused(run(10, "MatMulInteger", &[], &[grid(2, 2), grid(2, 2), bytes_of(&[0]), bytes_of(&[])], 1));
    refused(run(12, "Einsum", &[text("equation", "i->ii")], &[f32s_of(&[1.0, 2.0], &[2])], 1));
    let cache = f32s_of(&[0.0; 8], &[1, 4, 2]);
    refused(run(24, "TensorScatter", &[], &[cache, f32s_of(&[1.0], &[1])], 1));
    let regions = [f32s_of(&[], &[1, 1, 0, 0]), f32s_of(&[0.0; 4], &[1, 4]), i64s_of(&[0])];
    refused(run(16, "RoiAlign", &[], &regions, 1));
    let places = [f32s_of(&[1.0], &[1, 1, 1, 1]), Array::from_slice(&[9_i64], [1, 1, 1, 1]).unwrap(), i64s_of(&[4])];
    refused(run(11, "MaxUnpool", &[ints("kernel_shape", &[2, 2])], &places, 1));
    refused(run(13, "Concat", &[int("axis", 0)], &[], 1));
    refused(run(13, "And", &[], &[bytes_of(&[1]), bytes_of(&[1])], 1));
    refused(run(11, "Compress", &[], &[x, bytes_of(&[1])], 1));
}

fn bytes_of(values: &[u8]) -> Array {
    Array::from_slice(values, [values.len()]).unwrap()
}

fn grid(rows: usize, columns: usize) -> Array {
    Array::from_slice(&vec![1_u8; rows * columns], [rows, columns]).unwrap()
}

#[test]
fn windows_of_any_size_end_soon() {
    let image = f32s_of(&[1.0; 4], &[1, 1, 2, 2]);
    let kernel = [ints("kernel_shape", &[1 << 20, 1 << 20]), ints("pads", &[1 << 20; 4])];
    for op in ["MaxPool", "AveragePool", "LpPool"] {
        refused(run(12, op, &kernel, std::slice::from_ref(&image), 1));
    }
    let weights = f32s_of(&[1.0; 4], &[1, 1, 2, 2]);
    for attribute in ["pads", "strides", "dilations"] {
        let list = ints(attribute, if attribute == "pads" { &[i64::MAX; 4] } else { &[i64::MAX; 2] });
        refused(run(11, "Conv", std::slice::from_ref(&list), &[image.clone(), weights.clone()], 1));
        refused(run(11, "ConvTranspose", &[list], &[image.clone(), weights.clone()], 1));
    }
    let region = [image, f32s_of(&[0.0, 0.0, 1.0, 1.0], &[1, 4]), i64s_of(&[0])];
    refused(run(16, "RoiAlign", &[int("sampling_ratio", 1 << 30)], &region, 1));
}

#[test]
fn cells_check_their_first_state() {
    let (x, w, r) = (f32s_of(&[0.1; 6], &[2, 3, 1]), f32s_of(&[0.1; 2], &[1, 2, 1]), f32s_of(&[0.1; 4], &[1, 2, 2]));
    let attributes = [int("hidden_size", 2), int("layout", 1)];
    let names = ["x0", "x1", "x2", "", "", "x3"];
    let with = |state: &Array| {
        let arrays = [&x, &w, &r, state];
        let sizes = |array: &Array| array.dims().iter().map(|dim| *dim as i64).collect::<Vec<_>>();
        let ports = ["x0", "x1", "x2", "x3"]
            .iter()
            .zip(arrays)
            .map(|(name, array)| port(name, ElementType::F32, &sizes(array)));
        let ports: Vec<Message> = ports.collect();
        let network =
            load(&model(14, &graph(&[node("RNN", &names, &["y"], &attributes)], &[], &ports, &[any("y")]))).unwrap();
        let given: Vec<(&str, Value)> =
            ["x0", "x1", "x2", "x3"].into_iter().zip(arrays.map(|array| array.clone().into())).collect();
        network.reference(&given)
    };
    assert!(with(&f32s_of(&[0.5; 4], &[2, 1, 2])).is_ok());
    assert!(with(&f32s_of(&[0.5; 4], &[4])).is_err());
    assert!(with(&f32s_of(&[0.5; 2], &[1, 1, 2])).is_err());
}

#[test]
fn activations_take_as_many_numbers_as_they_have() {
    // Tanh takes no parameter, so the one number belongs to the second function.
    let x = f32s_of(&[-1.0], &[1, 1, 1]);
    let (w, r) = (f32s_of(&[1.0, 1.0], &[2, 1, 1]), f32s_of(&[0.0, 0.0], &[2, 1, 1]));
    let attributes = [
        int("hidden_size", 1),
        text("direction", "bidirectional"),
        texts("activations", &["Tanh", "LeakyRelu"]),
        floats("activation_alpha", &[0.5]),
    ];
    let y = run(14, "RNN", &attributes, &[x, w, r], 1).unwrap();
    assert_eq!(y[0].to_floats().unwrap()[1], -0.5);
}

#[test]
fn integers_are_no_floats() {
    let close = [(1_i64 << 53) + 1, 1 << 53];
    assert_eq!(run(13, "ArgMax", &[], &[i64s_of(&close)], 1).unwrap()[0].to_i64s().unwrap(), [0]);
    let k = i64s_of(&[1]);
    assert_eq!(run(11, "TopK", &[], &[i64s_of(&close), k], 2).unwrap()[0].to_i64s().unwrap(), [close[0]]);
    assert_eq!(run(11, "Unique", &[], &[i64s_of(&close)], 1).unwrap()[0].to_i64s().unwrap(), [close[1], close[0]]);
    let row = i64s_of(&[1 << 40, 1]).reshape([1, 2]).unwrap();
    let column = i64s_of(&[1 << 20, 1]).reshape([2, 1]).unwrap();
    assert_eq!(
        run(13, "MatMul", &[], &[row.clone(), column.clone()], 1).unwrap()[0].to_i64s().unwrap(),
        [(1 << 60) + 1]
    );
    let product = run(12, "Einsum", &[text("equation", "ij,jk->ik")], &[row, column], 1).unwrap();
    assert_eq!(product[0].to_i64s().unwrap(), [(1 << 60) + 1]);
    let power = run(15, "Pow", &[], &[i64s_of(&[3]), i64s_of(&[1000])], 1).unwrap();
    assert_eq!(power[0].to_i64s().unwrap(), [3_i64.wrapping_pow(1000)]);
    let large = Array::from_slice(&[u64::MAX], [1]).unwrap();
    assert_eq!(run(14, "Mul", &[], &[large.clone(), large], 1).unwrap()[0].as_slice::<u64>().unwrap(), [1]);
}

#[test]
fn minus_zero_is_zero_once() {
    let made = run(11, "Unique", &[], &[f32s_of(&[0.0, -0.0, 1.0, -0.0], &[4])], 1).unwrap();
    assert_eq!(made[0].len(), 2);
}

#[test]
fn a_transposed_convolution_cuts_more_in_front_where_its_shape_is_given() {
    // Three pixels, stride 2 and a kernel of 2 make six pixels. The first one is cut.
    let (x, w) = (f32s_of(&[1.0, 2.0, 3.0], &[1, 1, 3]), f32s_of(&[1.0, 10.0], &[1, 1, 2]));
    let attributes = [ints("strides", &[2]), ints("output_shape", &[5])];
    let y = run(11, "ConvTranspose", &attributes, &[x, w], 1).unwrap();
    assert_eq!(y[0].to_floats().unwrap(), [10.0, 2.0, 20.0, 3.0, 30.0]);
}

#[test]
fn dequantised_numbers_have_the_type_that_is_asked_for() {
    let attributes = [int("output_dtype", i64::from(ElementType::F16.code()))];
    let y = run(23, "DequantizeLinear", &attributes, &[bytes_of(&[3]), f32s_of(&[0.5], &[])], 1).unwrap();
    assert_eq!((y[0].kind(), y[0].to_floats().unwrap()), (ElementType::F16, vec![1.5]));
}

#[test]
fn functions_are_told_apart_by_their_overload() {
    let function = |overload: &str, op: &str, twice: bool| {
        let mut function = Message::default().text(1, "f").text(10, "own").text(13, overload).text(4, "a").text(5, "b");
        function = function.message(7, &node(op, &["a"], &["b"], &[]));
        if twice {
            function = function.message(7, &node(op, &["a"], &["b"], &[]));
        }
        function.message(9, &opset("", 18))
    };
    let call = |overload: &str| node("f", &["x"], &["y"], &[]).text(7, "own").text(8, overload);
    let with = |overload: &str, twice: bool| {
        let graph = graph(&[call(overload)], &[], &[port("x", ElementType::F32, &[1])], &[any("y")]);
        let model = model(18, &graph).message(8, &opset("own", 1));
        load(&model.message(25, &function("minus", "Neg", false)).message(25, &function("plus", "Abs", twice)))
    };
    let run = |network: Network| network.reference(&[("x", f32s_of(&[-2.0], &[1]).into())]).unwrap();
    assert_eq!(run(with("minus", false).unwrap())[0].array().unwrap().to_floats().unwrap(), [2.0]);
    assert_eq!(run(with("plus", false).unwrap())[0].array().unwrap().to_floats().unwrap(), [2.0]);
    assert!(with("other", false).is_err(), "there is no such function");
    assert!(with("plus", true).is_err(), "a value is defined twice");
}

#[test]
fn functions_and_graphs_nest_within_one_bound() {
    // Each function's `If` contains a call of the next function.
    let mut whole = Message::default().number(1, 9).message(8, &opset("", 18)).message(8, &opset("own", 1));
    let call = |level: usize, input: &str| node(&format!("f{level}"), &[input], &["r"], &[]).text(7, "own");
    for level in 0..30 {
        let inner = match level {
            29 => node("Identity", &["a"], &["r"], &[]),
            level => call(level + 1, "a"),
        };
        let body = graph(&[inner], &[], &[], &[any("r")]);
        let other = graph(&[node("Identity", &["a"], &["s"], &[])], &[], &[], &[any("s")]);
        let choice = node("If", &["c"], &["b"], &[graph_of("then_branch", &body), graph_of("else_branch", &other)]);
        let truth = node("Constant", &[], &["c"], &[tensor_attribute()]);
        let function = Message::default().text(1, &format!("f{level}")).text(10, "own").text(4, "a").text(5, "b");
        let function =
            function.message(7, &truth).message(7, &choice).message(9, &opset("", 18)).message(9, &opset("own", 1));
        whole = whole.message(25, &function);
    }
    let graph = graph(&[call(0, "x")], &[], &[port("x", ElementType::F32, &[1])], &[any("r")]);
    let error = load(&whole.message(7, &graph)).unwrap_err();
    assert!(error.to_string().contains("graphs within graphs"), "{error}");
}

fn tensor_attribute() -> Message {
    let truth = Message::default().number(2, 9).bytes(9, &[1]);
    Message::default().text(1, "value").message(5, &truth).number(20, 4)
}

#[test]
fn loops_of_loops_share_their_turns() {
    let forever = |inner: Option<Message>| {
        let mut nodes = vec![node("Identity", &["go"], &["on"], &[])];
        nodes.extend(inner);
        graph(&nodes, &[], &[port("i", ElementType::I64, &[]), port("go", ElementType::Bool, &[])], &[any("on")])
    };
    let inner = node("Loop", &["many", "go"], &[], &[graph_of("body", &forever(None))]);
    let with = |inner: Option<Message>| {
        let outer = node("Loop", &["many", ""], &[], &[graph_of("body", &forever(inner))]);
        let nodes = [outer, node("Identity", &["many"], &["y"], &[])];
        model(18, &graph(&nodes, &[i64s("many", &[], &[32])], &[], &[any("y")])).0
    };
    // With lowered bounds a run has 64 iterations: 32 fit, 32 times 32 do not.
    assert_eq!(panoply_models::fuzzing::model(&with(None)), (true, true));
    assert_eq!(panoply_models::fuzzing::model(&with(Some(inner))), (true, false));
}

#[test]
fn weights_are_bounded_by_what_the_file_holds() {
    // A sparse tensor of a few bytes that claims two gigabytes.
    let values = tensor("w", ElementType::F32, &[1], &1.0_f32.to_le_bytes());
    let places = i64s("", &[1], &[0]);
    let sparse = Message::default().message(1, &values).message(2, &places).number(3, 1 << 29);
    let graph = graph(&[], &[], &[], &[any("w")]).message(15, &sparse);
    assert!(matches!(load(&model(18, &graph)), Err(Error::Limit { .. })));
}

/// Regression: the expansion of a file of some megabytes took hundreds of gigabytes.
#[test]
fn functions_written_out_are_bounded_by_what_the_file_holds() {
    let with = |calls: usize, inner: &Message, opset_name: &str| {
        let function = Message::default().text(1, "f").text(10, "own").text(4, "a").text(5, "b");
        let function = function.message(7, inner).message(9, &opset("", 18)).message(9, &opset(opset_name, 1));
        let call = |number: usize| node("f", &["x"], &[&format!("y{number}")], &[]).text(7, "own");
        let calls: Vec<Message> = (0..calls).map(call).collect();
        let graph = graph(&calls, &[], &[port("x", ElementType::F32, &[1])], &[any("y0")]);
        load(&model(18, &graph).message(8, &opset("own", 1)).message(25, &function))
    };
    let long = "n".repeat(100_000);
    let named = node("Identity", &["a"], &["b"], &[]).text(3, &long);
    let wide = node("Sum", &vec!["a"; 20_000], &["b"], &[]);
    let plain = node("Identity", &["a"], &["b"], &[]);
    for inner in [&named, &wide] {
        assert!(with(10, inner, "own").is_ok());
        assert!(matches!(with(2_000, inner, "own").unwrap_err(), Error::Node { cause, .. }
            if matches!(*cause, Error::Limit { .. })));
    }
    assert!(with(2_000, &plain, "own").is_ok() && with(2_000, &plain, &long).is_err());
}

#[test]
fn names_and_tensors_are_counted() {
    let mut bytes = Vec::new();
    // Empty initializers take two bytes each in the file and hundreds in memory.
    for _ in 0..(1 << 22) + 1 {
        bytes.extend([0x2a, 0x00]);
    }
    assert!(matches!(load(&Message::default().bytes(7, &bytes)), Err(Error::Limit { .. })));
}

#[test]
fn inputs_are_checked_by_name_type_and_shape() {
    let graph = graph(&[node("Relu", &["x"], &["y"], &[])], &[], &[port("x", ElementType::F32, &[-1, 2])], &[any("y")]);
    let network = load(&model(18, &graph)).unwrap();
    let x = f32s_of(&[1.0, 2.0], &[1, 2]);
    assert!(network.reference(&[("x", x.clone().into())]).is_ok());
    for wrong in [
        vec![("z", x.clone().into())],
        vec![],
        vec![("x", x.clone().into()), ("x", x.clone().into())],
        vec![("x", i64s_of(&[1, 2]).reshape([1, 2]).unwrap().into())],
        vec![("x", f32s_of(&[1.0, 2.0, 3.0], &[1, 3]).into())],
        vec![("x", Value::Optional(None))],
        vec![("x", Value::Sequence(vec![Value::Array(x.clone())].into()))],
    ] {
        assert!(network.reference(&wrong).is_err(), "{wrong:?}");
    }
    assert!(load(&model(999, &graph)).unwrap_err().is_unsupported());
}

#[test]
fn branches_by_ever_new_outcomes_keep_little() {
    // `NonZero` finds a different number of elements each time.
    let graph = graph(
        &[node("NonZero", &["x"], &["p"], &[]), node("Relu", &["x"], &["y"], &[])],
        &[],
        &[port("x", ElementType::F32, &[-1])],
        &[any("p"), any("y")],
    );
    let network = load(&model(18, &graph)).unwrap();
    for len in 1..300 {
        let x = f32s_of(&vec![1.0; len], &[len]);
        let made = network.infer_values(runtime(), &[("x", x.into())], &RunOptions::default()).unwrap();
        assert_eq!(made[0].array().unwrap().dims(), [1, len]);
    }
}

/// Regression: loops counted up to any claimed size of arrays that have no elements.
#[test]
fn arrays_without_elements_end_soon_however_large_they_claim_to_be() {
    let claim = |dims: &[usize]| f32s_of(&[], dims);
    let same = |made: Result<Vec<Array>>, dims: &[usize]| assert_eq!(made.unwrap()[0].dims(), dims);
    let (many, empty) = (1 << 16, [1 << 32, 0]);
    same(run(13, "LRN", &[int("size", 1 << 16)], &[claim(&[many, many, 0])], 1), &[many, many, 0]);
    same(run(13, "Softmax", &[], &[claim(&empty)], 1), &empty);
    same(run(13, "LpNormalization", &[], &[claim(&empty)], 1), &empty);
    same(run(14, "CumSum", &[], &[claim(&empty), i64s_of(&[1])], 1), &empty);
    same(run(13, "Concat", &[int("axis", 1)], &vec![claim(&empty); 100], 1), &empty);
    let (images, weights) = (claim(&[0, 1, 1 << 30]), f32s_of(&vec![1.0; 1 << 12], &[1, 1, 1 << 12]));
    same(run(11, "ConvTranspose", &[ints("output_shape", &[1])], &[images, weights], 1), &[0, 1, 1]);
    let rows = run(11, "Unique", &[int("axis", 1)], &[claim(&[many, many, 0])], 1);
    same(rows, &[many, 1, 0]);
    refused(run(11, "TopK", &[], &[claim(&[0, 1 << 32]), i64s_of(&[1])], 2));
    let nothing = claim(&[1, 0, 0]);
    refused(run(14, "GRU", &[int("hidden_size", 0)], &[claim(&[1, 1 << 32, 0]), nothing.clone(), nothing], 1));
}

#[test]
fn lists_are_bounded_though_their_arrays_are_empty() {
    let count = (1 << 20) + 1;
    refused(run(13, "Split", &[], &[f32s_of(&[], &[0]), i64s_of(&vec![0; count])], 1));
    let nodes = [node("SplitToSequence", &["x"], &["s"], &[]), node("SequenceLength", &["s"], &["y"], &[])];
    let graph = graph(&nodes, &[], &[port("x", ElementType::F32, &[-1, 0])], &[any("y")]);
    let network = load(&model(18, &graph)).unwrap();
    let long = |len: usize| network.reference(&[("x", f32s_of(&[], &[len, 0]).into())]);
    assert_eq!(long(3).unwrap()[0].array().unwrap().to_i64s().unwrap(), [3]);
    assert!(matches!(long(count).unwrap_err(), Error::Node { cause, .. } if matches!(*cause, Error::Limit { .. })));
    // The result has an entry per axis: many times the bytes of the mask.
    let mut dims = [1; 32];
    dims[0] = (1 << 22) + 1;
    let mask = Array::from_slice(&vec![1_u8; dims[0]], dims).unwrap();
    refused(run(13, "NonZero", &[], &[mask], 1));
}

#[test]
fn sums_over_many_operands_are_bounded_together() {
    let with = |operands: usize| {
        let names: Vec<&str> = ["a", "b"].into_iter().cycle().take(operands).collect();
        let terms: Vec<&str> = ["i", "j"].into_iter().cycle().take(operands).collect();
        let sum = node("Einsum", &names, &["y"], &[text("equation", &format!("{}->", terms.join(",")))]);
        let ports = ["a", "b"].map(|name| port(name, ElementType::F32, &[512]));
        panoply_models::fuzzing::model(&model(12, &graph(&[sum], &[], &ports, &[any("y")])).0)
    };
    assert_eq!(with(4), (true, true));
    assert_eq!(with(64), (true, false));
}

#[test]
fn pads_that_cancel_each_other_are_sizes_as_well() {
    let x = f32s_of(&[1.0, 2.0], &[2]);
    refused(run(13, "Pad", &[], &[x.clone(), i64s_of(&[-i64::MAX, i64::MAX])], 1));
    refused(run(13, "Pad", &[], &[x.clone(), i64s_of(&[i64::MIN, i64::MAX])], 1));
    let moved = run(13, "Pad", &[], &[x, i64s_of(&[-1, 1])], 1).unwrap();
    assert_eq!(moved[0].to_floats().unwrap(), [2.0, 0.0]);
}

/// Regression: a kernel with fewer dimensions than the image was indexed beyond its end.
#[test]
fn a_transposed_convolution_has_a_kernel_for_every_dimension() {
    let (x, w) = (f32s_of(&[1.0; 4], &[1, 1, 2, 2]), f32s_of(&[1.0; 2], &[1, 1, 2]));
    refused(run(11, "ConvTranspose", &[], &[x, w], 1));
}

/// Regression: the result was minus infinity instead of NaN.
#[test]
fn the_sum_of_no_number_is_none() {
    let nodes = [node("ReduceLogSumExp", &["x"], &["y"], &[int("keepdims", 0)])];
    let network = load(&model(18, &graph(&nodes, &[], &[port("x", ElementType::F32, &[2])], &[any("y")]))).unwrap();
    for x in [[f32::NAN, f32::NAN], [f32::NAN, f32::INFINITY], [1.0, f32::NAN]] {
        let made = network.reference(&[("x", f32s_of(&x, &[2]).into())]).unwrap();
        assert!(made[0].array().unwrap().to_floats().unwrap()[0].is_nan(), "{x:?}");
    }
}

/// Long chains of `Identity` and products of the last value grow neither the stack nor the time.
#[test]
fn long_chains_that_change_nothing_are_loaded_at_once() {
    const CHAIN: usize = 50_000;
    let name = |place: usize| format!("v{place}");
    let mut nodes: Vec<Message> =
        (0..CHAIN).map(|place| node("Identity", &[&name(place)], &[&name(place + 1)], &[])).collect();
    let last = name(CHAIN);
    nodes.extend((0..CHAIN).map(|place| node("Mul", &[&last, &last], &[&format!("p{place}")], &[])));
    let ports = [port("v0", ElementType::F32, &[1])];
    let network = load(&model(18, &graph(&nodes, &[], &ports, &[any("p0")]))).unwrap();
    let made = network.reference(&[("v0", f32s_of(&[3.0], &[1]).into())]).unwrap();
    assert_eq!(made[0].array().unwrap().as_slice::<f32>().unwrap(), [9.0]);
}

/// Regression: positions exactly between two elements were rounded in the wrong number type.
#[test]
fn places_in_a_region_are_those_of_its_numbers() {
    let cases: [(&str, [f32; 2], usize, &[f32]); 5] = [
        ("ceil", [0.4, 0.67], 6, &[2.0, 3.0, 3.0, 4.0]),
        ("floor", [0.1, 1.0], 3, &[0.0, 0.0, 1.0, 1.0]),
        ("round_prefer_floor", [0.3, 0.9], 11, &[3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, 7.0, 7.0, 8.0, 8.0, 9.0]),
        ("round_prefer_floor", [0.27, 1.0], 6, &[1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 5.0, -5.0]),
        ("round_prefer_ceil", [0.2, 1.0], 8, &[1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, -5.0]),
    ];
    for (nearest, [start, end], len, expected) in cases {
        let x: Vec<f32> = (0..len).map(|place| place as f32).collect();
        let roi = f32s_of(&[0.0, start, 1.0, end], &[4]);
        let inputs = [f32s_of(&x, &[1, len]), roi, f32s_of(&[], &[0]), i64s_of(&[1, expected.len() as i64])];
        let coordinates = text("coordinate_transformation_mode", "tf_crop_and_resize");
        let attributes =
            [text("mode", "nearest"), text("nearest_mode", nearest), coordinates, float("extrapolation_value", -5.0)];
        let made = run(18, "Resize", &attributes, &inputs, 1).unwrap();
        assert_eq!(made[0].as_slice::<f32>().unwrap(), expected, "{nearest} {start} {end}");
    }
}

/// A layer with a coupled forget gate and clipped sums, compared with ONNX Runtime's answers.
#[test]
fn layers_forget_what_the_input_replaces() {
    let numbers = |dims: &[usize], seed: usize| {
        let count = dims.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|at| (((at * 37 + seed * 11) % 23) as f32 - 11.0) / 16.0).collect();
        f32s_of(&values, dims)
    };
    let mut inputs = vec![numbers(&[3, 2, 2], 1), numbers(&[1, 8, 2], 2), numbers(&[1, 8, 2], 3)];
    inputs.push(numbers(&[1, 16], 4));
    let attributes = [int("hidden_size", 2), int("input_forget", 1)];
    let plain = run(14, "LSTM", &attributes, &inputs, 3).unwrap();
    let clipped = run(14, "LSTM", &[&attributes[..], &[float("clip", 0.5)]].concat(), &inputs, 3).unwrap();
    inputs.extend([Array::from_slice(&[3_i32, 3], [2]).unwrap(), f32s_of(&[0.0; 4], &[1, 2, 2])]);
    inputs.push(f32s_of(&[2.0, -2.0, 3.0, 1.0], &[1, 2, 2]));
    // Clipping applies to the sums of gates only, so cells beyond the bound are kept.
    let kept = run(14, "LSTM", &[int("hidden_size", 2), float("clip", 0.2)], &inputs, 3).unwrap();
    inputs[6] = f32s_of(&[0.0; 4], &[1, 2, 2]);
    inputs.push(numbers(&[1, 6], 5));
    let peeping = run(14, "LSTM", &attributes, &inputs, 3).unwrap();
    let expected = [
        (
            plain,
            [0.056654278, -0.345946014, -0.016184740, -0.374392658],
            [0.366802782, -0.746816933, -0.055020150, -0.655904353],
        ),
        (
            clipped,
            [0.089945190, -0.212248087, -0.005731358, -0.236889750],
            [0.242907107, -0.399889410, -0.015181936, -0.400726825],
        ),
        (
            peeping,
            [0.061244629, -0.405144989, -0.013640415, -0.412423998],
            [0.374533206, -0.789529085, -0.046593808, -0.673614502],
        ),
        (
            kept,
            [0.128442749, -0.246107027, 0.10072235, -0.005035575],
            [0.293467432, -0.519608319, 0.227594942, -0.009158611],
        ),
    ];
    for (made, hidden, cells) in expected {
        for (array, expected) in [(&made[1], hidden), (&made[2], cells)] {
            let pairs = array.to_floats().unwrap().into_iter().zip(expected);
            assert!(pairs.into_iter().all(|(a, b): (f64, f64)| (a - b).abs() < 1e-6), "{array:?} {expected:?}");
        }
    }
}
