//! A server over several machines: what of it one machine holds, which is what `predict` answers for.

use super::Words;
use crate::explain::facts::Facts;
use crate::explain::scenario::LogScenario;

/// The ranks of tensor parallelism on each machine of a server that spans several: as the file says, else
/// where no board of the card carries that many.
pub(super) fn of_one(said: &LogScenario, log: Option<&Facts>, card: Option<&str>) -> Option<u32> {
    let (tp, _) = said.tp?;
    let several = |name: &str| log.and_then(|log| log.number(name)).filter(|n| *n > 1.0);
    let stages = several("pp").unwrap_or(1.0);
    let each = several("nodes").map(|nodes| (f64::from(tp) * stages / nodes) as u32);
    let each = each.or_else(|| several("tp_hosts").map(|hosts| (f64::from(tp) / hosts) as u32));
    let most = card.and_then(|card| crate::gpus::find(card).ok());
    let each = each.or(most.map(|gpu| gpu.most_gpus))?.max(1);
    (each < tp).then_some(each)
}

/// Asks for that one, and says so.
pub(super) fn ask(line: &mut Words, each: u32, wired: bool) {
    if !wired {
        line.push("--gpus", Some(each.to_string()));
    }
    line.push("--tp", Some(each.to_string()));
    line.left_out.push(format!(
        "several machines: they are not modelled; the answer is for TP {each} on one of them"
    ));
}
