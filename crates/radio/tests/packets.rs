//! Packets through noisy channels are found, decoded and checked, for any cutting of the stream.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::op::signal::SampleFormat;
use panoply_core::{Complex64, Tensor};
use panoply_cpu_signal::Here;
use panoply_radio::packets::{Capture, PAYLOAD_BYTES_MAX, Packet, Receiver, Sender, TEXTS};
use panoply_radio::recording::{RecordingReader, SampleLayout, Writer};
use panoply_radio::synthetic::{Channel, Noise};

/// Packets with silence between them, as a channel delivers them.
fn stream(payloads: &[Vec<u8>], channel: Channel) -> (Vec<Complex64>, Vec<u64>) {
    let (sender, mut here, mut channel, mut gaps) = (Sender::new().unwrap(), Here::new(), channel, Noise::new(3));
    let (mut samples, mut begins) = (Vec::new(), Vec::new());
    for payload in payloads {
        samples.extend(vec![Complex64::default(); 100 + (gaps.word() % 3000) as usize]);
        begins.push(samples.len() as u64);
        samples.extend(sender.packet(&mut here, payload).unwrap());
    }
    channel.pass(&mut samples);
    (samples, begins)
}

fn received(samples: &[Complex64], lens: &[usize]) -> Vec<Packet> {
    let mut here = Here::new();
    let mut receiver = Receiver::new(&mut here).unwrap();
    let (mut packets, mut at, mut turns) = (Vec::new(), 0, lens.iter().cycle());
    while at < samples.len() {
        let end = samples.len().min(at + turns.next().unwrap());
        packets.extend(receiver.next(&mut here, &samples[at..end]).unwrap());
        at = end;
    }
    packets.extend(receiver.finish(&mut here).unwrap());
    packets
}

fn payloads(count: usize) -> Vec<Vec<u8>> {
    let mut noise = Noise::new(9);
    (0..count).map(|at| noise.bytes((at * 13) % (PAYLOAD_BYTES_MAX + 1))).collect()
}

#[test]
fn packets_come_through_noise_an_offset_and_an_echo() {
    let sent = payloads(40);
    let echoes = [Complex64::new(1.0, 0.0), Complex64::new(0.0, 0.0), Complex64::new(0.1, -0.1)];
    // The power of a sample is 1, that of a symbol four times as much: 6 dB.
    let channel = Channel::new(4).noise(1.0).unwrap().carrier(0.0007, 0.3).unwrap().echoes(&echoes).unwrap();
    let (samples, begins) = stream(&sent, channel);
    let got = received(&samples, &[samples.len()]);
    let intact: Vec<&Packet> = got.iter().filter(|packet| packet.intact).collect();
    assert!(intact.len() >= 39, "{} of 40", intact.len());
    assert!(got.len() <= 42, "{}", got.len());
    for packet in &intact {
        let number = begins.iter().position(|begin| begin.abs_diff(packet.at) <= 3).unwrap();
        assert_eq!(packet.payload, sent[number]);
        assert!((packet.frequency - 0.0007).abs() < 3e-4, "{}", packet.frequency);
        assert!((3.0..9.0).contains(&packet.snr_db), "{}", packet.snr_db);
    }
}

#[test]
fn any_cutting_gives_the_same_packets() {
    let (samples, _) = stream(&payloads(12), Channel::new(4).noise(0.3).unwrap().carrier(-0.0005, 0.1).unwrap());
    let whole = received(&samples, &[samples.len()]);
    assert_eq!(whole.iter().filter(|packet| packet.intact).count(), 12);
    for lens in [&[1000, 3, 77][..], &[65_536], &[30_000, 0, 1]] {
        let cut = received(&samples, lens);
        let told = |packets: &[Packet]| {
            packets.iter().map(|packet| (packet.at, packet.payload.clone(), packet.intact)).collect::<Vec<_>>()
        };
        assert_eq!(told(&whole), told(&cut), "{lens:?}");
    }
}

#[test]
fn noise_silence_and_what_is_no_number_give_no_packet() {
    let mut noise = vec![Complex64::default(); 300_000];
    Channel::new(8).noise(1.0).unwrap().pass(&mut noise);
    assert!(received(&noise, &[50_000]).iter().all(|packet| !packet.intact));
    assert!(received(&[], &[1]).is_empty());
    assert!(received(&vec![Complex64::default(); 200_000], &[70_000]).is_empty());
    let (mut samples, _) = stream(&payloads(3), Channel::new(1));
    samples[10] = Complex64::new(f32::NAN, 0.0);
    samples.push(Complex64::new(f32::INFINITY, 1.0));
    assert_eq!(received(&samples, &[999]).iter().filter(|packet| packet.intact).count(), 3);
    assert!(Sender::new().unwrap().packet(&mut Here::new(), &[0; PAYLOAD_BYTES_MAX + 1]).is_err());
}

#[test]
fn beyond_the_codes_power_packets_are_reported_as_damaged() {
    let (samples, _) = stream(&payloads(20), Channel::new(4).noise(4.0).unwrap());
    let got = received(&samples, &[samples.len()]);
    assert!(got.iter().any(|packet| !packet.intact), "{got:?}");
    let sent = payloads(20);
    assert!(got.iter().filter(|packet| packet.intact).all(|packet| sent.contains(&packet.payload)));
}

/// Checks the project's own recording; `PANOPLY_RECORD=1` writes it again.
#[test]
fn the_recording_that_the_command_carries_is_what_its_seed_makes() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../app/data/qpsk-packets.sigmf-meta");
    let capture = Capture { snr_db: 9.0, offset: 180.0 / 192_000.0, seed: 22 };
    let samples = capture.samples(&mut Here::new(), TEXTS.iter().map(|text| text.as_bytes())).unwrap();
    if std::env::var_os("PANOPLY_RECORD").is_some() {
        let layout = SampleLayout::complex(SampleFormat::I8, 192_000.0);
        let about = "QPSK packets with noise, made by panoply signal record --seed 22";
        let mut writer = Writer::create(&path, layout, about).unwrap();
        writer.write(&Tensor::from_slice(&samples, [samples.len()]).unwrap()).unwrap();
        writer.finish().unwrap();
    }
    let blocks: Vec<Tensor> = RecordingReader::open(&path, 10_000).unwrap().map(|block| block.unwrap()).collect();
    let read: Vec<Complex64> = blocks.iter().flat_map(|block| block.to_vec::<Complex64>().unwrap()).collect();
    assert_eq!(read.len(), samples.len());
    // Sines and logarithms may differ in the last bit between machines.
    let apart = read.iter().zip(&samples).map(|(read, made)| (read - made).norm()).fold(0.0, f32::max);
    assert!(apart < 1.5 / 128.0, "{apart}");
    let got = received(&read, &[10_000]);
    let texts: Vec<&[u8]> = got.iter().filter(|packet| packet.intact).map(|packet| &packet.payload[..]).collect();
    assert_eq!(texts, TEXTS.map(str::as_bytes));
}
