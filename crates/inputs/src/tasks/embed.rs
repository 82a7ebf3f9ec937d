//! Vectors of length one, for texts and pictures.

use crate::error::{Error, Result};
use crate::text::Tokens;

/// A unit vector for each text, from the elements of a model's output with these dimensions. For
/// models that answer per piece it is the mean over the text's pieces.
pub fn text_vectors(dims: &[usize], values: &[f64], tokens: &Tokens) -> Result<Vec<Vec<f32>>> {
    let refused = || Error::unsupported(format!("embeddings in an output of the shape {dims:?}"));
    let count = dims.iter().try_fold(1_usize, |count, dim| count.checked_mul(*dim));
    if count != Some(values.len()) || Some(tokens.mask.len()) != tokens.rows.checked_mul(tokens.len) {
        return Err(refused());
    }
    match *dims {
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
        _ => Err(refused()),
    }
}

/// A vector scaled to length one. A zero vector stays zero.
pub fn unit(vector: &[f64]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
    vector.iter().map(|value| (value * scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_averaged_without_padding() {
        let tokens = Tokens { rows: 2, len: 2, ids: vec![7; 4], mask: vec![1, 1, 1, 0] };
        let values = [3.0, 0.0, 0.0, 4.0, 0.0, 2.0, 9.0, 9.0];
        let made = text_vectors(&[2, 2, 2], &values, &tokens).unwrap();
        assert_eq!(made, [[0.6, 0.8], [0.0, 1.0]]);
        assert_eq!(text_vectors(&[2, 4], &values, &tokens).unwrap().len(), 2);
        assert!(text_vectors(&[3, 2, 2], &values, &tokens).is_err());
    }
}
