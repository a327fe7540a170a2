//! What stands on a card while an engine makes FP8 of a BF16 checkpoint, in words; and which engines have
//! the room for it.

use kvplan::{Quant, WeightFormat};

use super::{Report, setup};
use crate::scenario::file::ObservedFile;
use crate::scenario::{EngineChoice, EngineKind, Ran, Scenario};

/// Why it runs out of memory while it loads; nothing where it does not.
pub(super) fn words(report: &Report) -> Option<String> {
    let plan = &report.cost.with;
    let loading = plan.loading?;
    Some(format!(
        "{} loads a GPU's {:.2} GiB as the checkpoint stores them before it makes FP8 of any, beside {:.2} \
         gone before, on a card of {:.2}",
        report.engine, loading.checkpoint_gib, loading.gone_gib, plan.ledger.total_gib
    ))
}

/// Whether an engine has the room to make FP8 of the BF16 checkpoint on these cards: the engine asked for at
/// its version, another one at its newest.
pub(crate) fn in_bf16(scenario: &Scenario, engine: EngineKind) -> bool {
    let mut other = scenario.clone();
    if engine != scenario.engine.kind {
        other.engine = EngineChoice {
            kind: engine,
            version: None,
        };
        other.observed = ObservedFile::default();
        other.ran = Ran::default();
    }
    let stored = scenario.checkpoint.clone().unwrap_or_else(|| {
        let bf16 = Quant::everywhere(WeightFormat::Bf16);
        scenario.model.clone().requantised(&bf16)
    });
    other.checkpoint = Some(stored);
    // Inputs that no engine could run with are said elsewhere.
    let setup = setup(&other, None).ok();
    setup.is_none_or(|setup| kvplan::runs_out_loading(&setup).is_none())
}
