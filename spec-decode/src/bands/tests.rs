//! What knowing more does to a band, and that fitted bands hold what they say.

use super::*;
use crate::verdict::Verdict;
use proptest::prelude::*;

fn conditions(situation: Situation, beyond: f64, concurrency: f64) -> Conditions {
    Conditions {
        situation,
        tokens: 4.0 * concurrency,
        extra_share: 0.45,
        beyond,
        slower: 0.0,
        accept_down: 0.0,
        accept_up: 0.0,
    }
}

#[test]
fn knowing_more_narrows_the_band_and_leaving_the_sweep_widens_it() {
    let model = ResidualModel::shipped();
    let width = |situation, beyond| {
        let mut at = conditions(situation, beyond, 8.0);
        if situation.accept == AcceptSource::Prior {
            (at.accept_down, at.accept_up) = (0.25, 0.25);
        }
        let band = model.band(1.3, 4.0, &at);
        (band.high / band.low).ln()
    };
    let [known, prior, scratch, nothing] = Situation::ALL.map(|s| width(s, 0.0));
    assert!(known < prior && known < scratch && scratch < nothing);
    assert!(prior <= nothing);
    assert!(width(Situation::ALL[0], 1.0) > known);
}

#[test]
fn where_nothing_is_accepted_no_band_reaches_above_1_and_the_chance_is_none() {
    let at = conditions(Situation::ALL[2], 0.0, 8.0);
    let band = ResidualModel::shipped().band(0.89, 1.0, &at);
    assert!(band.high <= 1.0 && band.probability_pays == 0.0, "{band:?}");
    assert_eq!(Verdict::of(&band), Verdict::DoesNotPay);
}

#[test]
fn fitted_bands_cover_what_they_say_and_find_what_widens_them() {
    let mut residuals = Vec::new();
    for i in 0..400 {
        let beyond = f64::from(i % 2);
        // A triangle wave of errors between -1 and 1 times the true scale.
        let wave = (f64::from(i) * 0.618_034).fract() * 2.0 - 1.0;
        residuals.push(Residual {
            // An extra that large leaves what lies beyond the sweep to the sweep.
            conditions: Conditions {
                extra_share: 0.9,
                ..conditions(Situation::ALL[0], beyond, 4.0)
            },
            group: "wave".to_string(),
            log_error: wave * (0.05 + 0.2 * beyond),
        });
    }
    let model = ResidualModel::fit(&residuals);
    let covered = residuals.iter().filter(|r| {
        let band = model.band(1.0, 9.0, &r.conditions);
        (band.low.ln()..=band.high.ln()).contains(&-r.log_error)
    });
    let share = covered.count() as f64 / residuals.len() as f64;
    assert!((0.88..0.93).contains(&share), "{share}");
    let reach = |r: &Residual| model.band(1.0, 9.0, &r.conditions).low.ln();
    let ratio = reach(&residuals[1]) / reach(&residuals[0]);
    assert!((4.0..6.0).contains(&ratio), "{ratio}");
}

