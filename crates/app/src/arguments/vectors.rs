//! The raw arguments of `panoply vectors` and `panoply demo`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

#[derive(Args, Debug)]
pub struct VectorsArguments {
    #[command(subcommand)]
    pub command: VectorsCommand,
    #[command(flatten)]
    pub key: CollectionKeyArguments,
}

/// The source of the key of an encrypted collection. A collection that is created with one of these
/// options is encrypted.
#[derive(Args, Debug)]
pub struct CollectionKeyArguments {
    /// A file with the key of an encrypted collection, readable by its owner only
    #[arg(long, value_name = "FILE", global = true)]
    pub key_file: Option<PathBuf>,
    /// An environment variable with the key
    #[arg(long, value_name = "NAME", global = true)]
    pub key_env: Option<String>,
    /// A file with the passphrase, readable by its owner only
    #[arg(long, value_name = "FILE", global = true)]
    pub passphrase_file: Option<PathBuf>,
    /// Asks for the passphrase on the terminal
    #[arg(long, global = true)]
    pub passphrase: bool,
}

#[derive(Debug, Subcommand)]
pub enum VectorsCommand {
    /// Makes an empty collection in a new folder
    Create(CreateArguments),
    /// Adds the vectors of a file
    Import(ImportArguments),
    /// Finds the records nearest to a vector, a record or a text
    Search(SearchArguments),
    /// Shows the parts and settings of a collection
    Info(InfoArguments),
    /// Builds the index for approximate searches and measures its recall
    Tune(TuneArguments),
    /// Writes every record to a file
    Export(ExportArguments),
    /// Deletes a collection, or some of its records
    Delete(DeleteArguments),
    /// Shows records by their ids
    Get(GetArguments),
    /// Counts records
    Count(CountArguments),
    /// Lists ids, in their order
    Ids(IdsArguments),
    /// Sets fields of a record, or replaces its metadata, or its vector, or both
    Update(UpdateArguments),
    /// Writes a copy of the collection, as it is now, into a new folder
    Snapshot(SnapshotArguments),
    /// Gives back the space of deleted records
    Compact(CompactArguments),
    /// Reports damage and what a repair would lose; with --apply, repairs
    Repair(RepairArguments),
}

#[derive(Args, Debug)]
#[command(
    after_help = "With --key-file, --key-env, --passphrase-file or --passphrase everything that the collection writes is encrypted. It then \
    opens with that key alone, and all of it is in memory while it is open."
)]
pub struct CreateArguments {
    /// The folder of the new collection
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Components of each vector
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dimension: usize,
    /// The distance measure: dot, cosine or euclidean
    #[arg(long, value_name = "METRIC", default_value = "cosine")]
    pub metric: String,
    /// How components are stored: f32, f16, bf16 or i8
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub storage: String,
    /// The collection's name [default: that of its folder]
    #[arg(long)]
    pub name: Option<String>,
    /// Encrypts the collection with a new key, and creates the key file that --key-file names
    #[arg(long)]
    pub generate: bool,
    /// Accepts a passphrase that is easily guessed, with a warning
    #[arg(long)]
    pub weak_passphrase: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The file's name says what it is: .npy, .fvecs, .bvecs, .ivecs, .jsonl, .ndjson, .parquet, .pq, \
    .arrow, .arrows, .feather or .ipc. The standard input (-) brings JSON lines, unless --format says otherwise. Rows of \
    files without ids are numbered from 0 on. --id-prefix keeps the numbers of several files apart. If an import ends early, the \
    collection has every row up to the last batch that was taken."
)]
pub struct ImportArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The file of vectors; - is the standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// The format of the file, regardless of its name: npy, fvecs, bvecs, ivecs, jsonl, parquet or
    /// arrow
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// JSON lines with the rows' ids and metadata, in the order of the vectors
    #[arg(long, value_name = "FILE.jsonl")]
    pub records: Option<PathBuf>,
    /// The column of vectors [default: vector, embedding, or the only column that can hold vectors]
    #[arg(long, value_name = "COLUMN")]
    pub vector_column: Option<String>,
    /// The column of ids [default: id]
    #[arg(long, value_name = "COLUMN")]
    pub id_column: Option<String>,
    /// A prefix for every id
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub id_prefix: String,
    /// Replaces records whose ids exist already, instead of refusing them
    #[arg(long)]
    pub replace: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("query").required(true).args(["vector", "id", "text"]))]
#[command(after_help = "Filters are lines such as\n  section = games and installed_kib < 1000\n  \
    section in (games, science) or not (author.name = \"Ada\" and free = true)\nor JSON such as \
    {\"section\": \"games\", \"installed_kib\": {\"lt\": 1000}}.\n\nHits of equal score come oldest first. A search only \
    reads the collection: it needs no lock, and works while another process writes.")]
