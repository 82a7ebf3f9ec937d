//! A fork of the process has none of a server's instances. In the fork the server refuses requests
//! with a reason, and dropping it returns at once.
#![cfg(unix)]
#![allow(unsafe_code)] // Calls `fork`.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[cfg(target_os = "linux")]
#[path = "../../pipeline/tests/fork_inside/mod.rs"]
mod fork_inside;
#[path = "../../models/tests/onnx/mod.rs"]
mod onnx;

use std::sync::Arc;
use std::time::{Duration, Instant};

use onnx::*;
use panoply_models::{Array, ElementType, Model};
use panoply_runtime::{RunOptions, Runtime};
use panoply_serve::{Error, Repository, RepositoryOptions, ServeOptions, Server};

/// The time limit of a child. A wait for a thread that does not exist in the child would never end.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs `body` in a fork and returns its result. `None` if the child does not end in time.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and exits without running the parent's
    // destructors.
    match unsafe { libc::fork() } {
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: `_exit` ends the process, and does nothing else.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        child => {
            assert!(child > 0, "no fork");
            let start = Instant::now();
            let mut status = 0;
            // SAFETY: `status` is a valid integer to write to, and the child belongs to this
            // process.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > CHILD_TIME_MAX {
                    // SAFETY: as above.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    // SAFETY: as above.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7)
        }
    }
}

fn forked<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Run(panoply_core::Error::Forked { made_in, called_in, .. })) if made_in != called_in)
}

/// A model that returns the sum of each row of two numbers, three times.
fn sums() -> Model {
    let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap();
    let nodes = [node("MatMul", &["x", "w"], &["y"], &[])];
    let weights = [f32s("w", &[2, 3], &[1.0; 6])];
    let (x, y) = (port("x", ElementType::F32, &[-1, 2]), port("y", ElementType::F32, &[-1, 3]));
    Model::from_bytes(Arc::new(runtime), &model(18, &graph(&nodes, &weights, &[x], &[y])).0).unwrap()
}

