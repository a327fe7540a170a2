//! PCIe arithmetic: raw rates by generation, and how many wire bytes a payload byte costs.
//!
//! Byte counts per transaction-layer packet, Gen 3 and later with 64-bit addresses: memory write
//! 24 B (framing and sequence 4, header 16, LCRC 4), read request 24 B, completion with data 20 B
//! (PCIe base specification; the same counts as the pcie-bench model). Link-layer packets (ACK,
//! flow control) take about 2 % in steady state.

/// Overhead of a memory write packet, bytes.
const WRITE_OVERHEAD: f64 = 24.0;
/// A read request, bytes.
const READ_REQUEST: f64 = 24.0;
/// Overhead of a completion with data, bytes.
const COMPLETION_OVERHEAD: f64 = 20.0;
/// Share of the wire left by link-layer packets (pcie-bench: 1 to 2 %).
const AFTER_DLLP: f64 = 0.98;

/// Who moves the data, and in which direction it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Copy engine, posted writes of 256 B.
    CopyWrite,
    /// Copy engine, reads answered in 256 B completions.
    CopyRead,
    /// Stores of a kernel: at most 128 B a packet.
    KernelStore,
    /// Loads of a kernel: 128 B requests and completions.
    KernelLoad,
    /// Stores of a kernel into host memory, whatever the peer access, and loads from there.
    ThroughHost,
}

impl Access {
    /// Payload of one packet, bytes.
    pub fn packet_payload(self) -> f64 {
        match self {
            Access::CopyWrite | Access::CopyRead => 256.0,
            Access::KernelStore | Access::KernelLoad | Access::ThroughHost => 128.0,
        }
    }

    /// Whether the data is asked for (non-posted) rather than sent.
    pub fn is_read(self) -> bool {
        matches!(self, Access::CopyRead | Access::KernelLoad)
    }

    /// Wire bytes per payload byte in the direction of the data.
    pub fn forward_weight(self) -> f64 {
        let payload = self.packet_payload();
        if self.is_read() {
            (payload + COMPLETION_OVERHEAD) / payload
        } else {
            (payload + WRITE_OVERHEAD) / payload
        }
    }

    /// Wire bytes per payload byte against the direction of the data: read requests.
    pub fn reverse_weight(self) -> f64 {
        if self.is_read() {
            READ_REQUEST / self.packet_payload()
        } else {
            0.0
        }
    }
}

/// Rate of a link per direction after coding and link-layer packets, GB/s (1e9) of wire bytes.
/// Generations 1 and 2 use 8b/10b, 3 to 5 use 128b/130b, 6 and 7 use 256 B flits of which 236 B
/// carry packets. An unknown generation counts as the nearest known one.
pub fn wire_gb_s(pcie_gen: u8, lanes: u8) -> f64 {
    let per_lane = match pcie_gen {
        0 | 1 => 2.5 * 0.8 / 8.0,
        2 => 5.0 * 0.8 / 8.0,
        3 => 8.0 * (128.0 / 130.0) / 8.0,
        4 => 16.0 * (128.0 / 130.0) / 8.0,
        5 => 32.0 * (128.0 / 130.0) / 8.0,
        6 => 64.0 * (236.0 / 256.0) / 8.0,
        _ => 128.0 * (236.0 / 256.0) / 8.0,
    };
    per_lane * f64::from(lanes) * AFTER_DLLP
}

/// What NCCL's topology model counts for the link, GB/s: width times lane speed over 80
/// (src/graph/topo: x16 is 12, 24, 48, 96 for generations 3 to 6).
pub fn nccl_gb_s(pcie_gen: u8, lanes: u8) -> f64 {
    let lane = match pcie_gen {
        0 | 1 => 15.0,
        2 => 30.0,
        3 => 60.0,
        4 => 120.0,
        5 => 240.0,
        _ => 480.0,
    };
    lane * f64::from(lanes) / 80.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copy-engine writes and all-to-all loads by generation: arithmetic checked against the
    /// published Gen5 copy rate of 56.3 to 56.6 GB/s (direct attach, RTX PRO 6000).
    #[test]
    fn gen5_copy_rate_is_the_measured_one() {
        let rate = wire_gb_s(5, 16) / Access::CopyWrite.forward_weight();
        assert!((56.0..57.0).contains(&rate), "{rate}");
    }

    #[test]
    fn all_to_all_loads_pay_for_requests_both_ways() {
        let load = Access::KernelLoad;
        let rate = wire_gb_s(4, 16) / (load.forward_weight() + load.reverse_weight());
        assert!((22.5..23.5).contains(&rate), "{rate}");
    }

    #[test]
    fn nccl_counts_48_for_gen5() {
        assert_eq!(nccl_gb_s(5, 16), 48.0);
        assert_eq!(nccl_gb_s(3, 16), 12.0);
    }
}
