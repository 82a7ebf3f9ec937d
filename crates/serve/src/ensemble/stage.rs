//! Stages: the steps of an ensemble around its models.
//!
//! A stage that computes is a small network, so it runs as graphs, on the device that holds its
//! input. Files are decoded, pictures resized and texts tokenized on the host. A picture goes to
//! the device as bytes. Box suppression runs on the device; only the remaining boxes come to the
//! host.

use std::sync::Arc;
use std::time::Instant;

use panoply_core::DType;
use panoply_inputs::picture::{Fit, Frame, Normalisation, Picture, Placement};
use panoply_inputs::tasks::{DetectOptions, Detection, in_picture};
use panoply_inputs::text::Tokenizer;
use panoply_models::{Array, Context, ElementType, Network, NewNode, RunValue, Setting};

use crate::error::{Error, Result};
use crate::tasks::boxes::Graphs;

/// A step of an ensemble other than a model.
#[derive(Clone)]
pub struct Stage {
    kind: Kind,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
}

#[derive(Clone)]
enum Kind {
    Decode,
    Fit(Frame, Fit),
    Tokenize(Arc<Tokenizer>, usize),
    Suppress(Arc<Graphs>, DetectOptions),
    InPicture,
    Network(Network),
}

impl Stage {
    /// Decodes a PNG or JPEG: the bytes `file` become `picture`, of `[height, width, 3]` bytes.
    pub fn decode() -> Stage {
        Stage { kind: Kind::Decode, inputs: &["file"], outputs: &["picture"] }
    }

    /// Resizes a `picture` to a model's size. `pixels` are its bytes. `placement` holds the
    /// picture's placement in them: model pixels per picture pixel horizontally and vertically, the
    /// left and top edge, and the picture's width and height.
    pub fn fit(frame: Frame, fit: Fit) -> Stage {
        Stage { kind: Kind::Fit(frame, fit), inputs: &["picture"], outputs: &["pixels", "placement"] }
    }

    /// Converts the bytes `pixels` to `array`, the numbers that a model expects.
    pub fn normalise(frame: Frame, normalisation: Normalisation) -> Result<Stage> {
        let (mut nodes, mut last) = (Vec::new(), "pixels");
        let cast = |dtype: DType| Setting::Integer(ElementType::from(dtype).code().into());
        if frame.dtype != DType::U8 {
            let (mean, deviation) = normalisation.steps();
            let list = |values: [f32; 3]| Setting::Floats(values[..frame.channels.min(3)].to_vec());
            nodes.push(NewNode::new("Cast", &[last], &["floats"]).with("to", cast(DType::F32)));
            nodes.push(NewNode::new("Constant", &[], &["mean"]).with("value_floats", list(mean)));
            nodes.push(NewNode::new("Constant", &[], &["deviation"]).with("value_floats", list(deviation)));
            nodes.push(NewNode::new("Sub", &["floats", "mean"], &["centred"]));
            nodes.push(NewNode::new("Div", &["centred", "deviation"], &["scaled"]));
            last = "scaled";
        }
        if frame.planes {
            let order = Setting::Integers(vec![0, 3, 1, 2]);
            nodes.push(NewNode::new("Transpose", &[last], &["ordered"]).with("perm", order));
            last = "ordered";
        }
        nodes.push(match frame.dtype {
            DType::F32 | DType::U8 => NewNode::new("Identity", &[last], &["array"]),
            dtype => NewNode::new("Cast", &[last], &["array"]).with("to", cast(dtype)),
        });
        Stage::network("normalise", nodes, &["pixels"], &["array"])
    }

    /// Tokenizes `texts` into at most `len_max` pieces each: their numbers `ids`, the `mask`, and
    /// the `sentence` that each piece belongs to. All are 64-bit integers.
    pub fn tokenize(tokenizer: impl Into<Arc<Tokenizer>>, len_max: usize) -> Stage {
        let kind = Kind::Tokenize(tokenizer.into(), len_max);
        Stage { kind, inputs: &["texts"], outputs: &["ids", "mask", "sentence"] }
    }

    /// Converts scores `x` to probabilities `y` along an axis. A negative axis counts from the
    /// last.
    pub fn softmax(axis: i64) -> Result<Stage> {
        let nodes = vec![NewNode::new("Softmax", &["x"], &["y"]).with("axis", Setting::Integer(axis))];
        Stage::network("softmax", nodes, &["x"], &["y"])
    }

    /// The `count` largest elements of `x` along an axis, in descending order: `values`, and
    /// `indices` as 64-bit integers.
    pub fn top_k(count: usize, axis: i64) -> Result<Stage> {
        let wrong = |_| Error::invalid("the numbers of a top-k", "63 bits", count);
        let counts = Setting::Integers(vec![i64::try_from(count).map_err(wrong)?]);
        let top = NewNode::new("TopK", &["x", "count"], &["values", "indices"]).with("axis", Setting::Integer(axis));
        let nodes = vec![NewNode::new("Constant", &[], &["count"]).with("value_ints", counts), top];
        Stage::network("top_k", nodes, &["x"], &["values", "indices"])
    }

    /// Reads the boxes of one picture from a detector's `output` and applies non-maximum
    /// suppression, the most probable box first. `boxes` has the shape `[count, 6]` and 32-bit
    /// floats: corners in the model's pixels, the score and the class.
    pub fn suppress(options: DetectOptions) -> Stage {
        Stage { kind: Kind::Suppress(Arc::default(), options), inputs: &["output"], outputs: &["boxes"] }
    }

