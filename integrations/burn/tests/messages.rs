//! The protocol on the wire: graphs that clients register, and clients with invalid messages. Such
//! a client gets an error or loses its session; other clients notice nothing.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use burn_backend::{Distribution, ExecutionError, TensorData};
use burn_ir::{
    BaseOperationIr, BinaryOpIr, FloatOperationIr, GraphBindings, GraphId, MatmulOpIr, NumericOperationIr, OperationIr,
    PadModeIr, PadOpIr, RandomOpIr, ScalarIr, ScalarOpIr, ShapeOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::id::StreamId;
use burn_std::{DType, Shape};
use panoply_burn::{Limits, Server, Serving};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tungstenite::{Message, WebSocket};

#[derive(Serialize)]
enum SentMessage {
    Task(Task),
    Init(Init),
}

#[derive(Serialize)]
struct Init {
    version: u16,
    session_id: (u64,),
    device_index: u32,
    #[serde(with = "serde_bytes")]
    authorization: Vec<u8>,
}

#[derive(Serialize)]
#[allow(clippy::large_enum_variant)]
enum Task {
    RegisterOperation(StreamId, OperationIr),
    RegisterTensor(StreamId, TensorId, TensorData),
    ReadTensor(u64, StreamId, TensorIr),
    RegisterAndExecuteGraph {
        stream_id: StreamId,
        graph_id: GraphId,
        relative_graph: Vec<OperationIr>,
        bindings: GraphBindings,
    },
    ExecuteGraph {
        stream_id: StreamId,
        graph_id: GraphId,
        bindings: GraphBindings,
    },
    RegisterAlias {
        stream_id: StreamId,
        new_id: TensorId,
        src_id: TensorId,
    },
}

#[derive(Deserialize)]
struct Answer {
    content: Content,
    #[allow(dead_code)]
    id: u64,
}

#[derive(Deserialize)]
enum Content {
    Init(#[allow(dead_code)] IgnoredAny),
    ReadTensor(Result<TensorData, ExecutionError>),
    InitRefused(#[allow(dead_code)] IgnoredAny),
}

struct Client(WebSocket<TcpStream>);

impl Client {
    fn connected(serving: &Serving) -> Client {
        let stream = TcpStream::connect(serving.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (socket, _) = tungstenite::client(format!("ws://{}/session", serving.address()), stream).unwrap();
        Client(socket)
    }

    fn new(serving: &Serving) -> Client {
        let mut client = Client::connected(serving);
        let answer = client.greet(2, 0, b"");
        assert!(matches!(answer.unwrap().content, Content::Init(_)));
        client
    }

    fn greet(&mut self, version: u16, device_index: u32, token: &[u8]) -> Option<Answer> {
        let init = Init { version, session_id: (5,), device_index, authorization: token.to_vec() };
        self.send(&[SentMessage::Init(init)]);
        self.answer()
    }

    fn send(&mut self, messages: &[SentMessage]) {
        // A server that has closed the session may refuse the message.
        let _ = self.0.send(Message::Binary(rmp_serde::to_vec(messages).unwrap().into()));
    }

    fn answer(&mut self) -> Option<Answer> {
        match self.0.read() {
            Ok(Message::Binary(bytes)) => Some(rmp_serde::from_slice(&bytes).unwrap()),
            _ => None,
        }
    }

    fn put(&mut self, id: u64, values: Vec<f32>, dims: &[usize]) {
        let data = TensorData::new(values, Shape::from(dims.to_vec()));
        self.send(&[SentMessage::Task(Task::RegisterTensor(StreamId::current(), TensorId::new(id), data))]);
    }

    fn op(&mut self, op: OperationIr) {
        self.send(&[SentMessage::Task(Task::RegisterOperation(StreamId::current(), op))]);
    }

    /// Runs a registered graph with these tensors, this size for dimension 0 and this number.
    fn execute(&mut self, graph: u64, tensors: &[(u64, u64)], size: usize, number: f64) {
        let (stream_id, graph_id, bindings) = (StreamId::current(), GraphId(graph), bindings(tensors, size, number));
        self.send(&[SentMessage::Task(Task::ExecuteGraph { stream_id, graph_id, bindings })]);
    }

    /// The values of a tensor, or the error of the op that makes it. `None` if the session is over.
    fn read(&mut self, id: u64, dims: &[usize]) -> Option<Result<Vec<f32>, String>> {
        self.send(&[SentMessage::Task(Task::ReadTensor(9, StreamId::current(), tensor(id, dims)))]);
        match self.answer()?.content {
            Content::ReadTensor(Ok(data)) => Some(Ok(data.try_to_vec::<f32>().unwrap())),
            Content::ReadTensor(Err(error)) => Some(Err(error.to_string())),
            _ => panic!("an answer to something else"),
        }
    }
}

fn serving(limits: Limits) -> Serving {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let server = Server::new(Arc::new(runtime)).limits(limits);
    server.spawn(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap()
}

fn tensor(id: u64, dims: &[usize]) -> TensorIr {
    let (id, shape) = (TensorId::new(id), Shape::from(dims.to_vec()));
    TensorIr { id, shape, status: TensorStatus::ReadOnly, dtype: DType::F32 }
}

fn bindings(tensors: &[(u64, u64)], size: usize, number: f64) -> GraphBindings {
    let tensors = tensors.iter().map(|(own, bound)| (TensorId::new(*own), TensorId::new(*bound))).collect();
    GraphBindings { tensors, shapes: vec![size], scalars: vec![ScalarIr::Float(number)], ranges: Vec::new() }
}

fn add(a: (u64, &[usize]), b: (u64, &[usize]), out: (u64, &[usize])) -> OperationIr {
    let (lhs, rhs, out) = (tensor(a.0, a.1), tensor(b.0, b.1), tensor(out.0, out.1));
    OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(BinaryOpIr { lhs, rhs, out }))
}

/// The session still computes.
fn works(client: &mut Client) {
    client.put(1_000, vec![1.0, 2.0], &[2]);
    client.op(add((1_000, &[2]), (1_000, &[2]), (1_001, &[2])));
    assert_eq!(client.read(1_001, &[2]), Some(Ok(vec![2.0, 4.0])));
}

fn refused(client: &mut Client, id: u64, dims: &[usize], part: &str) {
    let error = client.read(id, dims).expect("the session goes on").unwrap_err();
    assert!(error.contains(part), "{error}");
    works(client);
}

/// A client with Burn's feature `fusion` registers a loop's operations once, and then refers to
/// them by the graph's id.
#[test]
fn graphs_that_clients_register_run_with_other_tensors_sizes_and_numbers() {
    let serving = serving(Limits::default());
    let mut client = Client::new(&serving);
    client.put(10, vec![1.0, 2.0], &[2]);
    client.put(11, vec![5.0, 7.0], &[2]);
    // (a + b) · number. Only the graph itself reads the sum a + b.
    let product = ScalarOpIr { lhs: tensor(2, &[0]), rhs: ScalarIr::UInt(0), out: tensor(3, &[0]) };
    let product = OperationIr::NumericFloat(DType::F32, NumericOperationIr::MulScalar(product));
    let relative_graph = vec![add((0, &[0]), (1, &[0]), (2, &[0])), product, OperationIr::Drop(tensor(2, &[0]))];
    client.send(&[SentMessage::Task(Task::RegisterAndExecuteGraph {
        stream_id: StreamId::current(),
        graph_id: GraphId(4),
        relative_graph,
        bindings: bindings(&[(0, 10), (1, 11), (3, 12)], 2, 3.0),
    })]);
    assert_eq!(client.read(12, &[2]), Some(Ok(vec![18.0, 27.0])));
    for number in [4.0, 0.5, -1.0] {
        client.execute(4, &[(0, 10), (1, 12), (3, 13)], 2, number);
        let expected = vec![19.0 * number as f32, 29.0 * number as f32];
        assert_eq!(client.read(13, &[2]), Some(Ok(expected)));
    }
    client.put(20, vec![1.0; 3], &[3]);
    client.execute(4, &[(0, 20), (1, 20), (3, 21)], 3, 2.0);
    assert_eq!(client.read(21, &[3]), Some(Ok(vec![4.0; 3])));
    // The number that changed is an input of the graph from the second run on. Another size makes
    // another graph.
    let counters = serving.counters();
    assert_eq!((counters.graphs, counters.graphs_made), (5, 3), "{counters:?}");

    // An alias stays when its tensor is dropped.
    let (stream_id, new_id, src_id) = (StreamId::current(), TensorId::new(30), TensorId::new(21));
    client.send(&[SentMessage::Task(Task::RegisterAlias { stream_id, new_id, src_id })]);
    client.op(OperationIr::Drop(tensor(21, &[3])));
    assert_eq!(client.read(30, &[3]), Some(Ok(vec![4.0; 3])));
    assert!(client.read(21, &[3]).unwrap().is_err());
}

#[test]
fn wrong_operations_fail_alone_and_say_which() {
    let serving = serving(Limits::default());
    let mut client = Client::new(&serving);
    client.put(1, vec![1.0, 2.0, 3.0], &[3]);
    client.put(2, vec![1.0, 2.0], &[2]);

    refused(&mut client, 77, &[3], "tensor 77 does not exist");
    client.op(add((1, &[3]), (78, &[3]), (3, &[3])));
    refused(&mut client, 3, &[3], "tensor 78 does not exist");

    // Shapes that do not fit, and operations that depend on their result.
    client.op(add((1, &[3]), (2, &[2]), (4, &[3])));
    client.op(add((4, &[3]), (1, &[3]), (5, &[3])));
    refused(&mut client, 5, &[3], "NumericFloat.Add");

    // A result type that differs from the one that follows from the operands.
    client.op(add((1, &[3]), (1, &[3]), (6, &[4])));
    refused(&mut client, 6, &[4], "the client expects f32[4]");

    // A reshape to more elements than the tensor has, and a product of vectors.
    let desc = ShapeOpIr { input: tensor(1, &[3]), out: tensor(7, &[1 << 20]) };
    client.op(OperationIr::BaseFloat(BaseOperationIr::Reshape(desc)));
    refused(&mut client, 7, &[1 << 20], "Reshape");
    let desc = MatmulOpIr { lhs: tensor(1, &[3]), rhs: tensor(1, &[3]), out: tensor(8, &[3]) };
    client.op(OperationIr::Float(DType::F32, FloatOperationIr::Matmul(desc)));
    refused(&mut client, 8, &[3], "Matmul");

    // An operation that is not served.
    let desc = burn_ir::CrossOpIr { lhs: tensor(1, &[3]), rhs: tensor(1, &[3]), out: tensor(9, &[3]), dim: 0 };
    client.op(OperationIr::Float(DType::F32, FloatOperationIr::Cross(desc)));
    refused(&mut client, 9, &[3], "Float.Cross is not served");
    assert_eq!(serving.counters().panics, 0);
}

#[test]
fn absurd_sizes_are_refused() {
    let serving = serving(Limits { memory_bytes_max: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&serving);
    client.put(1, vec![1.0], &[1]);
    for dims in [[usize::MAX, usize::MAX], [1 << 40, 1], [0, usize::MAX], [1 << 20, 1]] {
        let desc = ShapeOpIr { input: tensor(1, &[1]), out: tensor(2, &dims) };
        client.op(OperationIr::BaseFloat(BaseOperationIr::Expand(desc)));
        assert!(client.read(2, &dims).expect("the session goes on").is_err());
        let desc = RandomOpIr { out: tensor(3, &dims), distribution: Distribution::Default };
        client.op(OperationIr::Float(DType::F32, FloatOperationIr::Random(desc)));
        assert!(client.read(3, &dims).expect("the session goes on").is_err(), "{dims:?}");
    }
    for padding in [usize::MAX, 1 << 30] {
        let (padding, mode) = (vec![(padding, padding)], PadModeIr::Constant(ScalarIr::Float(0.0)));
        let desc = PadOpIr { input: tensor(1, &[1]), out: tensor(4, &[3]), padding, mode };
        client.op(OperationIr::NumericFloat(DType::F32, NumericOperationIr::Pad(desc)));
        refused(&mut client, 4, &[3], "Pad");
    }
    for distribution in [
        Distribution::Uniform(1.0, 0.0),
        Distribution::Normal(0.0, -1.0),
        Distribution::Bernoulli(2.0),
        Distribution::Uniform(f64::NAN, 1.0),
    ] {
        let desc = RandomOpIr { out: tensor(5, &[2]), distribution };
        client.op(OperationIr::Float(DType::F32, FloatOperationIr::Random(desc)));
        refused(&mut client, 5, &[2], "is no distribution");
    }
    // More tensors than the session may have: this one ends, another goes on.
    let mut other = Client::new(&serving);
    for id in 100..110 {
        client.put(id, vec![0.0; 1 << 16], &[1 << 16]);
    }
    assert!(client.read(1, &[1]).is_none());
    works(&mut other);
    assert_eq!(serving.counters().panics, 0);
    assert!(
        serving.endings().iter().any(|ending| ending.contains("bytes of a session's tensors")),
        "{:?}",
        serving.endings()
    );
}

#[test]
fn what_is_no_message_ends_the_session_and_no_other() {
    let serving = serving(Limits { sessions_max: 4, message_bytes_max: 1 << 16, ..Limits::default() });
    let mut good = Client::new(&serving);
    for bytes in [vec![], vec![0xff; 100], vec![0xdd, 0xff, 0xff, 0xff, 0xff], vec![0x91; 5_000], vec![0xc1]] {
        let mut bad = Client::new(&serving);
        bad.0.send(Message::Binary(bytes.into())).unwrap();
        assert!(bad.answer().is_none());
    }
    // A message beyond its bound.
    let mut bad = Client::new(&serving);
    let _ = bad.0.send(Message::Binary(vec![0; 1 << 17].into()));
    assert!(bad.answer().is_none());
    // A second greeting, and a graph that was never registered.
    let mut bad = Client::new(&serving);
    assert!(bad.greet(2, 0, b"").is_none());
    let mut bad = Client::new(&serving);
    bad.execute(3, &[], 0, 0.0);
    assert!(bad.answer().is_none());
    // Another version, another device.
    for (version, device) in [(1, 0), (2, 7)] {
        let answer = Client::connected(&serving).greet(version, device, b"");
        assert!(matches!(answer.unwrap().content, Content::InitRefused(_)));
    }
    works(&mut good);
    assert_eq!(serving.counters().panics, 0);
}

#[test]
fn strangers_and_too_many_are_kept_out() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let server = Server::new(Arc::new(runtime)).token("secret").limits(Limits { sessions_max: 2, ..Limits::default() });
    let serving = server.spawn(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    for token in [&b""[..], b"secres", b"secret2"] {
        let answer = Client::connected(&serving).greet(2, 0, token);
        assert!(matches!(answer.unwrap().content, Content::InitRefused(_)));
    }
    // Sessions that were refused may take a moment to be over.
    std::thread::sleep(Duration::from_millis(200));
    let mut known: Vec<Client> = (0..2).map(|_| Client::connected(&serving)).collect();
    for client in &mut known {
        assert!(matches!(client.greet(2, 0, b"secret").unwrap().content, Content::Init(_)));
    }
    let stream = TcpStream::connect(serving.address()).unwrap();
    assert!(tungstenite::client(format!("ws://{}/session", serving.address()), stream).is_err());
    known.iter_mut().for_each(works);
}
