//! Hostile and damaged input: one line each, never a panic or a hang.

mod readers_common;

use pcie_sim::box_spec::BoxSpec;
use pcie_sim::readers::{self, Format, Hints};
use proptest::prelude::*;
use readers_common::texts;
use std::time::Instant;

const MATRIX: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tPXB\t0-31\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tPXB\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tPXB\tSYS\t X \t\t\t\t
";

const XML: &str = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x2bb5" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="120" rank="0" gdr="1"><nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200" vendor="0x10de" device="0x2bb5" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="120" rank="1" gdr="1"/>
      </pci>
    </pci>
  </cpu>
</system>
"#;

const TREE: &str = r"-+-[0000:40]-+-00.0  Advanced Micro Devices, Inc. [AMD] Root Complex
 |           \-01.1-[41-44]----00.0-[42-44]--+-00.0-[43]----00.0  NVIDIA Corporation Device 2bb5
 |                                           \-01.0-[44]----00.0  NVIDIA Corporation Device 2bb5
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Root Complex
             \-01.1-[01]----00.0  NVIDIA Corporation Device 2bb5
";

const VERBOSE: &str = "00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e
\tNUMA node: 0
\tBus: primary=00, secondary=01, subordinate=04, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
01:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=01, secondary=02, subordinate=04, sec-latency=0
\t\tLnkCap:\tPort #200, Speed 32GT/s, Width x16
02:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=02, secondary=03, subordinate=03, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
02:01.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=02, secondary=04, subordinate=04, sec-latency=0
03:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
04:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
";

fn read(text: &str) -> Result<BoxSpec, String> {
    readers::read(text, &Hints::default()).map_err(|e| e.to_string())
}

fn refused(text: &str) -> String {
    let message = read(text).expect_err("should be refused");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn samples_are_read() {
    let matrix = read(MATRIX).unwrap();
    assert_eq!((matrix.gpu_count(), matrix.socket_count()), (4, 2));
    assert_eq!(matrix.switch_groups(), [[0, 1]]);
    let xml = read(XML).unwrap();
    assert_eq!(xml.switch_groups(), [[0, 1]]);
    assert_eq!(xml.gpu_link_gb_s("gpu0", "gpu1"), Some(200.0));
    let tree = read(TREE).unwrap();
    assert_eq!(tree.switch_groups(), [[1, 2]]);
    let verbose = read(VERBOSE).unwrap();
    assert_eq!(verbose.switch_groups(), [[0, 1]]);
    assert_eq!(
        verbose.gpus()[0].lanes,
        Some(8),
        "the width does not drop at idle"
    );
    assert_eq!(verbose.acs, Some(pcie_sim::box_spec::Acs::Redirect));
    assert_eq!(
        readers::detect(&verbose.to_toml().unwrap()),
        Format::BoxFile
    );
}

#[test]
fn colours_and_mail_quotes_and_windows_line_ends_change_nothing() {
    let plain = read(MATRIX).unwrap();
    let coloured = MATRIX
        .replace("GPU0", "\u{1b}[4mGPU0\u{1b}[0m")
        .replace('\n', "\r\n");
    assert_eq!(read(&coloured).unwrap(), plain);
    let quoted: String = MATRIX.lines().map(|l| format!("> > {l}\n")).collect();
    assert_eq!(read(&quoted).unwrap(), plain);
    let markdown: String = MATRIX
        .lines()
        .map(|l| format!("| {} |\n", l.replace('\t', " | ")))
        .collect();
    assert_eq!(read(&markdown).unwrap(), plain);
    let blanks = MATRIX.replace('\t', "\u{a0}\u{a0} ");
    assert_eq!(read(&blanks).unwrap(), plain);
}

#[test]
fn a_single_gpu_is_a_box() {
    let one = read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-11\tN/A\n").unwrap();
    assert_eq!(
        (one.gpu_count(), one.socket_count(), one.links.len()),
        (1, 1, 0)
    );
}

#[test]
fn rows_wrapped_by_a_narrow_terminal_are_joined() {
    let plain = read(MATRIX).unwrap();
    let wrapped: String = MATRIX
        .lines()
        .map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            let (a, b) = words.split_at(4.min(words.len()));
            format!("{}\n   {}\n", a.join(" "), b.join(" "))
        })
        .collect();
    assert_eq!(read(&wrapped).unwrap(), plain);
}

