//! What each area must reach: the figures we have reached with a margin for harmless change, so
//! that a model that gets worse fails the build. The aims themselves stand in docs/ACCURACY.md.

use super::Area;

/// Which figure of an area is bounded.
#[derive(Debug, Clone, Copy)]
enum Figure {
    Median,
    P90,
    Mean,
    Right,
}

/// A bound: errors stay at or under it, fractions right at or over it.
struct Bound {
    area: &'static str,
    figure: Figure,
    limit: f64,
}

const fn bound(area: &'static str, figure: Figure, limit: f64) -> Bound {
    Bound {
        area,
        figure,
        limit,
    }
}

const BOUNDS: [Bound; 31] = [
    bound("memory.cases", Figure::Right, 1.0),
    bound("memory.configs", Figure::Right, 1.0),
    bound("memory.weights", Figure::Right, 0.9),
    bound("memory.from_flags", Figure::Median, 0.03),
    bound("memory.from_flags", Figure::Right, 0.9),
    bound("collective.nccl_pcie", Figure::Median, 0.25),
    bound("collective.nccl_nvlink_small", Figure::Median, 0.15),
    bound("collective.nccl_nvlink_large", Figure::Median, 0.10),
    bound("collective.custom", Figure::Median, 0.12),
    bound("collective.decision", Figure::Right, 0.90),
    bound("contention", Figure::Median, 0.10),
    bound("acceptance.depth_eagle3", Figure::Mean, 0.05),
    bound("acceptance.depth_other", Figure::Mean, 0.11),
    bound("acceptance.prior", Figure::Right, 0.88),
    bound("acceptance.depth_regret", Figure::Mean, 0.01),
    bound("speedup.from_baseline", Figure::Median, 0.04),
    bound("speedup.from_baseline", Figure::P90, 0.11),
    bound("speedup.from_baseline", Figure::Right, 0.95),
    bound("speedup.from_baseline_extrapolated", Figure::Median, 0.12),
    bound("speedup.from_baseline_extrapolated", Figure::Right, 0.88),
    bound("speedup.from_scratch", Figure::Median, 0.12),
    bound("speedup.from_scratch", Figure::Right, 0.85),
    bound("engine.from_sweep", Figure::Median, 0.05),
    bound("engine.from_scratch", Figure::Median, 0.10),
    bound("decode.from_scratch", Figure::Median, 0.09),
    bound("decode.from_scratch_served", Figure::Median, 0.09),
    bound("decode.from_scratch_pcie", Figure::Median, 0.12),
    bound("decode.tp_doublings", Figure::Median, 0.08),
    bound("bands", Figure::Right, 0.87),
    bound("predict.bands", Figure::Right, 0.9),
    bound("inputs.facts", Figure::Right, 0.95),
];

/// One line for each bound that is not kept; areas that were not scored are not judged.
pub(super) fn missed(areas: &[Area]) -> Vec<String> {
    BOUNDS
        .iter()
        .filter_map(|bound| {
            let area = areas.iter().find(|a| a.area == bound.area)?;
            let (value, kept, name) = match bound.figure {
                Figure::Median => (
                    area.median_error,
                    at_most(area.median_error, bound),
                    "median error",
                ),
                Figure::P90 => (
                    area.p90_error,
                    at_most(area.p90_error, bound),
                    "90th of errors",
                ),
                Figure::Mean => (
                    area.mean_error,
                    at_most(area.mean_error, bound),
                    "mean error",
                ),
                Figure::Right => (
                    area.right,
                    area.right.is_some_and(|v| v >= bound.limit - 1e-9),
                    "fraction right",
                ),
            };
            (!kept).then(|| {
                format!(
                    "missed: {} {name} is {}, the bound is {}",
                    bound.area,
                    value.map_or_else(|| "absent".to_string(), |v| format!("{v:.3}")),
                    bound.limit
                )
            })
        })
        .collect()
}

fn at_most(value: Option<f64>, bound: &Bound) -> bool {
    value.is_some_and(|v| v <= bound.limit + 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worse_figure_and_an_absent_one_are_missed() {
        let mut good = Area::new("memory.cases");
        good.right = Some(1.0);
        assert!(missed(&[good.clone()]).is_empty());
        good.right = Some(0.98);
        assert_eq!(missed(&[good.clone()]).len(), 1);
        good.right = None;
        assert_eq!(missed(&[good]).len(), 1);
    }
}
