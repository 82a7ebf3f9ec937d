//! Classes, with their names.

use std::path::Path;

use crate::error::{Error, Result};

/// The largest label file in bytes.
const LABEL_BYTES_MAX: u64 = 1 << 24;

/// One answer of a classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The index of the class.
    pub index: usize,
    /// Its name, if labels are known.
    pub label: Option<String>,
    /// Its probability, 0 to 1.
    pub score: f32,
}

/// The names of classes.
#[derive(Clone, Debug, Default)]
pub struct Labels(Vec<String>);

impl Labels {
    /// Reads a file with one name per line.
    pub fn load(path: impl AsRef<Path>) -> Result<Labels> {
        let path = path.as_ref();
        let error = |cause| Error::file(path, cause);
        let size = std::fs::metadata(path).map_err(error)?.len();
        if size > LABEL_BYTES_MAX {
            return Err(Error::Limit { what: "the bytes of labels", limit: LABEL_BYTES_MAX, got: size });
        }
        let text = std::fs::read_to_string(path).map_err(error)?;
        // Empty lines at the end are no names.
        Ok(Labels(text.trim_end().lines().map(|line| line.trim().to_owned()).collect()))
    }

    /// Reads the labels from the entry `names` of a model's metadata, in the form `{0: 'person', 1:
    /// 'bicycle', …}`.
    pub fn of(metadata: &[(String, String)]) -> Labels {
        let note = metadata.iter().find(|(key, _)| key == "names").map(|(_, text)| text.as_str());
        let mut labels = Vec::new();
        for entry in note.unwrap_or_default().trim_matches(['{', '}']).split(", ") {
            if let Some((index, name)) = entry.split_once(": ")
                && index.trim().parse() == Ok(labels.len())
            {
                labels.push(name.trim_matches(['\'', '"']).to_owned());
            }
        }
        Labels(labels)
    }

    /// The name of a class.
    pub fn get(&self, index: usize) -> Option<String> {
        self.0.get(index).cloned()
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The most probable classes of one row of scores. Scores that do not sum to one are converted to
/// probabilities by softmax.
pub fn classes(scores: &[f64], top: usize, labels: &Labels) -> Vec<Class> {
    let mut scores = scores.to_vec();
    let sum: f64 = scores.iter().sum();
    let is_likelihood = (sum - 1.0).abs() < 1e-2 && scores.iter().all(|score| (-1e-6..=1.0 + 1e-6).contains(score));
    if !is_likelihood {
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let sum: f64 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= sum);
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let class = |index: usize| Class { index, label: labels.get(index), score: scores[index] as f32 };
    order.into_iter().take(top).map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_likelihoods_once() {
        let labels = Labels(vec!["cat".to_owned(), "dog".to_owned()]);
        let likely = classes(&[0.25, 0.75], 5, &labels);
        assert_eq!(likely[0], Class { index: 1, label: Some("dog".to_owned()), score: 0.75 });
        let raw = classes(&[2.0, 2.0, -50.0], 1, &labels);
        assert_eq!((raw.len(), raw[0].index, raw[0].score), (1, 0, 0.5));
    }
}
