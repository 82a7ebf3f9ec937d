//! Ops by name and size, for the command line and for calibration.

use panoply::backend::{Op, Value};
use panoply::prelude::*;

/// A kind of op whose size is given in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    MatMul,
    Map,
    Reduce,
    Scan,
    Sort,
    Softmax,
    LayerNorm,
    Transpose,
    TopK,
    Search,
    Seal,
    Hash,
    Compress,
}

/// Makes the inputs of an op.
pub type MakeTensor<'a> = &'a dyn Fn(&[usize]) -> panoply::Result<Tensor>;

/// Any op; its output is an untyped `Value`.
#[derive(Clone)]
pub struct AnyOp(pub Op);

impl Operation for AnyOp {
    type Output = Value;

    fn into_op(self) -> panoply::Result<Op> {
        Ok(self.0)
    }

    fn output(value: Value) -> panoply::Result<Value> {
        Ok(value)
    }
}

impl OpKind {
    pub const ALL: [OpKind; 13] = [
        OpKind::MatMul,
        OpKind::Map,
        OpKind::Reduce,
        OpKind::Scan,
        OpKind::Sort,
        OpKind::Softmax,
        OpKind::LayerNorm,
        OpKind::Transpose,
        OpKind::TopK,
        OpKind::Search,
        OpKind::Seal,
        OpKind::Hash,
        OpKind::Compress,
    ];

    /// The op's name, as in metrics and receipts.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::MatMul => "matmul",
            OpKind::Map => "map",
            OpKind::Reduce => "reduce",
            OpKind::Scan => "scan",
            OpKind::Sort => "sort",
            OpKind::Softmax => "softmax",
            OpKind::LayerNorm => "layernorm",
            OpKind::Transpose => "transpose",
            OpKind::TopK => "topk",
            OpKind::Search => "search",
            OpKind::Seal => "seal",
            OpKind::Hash => "hash",
            OpKind::Compress => "compress",
        }
    }

    /// The names of all ops, as an enumeration in a sentence.
    pub fn names() -> String {
        let names = OpKind::ALL.map(OpKind::name);
        let (last, others) = names.split_last().unwrap_or((&"", &[]));
        format!("{} or {last}", others.join(", "))
    }

    pub fn parse(name: &str) -> Option<OpKind> {
        OpKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The form of the op's size, for messages.
    pub fn size_form(self) -> &'static str {
        match self {
            OpKind::MatMul => "N or MxKxN",
            OpKind::Map | OpKind::Reduce | OpKind::Scan | OpKind::Sort => "N",
            OpKind::Softmax | OpKind::LayerNorm | OpKind::Transpose | OpKind::TopK => "N or ROWSxCOLUMNS",
            OpKind::Search => "ROWSxDIMS or ROWSxDIMSxQUERIES",
            OpKind::Seal | OpKind::Hash | OpKind::Compress => "BYTES or MESSAGESxBYTES",
        }
    }

    /// Makes the op of this size. `None` if the numbers do not have the form of
    /// [`OpKind::size_form`].
    pub fn op(self, dims: &[usize], make: MakeTensor<'_>) -> Option<panoply::Result<Op>> {
        Some(match (self, dims) {
            (OpKind::MatMul, [n]) => matmul(*n, *n, *n, make),
            (OpKind::MatMul, [m, k, n]) => matmul(*m, *k, *n, make),
            (OpKind::Map, [n]) => with(&[*n], make, |x| Map::add(x, x).into_op()),
            (OpKind::Reduce, [n]) => with(&[*n], make, |x| Reduce::sum(x).into_op()),
            (OpKind::Scan, [n]) => with(&[*n], make, |x| Scan::sum(x).into_op()),
            (OpKind::Sort, [n]) => with(&[*n], make, |x| Sort::new(x).into_op()),
            (OpKind::Softmax, dims) => with(&rows(dims)?, make, |x| Softmax::new(x).into_op()),
            (OpKind::LayerNorm, dims) => with(&rows(dims)?, make, |x| LayerNorm::new(x).into_op()),
            (OpKind::Transpose, dims) => with(&rows(dims)?, make, |x| Transpose::new(x).into_op()),
            (OpKind::TopK, dims) => {
                let dims = rows(dims)?;
                with(&dims, make, |x| TopK::new(x, dims[1].min(10)).into_op())
            }
            (OpKind::Search, [rows, dims]) => search(*rows, *dims, 1, make),
            (OpKind::Search, [rows, dims, queries]) => search(*rows, *dims, *queries, make),
            (OpKind::Seal, dims) => {
                let first = Nonces::Counted { prefix: [0; 4], first: 0 };
                let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]);
                let all = messages(dims)?;
                key.and_then(|key| Seal::new(&key, first, all?).into_op())
            }
            (OpKind::Hash, dims) => messages(dims)?.and_then(|all| Hash::new(HashAlgorithm::Sha256, all).into_op()),
            (OpKind::Compress, dims) => messages(dims)?.and_then(|all| Compress::new(Format::Zstd, all).into_op()),
            _ => return None,
        })
    }

    /// Returns sizes from tiny to large, for calibrations and curves.
    pub fn sizes(self) -> Vec<Vec<usize>> {
        match self {
            OpKind::MatMul => (3..=13).map(|power| vec![1 << power]).collect(),
            OpKind::Softmax | OpKind::LayerNorm | OpKind::Transpose | OpKind::TopK => {
                (3..=13).map(|power| vec![1 << power]).collect()
            }
            OpKind::Search => (4..=20).step_by(2).map(|power| vec![1 << power, 128]).collect(),
            _ => (4..=26).step_by(2).map(|power| vec![1 << power]).collect(),
        }
    }
}

