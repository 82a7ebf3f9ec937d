//! Compression by QATzip, where no instance compresses: results, and behaviour after failures.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use panoply_conformance::{cases, check_backend, run_one};
use panoply_core::op::crypto::*;
use panoply_core::*;

use super::{Bench, many};

/// The numbers of the test library's faults in QATzip.
const ZIP_NO_HARDWARE: c_int = 11;
const ZIP_FAILS: c_int = 12;
const ZIP_TIMES_OUT: c_int = 13;
const ZIP_HANGS: c_int = 14;
const ZIP_READS_LESS: c_int = 15;
const ZIP_WRITES_MORE: c_int = 16;
const ZIP_SOFTWARE: c_int = 17;

/// `len` bytes that compress to about half.
fn text(len: usize) -> Vec<u8> {
    (0..len as u32).map(|byte| (byte.wrapping_mul(byte) >> 7) as u8 & 15).collect()
}

/// Waits until everything is released: QATzip's thread ends after its engine.
fn expect_nothing_left(bench: &Bench) {
    let began = Instant::now();
    while bench.live() != 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "{} things are left", bench.live());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn qatzip_compresses_where_no_instance_does() {
    let bench = Bench::new("zip").without_compression();
    let backend = bench.backend();
    let devices = backend.discover().unwrap();
    assert_eq!(devices[0].name, "Intel QAT c6xx (2 instances, QATzip)");
    assert_eq!(devices[1].name, "Intel QAT 4xxx (2 instances)", "it is there once");
    let claimed: Vec<_> = cases().into_iter().filter(|case| backend.supports(&devices[0], &case.op).is_yes()).collect();
    let packed = claimed.iter().filter(|case| case.op.name() == "compress").count();
    let summary = check_backend(&backend, &devices[0], &claimed).unwrap();
    println!("{summary}, of these {packed} of Compress");
    assert!(summary.failed.is_empty() && packed > 0, "{summary}");
    // Every format and level, short and long messages in one batch. Decompression must restore the
    // input.
    let mut engine = backend.open(&devices[0], &OpenOptions::default()).unwrap();
    for (format, level) in [(Format::Deflate, 1), (Format::Zlib, 6), (Format::Gzip, 9), (Format::Gzip, 12)] {
        let lens = [128, 129, 0, 5_000, 70_000, 1 << 20];
        let messages: Vec<Bytes> = lens.iter().map(|len| Bytes::from_vec(text(*len))).collect();
        let op = Compress::new(format, messages).level(level).into_op().unwrap();
        assert!(backend.supports(&devices[0], &op).is_yes());
        let packed = Messages::from_value(run_one(&mut *engine, op).unwrap()).unwrap();
        let Op::Crypto(back) = Decompress::new(format, packed).into_op().unwrap() else { panic!() };
        let mut state = panoply_cpu_crypto::State::default();
        let back = panoply_cpu_crypto::run(&back, &mut state, &OneThread, &mut HostBufferMut::zeroed).unwrap();
        let back = Messages::from_value(back).unwrap().into_list().unwrap();
        assert!(back.iter().zip(lens).all(|(back, len)| back.as_slice().unwrap() == text(len)), "{format:?}");
    }
    // More messages than can wait at once.
    let many: Vec<Bytes> = (0..300).map(|len| Bytes::from_vec(text(200 + len))).collect();
    run_one(&mut *engine, Compress::new(Format::Zlib, many).into_op().unwrap()).unwrap();
    drop(engine);
    expect_nothing_left(&bench);
    let refused = |op: Op| match backend.supports(&devices[0], &op) {
        Support::No(reason) => reason,
        Support::Yes => "nothing".to_owned(),
    };
    let short = Compress::new(Format::Zlib, text(127)).into_op().unwrap();
    assert_eq!(refused(short), "a message of 127 bytes, which QATzip would compress in software");
    let back = Decompress::new(Format::Zlib, text(500)).into_op().unwrap();
    assert_eq!(refused(back), "QATzip is used to compress alone");
}

#[test]
fn what_qatzip_does_wrong_is_told() {
    let bench = Bench::new("zip-faults").without_compression();
    bench.fault(ZIP_NO_HARDWARE);
    let devices = bench.backend().discover().unwrap();
    assert_eq!(devices[0].capabilities.features.len(), 8, "without hardware it is not claimed");
    bench.fault(0);
    let mut engine = bench.open();
    let pack = || Compress::new(Format::Gzip, text(5_000)).into_op().unwrap();
    for (fault, word) in [
        (ZIP_FAILS, "qzCompress: it failed"),
        (ZIP_TIMES_OUT, "qzCompress: it timed out"),
        (ZIP_SOFTWARE, "QATzip's session: no hardware"),
        (ZIP_NO_HARDWARE, "qzInit: no hardware"),
    ] {
        bench.fault(fault);
        match run_one(&mut *engine, pack()).unwrap_err() {
            Error::DeviceFault { reason, .. } => assert!(reason.contains(word), "{reason}"),
            other => panic!("{other}"),
        }
        // Other services continue, and compression works again when the fault is gone. A failed
        // session is not reused.
        run_one(&mut *engine, many(3)).unwrap();
        if fault == ZIP_SOFTWARE {
            continue;
        }
        bench.fault(0);
        run_one(&mut *engine, pack()).unwrap();
        bench.fault(ZIP_FAILS);
        run_one(&mut *engine, pack()).unwrap_err();
    }
    bench.fault(0);
    drop(engine);
    for (fault, word) in [
        (ZIP_READS_LESS, "did not read the whole message"),
        (ZIP_WRITES_MORE, "wrote beyond its room"),
        (ZIP_HANGS, "has not answered"),
    ] {
        let mut engine = bench.open();
        bench.fault(fault);
        let began = Instant::now();
        let error = run_one(&mut *engine, pack()).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }) && error.to_string().contains(word), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
        drop(engine);
        bench.fault(0);
        run_one(&mut *bench.open(), pack()).unwrap();
    }
    expect_nothing_left(&bench);
}

#[test]
fn threads_that_qatzip_does_not_return_from_are_bounded() {
    let bench = Bench::new("zip-threads").without_compression();
    let backend = bench.backend();
    let device = backend.discover().unwrap().remove(0);
    bench.fault(ZIP_HANGS);
    let mut refused = None;
    for _ in 0..9 {
        match backend.open(&device, &OpenOptions::default()) {
            Ok(mut engine) => {
                let op = Compress::new(Format::Zlib, text(200)).into_op().unwrap();
                engine.submit(&mut vec![Item { token: 1, op }]);
            }
            Err(error) => refused = Some(error.to_string()),
        }
    }
    assert!(refused.unwrap().contains("does not return from 8 calls"));
    bench.fault(0);
    expect_nothing_left(&bench);
    run_one(&mut *bench.open(), Compress::new(Format::Zlib, text(200)).into_op().unwrap()).unwrap();
}
