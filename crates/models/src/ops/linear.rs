//! Matrix products and sums over indices.

use super::call::{Call, one};
use super::index::{broadcast, broadcast_strides, strides};
use crate::array::{Array, count_of, host_count};
use crate::bounds::work;
use crate::error::{Error, Result};
use crate::value::Value;

/// A number type for sums of products: f64 for floats, 128-bit integers for integers. The latter
/// keep all bits that narrower types keep.
pub(crate) trait Accumulator: Copy {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

impl Accumulator for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
}

impl Accumulator for i128 {
    const ZERO: i128 = 0;
    const ONE: i128 = 1;
    fn plus(self, other: i128) -> i128 {
        self.wrapping_add(other)
    }
    fn times(self, other: i128) -> i128 {
        self.wrapping_mul(other)
    }
}

/// Numbers with a shape.
pub(crate) struct Grid<T = f64> {
    pub dims: Vec<usize>,
    pub values: Vec<T>,
}

impl Grid<f64> {
    pub(crate) fn of(array: &Array) -> Result<Grid> {
        Ok(Grid { dims: array.dims().to_vec(), values: array.to_floats()? })
    }
}

/// The product of two stacks of matrices, as NumPy's `matmul`.
pub(crate) fn product<T: Accumulator>(a: &Grid<T>, b: &Grid<T>) -> Result<Grid<T>> {
    if a.dims.is_empty() || b.dims.is_empty() {
        return Err(Error::invalid("a product", "at least one dimension", "none"));
    }
    let mut a_dims = a.dims.clone();
    let mut b_dims = b.dims.clone();
    if a.dims.len() == 1 {
        a_dims.insert(0, 1);
    }
    if b.dims.len() == 1 {
        b_dims.push(1);
    }
    let ([a_batch @ .., m, k], [b_batch @ .., rows, n]) = (&*a_dims, &*b_dims) else {
        return Err(Error::invalid("a product", "matrices", "none"));
    };
    if k != rows {
        return Err(Error::invalid("a product", format!("{k} rows on the right"), rows));
    }
    let batch = broadcast([a_batch, b_batch])?;
    let (m, k, n) = (*m, *k, *n);
    let mut dims = batch.clone();
    dims.extend([m, n]);
    work(&[count_of(&dims)?, k])?;
    let mut values = vec![T::ZERO; host_count(&dims)?];
    let places = |own: &[usize]| Ok::<_, Error>(super::index::Positions::new(&batch, &broadcast_strides(own, &batch)?));
    if m * n > 0 {
        for ((target, a_at), b_at) in values.chunks_exact_mut(m * n).zip(places(a_batch)?).zip(places(b_batch)?) {
            let (left, right) = (&a.values[a_at * m * k..][..m * k], &b.values[b_at * k * n..][..k * n]);
            for (row, target) in target.chunks_exact_mut(n).enumerate() {
                for (at, factor) in left[row * k..][..k].iter().enumerate() {
                    target
                        .iter_mut()
                        .zip(&right[at * n..][..n])
                        .for_each(|(sum, value)| *sum = sum.plus(factor.times(*value)));
                }
            }
        }
    }
    if b.dims.len() == 1 {
        dims.pop();
    }
    if a.dims.len() == 1 {
        dims.remove(batch.len());
    }
    Ok(Grid { dims, values })
}

pub(crate) fn matmul(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.array(0)?, call.array(1)?);
    if a.kind() != b.kind() {
        return Err(Error::invalid("an element type", a.kind().name(), b.kind()));
    }
    if a.kind().is_integer() {
        let whole = |array: &Array| Ok::<_, Error>(Grid { dims: array.dims().to_vec(), values: array.to_integers()? });
        let Grid { dims, values } = product(&whole(a)?, &whole(b)?)?;
        return one(Array::from_integers(a.kind(), dims, &values));
    }
    let Grid { dims, values } = product(&Grid::of(a)?, &Grid::of(b)?)?;
    one(Array::from_floats(a.kind(), dims, &values))
}

