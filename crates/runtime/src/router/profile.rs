//! Saves what was learned about devices as text, and loads it again.
//!
//! One line per fact, with fields separated by tabs. In a name, tabs, line ends and backslashes are
//! written as `\t`, `\n`, `\r` and `\\`, so that every name can be read back. The last line holds
//! the number of the others, so that a truncated file is detected. A device's facts are only used
//! for the same device with the same driver and the same version of this library.

use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;

use panoply_core::{DType, DeviceInfo};

use crate::lane::Lane;
use crate::learned::model::{CLASSES, KEYS_MAX, LOG2_MAX, Label, Point};

const HEAD: &str = "panoply profile 2";
/// The most lines of a profile.
const LINES_MAX: usize = 1_000_000;
/// The most fields of a line, plus one.
const FIELDS_MAX: usize = 12;
/// The most devices of a profile, and the most ops of a device: the capacity of a model.
const DEVICES_MAX: usize = 1024;
const OPS_MAX: usize = KEYS_MAX * CLASSES;
/// The largest accepted latency in nanoseconds, and the largest accepted rate in bytes per
/// nanosecond.
const LINK_FIGURE_MAX: f32 = 1e12;

/// Everything that was learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// One profile for each device.
    pub devices: Vec<DeviceProfile>,
}

/// The measurements of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    /// The device and its driver.
    pub identity: Identity,
    /// From the host to the device.
    pub up: Option<LinkSpeed>,
    /// From the device to the host.
    pub down: Option<LinkSpeed>,
    /// The measured times of ops.
    pub ops: Vec<OpSpeed>,
}

/// The properties that must be equal for the measurements to apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The API.
    pub api: String,
    /// The driver's name for the device.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// The compute capability, and the number of compute units.
    pub capability: String,
    /// The version of this library.
    pub version: String,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// The time for the smallest transfer.
    pub latency_ns: f32,
    /// Bytes per nanosecond.
    pub bytes_per_ns: f32,
}

/// The measured time of an op of a certain size.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpeed {
    /// The op's name.
    pub op: String,
    /// The element type of its first input.
    pub dtype: Option<DType>,
    /// Its cost class: a label, empty if there is none, and a number.
    pub class: (String, u64),
    /// The base-2 logarithm of its work.
    pub work_log2: f32,
    /// The base-2 logarithm of its time in nanoseconds, with the device to itself.
    pub run_log2: f32,
    /// The base-2 logarithm of the nanoseconds for which it kept the device from the next op.
    pub service_log2: f32,
    /// The base-2 logarithm of its output bytes.
    pub output_log2: f32,
    /// The number of ops that were measured.
    pub count: u32,
}

/// Why a profile could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is of another kind or version, or damaged at its beginning.
    #[error("it does not begin with `{HEAD}`")]
    NotAProfile,
    /// The text ends too early.
    #[error("it is cut off: expected {expected} lines, got {got}")]
    CutOff {
        /// The number of lines according to its last line.
        expected: String,
        /// The actual number of lines.
        got: usize,
    },
    /// A malformed line.
    #[error("line {line}: expected {expected}, got {got}")]
    BadLine {
        /// The line number, from 1.
        line: usize,
        /// The accepted content.
        expected: &'static str,
        /// The actual content.
        got: String,
    },
}

