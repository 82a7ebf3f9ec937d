//! The raw arguments of `panoply store`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

#[derive(Args, Debug)]
#[command(
    after_help = "The key comes from a file or an environment variable, or is a passphrase: --key-file, --key-env, --passphrase-file or \
    --passphrase. Where none of them is given, PANOPLY_STORE_KEY has the key or PANOPLY_STORE_PASSPHRASE the passphrase, \
    or the passphrase is asked for on the terminal. Keys are 32 bytes, or 64 hexadecimal digits. Nothing secret is ever \
    taken from the command line itself, which others can see."
)]
pub struct StoreArguments {
    #[command(subcommand)]
    pub command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Makes an empty store in a new folder
    Init(InitArguments),
    /// Stores files, folders or the standard input
    Put(PutArguments),
    /// Writes objects to files
    Get(StoreGetArguments),
    /// Lists objects
    Ls(LsArguments),
    /// Writes objects to the standard output
    Cat(CatArguments),
    /// Reads all data and reports damage
    Verify(VerifyArguments),
    /// Reports damage and what can be saved; with --apply, repairs
    Repair(StoreRepairArguments),
    /// Locks the store with another key, without rewriting data
    Rotate(RotateArguments),
    /// Removes objects
    Rm(RmArguments),
    /// Measures put and get beside the compressor and the disk alone
    Bench(StoreBenchArguments),
}

/// The store, and how it is opened.
#[derive(Args, Debug)]
pub struct PlaceArguments {
    /// The store's folder
    #[arg(value_name = "STORE")]
    pub path: PathBuf,
    /// The anchor file: it records the newest state of the store, so that a rollback to an older
    /// copy is detected [default: a file in the user's state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "no_anchor")]
    pub anchor: Option<PathBuf>,
    /// Does not check for a rollback to an older copy
    #[arg(long)]
    pub no_anchor: bool,
    /// Waits up to this long while another process has the store open
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, allow_negative_numbers = true)]
    pub wait: f64,
    /// Memory that trying a passphrase takes: of a new store or a new passphrase; of an existing
    /// store, the most that is accepted, if larger than four times the default [default: 64]
    #[arg(long, value_name = "MIB")]
    pub passphrase_memory: Option<u32>,
}

/// The source of the key.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("key").args(["key_file", "key_env", "passphrase_file", "passphrase"]))]
pub struct KeyArguments {
    /// A file or a pipe with the key, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// An environment variable with the key
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// A file or a pipe with the passphrase, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Asks for the passphrase on the terminal
    #[arg(long)]
    pub passphrase: bool,
}

/// The source of the new key.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("new_key").required(true)
    .args(["new_key_file", "new_key_env", "new_passphrase_file", "new_passphrase"]))]
pub struct NewKeyArguments {
    /// A file with the new key
    #[arg(long, value_name = "FILE")]
    pub new_key_file: Option<PathBuf>,
    /// An environment variable with the new key
    #[arg(long, value_name = "NAME")]
    pub new_key_env: Option<String>,
    /// A file with the new passphrase
    #[arg(long, value_name = "FILE")]
    pub new_passphrase_file: Option<PathBuf>,
    /// Asks for the new passphrase on the terminal
    #[arg(long)]
    pub new_passphrase: bool,
}

#[derive(Args, Debug)]
pub struct InitArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Generates the key, and creates the file for it
    #[arg(long, requires = "key_file")]
    pub generate: bool,
    /// Accepts a passphrase that is easily guessed, with a warning
    #[arg(long)]
    pub weak_passphrase: bool,
    /// A format of compression that the store may have besides zstd: deflate, which QuickAssist
    /// has, or lz4, which GPUs have. Earlier versions cannot open such a store
    #[arg(long, value_name = "FORMAT", default_value = "zstd", value_parser = ["zstd", "deflate", "lz4"])]
    pub compression: String,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A file is stored under its name, a folder with all files below it under names such as folder/file. Links, empty folders and \
    special files in it are left out, and a warning says so. If the command ends early, every object that it has named as stored \
    is there, and no other object is there in part. --append --at BYTES can be repeated without harm: it appends once."
)]
pub struct PutArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Files and folders; - is the standard input
    #[arg(value_name = "FILE|-", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub key: KeyArguments,
    /// The object's name, if one file is stored
    #[arg(long)]
    pub name: Option<String>,
    /// Replaces objects that exist already, instead of refusing them
    #[arg(long, conflicts_with = "append")]
    pub replace: bool,
    /// Appends to objects that exist already
    #[arg(long)]
    pub append: bool,
    /// Appends only if the object has exactly this many bytes; does nothing if the object has the
    /// file's bytes behind them already
    #[arg(long, value_name = "BYTES", requires = "append")]
    pub at: Option<u64>,
    /// The format of compression: zstd; deflate, which QuickAssist has; or lz4, which GPUs have.
    /// Others than zstd need a store that was made or rotated with one
    #[arg(long, value_name = "FORMAT", default_value = "zstd", value_parser = ["zstd", "deflate", "lz4"])]
    pub compression: String,
    /// The compression level, 1 to 19 (deflate: 1 to 12; lz4: 1); 0 does not compress
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub level: i32,
    /// Compresses on this device and no other, such as qat:0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["name", "all"]))]