    /// Converts the corners of `boxes` to pixels of the picture, using the `placement` made by
    /// [`Stage::fit`].
    pub fn in_picture() -> Stage {
        Stage { kind: Kind::InPicture, inputs: &["boxes", "placement"], outputs: &["placed"] }
    }

    fn network(
        name: &str,
        nodes: Vec<NewNode>,
        inputs: &'static [&'static str],
        outputs: &'static [&'static str],
    ) -> Result<Stage> {
        Ok(Stage { kind: Kind::Network(Network::of_nodes(name, nodes, inputs, outputs)?), inputs, outputs })
    }

    /// The names of its inputs.
    pub fn inputs(&self) -> &'static [&'static str] {
        self.inputs
    }

    /// The names of its outputs.
    pub fn outputs(&self) -> &'static [&'static str] {
        self.outputs
    }

    /// Runs the stage. Outputs come in the order of [`Stage::outputs`].
    pub(super) async fn run(&self, context: &Context<'_>, given: &[(&str, RunValue)]) -> Result<Vec<RunValue>> {
        context.in_time()?;
        let made = match &self.kind {
            Kind::Network(network) => return Ok(network.run_live(context, given).await?),
            Kind::Decode => {
                let file = on_host(context, given, 0).await?;
                let begun = Instant::now();
                let picture = Picture::decode(file.as_slice::<u8>()?)?;
                context.note(|| "decode".to_owned(), begun.elapsed(), None);
                let dims = [picture.height() as usize, picture.width() as usize, 3];
                vec![Array::from_slice(picture.bytes(), dims)?]
            }
            Kind::Fit(frame, fit) => {
                let picture = on_host(context, given, 0).await?;
                let begun = Instant::now();
                let made = fitted(&picture, frame, *fit)?;
                context.note(|| "fit".to_owned(), begun.elapsed(), None);
                made
            }
            Kind::Tokenize(tokenizer, len_max) => {
                let texts = on_host(context, given, 0).await?;
                let begun = Instant::now();
                let tokens = tokenizer.encode(texts.as_strings()?, *len_max)?;
                context.note(|| "tokenize".to_owned(), begun.elapsed(), None);
                let array = |numbers: &[i64]| Array::from_slice(numbers, [tokens.rows, tokens.len]);
                // All pieces belong to the first sentence.
                vec![array(&tokens.ids)?, array(&tokens.mask)?, array(&vec![0; tokens.ids.len()])?]
            }
            Kind::Suppress(graphs, options) => {
                let output = operand(given, 0)?.tensor()?;
                let found = graphs.run(context, &output, options).await?;
                let row = |object: &Detection| {
                    let [left, top, right, bottom] = object.corners;
                    [left, top, right, bottom, object.score, object.class as f32]
                };
                let numbers: Vec<f32> = found.iter().flat_map(row).collect();
                vec![Array::from_slice(&numbers, [found.len(), 6])?]
            }
            Kind::InPicture => {
                let (boxes, placement) = (on_host(context, given, 0).await?, on_host(context, given, 1).await?);
                vec![placed(&boxes, &placement)?]
            }
        };
        Ok(made.into_iter().map(|array| RunValue::Value(array.into())).collect())
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stage({} to {})", self.inputs.join(", "), self.outputs.join(", "))
    }
}

fn operand<'l>(given: &'l [(&str, RunValue)], place: usize) -> Result<&'l RunValue> {
    given.get(place).map(|(_, live)| live).ok_or_else(|| Error::invalid("a stage", "all that it reads", "less"))
}

async fn on_host(context: &Context<'_>, given: &[(&str, RunValue)], place: usize) -> Result<Array> {
    Ok(context.fetch(operand(given, place)?).await?.array()?.clone())
}

fn fitted(picture: &Array, frame: &Frame, fit: Fit) -> Result<Vec<Array>> {
    let wrong = || Error::invalid("a picture", "bytes of [height, width, 3]", format!("{picture:?}"));
    let (&[height, width, 3], Ok(bytes)) = (picture.dims(), picture.as_slice::<u8>()) else { return Err(wrong()) };
    let (Ok(wide), Ok(high)) = (u32::try_from(width), u32::try_from(height)) else { return Err(wrong()) };
    let picture = Picture::from_rgb(wide, high, bytes.to_vec())?;
    let (pixels, Placement { scale, start }) = picture.pixels(frame, fit)?;
    let placement = [scale[0], scale[1], start[0], start[1], width as f32, height as f32];
    let pixels = Array::from_slice(&pixels, [1, frame.height, frame.width, frame.channels])?;
    Ok(vec![pixels, Array::from_slice(&placement, [6])?])
}

fn placed(boxes: &Array, placement: &Array) -> Result<Array> {
    let wrong =
        |got: &Array| Error::invalid("boxes and their placement", "[count, 6] and [6] numbers", format!("{got:?}"));
    let [across, down, left, top, width, height] = *placement.as_slice::<f32>()? else { return Err(wrong(placement)) };
    let &[_, 6] = boxes.dims() else { return Err(wrong(boxes)) };
    let placement = Placement { scale: [across, down], start: [left, top] };
    let mut numbers = boxes.as_slice::<f32>()?.to_vec();
    for row in numbers.as_chunks_mut::<6>().0 {
        let corners = in_picture([row[0], row[1], row[2], row[3]], &placement, [width, height]);
        row[..4].copy_from_slice(&corners);
    }
    Ok(Array::from_slice(&numbers, boxes.dims())?)
}