impl Identity {
    /// The identity of a device as this library finds it.
    pub fn of(info: &DeviceInfo) -> Identity {
        let units = info.compute_units.unwrap_or(0);
        Identity {
            api: info.id.api.name().to_owned(),
            name: info.name.clone(),
            driver: info.driver_version.as_deref().unwrap_or("-").to_owned(),
            capability: format!("{} x{units}", info.compute_capability.as_deref().unwrap_or("-")),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Escapes a name: replaces the characters that would end a field or a line.
fn written(name: &str) -> Cow<'_, str> {
    if !name.contains(['\t', '\n', '\r', '\\']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r"))
}

/// Reverses `written`. A backslash before any other character stands for itself.
fn read(field: &str) -> String {
    let mut name = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        name.push_str(before);
        let meant = [('\\', '\\'), ('t', '\t'), ('n', '\n'), ('r', '\r')];
        let meant = meant.into_iter().find(|(letter, _)| after.starts_with(*letter));
        name.push(meant.map_or('\\', |(_, meant)| meant));
        rest = if meant.is_some() { &after[1..] } else { after };
    }
    name + rest
}

impl Profile {
    /// The profile as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for device in &self.devices {
            let Identity { api, name, driver, capability, version } = &device.identity;
            let [api, name, driver, capability, version] =
                [api, name, driver, capability, version].map(|name| written(name));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "device\t{api}\t{name}\t{driver}\t{capability}\t{version}");
            for (direction, link) in [("up", device.up), ("down", device.down)] {
                if let Some(LinkSpeed { latency_ns, bytes_per_ns }) = link {
                    let _ = writeln!(text, "link\t{direction}\t{latency_ns}\t{bytes_per_ns}");
                }
            }
            for op in &device.ops {
                let dtype = op.dtype.map_or("-".to_owned(), |dtype| dtype.to_string());
                let OpSpeed {
                    op, class: (label, variant), work_log2, run_log2, service_log2, output_log2, count, ..
                } = op;
                // A label equal to the sign for "none" is written with a backslash, which stands
                // for itself there.
                let (op, label) = match label.as_str() {
                    "" => (written(op), Cow::Borrowed("-")),
                    "-" => (written(op), Cow::Borrowed("\\-")),
                    label => (written(op), written(label)),
                };
                let _ = writeln!(
                    text,
                    "op\t{op}\t{dtype}\t{label}\t{variant:x}\t{work_log2}\t{run_log2}\t{service_log2}\t{output_log2}\t{count}"
                );
            }
        }
        let lines = text.lines().count();
        let _ = writeln!(text, "end\t{lines}");
        text
    }

    /// The profile of the lane's device.
    pub(crate) fn of(lane: &Lane) -> DeviceProfile {
        let speed = |link: &crate::learned::links::Link| {
            let (latency_ns, bytes_per_ns) = (link.latency_ns(), link.bytes_per_ns());
            link.is_measured().then_some(LinkSpeed { latency_ns, bytes_per_ns })
        };
        let mut ops = Vec::new();
        lane.model.for_each(lane.process, |label, point| {
            let Point { at, run, service, output, count } = point;
            let Label { op, dtype, class } = label.clone();
            let (work_log2, run_log2) = (at, run);
            ops.push(OpSpeed {
                op,
                dtype,
                class,
                work_log2,
                run_log2,
                service_log2: service,
                output_log2: output,
                count,
            });
        });
        ops.sort_by(|a: &OpSpeed, b: &OpSpeed| {
            let curves = (&a.op, a.dtype, &a.class).cmp(&(&b.op, b.dtype, &b.class));
            curves.then(a.work_log2.total_cmp(&b.work_log2))
        });
        let (up, down) = (speed(&lane.links.up), speed(&lane.links.down));
        DeviceProfile { identity: Identity::of(&lane.info), up, down, ops }
    }
}