/// Parses a size such as `1024` or `512x1024x256`.
pub fn parse_size(text: &str) -> Option<Vec<usize>> {
    text.split('x').map(|part| part.parse().ok().filter(|dim| *dim > 0)).collect()
}

/// Formats a size as it is typed.
pub fn size_text(dims: &[usize]) -> String {
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

fn rows(dims: &[usize]) -> Option<[usize; 2]> {
    match dims {
        [n] => Some([*n, *n]),
        [rows, columns] => Some([*rows, *columns]),
        _ => None,
    }
}

/// Makes messages of one length. `None` unless there are one or two numbers.
fn messages(dims: &[usize]) -> Option<panoply::Result<Messages>> {
    let (count, len) = match dims {
        [len] => (1, *len),
        [count, len] => (*count, *len),
        _ => return None,
    };
    let bytes = count.checked_mul(len).map(|bytes| Bytes::from_vec((0..bytes).map(|at| (at / 7) as u8).collect()));
    let overflow = || panoply::Error::SizeOverflow { what: "messages", got: dims.to_vec(), limit: isize::MAX as usize };
    Some(bytes.ok_or_else(overflow).and_then(|bytes| Messages::split(bytes, len)))
}

fn with(dims: &[usize], make: MakeTensor<'_>, op: impl Fn(&Tensor) -> panoply::Result<Op>) -> panoply::Result<Op> {
    op(&make(dims)?)
}

fn matmul(m: usize, k: usize, n: usize, make: MakeTensor<'_>) -> panoply::Result<Op> {
    MatMul::new(&make(&[m, k])?, &make(&[k, n])?).into_op()
}

fn search(rows: usize, dims: usize, queries: usize, make: MakeTensor<'_>) -> panoply::Result<Op> {
    Search::new(&make(&[rows, dims])?, &make(&[queries, dims])?, Metric::Dot, 10).into_op()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_ops_of_its_sizes() {
        let make = |dims: &[usize]| Tensor::scalar(1.0_f32)?.broadcast_to(dims);
        for kind in OpKind::ALL {
            assert_eq!(OpKind::parse(kind.name()), Some(kind));
            for size in kind.sizes() {
                assert_eq!(parse_size(&size_text(&size)), Some(size.clone()));
                let op = kind.op(&size, &make).unwrap().unwrap();
                assert_eq!(panoply::Describe::name(&op), kind.name());
            }
        }
        assert!(OpKind::Map.op(&[1, 2, 3], &make).is_none());
        assert_eq!((parse_size("3x"), parse_size("0"), parse_size("-1")), (None, None, None));
    }
}
