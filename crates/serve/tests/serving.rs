//! Many callers of one model, folders of models, and models in a chain.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::onnx::*;
use panoply_models::{Array, ElementType, Model};
use panoply_runtime::{RunOptions, Runtime};
use panoply_serve::{Ensemble, Error, Member, Repository, RepositoryOptions, ServeOptions, Server, Ticket};

fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    let make = || Arc::new(Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap());
    Arc::clone(RUNTIME.get_or_init(make))
}

/// `y = x · w`, for rows of two numbers; all weights are `factor`.
fn scaled(factor: f32) -> Message {
    let nodes = [node("MatMul", &["x", "w"], &["y"], &[])];
    let weights = [f32s("w", &[2, 3], &[factor; 6])];
    let (x, y) = (port("x", ElementType::F32, &[-1, 2]), port("y", ElementType::F32, &[-1, 3]));
    model(18, &graph(&nodes, &weights, &[x], &[y]))
}

fn rows(values: &[f32]) -> Array {
    Array::from_slice(values, [values.len() / 2, 2]).unwrap()
}

#[test]
fn callers_are_joined_and_get_their_own_rows() {
    let model = Model::from_bytes(runtime(), &scaled(1.0).0).unwrap();
    let wait_max = Duration::from_millis(20);
    let options = ServeOptions { wait_max, queue_depth_max: 1000, ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for turn in 0..20 {
                    let value = (caller * 100 + turn) as f32;
                    let given: Vec<f32> = vec![value; 2 * (1 + turn % 3)];
                    let y = server.infer(&[("x", rows(&given))]).unwrap();
                    assert_eq!(y.get("y").unwrap().dims(), [1 + turn % 3, 3]);
                    assert!(y.first().unwrap().as_slice::<f32>().unwrap().iter().all(|sum| *sum == 2.0 * value));
                }
            });
        }
    });
    let (batches, joined) = server.batches();
    assert_eq!(joined, 312, "every row once");
    assert!(batches < 160, "{batches} batches for 160 requests");
}

