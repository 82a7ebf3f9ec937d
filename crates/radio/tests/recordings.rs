//! Recordings: written samples are read again, in blocks of any size. Truncated and hostile files
//! give typed errors.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::PathBuf;

use panoply_core::op::signal::SampleFormat;
use panoply_core::{Complex64, DType, Tensor};
use panoply_radio::recording::{RecordingError, RecordingReader, SampleLayout, Writer};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-recording-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Numbers that every format represents exactly.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37) % 255) as f32 / 128.0 - 1.0 + 1.0 / 128.0).collect()
}

fn block(layout: &SampleLayout, len: usize) -> Tensor {
    let channels = layout.channels;
    let dims: Vec<usize> = if channels == 1 { vec![len] } else { vec![channels, len] };
    match layout.complex {
        true => {
            let all = numbers(2 * channels * len);
            let pairs = all.chunks(2).map(|pair| Complex64::new(pair[0], pair[1])).collect();
            Tensor::from_vec::<Complex64>(pairs, dims).unwrap()
        }
        false => Tensor::from_vec(numbers(channels * len), dims).unwrap(),
    }
}

#[test]
fn what_is_written_is_read_again_in_any_blocks() {
    let folder = folder("again");
    let mut seen = 0;
    for (name, format, complex, channels) in [
        ("a.wav", SampleFormat::I16, false, 1),
        ("b.wav", SampleFormat::I24, false, 3),
        ("c.wav", SampleFormat::F32, false, 2),
        ("d.wav", SampleFormat::U8, false, 1),
        ("e.sigmf-meta", SampleFormat::I8, true, 1),
        ("f.sigmf-data", SampleFormat::I16Be, true, 2),
        ("g.sigmf-meta", SampleFormat::F32, false, 1),
        ("h.raw", SampleFormat::I32, true, 1),
    ] {
        let layout = SampleLayout { format, complex, channels, rate_hz: 48_000.0, centre_hz: 0.0 };
        let (path, whole) = (folder.join(name), block(&layout, 301));
        let mut writer = Writer::create(&path, layout, "a test").unwrap();
        writer.write(&whole).unwrap();
        writer.write(&block(&layout, 0)).unwrap();
        writer.finish().unwrap();
        for size in [1, 7, 301, 1000] {
            let reader = match name {
                "h.raw" => RecordingReader::open_raw(&path, layout, size).unwrap(),
                _ => RecordingReader::open(&path, size).unwrap(),
            };
            assert_eq!(*reader.layout(), layout, "{name}");
            let blocks: Vec<Tensor> = reader.map(|block| block.unwrap()).collect();
            assert_eq!(blocks.len(), 301_usize.div_ceil(size), "{name} {size}");
            let (mut at, last) = (0, whole.shape().rank() - 1);
            for block in &blocks {
                let len = block.shape()[last];
                let expected = whole.slice(last, at, at + len).unwrap().contiguous().unwrap();
                assert_eq!(block.as_bytes().unwrap(), expected.as_bytes().unwrap(), "{name} {size} {at}");
                at += len;
            }
            assert_eq!(at, 301);
            seen += 1;
        }
    }
    assert_eq!(seen, 32);
    std::fs::remove_dir_all(folder).unwrap();
}

