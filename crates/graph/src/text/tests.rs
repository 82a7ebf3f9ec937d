//! Graphs survive the round trip, and every fault in a text is reported with its line.

use panoply_conformance::random_graph::{RandomGraph, random_graph};
use panoply_conformance::reference::reference;
use panoply_core::Operation;
use panoply_core::op::graph::RunGraph;

use super::*;

const MLP: &str = "
graph mlp            # a comment
symbol batch
input x f32 [batch, 8]
const w1 f32 [8, 4] = random(1)
const b1 f32 [4] = [0.5, -1, 2e-3, 0]
h = matmul(x, w1)
h1 = add(h, b1)
a = relu(h1)
t = permute(a, order=[1, 0])
flat = reshape(t, to=[4*batch])
m = map(flat) { %0 = x0; %1 = 2; %2 = mul(%0, %1); %3 = cast_f16(%2) }
s = softmax(a, axis=1)
r = reduce(s, by=mean, axes=[1], keep=1)
q = reshape(s, to=[1, batch, 4])
z = attention(q, q, q, scale=0.5, causal=1)
o = transpose(z, order=[2, 0, 1])
output m
output o
output y = r
";

#[test]
fn a_graph_is_read_and_written_again() {
    let graph = parse(MLP).unwrap();
    assert_eq!((graph.name(), graph.outputs().len(), graph.nodes().len()), ("mlp", 3, 14));
    let text = write(&graph).unwrap();
    let again = parse(&text).unwrap();
    assert_eq!(write(&again).unwrap(), text);
    assert_eq!(again.hash(), graph.hash());
}

