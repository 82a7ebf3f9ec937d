//! The raw arguments of `panoply infer` and `panoply embed`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
#[command(
    after_help = "Without an input it says what the model takes. A picture is classified or, where the model answers with boxes, searched \
    for objects. For text a tokenizer.json (WordPiece, BPE or Unigram) or vocab.txt is needed, beside the model or by --vocabulary.\n\n\
    For example:\n  panoply infer classifier.onnx --image cat.jpg --labels labels.txt\n  \
    panoply infer classifier.onnx --image cat.jpg --image dog.jpg --profile\n  \
    panoply infer detector.onnx --image street.jpg --boxes seen.png\n  \
    panoply infer model.onnx --input x=input.npy --output y=output.npy"
)]
pub struct InferArguments {
    /// The model, an ONNX file
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// A PNG or JPEG as the model's input; may be given more than once. Where the model leaves the
    /// batch dimension open, several pictures run as a batch
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "input"])]
    pub image: Vec<PathBuf>,
    /// Text as the model's input, split into tokens
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    pub text: Option<String>,
    /// An input from a NumPy file, such as x=input.npy; may be given more than once
    #[arg(long, value_name = "NAME=FILE.npy")]
    pub input: Vec<String>,
    /// Writes an output to a NumPy file, such as y=output.npy, and replaces that file if it exists;
    /// may be given more than once. Several pictures are its rows
    #[arg(long, value_name = "NAME=FILE.npy")]
    pub output: Vec<String>,
    /// For --image: the number of classes to show [default: 5]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top: Option<usize>,
    /// For --image: the names of the classes, one a line [default: those in the model's file]
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// For --image: how pixel bytes become numbers: imagenet, unit, signed or bytes [default:
    /// imagenet for classes, unit for boxes]
    #[arg(long, value_name = "WAY")]
    pub normalise: Option<String>,
    /// For --image: the lowest score of an object to report [default: 0.25]
    #[arg(long, value_name = "0..1")]
    pub score: Option<f32>,
    /// For --image: writes the picture with a box around each object
    #[arg(long, value_name = "FILE.png")]
    pub boxes: Option<PathBuf>,
    /// The vocabulary for --text [default: tokenizer.json or vocab.txt beside the model]
    #[arg(long, value_name = "FILE")]
    pub vocabulary: Option<PathBuf>,
    /// Runs on this device and no other, such as cpu:0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Measures each node as well: the model runs several times more, one node after the other. Of
    /// several pictures the first one is taken
    #[arg(long)]
    pub profile: bool,
    /// Prints one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Vectors have length one, and texts are cut at 256 pieces. Without --into they are printed, as one JSON object a line. In a \
    collection the ids of texts are numbers, which go on from the last one there; those of pictures are the files' names, and a \
    picture that is there already is replaced. The collection remembers the model, and refuses vectors of another model.\n\n\
    For example:\n  panoply embed minilm.onnx --lines notes.txt --into notes\n  \
    panoply vectors search notes --text \"shopping\"\n  \
    echo shopping | panoply embed minilm.onnx --lines - | panoply vectors search notes --vector -"
)]
pub struct EmbedArguments {
    /// The model, an ONNX file
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// A text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub text: Vec<String>,
    /// A file with a text on each line; - is the standard input
    #[arg(long, value_name = "FILE|-")]
    pub lines: Option<PathBuf>,
    /// A PNG or JPEG; may be given more than once
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "lines"])]
    pub image: Vec<PathBuf>,
    /// The vocabulary [default: tokenizer.json or vocab.txt beside the model]
    #[arg(long, value_name = "FILE")]
    pub vocabulary: Option<PathBuf>,
    /// Puts the vectors into the collection in this folder; creates the collection if it does not
    /// exist
    #[arg(long, value_name = "COLLECTION")]
    pub into: Option<PathBuf>,
    /// Prints one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}
