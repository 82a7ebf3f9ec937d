//! The system calls of AF_ALG on Linux.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Control, Family, IV_BYTES_MAX, SystemCallError};

/// Maximum number of times that a call interrupted by a signal is repeated.
const INTERRUPTIONS_MAX: u32 = 1000;
/// Space for the three control messages of a cipher: a header for each, two numbers, and the
/// vector.
const CONTROL_WORDS: usize = 16;

/// An algorithm with its key.
pub(crate) struct Transform(OwnedFd);

impl Transform {
    /// Binds to the kernel's algorithm of this name. The kernel may load a module for it.
    pub(crate) fn bind(family: Family, name: &str) -> Result<Transform, SystemCallError> {
        // SAFETY: the call takes no address.
        let socket = unsafe { libc::socket(libc::AF_ALG, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        let socket = owned("AF_ALG", socket)?;
        // SAFETY: all fields are integers, for which zero is valid.
        let mut address: libc::sockaddr_alg = unsafe { zeroed() };
        address.salg_family = libc::AF_ALG as u16;
        // Both texts end with a zero byte, because their arrays are longer.
        address.salg_type.iter_mut().zip(family.name().bytes()).for_each(|(to, from)| *to = from);
        address.salg_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let (place, len) = (&raw const address, size_of::<libc::sockaddr_alg>() as libc::socklen_t);
        // SAFETY: the address has the stated length, and the call reads it before it returns.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), place.cast(), len) };
        if bound == 0 { Ok(Transform(socket)) } else { Err(SystemCallError::last("bind")) }
    }

    /// Sets the key.
    pub(crate) fn set_key(&self, key: &[u8]) -> Result<(), SystemCallError> {
        self.set(libc::ALG_SET_KEY, key.as_ptr().cast(), key.len())
    }

    /// Sets the size of tags.
    pub(crate) fn set_tag_len(&self, len: usize) -> Result<(), SystemCallError> {
        // The option's length is the size. There is no value.
        self.set(libc::ALG_SET_AEAD_AUTHSIZE, std::ptr::null(), len)
    }

    fn set(&self, option: c_int, value: *const c_void, len: usize) -> Result<(), SystemCallError> {
        let len = libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: the value has the stated length, and the call reads it before it returns.
        let set = unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_ALG, option, value, len) };
        if set == 0 { Ok(()) } else { Err(SystemCallError::last("setsockopt")) }
    }

    /// Creates an operation for messages.
    pub(crate) fn operation(&self) -> Result<Operation, SystemCallError> {
        let (null, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        // SAFETY: the peer's address is not requested, so its pointers may be null.
        let accepted = unsafe { libc::accept4(self.0.as_raw_fd(), null, std::ptr::null_mut(), flags) };
        owned("accept", accepted).map(Operation)
    }
}

/// An algorithm that processes one message after the other.
pub(crate) struct Operation(OwnedFd);

impl Operation {
    /// Sends a piece of a message to a hash. `more` announces further pieces.
    pub(crate) fn send_hashed(&self, piece: &[u8], more: bool) -> Result<(), SystemCallError> {
        self.send_all(&[], [piece, &[], &[]], more)
    }

    /// Sends a whole message to a cipher.
    pub(crate) fn send(&self, control: &Control<'_>, parts: [&[u8]; 3]) -> Result<(), SystemCallError> {
        let mut words = [0_u64; CONTROL_WORDS];
        let len = write_control(control, &mut words);
        // SAFETY: the words are initialised, and have at least `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), len) };
        self.send_all(bytes, parts, false)
    }

    /// Receives a result, which must have exactly the size of `parts`.
    pub(crate) fn receive(&self, parts: [&mut [u8]; 3]) -> Result<(), SystemCallError> {
        let expected = parts.iter().map(|part| part.len()).sum();
        let mut places = parts.map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: as in `bind`. Null pointers are valid, too.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (places.as_mut_ptr(), places.len() as _);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the buffers have the stated lengths, nothing else uses them, and the call writes
        // them before it returns.
        let call = || unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, flags) };
        whole("recvmsg", expected, call)
    }

    /// Sends parts as one message or as a piece of one.
    fn send_all(&self, control: &[u8], parts: [&[u8]; 3], more: bool) -> Result<(), SystemCallError> {
        let expected = parts.iter().map(|part| part.len()).sum();
        let place = |part: &[u8]| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        let mut places = parts.map(place);
        // SAFETY: as in `receive`.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (places.as_mut_ptr(), places.len() as _);
        if !control.is_empty() {
            (message.msg_control, message.msg_controllen) = (control.as_ptr().cast_mut().cast(), control.len() as _);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: all buffers have the stated lengths, and the call reads them before it returns.
        whole("sendmsg", expected, || unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) })
    }
}