#[command(
    after_help = "A range is START..END, START.. or ..END, in bytes; END is not part of it. A file appears when it is complete. With --all no \
    link inside the folder is followed. The store, its key and its anchor are never written to."
)]
pub struct StoreGetArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The object
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Every object
    #[arg(long)]
    pub all: bool,
    /// The file to write; the folder, with --all; - is the standard output [default: the last part
    /// of the object's name; this folder]
    #[arg(long, value_name = "PATH|-")]
    pub to: Option<PathBuf>,
    /// Only these bytes of the object
    #[arg(long, value_name = "START..END", conflicts_with = "all")]
    pub range: Option<String>,
    /// Replaces files that exist already
    #[arg(long)]
    pub overwrite: bool,
    /// Decompresses on this device and no other, such as cuda:0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct LsArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only objects whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: String,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "A range is START..END, START.. or ..END, in bytes; END is not part of it.")]
pub struct CatArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The objects, one after the other
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Only these bytes of each object
    #[arg(long, value_name = "START..END")]
    pub range: Option<String>,
}

#[derive(Args, Debug)]
pub struct VerifyArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Head and log have two copies each, so most damage needs no repair. Where both are lost, objects are found again by \
    the key and the files in the store's folder `data`. Damaged files stay in the folder, with .damaged behind their names. The exit \
    code is 1 if something cannot be saved. Contents are not read: `panoply store verify` does that."
)]
pub struct StoreRepairArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Repairs the store; without this nothing is changed
    #[arg(long)]
    pub apply: bool,
    /// Records the store's present state in the anchor, even if the anchor records a state that the
    /// store does not contain
    #[arg(long, requires = "apply")]
    pub new_anchor: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Data is not rewritten: its keys are sealed again. New data gets keys that the old key cannot open. \
    An old copy of the store can still be read with the old key."
)]
pub struct RotateArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    #[command(flatten)]
    pub key: KeyArguments,
    #[command(flatten)]
    pub new_key: NewKeyArguments,
    /// Generates the new key, and creates the file for it
    #[arg(long, requires = "new_key_file")]
    pub generate: bool,
    /// Accepts a passphrase that is easily guessed, with a warning
    #[arg(long)]
    pub weak_passphrase: bool,
    /// A format of compression that the store may have from now on besides zstd: deflate or lz4.
    /// Earlier versions cannot open such a store
    #[arg(long, value_name = "FORMAT", default_value = "zstd", value_parser = ["zstd", "deflate", "lz4"])]
    pub compression: String,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "All of the objects are removed, or none. For example:\n  \
    panoply store rm safe letters/first.txt --key-file safe.key\n  \
    panoply store rm safe --prefix letters/ --key-file safe.key")]
pub struct RmArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The objects
    #[arg(value_name = "NAME", required_unless_present = "prefix")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub key: KeyArguments,
    /// Removes every object whose name begins with this, such as letters/ for a whole folder
    #[arg(long, value_name = "PREFIX", conflicts_with = "names")]
    pub prefix: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Half of the files are of text that compresses, a quarter of numbers that compress a little, a quarter of noise. Everything is \
    done in a folder of its own below FOLDER, which is deleted again. The files are written twice, one copy after the other: as \
    they are, and into a store. At most their size and a few MiB are on the disk at once."
)]
pub struct StoreBenchArguments {
    /// A folder on the disk to measure
    #[arg(value_name = "FOLDER")]
    pub path: PathBuf,
    /// The size of all files together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, allow_negative_numbers = true)]
    pub mib: u64,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}
