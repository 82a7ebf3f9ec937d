//! Validates the arguments of `panoply vectors` and `panoply demo`.

use std::path::{Path, PathBuf};

use panoply::DeviceId;
use panoply::vector::formats::{ColumnNames, FileKind};
use panoply::vector::ivf::LISTS_MAX;
use panoply::vector::schema::{DIMENSION_MAX, parse_metric};
use panoply::vector::{Filter, Schema, Storage};
use serde_json::{Map, Value};

use super::store::{KeySource, generated, key};
use super::{Format, format};
use crate::arguments::store::KeyArguments;
use crate::arguments::vectors::{
    CollectionKeyArguments, CreateArguments, DeleteArguments, DemoArguments, ExportArguments, IdsArguments,
    ImportArguments, InfoArguments, SearchArguments, TextModelArguments, TuneArguments, UpdateArguments,
    VectorsArguments, VectorsCommand,
};
use crate::failure::Failure;
use crate::partial::is_same_place;
use crate::screen::shortened;

/// The most hits that may be requested.
const K_MAX: usize = 1 << 16;
/// The most candidates per hit that may be requested.
const RERANK_MAX: usize = 1 << 10;

/// A command on a collection, and the source of its key. `key` is `None` if no key option was
/// given.
#[derive(Debug)]
pub struct VectorsOptions {
    pub command: VectorsOption,
    pub key: Option<KeySource>,
}

/// The `panoply vectors` command to run, with its options.
#[derive(Debug)]
pub enum VectorsOption {
    Create(CreateOptions),
    Import(ImportOptions),
    Search(SearchOptions),
    Info(InfoOptions),
    Tune(TuneOptions),
    Export(ExportOptions),
    Delete(DeleteOptions),
    Get(GetOptions),
    Count(CountOptions),
    Ids(IdsOptions),
    Update(UpdateOptions),
    Snapshot(SnapshotOptions),
    Compact(CompactOptions),
    Repair(RepairOptions),
}

