//! Every fitted or published constant of the timing model, in one place, so that `score` can fit
//! them again without the box that it scores.
//!
//! Published constants stay as they are (`nccl.rs`, `tlp.rs`, `topology.rs`); here stand those
//! fitted on measured rows (nccl-tests tables of AIConfigurator 0.12.0, community pages of the
//! RTX PRO 6000 users). `score` reports the error with each box left out of the fit.

/// GPU generation, by compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch(pub u16);

impl Arch {
    /// V100.
    pub const VOLTA: Arch = Arch(70);
    /// A100.
    pub const AMPERE: Arch = Arch(80);
    /// RTX 4090, L40S.
    pub const ADA: Arch = Arch(89);
    /// H100, H200.
    pub const HOPPER: Arch = Arch(90);
    /// B200, GB200.
    pub const BLACKWELL: Arch = Arch(100);
    /// RTX 5090, RTX PRO 6000.
    pub const BLACKWELL_RTX: Arch = Arch(120);

    /// From `sm_90`, `sm90`, `90` or `9.0`; None where there is no such number.
    pub fn parse(text: &str) -> Option<Arch> {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let sm: u16 = digits.parse().ok()?;
        (30..=200).contains(&sm).then_some(Arch(sm))
    }

    /// Which set of fitted constants applies.
    pub fn family(self) -> Family {
        match self.0 {
            0..=88 => Family::Older,
            89..=99 => Family::Hopper,
            100..=119 => Family::Blackwell,
            _ => Family::BlackwellRtx,
        }
    }
}

/// GPU generations that share fitted constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Volta, Turing, Ampere.
    Older,
    /// Ada and Hopper.
    Hopper,
    /// Data-centre Blackwell.
    Blackwell,
    /// Blackwell with GDDR on PCIe.
    BlackwellRtx,
}

/// What depends on the GPU generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilyConstants {
    /// NCCL, LL: launch and first and last step, us.
    pub ll_base_us: f64,
    /// NCCL, LL: one ring step over NVLink, us.
    pub ll_hop_nvlink_us: f64,
    /// NCCL, Simple over NVLink: start, us.
    pub simple_base_us: f64,
    /// NCCL, Simple over NVLink: one ring step, us.
    pub simple_hop_us: f64,
    /// NCCL ring over NVLink: share of the link's rate at many ranks.
    pub ring_efficiency: f64,
    /// Node of a CUDA graph to node, with a custom all-reduce kernel's own start, us.
    pub kernel_start_us: f64,
    /// Custom kernel over NVLink: one barrier and one loaded read, us.
    pub nvlink_stage_us: f64,
    /// Custom kernel over NVLink: most bytes in flight of one rank towards one peer, as a rate, GB/s.
    pub nvlink_load_gb_s: f64,
    /// Push kernel over NVLink: stores to arrival, us.
    pub nvlink_push_us: f64,
    /// Push kernel over NVLink: rate of one rank's stores, GB/s.
    pub nvlink_push_gb_s: f64,
    /// Two-shot over NVLink with 8 ranks: fenced barrier and second loaded read, us.
    pub nvlink_fence_us: f64,
    /// NVLink SHARP: bus bandwidth as a share of the port's data-sheet rate.
    pub nvls_efficiency: f64,
}

