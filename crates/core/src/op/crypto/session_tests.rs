//! Tests that a nonce of a session seals one input only, for any use of its op and a fork at any
//! moment.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::buffer::{DeviceAllocation, DeviceBuffer};
use crate::bytes::Bytes;
use crate::device::{Api, DeviceId};
use crate::dtype::DType;
use crate::error::Error;
use crate::lease::Home;
use crate::op::Describe;
use crate::part::PartMut;
use crate::shape::Shape;
use crate::tensor::Tensor;

fn session() -> Session {
    Session::new(&Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap(), *b"sess").unwrap()
}

fn is_repeated(op: &Seal) -> bool {
    matches!(op.validate(), Err(Error::RepeatedNonce { index: 0 }))
}

/// Replaces the first part, which is the message.
fn with_message(mut op: Seal, message: &Bytes) -> Seal {
    let mut message = Some(message.clone());
    op.for_each_part_mut(&mut |part| {
        if let (PartMut::Bytes(bytes), Some(message)) = (part, message.take()) {
            *bytes = message;
        }
    });
    op
}

/// Bytes on a device that does not exist.
fn on_device(len_bytes: usize) -> Bytes {
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    let allocation = DeviceAllocation { device, token: 1, len_bytes };
    let buffer = DeviceBuffer::new(Home::new().lend(allocation));
    Bytes::from_tensor(&Tensor::from_device(DType::U8, Shape::new([len_bytes]).unwrap(), buffer).unwrap()).unwrap()
}

#[test]
fn the_message_of_a_session_is_replaced_by_equal_bytes_only() {
    let session = session();
    let op = || session.seal(vec![1, 2, 3]).unwrap();
    assert_eq!(with_message(op(), &Bytes::from_vec(vec![1, 2, 3])).validate(), Ok(()), "a copy elsewhere");
    assert!(is_repeated(&with_message(op(), &Bytes::from_vec(vec![1, 2, 4]))));
    assert!(is_repeated(&with_message(op(), &Bytes::from_vec(vec![1, 2]))));
    assert!(is_repeated(&with_message(op(), &on_device(3))), "these may be any bytes");
    // Once replaced, the right message does not mend it.
    let back = with_message(with_message(op(), &Bytes::from_vec(vec![9; 3])), &Bytes::from_vec(vec![1, 2, 3]));
    assert!(is_repeated(&back) && is_repeated(&back.clone()));
    // The runtime fetches a message from its device.
    let away = || session.seal(on_device(3)).unwrap();
    assert_eq!(with_message(away(), &Bytes::from_vec(vec![1, 2, 3])).validate(), Ok(()));
    assert!(is_repeated(&with_message(away(), &Bytes::from_vec(vec![1, 2]))));
    // With nonces of the caller, the caller is responsible.
    let own = Seal::new(session.key(), [9; 12], vec![1]);
    assert_eq!(with_message(own, &Bytes::from_vec(vec![2])).validate(), Ok(()));
}

#[test]
fn a_message_that_is_replaced_by_a_visitor_that_panics_is_refused() {
    let mut op = session().seal(vec![1]).unwrap();
    let replaced = catch_unwind(AssertUnwindSafe(|| {
        op.for_each_part_mut(&mut |part| {
            if let PartMut::Bytes(bytes) = part {
                *bytes = Bytes::from_vec(vec![2]);
                panic!("after the message was replaced");
            }
        });
    }));
    assert!(replaced.is_err() && is_repeated(&op));
}

#[test]
fn no_other_part_of_a_sessions_op_is_replaced_or_written_either() {
    let session = session();
    let parts = 3;
    for altered in 0..parts {
        let (mut op, mut place) = (session.seal(vec![1]).unwrap().associated(vec![2]), 0);
        op.for_each_part_mut(&mut |part| {
            if let PartMut::Bytes(bytes) = part {
                assert!(bytes.get_mut().is_none(), "part {place} could be written");
                if place == altered {
                    *bytes = Bytes::from_vec(vec![9; bytes.len()]);
                }
            }
            place += 1;
        });
        assert_eq!(place, parts, "message, key, associated data");
        assert!(is_repeated(&op), "part {altered}");
    }
}

#[test]
fn an_op_that_may_have_run_takes_no_other_associated_data() {
    let session = session();
    let op = session.seal(vec![1]).unwrap().associated(vec![2]);
    assert_eq!((op.validate(), op.validate()), (Ok(()), Ok(())), "the same input may run again");
    assert!(is_repeated(&op.associated(vec![3])));
}

#[test]
fn messages_are_overwritten_once_and_their_op_is_refused_then() {
    let session = session();
    let key = session.key();
    for op in [session.seal(vec![1, 2]).unwrap(), Seal::new(key, [9; 12], vec![1, 2])] {
        let mut shared = op.clone().detached().in_place();
        assert!(shared.overwrite(|_, _| ()).is_none(), "others hold the message");
        drop(shared);
        let mut op = op.detached().in_place();
        assert_eq!(op.validate(), Ok(()));
        let written = op.overwrite(|op, messages| {
            assert!(is_repeated(op), "it is refused from now on, also if sealing panics");
            messages.get_mut().unwrap().0.fill(5);
        });
        assert_eq!((written, op.messages().total_bytes()), (Some(()), 2));
        assert!(is_repeated(&op) && is_repeated(&op.clone()));
        assert!(op.overwrite(|_, _| ()).is_none());
    }
    let mut attached = session.seal(vec![1]).unwrap().in_place();
    assert!(attached.overwrite(|_, _| ()).is_none(), "a text with its tag is longer");
}

#[cfg(unix)]
mod forks {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// True in children.
    static IS_CHILD: AtomicBool = AtomicBool::new(false);