pub(crate) fn gemm(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.array(0)?, call.array(1)?);
    let turned = |array: &Array, name| match (call.flag(name, false)?, array.dims().len()) {
        (_, rank) if rank != 2 => Err(Error::invalid("Gemm", "matrices", format!("{array:?}"))),
        (true, _) => super::index::transpose(array, &[1, 0]),
        (false, _) => Ok(array.clone()),
    };
    let mut sum = product(&Grid::of(&turned(a, "transA")?)?, &Grid::of(&turned(b, "transB")?)?)?;
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    sum.values.iter_mut().for_each(|value| *value *= alpha);
    if let Some(c) = call.optional(2)? {
        let summands = c.to_floats()?;
        let places = super::index::Positions::broadcast(c.dims(), &sum.dims)?;
        sum.values.iter_mut().zip(places).for_each(|(value, place)| *value += beta * summands[place]);
    }
    one(Array::from_floats(a.kind(), &sum.dims, &sum.values))
}

/// The letters of one operand. The dimensions that `...` stands for are negative numbers.
fn letters(term: &str, rank: usize) -> Result<Vec<i32>> {
    let term: String = term.chars().filter(|letter| !letter.is_whitespace()).collect();
    let plain = |text: &str| text.chars().map(|letter| letter as i32).collect::<Vec<_>>();
    match term.split_once("...") {
        None => Ok(plain(&term)),
        Some((front, back)) => {
            let (mut list, back) = (plain(front), plain(back));
            let hidden = rank.checked_sub(list.len() + back.len());
            let hidden = hidden.ok_or_else(|| Error::invalid("equation", format!("{rank} letters"), term.clone()))?;
            list.extend((0..hidden).map(|place| place as i32 - hidden as i32));
            list.extend(back);
            Ok(list)
        }
    }
}

pub(crate) fn einsum(call: &Call<'_>) -> Result<Vec<Value>> {
    let equation = call.text("equation", "")?;
    let arrays = call.arrays(0)?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != arrays.len() || arrays.is_empty() {
        return Err(Error::invalid("equation", format!("{} operands", arrays.len()), equation));
    }
    let inputs: Vec<Vec<i32>> =
        terms.iter().zip(&arrays).map(|(term, array)| letters(term, array.dims().len())).collect::<Result<_>>()?;
    let mut sizes: Vec<(i32, usize)> = Vec::new();
    for (term, array) in inputs.iter().zip(&arrays) {
        if term.len() != array.dims().len() {
            return Err(Error::invalid("equation", format!("{} letters", array.dims().len()), equation));
        }
        for (letter, dim) in term.iter().zip(array.dims()) {
            match sizes.iter_mut().find(|(known, _)| known == letter) {
                Some((_, size)) if *size == *dim || *dim == 1 => {}
                Some((_, size)) if *size == 1 => *size = *dim,
                Some((_, size)) => return Err(Error::invalid("equation", format!("a size of {size}"), dim)),
                None => sizes.push((*letter, *dim)),
            }
        }
    }
    let output: Vec<i32> = match right {
        Some(right) => {
            let hidden = sizes.iter().filter(|(letter, _)| *letter < 0).count();
            letters(right, right.chars().filter(|letter| letter.is_alphabetic()).count() + hidden)?
        }
        None => {
            let count = |letter: i32| inputs.iter().flatten().filter(|known| **known == letter).count();
            let mut once: Vec<i32> =
                sizes.iter().map(|(letter, _)| *letter).filter(|letter| *letter < 0 || count(*letter) == 1).collect();
            once.sort_unstable();
            once
        }
    };
    let mut letters = output.clone();
    letters.sort_unstable();
    letters.dedup();
    if letters.len() != output.len() {
        return Err(Error::invalid("equation", "each letter once behind the arrow", equation));
    }
    let kind = arrays[0].kind();
    if let Some(other) = arrays.iter().find(|array| array.kind() != kind) {
        return Err(Error::invalid("an element type", kind.name(), other.kind()));
    }
    one(match kind.is_integer() {
        true => {
            let numbers = arrays.iter().map(|array| array.to_integers()).collect::<Result<Vec<_>>>()?;
            let Grid { dims, values } = contract(&arrays, numbers, &inputs, &output, &sizes)?;
            Array::from_integers(kind, dims, &values)
        }
        false => {
            let numbers = arrays.iter().map(|array| array.to_floats()).collect::<Result<Vec<_>>>()?;
            let Grid { dims, values } = contract(&arrays, numbers, &inputs, &output, &sizes)?;
            Array::from_floats(kind, dims, &values)
        }
    })
}

