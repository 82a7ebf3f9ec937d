//! The order of scores.

use panoply_core::op::compute::Metric;
use panoply_cpu_order::internals::MetricOrder;

#[test]
fn nan_is_the_worst_for_every_metric() {
    for metric in [Metric::Dot, Metric::Cosine, Metric::Euclidean] {
        for score in [f32::NEG_INFINITY, -1.0, 0.0, 1.0, f32::INFINITY] {
            assert!(metric.rank(score) < metric.rank(f32::NAN));
            assert_eq!(metric.score_of_rank(metric.rank(score)), score);
        }
        assert!(metric.score_of_rank(metric.rank(f32::NAN)).is_nan());
    }
    assert!(Metric::Dot.rank(2.0) < Metric::Dot.rank(1.0));
    assert!(Metric::Euclidean.rank(1.0) < Metric::Euclidean.rank(2.0));
}

#[test]
fn the_distance_bound_turns_away_nothing_that_could_win() {
    let mut worst = 1.0e-3_f32;
    while worst < 1.0e6 {
        let bound = Metric::Euclidean.bound(worst);
        let mut square = worst * worst;
        for _ in 0..64 {
            square = square.next_down();
            if square.sqrt() < worst {
                assert!(-square > bound, "{square} is nearer than {worst}");
            }
        }
        worst *= 1.37;
    }
}
