//! Embeddings of texts and pictures, and scores for rows of features.

use panoply_inputs::picture::{Fit, Normalisation, Picture};
use panoply_inputs::tasks::{text_vectors, unit};
use panoply_inputs::text::{Tokenizer, Tokens};
use panoply_models::{Array, ElementType, Model, Port};

use super::frame::{frame_of, framed};
use crate::error::{Error, Result};

/// The inputs of a text model, identified by their names: numbers of pieces, the mask, and the
/// sentence that a piece belongs to.
pub fn text_inputs<'m>(model: &'m Model, tokens: &Tokens) -> Result<Vec<(&'m str, Array)>> {
    let input = |port: &'m Port| {
        let name = port.name.to_ascii_lowercase();
        let zeros: Vec<i64>;
        let numbers = match name {
            name if name.contains("mask") => &tokens.mask,
            name if name.contains("type") || name.contains("segment") => {
                // All pieces belong to the first sentence.
                zeros = vec![0; tokens.ids.len()];
                &zeros
            }
            name if name.contains("id") || model.inputs().len() == 1 => &tokens.ids,
            _ => return Err(Error::unsupported(format!("the input {:?} of a model of text", port.name))),
        };
        let dims = [tokens.rows, tokens.len];
        let array = match port.kind {
            Some(ElementType::I32) => {
                Array::from_slice(&numbers.iter().map(|number| *number as i32).collect::<Vec<_>>(), dims)?
            }
            _ => Array::from_slice(numbers, dims)?,
        };
        Ok((port.name.as_str(), array))
    };
    model.inputs().iter().map(input).collect()
}

/// A unit vector for each text. For models that answer per piece it is the mean over the text's
/// pieces.
pub fn embed_texts<T: AsRef<str>>(
    model: &Model,
    tokenizer: &Tokenizer,
    texts: &[T],
    len_max: usize,
) -> Result<Vec<Vec<f32>>> {
    let tokens = tokenizer.encode(texts, len_max)?;
    let outputs = model.infer(&text_inputs(model, &tokens)?)?;
    // A model with a pooled output for the whole text names it accordingly.
    let own = outputs.0.iter().find(|(name, array)| name.contains("sentence") && array.dims().len() == 2);
    let output = own.map_or_else(|| outputs.first(), |(_, array)| Ok(array))?;
    Ok(text_vectors(output.dims(), &output.to_floats()?, &tokens)?)
}

/// A unit vector for a picture.
pub fn embed_pictures(model: &Model, picture: &Picture, normalisation: Normalisation) -> Result<Vec<f32>> {
    let port = model.inputs().first().ok_or_else(|| Error::invalid("a model of pictures", "an input", "none"))?;
    let frame = frame_of(port, None);
    let frame = frame.ok_or_else(|| Error::invalid("a model", "an input that is a picture", port.shape_text()))?;
    let (array, _) = framed(picture, &frame, Fit::Crop, normalisation)?;
    Ok(unit(&model.infer(&[(&port.name, array)])?.first()?.to_floats()?))
}

/// The first number of each row of the output, for example the affinity of a user and an item, or
/// the probability of a click.
pub fn score(model: &Model, inputs: &[(&str, Array)]) -> Result<Vec<f32>> {
    let outputs = model.infer(inputs)?;
    let output = outputs.first()?;
    let rows = output.dims().first().copied().unwrap_or(1);
    let width = output.len().checked_div(rows).unwrap_or(0).max(1);
    Ok(output.to_floats()?.chunks_exact(width).map(|row| row[0] as f32).collect())
}
