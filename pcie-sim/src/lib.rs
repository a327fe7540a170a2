//! How long a collective takes on a topology, and which transfers slow each other down.
//!
//! A [`box_spec::BoxSpec`] becomes a [`topology::Topology`] of directed links; a collective becomes
//! rounds of transfers; transfers share links max-min fairly, with packet overhead, and in the
//! modes in which a fabric does not share at all. Deterministic: integer time, no randomness.

pub mod box_spec;
pub mod catalog;
pub mod collectives;
pub mod concurrent;
pub mod constants;
pub mod contention;
mod cpu;
pub mod maxmin;
mod measured;
pub mod nccl;
pub mod pattern;
pub mod plan;
pub mod readers;
mod route;
pub mod sim;
pub mod states;
pub mod tlp;
pub mod topology;

pub use collectives::{
    Algorithm, Basis, CollectiveTime, Options, Unavailable, all_gather, all_reduce,
    all_reduce_plan, choose_best, is_nccl_plan, kernel_of, nccl_choice, reduce_scatter,
};
pub use concurrent::{Concurrent, concurrent};
pub use constants::{Arch, Constants};
pub use contention::{Contention, alone_gb_s, contention};
pub use pattern::Transfer;
pub use tlp::Access;
pub use topology::Topology;
