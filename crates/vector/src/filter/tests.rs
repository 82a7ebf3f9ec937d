//! Tests of the meaning of filters, in each of their forms.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// No record passes.
const NONE: [usize; 0] = [];

fn records() -> Vec<Value> {
    vec![
        json!({"section": "games", "size": 10, "free": true, "author": {"name": "Ada"}}),
        json!({"section": "games", "size": 1000.0, "tags": ["red", "round"]}),
        json!({"section": "utils", "size": 999, "free": false, "note": null}),
        json!({"section": "x11", "size": "large"}),
        json!({}),
        Value::Null,
    ]
}

/// The indices of the records that pass, checked with every evaluation method.
fn passing(filter: &Filter) -> Vec<usize> {
    let records = records();
    let direct: Vec<usize> = (0..records.len()).filter(|&row| filter.matches(&records[row])).collect();
    let mut by_value = Columns::new(records.len());
    by_value.build(filter, |row, sink| sink.value(&records[row]));
    let mut by_text = Columns::new(records.len());
    by_text.build(filter, |row, sink| sink.text(&records[row].to_string()));
    for columns in [&by_value, &by_text] {
        assert!(columns.has(filter));
        let mask = filter.select(columns);
        let selected: Vec<usize> = (0..mask.len() * 32).filter(|&row| mask[row / 32] >> (row % 32) & 1 == 1).collect();
        assert_eq!(selected, direct, "{filter:?}");
    }
    direct
}

fn both(text: &str, json: Value) -> Vec<usize> {
    let from_text = Filter::parse(text).unwrap();
    let from_json = Filter::from_json(&json).unwrap();
    let found = passing(&from_text);
    assert_eq!(passing(&from_json), found, "{text} {json}");
    assert_eq!(Filter::from_json(&from_text.to_json()).unwrap(), from_text);
    found
}

#[test]
fn values_are_compared() {
    assert_eq!(both("section = games", json!({"section": "games"})), [0, 1]);
    assert_eq!(both("section == \"games\"", json!({"section": {"eq": "games"}})), [0, 1]);
    assert_eq!(both("section != games", json!({"section": {"ne": "games"}})), [2, 3, 4, 5]);
    assert_eq!(both("section in (games, 'x11')", json!({"section": {"in": ["games", "x11"]}})), [0, 1, 3]);
    assert_eq!(both("section not in (games)", json!({"not": {"section": {"in": ["games"]}}})), [2, 3, 4, 5]);
    assert_eq!(both("free = true", json!({"free": true})), [0]);
    assert_eq!(both("size = 1000", json!({"size": 1000})), [1]);
    assert_eq!(both("size = \"1000\"", json!({"size": "1000"})), NONE);
}

#[test]
fn ranges_keep_to_their_type() {
    assert_eq!(both("size < 1000", json!({"size": {"lt": 1000}})), [0, 2]);
    assert_eq!(both("size <= 1000", json!({"size": {"lte": 1000}})), [0, 1, 2]);
    assert_eq!(both("size > 10 and size < 1000", json!({"size": {"gt": 10, "lt": 1000}})), [2]);
    assert_eq!(both("size >= 9.5", json!({"size": {"gte": 9.5}})), [0, 1, 2]);
    assert_eq!(both("size >= 'a'", json!({"size": {"gte": "a"}})), [3]);
    assert_eq!(both("section > games", json!({"section": {"gt": "games"}})), [2, 3]);
}