/// The sum over all letters that the output lacks.
fn contract<T: Accumulator>(
    arrays: &[&Array],
    numbers: Vec<Vec<T>>,
    inputs: &[Vec<i32>],
    output: &[i32],
    sizes: &[(i32, usize)],
) -> Result<Grid<T>> {
    let size = |letter: &i32| sizes.iter().find(|(known, _)| known == letter).map(|(_, size)| *size);
    let summed: Vec<i32> = sizes.iter().map(|(letter, _)| *letter).filter(|letter| !output.contains(letter)).collect();
    let all: Vec<i32> = output.iter().chain(&summed).copied().collect();
    let unknown = || Error::invalid("equation", "letters of the operands", "another in the output");
    let dims: Vec<usize> = all.iter().map(|letter| size(letter).ok_or_else(unknown)).collect::<Result<_>>()?;
    let out_dims = dims[..output.len()].to_vec();
    let (count, inner) = (host_count(&out_dims)?, count_of(&dims[output.len()..])?);
    count_of(&dims)?;
    work(&[count, inner, arrays.len()])?;
    let mut walks = Vec::new();
    for ((array, term), numbers) in arrays.iter().zip(inputs).zip(numbers) {
        let own = strides(array.dims());
        let steps: Vec<isize> = all
            .iter()
            .map(|letter| {
                let places =
                    term.iter().enumerate().filter(|(place, known)| *known == letter && array.dims()[*place] != 1);
                places.map(|(place, _)| own[place]).sum()
            })
            .collect();
        walks.push((numbers, super::index::Positions::new(&dims, &steps)));
    }
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let mut sum = T::ZERO;
        for _ in 0..inner {
            let factors = walks.iter_mut().map(|(values, walk)| walk.next().map_or(T::ZERO, |place| values[place]));
            sum = sum.plus(factors.fold(T::ONE, T::times));
        }
        values.push(sum);
    }
    Ok(Grid { dims: out_dims, values })
}

pub(crate) fn determinant(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let [batch @ .., n, m] = x.dims() else { return Err(Error::invalid("Det", "matrices", format!("{x:?}"))) };
    if n != m {
        return Err(Error::invalid("Det", "square matrices", format!("{x:?}")));
    }
    let n = *n;
    let values = x.to_floats()?;
    work(&[values.len(), n])?;
    let matrices = values.chunks_exact((n * n).max(1)).map(|matrix| {
        let mut rows = matrix.to_vec();
        let mut product = 1.0;
        for column in 0..n {
            let best = (column..n).max_by(|a, b| rows[a * n + column].abs().total_cmp(&rows[b * n + column].abs()));
            let Some(pivot) = best.filter(|row| rows[row * n + column] != 0.0) else { return 0.0 };
            if pivot != column {
                (0..n).for_each(|at| rows.swap(pivot * n + at, column * n + at));
                product = -product;
            }
            product *= rows[column * n + column];
            for row in column + 1..n {
                let factor = rows[row * n + column] / rows[column * n + column];
                (column..n).for_each(|at| rows[row * n + at] -= factor * rows[column * n + at]);
            }
        }
        product
    });
    one(Array::from_floats(x.kind(), batch, &matrices.collect::<Vec<_>>()))
}