/// All fitted constants.
#[derive(Debug, Clone, PartialEq)]
pub struct Constants {
    /// By family, in the order of [`Family`].
    pub families: [FamilyConstants; 4],
    /// LL over PCIe: one ring step costs this above the one-way flag, us.
    pub ll_hop_above_flag_us: f64,
    /// LL over PCIe: one pass of a channel's threads (4 KiB of data) takes this many flag times.
    pub ll_pass_flags: f64,
    /// LL over NVLink: a ring step grows by this share once more blocks take part (from 16 KiB).
    pub ll_spread: f64,
    /// Simple over PCIe: start, us.
    pub simple_pcie_base_us: f64,
    /// Simple over PCIe: one ring step, us.
    pub simple_pcie_hop_us: f64,
    /// Simple over PCIe: rate of one channel, GB/s.
    pub simple_channel_gb_s: f64,
    /// Simple over PCIe: wire bytes a payload byte costs beyond packet headers (counters, FIFO).
    pub simple_overhead: f64,
    /// A flag through host memory takes this longer than a write and a read of it, us: 1.75 was measured
    /// between two H200 (1.6 to 1.87, docs/HARDWARE.md), and NCCL's step there is that and what any costs.
    pub host_hop_us: f64,
    /// Loaded read: what a round trip grows by when several peers are read at once, us.
    pub loaded_read_us: f64,
    /// A GPU's port that k GPUs send to carries `k ^ -this` of its rate.
    pub incast_exponent: f64,
    /// Copies and kernels between sockets: share of a port's rate (posted credits over the longer
    /// way).
    pub cross_socket: f64,
    /// A link that carries data both ways carries this share of its rate each way.
    pub both_ways: f64,
    /// A link of a switch carries this share of a direct link's rate.
    pub through_switch: f64,
    /// Kernel stores of one GPU over PCIe, as a share of what its port could carry.
    pub store_issue: f64,
    /// Kernel loads of one GPU over PCIe, as a share of what its port could carry.
    pub load_issue: f64,
    /// Copy engine or kernel over NVLink: share of the data-sheet rate.
    pub nvlink_efficiency: f64,
    /// Custom kernel over NVLink: each peer above one adds this, us.
    pub nvlink_peer_us: f64,
    /// Push kernel over NVLink: each peer above one adds this, us.
    pub nvlink_push_peer_us: f64,
    /// NVLink SHARP: start, us.
    pub nvls_start_us: f64,
    /// NVLink SHARP on data-centre Blackwell below 8 ranks: start that overlaps the transfer, us.
    pub nvls_slow_start_us: f64,
    /// Collapsed fabric, kernel accesses: rate per direction between chips, GB/s.
    pub collapsed_kernel_gb_s: f64,
    /// Collapsed fabric, copies: rate per collapsed uplink, GB/s.
    pub collapsed_copy_gb_s: f64,
    /// Staged peer access: rate into each GPU, GB/s.
    pub staged_gb_s: f64,
    /// All-to-all loads through a Switchtec switch: rate into each GPU, GB/s.
    pub switchtec_read_gb_s: f64,
}

/// A constant that a fit may move, with its name for reports.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Name, with the family where it belongs to one.
    pub name: &'static str,
    /// Where it is.
    pub at: fn(&mut Constants) -> &mut f64,
    /// Which family it belongs to, by index; None: all.
    pub family: Option<usize>,
}

macro_rules! parameters {
    (shared: $($shared:ident),* ; family: $($field:ident),*) => {
        /// Every constant that was fitted, so that a fit can be repeated on fewer boxes.
        pub const PARAMETERS: &[Parameter] = &[
            $(Parameter { name: stringify!($shared), at: |c| &mut c.$shared, family: None },)*
            $(
                Parameter { name: concat!("older.", stringify!($field)), at: |c| &mut c.families[0].$field, family: Some(0) },
                Parameter { name: concat!("hopper.", stringify!($field)), at: |c| &mut c.families[1].$field, family: Some(1) },
                Parameter { name: concat!("blackwell.", stringify!($field)), at: |c| &mut c.families[2].$field, family: Some(2) },
                Parameter { name: concat!("rtx.", stringify!($field)), at: |c| &mut c.families[3].$field, family: Some(3) },
            )*
        ];
    };
}

parameters! {
    shared: ll_hop_above_flag_us, ll_pass_flags, ll_spread, simple_pcie_base_us,
        simple_pcie_hop_us, simple_channel_gb_s, simple_overhead, host_hop_us, loaded_read_us,
        incast_exponent, cross_socket, both_ways, through_switch, store_issue, load_issue,
        nvlink_efficiency, nvlink_peer_us, nvlink_push_peer_us, nvls_start_us,
        nvls_slow_start_us, collapsed_kernel_gb_s, collapsed_copy_gb_s, switchtec_read_gb_s;
    family: ll_base_us, ll_hop_nvlink_us, simple_base_us, simple_hop_us, ring_efficiency,
        kernel_start_us, nvlink_stage_us, nvlink_load_gb_s, nvlink_push_us, nvlink_push_gb_s,
        nvlink_fence_us, nvls_efficiency
}

impl Constants {
    /// A start for fits that owes nothing to the newest measured boxes: every family as the mean
    /// of all, and what only one box shows from other public sources (collapse: 2.6 GB/s, a
    /// 16-GPU pair-switch box).
    pub fn neutral() -> Constants {
        let mut c = Constants::default();
        for p in PARAMETERS.iter().filter(|p| p.family == Some(0)) {
            let tail = p.name.split('.').next_back().unwrap_or("");
            let same: Vec<&Parameter> = PARAMETERS
                .iter()
                .filter(|q| q.family.is_some() && q.name.split('.').next_back() == Some(tail))
                .collect();
            // The last family has no NVLink: its entries repeat Hopper's.
            let measured = same
                .iter()
                .filter(|q| q.family != Some(3) || tail == "ll_base_us");
            let values: Vec<f64> = measured.map(|q| *(q.at)(&mut c)).collect();
            let mean = values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64;
            for q in same {
                *(q.at)(&mut c) = mean.exp();
            }
        }
        c.collapsed_kernel_gb_s = 2.6;
        c.collapsed_copy_gb_s = 2.6;
        c.switchtec_read_gb_s = 12.5;
        c.cross_socket = 0.8;
        c
    }

