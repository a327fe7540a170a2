//! Host time that a speculative cycle pays and a plain step does not: a scheduler that waits for the
//! step, and a draft whose kernels are launched one by one.

use super::{Server, bounded};

/// Host time of a cycle of vLLM that does not overlap the step, us for each layer of the target.
/// Source: n-gram look-up with vLLM 0.24.0 on one H200: 1.4 ms at 36 layers, 2.4 to 3.1 at 64, beyond what
/// the model says of the verify (docs/HARDWARE.md). As much with `ngram_gpu`.
const WAITED_LAYER_US: f64 = 40.0;

/// Host time of such a cycle beside what each sequence costs, ms: at least what a plain step hides.
pub(crate) fn waited_step_ms(hidden_ms: f64, layers: usize) -> f64 {
    hidden_ms.max(WAITED_LAYER_US * layers as f64 * 1e-3)
}

/// What a cycle waits for on the host.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Waits {
    /// Whether a cycle pays the host time that overlaps a plain step.
    cycles_wait: bool,
    /// Host time of a draft step whose kernels are launched one by one, ms.
    draft_step_ms: f64,
    /// Host time of a verify whose graph is cut at attention, ms.
    verify_ms: f64,
}

impl Server<'_> {
    /// The same server where the draft keeps the scheduler from overlapping the step.
    pub(crate) fn with_waiting_cycles(mut self, wait: bool) -> Self {
        self.host.cycles_wait = wait;
        self
    }

    /// The same server where the host needs so long for a draft step, ms.
    pub(crate) fn with_draft_host(mut self, draft_step_ms: f64) -> Self {
        self.host.draft_step_ms = draft_step_ms.max(0.0);
        self
    }

    /// The same server where the host needs so long for a verify, ms.
    pub(crate) fn with_verify_host(mut self, verify_ms: f64) -> Self {
        self.host.verify_ms = verify_ms.max(0.0);
        self
    }

    /// Host time that a cycle pays and a plain step hides, ms.
    pub(crate) fn waited_ms(&self, sequences: f64) -> f64 {
        let (step_ms, sequence_us) = self.overhead.hidden_by_overlap();
        if !self.host.cycles_wait || step_ms <= 0.0 {
            return 0.0;
        }
        let step_ms = waited_step_ms(step_ms, self.model.layers.len());
        step_ms + sequence_us * bounded(sequences) * 1e-3
    }

    /// Host time of what a cycle launches, ms: the draft steps and the verify; 0 where they run in whole CUDA graphs.
    pub(crate) fn launched_ms(&self, draft_steps: f64) -> f64 {
        match draft_steps > 0.0 {
            true => self.host.draft_step_ms * draft_steps + self.host.verify_ms,
            false => 0.0,
        }
    }

    /// By how much the host outlasts a cycle of `cycle_ms`, ms: it launches the draft while the verify
    /// still runs, so that the longer of both is the cycle.
    pub(crate) fn host_bound_ms(&self, draft_steps: f64, sequences: f64, cycle_ms: f64) -> f64 {
        let launched_ms = self.launched_ms(draft_steps);
        if launched_ms <= 0.0 {
            return 0.0;
        }
        (launched_ms + self.waited_ms(sequences) - cycle_ms).max(0.0)
    }
}
