//! Records and batches of records in Kafka's format 2.
//!
//! Reference: aiokafka's `DefaultRecordBatchBuilder`, whose bytes these are. A record's time is its
//! batch's, which is when that is sent.

use std::io::{self, Write};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::fetched::{ATTRIBUTES, CRC, HEAD, MAGIC, OVERHEAD, TRANSACTIONAL};

/// A size, as Kafka writes it: zigzag, seven bits a byte.
fn put_size(out: &mut impl Write, size: usize) -> io::Result<()> {
    let (mut bytes, mut at) = ([0; 10], 0);
    let mut rest = (size as u64) << 1;
    while rest >= 0x80 {
        bytes[at] = rest as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    bytes[at] = rest as u8;
    out.write_all(&bytes[..=at])
}

/// The bytes of a size.
pub fn width(size: usize) -> usize {
    let bits = 64 - ((size as u64) << 1 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

const NULL: u8 = 1;

fn put_part(out: &mut impl Write, part: Option<&[u8]>) -> io::Result<()> {
    let Some(part) = part else {
        return out.write_all(&[NULL]);
    };
    put_size(out, part.len())?;
    out.write_all(part)
}

/// Headers as each record has them, their number before them.
pub fn headers_as_bytes(headers: Vec<(String, Option<Vec<u8>>)>) -> io::Result<Vec<u8>> {
    let mut out = vec![];
    put_size(&mut out, headers.len())?;
    for (name, value) in headers {
        put_part(&mut out, Some(name.as_bytes()))?;
        put_part(&mut out, value.as_deref())?;
    }
    Ok(out)
}

/// A record that is yet to have a number in its batch.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// See `headers_as_bytes`.
    pub headers: &'a [u8],
}

impl Content<'_> {
    /// Its bytes, but those of its size.
    fn inside(&self, number: usize) -> usize {
        let of = |part: Option<&[u8]>| part.map_or(1, |part| width(part.len()) + part.len());
        2 + width(number) + of(self.key) + of(self.value) + self.headers.len()
    }

    /// Its bytes.
    pub fn size(&self, number: usize) -> usize {
        let inside = self.inside(number);
        width(inside) + inside
    }

    pub fn put(&self, number: usize, out: &mut impl Write) -> io::Result<()> {
        put_size(out, self.inside(number))?;
        out.write_all(&[0, 0])?; // attributes, and how much later than the first
        put_size(out, number)?;
        put_part(out, self.key)?;
        put_part(out, self.value)?;
        out.write_all(self.headers)
    }
}

/// When a batch is sent, and its producer's numbers: (time, producer, epoch, sequence).
pub type Stamp = (i64, i64, i16, i32);

/// The batch of a number, of those that there are.
pub fn batch<T>(parts: &[T], number: usize) -> PyResult<&T> {
    let part = parts.get(number);
    part.ok_or_else(|| PyIndexError::new_err("there are fewer batches"))
}

/// A batch of so many bytes and records as it is sent, in a transaction; `body` writes its records.
pub fn sealed<'py>(
    py: Python<'py>,
    size: usize,
    records: usize,
    (timestamp, producer, epoch, sequence): Stamp,
    body: impl FnOnce(&mut [u8]) -> PyResult<()>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (inside, count) = (i32::try_from(size - OVERHEAD)?, i32::try_from(records)?);
    PyBytes::new_with(py, size, |out| {
        body(&mut out[HEAD..])?;
        let head: [&[u8]; 13] = [
            &0i64.to_be_bytes(), // its offset, which the broker sets
            &inside.to_be_bytes(),
            &(-1i32).to_be_bytes(), // the leader's epoch
            &[2; 1],
            &[0; 4], // the sum
            &TRANSACTIONAL.to_be_bytes(),
            &(count - 1).to_be_bytes(),
            &timestamp.to_be_bytes(),
            &timestamp.to_be_bytes(),
            &producer.to_be_bytes(),
            &epoch.to_be_bytes(),
            &sequence.to_be_bytes(),
            &count.to_be_bytes(),
        ];
        let mut rest = &mut out[..HEAD];
        for field in head {
            rest.write_all(field)?;
        }
        debug_assert!(rest.is_empty() && out[MAGIC] == 2);
        let sum = crc32c::crc32c(&out[ATTRIBUTES..]);
        out[CRC..ATTRIBUTES].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_as_wide_as_it_is_written() {
        for size in [0, 1, 63, 64, 8_191, 8_192, 1 << 20, (1 << 20) - 1, 1 << 27] {
            let mut out = vec![];
            put_size(&mut out, size).unwrap();
            assert_eq!(width(size), out.len());
        }
    }

    #[test]
    fn a_record_is_as_large_as_it_says() {
        for (key, value) in [
            (None, None),
            (Some(&[b'k'; 70][..]), Some(&[b'v'; 9_000][..])),
        ] {
            let content = Content {
                key,
                value,
                headers: &[0],
            };
            for number in [0, 63, 64, 100_000] {
                let mut out = vec![];
                content.put(number, &mut out).unwrap();
                assert_eq!(content.size(number), out.len());
            }
        }
    }
}
