//! How many drafted tokens the target accepts: the chain, what is known before and after a
//! measurement, and what each engine's figures mean.

pub mod band;
mod catalogue;
pub mod chain;
pub mod fit;
pub mod metrics;
pub mod posterior;
pub mod prior;
mod slopes;
pub mod task;
pub mod warnings;
