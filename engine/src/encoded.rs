//! Records for the output, in batches of Kafka's format 2 that need a producer's numbers only.
//!
//! Reference: `formats.wire.encode`, and aiokafka's `DefaultRecordBatchBuilder`, whose bytes these
//! are. A record's time is its batch's, which is when that is sent.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyTuple};

use crate::batch::Batch;
use crate::element::Kind;
use crate::fetched::{ATTRIBUTES, CRC, HEAD, MAGIC, OVERHEAD, TRANSACTIONAL};
use crate::rows::Rows;
use crate::wire;

/// Where key and value of a record are in its batch; one has no size where it is null.
struct Place {
    key: (u32, Option<u32>),
    value: (u32, Option<u32>),
}

/// A batch; `bytes` begin with room for its head.
struct Part {
    /// The number of its first record.
    first: usize,
    bytes: Vec<u8>,
    places: Vec<Place>,
}

impl Part {
    fn at(first: usize) -> Part {
        Part {
            first,
            bytes: vec![0; HEAD],
            places: vec![],
        }
    }
}

/// A sequence of records, (key, value), which have the same headers.
#[pyclass(sequence, module = "lmerge_engine")]
pub struct Encoded {
    /// As each record has them, their number before them.
    headers: Vec<u8>,
    /// A batch has fewer bytes, unless it is a single record.
    most: usize,
    parts: Vec<Part>,
}

fn small(size: usize) -> u32 {
    u32::try_from(size).expect("a record has less than 4 GiB")
}

