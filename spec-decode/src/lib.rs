//! Acceptance, draft trees, speculative sampling, and when speculation pays.
//!
//! This crate knows probabilities, and step costs as functions given to it; never bytes or GPUs.
//! It does no I/O: assumptions and warnings are returned as data.

pub mod acceptance;
pub mod bands;
pub mod cycle;
pub mod economics;
pub mod error;
pub mod head;
pub mod montecarlo;
pub mod sampling;
pub mod trees;
pub mod verdict;

pub use acceptance::band::AcceptanceBand;
pub use acceptance::chain::Chain;
pub use acceptance::posterior::{Evidence, Posterior};
pub use acceptance::prior::{AcceptancePrior, PriorQuery, Task};
pub use error::AcceptanceError;
pub use head::HeadKind;
