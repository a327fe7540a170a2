//! The protocol in Rust: slots, calls and marks, as the kernels use them.
//!
//! These constants are injected into the `.cu` files and these functions are what the host uses
//! to lay memory out and what the loom model in `tests/protocol.rs` runs. docs/allreduce.md
//! argues why the protocol is safe.

/// A word that no sender sends: "not arrived yet". All ones is a NaN in f32, f16 and bf16.
pub const MARK: u32 = u32::MAX;
/// What a sender sends in place of [`MARK`]: another NaN in all three types.
pub const MARK_SUBSTITUTE: u32 = 0x7fff_ffff;
/// Slots of an inbox that one reader clears as it reads. A power of two.
pub const PEER_SLOTS: u32 = 2;
/// Slots of a region that many read and its writer clears two calls later. A power of two.
pub const HOST_SLOTS: u32 = 4;
/// How many calls back a writer clears.
pub const HOST_CLEAR_AGE: u32 = 2;
/// Call numbers count modulo this; a multiple of both slot counts, so that wrapping skips no slot.
pub const CALL_MODULUS: u32 = 1 << 31;
/// Most blocks a launch may have: one call record each.
pub const MAX_BLOCKS: u32 = 256;
/// Most ranks of a communicator.
pub const MAX_RANKS: usize = 16;
/// Bytes behind each slot's data for one 16-byte header a rank.
pub const HEADER_BYTES: u64 = 16 * MAX_RANKS as u64;
/// Where the call records start in a rank's state memory; the poison word is at 0.
pub const RECORDS_AT: u64 = 256;
/// Bytes of one call record.
pub const RECORD_BYTES: u64 = 16;
/// Least bytes of a tile of the host-staged algorithm for large messages: one flag each.
pub const TILE_BYTES: u64 = 2 << 10;
/// Bytes between two tile flags: a cache line each.
pub const FLAG_BYTES: u64 = 64;

/// The call after `call`.
pub fn next_call(call: u32) -> u32 {
    call.wrapping_add(1) % CALL_MODULUS
}

/// The slot of an inbox that `call` uses.
pub fn peer_slot(call: u32) -> u32 {
    call % PEER_SLOTS
}

/// The slot of a shared host region that `call` uses.
pub fn host_slot(call: u32) -> u32 {
    call % HOST_SLOTS
}

/// The slot of its own host region that a writer clears during `call`.
pub fn host_slot_to_clear(call: u32) -> u32 {
    call.wrapping_sub(HOST_CLEAR_AGE) % HOST_SLOTS
}

/// The word that is sent for `word`: itself, unless it would read as "not arrived".
pub fn without_mark(word: u32) -> u32 {
    if word == MARK { MARK_SUBSTITUTE } else { word }
}

/// The position of `source`'s data in `owner`'s inbox, which holds none of its owner's.
pub fn place(source: usize, owner: usize) -> usize {
    source - usize::from(source > owner)
}

/// Bytes of one rank's inbox with `slot_bytes` of data a slot.
pub fn inbox_bytes(slot_bytes: u64) -> u64 {
    u64::from(PEER_SLOTS) * (slot_bytes + HEADER_BYTES)
}

/// Bytes of one rank's state memory.
pub const STATE_BYTES: u64 = RECORDS_AT + MAX_BLOCKS as u64 * RECORD_BYTES;

/// Bytes of one slot of a rank's host region: header, data with marks, tile flags, tiles.
pub fn host_slot_stride(slot_bytes: u64, bulk_bytes: u64) -> u64 {
    slot_bytes + HEADER_BYTES + bulk_bytes / TILE_BYTES * FLAG_BYTES + bulk_bytes
}

/// Bytes of one rank's host region.
pub fn host_region_bytes(slot_bytes: u64, bulk_bytes: u64) -> u64 {
    u64::from(HOST_SLOTS) * host_slot_stride(slot_bytes, bulk_bytes)
}

/// The definitions every kernel file is compiled with, for `ranks` ranks and type number `dtype`.
pub(crate) fn defines(ranks: usize, dtype: u32) -> Vec<(&'static str, String)> {
    vec![
        ("NRANKS", ranks.to_string()),
        ("DTYPE", dtype.to_string()),
        ("MARK", format!("{MARK}u")),
        ("MAX_BLOCKS", format!("{MAX_BLOCKS}u")),
        ("CALL_MODULUS", format!("{CALL_MODULUS}u")),
        ("PEER_SLOTS", format!("{PEER_SLOTS}u")),
        ("HOST_SLOTS", format!("{HOST_SLOTS}u")),
        ("HEADER_BYTES", format!("{HEADER_BYTES}ull")),
        ("RECORDS_AT", format!("{RECORDS_AT}ull")),
        ("TILE_BYTES", format!("{TILE_BYTES}ull")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_the_call_number_skips_and_repeats_no_slot() {
        for call in [0, 1, CALL_MODULUS - 2, CALL_MODULUS - 1] {
            let next = next_call(call);
            assert_eq!(peer_slot(next), (peer_slot(call) + 1) % PEER_SLOTS);
            assert_eq!(host_slot(next), (host_slot(call) + 1) % HOST_SLOTS);
        }
        assert_ne!(host_slot_to_clear(0), host_slot(0));
        assert_eq!(
            host_slot_to_clear(0),
            host_slot(CALL_MODULUS - HOST_CLEAR_AGE)
        );
    }

    #[test]
    fn the_mark_and_its_substitute_are_nan_in_every_type() {
        for word in [MARK, MARK_SUBSTITUTE] {
            assert!(f32::from_bits(word).is_nan());
            for half in [word as u16, (word >> 16) as u16] {
                assert!(
                    half & 0x7c00 == 0x7c00 && half & 0x03ff != 0,
                    "f16 {half:x}"
                );
                assert!(
                    half & 0x7f80 == 0x7f80 && half & 0x007f != 0,
                    "bf16 {half:x}"
                );
            }
        }
        assert_eq!(without_mark(MARK), MARK_SUBSTITUTE);
        assert_eq!(without_mark(0x8000_0000), 0x8000_0000, "minus zero is data");
    }

    #[test]
    fn places_in_an_inbox_are_dense() {
        for owner in 0..4 {
            let places: Vec<_> = (0..4)
                .filter(|s| *s != owner)
                .map(|s| place(s, owner))
                .collect();
            assert_eq!(places, [0, 1, 2]);
        }
    }
}
