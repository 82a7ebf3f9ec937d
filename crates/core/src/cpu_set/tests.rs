//! Compares CPU sets with a `BTreeSet`, and parses texts of every kind.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

#[test]
fn reads_and_writes_the_kernel_format() {
    for text in ["", "0", "0-3,8-11", "1,3,5", "0-127", "63-64", "8191", "0-8191"] {
        assert_eq!(set(text).to_string(), text);
    }
    assert_eq!(set(" 0-3 , 2-5\n").to_string(), "0-5");
    assert_eq!(set("\n"), CpuSet::new());
    assert_eq!(set("7,1").iter().collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn rejects_what_is_no_list() {
    use CpuSetError::*;
    let error = |text: &str| text.parse::<CpuSet>().unwrap_err();
    for text in ["a", ",", "1,,2", "1,", "-", "1-", "-1", "+1", "1-2-3", "0x1", "1 2", "0-3:2/4", "\0", "é"] {
        assert!(matches!(error(text), Malformed { .. }), "{text:?}: {:?}", error(text));
    }
    assert_eq!(error("3-1"), Descending { first: 3, last: 1 });
    assert_eq!(error("8192"), CpuTooLarge { got: "8192".into(), max: CPU_MAX });
    assert!(matches!(error(&"9".repeat(1000)), CpuTooLarge { got, .. } if got.chars().count() < 40));
    assert!(matches!(error("0-99999999999999999999"), CpuTooLarge { .. }));
    assert_eq!(error(&"0,".repeat(LIST_BYTES_MAX)), ListTooLong { got: 2 * LIST_BYTES_MAX, max: LIST_BYTES_MAX });
    assert!(CpuSet::new().insert(CPU_MAX + 1).is_err());
    assert!(CpuSet::new().insert_range(0, usize::MAX).is_err());
}

#[test]
fn a_set_without_members_equals_the_empty_set() {
    let mut full = set("5,200");
    assert_eq!((full.first(), full.last(), full.len()), (Some(5), Some(200), 2));
    assert!(full.remove(200) && !full.remove(200) && full.remove(5));
    assert_eq!(full, CpuSet::new());
    assert!(full.is_empty() && full.first().is_none() && full.last().is_none());
}

fn model(set: &CpuSet) -> BTreeSet<usize> {
    set.iter().collect()
}

fn cpus() -> impl Strategy<Value = BTreeSet<usize>> {
    proptest::collection::btree_set(prop_oneof![0..140usize, 0..=CPU_MAX], 0..40)
}

proptest! {
    #[test]
    fn algebra_agrees_with_a_tree_set(a in cpus(), b in cpus(), probe in 0..200usize) {
        let (x, y) = (CpuSet::from_cpus(a.iter().copied()).unwrap(), CpuSet::from_cpus(b.iter().copied()).unwrap());
        prop_assert_eq!(model(&(&x | &y)), &a | &b);
        prop_assert_eq!(model(&(&x & &y)), &a & &b);
        prop_assert_eq!(model(&(&x - &y)), &a - &b);
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        prop_assert_eq!(x == y, a == b);
        prop_assert_eq!((x.len(), x.first(), x.last()), (a.len(), a.first().copied(), a.last().copied()));
        prop_assert_eq!(x.contains(probe), a.contains(&probe));
        prop_assert!((&x & &y).is_subset(&x) && (&x - &y).is_disjoint(&y));
    }

    #[test]
    fn text_survives_the_round_trip(a in cpus()) {
        let x = CpuSet::from_cpus(a).unwrap();
        prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x);
    }

    #[test]
    fn any_text_gives_a_set_or_an_error(text in "[0-9,\\- \n]{0,60}|\\PC{0,40}") {
        if let Ok(parsed) = text.parse::<CpuSet>() {
            prop_assert!(parsed.last().unwrap_or(0) <= CPU_MAX);
        }
    }
}
