//! `panoply signal` as users run it.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.arg("signal").args(arguments).env("COLUMNS", "100").env_remove("PANOPLY_CONFIG");
    command.env("PANOPLY_CACHE", std::env::temp_dir().join("panoply-signal-no-such-cache"));
    command.output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(&[arguments, &["--json"]].concat())).unwrap()
}

fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    message
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-signal-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn packets_are_recorded_shown_and_decoded() {
    let folder = folder("packets");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let own = json(&["decode"]);
    assert_eq!((own["intact"].as_u64(), own["damaged"].as_u64()), (Some(12), Some(0)), "{own}");
    assert!(printed(&["decode"]).contains("End of recording."));
    for (name, iq) in [("two.sigmf-meta", None), ("two.wav", Some("--iq"))] {
        let file = path(name);
        let made = json(&["record", &file, "--packet", "first", "--packet", "second", "--snr", "15"]);
        assert_eq!(made["packets"], 2);
        let arguments: Vec<&str> = ["decode", &file].into_iter().chain(iq).collect();
        let found = json(&arguments);
        let texts: Vec<&str> =
            found["packets"].as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap()).collect();
        assert_eq!(texts, ["first", "second"], "{found}");
        assert!((found["packets"][0]["offset_hz"].as_f64().unwrap() - 180.0).abs() < 40.0, "{found}");
        assert!(refused(&["record", &file], 1).contains("--overwrite"));
        printed(&["record", &file, "--overwrite"]);
        // If the recording cannot be moved to its destination, no partial files stay behind.
        let taken = path(&format!("taken-{name}"));
        std::fs::create_dir_all(&taken).unwrap();
        assert!(refused(&["record", &taken, "--overwrite"], 1).contains("cannot be written"));
        let left = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
        let (svg, png) = (path("s.svg"), path("s.png"));
        let arguments: Vec<&str> = ["spectrum", &file, "--svg", &svg, "--png", &png].into_iter().chain(iq).collect();
        assert!(printed(&arguments).contains('█'));
        assert!(std::fs::read_to_string(&svg).unwrap().contains("<polyline"));
        assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
        assert_eq!(json(&arguments)["decibels"].as_array().unwrap().len(), 1024);
        let arguments: Vec<&str> = ["waterfall", &file, "--svg", &svg, "--png", &png].into_iter().chain(iq).collect();
        assert!(printed(&arguments).lines().count() > 20);
        assert!(std::fs::read_to_string(&svg).unwrap().contains("data:image/png;base64,iVBOR"));
        assert!(json(&arguments)["rows"].as_u64().unwrap() > 20);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_tone_is_found_where_it_is() {
    let folder = folder("tone");
    let file = folder.join("tone.raw").to_str().unwrap().to_owned();
    let sample = |at: u32| (0.5 * (std::f64::consts::TAU * 0.125 * f64::from(at)).cos()) as f32;
    let bytes: Vec<u8> = (0..8192).flat_map(|at| sample(at).to_le_bytes()).collect();
    std::fs::write(&file, &bytes).unwrap();
    let raw = ["spectrum", &file, "--raw", "f32", "--rate", "8000", "--real"];
    let found = json(&raw);
    assert!((found["peak_hz"].as_f64().unwrap() - 1000.0).abs() < 8.0, "{found}");
    // Half of full scale is 6 dB below it, and a real tone has half the power.
    assert!((found["peak_db"].as_f64().unwrap() + 9.03).abs() < 0.1, "{found}");
    // A truncated recording is shown up to its end, with a warning.
    std::fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    let output = run(&raw);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut short"), "{output:?}");
    // NaN and infinite samples count as silence, are reported, and leave the rest intact.
    let mut odd = bytes.clone();
    odd[4000..4004].copy_from_slice(&f32::NAN.to_le_bytes());
    odd[9000..9004].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    std::fs::write(&file, &odd).unwrap();
    let found = json(&raw);
    assert!((found["peak_hz"].as_f64().unwrap() - 1000.0).abs() < 8.0 && found["not_finite"] == 2, "{found}");
    let output = run(&["waterfall", &file, "--raw", "f32", "--rate", "8000", "--real"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 of 8192 samples are NaN"), "{output:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn error_rates_lie_beside_theory() {
    let folder = folder("ber");
    let svg = folder.join("ber.svg").to_str().unwrap().to_owned();
    let found = json(&["ber", "--from", "2", "--to", "6", "--step", "2", "--bits", "1000000", "--svg", &svg]);
    assert_eq!(found["points"].as_array().unwrap().len(), 3);
    assert!(found["distance_db_max"].as_f64().unwrap() < 0.3, "{found}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<circle"));
    let coded = json(&["ber", "--coded", "--from", "3", "--to", "3", "--bits", "400000"]);
    let point = &coded["points"][0];
    assert!(point["measured"].as_f64().unwrap() < 1.5 * point["theory"].as_f64().unwrap() + 1e-5, "{coded}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_receiver_against_the_clock_decodes_what_was_sent() {
    let found = json(&["realtime", "--seconds", "0.3", "--rate", "200000", "--period-us", "10000"]);
    let all = ["met", "missed", "overruns"].map(|name| found[name].as_u64().unwrap());
    assert!(all.iter().sum::<u64>() >= 30, "{found}");
    assert!(found["bits_decoded"].as_u64().unwrap() > 10_000 && found["bits_wrong"] == 0, "{found}");
    assert!(!found["standing"].as_str().unwrap().is_empty());
    let late = found["missed"].as_u64().unwrap() + found["overruns"].as_u64().unwrap();
    assert!(found["kept_off"].as_u64().unwrap() <= late, "{found}");
    assert!(found["own_us"]["median"].as_f64().unwrap() > 0.0, "{found}");
    let counted: u64 = found["jitter_histogram"].as_array().unwrap().iter().map(|step| step[1].as_u64().unwrap()).sum();
    assert_eq!(counted, 30);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, expected) in [
        (&["spectrum", "x.wav", "--bins", "1000"][..], "--bins"),
        (&["spectrum", "x.raw", "--raw", "f64", "--rate", "1"], "--raw"),
        (&["spectrum", "x.raw", "--raw", "f32", "--rate", "nan"], "--rate"),
        (&["spectrum", "x.raw", "--raw", "f32", "--rate", "-1"], "--rate"),
        (&["waterfall", "x.wav", "--rows", "0"], "--rows"),
        (&["ber", "--constellation", "qam7"], "--constellation"),
        (&["ber", "--step", "0"], "--step"),
        (&["ber", "--from", "5", "--to", "1"], "--to"),
        (&["ber", "--from", "nan"], "--from"),
        (&["ber", "--bits", "0"], "--bits"),
        (&["realtime", "--period-us", "0"], "--period-us"),
        (&["realtime", "--rate", "1e300"], "--rate"),
        (&["realtime", "--priority", "100"], "--priority"),
        (&["record", "x.wav", "--snr", "nan"], "--snr"),
        (&["record", "x.wav", "--rate", "0"], "--rate"),
    ] {
        let message = refused(arguments, 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert!(refused(&["record", "x.mp3"], 1).contains(".wav"));
    assert!(refused(&["spectrum", "/nowhere/x.wav"], 1).contains("cannot be read"));
    let folder = folder("refused");
    let file = folder.join("x.wav").to_str().unwrap().to_owned();
    std::fs::write(&file, b"RIFF\0\0\0\0WAVEfmt ").unwrap();
    for command in ["spectrum", "waterfall", "decode"] {
        assert!(refused(&[command, &file], 1).contains("cut short"), "{command}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
