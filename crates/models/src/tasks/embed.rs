//! Embeddings of texts and pictures, and scores for rows of features.

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::picture::{Fit, Frame, Normalisation, Picture};
use crate::text::{Tokenizer, Tokens};

/// The inputs of a text model, identified by their names: numbers of pieces, the mask, and the
/// sentence that a piece belongs to.
pub fn text_inputs<'m>(model: &'m Model, tokens: &Tokens) -> Result<Vec<(&'m str, Array)>> {
    let input = |port: &'m crate::Port| {
        let name = port.name.to_ascii_lowercase();
        let array = match name {
            name if name.contains("mask") => tokens.mask()?,
            name if name.contains("type") || name.contains("segment") => tokens.sentence()?,
            name if name.contains("id") || model.inputs().len() == 1 => tokens.ids()?,
            _ => return Err(Error::unsupported(format!("the input {:?} of a model of text", port.name))),
        };
        let array = match port.kind {
            Some(ElementType::I32) => Array::from_integers(ElementType::I32, array.dims(), &array.to_integers()?)?,
            _ => array,
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
    let values = output.to_floats()?;
    match *output.dims() {
        [rows, width] if rows == tokens.rows => Ok(values.chunks_exact(width.max(1)).map(unit).collect()),
        [rows, len, width] if (rows, len) == (tokens.rows, tokens.len) => {
            let rows = (0..rows).map(|row| {
                let mut mean = vec![0.0; width];
                for place in (0..len).filter(|place| tokens.mask[row * len + place] == 1) {
                    let piece = &values[(row * len + place) * width..][..width];
                    mean.iter_mut().zip(piece).for_each(|(sum, value)| *sum += value);
                }
                unit(&mean)
            });
            Ok(rows.collect())
        }
        _ => Err(Error::unsupported(format!("embeddings in an output of {output:?}"))),
    }
}

/// A unit vector for a picture.
pub fn embed_pictures(model: &Model, picture: &Picture, normalisation: Normalisation) -> Result<Vec<f32>> {
    let port = model.inputs().first().ok_or_else(|| Error::invalid("a model of pictures", "an input", "none"))?;
    let frame = Frame::of(port, None);
    let frame = frame.ok_or_else(|| Error::invalid("a model", "an input that is a picture", port.shape_text()))?;
    let (array, _) = picture.array(&frame, Fit::Crop, normalisation)?;
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

/// A vector scaled to length one. A zero vector stays zero.
fn unit(vector: &[f64]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
    vector.iter().map(|value| (value * scale) as f32).collect()
}
