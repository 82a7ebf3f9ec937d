//! Progress bar on standard error, if that is a terminal.

use std::io::{self, Read, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::screen::spinner;
use crate::verbosity::shows_progress;

/// A bar for this many bytes; a spinner if the number is unknown.
pub fn bar(bytes: Option<u64>, message: &'static str) -> ProgressBar {
    let Some(bytes) = bytes.filter(|_| shows_progress()) else { return spinner(message) };
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A source or an output that counts the bytes passing through.
pub struct CountedStream<'a, T> {
    pub inner: T,
    pub bar: &'a ProgressBar,
}

impl<T: Read> Read for CountedStream<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

impl<T: Write> Write for CountedStream<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bar.inc(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
