//! The last handle of a runtime, dropped by an op's own code: no thread waits for itself, and no op
//! is lost.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::op::compute::{Kernel, KernelCall, LaunchSize};
use panoply_core::{DType, Shape, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Pending, Runtime};

use super::{eventually, op};

/// The handle that one place drops, once.
type Last<T> = Arc<Mutex<Option<T>>>;

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

/// Drops the handle as soon as it is there, with the lock released.
fn let_go<T>(last: &Last<T>) {
    let (start, mut taken) = (Instant::now(), None);
    while taken.is_none() && start.elapsed() < Duration::from_secs(5) {
        taken = last.lock().unwrap().take();
        std::thread::yield_now();
    }
    drop(taken);
}

fn all_answered(ops: Vec<Pending<Tensor>>) {
    eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
    ops.into_iter().for_each(|op| assert!(op.wait().is_ok(), "dropping a runtime drains it"));
}

#[test]
fn a_kernels_closure_may_let_its_runtime_go() {
    // Dropped inside the running closure, and together with the closure when its op is dropped.
    for inside in [true, false] {
        let runtime = cpu();
        let gone = Arc::downgrade(&runtime);
        let last: Last<Arc<Runtime>> = Arc::default();
        let there = Arc::clone(&last);
        let body = move |call: &mut KernelCall<'_>| {
            if inside {
                let_go(&there);
            }
            let _owned = &there;
            call.output::<f32>(0)?.fill(3.0);
            Ok(())
        };
        let program = Kernel::on_cpu("lets_go", body).output("y", DType::F32).build().unwrap();
        let kernel = Kernel::new(&program).output(Shape::new([5]).unwrap()).launch(LaunchSize::over(5, 1));
        drop(program);
        let mut before: Vec<Pending<Tensor>> = (0..20).map(|_| runtime.run(op())).collect();
        let pending = runtime.run(kernel);
        before.extend((0..20).map(|_| runtime.run(op())));
        let start = Instant::now();
        *last.lock().unwrap() = Some(runtime);
        drop(last);
        let outputs = pending.wait().unwrap();
        assert_eq!(outputs[0].as_slice::<f32>().unwrap(), [3.0; 5]);
        all_answered(before);
        eventually("the runtime is gone", || gone.upgrade().is_none());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