#[derive(Debug)]
pub struct CreateOptions {
    pub path: PathBuf,
    pub schema: Schema,
    /// Whether a passphrase that is easily guessed is accepted.
    pub weak_passphrase: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct ImportOptions {
    pub path: PathBuf,
    /// `None` is the standard input.
    pub file: Option<PathBuf>,
    pub kind: FileKind,
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
    pub rerank: Option<usize>,
    pub offset: usize,
    pub within: Option<f32>,
    pub format: Format,
}

/// The query of a search.
#[derive(Debug)]
pub enum Query {
    /// One vector, given on the command line.
    Vector(Vec<f32>),
    /// The vectors of a file.
    File(PathBuf),
    /// The vectors on the standard input.
    Input,
    /// The vector that a text model makes of this text.
    Text { text: String, model: TextModelOptions },
    /// The vector of a record.
    Record(String),
}

/// The text model that the command line names.
#[derive(Debug)]
pub struct TextModelOptions {
    /// `None` selects the collection's own model, or one in a known folder.
    pub file: Option<PathBuf>,
    /// `None` selects the vocabulary beside the model.
    pub vocabulary: Option<PathBuf>,
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
    /// Empty selects a default list of values.
    pub nprobes: Vec<usize>,
    pub queries: Option<PathBuf>,
    pub k: usize,
    pub format: Format,
}

#[derive(Debug)]
pub struct ExportOptions {
    pub path: PathBuf,
    pub target: ExportTarget,
    pub overwrite: bool,
    pub format: Format,
}

/// The destination of exported records.
#[derive(Debug)]
pub enum ExportTarget {
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
    pub what: DeleteSelection,
    pub format: Format,
}

/// The records to delete.
#[derive(Debug)]
pub enum DeleteSelection {
    Records(Vec<String>),
    Passing(Filter),
    Collection { confirmed: bool },
}

#[derive(Debug)]
pub struct GetOptions {
    pub path: PathBuf,
    pub ids: Vec<String>,
    pub format: Format,
}

#[derive(Debug)]
pub struct CountOptions {
    pub path: PathBuf,
    pub filter: Option<Filter>,
    pub format: Format,
}

#[derive(Debug)]
pub struct IdsOptions {
    pub path: PathBuf,
    pub filter: Option<Filter>,
    pub after: Option<String>,
    pub limit: usize,
    pub format: Format,
}

#[derive(Debug)]
pub struct UpdateOptions {
    pub path: PathBuf,
    pub id: String,
    pub metadata: Option<Value>,
    /// Fields to be set; null removes one.
    pub fields: Map<String, Value>,
    pub vector: Option<Vec<f32>>,
    pub format: Format,
}

#[derive(Debug)]
pub struct SnapshotOptions {
    pub path: PathBuf,
    pub target: PathBuf,
    pub format: Format,
}

#[derive(Debug)]
pub struct CompactOptions {
    pub path: PathBuf,
    pub format: Format,
}

#[derive(Debug)]
pub struct RepairOptions {
    pub path: PathBuf,
    pub apply: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct DemoOptions {
    /// Empty selects the questions that belong to the data.
    pub questions: Vec<String>,
    /// The model that makes vectors of the questions.
    pub model: TextModelOptions,
    /// `None` selects the data that the command carries.
    pub data: Option<PathBuf>,
    pub format: Format,
}

impl VectorsOptions {
    pub fn resolve(arguments: VectorsArguments) -> Result<VectorsOptions, Failure> {
        let generate = matches!(&arguments.command, VectorsCommand::Create(create) if create.generate);
        let key = key_source(arguments.key, generate)?;
        if let (Some(key), VectorsCommand::Import(import)) = (&key, &arguments.command)
            && import.file.as_os_str() == "-"
        {
            key.expect_no_input("the collection's new rows")?;
        }
        Ok(VectorsOptions { command: VectorsOption::resolve(arguments.command)?, key })
    }
}

/// Returns the source of the key, or `None` if no key option was given.
fn key_source(arguments: CollectionKeyArguments, generate: bool) -> Result<Option<KeySource>, Failure> {
    let CollectionKeyArguments { key_file, key_env, passphrase_file, passphrase } = arguments;
    let said = [key_file.is_some(), key_env.is_some(), passphrase_file.is_some(), passphrase];
    let count = said.into_iter().filter(|said| *said).count();
    if count > 1 {
        let names = "--key-file, --key-env, --passphrase-file and --passphrase";
        return Err(Failure::Usage(format!("{names}: expected one of them, got {count}")));
    }
    if generate && key_file.is_none() {
        return Err(Failure::Usage("--generate: expected a --key-file as well, which it makes".to_owned()));
    }
    let source = || key(KeyArguments { key_file, key_env, passphrase_file, passphrase });
    Ok((count == 1).then(|| generated(generate, source())))
}

impl VectorsOption {
    fn resolve(command: VectorsCommand) -> Result<VectorsOption, Failure> {
        Ok(match command {
            VectorsCommand::Create(arguments) => VectorsOption::Create(create(arguments)?),
            VectorsCommand::Import(arguments) => VectorsOption::Import(import(arguments)?),
            VectorsCommand::Search(arguments) => VectorsOption::Search(search(arguments)?),
            VectorsCommand::Info(arguments) => VectorsOption::Info(info(arguments)),
            VectorsCommand::Tune(arguments) => VectorsOption::Tune(tune(arguments)?),
            VectorsCommand::Export(arguments) => VectorsOption::Export(export(arguments)?),
            VectorsCommand::Delete(arguments) => VectorsOption::Delete(delete(arguments)?),
            VectorsCommand::Get(arguments) => {
                let (path, ids, format) = (arguments.path, arguments.ids, format(arguments.json));
                VectorsOption::Get(GetOptions { path, ids, format })
            }
            VectorsCommand::Count(arguments) => {
                let (filter, format) = (filter(arguments.filter.as_deref())?, format(arguments.json));
                VectorsOption::Count(CountOptions { path: arguments.path, filter, format })
            }
            VectorsCommand::Ids(arguments) => VectorsOption::Ids(ids(arguments)?),
            VectorsCommand::Update(arguments) => VectorsOption::Update(update(arguments)?),
            VectorsCommand::Snapshot(arguments) => {
                let (path, target, format) = (arguments.path, arguments.target, format(arguments.json));
                VectorsOption::Snapshot(SnapshotOptions { path, target, format })
            }
            VectorsCommand::Compact(arguments) => {
                VectorsOption::Compact(CompactOptions { path: arguments.path, format: format(arguments.json) })
            }
            VectorsCommand::Repair(arguments) => {
                let (path, apply, format) = (arguments.path, arguments.apply, format(arguments.json));
                VectorsOption::Repair(RepairOptions { path, apply, format })
            }
        })
    }
}

impl DemoOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: DemoArguments) -> Result<DemoOptions, Failure> {
        let DemoArguments { questions, model, data, json } = arguments;
        if questions.is_empty() && model.model.is_some() {
            return Err(Failure::Usage("--model: expected a QUESTION as well, for which the model is used".to_owned()));
        }
        questions.iter().try_for_each(|question| not_blank("QUESTION", question))?;
        Ok(DemoOptions { questions, model: TextModelOptions::from(model), data, format: format(json) })
    }
}

