//! Composition of views: a tensor seen through a view of a value computed from it.

use panoply_core::{RANK_MAX, Shape, Strides, Tensor};

/// Whether two placeholders are the same view of the same slot.
pub(crate) fn is_same(a: &Tensor, b: &Tensor) -> bool {
    use panoply_core::graph::slot_of;
    slot_of(a) == slot_of(b)
        && (a.shape(), a.strides(), a.offset(), a.dtype()) == (b.shape(), b.strides(), b.offset(), b.dtype())
}

/// Whether a placeholder covers its slot's elements in order.
pub(crate) fn is_whole(tensor: &Tensor, slot_elements: usize) -> bool {
    tensor.offset() == 0 && tensor.is_contiguous() && tensor.elements() == slot_elements
}

/// Composes views: `source` is broadcast to `shape` and computed on elementwise, and `view` is a
/// view of the contiguous result. Returns the view of `source` that corresponds to `view`. `None`
/// if strides cannot express it.
pub(crate) fn through(view: &Tensor, shape: &Shape, source: &Tensor) -> Option<Tensor> {
    if shape.elements() == 0 || view.elements() == 0 {
        return None;
    }
    let source = source.broadcast_to(shape).ok()?;
    // If the view merges several axes, the source must do so too, including axes along which it is
    // constant.
    let joined = || is_whole(view, shape.elements()).then(|| reshaped(&source, view.shape())).flatten();
    by_axes(view, shape, &source).or_else(|| by_elements(view, &source)).or_else(joined)
}

/// Case 1: each axis of the view steps along one axis of the shape.
fn by_axes(view: &Tensor, shape: &Shape, source: &Tensor) -> Option<Tensor> {
    let steps = shape.contiguous_strides();
    let mut offset = source.offset() as isize;
    let mut first = [0_usize; RANK_MAX];
    let mut rest = view.offset();
    for axis in 0..shape.rank() {
        let step = steps[axis] as usize;
        if shape[axis] > 1 {
            first[axis] = rest / step;
            rest %= step;
            offset += first[axis] as isize * source.strides()[axis];
        }
    }
    if rest != 0 {
        return None;
    }
    let mut strides = [0_isize; RANK_MAX];
    let mut last = first;
    for (place, (size, stride)) in view.shape().iter().zip(view.strides().iter()).enumerate() {
        if *size <= 1 || *stride == 0 {
            continue;
        }
        let stride = usize::try_from(*stride).ok()?;
        let axis = (0..shape.rank()).find(|axis| shape[*axis] > 1 && steps[*axis] as usize <= stride)?;
        let times = stride / steps[axis] as usize;
        if stride % steps[axis] as usize != 0 {
            return None;
        }
        strides[place] = source.strides()[axis].checked_mul(times as isize)?;
        last[axis] += times * (size - 1);
    }
    let inside = (0..shape.rank()).all(|axis| last[axis] < shape[axis].max(1));
    inside.then(|| made(source, view.shape(), &strides[..view.shape().rank()], offset)).flatten()
}

/// Case 2: the source has the element order of the result, or is one element for all.
fn by_elements(view: &Tensor, source: &Tensor) -> Option<Tensor> {
    if source.strides().iter().zip(source.shape().iter()).all(|(stride, size)| *stride == 0 || *size == 1) {
        return made(source, view.shape(), &[0; RANK_MAX][..view.shape().rank()], source.offset() as isize);
    }
    let offset = (source.offset() + view.offset()) as isize;
    source.is_contiguous().then(|| made(source, view.shape(), view.strides(), offset)).flatten()
}

