//! Records for the output, in batches that need a producer's numbers only.
//!
//! Reference: `formats.wire.encode`.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyTuple};

use crate::batch::Batch;
use crate::element::Kind;
use crate::fetched::HEAD;
use crate::sealing::{batch, headers_as_bytes, sealed, width, Content, Stamp};
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

    fn bytes(&self, (at, size): (u32, Option<u32>)) -> Option<&[u8]> {
        size.map(|size| &self.bytes[at as usize..][..size as usize])
    }
}

/// A sequence of records, (key, value), which have the same headers.
#[pyclass(sequence, module = "lmerge_engine")]
pub struct Encoded {
    /// See `headers_as_bytes`.
    headers: Vec<u8>,
    /// A batch has fewer bytes, unless it is a single record.
    most: usize,
    parts: Vec<Part>,
}

fn small(size: usize) -> u32 {
    u32::try_from(size).expect("a record has less than 4 GiB")
}

impl Encoded {
    pub fn len(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |part| part.first + part.places.len())
    }

    fn put(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) {
        let headers = &self.headers;
        let content = Content {
            key,
            value,
            headers,
        };
        let full = |part: &Part| {
            let needed = part.bytes.len() + content.size(part.places.len());
            needed >= self.most && !part.places.is_empty() // as the client does
        };
        if self.parts.last().is_none_or(full) {
            self.parts.push(Part::at(self.len()));
        }
        let part = self.parts.last_mut().expect("there is one");
        let written = content.put(part.places.len(), &mut part.bytes);
        written.expect("memory takes what is written");
        let place = |part: Option<&[u8]>, end: usize| {
            let size = part.map(|part| small(part.len()));
            (small(end - part.map_or(0, <[u8]>::len)), size)
        };
        let value_at = place(value, part.bytes.len() - headers.len());
        let sized = value.map_or(1, |value| width(value.len()));
        let key_at = place(key, value_at.0 as usize - sized);
        part.places.push(Place {
            key: key_at,
            value: value_at,
        });
    }

    /// Key and value of a record, one that there is.
    pub fn pair(&self, at: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let part = &self.parts[self.parts.partition_point(|part| part.first <= at) - 1];
        let place = &part.places[at - part.first];
        (part.bytes(place.key), part.bytes(place.value))
    }

    fn record<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        let (key, value) = self.pair(at);
        let made = |part: &[u8]| PyBytes::new(py, part);
        (key.map(made), value.map(made)).into_pyobject(py)
    }
}

#[pymethods]
impl Encoded {
    #[new]
    fn new(headers: Vec<(String, Option<Vec<u8>>)>, most: usize) -> PyResult<Self> {
        Ok(Encoded {
            headers: headers_as_bytes(headers)?,
            most,
            parts: vec![],
        })
    }

    fn __len__(&self) -> usize {
        self.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (key.py(), isize::try_from(self.len())?);
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
        stamp: Stamp,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = batch(&self.parts, number)?;
        sealed(py, part.bytes.len(), part.places.len(), stamp, |out| {
            out.copy_from_slice(&part.bytes[HEAD..]);
            Ok(())
        })
    }
}