    /// The family's constants.
    pub fn family(&self, arch: Arch) -> &FamilyConstants {
        match arch.family() {
            Family::Older => &self.families[0],
            Family::Hopper => &self.families[1],
            Family::Blackwell => &self.families[2],
            Family::BlackwellRtx => &self.families[3],
        }
    }
}

/// Fitted on V100, A100 and their kin.
const OLDER: FamilyConstants = FamilyConstants {
    ll_base_us: 8.1,
    ll_hop_nvlink_us: 0.95,
    simple_base_us: 33.0,
    simple_hop_us: 1.7,
    ring_efficiency: 0.77,
    kernel_start_us: 1.9,
    nvlink_stage_us: 3.1,
    nvlink_load_gb_s: 212.0,
    nvlink_push_us: 2.2,
    nvlink_push_gb_s: 230.0,
    nvlink_fence_us: 11.0,
    nvls_efficiency: 0.85,
};
/// Fitted on Ada and Hopper.
const HOPPER: FamilyConstants = FamilyConstants {
    ll_base_us: 4.6,
    ll_hop_nvlink_us: 0.79,
    simple_base_us: 17.0,
    simple_hop_us: 1.8,
    ring_efficiency: 0.835,
    kernel_start_us: 1.9,
    nvlink_stage_us: 2.5,
    nvlink_load_gb_s: 270.0,
    nvlink_push_us: 0.5,
    nvlink_push_gb_s: 290.0,
    nvlink_fence_us: 5.2,
    nvls_efficiency: 0.99,
};
/// Fitted on data-centre Blackwell.
const BLACKWELL: FamilyConstants = FamilyConstants {
    ll_base_us: 7.1,
    ll_hop_nvlink_us: 1.27,
    simple_base_us: 28.0,
    simple_hop_us: 1.8,
    ring_efficiency: 0.72,
    kernel_start_us: 1.9,
    nvlink_stage_us: 4.8,
    nvlink_load_gb_s: 165.0,
    nvlink_push_us: 1.8,
    nvlink_push_gb_s: 500.0,
    nvlink_fence_us: 19.0,
    nvls_efficiency: 0.78,
};
/// Fitted on Blackwell with GDDR; its NVLink entries repeat Hopper's, as it has none.
const BLACKWELL_RTX: FamilyConstants = FamilyConstants {
    ll_base_us: 3.2,
    ll_hop_nvlink_us: 0.79,
    simple_base_us: 17.0,
    simple_hop_us: 1.8,
    ring_efficiency: 0.835,
    kernel_start_us: 1.9,
    nvlink_stage_us: 2.5,
    nvlink_load_gb_s: 270.0,
    nvlink_push_us: 0.5,
    nvlink_push_gb_s: 290.0,
    nvlink_fence_us: 5.2,
    nvls_efficiency: 0.99,
};

impl Default for Constants {
    /// Fitted on all rows of the public data that `score` reads (see docs/pcie-sim.md).
    fn default() -> Self {
        Constants {
            families: [OLDER, HOPPER, BLACKWELL, BLACKWELL_RTX],
            ll_hop_above_flag_us: 0.75,
            ll_pass_flags: 1.1,
            ll_spread: 0.2,
            simple_pcie_base_us: 8.4,
            simple_pcie_hop_us: 3.5,
            simple_channel_gb_s: 12.3,
            simple_overhead: 1.13,
            host_hop_us: 0.42,
            loaded_read_us: 3.2,
            incast_exponent: 0.22,
            cross_socket: 0.77,
            both_ways: 0.95,
            through_switch: 0.955,
            store_issue: 0.86,
            load_issue: 0.80,
            nvlink_efficiency: 0.80,
            nvlink_peer_us: 0.07,
            nvlink_push_peer_us: 0.15,
            nvls_start_us: 45.0,
            nvls_slow_start_us: 82.0,
            collapsed_kernel_gb_s: 2.1,
            collapsed_copy_gb_s: 2.7,
            staged_gb_s: 1.4,
            switchtec_read_gb_s: 14.0,
        }
    }
}