#[test]
fn contradictions_in_a_matrix_name_their_line() {
    let cases = [
        (
            MATRIX.replacen("PIX", "PIXX", 1),
            "line 2: 'PIXX' in row GPU0",
        ),
        (
            MATRIX.replacen("PIX", "SYS", 1),
            "line 3: GPU1 to GPU0 and back differ",
        ),
        (
            MATRIX.replacen(" X \tPIX", "PIX\t X ", 1),
            "line 2: row GPU0 and column GPU0 do not fit",
        ),
        (
            MATRIX.replacen("GPU1", "GPU0", 1),
            "line 1: two columns are called GPU0",
        ),
        (
            MATRIX.replacen("\nGPU1\t", "\nGPU0\t", 1),
            "line 3: a second row GPU0",
        ),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(
            message.starts_with(expected),
            "{message}\nexpected {expected}"
        );
    }
    let triangle = "GPU0 GPU1 GPU2\nGPU0 X PIX PIX\nGPU1 PIX X SYS\nGPU2 PIX SYS X\n";
    assert!(
        refused(triangle).starts_with("line 1: GPU1 and GPU2 are joined by PIX through others")
    );
    let cut = "GPU0 GPU1 GPU2\nGPU0 X PIX PIX\n";
    assert!(refused(cut).starts_with("line 1: nothing says how GPU1 and GPU2"));
}

#[test]
fn damaged_xml_is_refused_with_its_line() {
    let cut = &XML[..XML.len() - 30];
    assert!(
        refused(cut).starts_with("line 10: the XML ends inside <pci>"),
        "{}",
        refused(cut)
    );
    assert!(refused(&XML.replacen("</pci>", "</cpu>", 1)).contains("</cpu> closes <pci>"));
    assert!(
        refused(&XML.replacen("0000:03:00.0\" class", "0000:02:00.0\" class", 1))
            .contains("two devices have the busid")
    );
    let deep = format!("<system>{}", "<pci busid=\"a\">".repeat(5000));
    assert!(
        refused(&deep).contains("nested or large"),
        "{}",
        refused(&deep)
    );
    // A "billion laughs" DTD is skipped, not expanded.
    let dtd = "<!DOCTYPE x [<!ENTITY a \"&b;&b;\"><!ENTITY b \"&a;&a;\">]>";
    assert_eq!(read(&format!("{dtd}{XML}")).unwrap(), read(XML).unwrap());
    assert!(refused("<system version=\"1\"/>").contains("no GPU"));
}

#[test]
fn a_thousand_gpus_are_refused() {
    let header: String = (0..1000).map(|i| format!("GPU{i} ")).collect();
    let rows: String = (0..1000)
        .map(|i| format!("GPU{i} {}\n", "SYS ".repeat(i) + "X"))
        .collect();
    assert!(refused(&format!("{header}\n{rows}")).contains("a matrix of 1000 GPUs"));
    let pci: String = (0..1000)
        .map(|i| format!("<pci busid=\"{i:04x}:00:00.0\" class=\"0x030200\"/>"))
        .collect();
    assert!(
        refused(&format!("<system><cpu numaid=\"0\">{pci}</cpu></system>")).contains("1000 GPUs")
    );
    let list: String = (0..300)
        .map(|i| format!("{i:04x}:00:00.0 3D controller: NVIDIA Corporation Device 2330\n"))
        .collect();
    refused(&list);
}

#[test]
fn texts_that_are_no_topology_say_what_to_give() {
    for text in [
        "",
        "  \n",
        "hello",
        "GPU0",
        "{\"a\": 1}",
        "GPU0 and GPU1 are fine",
        "<system",
        "<",
        "-[",
        "[[node]]",
    ] {
        let message = refused(text);
        assert!(message.contains(';'), "{text:?}: {message}");
    }
    assert!(refused("a\0b").starts_with("line 1: a NUL byte"));
}

