//! What the arguments of `panoply vectors` and `panoply demo` mean.

use std::path::{Path, PathBuf};

use panoply::DeviceId;
use panoply::vector::formats::{ColumnNames, FileKind};
use panoply::vector::ivf::LISTS_MAX;
use panoply::vector::schema::{DIMENSION_MAX, parse_metric};
use panoply::vector::{Filter, Schema, Storage};

use super::{Format, format};
use crate::arguments::vectors::{
    CreateArguments, DeleteArguments, DemoArguments, ExportArguments, ImportArguments, InfoArguments, SearchArguments,
    TuneArguments, VectorsArguments, VectorsCommand,
};
use crate::failure::Failure;

/// The most hits that may be asked for.
const K_MAX: usize = 1 << 16;

/// What to do with a collection.
#[derive(Debug)]
pub enum VectorsOptions {
    Create(CreateOptions),
    Import(ImportOptions),
    Search(SearchOptions),
    Info(InfoOptions),
    Tune(TuneOptions),
    Export(ExportOptions),
    Delete(DeleteOptions),
}

#[derive(Debug)]
pub struct CreateOptions {
    pub path: PathBuf,
    pub schema: Schema,
    pub format: Format,
}

#[derive(Debug)]
pub struct ImportOptions {
    pub path: PathBuf,
    pub file: PathBuf,
    pub records: Option<PathBuf>,
    pub columns: ColumnNames,
    pub id_prefix: String,
    pub replace: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct SearchOptions {
    pub path: PathBuf,
    pub query: Query,
    pub k: usize,
    pub filter: Option<Filter>,
    pub device: Option<DeviceId>,
    pub nprobe: Option<usize>,
    pub format: Format,
}

/// What is searched for.
#[derive(Debug)]
pub enum Query {
    /// One vector, as it was typed.
    Vector(Vec<f32>),
    /// The vectors of a file.
    File(PathBuf),
    /// A record's own vector.
    Record(String),
}

#[derive(Debug)]
pub struct InfoOptions {
    pub path: PathBuf,
    pub verify: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct TuneOptions {
    pub path: PathBuf,
    pub lists: Option<usize>,
    /// Empty: a choice of them.
    pub nprobes: Vec<usize>,
    pub queries: Option<PathBuf>,
    pub k: usize,
    pub format: Format,
}

#[derive(Debug)]
pub struct ExportOptions {
    pub path: PathBuf,
    pub target: Target,
    pub overwrite: bool,
    pub format: Format,
}

/// Where records are written to.
#[derive(Debug)]
pub enum Target {
    /// JSON lines on the standard output.
    Screen,
    File {
        path: PathBuf,
        kind: FileKind,
        records: Option<PathBuf>,
    },
}

#[derive(Debug)]
pub struct DeleteOptions {
    pub path: PathBuf,
    /// Empty: the whole collection.
    pub ids: Vec<String>,
    pub confirmed: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct DemoOptions {
    /// `None`: what the command carries.
    pub data: Option<PathBuf>,
    pub format: Format,
}

impl VectorsOptions {
    pub fn resolve(arguments: VectorsArguments) -> Result<VectorsOptions, Failure> {
        Ok(match arguments.command {
            VectorsCommand::Create(arguments) => VectorsOptions::Create(create(arguments)?),
            VectorsCommand::Import(arguments) => VectorsOptions::Import(import(arguments)?),
            VectorsCommand::Search(arguments) => VectorsOptions::Search(search(arguments)?),
            VectorsCommand::Info(arguments) => VectorsOptions::Info(info(arguments)),
            VectorsCommand::Tune(arguments) => VectorsOptions::Tune(tune(arguments)?),
            VectorsCommand::Export(arguments) => VectorsOptions::Export(export(arguments)?),
            VectorsCommand::Delete(arguments) => VectorsOptions::Delete(delete(arguments)),
        })
    }
}

impl DemoOptions {
    pub fn resolve(arguments: DemoArguments) -> DemoOptions {
        DemoOptions { data: arguments.data, format: format(arguments.json) }
    }
}

fn create(arguments: CreateArguments) -> Result<CreateOptions, Failure> {
    within("--dimension", arguments.dimension, DIMENSION_MAX)?;
    let metric = parse_metric(&arguments.metric).map_err(|error| Failure::Usage(format!("--metric: {error}")))?;
    let storage: Storage = arguments.storage.parse().map_err(|error| Failure::Usage(format!("--storage: {error}")))?;
    let of_folder = || arguments.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = arguments.name.clone().or_else(of_folder);
    let name = name.ok_or_else(|| Failure::Usage("COLLECTION: expected a path that ends in a name".to_owned()))?;
    let schema = Schema::new(name, arguments.dimension, metric).storage(storage);
    Ok(CreateOptions { path: arguments.path, schema, format: format(arguments.json) })
}

fn import(arguments: ImportArguments) -> Result<ImportOptions, Failure> {
    let kind = kind_of("FILE", &arguments.file)?;
    let named = matches!(kind, FileKind::Parquet | FileKind::Arrow);
    if !named && (arguments.vector_column.is_some() || arguments.id_column.is_some()) {
        return Err(Failure::Usage("--vector-column and --id-column: the file has no columns with names".to_owned()));
    }
    Ok(ImportOptions {
        path: arguments.path,
        file: arguments.file,
        records: arguments.records,
        columns: ColumnNames { vector: arguments.vector_column, id: arguments.id_column },
        id_prefix: arguments.id_prefix,
        replace: arguments.replace,
        format: format(arguments.json),
    })
}

fn search(arguments: SearchArguments) -> Result<SearchOptions, Failure> {
    let query = match (arguments.vector, arguments.id) {
        (Some(text), _) => query(&text)?,
        (None, Some(id)) => Query::Record(id),
        (None, None) => return Err(Failure::Usage("expected --vector or --id".to_owned())),
    };
    let filter = match &arguments.filter {
        Some(text) => Some(Filter::from_argument(text).map_err(|error| Failure::Usage(format!("--filter: {error}")))?),
        None => None,
    };
    arguments.nprobe.map_or(Ok(()), |nprobe| within("--nprobe", nprobe, LISTS_MAX))?;
    Ok(SearchOptions {
        path: arguments.path,
        query,
        k: hits(arguments.k)?,
        filter,
        device: arguments.device.as_deref().map(device).transpose()?,
        nprobe: arguments.nprobe,
        format: format(arguments.json),
    })
}

fn query(text: &str) -> Result<Query, Failure> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(Query::File(PathBuf::from(file)));
    }
    let vector = serde_json::from_str(text);
    let vector = vector
        .map_err(|error| Failure::Usage(format!("--vector: expected a JSON list of numbers, or @FILE; {error}")))?;
    Ok(Query::Vector(vector))
}

fn info(arguments: InfoArguments) -> InfoOptions {
    InfoOptions { path: arguments.path, verify: arguments.verify, format: format(arguments.json) }
}

fn tune(arguments: TuneArguments) -> Result<TuneOptions, Failure> {
    arguments.nprobe.iter().try_for_each(|nprobe| within("--nprobe", *nprobe, LISTS_MAX))?;
    arguments.lists.map_or(Ok(()), |lists| within("--lists", lists, LISTS_MAX))?;
    if let Some(queries) = &arguments.queries {
        kind_of("--queries", queries)?;
    }
    Ok(TuneOptions {
        path: arguments.path,
        lists: arguments.lists,
        nprobes: arguments.nprobe,
        queries: arguments.queries,
        k: hits(arguments.k)?,
        format: format(arguments.json),
    })
}

fn export(arguments: ExportArguments) -> Result<ExportOptions, Failure> {
    let target = if arguments.file.as_os_str() == "-" {
        if arguments.json || arguments.records.is_some() {
            return Err(Failure::Usage("-: the standard output has the records, and room for nothing else".to_owned()));
        }
        Target::Screen
    } else {
        let kind = kind_of("FILE", &arguments.file)?;
        Target::File { path: arguments.file, kind, records: arguments.records }
    };
    Ok(ExportOptions { path: arguments.path, target, overwrite: arguments.overwrite, format: format(arguments.json) })
}

fn delete(arguments: DeleteArguments) -> DeleteOptions {
    DeleteOptions { path: arguments.path, ids: arguments.id, confirmed: arguments.yes, format: format(arguments.json) }
}

fn hits(k: usize) -> Result<usize, Failure> {
    within("--k", k, K_MAX).map(|()| k)
}

/// Refuses a number that is not 1 to `max`.
fn within(argument: &str, got: usize, max: usize) -> Result<(), Failure> {
    match (1..=max).contains(&got) {
        true => Ok(()),
        false => Err(Failure::Usage(format!("{argument}: expected 1 to {max}, got {got}"))),
    }
}

fn device(text: &str) -> Result<DeviceId, Failure> {
    text.parse()
        .map_err(|_| Failure::Usage(format!("--device: expected an API and a number, such as cpu:0; got {text}")))
}

fn kind_of(argument: &str, path: &Path) -> Result<FileKind, Failure> {
    FileKind::of(path).map_err(|error| Failure::Usage(format!("{argument}: {error}")))
}