/// The same elements in the same order in another shape. `None` if strides cannot express it.
pub(crate) fn reshaped(tensor: &Tensor, shape: &Shape) -> Option<Tensor> {
    if tensor.elements() != shape.elements() || shape.elements() == 0 {
        return None;
    }
    let old: Vec<(usize, isize)> =
        tensor.shape().iter().copied().zip(tensor.strides().iter().copied()).filter(|(size, _)| *size != 1).collect();
    let mut strides = [0_isize; RANK_MAX];
    let mut next = 0;
    let mut axis = 0;
    while axis < shape.rank() {
        if shape[axis] == 1 {
            axis += 1;
            continue;
        }
        // The smallest groups of axes of both shapes with equal numbers of elements. The old axes
        // of a group must be contiguous with each other.
        let (mut count, mut end) = (shape[axis], axis + 1);
        let (mut had, first) = (old.get(next)?.0, next);
        next += 1;
        while count != had {
            if count < had {
                count *= *shape.get(end)?;
                end += 1;
            } else {
                let (size, stride) = *old.get(next)?;
                let before = old[next - 1].1;
                if before != stride * size as isize {
                    return None;
                }
                had *= size;
                next += 1;
            }
        }
        debug_assert!(first < next);
        let mut step = old[next - 1].1;
        for place in (axis..end).rev() {
            strides[place] = step;
            step *= shape[place] as isize;
        }
        axis = end;
    }
    made(tensor, shape, &strides[..shape.rank()], tensor.offset() as isize)
}

fn made(source: &Tensor, shape: &Shape, strides: &[isize], offset: isize) -> Option<Tensor> {
    let offset = usize::try_from(offset).ok()?;
    Tensor::from_parts(source.dtype(), *shape, Strides::new(strides).ok()?, offset, source.buffer().clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::DType;

    fn numbers(dims: &[usize]) -> Tensor {
        let count: usize = dims.iter().product();
        Tensor::from_vec((0..count).map(|value| value as f32).collect(), dims).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec().unwrap()
    }

    /// Every view of a copy shows the same elements as the composed view of the source.
    #[test]
    fn a_view_of_a_copy_is_a_view_of_the_source() {
        let base = numbers(&[4, 3, 2]);
        let sources = [
            base.clone(),
            base.permute(&[2, 0, 1]).unwrap(),
            base.slice(1, 1, 3).unwrap(),
            numbers(&[3, 1]).broadcast_to([2, 3, 5]).unwrap(),
            numbers(&[]).broadcast_to([2, 3]).unwrap(),
        ];
        let mut pushed = 0;
        for source in &sources {
            let copy = source.contiguous().unwrap();
            let rank = copy.shape().rank();
            let mut views = vec![copy.clone(), copy.transpose().unwrap(), copy.slice_step(rank - 1, 0, 2, 2).unwrap()];
            views.push(copy.slice(0, 1, 2).unwrap());
            views.push(copy.broadcast_to([&[7], copy.shape().dims()].concat()).unwrap());
            views.push(copy.reshape([copy.elements()]).unwrap());
            views.push(copy.reshape([&[1], copy.shape().dims(), &[1]].concat()).unwrap());
            for view in views {
                if let Some(through) = through(&view, copy.shape(), source) {
                    assert_eq!(values(&through), values(&view), "{source:?} through {view:?}");
                    pushed += 1;
                }
            }
        }
        assert!(pushed >= 28, "{pushed} views");
    }

    #[test]
    fn shapes_change_where_strides_can_say_it() {
        let x = numbers(&[2, 3, 4]);
        let turned = x.permute(&[1, 0, 2]).unwrap();
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        assert_eq!(values(&reshaped(&x, &shape(&[6, 2, 2])).unwrap()), values(&x));
        assert_eq!(values(&reshaped(&turned, &shape(&[3, 1, 2, 2, 2])).unwrap()), values(&turned));
        assert!(reshaped(&turned, &shape(&[24])).is_none());
        assert!(reshaped(&turned, &shape(&[3, 8])).is_none());
        let column = numbers(&[3, 1]).broadcast_to([3, 4]).unwrap();
        assert_eq!(values(&reshaped(&column, &shape(&[3, 2, 2])).unwrap()), values(&column));
        assert!(reshaped(&column, &shape(&[12])).is_none());
        let every = numbers(&[6]).slice_step(0, 0, 6, 2).unwrap();
        assert_eq!(values(&reshaped(&every, &shape(&[3, 1])).unwrap()), [0.0, 2.0, 4.0]);
        assert!(reshaped(&Tensor::zeros(DType::F32, [0]).unwrap(), &shape(&[0, 2])).is_none());
    }
}
