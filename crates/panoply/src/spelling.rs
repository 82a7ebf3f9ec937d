//! Finds the known name that a misspelt one stands for.

/// The known name that is most similar to `wrong`; `None` if none is similar enough.
///
/// ```
/// use panoply::spelling::nearest;
///
/// assert_eq!(nearest("matmull", &["map", "matmul"]), Some("matmul"));
/// assert_eq!(nearest("x", &["map", "matmul"]), None);
/// ```
pub fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    let nearest = known.iter().map(|name| (distance(&wrong, &name.to_lowercase()), *name)).min()?;
    let (distance, name) = nearest;
    // A short name has few letters in common with anything.
    let distance_max = (name.chars().count().max(wrong.chars().count()) / 3).clamp(1, 5);
    (distance <= distance_max).then_some(name)
}

/// The number of letters to insert, delete, replace or swap with their neighbour to turn one word
/// into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // The distances of all beginnings of `b` from the last two beginnings of `a`.
    let (mut before, mut above): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let changed = above[j] + usize::from(from != to);
            let mut least = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && *from == b[j - 1] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_are_recognised() {
        for (wrong, meant) in
            [("matmull", "matmul"), ("cudaa", "cuda"), ("secton", "section"), ("rnak", "rank"), ("Serach", "search")]
        {
            assert_eq!(nearest(wrong, &["map", "rank", "matmul", "cuda", "cpu", "section", "search"]), Some(meant));
        }
        for wrong in ["", "xyz", "rocm", "sections of a book"] {
            assert_eq!(nearest(wrong, &["map", "matmul", "cuda", "section"]), None, "{wrong}");
        }
        assert_eq!((distance("", "abc"), distance("abc", ""), distance("ab", "ba")), (3, 3, 1));
    }
}