/// Regression: a child that a signal handler had forked while a thread waited for an answer waited
/// for ever.
#[test]
#[cfg(target_os = "linux")]
fn a_wait_for_an_answer_ends() {
    use fork_inside::{End, end, fork_inside};

    let model = sums();
    let row = || Array::from_slice(&[1.0_f32, 2.0], [1, 2]).unwrap();
    // A request waits until the batch has two rows.
    let wait_max = Duration::from_secs(60);
    let options = ServeOptions { batch_max: 2, preferred: vec![1, 2], wait_max, ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = || server.submit(&[("x", row())], &RunOptions::default()).unwrap();
    let first = ask();
    let wait = || {
        let answer = first.wait();
        end(forked(&answer), answer.map(|_| "an answer"))
    };
    let mut second = None;
    let (child, parent) = fork_inside(wait, || second = Some(ask()));
    assert_eq!((child, parent), (Some(true), End::Otherwise("Ok(\"an answer\")".to_owned())));
    assert!(second.is_some_and(|second| second.wait().is_ok()));
}

/// Regression: the same while another thread loaded the model.
#[test]
#[cfg(target_os = "linux")]
fn a_wait_for_a_model_that_is_being_loaded_ends() {
    use fork_inside::{End, end, fork_inside};
    use panoply_conformance::virtual_device::{Script, VirtualBackend};

    // The only device answers nothing before it is aborted, so the model's first run does not end.
    let script = Script::new().latency(Duration::from_secs(3600));
    let backend = VirtualBackend::new(Arc::new(panoply_cpu::CpuBackend::new())).device(script);
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap());
    let folder = std::env::temp_dir().join(format!("panoply-forked-loading-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("held/1")).unwrap();
    let nodes = [node("Relu", &["x"], &["y"], &[])];
    let (x, y) = (port("x", ElementType::F32, &[1, 2]), port("y", ElementType::F32, &[1, 2]));
    std::fs::write(folder.join("held/1/model.onnx"), model(18, &graph(&nodes, &[], &[x], &[y])).0).unwrap();
    let repository = Repository::open(Arc::clone(&runtime), &folder, RepositoryOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| repository.get("held", None).map(drop));
        while runtime.workers().iter().all(|worker| worker.counters.accepted == 0) {
            assert!(!first.is_finished(), "the device has answered");
            std::thread::yield_now();
        }
        let wait = || {
            let second = repository.get("held", None).map(drop);
            end(forked(&second), second)
        };
        let (child, parent) = fork_inside(wait, || _ = runtime.abort());
        assert_eq!(child, Some(true));
        assert!(matches!(parent, End::Otherwise(_)), "{parent:?}");
        let _ = first.join().unwrap();
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_refuses_requests_in_a_fork_and_is_dropped_at_once() {
    let model = sums();
    let row = || Array::from_slice(&[1.0_f32, 2.0], [1, 2]).unwrap();
    // `wait_max` is long enough that the fork finds the request in the queue.
    let options = ServeOptions { wait_max: Duration::from_millis(300), ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = || server.submit(&[("x", row())], &RunOptions::default()).unwrap();
    let (mut waited, mut polled, mut dropped) = (Some(ask()), Some(ask()), Some(ask()));
    let mut server = Some(server);
    let right = in_child(|| {
        let server = server.take().unwrap();
        drop(dropped.take());
        let polled = polled.take().unwrap().poll().is_some_and(|answer| forked(&answer));
        let waited = forked(&waited.take().unwrap().wait());
        let refused = forked(&server.infer(&[("x", row())])) && server.waiting() == 0;
        drop(server);
        polled && waited && refused
    });
    assert_eq!(right, Some(true));
    let sum = |answer: Result<panoply_models::Outputs, Error>| {
        answer.unwrap().first().unwrap().as_slice::<f32>().unwrap() == [3.0; 3]
    };
    let answers = [waited, polled, dropped].into_iter().map(|ticket| ticket.unwrap().wait());
    assert!(answers.into_iter().all(sum), "the parent has its answers");
    assert!(sum(server.unwrap().infer(&[("x", row())])), "the parent goes on");
}

#[test]
fn a_folder_of_models_refuses_them_in_a_fork_that_met_one_being_loaded() {
    let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap();
    let folder = std::env::temp_dir().join(format!("panoply-forked-models-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("slow/1")).unwrap();
    let path = folder.join("slow/1/model.onnx");
    let nodes = [node("MatMul", &["x", "w"], &["y"], &[])];
    let side = 1024;
    let weights = [f32s("w", &[side, side], &vec![0.5; (side * side) as usize])];
    let (x, y) = (port("x", ElementType::F32, &[-1, side]), port("y", ElementType::F32, &[-1, side]));
    std::fs::write(&path, model(18, &graph(&nodes, &weights, &[x], &[y])).0).unwrap();
    let repository = Repository::open(runtime, &folder, RepositoryOptions::default()).unwrap();
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Loads the model again and again, so that forks meet it in the middle.
        scope.spawn(|| {
            while !end.load(std::sync::atomic::Ordering::SeqCst) {
                repository.get("slow", None).unwrap();
                repository.unload("slow");
            }
        });
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(3));
            let right = in_child(|| {
                let refused = forked(&repository.get("slow", None).map(drop)) && forked(&repository.refresh("slow"));
                repository.unload("slow");
                refused && repository.loaded().is_empty() && repository.names().is_ok_and(|names| names == ["slow"])
            });
            assert_eq!(right, Some(true));
        }
        end.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    let mut repository = Some(repository);
    let dropped = in_child(|| {
        drop(repository.take());
        true
    });
    assert_eq!(dropped, Some(true));
    drop(repository);
    std::fs::remove_dir_all(&folder).unwrap();
}
