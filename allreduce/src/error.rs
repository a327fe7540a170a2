//! What can go wrong, in words a user can act on.

use std::fmt;

/// Why a call of this crate failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A shared library is not installed or not on the loader's path.
    MissingLibrary {
        /// The library's file name, such as `libcuda.so.1`.
        library: &'static str,
        /// What to install or set.
        mend: &'static str,
    },
    /// A call into the driver, NVRTC, NCCL or cuBLASLt returned an error code.
    Call {
        /// The function that failed.
        call: &'static str,
        /// The code it returned.
        code: i64,
        /// The library's name for the code.
        name: String,
    },
    /// A kernel did not compile.
    Compile {
        /// The kernel file.
        kernel: String,
        /// The architecture it was compiled for, such as `sm_90`.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// An argument is out of range or does not fit the other arguments.
    Invalid(String),
    /// A peer did not deliver its data before the deadline.
    PeerLate {
        /// The rank that reports it.
        rank: usize,
        /// The rank that was waited for.
        peer: usize,
        /// The step of the algorithm, by name.
        step: &'static str,
        /// The call's number since the communicator was built, counted from 0.
        call: u64,
    },
    /// A peer made a different call: other size, type or algorithm.
    Mismatch {
        /// The rank that reports it.
        rank: usize,
        /// The rank whose call differs.
        peer: usize,
        /// The call's number since the communicator was built, counted from 0.
        call: u64,
    },
    /// [`Communicator::abort`](crate::Communicator::abort) ended a waiting kernel.
    Aborted {
        /// The rank that was waiting.
        rank: usize,
        /// The call's number since the communicator was built, counted from 0.
        call: u64,
    },
    /// The ranks could not find each other or exchange their handles.
    Bootstrap(String),
    /// A file or socket operation failed.
    Io {
        /// What was being done.
        what: String,
        /// The system's message.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, why: &std::io::Error) -> Self {
        Error::Io {
            what: what.into(),
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::MissingLibrary { library, mend } => write!(f, "{library} not found: {mend}"),
            Error::Call { call, code, name } => write!(f, "{call} failed: {name} ({code})"),
            Error::Compile { kernel, arch, log } => {
                write!(f, "{kernel} does not compile for {arch}: {log}")
            }
            Error::Invalid(what) => write!(f, "invalid argument: {what}"),
            Error::PeerLate {
                rank,
                peer,
                step,
                call,
            } => {
                write!(
                    f,
                    "rank {rank}: no data from rank {peer} in step {step} of call {call} before the deadline"
                )
            }
            Error::Mismatch { rank, peer, call } => {
                write!(
                    f,
                    "rank {rank}: rank {peer} made a different call {call} (size, type or algorithm)"
                )
            }
            Error::Aborted { rank, call } => write!(f, "rank {rank}: call {call} was aborted"),
            Error::Bootstrap(what) => write!(f, "ranks could not connect: {what}"),
            Error::Io { what, why } => write!(f, "{what}: {why}"),
        }
    }
}

impl std::error::Error for Error {}