    thread_local! {
        /// The last child of this thread.
        static CHILD: Cell<libc::pid_t> = const { Cell::new(0) };
    }

    extern "C" fn fork_now(_: libc::c_int) {
        // SAFETY: the signal is raised where this thread holds no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            IS_CHILD.store(true, Ordering::Relaxed);
            // SAFETY: `alarm` changes no memory. It ends a child that waits for ever.
            unsafe { libc::alarm(60) };
        }
        CHILD.set(child);
    }

    /// Forks in a signal handler; both processes go on behind this call.
    fn fork_in_handler() {
        // SAFETY: the handler is a function of the right type, and touches only an atomic number
        // and a constant-initialised thread-local one.
        unsafe {
            libc::signal(libc::SIGUSR1, fork_now as *const () as libc::sighandler_t);
            libc::raise(libc::SIGUSR1);
        }
    }

    /// A message whose conversion, in the middle of a call, is interrupted by a fork.
    struct ForksMeanwhile;

    impl From<ForksMeanwhile> for Messages {
        fn from(_: ForksMeanwhile) -> Messages {
            fork_in_handler();
            vec![1].into()
        }
    }

    fn may_seal(made: &crate::Result<Seal>) -> bool {
        made.as_ref().is_ok_and(|op| op.validate().is_ok())
    }

    /// Ends the process if it is a child: with 0 if it must not run the op.
    fn end_if_child(made: &crate::Result<Seal>) {
        if IS_CHILD.load(Ordering::Relaxed) {
            let refuses = catch_unwind(AssertUnwindSafe(|| !may_seal(made))).unwrap_or(false);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!refuses)) };
        }
    }

    fn wait_for(child: libc::pid_t) {
        let mut status = -1;
        // SAFETY: `child` is a child of this process, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child could seal with the parent's nonce, or did not end");
    }

    /// Seals with a fork in the middle: the parent may run the op, and the child may not.
    fn check(seal: impl FnOnce() -> crate::Result<Seal>) {
        CHILD.set(0);
        let made = seal();
        end_if_child(&made);
        assert!(may_seal(&made), "{made:?}");
        assert!(CHILD.get() > 0, "no fork");
        wait_for(CHILD.get());
    }

    #[test]
    fn a_fork_in_the_middle_of_a_call_seals_nothing_with_a_counted_nonce() {
        let session = session();
        check(|| session.seal(ForksMeanwhile));
        check(|| session.seal_from(7, ForksMeanwhile));
    }

    #[test]
    fn a_fork_in_the_middle_of_a_call_seals_nothing_with_a_drawn_nonce() {
        fn forks_and_fills(bytes: &mut [u8]) -> bool {
            bytes.fill(3);
            fork_in_handler();
            true
        }
        fn fills(bytes: &mut [u8]) -> bool {
            bytes.fill(3);
            true
        }
        let key = || Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
        let (forking, plain) = (RandomSession::new(&key(), forks_and_fills), RandomSession::new(&key(), fills));
        check(|| forking.unwrap().seal(vec![1]));
        check(|| plain.unwrap().seal(ForksMeanwhile));
    }

    /// Another thread sends signals at random moments. The raw system call copies the
    /// allocator's locks as they are, so no other test may run in the same process.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_fork_at_any_moment_seals_nothing_with_the_parents_nonces() {
        use std::sync::atomic::{AtomicI32, AtomicUsize};
        use std::time::Duration;

        const ALONE: &str = "PANOPLY_TEST_FORKS_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "a_fork_at_any_moment_seals_nothing_with_the_parents_nonces";
            let test = format!("op::crypto::session_tests::forks::{name}");
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ran = alone.args([test.as_str(), "--exact", "--test-threads=1"]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success() && said.contains("1 passed"), "{said}");
            return;
        }

        const FORKS: usize = 100;
        static CHILDREN: [AtomicI32; FORKS] = [const { AtomicI32::new(0) }; FORKS];
        static COUNT: AtomicUsize = AtomicUsize::new(0);

        extern "C" fn fork_raw(_: libc::c_int) {
            let place = COUNT.load(Ordering::Relaxed);
            if IS_CHILD.load(Ordering::Relaxed) || place == FORKS {
                return;
            }
            // SAFETY: a copy of the process, made by the system call: unlike `fork`, it takes no
            // lock of the allocator, which this signal may have interrupted.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if child == 0 {
                IS_CHILD.store(true, Ordering::Relaxed);
                // SAFETY: `alarm` changes no memory. It ends a child that waits for ever.
                unsafe { libc::alarm(60) };
                return;
            }
            CHILDREN[place].store(child as i32, Ordering::Relaxed);
            COUNT.store(place + 1, Ordering::Relaxed);
        }

        let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
        let (session, done) = (Session::new(&key, *b"sess").unwrap(), AtomicBool::new(false));
        // SAFETY: the handler has the right type, and touches atomic numbers only.
        unsafe { libc::signal(libc::SIGUSR2, fork_raw as *const () as libc::sighandler_t) };
        // SAFETY: the call has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives as long as this scope.
                    unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            let mut prefix = 0_u32;
            while COUNT.load(Ordering::Relaxed) < FORKS {
                end_if_child(&session.seal(vec![1]));
                end_if_child(&session.seal_from(session.next() + 1, vec![1]));
                if prefix < 60_000 {
                    prefix += 1;
                    let made = Session::new(&key, prefix.to_be_bytes()).and_then(|session| session.seal(vec![1]));
                    end_if_child(&made);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        CHILDREN.iter().for_each(|child| wait_for(child.load(Ordering::Relaxed)));
    }
}