impl From<TextModelArguments> for TextModelOptions {
    fn from(arguments: TextModelArguments) -> TextModelOptions {
        TextModelOptions { file: arguments.model, vocabulary: arguments.vocabulary }
    }
}

/// Refuses a text without any character but blanks.
fn not_blank(argument: &str, text: &str) -> Result<(), Failure> {
    match text.trim().is_empty() {
        true => Err(Failure::Usage(format!("{argument}: expected a text, got an empty one"))),
        false => Ok(()),
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
    let weak_passphrase = arguments.weak_passphrase;
    Ok(CreateOptions { path: arguments.path, schema, weak_passphrase, format: format(arguments.json) })
}

fn import(arguments: ImportArguments) -> Result<ImportOptions, Failure> {
    let file = (arguments.file.as_os_str() != "-").then_some(arguments.file);
    let kind = match (&arguments.format, &file) {
        (Some(name), _) => kind_of("--format", Path::new(&format!("file.{name}")))?,
        (None, Some(file)) => kind_of("FILE", file)?,
        (None, None) => FileKind::JsonLines,
    };
    let named = matches!(kind, FileKind::Parquet | FileKind::Arrow);
    if !named && (arguments.vector_column.is_some() || arguments.id_column.is_some()) {
        return Err(Failure::Usage("--vector-column and --id-column: the file has no columns with names".to_owned()));
    }
    Ok(ImportOptions {
        path: arguments.path,
        file,
        kind,
        records: arguments.records,
        columns: ColumnNames { vector: arguments.vector_column, id: arguments.id_column },
        id_prefix: arguments.id_prefix,
        replace: arguments.replace,
        format: format(arguments.json),
    })
}

fn search(arguments: SearchArguments) -> Result<SearchOptions, Failure> {
    if arguments.model.model.is_some() && arguments.text.is_none() {
        return Err(Failure::Usage("--model: expected --text as well, for which the model is used".to_owned()));
    }
    let query = match (arguments.vector, arguments.id, arguments.text) {
        (Some(text), _, _) => query(&text)?,
        (None, Some(id), _) => Query::Record(id),
        (None, None, Some(text)) => {
            not_blank("--text", &text)?;
            Query::Text { text, model: TextModelOptions::from(arguments.model) }
        }
        (None, None, None) => return Err(Failure::Usage("expected --vector, --id or --text".to_owned())),
    };
    let filter = filter(arguments.filter.as_deref())?;
    arguments.rerank.map_or(Ok(()), |times| within("--rerank", times, RERANK_MAX))?;
    if let Some(score) = arguments.within.filter(|score| !score.is_finite()) {
        return Err(Failure::Usage(format!("--within: expected a finite number, got {score}")));
    }
    arguments.nprobe.map_or(Ok(()), |nprobe| within("--nprobe", nprobe, LISTS_MAX))?;
    Ok(SearchOptions {
        path: arguments.path,
        query,
        k: hits(arguments.k)?,
        filter,
        device: arguments.device.as_deref().map(device).transpose()?,
        nprobe: arguments.nprobe,
        rerank: arguments.rerank,
        offset: arguments.offset,
        within: arguments.within,
        format: format(arguments.json),
    })
}

fn filter(text: Option<&str>) -> Result<Option<Filter>, Failure> {
    let read = |text| Filter::from_argument(text).map_err(|error| Failure::Usage(format!("--filter: {error}")));
    text.map(read).transpose()
}

fn ids(arguments: IdsArguments) -> Result<IdsOptions, Failure> {
    Ok(IdsOptions {
        filter: filter(arguments.filter.as_deref())?,
        path: arguments.path,
        after: arguments.after,
        limit: arguments.limit.unwrap_or(usize::MAX),
        format: format(arguments.json),
    })
}

fn update(arguments: UpdateArguments) -> Result<UpdateOptions, Failure> {
    let json = |text: &String| -> Result<Value, Failure> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Failure::Usage(format!("--metadata: expected a JSON object, or null; {error}")))?;
        match value.is_object() || value.is_null() {
            true => Ok(value),
            false => Err(Failure::Usage(format!("--metadata: expected a JSON object, or null; got {value}"))),
        }
    };
    Ok(UpdateOptions {
        fields: arguments.set.iter().map(|text| field(text)).collect::<Result<_, Failure>>()?,
        metadata: arguments.metadata.as_ref().map(json).transpose()?,
        vector: arguments.vector.as_deref().map(vector).transpose()?,
        path: arguments.path,
        id: arguments.id,
        format: format(arguments.json),
    })
}

