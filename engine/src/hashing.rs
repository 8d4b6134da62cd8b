//! Hashes of payloads and keys, and Kafka's.

/// A hash of a payload, the same in every process.
pub fn payload_hash(payload: &[u8]) -> u64 {
    mixed(payload, 0)
}

/// A hash of an event's payload and start.
pub fn key_hash(payload: &[u8], vs: i64) -> u64 {
    mixed(payload, vs as u64)
}

/// Words of eight bytes, each multiplied into what came before (as wyhash and its kin do).
fn mixed(data: &[u8], seed: u64) -> u64 {
    let mut words = data.chunks_exact(8);
    let mut hash = folded(seed ^ ODD, data.len() as u64 ^ OTHER);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("it has eight bytes"));
        hash = folded(hash ^ word, OTHER);
    }
    let rest = words.remainder().iter().rev();
    let last = rest.fold(0, |word, &byte| word << 8 | u64::from(byte));
    folded(hash ^ last, ODD)
}

const ODD: u64 = 0xa076_1d64_78bd_642f;
const OTHER: u64 = 0xe703_7ed1_a0b4_28db;

fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

/// Kafka's hash of a key, as `org.apache.kafka.common.utils.Utils.murmur2`.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let size = u32::try_from(data.len()).expect("a payload has less than 4 GiB");
    let mut hash = 0x9747_b28c ^ size;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let bytes = rest.iter().enumerate();
        let word = bytes.fold(0, |word, (at, &byte)| word | u32::from(byte) << (8 * at));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_that_differ_a_little_have_other_hashes() {
        let texts = (0..2_000).map(|n| format!("{{\"id\":{n}}}"));
        let keys = texts.flat_map(|text| (0..20).map(move |vs| (text.clone(), vs)));
        let hashes: HashSet<u64> = keys.map(|(p, vs)| key_hash(p.as_bytes(), vs)).collect();
        assert_eq!(hashes.len(), 40_000);
        let low: HashSet<u64> = hashes.iter().map(|hash| hash & 0xff).collect();
        assert_eq!(low.len(), 256);
    }
}
