//! The part of [`crate::Error::Overtaken`] that names the change: which one was not made, and of
//! which object.

use std::collections::HashSet;

use crate::catalog::Change;
use crate::error::NOTHING_CHANGED;

/// The text about changes that were not made: the name of the first object and the number of the
/// others.
pub(crate) fn undone(changes: &[Change]) -> String {
    let mut names: Vec<&str> = changes.iter().filter_map(Change::name).collect();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
    let Some(first) = names.first() else { return NOTHING_CHANGED.to_owned() };
    let (objects, were) = match names.len() - 1 {
        0 => (format!("`{first}`"), "was"),
        1 => (format!("`{first}` and 1 other object"), "were"),
        others => (format!("`{first}` and {others} other objects"), "were"),
    };
    let all = |is_kind: fn(&Change) -> bool| changes.iter().all(is_kind);
    if all(|change| matches!(change, Change::Put { .. })) {
        format!("{objects} {were} not stored")
    } else if all(|change| matches!(change, Change::Append { .. })) {
        format!("nothing was appended to {objects}")
    } else if all(|change| matches!(change, Change::Remove { .. })) {
        format!("{objects} {were} not removed")
    } else {
        format!("{objects} {were} not changed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_object_is_named_and_the_others_are_counted() {
        let remove = |name: &str| Change::Remove { name: name.to_owned() };
        assert_eq!(undone(&[]), "this writer has changed nothing");
        assert_eq!(undone(&[remove("a")]), "`a` was not removed");
        assert_eq!(undone(&[remove("a"), remove("b"), remove("a")]), "`a` and 1 other object were not removed");
        let three = [remove("a"), remove("b"), remove("c"), Change::History { points: Vec::new() }];
        assert_eq!(undone(&three[..3]), "`a` and 2 other objects were not removed");
        assert_eq!(undone(&three), "`a` and 2 other objects were not changed");
    }
}
