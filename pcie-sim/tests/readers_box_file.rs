//! The box file: what it accepts, what it refuses, and with which line.

use pcie_sim::box_spec::{BoxSpec, PathClass};

const TWO_SWITCHES: &str = r#"name = "t"
p2p = "on"
[[node]]
id = "cpu0"
kind = "socket"
[[node]]
id = "sw0"
kind = "switch"
chip = "a"
parent = "cpu0"
gen = 5
lanes = 16
[[node]]
id = "sw1"
kind = "switch"
chip = "a"
parent = "cpu0"
gen = 5
lanes = 16
[[node]]
id = "gpu0"
kind = "gpu"
parent = "sw0"
gen = 5
lanes = 16
[[node]]
id = "gpu1"
kind = "gpu"
parent = "sw1"
gen = 5
lanes = 16
[fabric]
state = "collapsed"
all_pairs_gb_s = 2.1
[[measured]]
what = "all_reduce"
algorithm = "nccl"
bytes = 57344
time_us = 66.5
"#;

#[test]
fn reads_the_form_of_the_design_and_round_trips() {
    let spec = BoxSpec::from_toml(TWO_SWITCHES).unwrap();
    assert_eq!(spec.pcie_class("gpu0", "gpu1"), Some(PathClass::SameChip));
    assert_eq!(spec.switch_groups(), vec![vec![0], vec![1]]);
    assert_eq!(spec.chip_groups(), vec![vec![0, 1]]);
    assert_eq!(BoxSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
}

#[test]
fn each_fault_is_one_line_that_names_its_line() {
    let edit = |from: &str, to: &str| {
        let text = TWO_SWITCHES.replacen(from, to, 1);
        assert_ne!(text, TWO_SWITCHES);
        let message = BoxSpec::from_toml(&text).unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    };
    let table = [
        (
            "lanes = 16\n",
            "lanse = 16\n",
            "line 12: unknown field `lanse`",
        ),
        (
            "id = \"sw1\"",
            "id = \"sw0\"",
            "line 13: two nodes have the id 'sw0'",
        ),
        (
            "parent = \"cpu0\"",
            "parent = \"cpu7\"",
            "line 6: parent 'cpu7' of 'sw0' is not a node",
        ),
        (
            "parent = \"cpu0\"",
            "parent = \"sw0\"",
            "line 6: 'sw0' never reaches a socket",
        ),
        ("gen = 5", "gen = 9", "line 6: 'sw0' has PCIe gen 9"),
        ("lanes = 16", "lanes = 7", "line 6: 'sw0' has 7 lanes"),
        (
            "p2p = \"on\"",
            "p2p = \"maybe\"",
            "line 2: unknown variant `maybe`",
        ),
        (
            "all_pairs_gb_s = 2.1",
            "all_pairs_gb_s = nan",
            "[fabric] all_pairs_gb_s = NaN",
        ),
        (
            "time_us = 66.5",
            "",
            "line 35: [[measured]] without a figure",
        ),
    ];
    for (from, to, expected) in table {
        let message = edit(from, to);
        assert!(
            message.starts_with(expected),
            "{message}\nexpected {expected}"
        );
    }
}

#[test]
fn faults_of_entries_in_array_form_name_their_line_too() {
    let text = "name = \"t\"\np2p = \"on\"\nnode = [\n  { id = \"cpu0\", kind = \"socket\" },\n  \
                { id = \"gpu0\", kind = \"gpu\", parent = \"cpu1\", gen = 5, lanes = 16 },\n]\n";
    let message = BoxSpec::from_toml(text).unwrap_err().to_string();
    assert!(
        message.starts_with("line 5: parent 'cpu1' of 'gpu0' is not a node"),
        "{message}"
    );
}
