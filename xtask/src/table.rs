//! Plain aligned tables: numbers to the right, no lines.

use comfy_table::{CellAlignment, Table, presets};

/// Builds a table whose columns are right-aligned, but for those named in `left`.
pub(crate) fn plain(header: &[&str], left: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        let alignment = if left.contains(&index) {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        };
        column.set_cell_alignment(alignment);
        column.set_padding((0, 2));
    }
    table
}

/// The table as text, each line indented, without trailing spaces.
pub(crate) fn text(table: &Table, indent: usize) -> String {
    let mut out = String::new();
    for line in table.to_string().lines() {
        out.push_str(format!("{}{line}", " ".repeat(indent)).trim_end());
        out.push('\n');
    }
    out
}

/// A number with thousands separated: `21,400`.
pub(crate) fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_string();
    }
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if value < -0.5 {
        format!("-{grouped}")
    } else {
        grouped
    }
}

/// Three significant figures, for times and rates that span decades.
pub(crate) fn three(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "?".to_string()
    } else if size >= 1000.0 {
        thousands(value)
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Bytes as people write them: `14,336 B`, `64 KiB`, `1 MiB`.
pub(crate) fn bytes(value: u64) -> String {
    if value >= 1 << 20 && value.is_multiple_of(1 << 20) {
        format!("{} MiB", value >> 20)
    } else if value >= 16 << 10 && value.is_multiple_of(1 << 10) && value < 1 << 20 {
        format!("{} KiB", value >> 10)
    } else {
        format!("{} B", thousands(value as f64))
    }
}

/// A pool wall in words: above 1 as it is, so that it shows by how much.
pub(crate) fn needed(wall: f64) -> String {
    match wall.is_finite() {
        true => at_least(wall, 4),
        false => "more than the weights leave".to_string(),
    }
}

/// A lower bound in so many digits, no lower than it is: as printed it is within.
pub(crate) fn at_least(bound: f64, digits: usize) -> String {
    rounded(bound, digits, |scaled| (scaled - TYPED).ceil())
}

/// An upper bound, no higher than it is.
pub(crate) fn at_most(bound: f64, digits: usize) -> String {
    rounded(bound, digits, |scaled| (scaled + TYPED).floor())
}

/// A bound that was itself typed is not moved by the last digits of a sum, in units of the last one
/// printed.
const TYPED: f64 = 1e-5;

fn rounded(bound: f64, digits: usize, whole: fn(f64) -> f64) -> String {
    let scale = 10_f64.powi(i32::try_from(digits).unwrap_or(0));
    format!("{:.digits$}", whole(bound * scale) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(thousands(21400.4), "21,400");
        assert_eq!(thousands(-20.6), "-21");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(three(0.5), "0.50");
        assert_eq!(three(58.04), "58.0");
        assert_eq!(three(f64::NAN), "?");
        assert_eq!(bytes(57344), "56 KiB");
        assert_eq!(bytes(14336), "14,336 B");
        assert_eq!(bytes(1 << 20), "1 MiB");
    }

    proptest::proptest! {
        /// `legal from 0.7530` was printed of a wall at 0.75302, at which 0.753 is refused.
        #[test]
        fn bounds_are_rounded_inwards_as_printed(bound in 0.0..2.0_f64, digits in 3_usize..5) {
            let read = |text: String| text.parse::<f64>().expect("a number");
            let (low, high) = (read(at_least(bound, digits)), read(at_most(bound, digits)));
            let step = 10_f64.powi(-(digits as i32));
            proptest::prop_assert!(bound - 1e-8 <= low && low < bound + step);
            proptest::prop_assert!(high <= bound + 1e-8 && bound - step < high);
            // One with no more digits is printed as it is.
            proptest::prop_assert_eq!(read(at_least(low, digits)).to_bits(), low.to_bits());
            proptest::prop_assert_eq!(read(at_most(low, digits)).to_bits(), low.to_bits());
        }
    }
}
