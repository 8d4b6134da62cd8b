//! Hashes that both languages compute alike.

/// CRC-32 (IEEE), as `zlib.crc32` has it.
pub fn checksum(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |crc: u32, &byte: &u8| TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ (crc >> 8);
    !data.iter().fold(!0, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                0xedb8_8320 ^ (crc >> 1)
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
}

/// A hash of an event's payload and start: FNV-1a of 64 bits, over the payload and then vs.
pub fn key_hash(payload: &[u8], vs: i64) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = payload.iter().fold(0xcbf2_9ce4_8422_2325, step);
    vs.to_le_bytes().iter().fold(hash, step)
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

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }
}
