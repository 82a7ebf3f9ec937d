//! How long ops take on one device, learned from the ops that ran there.
//!
//! Each (op, element type, cost class) has one entry with a class for each power of two of the op's
//! work. A class keeps robust running averages of logarithms, so that one outlier moves it little
//! and a lasting change moves it soon.
//!
//! 1. One thread, the device's worker, writes; any thread reads, without locks. Every field is an
//!    atomic of its own: a reader may see one average from before an op and the next from after it,
//!    which does no harm to an estimate.
//! 2. An entry is claimed by swapping its key for `TURNING`, and its new key is stored when it is
//!    ready. A key that finds no free entry among its probe positions takes the least recently
//!    taught entry, unless even that one is in use. A reader that meets an entry at that moment
//!    gets one estimate that is wrong or missing.
//! 3. Estimates between measured classes are interpolated, and beyond them extrapolated, both
//!    between logarithms.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use panoply_core::{CostClass, DType, Describe, Op};
use panoply_lockfree::CacheLine;

use crate::process::Process;

/// The most curves that one device's model keeps: room for every op of the list with every element
/// type and with none, and as much again for cost classes and extensions, so that a key finds a
/// position near its own.
pub(crate) const KEYS_MAX: usize = (2 * Op::COUNT * (DType::ALL.len() + 1)).next_power_of_two();
/// Classes of work, each a power of two.
pub(crate) const CLASSES: usize = 48;
/// The largest logarithm: thirteen days in nanoseconds, or a petabyte. The sum over a full queue of
/// such ops still fits in 64 bits.
pub(crate) const LOG2_MAX: f32 = 50.0;
/// How far a key may be from its own position in the table.
const PROBES_MAX: usize = 16;
/// An entry that was taught within this number of lessons is in use and not given to another key.
/// Otherwise keys that alternate would evict each other.
const SPARED_LESSONS: u64 = 4 * PROBES_MAX as u64;
/// The key of an entry that is being given to another key.
const TURNING: u64 = u64::MAX;
/// The weight of the newest op once a class is settled.
const NEWEST_WEIGHT_MIN: f32 = 1.0 / 16.0;
/// Outliers are clamped to 4 × the average.
const OUTLIER_LOG2_MAX: f32 = 2.0;
/// The first ops of a class pay for cold caches, fresh memory and compilers. So of this many ops
/// the quickest counts, and until then the device is tried again where that is cheap.
const SETTLED_AFTER: u32 = 3;
/// How time grows with work if only one class is known, above it and below it. Both are optimistic,
/// so that a device is tried where it may be good.
const UNKNOWN_SLOPE_UP: f32 = 0.35;
const UNKNOWN_SLOPE_DOWN: f32 = 0.6;
/// An estimate whose work is farther than this (a factor of four) from any measurement is a guess.
const NEAR_LOG2_MAX: f32 = 2.0;
/// Works that differ by less than this (7 %) count as equal.
const SAME_LOG2_MAX: f32 = 0.1;
/// The steepest slope between two classes that is believed.
const SLOPE_MAX: f32 = 1.5;

/// One device's model.
pub(crate) struct Model {
    entries: Box<[CurveEntry]>,
    /// How many samples were learned. Only the writer uses this.
    lessons: CacheLine<AtomicU64>,
}

struct CurveEntry {
    /// Zero while the entry is free.
    key: AtomicU64,
    /// Locked when the entry is claimed, and when the model is exported.
    label: Mutex<Option<Label>>,
    /// A bit for each class that has been measured.
    known: AtomicU64,
    /// Allocated when the entry is first taught.
    curve: OnceLock<Box<Curve>>,
}

struct Curve {
    /// The number of the lesson that taught the curve last.
    taught: AtomicU64,
    classes: [Class; CLASSES],
}

#[derive(Default)]
struct Class {
    count: AtomicU32,
    /// The logarithm of the work to which the other values belong.
    at: Log2,
    run: Log2,
    service: Log2,
    output: Log2,
}

/// A logarithm to base two, stored as the bits of an `f32`.
#[derive(Default)]
struct Log2(AtomicU32);

impl Log2 {
    fn get(&self) -> f32 {
        f32::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f32) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn approach(&self, value: f32, weight: f32, step_max: f32) {
        let known = self.get();
        self.set(known + (value - known).clamp(-step_max, step_max) * weight);
    }
}