/// A size, as Kafka writes it: zigzag, seven bits a byte.
fn put_size(out: &mut Vec<u8>, size: usize) {
    let mut rest = (size as u64) << 1;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn width(size: usize) -> usize {
    let bits = 64 - ((size as u64) << 1 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

const NULL: u8 = 1;

impl Encoded {
    fn records(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |part| part.first + part.places.len())
    }

    fn put(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) {
        let of = |part: Option<&[u8]>| part.map_or(1, |part| width(part.len()) + part.len());
        let fixed = 2 + of(key) + of(value) + self.headers.len();
        let number = self.parts.last().map_or(0, |part| part.places.len());
        let mut size = fixed + width(number);
        let full = |part: &Part| {
            let needed = part.bytes.len() + width(size) + size;
            needed >= self.most && !part.places.is_empty() // as the client does
        };
        if self.parts.last().is_none_or(full) {
            self.parts.push(Part::at(self.records()));
            size = fixed + width(0);
        }
        let part = self.parts.last_mut().expect("there is one");
        let out = &mut part.bytes;
        put_size(out, size);
        out.extend_from_slice(&[0, 0]); // attributes, and how much later than the first
        put_size(out, part.places.len());
        let put_part = |out: &mut Vec<u8>, part: Option<&[u8]>| {
            match part {
                Some(part) => put_size(out, part.len()),
                None => out.push(NULL),
            }
            let at = small(out.len());
            out.extend_from_slice(part.unwrap_or_default());
            (at, part.map(|part| small(part.len())))
        };
        let (key, value) = (put_part(out, key), put_part(out, value));
        out.extend_from_slice(&self.headers);
        part.places.push(Place { key, value });
    }

    fn record<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        let part = &self.parts[self.parts.partition_point(|part| part.first <= at) - 1];
        let Place { key, value } = &part.places[at - part.first];
        let bytes = |&(at, size): &(u32, Option<u32>)| {
            size.map(|size| PyBytes::new(py, &part.bytes[at as usize..][..size as usize]))
        };
        (bytes(key), bytes(value)).into_pyobject(py)
    }
}

#[pymethods]
impl Encoded {
    #[new]
    fn new(headers: Vec<(String, Option<Vec<u8>>)>, most: usize) -> Self {
        let mut encoded = vec![];
        put_size(&mut encoded, headers.len());
        for (name, value) in headers {
            put_size(&mut encoded, name.len());
            encoded.extend_from_slice(name.as_bytes());
            match value {
                Some(value) => {
                    put_size(&mut encoded, value.len());
                    encoded.extend_from_slice(&value);
                }
                None => encoded.push(NULL),
            }
        }
        Encoded {
            headers: encoded,
            most,
            parts: vec![],
        }
    }

    fn __len__(&self) -> usize {
        self.records()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (key.py(), isize::try_from(self.records())?);
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(size)?;
            let found = PyList::empty(py);
            for n in 0..range.slicelength as isize {
                found.append(self.record(py, (range.start + n * range.step) as usize)?)?;
            }
            return Ok(found.into_any());
        }
        let at: isize = key.extract()?;
        let at = if at < 0 { at + size } else { at };
        if at < 0 || at >= size {
            return Err(PyIndexError::new_err("there are fewer records"));
        }
        Ok(self.record(py, at as usize)?.into_any())
    }

    fn append(&mut self, record: (Option<Bound<'_, PyBytes>>, Bound<'_, PyBytes>)) {
        let (key, value) = record;
        self.put(
            key.as_ref().map(|key| key.as_bytes()),
            Some(value.as_bytes()),
        );
    }

    fn __iadd__(&mut self, records: Vec<(Option<Bound<'_, PyBytes>>, Bound<'_, PyBytes>)>) {
        records.into_iter().for_each(|record| self.append(record));
    }

    /// Rows of a table.
    fn extend_rows(&mut self, rows: &Rows) {
        for (key, value) in rows.pairs() {
            self.put(Some(key), value);
        }
    }

    /// Elements; the key of one with a payload is that, or the next one of `keys`. Returns (bytes
    /// of the values, inserts, adjusts, removals, stables).
    #[pyo3(signature = (batch, keys = None))]
    fn extend(
        &mut self,
        batch: &Batch,
        keys: Option<Vec<Bound<'_, PyBytes>>>,
    ) -> PyResult<(usize, usize, usize, usize, usize)> {
        let (mut bytes, mut inserts, mut adjusts, mut removals, mut stables) = (0, 0, 0, 0, 0);
        let mut keys = keys.map(Vec::into_iter);
        let mut value = Vec::with_capacity(256);
        for rec in batch.elements.recs() {
            let payload = batch.elements.payload(rec);
            value.clear();
            wire::encode(rec, payload, &mut value);
            bytes += value.len();
            match rec.kind {
                Kind::Insert => inserts += 1,
                Kind::Adjust => {
                    adjusts += 1;
                    removals += usize::from(rec.ve == rec.vs);
                }
                Kind::Stable => {
                    stables += 1;
                    self.put(None, Some(&value));
                    continue;
                }
            }
            match &mut keys {
                None => self.put(Some(payload), Some(&value)),
                Some(keys) => {
                    let key = keys.next();
                    let key = key.ok_or_else(|| PyIndexError::new_err("there are fewer keys"))?;
                    self.put(Some(key.as_bytes()), Some(&value));
                }
            }
        }
        Ok((bytes, inserts, adjusts, removals, stables))
    }

    /// Of each batch how many records it has, and how many bytes.
    fn sizes(&self) -> Vec<(usize, usize)> {
        let sizes = |part: &Part| (part.places.len(), part.bytes.len());
        self.parts.iter().map(sizes).collect()
    }

    /// A batch as it is sent, in a transaction.
    fn sealed<'py>(
        &self,
        py: Python<'py>,
        number: usize,
        timestamp: i64,
        producer: i64,
        epoch: i16,
        sequence: i32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = self.parts.get(number);
        let part = part.ok_or_else(|| PyIndexError::new_err("there are fewer batches"))?;
        let (length, count) = (part.bytes.len(), i32::try_from(part.places.len())?);
        let inside = i32::try_from(length - OVERHEAD)?;
        PyBytes::new_with(py, length, |out| {
            out[HEAD..].copy_from_slice(&part.bytes[HEAD..]);
            let head: [&[u8]; 12] = [
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
            ];
            let mut at = 0;
            for field in head {
                out[at..at + field.len()].copy_from_slice(field);
                at += field.len();
            }
            out[at..HEAD].copy_from_slice(&count.to_be_bytes());
            debug_assert_eq!(out[MAGIC], 2);
            let sum = crc32c::crc32c(&out[ATTRIBUTES..]);
            out[CRC..ATTRIBUTES].copy_from_slice(&sum.to_be_bytes());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_as_wide_as_it_is_written() {
        for size in [0, 1, 63, 64, 8_191, 8_192, 1 << 20, (1 << 20) - 1, 1 << 27] {
            let mut out = vec![];
            put_size(&mut out, size);
            assert_eq!(width(size), out.len());
        }
    }
}
