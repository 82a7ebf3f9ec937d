//! Independent figures: small text files made by the scripts beside them.
//!
//! One tensor per line: `name dtype dims: values`, such as `a f32 2x3: 1 2 3 4 5 6`. A scalar's
//! dims are `-`; `nan`, `inf` and `-inf` are values; a complex element is two values. Lines that
//! start with `#` name the program that made the file, and the versions used.

use std::collections::BTreeMap;

use panoply_core::{Complex64, DType, Error, Result, Tensor};

use crate::values::tensor_of;

/// The tensors of one file, by name.
#[derive(Clone, Debug)]
pub struct Fixture {
    tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Fixture> {
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        Ok(Fixture { tensors: lines.map(parse_line).collect::<Result<_>>()? })
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let known = || self.tensors.keys().cloned().collect::<Vec<_>>().join(", ");
        self.tensors.get(name).ok_or_else(|| Error::invalid("fixture", format!("one of {}", known()), name))
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

fn parse_line(line: &str) -> Result<(String, Tensor)> {
    let bad = |what: &str| Error::invalid("fixture line", "name dtype dims: values", format!("{what} in {line:.60}"));
    let (head, values) = line.split_once(':').ok_or_else(|| bad("no colon"))?;
    let mut head = head.split_whitespace();
    let (Some(name), Some(dtype), Some(dims), None) = (head.next(), head.next(), head.next(), head.next()) else {
        return Err(bad("not three words before the colon"));
    };
    let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype).ok_or_else(|| bad("unknown dtype"))?;
    let dims: Vec<usize> = match dims {
        "-" => Vec::new(),
        dims => dims.split('x').map(|dim| dim.parse().map_err(|_| bad("a bad dimension"))).collect::<Result<_>>()?,
    };
    let values: Vec<f64> =
        values.split_whitespace().map(|value| value.parse().map_err(|_| bad("a bad value"))).collect::<Result<_>>()?;
    let tensor = match dtype {
        DType::Complex64 => {
            let pairs = values.chunks_exact(2).map(|pair| Complex64::new(pair[0] as f32, pair[1] as f32));
            Tensor::from_vec(pairs.collect(), dims)?
        }
        _ if dims.iter().product::<usize>() == values.len() => tensor_of(dtype, &dims, &values),
        _ => return Err(bad("a wrong number of values")),
    };
    Ok((name.to_owned(), tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_tensors() {
        let fixture = Fixture::parse("# made by hand\na f32 2x2: 1 -2.5 nan inf\nb c64 1: 1 2\ns i32 -: 7\n").unwrap();
        let values = fixture.tensor("a").unwrap().to_vec::<f32>().unwrap();
        assert_eq!((values[1], values[2].is_nan(), values[3]), (-2.5, true, f32::INFINITY));
        assert_eq!(fixture.tensor("b").unwrap().to_vec::<Complex64>().unwrap(), [Complex64::new(1.0, 2.0)]);
        assert_eq!(fixture.tensor("s").unwrap().shape().rank(), 0);
        assert!(fixture.tensor("c").is_err());
        for bad in ["a f32 2", "a f32 2: 1", "a f99 1: 1", "a f32 x: 1", "a f32 1: one", "a f32: 1"] {
            assert!(Fixture::parse(bad).is_err(), "{bad}");
        }
    }
}