#[test]
fn huge_texts_are_refused_or_read_in_linear_time() {
    let start = Instant::now();
    assert!(refused(&"x".repeat(17 << 20)).contains("too long"));
    for part in [
        "<",
        "<pci ",
        "GPU0 GPU1\n",
        "GPU0 X PIX\n",
        "-[0000:00]-+-00.0\n",
        "00:01.0 PCI bridge: x\n",
        "\u{1b}[",
        "- -",
        "<!--",
        "<system ",
        "[[node]]\n",
        "| ",
        "> ",
    ] {
        let text = part.repeat((1 << 19) / part.len());
        let _ = readers::facts(&text);
        assert_eq!(read(&text).expect_err(part).lines().count(), 1);
    }
    // Many columns and many rows; many NVLink distances.
    let columns: String = (0..50_000).map(|i| format!("mlx5_{i} ")).collect();
    let wide = format!("GPU0 {columns}\n{}", "mlx5_49999 X\n".repeat(25_000));
    assert_eq!(read(&wide).expect_err("wide").lines().count(), 1);
    let start_hwloc = r#"<topology><object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:2330]" gp_index="1"/>"#;
    let indexes = "1 ".repeat(100_000);
    let table = format!(
        r#"<distances2 name="NVLinkBandwidth"><indexes>{indexes}</indexes></distances2></topology>"#
    );
    assert_eq!(
        read(&format!("{start_hwloc}{table}")).unwrap().gpu_count(),
        1
    );
    let seconds = start.elapsed().as_secs();
    assert!(seconds < 30, "{seconds} s: something is worse than linear");
}

/// Corpora to damage: the samples, and the real files where they are present.
fn corpora() -> Vec<String> {
    let mut out: Vec<String> = [MATRIX, XML, TREE, VERBOSE]
        .iter()
        .map(|s| s.to_string())
        .collect();
    out.push(
        pcie_sim::catalog::find("two-switch-8")
            .unwrap()
            .to_toml()
            .unwrap(),
    );
    out.extend(
        texts()
            .into_iter()
            .map(|(_, text)| text.chars().take(30_000).collect()),
    );
    out
}

