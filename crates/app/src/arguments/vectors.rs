//! What was typed after `panoply vectors` and `panoply demo`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

#[derive(Args, Debug)]
pub struct VectorsArguments {
    #[command(subcommand)]
    pub command: VectorsCommand,
}

#[derive(Debug, Subcommand)]
pub enum VectorsCommand {
    /// Makes an empty collection in a new folder
    Create(CreateArguments),
    /// Adds the vectors of a file
    Import(ImportArguments),
    /// Finds the records nearest to a vector, or to a record
    Search(SearchArguments),
    /// Shows what a collection consists of
    Info(InfoArguments),
    /// Builds the index for approximate searches and measures what it finds
    Tune(TuneArguments),
    /// Writes every record to a file
    Export(ExportArguments),
    /// Deletes a collection, or some of its records
    Delete(DeleteArguments),
}

#[derive(Args, Debug)]
pub struct CreateArguments {
    /// The folder of the new collection
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Components of each vector
    #[arg(long, value_name = "N")]
    pub dimension: usize,
    /// What near means: dot, cosine or euclidean
    #[arg(long, value_name = "METRIC", default_value = "cosine")]
    pub metric: String,
    /// How components are stored: f32, f16, bf16 or i8
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub storage: String,
    /// The collection's name [default: that of its folder]
    #[arg(long)]
    pub name: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The file's name says what it is: .npy, .fvecs, .bvecs, .ivecs, .jsonl, .ndjson, .parquet, .pq, \
    .arrow, .arrows, .feather or .ipc. Rows of files without ids are numbered. Whatever ends an import early, the \
    collection can be opened again and has every row up to the last batch that was taken."
)]
pub struct ImportArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The file of vectors
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// JSON lines with the rows' ids and metadata, in the order of the vectors
    #[arg(long, value_name = "FILE.jsonl")]
    pub records: Option<PathBuf>,
    /// The column of vectors [default: vector, embedding, or the only one that can be]
    #[arg(long, value_name = "COLUMN")]
    pub vector_column: Option<String>,
    /// The column of ids [default: id]
    #[arg(long, value_name = "COLUMN")]
    pub id_column: Option<String>,
    /// Text that is put in front of every id
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub id_prefix: String,
    /// Replaces records whose ids are there already, instead of refusing them
    #[arg(long)]
    pub replace: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("query").required(true).args(["vector", "id"]))]
#[command(after_help = "Filters are lines such as\n  section = games and installed_kib < 1000\n  \
    section in (games, science) or not (author.name = \"Ada\" and free = true)\nor JSON such as \
    {\"section\": \"games\", \"installed_kib\": {\"lt\": 1000}}.")]
pub struct SearchArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// The query: a JSON list of numbers, or @FILE with one, or with several in any format that can be imported
    #[arg(long, value_name = "JSON|@FILE", allow_hyphen_values = true)]
    pub vector: Option<String>,
    /// Searches with the vector of this record, which itself is not among the hits
    #[arg(long)]
    pub id: Option<String>,
    /// How many hits
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub k: usize,
    /// Only records whose metadata passes
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Searches on this device, such as cpu:0 [default: wherever the rows are]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Searches only so many lists of the index, which `panoply vectors tune` builds
    #[arg(long, value_name = "N")]
    pub nprobe: Option<usize>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct InfoArguments {
    /// The collection's folder
    #[arg(value_name = "COLLECTION")]
    pub path: PathBuf,
    /// Reads everything and compares it with its checksums
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
    /// Lists of the index [default: those of the index that is there, or four times the root of the number of records]
    #[arg(long, value_name = "N")]
    pub lists: Option<usize>,
    /// How many lists to search, one or several
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub nprobe: Vec<usize>,
    /// Queries to measure with [default: records of the collection, spread evenly]
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
    /// Neighbours that count
    #[arg(short, long, value_name = "N", default_value_t = 10)]
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
    /// Replaces files that are there already
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
    /// Deletes the whole collection without asking back
    #[arg(long, conflicts_with = "id")]
    pub yes: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DemoArguments {
    /// The folder with the demonstration's data [default: the data that the command carries]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Prints one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