/// Parses a field and its new value.
fn field(text: &str) -> Result<(String, Value), Failure> {
    match text.split_once('=').filter(|(field, _)| !field.is_empty()) {
        Some((field, value)) => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((field.to_owned(), value))
        }
        None => {
            Err(Failure::Usage(format!("--set: expected FIELD=VALUE, such as rank=3; got {}", shortened(text, 40))))
        }
    }
}

/// Parses a vector from the command line.
fn vector(text: &str) -> Result<Vec<f32>, Failure> {
    let vector: Vec<f32> = serde_json::from_str(text).map_err(|_| {
        Failure::Usage(format!(
            "--vector: expected a JSON list of numbers such as [0.1, 0.2], @FILE, or - for the standard input; got {}",
            shortened(text, 40)
        ))
    })?;
    match vector.is_empty() {
        true => Err(Failure::Usage("--vector: expected a JSON list of numbers, got an empty one".to_owned())),
        false => Ok(vector),
    }
}

fn query(text: &str) -> Result<Query, Failure> {
    if matches!(text, "-" | "@-") {
        return Ok(Query::Input);
    }
    if let Some(file) = text.strip_prefix('@') {
        return Ok(Query::File(PathBuf::from(file)));
    }
    vector(text).map(Query::Vector)
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
        ExportTarget::Screen
    } else {
        let kind = kind_of("FILE", &arguments.file)?;
        if let Some(records) = &arguments.records
            && is_same_place(&arguments.file, records)
        {
            let reason = format!("--records: expected another file than {}, which gets the vectors", records.display());
            return Err(Failure::Usage(reason));
        }
        ExportTarget::File { path: arguments.file, kind, records: arguments.records }
    };
    Ok(ExportOptions { path: arguments.path, target, overwrite: arguments.overwrite, format: format(arguments.json) })
}

fn delete(arguments: DeleteArguments) -> Result<DeleteOptions, Failure> {
    let what = match filter(arguments.filter.as_deref())? {
        Some(filter) => DeleteSelection::Passing(filter),
        None if arguments.id.is_empty() => DeleteSelection::Collection { confirmed: arguments.yes },
        None => DeleteSelection::Records(arguments.id),
    };
    Ok(DeleteOptions { path: arguments.path, what, format: format(arguments.json) })
}

fn hits(k: usize) -> Result<usize, Failure> {
    within("--k", k, K_MAX).map(|()| k)
}

/// Refuses a number outside 1 to `max`.
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