/// One damage: cut, double, drop, swap or overwrite at places given as fractions.
fn damage(text: &str, kind: u8, at: f64, len: usize, with: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let from = ((chars.len() as f64) * at) as usize;
    let to = (from + len).min(chars.len());
    let (head, middle, tail) = (&chars[..from], &chars[from..to], &chars[to..]);
    let join = |parts: &[&[char]]| parts.iter().flat_map(|p| p.iter()).collect::<String>();
    let new: Vec<char> = with.chars().collect();
    match kind % 5 {
        0 => join(&[head]),
        1 => join(&[head, middle, middle, tail]),
        2 => join(&[head, tail]),
        3 => join(&[tail, middle, head]),
        _ => join(&[head, &new, tail]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_read_or_refused_in_one_line(
        which in any::<prop::sample::Index>(),
        damages in prop::collection::vec((any::<u8>(), 0.0..1.0_f64, 0_usize..200, prop_oneof![
            Just("GPU7".to_string()), Just("NV99999999999".to_string()), Just("-1".to_string()),
            Just("9".repeat(40)), Just("\u{0}".to_string()), Just("é".to_string()), Just("<pci busid=\"".to_string()),
            Just("secondary=00,".to_string()), Just("-[00]-".to_string()), "\\PC{0,20}"
        ]), 1..4),
    ) {
        thread_local! { static CORPORA: Vec<String> = corpora(); }
        let mut text = CORPORA.with(|c| which.get(c).clone());
        for (kind, at, len, with) in &damages {
            text = damage(&text, *kind, *at, *len, with);
        }
        let _ = readers::facts(&text);
        match read(&text) {
            Ok(spec) => {
                prop_assert!(spec.check().is_ok());
                let back = BoxSpec::from_toml(&spec.to_toml().unwrap());
                prop_assert_eq!(back.map_err(|e| e.to_string()), Ok(spec));
            }
            Err(message) => prop_assert_eq!(message.lines().count(), 1, "{}", message),
        }
    }

    #[test]
    fn any_text_at_all_is_read_or_refused(text in "\\PC{0,400}") {
        let _ = readers::facts(&text);
        prop_assert!(read(&text).is_err() || read(&text).is_ok());
    }

    /// `nvidia-smi topo -m` of a known tree gives that tree back: switches and sockets.
    #[test]
    fn a_matrix_written_from_a_tree_is_read_back_as_that_tree(
        switches in prop::collection::vec((1_usize..5, 0_u32..2), 1..5),
    ) {
        // Ground truth: (switch, socket) of each GPU.
        let mut place = Vec::new();
        for (s, (gpus, socket)) in switches.iter().enumerate() {
            place.extend(std::iter::repeat_n((s, *socket), *gpus));
        }
        let code = |a: &(usize, u32), b: &(usize, u32)| match (a.0 == b.0, a.1 == b.1) {
            (true, _) => "PIX",
            (false, true) => "NODE",
            _ => "SYS",
        };
        let mut text: String = (0..place.len()).map(|i| format!("\tGPU{i}")).collect();
        text += "\tCPU Affinity\tNUMA Affinity\n";
        for (i, a) in place.iter().enumerate() {
            text += &format!("GPU{i}");
            for (j, b) in place.iter().enumerate() {
                text += &format!("\t{}", if i == j { " X " } else { code(a, b) });
            }
            text += &format!("\t0-{}\t{}\n", a.1, a.1);
        }
        let spec = read(&text).map_err(TestCaseError::fail)?;
        let mut first = 0;
        let mut expected = Vec::new();
        for (gpus, _) in &switches {
            if *gpus > 1 {
                expected.push((first..first + gpus).collect::<Vec<_>>());
            }
            first += gpus;
        }
        prop_assert_eq!(spec.switch_groups(), expected);
        let on = spec.gpu_sockets();
        for (i, a) in place.iter().enumerate() {
            for (j, b) in place.iter().enumerate() {
                prop_assert_eq!(on[i] == on[j], a.1 == b.1);
            }
        }
    }
}

/// A card's section of `nvidia-smi -q`, at rest (Gen1) in a slot of so many lanes.
fn queried(address: &str, lanes: u8) -> String {
    format!(
        "GPU 00000000:{address}\n    Product Name : NVIDIA GeForce RTX 3090\n    PCI\n        \
         GPU Link Info\n            PCIe Generation\n                Max : 4\n                \
         Current : 1\n                Device Max : 4\n                Host Max : 5\n            \
         Link Width\n                Max : 16x\n                Current : {lanes}x\n"
    )
}

#[test]
fn what_stands_behind_a_matrix_in_its_file_tells_the_slots() {
    let matrix = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t0\nGPU1\tPHB\t X \t0-31\t0\n";
    let peers = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n";
    let query = format!("{}{}", queried("01:00.0", 8), queried("41:00.0", 4));
    let listing = "01:00.0 3D controller: NVIDIA Corporation Device 2204 (rev a1)
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16
\t\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)
41:00.0 3D controller: NVIDIA Corporation Device 2204 (rev a1)
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x4 (downgraded)
";
    let slots = |text: &str| {
        let spec = read(text).unwrap();
        let open = spec
            .assumptions
            .iter()
            .any(|a| a.what.contains("slot runs"));
        let gpus = spec.nodes.iter().filter(|n| n.id.starts_with("gpu"));
        let slots: Vec<_> = gpus.map(|n| (n.pcie_gen, n.lanes)).collect();
        (slots, open)
    };
    let known = (vec![(Some(4), Some(8)), (Some(4), Some(4))], false);
    assert_eq!(slots(&format!("{matrix}{peers}{query}")), known);
    assert_eq!(slots(&format!("{matrix}{peers}{listing}")), known);
    // Peer access behind a listing of the devices leaves the listing's wiring.
    assert_eq!(slots(&format!("{listing}{peers}")), known);
    assert!(slots(&format!("{matrix}{peers}")).1);
    // One card's section is not both slots.
    assert!(slots(&format!("{matrix}{}", queried("01:00.0", 8))).1);
}