/// Names a curve: an op, its element type and its cost class, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurveKey(pub(crate) u64);

/// The readable form of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) op: String,
    pub(crate) dtype: Option<DType>,
    /// The label of the cost class, and its number.
    pub(crate) class: (String, u64),
}

impl CurveKey {
    pub(crate) fn new(op: &str, dtype: Option<DType>, class: CostClass) -> CurveKey {
        CurveKey::of(op, dtype, class.label, class.variant)
    }

    fn of(op: &str, dtype: Option<DType>, class: &str, variant: u64) -> CurveKey {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let dtype = dtype.map_or(0xff, |dtype| dtype as u8);
        let mut hash = op.bytes().chain([dtype]).fold(0xcbf2_9ce4_8422_2325_u64, step);
        if !class.is_empty() || variant != 0 {
            hash = class.bytes().chain(variant.to_le_bytes()).fold(hash, step);
        }
        CurveKey(hash.clamp(1, TURNING - 1))
    }
}

impl Label {
    pub(crate) fn of(op: &Op) -> Label {
        let CostClass { label, variant } = op.cost_class();
        Label { op: op.name().to_owned(), dtype: op.dtype(), class: (label.to_owned(), variant) }
    }

    pub(crate) fn key(&self) -> CurveKey {
        CurveKey::of(&self.op, self.dtype, &self.class.0, self.class.1)
    }
}

/// The measurements of one op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// The time from submission to completion, with the device to itself, without the time for
    /// moving data.
    pub(crate) run_ns: Option<f32>,
    /// How long the op kept the device from the next op.
    pub(crate) service_ns: f32,
    pub(crate) output_bytes: f32,
}

/// The prediction for an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Whether work of about this size was measured.
    pub(crate) near: bool,
    /// Whether it was measured often enough.
    pub(crate) settled: bool,
    pub(crate) run_ns: f32,
    pub(crate) service_ns: f32,
    /// The logarithm of the output's bytes, for callers that want the output on the host.
    pub(crate) output_log2: f32,
}

impl Estimate {
    pub(crate) fn output_bytes(&self) -> f32 {
        self.output_log2.min(LOG2_MAX).exp2()
    }
}

/// One class in its exported form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) at: f32,
    pub(crate) run: f32,
    pub(crate) service: f32,
    pub(crate) output: f32,
    pub(crate) count: u32,
}

impl Model {
    pub(crate) fn new() -> Model {
        let entry = |_| CurveEntry {
            key: AtomicU64::new(0),
            label: Mutex::new(None),
            known: AtomicU64::new(0),
            curve: OnceLock::new(),
        };
        Model { entries: (0..KEYS_MAX).map(entry).collect(), lessons: CacheLine(AtomicU64::new(0)) }
    }

    /// The prediction for this much work. `None` if no such op has run here.
    pub(crate) fn estimate(&self, key: CurveKey, work_log2: f32) -> Option<Estimate> {
        let entry = self.find(key)?;
        let known = entry.known.load(Ordering::Acquire);
        if known == 0 {
            return None;
        }
        let classes = &entry.curve.get()?.classes;
        let own = class_of(work_log2);
        if known & (1 << own) != 0 && (classes[own].at.get() - work_log2).abs() <= SAME_LOG2_MAX {
            // The same ops again and again, as in most programs.
            let class = &classes[own];
            return Some(Estimate {
                near: true,
                settled: class.count.load(Ordering::Relaxed) >= SETTLED_AFTER,
                run_ns: exp2(class.run.get()),
                service_ns: exp2(class.service.get()),
                output_log2: class.output.get(),
            });
        }
        let (below, above) = neighbours(known, own);
        let (first, second) = match (below, above) {
            (Some(below), Some(above)) if below != above => (below, above),
            // Beyond the last measured class: along the line through the last two.
            (Some(last), _) => (last, neighbours(known & !(1 << last), last).0.unwrap_or(last)),
            (None, Some(next)) => (next, neighbours(known & !(1 << next), next).1.unwrap_or(next)),
            (None, None) => return None,
        };
        let (first, second) = (&classes[first], &classes[second]);
        let near = |class: &Class| (class.at.get() - work_log2).abs() <= NEAR_LOG2_MAX;
        let settled = |class: &Class| near(class) && class.count.load(Ordering::Relaxed) >= SETTLED_AFTER;
        let line = Interpolation::through(first, second, work_log2);
        Some(Estimate {
            near: near(first) || near(second),
            settled: settled(first) || settled(second),
            run_ns: exp2(line.at(first.run.get(), second.run.get())),
            service_ns: exp2(line.at(first.service.get(), second.service.get())),
            output_log2: line.at(first.output.get(), second.output.get()),
        })
    }

