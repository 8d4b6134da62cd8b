//! Keys of a table's rows, where (payload, vs) is a key.
//!
//! Reference: `formats/table.py`.

use sha2::{Digest, Sha256};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends the key of an event's row; `logical` is there if the topology names key fields.
pub fn put_key(out: &mut Vec<u8>, logical: Option<&[u8]>, vs: i64, payload: &[u8]) {
    out.push(b'{');
    if let Some(logical) = logical {
        out.extend_from_slice(b"\"key\":");
        out.extend_from_slice(logical);
        out.push(b',');
    }
    out.extend_from_slice(b"\"vs\":");
    out.extend_from_slice(itoa::Buffer::new().format(vs).as_bytes());
    out.extend_from_slice(b",\"digest\":\"");
    let mut hexadecimal = [0; 32];
    for (pair, byte) in hexadecimal.chunks_exact_mut(2).zip(Sha256::digest(payload)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    out.extend_from_slice(&hexadecimal);
    out.extend_from_slice(b"\"}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(logical: Option<&[u8]>, vs: i64, payload: &[u8]) -> String {
        let mut out = Vec::new();
        put_key(&mut out, logical, vs, payload);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_key_has_vs_and_half_the_digest() {
        let digest = "037c9214eef74cc3887f3a4f085b4e17";
        assert_eq!(
            key(None, 6, b"{\"id\":1}"),
            format!("{{\"vs\":6,\"digest\":\"{digest}\"}}")
        );
        assert_eq!(
            key(Some(b"\"UA1\""), -6, b"{\"id\":1}"),
            format!("{{\"key\":\"UA1\",\"vs\":-6,\"digest\":\"{digest}\"}}")
        );
    }
}
