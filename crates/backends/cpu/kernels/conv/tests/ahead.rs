//! The prefetch ahead of a panel.

use panoply_cpu_conv::internals::PlanePrefetch;

#[test]
fn steps_end_at_the_last_plane() {
    let planes = vec![0.0_f32; 3 * 100];
    let mut ahead = PlanePrefetch::new(&planes, 100, 10, 90, 4);
    assert_eq!(ahead.lines_per_step, 4);
    (0..10).for_each(|_| ahead.step());
    assert_eq!(ahead.plane, 3);
    PlanePrefetch::<f32>::nothing().step();
    PlanePrefetch::new(&planes, 100, 200, 300, 4).step();
}
