//! The text model of `panoply embed`, `panoply vectors search --text` and `panoply demo`: where it
//! is found, and how a collection recognises it.
//!
//! A model is a file, its vocabulary, and the SHA-256 of the file. Without `--model` it is looked
//! for in the folders of [`folders`]: beside the command, then in the user's cache folder.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use panoply::crypto::{Hash, HashAlgorithm};
use panoply::inputs::text::Tokenizer;
use panoply::models::Model;
use panoply::serve::tasks;
use panoply::vector::{Collection, EmbeddingModel, Error};
use panoply::{Bytes, Runtime, learned};

use super::{bytes_of, tokenizer_of};
use crate::configuration::vectors::TextModelOptions;
use crate::failure::{Failure, detail, note};
use crate::missing_model::{DEFAULT_NAME, FILE_NAME, MissingModel};

/// The folder of models, beside the command and in the cache folder.
const FOLDER_NAME: &str = "models";
/// The most models of a folder whose hashes are compared with a collection's model.
const CANDIDATES_MAX: usize = 64;
/// The number of texts per batch, and the most tokens of each text.
const BATCH: usize = 32;
const TOKENS_MAX: usize = 256;

/// A text model that is ready to run.
pub struct TextModel {
    pub model: Model,
    tokenizer: Tokenizer,
}

impl TextModel {
    /// Loads a model and its vocabulary.
    pub fn load(runtime: &Runtime, file: &Path, vocabulary: Option<&Path>) -> Result<TextModel, Failure> {
        let model = super::load(runtime, file)?;
        Ok(TextModel { model, tokenizer: tokenizer_of(file, vocabulary)? })
    }

    /// Computes a vector of length one for each text.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Vec<f32>>, Failure> {
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            let batch = tasks::embed_texts(&self.model, &self.tokenizer, batch, TOKENS_MAX);
            vectors.extend(batch.map_err(anyhow::Error::new)?);
        }
        Ok(vectors)
    }

    /// Loads the model that the options name, or [`DEFAULT_NAME`] from a known folder.
    pub fn named_or_default(runtime: &Runtime, options: &TextModelOptions) -> Result<TextModel, Failure> {
        let file = match &options.file {
            Some(file) => file.clone(),
            None => found(&folders())?,
        };
        TextModel::load(runtime, &file, options.vocabulary.as_deref())
    }

    /// Loads the model for searches by text in a collection: the collection's own model if it is
    /// known. The options may name the file, but no other model.
    pub fn of_collection(
        runtime: &Runtime,
        collection: &Collection,
        options: &TextModelOptions,
    ) -> Result<TextModel, Failure> {
        let Some(own) = collection.embedding_model()? else {
            note(
                "the collection does not say which model made its vectors: if it was another one, the hits mean nothing",
            );
            return TextModel::named_or_default(runtime, options);
        };
        let (file, vocabulary) = match &options.file {
            Some(file) => {
                let got = identity(runtime, file, options.vocabulary.as_deref())?;
                if got.sha256 != own.sha256 {
                    return Err(Error::OtherModel { expected: Box::new(own), got: Box::new(got) }.into());
                }
                (file.clone(), options.vocabulary.clone())
            }
            None => (same_file(runtime, &own)?, own.vocabulary.map(PathBuf::from)),
        };
        TextModel::load(runtime, &file, vocabulary.as_deref())
    }
}

/// Describes a model, so that a collection recognises it.
pub fn identity(runtime: &Runtime, file: &Path, vocabulary: Option<&Path>) -> Result<EmbeddingModel, Failure> {
    let text =
        |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned();
    Ok(EmbeddingModel {
        name: name_of(file),
        sha256: sha256(runtime, file)?,
        file: text(file),
        vocabulary: vocabulary.map(text),
    })
}

/// The name of a model's file without its extension, or of the file's folder if that says more.
fn name_of(file: &Path) -> String {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = absolute.parent().and_then(Path::file_name).filter(|_| absolute.ends_with(FILE_NAME));
    let name = folder.or_else(|| absolute.file_stem());
    name.map_or_else(|| FILE_NAME.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn sha256(runtime: &Runtime, file: &Path) -> Result<String, Failure> {
    let bytes = Bytes::from_vec(bytes_of(file)?);
    let digest = runtime.run(Hash::new(HashAlgorithm::Sha256, bytes)).wait();
    let digest = digest.and_then(|digests| digests.into_one()).map_err(anyhow::Error::new)?;
    let digits = digest.as_slice().map_err(anyhow::Error::new)?.iter().map(|byte| format!("{byte:02x}"));
    Ok(digits.collect())
}

/// The folders in which models are looked for.
fn folders() -> Vec<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|command| Some(command.parent()?.to_owned()));
    let cache = learned::file().and_then(|profile| Some(profile.parent()?.to_owned()));
    beside.into_iter().chain(cache).map(|folder| folder.join(FOLDER_NAME)).collect()
}

