//! A socket whose reads and writes have a deadline. A client that sends or takes a single byte now
//! and then gets no more time than a silent one.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A socket and its deadline.
pub(crate) struct TimedStream {
    stream: TcpStream,
    until: Option<Instant>,
}

impl TimedStream {
    /// Sets the deadline `most` from now.
    pub(crate) fn new(stream: TcpStream, most: Duration) -> TimedStream {
        let mut timed = TimedStream { stream, until: None };
        timed.within(most);
        timed
    }

    /// Gives all following reads and writes together this much time.
    pub(crate) fn within(&mut self, most: Duration) {
        // A deadline beyond the clock's range means no deadline.
        self.until = Instant::now().checked_add(most);
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until else { return Ok(None) };
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "the client took too long")),
            left => Ok(Some(left)),
        }
    }
}

impl Read for TimedStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(target)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_byte_now_and_then_is_no_more_than_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut timed = TimedStream::new(listener.accept().unwrap().0, Duration::from_millis(300));
        let sending = std::thread::spawn(move || {
            while client.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut read = 0;
        let error = loop {
            match timed.read(&mut [0; 1]) {
                Ok(count) => read += count,
                Err(error) => break error,
            }
        };
        assert!(read > 0 && matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(timed);
        sending.join().unwrap();
    }

    #[test]
    fn a_client_that_reads_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut timed = TimedStream::new(listener.accept().unwrap().0, Duration::from_millis(200));
        let bytes = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = timed.write_all(&bytes) {
                break error;
            }
        };
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(client);
    }
}