    /// Learns from one op.
    pub(crate) fn learn(&self, key: CurveKey, label: impl FnOnce() -> Label, work_log2: f32, sample: Sample) {
        let lesson = self.lessons.fetch_add(1, Ordering::Relaxed);
        let Some(entry) = self.claim(key, label) else { return };
        let index = class_of(work_log2);
        let curve = entry.curve();
        curve.taught.store(lesson, Ordering::Relaxed);
        let class = &curve.classes[index];
        let count = class.count.load(Ordering::Relaxed);
        let weight = (1.0 / (count as f32 + 1.0)).max(NEWEST_WEIGHT_MIN);
        let service = log2(sample.service_ns);
        let run = sample.run_ns.map(log2);
        if count == 0 {
            class.run.set(run.unwrap_or(service));
            class.service.set(service);
        } else if count < SETTLED_AFTER {
            class.run.set(class.run.get().min(run.unwrap_or(f32::INFINITY)));
            class.service.set(class.service.get().min(service));
        } else {
            match run {
                Some(run) => class.run.approach(run, weight, OUTLIER_LOG2_MAX),
                // The device was shared, so only a lower bound is known: the op's own part.
                None => class.run.set(class.run.get().max(service.min(class.service.get()))),
            }
            class.service.approach(service, weight, OUTLIER_LOG2_MAX);
        }
        class.at.approach(work_log2, weight, f32::INFINITY);
        class.output.approach(log2(sample.output_bytes), weight, f32::INFINITY);
        class.count.store(count.saturating_add(1), Ordering::Relaxed);
        // An unconditional write would take the cache line from readers for each op. There is one
        // writer, so the bit stays set.
        if entry.known.load(Ordering::Relaxed) & (1 << index) == 0 {
            entry.known.fetch_or(1 << index, Ordering::Release);
        }
    }

    /// Sets one class from its exported form. Values that cannot have been measured are ignored.
    pub(crate) fn seed(&self, label: &Label, point: &Point) {
        let Point { at, run, service, output, .. } = *point;
        if ![at, run, service, output].iter().all(|value| (0.0..=LOG2_MAX).contains(value)) {
            return;
        }
        let Some(entry) = self.claim(label.key(), || label.clone()) else { return };
        let index = class_of(point.at);
        let curve = entry.curve();
        curve.taught.store(self.lessons.load(Ordering::Relaxed), Ordering::Relaxed);
        let class = &curve.classes[index];
        class.at.set(point.at);
        class.run.set(point.run);
        class.service.set(point.service);
        class.output.set(point.output);
        // Measurements of an earlier run count, but soon give way.
        class.count.store(point.count.min(SETTLED_AFTER), Ordering::Relaxed);
        entry.known.fetch_or(1 << index, Ordering::Release);
    }

    /// Passes everything that was learned to `visit`. In a fork, an entry whose label was locked at
    /// the moment of the fork is left out.
    pub(crate) fn for_each(&self, made_in: Process, mut visit: impl FnMut(&Label, Point)) {
        for entry in &self.entries {
            let label = match made_in.is_here() {
                true => entry.label().clone(),
                false => entry.label.try_lock().ok().and_then(|label| label.clone()),
            };
            let label = label.filter(|label| label.key().0 == entry.key.load(Ordering::Acquire));
            let (Some(label), Some(curve)) = (label, entry.curve.get()) else { continue };
            let known = entry.known.load(Ordering::Acquire);
            for (_, class) in curve.classes.iter().enumerate().filter(|(index, _)| known & (1 << index) != 0) {
                let (at, run) = (class.at.get(), class.run.get());
                let (service, output) = (class.service.get(), class.output.get());
                visit(&label, Point { at, run, service, output, count: class.count.load(Ordering::Relaxed) });
            }
        }
    }

