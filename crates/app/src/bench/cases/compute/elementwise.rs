//! Cases of elementwise expressions.

use std::collections::VecDeque;

use panoply::prelude::{Expr, Map, Pending, Tensor};

use crate::bench::cases::case::{Amount, Case, MI, Scale, count_name, f32s, scale_of};
use crate::bench::place::{BenchDevice, Runner};

/// Small ops in flight at once.
const MANY_DEPTH: usize = 256;

/// The sum of two vectors.
pub struct AddCase {
    pub elements: usize,
}

impl Case for AddCase {
    fn name(&self) -> String {
        format!("add/f32/{}", count_name(self.elements))
    }

    /// Small vectors are judged by the time alone: it shows the cost of an op, not the speed of
    /// memory.
    fn amount(&self) -> Amount {
        if self.elements < MI { Amount::TimeOnly } else { f32s(3 * self.elements) }
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let mut normals = place.normals();
        place.repeat(Map::add(&normals.tensor([self.elements])?, &normals.tensor([self.elements])?))
    }
}

/// The sum of two vectors, `count` times, with many ops in flight.
pub struct AddsCase {
    pub elements: usize,
    pub count: usize,
}

impl Case for AddsCase {
    fn name(&self) -> String {
        format!("adds/f32/{}x{}", count_name(self.elements), self.count)
    }

    fn amount(&self) -> Amount {
        Amount::TimeOnly
    }

    fn scale(&self) -> Scale {
        Scale::Small
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (mut normals, count, place) = (place.normals(), self.count, place.clone());
        let (x, y) = (normals.tensor([self.elements])?, normals.tensor([self.elements])?);
        let op = Map::add(&place.resident(&x)?, &place.resident(&y)?);
        Ok(Box::new(move || {
            let mut under_way: VecDeque<Pending<Tensor>> = VecDeque::with_capacity(MANY_DEPTH);
            for _ in 0..count {
                if under_way.len() >= MANY_DEPTH
                    && let Some(first) = under_way.pop_front()
                {
                    first.wait()?;
                }
                under_way.push_back(place.run(op.clone()));
            }
            under_way.into_iter().try_for_each(|last| last.wait().map(drop))?;
            Ok(None)
        }))
    }
}

/// relu(2x + y) of two vectors, fused.
pub struct ScaleAddReluCase {
    pub elements: usize,
}

impl Case for ScaleAddReluCase {
    fn name(&self) -> String {
        format!("map/relu(2x+y)/f32/{}", count_name(self.elements))
    }

    fn amount(&self) -> Amount {
        f32s(3 * self.elements)
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let mut normals = place.normals();
        let (x, y) = (normals.tensor([self.elements])?, normals.tensor([self.elements])?);
        place.repeat(Map::new((Expr::input(0) * 2.0 + Expr::input(1)).relu(), &[&x, &y]))
    }
}