pub struct SearchArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The query: a JSON list of numbers, @FILE with one or with several in any format that can be
    /// imported, or - for the standard input, with a JSON list or with the lines that
    /// `panoply embed` prints
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub vector: Option<String>,
    /// Searches with the vector of this record, which is left out of the hits
    #[arg(long)]
    pub id: Option<String>,
    /// Searches by meaning: a text model makes the vector of this text. The model is the one with
    /// which `panoply embed --into` filled the collection
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    #[command(flatten)]
    pub model: TextModelArguments,
    /// The number of hits
    #[arg(short, long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub k: usize,
    /// Only records whose metadata passes the filter
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Searches on this device, such as cpu:0 [default: wherever the rows are]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Searches only N lists of the index, which `panoply vectors tune` builds
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub nprobe: Option<usize>,
    /// Finds N times as many candidates with eight-bit copies of the vectors, and ranks them by the
    /// stored vectors; 4 if N is left out
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "4", allow_negative_numbers = true)]
    pub rerank: Option<usize>,
    /// Skips the first N hits: those of earlier pages
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub offset: usize,
    /// Only hits whose score is at least this; under euclidean, at most this
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true)]
    pub within: Option<f32>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The model that makes vectors of texts.
#[derive(Args, Debug)]
pub struct TextModelArguments {
    /// The text model, an ONNX file [default: the collection's own, else
    /// all-MiniLM-L6-v2/model.onnx in the folder models beside this command or in the cache folder]
    #[arg(long, value_name = "MODEL.onnx")]
    pub model: Option<PathBuf>,
    /// The model's vocabulary [default: tokenizer.json or vocab.txt beside the model]
    #[arg(long, value_name = "FILE", requires = "model")]
    pub vocabulary: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Opening a collection checks its manifest, its index, the whole of its logs (ids, metadata and \
    removals), and the newest 16 MiB of vectors of each segment. A program that keeps it open checks all other vectors in the \
    background; --verify does so at once."
)]
pub struct InfoArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Reads all data and compares it with its checksums
    #[arg(long)]
    pub verify: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct TuneArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Lists of the index [default: those of the existing index, or four times the square root of
    /// the number of records]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub lists: Option<usize>,
    /// The numbers of lists to search, one or several
    #[arg(long, value_name = "N,N", value_delimiter = ',', allow_negative_numbers = true)]
    pub nprobe: Vec<usize>,
    /// Queries to measure with [default: records of the collection, spread evenly]
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
    /// The number of neighbours in the recall
    #[arg(short, long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub k: usize,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ExportArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The file to write; - is JSON lines on the standard output
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// JSON lines with the rows' ids and metadata, for a file that cannot hold them
    #[arg(long, value_name = "FILE.jsonl")]
    pub records: Option<PathBuf>,
    /// Replaces files that exist already
    #[arg(long)]
    pub overwrite: bool,
    /// Prints one JSON object; not together with -
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DeleteArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Deletes this record only; may be given more than once
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,
    /// Deletes the records whose metadata passes the filter
    #[arg(long, value_name = "FILTER", conflicts_with = "id")]
    pub filter: Option<String>,
    /// Deletes the whole collection without confirmation
    #[arg(long, conflicts_with_all = ["id", "filter"])]
    pub yes: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct GetArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The records' ids
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Prints one JSON object, with the vectors
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CountArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Only records whose metadata passes the filter
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Ids come in the order of their bytes, also if records are inserted or deleted meanwhile. The next page begins \
    after the last id of this one."
)]
pub struct IdsArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Only records whose metadata passes the filter
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Begins after this id
    #[arg(long, value_name = "ID")]
    pub after: Option<String>,
    /// Lists at most N ids [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub limit: Option<usize>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("part").required(true).multiple(true).args(["metadata", "set", "vector"]))]
pub struct UpdateArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The record's id
    #[arg(value_name = "ID")]
    pub id: String,
    /// The new metadata: a JSON object, or null for none
    #[arg(long, value_name = "JSON")]
    pub metadata: Option<String>,
    /// Sets one field of the metadata and leaves the others; may be given more than once. The value
    /// is JSON or else a text; null removes the field
    #[arg(long, value_name = "FIELD=VALUE", conflicts_with_all = ["metadata", "vector"])]
    pub set: Vec<String>,
    /// The new vector: a JSON list of numbers
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub vector: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct SnapshotArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The new folder
    #[arg(value_name = "FOLDER")]
    pub target: PathBuf,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CompactArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "All readable rows are kept, also those behind the damage. Damaged files stay in the folder, with .damaged \
    behind their names, until the collection is deleted. The exit code is 1 if rows or removals cannot be saved."
)]
pub struct RepairArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Repairs the collection; without this nothing is changed
    #[arg(long)]
    pub apply: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A question of your own needs the text model all-MiniLM-L6-v2, which made the vectors of the packages. Without it the \
    command says how to get it and where to put it.\n\n\
    For example:\n  panoply demo\n  panoply demo \"draw a family tree\" \"listen to radio stations\""
)]
pub struct DemoArguments {
    /// A question of your own in plain words; several are asked one after the other [default: a
    /// dozen that the command carries]
    #[arg(value_name = "QUESTION")]
    pub questions: Vec<String>,
    #[command(flatten)]
    pub model: TextModelArguments,
    /// The folder with the demonstration's data [default: the data that the command carries]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Prints one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
