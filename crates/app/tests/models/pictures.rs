//! `panoply infer` on pictures: several at once, their preparation, labels, and profiles.

use super::*;
use panoply::inputs::picture::Picture;

/// A dimension of a model's input.
enum Dim {
    Open(&'static str),
    Fixed(u8),
}

/// A classifier of 2 × 2 pixels with three classes: the means of red, green and blue.
fn classifier(batch: Dim) -> Vec<u8> {
    let dim = |dim: &Dim| match dim {
        Dim::Open(name) => field(1, &field(2, name.as_bytes())),
        Dim::Fixed(size) => field(1, &number(1, *size)),
    };
    let port = |name: &str, dims: &[Dim]| {
        let tensor = [number(1, 1), field(2, &dims.iter().flat_map(dim).collect::<Vec<_>>())].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let node = |name: &str, op: &str, input: &str, output: &str| {
        let ports = [field(1, input.as_bytes()), field(2, output.as_bytes())].concat();
        field(1, &[ports, field(3, name.as_bytes()), field(4, op.as_bytes())].concat())
    };
    let graph = [
        node("mean", "GlobalAveragePool", "x", "p"),
        node("row", "Flatten", "p", "f"),
        node("positive", "Relu", "f", "y"),
        field(11, &port("x", &[batch, Dim::Fixed(3), Dim::Fixed(2), Dim::Fixed(2)])),
        field(12, &port("y", &[Dim::Open("n"), Dim::Fixed(3)])),
    ];
    [number(1, 9), field(7, &graph.concat()), field(8, &number(2, 11))].concat()
}

/// A folder with a classifier and pictures of one colour each.
fn gallery(name: &str, batch: Dim) -> (PathBuf, [String; 3]) {
    let folder = folder(name);
    std::fs::write(folder.join("colours.onnx"), classifier(batch)).unwrap();
    for (file, colour) in [("red.png", [255, 0, 0]), ("blue.png", [0, 0, 255])] {
        let picture = Picture::from_rgb(4, 3, colour.repeat(12)).unwrap();
        std::fs::write(folder.join(file), picture.encode(false).unwrap()).unwrap();
    }
    let path = |file: &str| text(&folder.join(file)).to_owned();
    let paths = [path("colours.onnx"), path("red.png"), path("blue.png")];
    (folder, paths)
}

fn found(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn several_pictures_run_as_a_batch_where_the_model_takes_one() {
    for (name, dim, batch) in [("batch", Dim::Open("n"), 2), ("single", Dim::Fixed(1), 1)] {
        let (folder, [model, red, blue]) = gallery(name, dim);
        let output = format!("y={}", text(&folder.join("y.npy")));
        let pictures = ["infer", &model, "--image", &red, "--image", &blue, "--normalise", "unit", "--output", &output];
        let seen = found(&run(&[&pictures[..], &["--json"]].concat()));
        assert_eq!(seen["batch"], batch, "{seen}");
        for (at, file, class) in [(0, &red, 0), (1, &blue, 2)] {
            assert_eq!(seen["pictures"][at]["file"], file.as_str(), "{seen}");
            assert_eq!(seen["pictures"][at]["classes"][0]["class"], class, "{seen}");
        }
        let prepared = &seen["preprocessing"];
        let sizes = [&prepared["width"], &prepared["height"], &prepared["channels"]].map(|size| size.as_u64().unwrap());
        assert_eq!(sizes, [2, 2, 3], "{seen}");
        assert_eq!((&prepared["layout"], &prepared["fit"]), (&"channels_first".into(), &"crop".into()), "{seen}");
        assert_eq!(prepared["normalise"], "unit", "{seen}");
        let file = std::fs::read(folder.join("y.npy")).unwrap();
        assert!(String::from_utf8_lossy(&file).contains("(2,3,)"), "{file:?}");
        let numbers: Vec<u8> = [1.0_f32, 0.0, 0.0, 0.0, 0.0, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(file.ends_with(&numbers), "{file:?}");
        let shown = String::from_utf8(run(&pictures).stdout).unwrap();
        assert!(shown.contains(&red) && shown.contains("2 × 2 RGB, channels first, f32"), "{shown}");
        assert!(
            shown.contains(if batch == 2 { "2 pictures at once" } else { "one picture after the other" }),
            "{shown}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn labels_of_the_wrong_length_are_refused_with_both_lengths() {
    let (folder, [model, red, _]) = gallery("labels", Dim::Open("n"));
    let labels = folder.join("labels.txt");
    let with = |names: &str| {
        std::fs::write(&labels, names).unwrap();
        run(&["infer", &model, "--image", &red, "--labels", text(&labels), "--json"])
    };
    let refused = with("red\ngreen\n");
    assert_eq!(refused.status.code(), Some(2));
    let error = error_of(&refused);
    assert!(error.contains("each of the model's 3 classes, got 2 in ") && error.contains("labels.txt"), "{error}");
    assert_eq!(found(&with("red\ngreen\nblue\n\n"))["pictures"][0]["classes"][0]["label"], "red");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn open_dimensions_are_names_beside_numbers() {
    let (folder, [model, ..]) = gallery("open", Dim::Open("n"));
    let described = found(&run(&["infer", &model, "--json"]));
    assert_eq!(described["model"]["inputs"][0]["shape"], serde_json::json!(["n", 3, 2, 2]));
    std::fs::write(&model, classifier(Dim::Open("?"))).unwrap();
    let described = found(&run(&["infer", &model, "--json"]));
    assert_eq!(described["model"]["inputs"][0]["shape"], serde_json::json!([null, 3, 2, 2]));
    let shown = String::from_utf8(run(&["infer", &model]).stdout).unwrap();
    assert!(shown.contains("takes x f32 [?, 3, 2, 2]"), "{shown}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_profile_has_the_time_of_each_node() {
    let (folder, [model, red, _]) = gallery("profile", Dim::Open("n"));
    let measured = found(&run(&["infer", &model, "--image", &red, "--profile", "--json", "--device", "cpu:0"]));
    let rows = measured["profile"].as_array().unwrap();
    for (name, op) in [("mean", "GlobalAveragePool"), ("row", "Flatten"), ("positive", "Relu")] {
        let row = rows.iter().find(|row| row["node"] == name).unwrap_or_else(|| panic!("{name}: {measured}"));
        assert_eq!((row["op"].as_str(), row["executions"].as_u64()), (Some(op), Some(1)), "{measured}");
        assert!(row["ms"].as_f64().unwrap() > 0.0 && row["device"] == "cpu:0", "{measured}");
    }
    let shares: f64 = rows.iter().map(|row| row["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{measured}");
    let longest_first = rows.windows(2).all(|pair| pair[0]["ms"].as_f64() >= pair[1]["ms"].as_f64());
    assert!(longest_first, "{measured}");
    let shown = String::from_utf8(run(&["infer", &model, "--image", &red, "--profile"]).stdout).unwrap();
    for word in ["NODE", "DEVICE", "SHARE", "GlobalAveragePool", " ms", " %", "3 nodes take"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn boxes_are_drawn_for_one_picture_of_a_model_that_has_some() {
    let (folder, [model, red, blue]) = gallery("drawn", Dim::Open("n"));
    let target = text(&folder.join("seen.png")).to_owned();
    let error = error_of(&run(&["infer", &model, "--image", &red, "--image", &blue, "--boxes", &target]));
    assert!(error.contains("--boxes: expected one --image beside it, got 2"), "{error}");
    let error = error_of(&run(&["infer", &model, "--image", &red, "--boxes", &target]));
    assert!(error.contains("a model that answers with boxes"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}