    fn find(&self, key: CurveKey) -> Option<&CurveEntry> {
        for place in places(key) {
            let entry = &self.entries[place];
            match entry.key.load(Ordering::Acquire) {
                0 => return None,
                found if found == key.0 => return Some(entry),
                _ => {}
            }
        }
        None
    }

    /// The entry of a key: its own, a free one, or the least recently taught one.
    fn claim(&self, key: CurveKey, label: impl FnOnce() -> Label) -> Option<&CurveEntry> {
        if let Some(entry) = self.find(key) {
            return Some(entry);
        }
        let label = label();
        let turn = |entry: &&CurveEntry, from: u64| {
            entry.key.compare_exchange(from, TURNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let entries = || places(key).map(|place| &self.entries[place]);
        let free = entries().find(|entry| turn(entry, 0));
        let oldest = || {
            let oldest = entries().min_by_key(|entry| entry.taught())?;
            let lessons = self.lessons.load(Ordering::Relaxed).saturating_sub(oldest.taught());
            let held = oldest.key.load(Ordering::Acquire);
            Some(oldest).filter(|oldest| lessons > SPARED_LESSONS && held != TURNING && turn(oldest, held))
        };
        let entry = free.or_else(oldest)?;
        entry.forget();
        *entry.label() = Some(label);
        entry.key.store(key.0, Ordering::Release);
        Some(entry)
    }
}

impl CurveEntry {
    fn curve(&self) -> &Curve {
        let class = || Class::default();
        self.curve
            .get_or_init(|| Box::new(Curve { taught: AtomicU64::new(0), classes: std::array::from_fn(|_| class()) }))
    }

    /// The number of the lesson that taught the entry last.
    fn taught(&self) -> u64 {
        self.curve.get().map_or(0, |curve| curve.taught.load(Ordering::Relaxed))
    }

    fn forget(&self) {
        self.known.store(0, Ordering::Release);
        let classes = self.curve.get().into_iter().flat_map(|curve| &curve.classes);
        classes.for_each(|class| class.count.store(0, Ordering::Relaxed));
    }

    fn label(&self) -> MutexGuard<'_, Option<Label>> {
        self.label.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The class of this much work.
fn class_of(work_log2: f32) -> usize {
    (work_log2.max(0.0) as usize).min(CLASSES - 1)
}

/// A logarithm that is defined for every value, and bounded.
pub(crate) fn log2(value: f32) -> f32 {
    // The maximum of a number and NaN is the number.
    value.max(1.0).log2().min(LOG2_MAX)
}

fn places(key: CurveKey) -> impl Iterator<Item = usize> {
    let start = (key.0 ^ (key.0 >> 32)) as usize;
    (0..PROBES_MAX).map(move |step| start.wrapping_add(step) % KEYS_MAX)
}

/// The nearest known class at or below, and the nearest at or above.
fn neighbours(known: u64, class: usize) -> (Option<usize>, Option<usize>) {
    let below = known & (u64::MAX >> (63 - class));
    let above = known & (u64::MAX << class);
    ((below != 0).then(|| 63 - below.leading_zeros() as usize), (above != 0).then(|| above.trailing_zeros() as usize))
}

/// A line through two classes, for interpolation and extrapolation, on logarithmic axes.
struct Interpolation {
    /// The distance from the first class to the requested work.
    way: f32,
    /// One over the distance from the first class to the second. `None` if they coincide.
    inverse: Option<f32>,
}

impl Interpolation {
    fn through(first: &Class, second: &Class, work_log2: f32) -> Interpolation {
        let (from, to) = (first.at.get(), second.at.get());
        Interpolation { way: work_log2 - from, inverse: ((to - from).abs() >= 0.05).then(|| 1.0 / (to - from)) }
    }

    fn at(&self, first: f32, second: f32) -> f32 {
        let slope = match self.inverse {
            Some(inverse) => ((second - first) * inverse).clamp(0.0, SLOPE_MAX),
            None if self.way > 0.0 => UNKNOWN_SLOPE_UP,
            None => UNKNOWN_SLOPE_DOWN,
        };
        first + self.way * slope
    }
}

/// Two to the power of `value`, to four digits. Predictions are less precise, and every choice
/// evaluates this twice for each device.
fn exp2(value: f32) -> f32 {
    let value = value.clamp(-126.0, LOG2_MAX);
    // For positive values a conversion truncates like `floor`, and needs no call.
    let whole = (value + 127.0) as i32;
    let rest = value + 127.0 - whole as f32;
    let power = f32::from_bits((whole as u32) << 23);
    power * (1.0 + rest * (0.695_424 + rest * (0.226_308 + rest * 0.078_268)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(op: &str, dtype: Option<DType>) -> Label {
        Label { op: op.to_owned(), dtype, class: (String::new(), 0) }
    }

    #[test]
    fn cost_classes_of_one_op_have_curves_of_their_own() {
        let model = Model::new();
        let rsa = Label { class: ("rsa-4096".to_owned(), 0), ..label("sign", None) };
        let of_model = |variant| Label { class: (String::new(), variant), ..label("infer", None) };
        for (label, ns) in [(&rsa, 1e6), (&label("sign", None), 1e4), (&of_model(1), 1e3), (&of_model(2), 1e5)] {
            model.learn(label.key(), || label.clone(), 10.0, sample(ns));
            let estimate = model.estimate(label.key(), 10.0).unwrap();
            assert!((estimate.run_ns / ns - 1.0).abs() < 0.01, "{label:?}");
        }
        assert_eq!(rsa.key(), CurveKey::new("sign", None, CostClass::labelled("rsa-4096")));
        assert_eq!(of_model(2).key(), CurveKey::new("infer", None, CostClass::numbered(2)));
    }

    #[test]
    fn every_op_of_the_list_finds_a_place_with_every_element_type() {
        let model = Model::new();
        let kinds = || DType::ALL.into_iter().map(Some).chain([None]);
        let labels: Vec<Label> =
            (0..Op::COUNT).flat_map(|op| kinds().map(move |dtype| label(&format!("op{op}"), dtype))).collect();
        labels.iter().for_each(|label| model.learn(label.key(), || label.clone(), 3.0, sample(10.0)));
        let missing = labels.iter().filter(|label| model.estimate(label.key(), 3.0).is_none());
        assert_eq!(missing.count(), 0);
    }

    fn sample(ns: f32) -> Sample {
        Sample { run_ns: Some(ns), service_ns: ns, output_bytes: 64.0 }
    }

    fn learn(model: &Model, work: f32, ns: f32) {
        let label = label("map", Some(DType::F32));
        model.learn(label.key(), || label, work.log2(), sample(ns));
    }

    fn estimate(model: &Model, work: f32) -> f32 {
        model.estimate(label("map", Some(DType::F32)).key(), work.log2()).unwrap().run_ns
    }

    #[test]
    fn nothing_is_known_at_first_and_keys_are_kept_apart() {
        let model = Model::new();
        assert_eq!(model.estimate(label("map", Some(DType::F32)).key(), 10.0), None);
        learn(&model, 1024.0, 5000.0);
        assert!((estimate(&model, 1024.0) / 5000.0 - 1.0).abs() < 0.01);
        assert_eq!(model.estimate(label("map", Some(DType::F64)).key(), 10.0), None);
        assert_eq!(model.estimate(label("sort", Some(DType::F32)).key(), 10.0), None);
    }

    #[test]
    fn one_hiccup_moves_little_and_a_lasting_change_moves_soon() {
        let model = Model::new();
        (0..50).for_each(|_| learn(&model, 1000.0, 1000.0));
        learn(&model, 1000.0, 1e9);
        assert!(estimate(&model, 1000.0) < 1150.0, "{}", estimate(&model, 1000.0));
        (0..100).for_each(|_| learn(&model, 1000.0, 8000.0));
        assert!((7000.0..9000.0).contains(&estimate(&model, 1000.0)), "{}", estimate(&model, 1000.0));
    }

    #[test]
    fn of_the_first_ops_the_quickest_counts_and_then_the_class_is_settled() {
        let model = Model::new();
        let settled = || model.estimate(label("map", Some(DType::F32)).key(), 10.0).unwrap().settled;
        for ns in [90_000.0, 4_000.0, 30_000.0] {
            learn(&model, 1024.0, ns);
            assert_eq!(settled(), ns == 30_000.0, "after {ns} ns");
        }
        assert!((estimate(&model, 1024.0) / 4_000.0 - 1.0).abs() < 0.01, "{}", estimate(&model, 1024.0));
    }

    #[test]
    fn sizes_between_and_beyond_follow_the_line() {
        let model = Model::new();
        learn(&model, 1024.0, 1e3);
        assert!(estimate(&model, 2048.0) > 1e3 && estimate(&model, 2048.0) < 2e3, "one class: less than linear");
        learn(&model, 1024.0 * 1024.0, 1e6);
        let between = estimate(&model, 32.0 * 1024.0);
        assert!((between / 3.2e4 - 1.0).abs() < 0.1, "{between}");
        let beyond = estimate(&model, 16.0 * 1024.0 * 1024.0);
        assert!((beyond / 1.6e7 - 1.0).abs() < 0.2, "{beyond}");
        assert!(estimate(&model, 1.0) < 1e3);
    }

    #[test]
    fn powers_of_two_are_close_enough() {
        for step in -1260..=1260 {
            let value = step as f32 / 10.0 + 0.037;
            let value = value.min(LOG2_MAX);
            assert!((exp2(value) / value.exp2() - 1.0).abs() < 2e-4, "{value}");
        }
        assert!(exp2(1e9).is_finite() && exp2(f32::NEG_INFINITY) > 0.0);
    }

    #[test]
    fn a_full_table_learns_new_classes_and_forgets_those_that_nobody_uses() {
        let model = Model::new();
        let class = |number: usize| Label { class: (String::new(), number as u64), ..label("infer", None) };
        let hot = label("matmul", Some(DType::F32));
        for number in 1..=8 * KEYS_MAX {
            let label = class(number);
            model.learn(label.key(), || label, 3.0, sample(10.0 + number as f32));
            // A key that is taught now and then stays, with all that was learned for it.
            if number % SPARED_LESSONS as usize == 0 {
                model.learn(hot.key(), || hot.clone(), 3.0, sample(500.0));
            }
        }
        let known = |label: &Label| model.estimate(label.key(), 3.0).map(|estimate| estimate.run_ns);
        for number in 8 * KEYS_MAX - 50..=8 * KEYS_MAX {
            let (ns, expected) = (known(&class(number)), 10.0 + number as f32);
            assert!(ns.is_some_and(|ns| (ns / expected - 1.0).abs() < 0.01), "class {number}: {ns:?}");
        }
        assert!(known(&hot).is_some_and(|ns| (ns / 500.0 - 1.0).abs() < 0.01));
        let mut seen = 0;
        model.for_each(Process::current(), |label, point| {
            let expected = label.class.1 as f32 + 10.0;
            assert!(label.op == "matmul" || (exp2(point.run) / expected - 1.0).abs() < 0.01, "{label:?}: {point:?}");
            seen += 1;
        });
        assert!(seen > KEYS_MAX / 2 && seen <= KEYS_MAX, "{seen}");
    }

    #[test]
    fn keys_that_take_turns_do_not_forget_each_other() {
        let model = Model::new();
        let labels: Vec<Label> = (0..2 * KEYS_MAX).map(|number| label(&format!("op{number}"), None)).collect();
        // Twice as many keys as entries, and a few of them are taught often.
        labels.iter().for_each(|label| model.learn(label.key(), || label.clone(), 3.0, sample(10.0)));
        let few = &labels[labels.len() - 20..];
        for _ in 0..SETTLED_AFTER {
            few.iter().for_each(|label| model.learn(label.key(), || label.clone(), 3.0, sample(10.0)));
        }
        let settled = |label: &&Label| model.estimate(label.key(), 3.0).is_some_and(|estimate| estimate.settled);
        assert_eq!(few.iter().filter(settled).count(), few.len());
    }

    #[test]
    fn what_is_exported_can_be_seeded() {
        let (model, copy) = (Model::new(), Model::new());
        (0..20).for_each(|size| learn(&model, (1 << size) as f32, 100.0 * (1 << size) as f32));
        model.for_each(Process::current(), |label, point| copy.seed(label, &point));
        for work in [1.0_f32, 3000.0, 1e6] {
            assert_eq!(estimate(&model, work), estimate(&copy, work));
        }
    }
}