#[test]
fn null_and_missing_are_the_same() {
    assert_eq!(both("free = null", json!({"free": null})), [1, 3, 4, 5]);
    assert_eq!(both("note = null", json!({"note": null})), [0, 1, 2, 3, 4, 5]);
    assert_eq!(both("never.there = null", json!({"never.there": null})), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn lists_pass_by_an_element_and_objects_by_their_fields() {
    assert_eq!(both("tags = round", json!({"tags": "round"})), [1]);
    assert_eq!(both("author.name = Ada", json!({"author.name": "Ada"})), [0]);
    assert_eq!(both("author = Ada", json!({"author": "Ada"})), NONE);
    assert_eq!(both("author = null", json!({"author": null})), [1, 2, 3, 4, 5]);
}

#[test]
fn conditions_combine() {
    let expected = [0, 3];
    let text = "(section = games and size < 100) or not (section in (games, utils) or section = null)";
    let json = json!({"or": [
        {"and": [{"section": "games"}, {"size": {"lt": 100}}]},
        {"not": {"or": [{"section": {"in": ["games", "utils"]}}, {"section": null}]}},
    ]});
    assert_eq!(both(text, json), expected);
    assert_eq!(both("section = games AND free = true", json!({"section": "games", "free": true})), [0]);
    // `and` binds tighter than `or`.
    assert_eq!(
        both(
            "free = true or section = games and size = 1000",
            json!({"or": [{"free": true}, {"section": "games", "size": 1000}]})
        ),
        [0, 1]
    );
    assert_eq!(passing(&Filter::all_of([]).unwrap()), [0, 1, 2, 3, 4, 5]);
    assert_eq!(passing(&Filter::any_of([]).unwrap()), NONE);
}

#[test]
fn constructors_say_the_same() {
    let built = Filter::equals("section", "games")
        .unwrap()
        .and(Filter::compare("size", Comparison::Less, 100_i64).unwrap())
        .unwrap();
    assert_eq!(built, Filter::parse("section = games and size < 100").unwrap());
    let built =
        Filter::one_of("section", ["games", "x11"]).unwrap().or(!Filter::equals("free", true).unwrap()).unwrap();
    assert_eq!(built, Filter::parse("section in (games, x11) or free != true").unwrap());
}

#[test]
fn fields_are_shown() {
    let mut fields = Vec::new();
    Filter::parse("a.b = 1 or not (c in (1, 2) and d < 3)")
        .unwrap()
        .for_each_field(&mut |field| fields.push(field.to_owned()));
    assert_eq!(fields, ["a", "c", "d"]);
}

#[test]
fn mistakes_say_where() {
    let syntax = |text: &str| match Filter::parse(text).unwrap_err() {
        FilterError::Syntax { at, got, .. } => (at, got),
        other => panic!("{text}: {other}"),
    };
    assert_eq!(syntax(""), (1, "the end".to_owned()));
    assert_eq!(syntax("section"), (8, "the end".to_owned()));
    assert_eq!(syntax("section = "), (11, "the end".to_owned()));
    assert_eq!(syntax("section games"), (9, "`games`".to_owned()));
    assert_eq!(syntax("section = games size < 3"), (17, "`size`".to_owned()));
    assert_eq!(syntax("(a = 1"), (7, "the end".to_owned()));
    assert_eq!(syntax("a in ()"), (7, "`)`".to_owned()));
    assert_eq!(syntax("a = 'open"), (5, "the end".to_owned()));
    assert_eq!(syntax("ä = 1 and or"), (11, "`or`".to_owned()));
    assert_eq!(syntax("a ! 1"), (3, "`!`".to_owned()));
    assert!(matches!(Filter::parse("a < true"), Err(FilterError::BoundType { .. })));
    assert!(matches!(Filter::parse("a. = 1"), Err(FilterError::Path { .. })));
}

#[test]
fn mistakes_in_json_say_where() {
    for wrong in [
        json!([]),
        json!("games"),
        json!({"a": []}),
        json!({"a": {}}),
        json!({"a": {"like": 1}}),
        json!({"and": {}}),
        json!({"or": [1]}),
        json!({"a": {"in": 1}}),
        json!({"a": {"in": [[1]]}}),
        json!({"a": {"lt": [1]}}),
    ] {
        assert!(matches!(Filter::from_json(&wrong), Err(FilterError::Form { .. })), "{wrong}");
    }
    assert!(matches!(Filter::from_json(&json!({"a": {"lt": null}})), Err(FilterError::BoundType { .. })));
    assert!(matches!(Filter::from_json(&json!({"a": {"lt": 1, "lte": 2}})), Err(FilterError::BoundTwice { .. })));
    assert!(matches!(Filter::from_json(&json!({"a": {"lt": 1, "gt": "b"}})), Err(FilterError::BoundsDiffer { .. })));
    assert!(matches!(Filter::from_json(&json!({"": 1})), Err(FilterError::Path { .. })));
    assert!(matches!(Filter::from_argument(" {\"a\": "), Err(FilterError::NotJson { .. })));
}

#[test]
fn everything_is_bounded() {
    let deep = format!("{}a = 1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(matches!(Filter::parse(&deep), Err(FilterError::TooDeep { .. })));
    let negated = format!("{}a = 1", "not ".repeat(100_000));
    assert!(matches!(Filter::parse(&negated), Err(FilterError::TooDeep { .. })));
    let nested = (0..100).fold(json!({"a": 1}), |inner, _| json!({"not": inner}));
    assert!(matches!(Filter::from_json(&nested), Err(FilterError::TooDeep { .. })));
    let many = format!("a in ({})", vec!["1"; CONDITIONS_MAX + 1].join(","));
    assert!(matches!(Filter::parse(&many), Err(FilterError::TooManyConditions { .. })));
    assert!(matches!(Filter::parse(&" ".repeat(TEXT_BYTES_MAX + 1)), Err(FilterError::TooLong { .. })));
}

/// Regression: filters that alternated between `and` and `or` were not bounded in depth, and
/// dropping a filter of 200,000 levels overflowed the stack.
#[test]
fn no_constructor_goes_deeper_than_the_bound() {
    let leaf = || Filter::equals("a", 1_i64).unwrap();
    let mut deepest = leaf();
    let refused = loop {
        let next = if deepest.depth % 2 == 0 { leaf().and(deepest.clone()) } else { leaf().or(deepest.clone()) };
        match next {
            Ok(filter) => deepest = filter,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, deepest.depth), (FilterError::TooDeep { depth_max: DEPTH_MAX }, DEPTH_MAX));
    let mut turned = deepest.clone();
    for _ in 0..200_001 {
        turned = !turned;
    }
    assert_eq!(turned.depth, DEPTH_MAX + 1);
    assert_eq!(Filter::from_json(&turned.to_json()).unwrap(), turned);
    assert!(leaf().and(turned.clone()).is_err() && !format!("{turned:?}").is_empty());
    assert_eq!(turned.matches(&json!({"a": 1})), !deepest.matches(&json!({"a": 1})));
    // Chains grow in width, not in depth, up to the maximum number of conditions.
    let chain = (1..CONDITIONS_MAX).try_fold(leaf(), |chain, _| chain.and(leaf())).unwrap();
    assert_eq!((chain.depth, chain.conditions), (2, CONDITIONS_MAX));
    assert!(matches!(chain.and(leaf()), Err(FilterError::TooManyConditions { .. })));
    assert!(matches!(Filter::one_of("a", 0_i64..1 << 40), Err(FilterError::TooManyConditions { .. })));
}

#[test]
fn a_mask_has_no_bits_behind_its_rows() {
    let columns = Columns::new(70);
    let mask = Filter::parse("not a = 1").unwrap().select(&columns);
    assert_eq!(mask, [u32::MAX, u32::MAX, 0b11_1111]);
    assert_eq!(Filter::all_of([]).unwrap().select(&columns), mask);
    assert_eq!(Filter::all_of([]).unwrap().select(&Columns::new(0)), [] as [u32; 0]);
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-2.0_f64..2.0).prop_map(Value::from),
        "[a-c. \\\\\"'=]{0,3}".prop_map(Value::from),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let path = prop_oneof![Just("a"), Just("b"), Just("c.d"), Just("\\and"), Just("e\\.f")];
    let leaf = (path, 0..4_usize, proptest::collection::vec(scalar(), 1..4)).prop_map(|(path, kind, values)| {
        let scalars: Vec<Scalar> = values.iter().filter_map(Scalar::from_value).collect();
        match kind {
            0 => Filter::one_of(path, scalars).unwrap(),
            1 => Filter::compare(path, Comparison::Less, scalars[0].clone()).unwrap_or(Filter::any_of([]).unwrap()),
            2 => Filter::compare(path, Comparison::AtLeast, scalars[0].clone()).unwrap_or(Filter::all_of([]).unwrap()),
            _ => Filter::equals(path, scalars[0].clone()).unwrap(),
        }
    });
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|all| Filter::all_of(all).unwrap()),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|any| Filter::any_of(any).unwrap()),
            inner.prop_map(|filter| !filter),
        ]
    })
}