impl DeviceProfile {
    /// Initialises a lane with these measurements.
    pub(crate) fn seed(&self, lane: &Lane) {
        for (link, speed) in [(&lane.links.up, self.up), (&lane.links.down, self.down)] {
            if let Some(LinkSpeed { latency_ns, bytes_per_ns }) = speed {
                link.seed(latency_ns, bytes_per_ns);
            }
        }
        for op in &self.ops {
            let (at, run, service, output) = (op.work_log2, op.run_log2, op.service_log2, op.output_log2);
            let label = Label { op: op.op.clone(), dtype: op.dtype, class: op.class.clone() };
            lane.model.seed(&label, &Point { at, run, service, output, count: op.count });
        }
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Profile, ProfileError> {
        let mut lines = text.lines().zip(1..).take(LINES_MAX);
        if lines.next().is_none_or(|(head, _)| head != HEAD) {
            return Err(ProfileError::NotAProfile);
        }
        let mut profile = Profile::default();
        for (content, line) in lines {
            let fields: Vec<&str> = content.splitn(FIELDS_MAX, '\t').collect();
            let more_devices = profile.devices.len() < DEVICES_MAX;
            match (fields.as_slice(), profile.devices.last_mut()) {
                (["end", count], _) if count.parse() == Ok(line - 1) => return Ok(profile),
                (["end", count], _) => {
                    return Err(ProfileError::CutOff { expected: (*count).to_owned(), got: line - 1 });
                }
                (["device", api, name, driver, capability, version], _) if more_devices => {
                    let [api, name, driver, capability, version] =
                        [api, name, driver, capability, version].map(|field| read(field));
                    let identity = Identity { api, name, driver, capability, version };
                    profile.devices.push(DeviceProfile { identity, up: None, down: None, ops: Vec::new() });
                }
                (["link", direction, rest @ ..], Some(device)) => {
                    let speed = Some(link_speed(rest, line)?);
                    if *direction == "up" { device.up = speed } else { device.down = speed }
                }
                (["op", rest @ ..], Some(device)) if device.ops.len() < OPS_MAX => {
                    device.ops.push(op_speed(rest, line)?);
                }
                _ => return Err(bad(line, "a device, a link or an op of a device, or the end", content)),
            }
        }
        Err(ProfileError::CutOff { expected: "a last line `end`".to_owned(), got: text.lines().count() })
    }
}

fn link_speed(fields: &[&str], line: usize) -> Result<LinkSpeed, ProfileError> {
    match fields {
        [latency, rate] => {
            let (latency_ns, bytes_per_ns) = (figure(latency, line)?, figure(rate, line)?.max(1e-6));
            Ok(LinkSpeed { latency_ns, bytes_per_ns })
        }
        _ => Err(bad(line, "a latency and a rate", &fields.join(" "))),
    }
}

fn op_speed(fields: &[&str], line: usize) -> Result<OpSpeed, ProfileError> {
    let [op, dtype, label, variant, work, run, service, output, count] = fields else {
        return Err(bad(line, "nine fields", &fields.join(" ")));
    };
    let label = match *label {
        "-" => String::new(),
        "\\-" => "-".to_owned(),
        label => read(label),
    };
    let variant = u64::from_str_radix(variant, 16).map_err(|_| bad(line, "a hexadecimal number", variant))?;
    let dtype = match *dtype {
        "-" => None,
        name => Some(
            DType::ALL
                .into_iter()
                .find(|dtype| dtype.to_string() == name)
                .ok_or_else(|| bad(line, "an element type", name))?,
        ),
    };
    Ok(OpSpeed {
        op: read(op),
        dtype,
        class: (label, variant),
        work_log2: logarithm(work, line)?,
        run_log2: logarithm(run, line)?,
        service_log2: logarithm(service, line)?,
        output_log2: logarithm(output, line)?,
        count: count.parse().map_err(|_| bad(line, "a count", count))?,
    })
}

/// Parses a latency or a rate.
fn figure(text: &str, line: usize) -> Result<f32, ProfileError> {
    let parsed = text.parse::<f32>().ok().filter(|value| (0.0..=LINK_FIGURE_MAX).contains(value));
    parsed.ok_or_else(|| bad(line, "a number from 0 to 1e12", text))
}

/// Parses a logarithm of work, time or bytes within the measurable range.
fn logarithm(text: &str, line: usize) -> Result<f32, ProfileError> {
    let parsed = text.parse::<f32>().ok().filter(|value| (0.0..=LOG2_MAX).contains(value));
    parsed.ok_or_else(|| bad(line, "a logarithm from 0 to 50", text))
}

fn bad(line: usize, expected: &'static str, got: &str) -> ProfileError {
    ProfileError::BadLine { line, expected, got: got.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let identity = Identity {
            api: "cuda".into(),
            name: "A device".into(),
            driver: "1.2".into(),
            capability: "9.0 x132".into(),
            version: "0.1.0".into(),
        };
        let op = |work: f32| OpSpeed {
            op: "matmul".into(),
            dtype: Some(DType::BF16),
            class: ("rsa-4096".into(), 0xfeed),
            work_log2: work,
            run_log2: 14.25,
            service_log2: 13.5,
            output_log2: 20.0,
            count: 7,
        };
        let up = Some(LinkSpeed { latency_ns: 4000.0, bytes_per_ns: 25.5 });
        Profile { devices: vec![DeviceProfile { identity, up, down: None, ops: vec![op(20.0), op(30.0)] }] }
    }

    #[test]
    fn what_is_written_can_be_read() {
        assert_eq!(profile().to_text().parse::<Profile>(), Ok(profile()));
        assert_eq!(Profile::default().to_text().parse::<Profile>(), Ok(Profile::default()));
    }

    #[test]
    fn every_name_can_be_read_again() {
        let long = "long ".repeat(100_000);
        let names =
            ["", "-", "\\-", "\\", "\\t", "a\tb\nc\rd\\e", "\r\n", "\\\\-", "end\t1", "ü\u{85}\u{2028}", long.as_str()];
        for name in names {
            let mut profile = profile();
            let Identity { api, name: device, driver, capability, version } = &mut profile.devices[0].identity;
            [api, device, driver, capability, version].into_iter().for_each(|field| *field = name.to_owned());
            for op in &mut profile.devices[0].ops {
                (op.op, op.class.0) = (name.to_owned(), name.to_owned());
            }
            let read = profile.to_text().parse::<Profile>();
            assert!(read.as_ref() == Ok(&profile), "{:?}", name.chars().take(20).collect::<String>());
        }
    }

    #[test]
    fn damage_is_found_at_every_place() {
        let text = profile().to_text();
        assert_eq!("".parse::<Profile>(), Err(ProfileError::NotAProfile));
        assert_eq!("panoply profile 1\n".parse::<Profile>(), Err(ProfileError::NotAProfile));
        for cut in 1..text.len() - 1 {
            assert!(text[..cut].parse::<Profile>().is_err(), "cut at {cut}");
        }
        let nan = text.replace("14.25", "NaN").parse::<Profile>();
        assert!(matches!(nan, Err(ProfileError::BadLine { line: 4, .. })), "{nan:?}");
        for absurd in ["1e11", "51", "-1", "inf", "1e400"] {
            let read = text.replace("14.25", absurd).parse::<Profile>();
            assert!(matches!(read, Err(ProfileError::BadLine { line: 4, .. })), "{absurd}: {read:?}");
        }
        let crowded = text.replace("A device", &"A\t".repeat(1000)).parse::<Profile>();
        assert!(matches!(crowded, Err(ProfileError::BadLine { line: 2, .. })), "{crowded:?}");
        let odd = text.replace("bf16", "b16").parse::<Profile>();
        assert!(matches!(odd, Err(ProfileError::BadLine { expected: "an element type", .. })), "{odd:?}");
    }
}