fn wav(folder: &std::path::Path) -> Vec<u8> {
    let (path, layout) = (folder.join("whole.wav"), SampleLayout::real(SampleFormat::I16, 8000.0));
    let mut writer = Writer::create(&path, layout, "").unwrap();
    writer.write(&block(&layout, 100)).unwrap();
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn every_cut_of_a_wav_file_is_a_typed_error_behind_its_whole_samples() {
    let folder = folder("cut");
    let whole = wav(&folder);
    assert_eq!(whole.len(), 244);
    for len in 0..whole.len() {
        let reader = RecordingReader::wav(&whole[..len], 64);
        if len < 44 {
            let short = matches!(reader, Err(RecordingError::CutShort { .. }));
            assert!(short, "{len}: {:?}", reader.map(|reader| *reader.layout()));
            continue;
        }
        let (mut samples, mut torn) = (0, 0);
        for item in reader.unwrap() {
            match item {
                Ok(block) => samples += block.elements(),
                Err(RecordingError::CutShort { .. }) => torn += 1,
                Err(other) => panic!("{len}: {other}"),
            }
        }
        assert_eq!((samples, torn), ((len - 44) / 2, 1), "{len}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn mutated_wav_files_never_panic_nor_grow() {
    let folder = folder("mutated");
    let whole = wav(&folder);
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let (mut refused, mut read) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() % 60;
            bytes[at] = next() as u8;
        }
        match RecordingReader::wav(&bytes[..], 1 << 20) {
            Ok(reader) => {
                let total: usize = reader.filter_map(Result::ok).map(|block| block.len_bytes()).sum();
                assert!(total <= 4 * whole.len());
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1000 && read > 1000, "{refused} {read}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn hostile_metadata_is_refused() {
    let folder = folder("hostile");
    let meta = folder.join("x.sigmf-meta");
    std::fs::write(folder.join("x.sigmf-data"), [0; 10]).unwrap();
    let good = r#"{"global":{"core:datatype":"ci16_le","core:sample_rate":1000},"captures":[{}],"annotations":[]}"#;
    for (text, expected) in [
        ("", "metadata"),
        ("{", "metadata"),
        ("[]", "core:datatype"),
        (&good.replace("ci16_le", "cf64_le"), "core:datatype"),
        (&good.replace("ci16_le", "ßi16"), "core:datatype"),
        (&good.replace("1000", "-1"), "sampling rate"),
        (&good.replace("1000", "1e300"), "sampling rate"),
        (&good.replace("1000", "\"fast\""), "core:sample_rate"),
        (&good.replace("1000", "1000,\"core:num_channels\":1000000"), "channels"),
        (&good.replace("1000", "1000,\"core:num_channels\":-1"), "core:num_channels"),
        (&good.replace("1000", "1000,\"core:dataset\":\"../../etc/passwd\""), "core:dataset"),
        (&good.replace("1000", "1000,\"core:dataset\":\"/etc/passwd\""), "core:dataset"),
        (&good.replace("1000", "1000,\"core:dataset\":\"..\""), "core:dataset"),
        (&good.replace("{}", "{\"core:header_bytes\":-5}"), "core:header_bytes"),
        (&"[".repeat(100_000), "metadata"),
    ] {
        std::fs::write(&meta, text).unwrap();
        let error = RecordingReader::open(&meta, 16).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // Ten bytes are two samples of four bytes, and two bytes more.
    std::fs::write(&meta, good).unwrap();
    let items: Vec<_> = RecordingReader::open(&meta, 16).unwrap().collect();
    assert_eq!(items[0].as_ref().unwrap().elements(), 2);
    assert!(matches!(items[1], Err(RecordingError::CutShort { expected: 2, got: 2, .. })), "{items:?}");
    assert_eq!(items.len(), 2);
    std::fs::write(&meta, good.replace("{}", "{\"core:header_bytes\":999999999999}")).unwrap();
    assert_eq!(RecordingReader::open(&meta, 16).unwrap().count(), 0);
    for wrong in ["nothing.txt", "missing.wav", "missing.sigmf-meta"] {
        assert!(RecordingReader::open(&folder.join(wrong), 16).is_err());
    }
    assert!(RecordingReader::open(&meta, 0).is_err() && RecordingReader::open(&meta, usize::MAX).is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_does_not_fit_a_recording_is_refused() {
    let folder = folder("refused");
    let layout = SampleLayout::complex(SampleFormat::I16, 1000.0);
    let mut writer = Writer::create(&folder.join("x.raw"), layout, "").unwrap();
    assert!(writer.write(&Tensor::zeros(DType::F32, [4]).unwrap()).is_err());
    assert!(writer.write(&Tensor::zeros(DType::Complex64, [2, 4]).unwrap()).is_err());
    // A failing write leaves the existing file unchanged.
    std::fs::write(folder.join("x.wav"), "an older recording").unwrap();
    assert!(Writer::create(&folder.join("x.wav"), SampleLayout { format: SampleFormat::I8, ..layout }, "").is_err());
    for rate_hz in [5e9, 0.2] {
        assert!(Writer::create(&folder.join("x.wav"), SampleLayout { rate_hz, ..layout }, "").is_err(), "{rate_hz}");
    }
    assert_eq!(std::fs::read(folder.join("x.wav")).unwrap(), b"an older recording");
    assert!(
        Writer::create(&folder.join("x.sigmf-meta"), SampleLayout { format: SampleFormat::I24, ..layout }, "").is_err()
    );
    for rate_hz in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Writer::create(&folder.join("y.raw"), SampleLayout { rate_hz, ..layout }, "").is_err());
    }
    // Two channels of a WAV file become one complex signal on request.
    let stereo = SampleLayout { channels: 2, ..SampleLayout::real(SampleFormat::I16, 1000.0) };
    let mut writer = Writer::create(&folder.join("iq.wav"), stereo, "").unwrap();
    writer.write(&block(&stereo, 10)).unwrap();
    writer.finish().unwrap();
    let mut reader = RecordingReader::open(&folder.join("iq.wav"), 16).unwrap().pairs().unwrap();
    let got = reader.next().unwrap().unwrap();
    assert_eq!((got.dtype(), got.elements()), (DType::Complex64, 10));
    assert!(reader.pairs().is_err());
    std::fs::remove_dir_all(folder).unwrap();
}
