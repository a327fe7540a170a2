//! What the host needs for a draft whose kernels it launches one by one, and a verify in pieces.

/// Host time of what a cycle launches, ms, and by how much the host outlasts what the GPU does; 0 where
/// all runs in whole CUDA graphs.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::predict) struct HostTime {
    pub(super) launched_ms: f64,
    pub(super) bound_ms: f64,
    /// Hosts beside the one measured, by the time they need: the fastest and the slowest.
    pub(super) hosts: (f64, f64),
}

impl HostTime {
    /// How much shorter and longer the cycle may be on other hosts, ln.
    pub(super) fn doubt(self, cycle_ms: f64) -> (f64, f64) {
        if self.launched_ms <= 0.0 || cycle_ms <= 0.0 {
            return (0.0, 0.0);
        }
        let on_gpu_ms = cycle_ms - self.bound_ms;
        let host_ms = match self.bound_ms > 0.0 {
            true => cycle_ms,
            false => self.launched_ms,
        };
        let at = |factor: f64| on_gpu_ms.max(host_ms + (factor - 1.0) * self.launched_ms);
        let (fast, slow) = self.hosts;
        let ln = |ratio: f64| ratio.max(1.0).ln();
        (ln(cycle_ms / at(fast)), ln(at(slow) / cycle_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_outlasts_the_gpu_is_in_doubt_both_ways_and_graphs_are_not() {
        assert_eq!(HostTime::default().doubt(40.0), (0.0, 0.0));
        let bound = HostTime {
            launched_ms: 40.0,
            bound_ms: 30.0,
            hosts: (0.4, 1.25),
        };
        let (shorter, longer) = bound.doubt(42.0);
        assert!((shorter - (42.0_f64 / 18.0).ln()).abs() < 1e-9, "{shorter}");
        assert!((longer - (52.0_f64 / 42.0).ln()).abs() < 1e-9, "{longer}");
        // The GPU is the longer of both, and no host of the band is.
        let hidden = HostTime {
            launched_ms: 10.0,
            bound_ms: 0.0,
            hosts: (0.4, 1.25),
        };
        assert_eq!(hidden.doubt(30.0), (0.0, 0.0));
    }
}