proptest! {
    #[test]
    fn a_band_holds_its_point_and_never_leaves_the_possible(
        speedup in 0.1f64..4.0, most in 1.0f64..5.0, beyond in 0.0f64..3.0, c in 1.0f64..500.0,
        index in 0usize..4,
    ) {
        let at = conditions(Situation::ALL[index], beyond, c);
        let band = ResidualModel::shipped().band(speedup, most, &at);
        prop_assert!(0.0 < band.low && band.low <= band.speedup);
        prop_assert!(band.speedup <= band.high && band.high <= most.max(0.0));
        prop_assert!((0.0..=1.0).contains(&band.probability_pays));
        prop_assert_eq!(speedup > 1.0, band.probability_pays > 0.5);
    }

    #[test]
    fn probability_rises_with_the_speedup(a in 0.1f64..4.0, b in 0.1f64..4.0) {
        let at = conditions(Situation::ALL[0], 0.0, 1.0);
        let pays = |s: f64| ResidualModel::shipped().band(s, 9.0, &at).probability_pays;
        prop_assert!(pays(a.min(b)) <= pays(a.max(b)) + 1e-12);
    }

    #[test]
    fn a_vaguer_accept_length_widens_every_band(
        index in 0usize..4, down in 0.0f64..0.5, up in 0.0f64..0.5, more in 0.0f64..0.5,
    ) {
        let mut at = conditions(Situation::ALL[index], 0.3, 8.0);
        (at.accept_down, at.accept_up) = (down, up);
        let narrow = ResidualModel::shipped().band(1.2, 9.0, &at);
        (at.accept_down, at.accept_up) = (down.hypot(more), up.hypot(more));
        let wide = ResidualModel::shipped().band(1.2, 9.0, &at);
        prop_assert!(wide.low <= narrow.low + 1e-9 && narrow.high <= wide.high + 1e-9);
        // What one reading leaves open is among the learned errors.
        let own = |x: f64| (x * x - READING_HALF_WIDTH.powi(2)).max(0.0).sqrt();
        prop_assert!(narrow.low <= 1.2 * (-own(down)).exp() + 1e-9);
        prop_assert!(narrow.high >= 1.2 * own(up).exp() - 1e-9);
    }

    #[test]
    fn from_scratch_a_larger_extra_is_less_sure(
        a in 0.0f64..0.99, b in 0.0f64..0.99, accept in 1.0f64..5.0,
    ) {
        let band = |extra: f64| {
            let at = Conditions { extra_share: extra, ..conditions(Situation::ALL[3], 0.0, 1.0) };
            ResidualModel::shipped().band(accept * (1.0 - extra), f64::MAX, &at)
        };
        let width = |extra: f64| (band(extra).high / band(extra).low).ln();
        prop_assert!(width(a.min(b)) <= width(a.max(b)) + 1e-9);
    }

    #[test]
    fn no_band_is_narrower_for_knowing_less(
        extra in 0.0f64..1.0, beyond in 0.0f64..4.0, users in 1.0f64..200.0,
        down in 0.0f64..0.5, up in 0.0f64..0.5, vaguer in 0.13f64..0.5,
    ) {
        let band = |situation: Situation| {
            let prior = situation.accept == AcceptSource::Prior;
            let vague = |own: f64| if prior { own.hypot(vaguer) } else { own };
            let at = Conditions {
                extra_share: extra,
                accept_down: vague(down),
                accept_up: vague(up),
                ..conditions(situation, beyond, users)
            };
            ResidualModel::shipped().band(1.2, 9.0, &at)
        };
        let [known, prior, scratch, nothing] = Situation::ALL.map(band);
        for (more, less) in [(known, prior), (known, scratch), (prior, nothing), (scratch, nothing)] {
            prop_assert!(less.low <= more.low + 1e-9 && more.high <= less.high + 1e-9);
        }
    }

    #[test]
    fn a_plain_step_that_is_slower_than_explained_widens_a_sweeps_band(
        beyond in 0.0f64..2.0, slower in 0.0f64..1.0, more in 0.0f64..1.0,
    ) {
        let width = |slower: f64| {
            let at = Conditions { slower, ..conditions(Situation::ALL[0], beyond, 8.0) };
            let band = ResidualModel::shipped().band(1.2, 9.0, &at);
            (band.high / band.low).ln()
        };
        prop_assert!(width(slower) <= width(slower + more) + 1e-12);
    }
}

#[test]
fn conditions_that_are_no_numbers_give_a_band_all_the_same() {
    for situation in Situation::ALL {
        let at = Conditions {
            extra_share: f64::NAN,
            slower: f64::NAN,
            beyond: f64::NAN,
            tokens: f64::NAN,
            ..conditions(situation, 0.0, 8.0)
        };
        let band = ResidualModel::shipped().band(1.2, 9.0, &at);
        assert!(
            band.low > 0.0 && band.low < 1.2 && band.high > 1.2,
            "{band:?}"
        );
    }
}
