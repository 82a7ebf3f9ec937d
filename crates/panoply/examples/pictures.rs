//! Pictures through a pipeline. JPEG files are decoded on the CPU, then resized, normalised and
//! classified by a small network on any suitable device. The five most likely classes of each
//! picture come out in order. Each part also runs alone, to show the gain of overlapping, and the
//! run is written as a trace for ui.perfetto.dev.
//!
//! Overlapped, the whole run takes at least as long as its slowest part alone. If parts share the
//! CPUs, the run also takes at least the CPU time of all parts divided by the number of CPUs. The
//! last lines compare the run with the larger of these two bounds.
//!
//!     cargo run --release --example pictures -- [pictures] [trace.json]

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;
use std::time::Duration;

use jpeg_encoder::{ColorType, Encoder};
use panoply::pipeline::{Builder, ErrorPolicy, Pipeline, Report, RunOutcome};
use panoply::prelude::*;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

type BoxError = Box<dyn Error + Send + Sync>;

const WIDTH: u16 = 320;
const HEIGHT: u16 = 240;
const SIDE: usize = 64;
const CLASSES: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(2000), |count| count.parse())?;
    let trace_path = arguments.next();
    let runtime = Runtime::new()?;
    let network = Arc::new(Network::new()?);

    // A pipeline also makes the pictures themselves.
    let (files, _) =
        Pipeline::builder().source(0..count).try_map("encode", |n: &u32| picture(*n)).adaptive().collect().run()?;
    let files: Arc<[Vec<u8>]> = files.into();
    let source = || {
        let files = Arc::clone(&files);
        (0..files.len()).map(move |index| files[index].clone())
    };

    let decode = |builder: Builder<Vec<u8>>| builder.try_map("decode", |file| decoded(file)).adaptive();
    let begun = cpu_time();
    let (pictures, alone) = decode(Pipeline::builder().source(source())).collect().run()?;
    let decoding = RunTime::since(begun, "decoding alone", &alone);
    let begun = cpu_time();
    let (_, alone) = classify(Pipeline::builder().source(pictures), &runtime, &network).collect().run()?;
    let classifying = RunTime::since(begun, "classifying alone", &alone);

    let builder = Pipeline::builder().trace(20 * files.len() + 1000).source(source());
    let builder = decode(builder).on_error(ErrorPolicy::skip());
    let begun = cpu_time();
    let RunOutcome { result, report, trace, .. } = classify(builder, &runtime, &network).collect().start()?.wait();
    let classes = result?;
    let whole = RunTime::since(begun, "both overlapped", &report);
    println!("{report}");
    let (cpus, slowest) = (std::thread::available_parallelism()?.get(), decoding.wall.max(classifying.wall));
    let bound = slowest.max((decoding.cpu + classifying.cpu) / cpus as u32);
    println!(
        "{} pictures; the whole takes {:.2} of its slowest part, and {:.2} of the bound on {cpus} CPUs, {:.3} s",
        classes.len(),
        whole.wall.as_secs_f64() / slowest.as_secs_f64(),
        whole.wall.as_secs_f64() / bound.as_secs_f64(),
        bound.as_secs_f64()
    );
    println!("the first picture is most likely of class {:?}", classes.first().map(|five| five[0]));
    if let Some(trace) = trace {
        println!(
            "decoding and convolving were under way at the same time for {:?}",
            trace.overlap("decode", "first layer").unwrap_or_default()
        );
        if let Some(path) = trace_path {
            trace.write_json(BufWriter::new(File::create(&path)?))?;
            println!("{} spans in {path}", trace.spans());
        }
    }
    Ok(())
}

/// The time of a run: by the clock, and the CPU time of all threads.
struct RunTime {
    wall: Duration,
    cpu: Duration,
}