/// Repeats a call while signals interrupt it. The call must move all bytes at once.
fn whole(call: &'static str, expected: usize, mut make: impl FnMut() -> isize) -> Result<(), SystemCallError> {
    for _ in 0..INTERRUPTIONS_MAX {
        match usize::try_from(make()) {
            Ok(moved) if moved == expected => return Ok(()),
            Ok(moved) => return Err(SystemCallError::short(call, expected, moved)),
            Err(_) => {
                let trouble = SystemCallError::last(call);
                if trouble.error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(trouble);
                }
            }
        }
    }
    Err(SystemCallError::last(call))
}

/// Writes a cipher's parameters as control messages, each with a header and a value, aligned to
/// words. Returns the size in bytes.
fn write_control(control: &Control<'_>, words: &mut [u64; CONTROL_WORDS]) -> usize {
    let iv = &control.iv[..control.iv.len().min(IV_BYTES_MAX)];
    let mut vector = [0; 4 + IV_BYTES_MAX];
    vector[..4].copy_from_slice(&(iv.len() as u32).to_ne_bytes());
    vector[4..4 + iv.len()].copy_from_slice(iv);
    let direction = if control.encrypts { libc::ALG_OP_ENCRYPT } else { libc::ALG_OP_DECRYPT };
    let associated = control.associated_len.map(|len| (len as u32).to_ne_bytes());
    let mut at = 0;
    let mut put = |kind: c_int, value: &[u8]| {
        // `struct cmsghdr`: the length including the header, the level, the kind.
        words[at] = (16 + value.len()) as u64;
        let (level, kind) = ((libc::SOL_ALG as u32).to_ne_bytes(), (kind as u32).to_ne_bytes());
        words[at + 1] = word(&[level, kind].concat());
        for (to, from) in words[at + 2..].iter_mut().zip(value.chunks(8)) {
            *to = word(from);
        }
        at += 2 + value.len().div_ceil(8);
    };
    put(libc::ALG_SET_OP, &(direction as u32).to_ne_bytes());
    put(libc::ALG_SET_IV, &vector[..4 + iv.len()]);
    associated.iter().for_each(|len| put(libc::ALG_SET_AEAD_ASSOCLEN, len));
    at * 8
}

/// Up to eight bytes as a word in native byte order.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

// The layout above is that of `cmsghdr` on systems with 64-bit pointers.
const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && size_of::<usize>() == 8);

fn owned(call: &'static str, file: c_int) -> Result<OwnedFd, SystemCallError> {
    match file {
        // SAFETY: the call just created the file descriptor, and nothing else uses it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(SystemCallError::last(call)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cipher_is_told_lies_as_the_kernel_reads_it() {
        let mut words = [0; CONTROL_WORDS];
        let iv = [7; 12];
        let len = write_control(&Control { encrypts: true, iv: &iv, associated_len: Some(5) }, &mut words);
        // SAFETY: all fields are integers and pointers, for which zero is valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_control, message.msg_controllen) = (words.as_mut_ptr().cast(), len as _);
        let mut seen = Vec::new();
        // SAFETY: the control bytes are initialised, aligned, and have the stated length. They
        // contain headers with their values.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while let Some(it) = header.as_ref() {
                let len = it.cmsg_len - libc::CMSG_LEN(0) as usize;
                let value = std::slice::from_raw_parts(libc::CMSG_DATA(header), len).to_vec();
                seen.push((it.cmsg_level, it.cmsg_type, value));
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        let number = |number: u32| number.to_ne_bytes().to_vec();
        let expected = [
            (libc::SOL_ALG, libc::ALG_SET_OP, number(libc::ALG_OP_ENCRYPT as u32)),
            (libc::SOL_ALG, libc::ALG_SET_IV, [number(12), iv.to_vec()].concat()),
            (libc::SOL_ALG, libc::ALG_SET_AEAD_ASSOCLEN, number(5)),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_short_or_failed_call_is_told() {
        assert!(whole("a", 3, || 3).is_ok());
        assert_eq!(whole("a", 3, || 2).unwrap_err().to_string(), "a: 2 bytes instead of 3");
        let missing = Transform::bind(Family::Hash, "no-such-hash").err().unwrap().to_string();
        assert!(missing.contains("(os error "), "{missing}");
    }
}
