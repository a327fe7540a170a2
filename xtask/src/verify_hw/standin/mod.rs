//! A stand-in for the scenario's model on this GPU: real shapes, random weights, CUDA graphs.

pub(crate) mod check;
mod draws;
mod memory;
pub(crate) mod model;
mod ops;
pub(crate) mod pass;
pub(crate) mod run;
pub(crate) mod shapes;
mod work;

use crate::step_time::Overhead;

/// Launch and host costs of the stand-in beside those of an engine: the same graphs, no
/// scheduler and no text.
pub(crate) fn overhead(engine: Overhead) -> Overhead {
    Overhead {
        host_ms: 0.03,
        sequence_us: 0.0,
        ..engine
    }
}
