//! The system calls.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Control, Family, IV_BYTES_MAX, Trouble};

/// A call that a signal interrupts is made again, so often.
const INTERRUPTIONS_MAX: u32 = 1000;
/// Room for the three things that a cipher is told: a header and a number each, and the vector.
const CONTROL_WORDS: usize = 16;

/// An algorithm, with its key.
pub(crate) struct Transform(OwnedFd);

impl Transform {
    /// The kernel's algorithm of this name, for which it may load a module.
    pub(crate) fn bind(family: Family, name: &str) -> Result<Transform, Trouble> {
        // SAFETY: the call takes no address.
        let socket = unsafe { libc::socket(libc::AF_ALG, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        let socket = owned("AF_ALG", socket)?;
        // SAFETY: it has integers alone, of which zeros are values.
        let mut address: libc::sockaddr_alg = unsafe { zeroed() };
        address.salg_family = libc::AF_ALG as u16;
        // Both texts end with a zero, since there is room for more.
        address.salg_type.iter_mut().zip(family.name().bytes()).for_each(|(to, from)| *to = from);
        address.salg_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let (place, len) = (&raw const address, size_of::<libc::sockaddr_alg>() as libc::socklen_t);
        // SAFETY: the address is as long as is said, and is read before the call returns.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), place.cast(), len) };
        if bound == 0 { Ok(Transform(socket)) } else { Err(Trouble::last("bind")) }
    }

    /// Gives it its key.
    pub(crate) fn set_key(&self, key: &[u8]) -> Result<(), Trouble> {
        self.set(libc::ALG_SET_KEY, key.as_ptr().cast(), key.len())
    }

    /// Says how long its tags are.
    pub(crate) fn set_tag_len(&self, len: usize) -> Result<(), Trouble> {
        // The number is the option's length; there is no value.
        self.set(libc::ALG_SET_AEAD_AUTHSIZE, std::ptr::null(), len)
    }

    fn set(&self, option: c_int, value: *const c_void, len: usize) -> Result<(), Trouble> {
        let len = libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: the value is as long as is said, and is read before the call returns.
        let set = unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_ALG, option, value, len) };
        if set == 0 { Ok(()) } else { Err(Trouble::last("setsockopt")) }
    }

    /// What takes messages.
    pub(crate) fn operation(&self) -> Result<Operation, Trouble> {
        let (null, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        // SAFETY: no address is asked for.
        let accepted = unsafe { libc::accept4(self.0.as_raw_fd(), null, std::ptr::null_mut(), flags) };
        owned("accept", accepted).map(Operation)
    }
}

/// An algorithm at work on one message after the other.
pub(crate) struct Operation(OwnedFd);

impl Operation {
    /// Hands over a piece of a message to be hashed, and says whether more follows.
    pub(crate) fn send_hashed(&self, piece: &[u8], more: bool) -> Result<(), Trouble> {
        self.send_all(&[], [piece, &[], &[]], more)
    }

    /// Hands over a whole message to a cipher.
    pub(crate) fn send(&self, control: &Control<'_>, parts: [&[u8]; 3]) -> Result<(), Trouble> {
        let mut words = [0_u64; CONTROL_WORDS];
        let len = write_control(control, &mut words);
        // SAFETY: the words are initialised, and there are at least so many bytes of them.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), len) };
        self.send_all(bytes, parts, false)
    }

    /// Takes what came of it: exactly as much as there is room for.
    pub(crate) fn receive(&self, parts: [&mut [u8]; 3]) -> Result<(), Trouble> {
        let expected = parts.iter().map(|part| part.len()).sum();
        let mut places = parts.map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: as in `bind`; null pointers are values too.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (places.as_mut_ptr(), places.len() as _);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the places are as long as is said, nobody else has them, and they are written before the call returns.
        let call = || unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, flags) };
        whole("recvmsg", expected, call)
    }

    /// Hands over parts as one message, or as a piece of one.
    fn send_all(&self, control: &[u8], parts: [&[u8]; 3], more: bool) -> Result<(), Trouble> {
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
        // SAFETY: what is pointed to is as long as is said, and is read before the call returns.
        whole("sendmsg", expected, || unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) })
    }
}

/// Makes a call until no signal interrupts it. It must have moved all bytes.
fn whole(call: &'static str, expected: usize, mut make: impl FnMut() -> isize) -> Result<(), Trouble> {
    for _ in 0..INTERRUPTIONS_MAX {
        match usize::try_from(make()) {
            Ok(moved) if moved == expected => return Ok(()),
            Ok(moved) => return Err(Trouble::short(call, expected, moved)),
            Err(_) => {
                let trouble = Trouble::last(call);
                if trouble.error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(trouble);
                }
            }
        }
    }
    Err(Trouble::last(call))
}

/// Writes what a cipher is told as the kernel reads it: a header and a value each, aligned to words. Says how many bytes that takes.
fn write_control(control: &Control<'_>, words: &mut [u64; CONTROL_WORDS]) -> usize {
    let iv = &control.iv[..control.iv.len().min(IV_BYTES_MAX)];
    let mut vector = [0; 4 + IV_BYTES_MAX];
    vector[..4].copy_from_slice(&(iv.len() as u32).to_ne_bytes());
    vector[4..4 + iv.len()].copy_from_slice(iv);
    let direction = if control.encrypts { libc::ALG_OP_ENCRYPT } else { libc::ALG_OP_DECRYPT };
    let associated = control.associated_len.map(|len| (len as u32).to_ne_bytes());
    let mut at = 0;
    let mut put = |kind: c_int, value: &[u8]| {
        // `struct cmsghdr`: a length with the header in it, the level, the kind.
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

/// Up to eight bytes as they lie in memory.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

// The layout above is that of `cmsghdr` on systems with pointers of 64 bits.
const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && size_of::<usize>() == 8);

fn owned(call: &'static str, file: c_int) -> Result<OwnedFd, Trouble> {
    match file {
        // SAFETY: the call has just made it, and nobody else has it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(Trouble::last(call)),
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
        // SAFETY: it has integers and pointers, of which zeros are values.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_control, message.msg_controllen) = (words.as_mut_ptr().cast(), len as _);
        let mut seen = Vec::new();
        // SAFETY: the control bytes are initialised, aligned, and as many as is said; headers lie in them, with their values.
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