impl RunTime {
    fn since(begun: Duration, what: &str, report: &Report) -> RunTime {
        let (wall, cpu) = (report.wall, cpu_time().saturating_sub(begun));
        println!("{what}: {:.3} s, {:.2} s of CPU time", wall.as_secs_f64(), cpu.as_secs_f64());
        RunTime { wall, cpu }
    }
}

/// The CPU time of this process so far, in steps of 10 ms; zero on systems without `/proc`.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses; user and system time are fields 14 and
    // 15.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// The stages on devices. Their results stay on the device between stages.
fn classify(pictures: Builder<Tensor>, runtime: &Runtime, network: &Arc<Network>) -> Builder<Vec<u32>> {
    let [first, second, last] = [0; 3].map(|_| Arc::clone(network));
    pictures
        .op("resize", runtime, |picture: &Tensor| Resize::new(picture, SIDE, SIDE))
        .op("normalise", runtime, |picture: &Tensor| {
            Normalize::new(picture, &[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]).scale(1.0 / 255.0)
        })
        .op("first layer", runtime, move |picture: &Tensor| {
            Conv2d::new(picture, &first.layers[0]).activation(Activation::Relu)
        })
        .op("second layer", runtime, move |features: &Tensor| {
            Conv2d::new(features, &second.layers[1]).activation(Activation::Relu)
        })
        .op("pool", runtime, |features: &Tensor| Pool2d::global_average(features))
        .try_op("classes", runtime, move |pooled: &Tensor| {
            Ok::<_, panoply::Error>(MatMul::new(&pooled.reshape([1, 32])?, &last.classes))
        })
        .op("top five", runtime, |scores: &Tensor| TopK::new(scores, 5))
        .try_map("read", |(_, classes): &(Tensor, Tensor)| classes.as_slice::<u32>().map(<[u32]>::to_vec))
}

/// A network with random weights: two convolutions and a layer of classes.
struct Network {
    layers: [Tensor; 2],
    classes: Tensor,
}

impl Network {
    fn new() -> panoply::Result<Network> {
        let mut state = 1_u32;
        let mut weights = |shape: &[usize]| {
            let count = shape.iter().product();
            let next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            };
            Tensor::from_vec(std::iter::repeat_with(next).take(count).collect::<Vec<f32>>(), shape)
        };
        Ok(Network { layers: [weights(&[16, 3, 3, 3])?, weights(&[32, 16, 3, 3])?], classes: weights(&[32, CLASSES])? })
    }
}

/// Makes a picture as a JPEG file: waves whose colours and directions depend on `number`.
fn picture(number: u32) -> Result<Vec<u8>, BoxError> {
    let turn = number as f32 * 0.1;
    let pixel = |index: u32| {
        let (x, y) = ((index % u32::from(WIDTH)) as f32, (index / u32::from(WIDTH)) as f32);
        let wave = |scale: f32| ((x * turn.cos() + y * turn.sin()) * scale).sin() * 127.0 + 128.0;
        [wave(0.05) as u8, wave(0.11) as u8, wave(0.23) as u8]
    };
    let pixels: Vec<u8> = (0..u32::from(WIDTH) * u32::from(HEIGHT)).flat_map(pixel).collect();
    let mut file = Vec::new();
    Encoder::new(&mut file, 85).encode(&pixels, WIDTH, HEIGHT, ColorType::Rgb)?;
    Ok(file)
}

/// Decodes a JPEG file into one plane per colour channel.
fn decoded(file: &[u8]) -> Result<Tensor, BoxError> {
    let mut decoder = JpegDecoder::new(ZCursor::new(file));
    let pixels = decoder.decode()?;
    let info = decoder.info().ok_or("a picture without a size")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    if pixels.len() != 3 * width * height {
        return Err(format!("expected three colours, got {} bytes for {width} x {height}", pixels.len()).into());
    }
    let planes: Vec<u8> = (0..3).flat_map(|colour| pixels.iter().skip(colour).step_by(3).copied()).collect();
    Ok(Tensor::from_vec(planes, [1, 3, height, width])?)
}
