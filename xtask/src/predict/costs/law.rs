//! The cycle law on the plain steps that were measured.

use crate::input;
use crate::scenario::Scenario;
use crate::step_time::Server;
use crate::step_time::sweep::{BySequence, Constants, SweepLaw, growth, steps_ms};

/// Tokens of context at which the plain steps were measured: the scenario's own where the sweep's
/// file does not say.
pub(super) fn ran_at(scenario: &Scenario) -> f64 {
    let saved = scenario.served.as_ref().map(|served| served.held_tokens);
    saved
        .or(scenario.sweep_context)
        .unwrap_or(scenario.context as f64)
}

/// Refuses a plain sweep that no card can reach: a step in less than half of the time that reading
/// its weights takes.
fn possible(scenario: &Scenario, server: &Server<'_>, points: &[(f64, f64)]) -> anyhow::Result<()> {
    for &(users, tok_s) in points {
        let step = server.plain(users, ran_at(scenario));
        let least_ms = step.weights_ms + step.experts_ms;
        let most_tok_s = 1000.0 * users / least_ms;
        if tok_s > 2.0 * most_tok_s {
            return Err(input::error(format!(
                "--baseline: {tok_s:.0} tok/s at a load of {users:.0}; reading the weights of {} allows \
                 about {most_tok_s:.0}: check the figure, that speculation was off, and --quant, --gpu and --tp",
                scenario.model.name
            )));
        }
    }
    Ok(())
}

/// The law on the user's own sweep, or on the plain steps saved in the box file.
pub(super) fn law(scenario: &Scenario, server: &Server<'_>) -> anyhow::Result<Option<SweepLaw>> {
    let Some(points) = &scenario.baseline else {
        let Some(served) = &scenario.served else {
            return Ok(None);
        };
        let growth = growth(&scenario.model);
        return SweepLaw::of_stand_in(&served.steps_ms(), served.attention(), growth)
            .map(Some)
            .map_err(|e| input::error(format!("--box: [[served]]: {e}")));
    };
    possible(scenario, server, points)?;
    let constants = Constants::of(server);
    SweepLaw::of_engine(
        &steps_ms(points),
        server.ladder(),
        constants,
        Some(BySequence::of(server, ran_at(scenario))),
    )
    .map(Some)
    .map_err(|e| input::error(format!("--baseline: {e}")))
}
