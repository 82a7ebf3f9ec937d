//! Elements written to indexed positions.

use super::call::{Call, axis_of, one};
use super::gather::{element_places, nd_place, nd_rows, row_places};
use super::index::{around, index_of};
use crate::array::{Array, Scalar, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// Combines new elements with old ones.
fn joined(kind: ElementType, reduction: &str, old: &Array, new: &Array) -> Result<Array> {
    if kind.is_float() {
        let join: fn(f64, f64) -> f64 = match reduction {
            "add" => |a, b| a + b,
            "mul" => |a, b| a * b,
            "max" => f64::max,
            _ => f64::min,
        };
        let values: Vec<f64> = old.to_floats()?.into_iter().zip(new.to_floats()?).map(|(a, b)| join(a, b)).collect();
        return Array::from_floats(kind, old.dims(), &values);
    }
    let join: fn(i128, i128) -> i128 = match reduction {
        "add" => |a, b| a + b,
        "mul" => i128::wrapping_mul,
        "max" => i128::max,
        _ => i128::min,
    };
    let values: Vec<i128> = old.to_integers()?.into_iter().zip(new.to_integers()?).map(|(a, b)| join(a, b)).collect();
    Array::from_integers(kind, old.dims(), &values)
}

/// A number type that is combined without conversion. Integers wrap.
trait Join: Scalar {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

macro_rules! join {
    ($($type:ty, $add:expr, $mul:expr;)*) => {$(
        impl Join for $type {
            fn add(self, other: Self) -> Self {
                $add(self, other)
            }
            fn mul(self, other: Self) -> Self {
                $mul(self, other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
        }
    )*};
}
join! {
    f32, |a, b| a + b, |a, b| a * b;
    f64, |a, b| a + b, |a, b| a * b;
    i64, i64::wrapping_add, i64::wrapping_mul;
    i32, i32::wrapping_add, i32::wrapping_mul;
}

fn put_numbers<T: Join>(x: &Array, updates: &Array, run: usize, places: &[usize], reduction: &str) -> Result<Array> {
    let (old, new) = (x.as_slice::<T>()?, updates.as_slice::<T>()?);
    let mut unaligned = None;
    let array = Array::build(x.kind(), x.dims(), |bytes| match bytemuck::try_cast_slice_mut(bytes) {
        Ok(target) => {
            target.copy_from_slice(old);
            match reduction {
                "add" => join_runs(target, new, run, places, T::add),
                "mul" => join_runs(target, new, run, places, T::mul),
                "max" => join_runs(target, new, run, places, T::larger),
                _ => join_runs(target, new, run, places, T::smaller),
            }
        }
        Err(error) => unaligned = Some(Error::invalid("an array", "aligned memory", error)),
    })?;
    unaligned.map_or(Ok(array), Err)
}

fn join_runs<T: Copy>(target: &mut [T], new: &[T], run: usize, places: &[usize], join: impl Fn(T, T) -> T) {
    for (place, new) in places.iter().zip(new.chunks_exact(run.max(1))) {
        target[*place..][..run].iter_mut().zip(new).for_each(|(old, new)| *old = join(*old, *new));
    }
}

/// Writes runs of updates to `places`, one after the other.
fn put(x: &Array, updates: &Array, run: usize, places: &[usize], reduction: &str) -> Result<Array> {
    if !matches!(reduction, "none" | "add" | "mul" | "max" | "min") {
        return Err(Error::invalid("reduction", "none, add, mul, max or min", reduction));
    }
    if x.kind() != updates.kind() || updates.len() != places.len() * run {
        let expected = format!("{} elements of {}", places.len() * run, x.kind());
        return Err(Error::invalid("updates", expected, format!("{updates:?}")));
    }
    if x.kind() == ElementType::String {
        let mut texts = x.as_strings()?.to_vec();
        for (place, new) in places.iter().zip(updates.as_strings()?.chunks(run.max(1))) {
            texts[*place..*place + run].clone_from_slice(new);
        }
        return Array::from_strings(texts, x.dims());
    }
    let made = match (x.kind(), reduction) {
        (_, "none") => None,
        (ElementType::F32, _) => Some(put_numbers::<f32>(x, updates, run, places, reduction)),
        (ElementType::F64, _) => Some(put_numbers::<f64>(x, updates, run, places, reduction)),
        (ElementType::I64, _) => Some(put_numbers::<i64>(x, updates, run, places, reduction)),
        (ElementType::I32, _) => Some(put_numbers::<i32>(x, updates, run, places, reduction)),
        _ => None,
    };
    if let Some(made) = made {
        return made;
    }
    let (size, kind) = (x.kind().size_bytes(), x.kind());
    let mut failed = Ok(());
    let array = Array::build(kind, x.dims(), |bytes| {
        bytes.copy_from_slice(x.bytes());
        if run == 0 {
            return;
        }
        for (place, new) in places.iter().zip(updates.bytes().chunks_exact(run * size)) {
            let target = &mut bytes[place * size..][..run * size];
            if reduction == "none" {
                target.copy_from_slice(new);
                continue;
            }
            let both =
                Array::from_bytes(kind, [run], target).and_then(|old| Ok((old, Array::from_bytes(kind, [run], new)?)));
            match both.and_then(|(old, new)| joined(kind, reduction, &old, &new)) {
                Ok(sum) => target.copy_from_slice(sum.bytes()),
                Err(error) => failed = Err(error),
            }
        }
    })?;
    failed.map(|()| array)
}

pub(crate) fn scatter_elements(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices, updates) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let reduction = call.text("reduction", "none")?;
    if updates.dims() != indices.dims() {
        return Err(Error::invalid(
            "updates",
            format!("as many as there are indices, {indices:?}"),
            format!("{updates:?}"),
        ));
    }
    if let Some((places, run)) = row_places(x, indices, call.int("axis", 0)?)? {
        return one(put(x, updates, run, &places, reduction));
    }
    let places = element_places(x, indices, call.int("axis", 0)?)?;
    one(put(x, updates, 1, &places, reduction))
}

pub(crate) fn scatter_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices, updates) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let width = indices.dims().last().copied().unwrap_or(0);
    if width > x.dims().len() || indices.dims().is_empty() {
        return Err(Error::invalid("indices", format!("those of {x:?}"), format!("{indices:?}")));
    }
    let (rows, inner) = nd_rows(x.dims(), width);
    let index = indices.to_i64s()?;
    let count = host_count(&indices.dims()[..indices.dims().len() - 1])?;
    let places: Vec<usize> =
        (0..count).map(|tuple| nd_place(&index[tuple * width..][..width], &rows)).collect::<Result<_>>()?;
    one(put(x, updates, inner, &places, call.text("reduction", "none")?))
}

/// `TensorScatter`: replaces rows of a cache, from a position of each batch on.
pub(crate) fn tensor_scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (cache, update) = (call.array(0)?, call.array(1)?);
    let axis = axis_of(call.int("axis", -2)?, cache.dims().len())?;
    let circular = match call.text("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(Error::invalid("mode", "linear or circular", other)),
    };
    let batch = cache.dims().first().copied().unwrap_or(0);
    let starts = call.optional_ints(2)?.unwrap_or_else(|| vec![0; batch]);
    let (outer, len, inner) = around(cache.dims(), axis);
    let pairs = cache.dims().iter().zip(update.dims()).enumerate();
    if update.dims().len() != cache.dims().len() || pairs.clone().any(|(at, (a, b))| at != axis && a != b) {
        return Err(Error::invalid("an update", format!("{cache:?} but for axis {axis}"), format!("{update:?}")));
    }
    let new = update.dims()[axis];
    host_count(&[outer, new])?;
    if starts.len() != batch || axis == 0 {
        return Err(Error::invalid("write_indices", format!("{batch} of them"), starts.len()));
    }
    let mut places = Vec::new();
    for block in 0..outer {
        let start = starts[block / (outer / batch.max(1)).max(1)];
        for row in 0..new as i64 {
            let at = match circular && len > 0 {
                true => (start.rem_euclid(len as i64) + row).rem_euclid(len as i64),
                false => start.saturating_add(row),
            };
            places.push((block * len + index_of(at, len)?) * inner);
        }
    }
    one(put(cache, update, inner, &places, "none"))
}