#[test]
fn random_graphs_survive_the_round_trip() {
    for seed in 0..300 {
        let RandomGraph { op, .. } = random_graph(seed);
        let again = parse(&write(op.graph()).unwrap()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(again.hash(), op.graph().hash(), "seed {seed}");
        let inputs: Vec<_> = op.inputs().iter().collect();
        let run = |op: RunGraph| reference(&op.into_op().unwrap()).unwrap();
        let (first, second) = (run(op.clone()), run(RunGraph::new(&again, &inputs)));
        for (a, b) in first.tensors().zip(second.tensors()) {
            let (a, b) = (a.contiguous().unwrap(), b.contiguous().unwrap());
            assert_eq!(a.as_bytes().unwrap(), b.as_bytes().unwrap(), "seed {seed}");
        }
    }
}

#[test]
fn faults_are_told_with_their_lines() {
    let refused = |text: &str| parse(text).unwrap_err();
    for (text, line, part) in [
        ("input x f32 [3]\ny = add(x, z)\nz = relu(y)\noutput y", 2, "line 3"),
        ("input x f32 [3]\ny = relu(y)\noutput y", 2, "cycles"),
        ("input x f32 [3]\ny = relu(q)\noutput y", 2, "no node `q`"),
        ("input x f32 [3]\ninput y f32 [4]\nz = add(x, y)\noutput z", 3, "broadcast"),
        ("input x f33 [3]", 1, "element type"),
        ("input x f32 [batch]", 1, "no symbol"),
        ("input x f32 [3\n", 1, "expected"),
        ("x = relu", 1, "expected `(`"),
        ("const w f32 [2] = [1, 2, 3]", 1, "got more"),
        ("const w f32 [2] = [1]", 1, "got 1"),
        ("const w f32 [99999999, 99999999] = fill(1)", 1, "bytes of constants"),
        ("const w f32 [2] = hex(00)", 1, "16 hexadecimal"),
        ("input x f32 [3]\ny = frobnicate(x)\n", 2, "no op"),
        ("input x f32 [3]\ny = relu(x, x)\n", 2, "1 operands"),
        ("input x f32 [3]\ny = relu(x, deep=1)\n", 2, "no argument `deep`"),
        ("input x f32 [3]\ny = map(x) { %0 = x0; %2 = neg(%0) }\n", 2, "%1"),
        ("input x f32 [3]\ny = map(x) { %0 = x5 }\n", 2, "inputs"),
        ("input x f32 [3] 7", 1, "end of the line"),
        ("input x f32 [3]\ninput x f32 [3]", 2, "no other"),
        ("input x f32 [3]\n", 1, "at least one"),
        ("input x f32 [1]\nsymbol n\ny = broadcast(x, to=[n])\noutput y", 2, "the symbol n: expected an input"),
        ("input x f32 [0]\nsymbol n\ny = reshape(x, to=[0, n])\nz = relu(x)\noutput z", 2, "y = reshape(x: f32[0])"),
        ("symbol n\ninput x f32 [2*n]\noutput x", 1, "n by itself"),
        ("", 1, "at least one"),
        ("graph a\ngraph b", 2, "once"),
        ("symbol n\ngraph a\ninput x f32 [n]\noutput x", 2, "once"),
        ("input x f32 [3]\ny = map(x) { %0 = x0 garbage }\noutput y", 2, "garbage"),
        ("input x f32 [3]\ny = map(x) { %0 = 1 2 3 }\noutput y", 2, "after %0"),
        ("input x f32 [3]\ny = map(x) { %0 = x0; %1 = neg(%0) %0 }\noutput y", 2, "after %1"),
        ("input x f32 [1, 1, 4, 4]\ny = pool2d(x, kernel=[2, 2], by=avg)\noutput y", 2, "max or average"),
        ("input x f32 [3, 3]\ny = softmax(x, axis=0, axis=1)\noutput y", 2, "`axis=` once"),
        ("input x f32 [4]\ny = reshape(x, to=[2, 2], to=[4])\noutput y", 2, "`to=` once"),
        ("input x f32 [3, 3]\ny = softmax(x, log=2)\noutput y", 2, "0 or 1"),
        ("const w u8 [2] = [300, -5]", 1, "u8 holds, got 300"),
        ("const w u8 [1] = [-5]", 1, "got -5"),
        ("const w i32 [1] = [nan]", 1, "got NaN"),
        ("const w i32 [1] = [1e400]", 1, "got inf"),
        ("const w i32 [1] = [1.7]", 1, "got 1.7"),
        ("const w u32 [2] = fill(4294967296)", 1, "got 4294967296"),
        ("const w u32 [2] = random(1)", 1, "u32 holds"),
        ("const w f16 [1] = [1e6]", 1, "f16 holds"),
        ("input x f32 [3]\noutput = frobnicate(x)", 2, "there are matmul"),
        ("input x f33 [3]", 1, "f32, "),
        ("input x f32 [2, 3]\nh = matmul(x, x)\noutput h", 2, "h = matmul(x: f32[2, 3]"),
        ("input x f32 [3]\ny = map(x) { %0 = x0; %1 = frob(%0) }\noutput y", 2, "there are "),
    ] {
        let error = refused(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.reason.contains(part), "{text:?}: {error}");
    }
}

/// Words that begin statements are valid names.
#[test]
fn a_node_may_be_called_output() {
    let graph = parse("input x f32 [3]\noutput = relu(x)\noutput y = output").unwrap();
    assert_eq!(graph.node_name(1), "output");
}

/// The message about an unknown op lists only known names.
#[test]
fn every_op_that_is_listed_is_known() {
    for op in super::ops::op_names() {
        let error = parse(&format!("input x f32 [3]\ny = {op}(x, x, x, x, x)\noutput y")).unwrap_err();
        assert!(!error.reason.contains("there is no op"), "{op}: {error}");
    }
}

/// The document has every op, and its example is a valid graph.
#[test]
fn the_document_is_complete() {
    let document = include_str!("../../../../docs/graph-text.md");
    let example = document.split("```").nth(1).and_then(|block| block.strip_prefix("text\n")).unwrap();
    assert_eq!(parse(example).unwrap().outputs().len(), 2);
    let words: Vec<&str> = document.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').collect();
    for op in super::ops::op_names() {
        assert!(words.contains(&op), "{op}");
    }
    assert!(document.contains(&super::ops::dtype_names()), "{}", super::ops::dtype_names());
}

#[test]
fn values_that_fit_are_kept() {
    let graph = parse("const w i8 [3] = [-128, 127, -0]\nconst v f32 [3] = [inf, NaN, 0.1]\noutput w\noutput v");
    let text = write(&graph.unwrap()).unwrap();
    assert!(text.contains("[-128, 127, 0]") && text.contains("[inf, NaN, 0.1"), "{text}");
}

/// However a text is cut, duplicated or overwritten, the reader returns a result.
#[test]
fn damaged_texts_are_refused_or_read() {
    let mut state = 1_u64;
    for _ in 0..20_000 {
        let mut bytes = MLP.as_bytes().to_vec();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 33) as usize % bytes.len().max(1);
            if bytes.is_empty() {
                break;
            }
            match state >> 61 {
                0..3 => bytes[place] = b"()[]{}=,;%#-9.x \n*"[(state >> 13) as usize % 18],
                3..5 => {
                    bytes.remove(place);
                }
                5 => bytes.truncate(place.max(1)),
                _ => bytes.insert(place, b"0123456789abcdef"[(state >> 17) as usize % 16]),
            }
        }
        if let Ok(text) = String::from_utf8(bytes) {
            // A dimension may become large: constants are bounded, so memory is too.
            let _ = parse(&text);
        }
    }
}