proptest! {
    #[test]
    fn json_comes_back_as_the_same_filter(filter in filter()) {
        prop_assert_eq!(Filter::from_json(&filter.to_json()).unwrap(), filter);
    }

    #[test]
    fn columns_select_what_matches(
        filter in filter(),
        rows in proptest::collection::vec((scalar(), scalar(), scalar(), scalar()), 0..80),
    ) {
        let rows: Vec<Value> = rows
            .into_iter()
            .map(|(a, b, d, and)| json!({"a": a, "b": [b, a.clone()], "c": {"d": d}, "and": and, "e.f": a.clone()}))
            .collect();
        let mut columns = Columns::new(rows.len());
        columns.build(&filter, |row, sink| sink.text(&rows[row].to_string()));
        let mask = filter.select(&columns);
        prop_assert_eq!(mask.len(), rows.len().div_ceil(32));
        for (row, metadata) in rows.iter().enumerate() {
            prop_assert_eq!(mask[row / 32] >> (row % 32) & 1 == 1, filter.matches(metadata), "{}", metadata);
        }
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "[a-c=<>!()',\"\\\\ {}:\\[\\]0-9.]{0,40}") {
        if let Ok(filter) = Filter::from_argument(&text) {
            prop_assert_eq!(Filter::from_json(&filter.to_json()).unwrap(), filter);
        }
    }
}

/// Regression: such a word was read as a text, which no number compares with, so the filter
/// silently passed nothing.
#[test]
fn a_number_that_is_none_in_json_is_refused() {
    for word in [".5", "+1", "1.", "1e400", "-.5", "-1e999"] {
        let refused = Filter::parse(&format!("size < {word}")).unwrap_err();
        assert!(matches!(refused, FilterError::Syntax { expected, .. } if expected.contains("number")), "{word}");
        assert!(Filter::parse(&format!("size < \"{word}\"")).is_ok());
    }
    for text in ["01234", "2024-01-02", "1.2.3", "-", "inf", "nan", "1st", "0x10"] {
        let filter = Filter::parse(&format!("size = {text}")).unwrap();
        assert!(filter.matches(&json!({"size": text})), "{text}");
    }
}