/// Finds the file of [`DEFAULT_NAME`].
fn found(folders: &[PathBuf]) -> Result<PathBuf, Failure> {
    let file = folders.iter().map(|folder| folder.join(DEFAULT_NAME).join(FILE_NAME)).find(|file| file.is_file());
    if let Some(file) = &file {
        detail(format!("the text model is {}", file.display()));
    }
    let missing = || MissingModel { wanted: None, looked_in: folders.to_vec() };
    Ok(file.ok_or_else(missing).map_err(anyhow::Error::new)?)
}

/// Finds a file with the hash of a collection's model: where it was last, or in a known folder.
fn same_file(runtime: &Runtime, own: &EmbeddingModel) -> Result<PathBuf, Failure> {
    let folders = folders();
    let candidates = folders.iter().flat_map(|folder| models_in(folder));
    for file in std::iter::once(PathBuf::from(&own.file)).chain(candidates).filter(|file| file.is_file()) {
        if sha256(runtime, &file)? == own.sha256 {
            detail(format!("the text model is {}", file.display()));
            return Ok(file);
        }
    }
    Err(anyhow::Error::new(MissingModel { wanted: Some(own.clone()), looked_in: folders }).into())
}

/// The models in a folder: `NAME/model.onnx` and `NAME.onnx`.
fn models_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let file = |path: PathBuf| match path.is_dir() {
        true => path.join(FILE_NAME),
        false => path,
    };
    let mut files: Vec<PathBuf> = entries.take(CANDIDATES_MAX).map(file).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "onnx"));
    files.sort();
    files
}

/// Stores the model in the collection that its vectors go to. Fails if the records there come from
/// another model.
pub fn remember(collection: &Collection, model: EmbeddingModel) -> Result<(), Failure> {
    if collection.embedding_model()?.is_none() && !collection.is_empty() {
        let records = collection.len();
        note(format!(
            "the collection does not say which model made its {records} records; searches mean nothing unless {model} did"
        ));
        return Ok(());
    }
    Ok(collection.set_embedding_model(model)?)
}

/// Checks that a model makes the same vectors as the one that made `known`, up to rounding.
pub fn expect_family(model: &TextModel, texts: &[&str], known: &[&[f32]]) -> Result<(), Failure> {
    /// With eight-bit weights the cosine stays above this; with another model it is near 0.
    const COSINE_MIN: f32 = 0.95;
    let got = model.embed(texts)?;
    for ((text, got), known) in texts.iter().zip(&got).zip(known) {
        if got.len() != known.len() {
            let (expected, got) = (known.len(), got.len());
            return Err(other_family(&format!("its vectors have {got} components, not {expected}")));
        }
        let cosine = cosine(got, known);
        if cosine < COSINE_MIN || !cosine.is_finite() {
            return Err(other_family(&format!("its vector of “{text}” differs: their cosine is {cosine:.3}")));
        }
    }
    Ok(())
}

fn other_family(reason: &str) -> Failure {
    Failure::Run(anyhow!("this is not the model {DEFAULT_NAME}, which made the vectors of the data: {reason}"))
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    sum(a, b) / (sum(a, a) * sum(b, b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_after_its_file_or_its_folder() {
        for (file, name) in
            [("/a/minilm.onnx", "minilm"), ("/a/all-MiniLM/model.onnx", "all-MiniLM"), ("/model.onnx", "model")]
        {
            assert_eq!(name_of(Path::new(file)), name);
        }
    }

    #[test]
    fn vectors_are_compared_by_direction() {
        assert!((cosine(&[1.0, 0.0], &[5.0, 0.0]) - 1.0).abs() < 1e-6 && cosine(&[1.0, 0.0], &[0.0, 2.0]) == 0.0);
        assert!(cosine(&[0.0], &[1.0]).is_nan());
    }
}
