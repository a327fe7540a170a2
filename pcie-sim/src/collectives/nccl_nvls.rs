//! NCCL with NVLink SHARP: the switch sums and multicasts, each GPU sends and receives S once.

use super::Job;
use crate::constants::Family;
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// One round: start, then the reduced bytes over each port.
pub(super) fn plan(job: &Job<'_>) -> Plan {
    let c = job.c();
    let n = job.n() as f64;
    let family = c.family(job.t.arch);
    let bus = 2.0 * (n - 1.0) / n;
    let port = job
        .ranks
        .first()
        .zip(job.ranks.get(1))
        .and_then(|(a, b)| job.t.route(*a, *b))
        .filter(|r| r.class == RouteClass::NvSwitch)
        .map_or(0.0, |r| {
            r.links
                .iter()
                .map(|l| job.t.links[*l].gb_s)
                .fold(f64::INFINITY, f64::min)
        });
    // A shift by one: every port in and out once, as multicast does.
    let transfers: Vec<Transfer> = (0..job.n())
        .map(|i| Transfer {
            from: job.ranks[i],
            to: job.ranks[(i + 1) % job.n()],
            bytes: job.bytes,
            access: Access::KernelLoad,
        })
        .collect();
    // On data-centre Blackwell with 4 ranks a long start hides the transfer, with 8 it adds up;
    // seen alike on B300, GB200 and GB300, cause unknown.
    let slow_start = job.t.arch.family() == Family::Blackwell && job.n() < 8;
    let round = Round {
        label: "switch reduces",
        transfers,
        latency_us: if slow_start {
            c.nvls_slow_start_us
        } else {
            c.nvls_start_us
        },
        overlap: if slow_start { 2.0 } else { 1.0 },
        cap_gb_s: port * family.nvls_efficiency / bus,
        repeat: 1,
    };
    Plan {
        name: "nccl-nvls".to_string(),
        base_us: 0.0,
        rounds: vec![round],
    }
}
