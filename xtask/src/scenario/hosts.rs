//! The log of a server over several hosts, which no box of the models is.

use super::Notes;
use super::merge::Merged;
use crate::explain::LogScenario;

/// What such a log says of a server on one box: its model, flags, memory a card and acceptance. Its speeds
/// hold the network, and how its all-reduce ran is of no box.
pub(super) fn on_one_box(
    log: LogScenario,
    shown: &str,
    merged: &mut Merged,
    notes: &mut Notes,
) -> LogScenario {
    let Some((hosts, line)) = &log.hosts else {
        return log;
    };
    let left = format!(
        "the log's server spans {hosts} hosts ({shown}:{line}), which is not modelled: answered as one box, \
         its speeds and what kept its all-reduce to NCCL are left aside"
    );
    notes.assume(left.clone(), "a log of a server on one host");
    merged.left_aside.push(left);
    LogScenario {
        speeds: Vec::new(),
        pcie_all_reduce: None,
        custom_all_reduce: None,
        custom_all_reduce_off: None,
        no_custom_all_reduce: false,
        ..log
    }
}