#[test]
fn a_wrong_request_fails_alone() {
    let model = Model::from_bytes(runtime(), &scaled(1.0).0).unwrap();
    let options = ServeOptions { wait_max: Duration::from_millis(50), ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = |name, array| server.submit(&[(name, array)], &RunOptions::default()).unwrap();
    let good = ask("x", rows(&[1.0, 2.0]));
    let wrong = [ask("z", rows(&[1.0, 2.0])), ask("x", Array::from_slice(&[1_i64, 2], [1, 2]).unwrap())];
    let late = RunOptions::default().deadline(Instant::now());
    let late = server.submit(&[("x", rows(&[1.0, 2.0]))], &late).unwrap();
    assert_eq!(good.wait().unwrap().first().unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    assert!(wrong.into_iter().all(|ticket| ticket.wait().is_err()));
    assert!(late.wait().is_err());
}

/// Regression: unnamed dimensions were taken for equal, so the weights of both callers were joined
/// as rows.
#[test]
fn dimensions_without_a_name_are_not_the_same() {
    let nodes = [node("MatMul", &["x", "w"], &["y"], &[])];
    let ports = [port("x", ElementType::F32, &[i64::MIN, 3]), port("w", ElementType::F32, &[3, i64::MIN])];
    let y = port("y", ElementType::F32, &[i64::MIN, i64::MIN]);
    let model = Model::from_bytes(runtime(), &model(18, &graph(&nodes, &[], &ports, &[y])).0).unwrap();
    let options = ServeOptions { wait_max: Duration::from_millis(50), ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    for factors in [[1.0_f32, 1.0], [1.0, 2.0]] {
        let ask = |factor: f32| {
            let x = Array::from_slice(&[1.0_f32; 6], [2, 3]).unwrap();
            let w = Array::from_slice(&[factor; 6], [3, 2]).unwrap();
            server.submit(&[("x", x), ("w", w)], &RunOptions::default()).unwrap()
        };
        for (ticket, factor) in factors.map(ask).into_iter().zip(factors) {
            let answer = ticket.wait().unwrap();
            assert_eq!(answer.first().unwrap().dims(), [2, 2]);
            assert_eq!(answer.first().unwrap().as_slice::<f32>().unwrap(), [3.0 * factor; 4]);
        }
    }
}

/// Regression: arrays with fewer dimensions than the model's input ended the instance that joined
/// them, and with it the server.
#[test]
fn requests_of_other_shapes_do_no_harm() {
    for (message, buckets) in [(scaled(1.0), vec![]), (doubled(), vec![4, 8])] {
        let model = Model::from_bytes(runtime(), &message.0).unwrap();
        let options = ServeOptions { wait_max: Duration::from_millis(50), buckets, ..ServeOptions::default() };
        let server = Server::start(&model, options).unwrap();
        for dims in [&[][..], &[1], &[1, 1, 1]] {
            let ask = || server.submit(&[("x", Array::from_slice(&[1.0_f32], dims).unwrap())], &RunOptions::default());
            let wrong: Vec<_> = (0..3).map(|_| ask().unwrap()).collect();
            for ticket in wrong {
                assert!(matches!(ticket.wait(), Err(Error::Model(panoply_models::Error::Invalid { .. }))), "{dims:?}");
            }
        }
        let sum: f64 =
            server.infer(&[("x", rows(&[1.0, 2.0]))]).unwrap().first().unwrap().to_floats().unwrap().iter().sum();
        assert!(sum == 9.0 || sum == 6.0, "{sum}");
    }
}

/// `y = x + x`, for rows of any length.
fn doubled() -> Message {
    let (x, y) = (port("x", ElementType::F32, &[-1, -2]), port("y", ElementType::F32, &[-1, -2]));
    model(18, &graph(&[node("Add", &["x", "x"], &["y"], &[])], &[], &[x], &[y]))
}

/// Regression: requests with different shared texts were joined, and answered with the first one's
/// text.
#[test]
fn requests_with_different_texts_are_not_joined() {
    let nodes = [
        node("Equal", &["word", "yes"], &["is"], &[]),
        node("Neg", &["x"], &["minus"], &[]),
        node("Where", &["is", "x", "minus"], &["y"], &[]),
    ];
    let yes = Message::default().number(1, 1).number(2, 8).text(8, "yes").text(6, "yes");
    let (x, y) = (port("x", ElementType::F32, &[-1, 1]), port("y", ElementType::F32, &[-1, 1]));
    let graph = graph(&nodes, &[yes], &[x, port("word", ElementType::String, &[1])], &[y]);
    let model = Model::from_bytes(runtime(), &model(19, &graph).0).unwrap();
    let options = ServeOptions { wait_max: Duration::from_millis(100), ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = |word: &str| {
        let word = Array::from_strings(vec![word.to_owned()], [1]).unwrap();
        let x = Array::from_slice(&[3.0_f32], [1, 1]).unwrap();
        server.submit(&[("x", x), ("word", word)], &RunOptions::default()).unwrap()
    };
    let (plus, minus) = (ask("yes"), ask("no"));
    let answered = |ticket: Ticket| ticket.wait().unwrap().first().unwrap().to_floats().unwrap();
    assert_eq!((answered(plus), answered(minus)), (vec![3.0], vec![-3.0]));
}

#[test]
fn a_full_queue_says_so_and_a_dropped_server_answers_what_it_took() {
    let model = Model::from_bytes(runtime(), &scaled(2.0).0).unwrap();
    let options = ServeOptions { wait_max: Duration::from_secs(5), queue_depth_max: 3, ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = || server.submit(&[("x", rows(&[1.0, 1.0]))], &RunOptions::default());
    let taken: Vec<_> = (0..3).map(|_| ask().unwrap()).collect();
    assert!(matches!(ask().err(), Some(Error::Busy { .. })));
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(4), "nobody waits for more once the server goes");
    assert!(
        taken.into_iter().all(|ticket| ticket.wait().unwrap().first().unwrap().as_slice::<f32>().unwrap() == [4.0; 3])
    );
    let bytes = ServeOptions { queue_bytes_max: 4, ..ServeOptions::default() };
    let server = Server::start(&model, bytes).unwrap();
    assert!(matches!(server.infer(&[("x", rows(&[1.0, 1.0]))]), Err(Error::Busy { .. })));
    assert!(Server::start(&model, ServeOptions { instances: 0, ..ServeOptions::default() }).is_err());
    assert!(Server::start(&model, ServeOptions { preferred: vec![4, 2], ..ServeOptions::default() }).is_err());
}

#[test]
fn sequences_are_filled_up_to_buckets_and_cut_again() {
    let model = Model::from_bytes(runtime(), &doubled().0).unwrap();
    let options = ServeOptions { buckets: vec![4, 8], wait_max: Duration::from_millis(50), ..ServeOptions::default() };
    let server = Server::start(&model, options).unwrap();
    let ask = |len: usize| {
        server.submit(&[("x", Array::from_slice(&vec![1.0_f32; len], [1, len]).unwrap())], &RunOptions::default())
    };
    let tickets: Vec<_> = [3, 4, 2, 9].map(|len| (len, ask(len).unwrap())).into_iter().collect();
    for (len, ticket) in tickets {
        let y = ticket.wait().unwrap();
        assert_eq!(
            (y.first().unwrap().dims(), y.first().unwrap().as_slice::<f32>().unwrap()),
            (&[1, len][..], &vec![2.0; len][..])
        );
    }
    assert!(server.batches().0 <= 3, "three of them fit the first bucket");
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("panoply-models-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn put(&self, name: &str, version: u64, model: &Message) {
        let folder = self.0.join(name).join(version.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model.onnx"), &model.0).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_of_models_is_loaded_replaced_and_kept_within_its_budget() {
    let folder = Folder::new("repository");
    folder.put("a", 1, &scaled(1.0));
    folder.put("b", 1, &scaled(5.0));
    // Two models of 24 bytes each exceed the budget of 40 bytes.
    let options = RepositoryOptions { weight_bytes_max: 40, ..RepositoryOptions::default() };
    let models = Repository::open(runtime(), &folder.0, options).unwrap();
    assert_eq!(models.names().unwrap(), ["a", "b"]);
    let ask =
        |server: &Server| server.infer(&[("x", rows(&[1.0, 1.0]))]).unwrap().first().unwrap().to_floats().unwrap()[0];
    let first = models.get("a", None).unwrap();
    assert_eq!(ask(&first), 2.0);
    assert_eq!(ask(&models.get("b", None).unwrap()), 10.0);
    let loaded: Vec<String> = models.loaded().into_iter().map(|state| state.name).collect();
    assert_eq!(loaded, ["b"], "the one that was asked for longest ago went");
    assert_eq!(ask(&first), 2.0, "who holds it is still answered");
    folder.put("b", 2, &scaled(7.0));
    assert!(models.refresh("b").unwrap() && !models.refresh("b").unwrap());
    assert_eq!(ask(&models.get("b", None).unwrap()), 14.0);
    assert_eq!(models.loaded()[0].version, 2);
    assert_eq!(ask(&models.get("b", Some(1)).unwrap()), 10.0);
    for wrong in ["..", "../a", "", "c", ".hidden"] {
        assert!(models.get(wrong, None).is_err(), "{wrong:?}");
    }
    assert!(models.get("a", Some(9)).is_err());
    let tight = RepositoryOptions { weight_bytes_max: 4, ..RepositoryOptions::default() };
    let error = Repository::open(runtime(), &folder.0, tight).unwrap().get("a", None).err().unwrap();
    assert!(matches!(error, Error::Limit { limit: 4, got: 24, .. }), "{error}");
}

#[test]
fn an_ensemble_is_one_model_after_the_other() {
    let (double, relu) =
        (Model::from_bytes(runtime(), &scaled(-1.0).0).unwrap(), Model::from_bytes(runtime(), &relu().0).unwrap());
    // In the wrong order: the names of values determine the order of execution.
    let members = vec![
        Member::new(&relu).reads("x", "middle").writes("y", "positive"),
        Member::new(&double).writes("y", "middle"),
    ];
    let chain = Ensemble::new("chain", &["x"], &["positive", "middle"], members.clone()).unwrap();
    let outputs = chain.infer(&[("x", rows(&[1.0, 1.0, -1.0, -1.0]))], &RunOptions::default()).unwrap();
    assert_eq!(outputs.get("positive").unwrap().as_slice::<f32>().unwrap(), [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]);
    assert_eq!(outputs.get("middle").unwrap().as_slice::<f32>().unwrap()[0], -2.0);
    let late = RunOptions::default().deadline(Instant::now());
    assert!(chain.infer(&[("x", rows(&[1.0, 1.0]))], &late).is_err());
    assert!(chain.infer(&[("z", rows(&[1.0, 1.0]))], &RunOptions::default()).is_err());
    assert!(Ensemble::new("cycle", &[], &["positive"], members.clone()).is_err());
    assert!(Ensemble::new("nothing", &["x"], &["elsewhere"], members).is_err());
}

fn relu() -> Message {
    let nodes = [node("Relu", &["x"], &["y"], &[])];
    let (x, y) = (port("x", ElementType::F32, &[-1, 3]), port("y", ElementType::F32, &[-1, 3]));
    model(18, &graph(&nodes, &[], &[x], &[y]))
}

#[test]
fn a_server_has_a_share_of_its_answers_compared() {
    use panoply_conformance::virtual_device::{Script, VirtualBackend};
    let cpu = || Arc::new(panoply_cpu::CpuBackend::new());
    let device = panoply_core::DeviceId { api: panoply_core::Api::SIMULATED, index: 0 };
    let virtual_device = Arc::new(VirtualBackend::new(cpu()).device(Script::new()));
    // Others' ops are not compared: the server's are.
    let verify = panoply_runtime::Verify::where_asked();
    let runtime = Runtime::builder().backend(virtual_device).backend(cpu()).verify(verify).build().unwrap();
    let (runtime, wait_max) = (Arc::new(runtime), Duration::ZERO);
    let model = Model::from_bytes(Arc::clone(&runtime), &scaled(1.0).0).unwrap();
    for (run, all) in [(RunOptions::prefer(device), false), (RunOptions::prefer(device).verify_every(1), true)] {
        let before = verified(&runtime);
        let server = Server::start(&model, ServeOptions { run, wait_max, ..ServeOptions::default() }).unwrap();
        for _ in 0..4 {
            assert_eq!(server.infer(&[("x", rows(&[1.0, 2.0]))]).unwrap().first().unwrap().dims(), [1, 3]);
        }
        assert_eq!(verified(&runtime) >= before + 4, all);
    }
}

/// How many answers were compared.
fn verified(runtime: &Runtime) -> u64 {
    runtime.workers().iter().map(|worker| worker.counters.verified).sum()
}
