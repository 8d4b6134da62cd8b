//! The hot path of the LMerge service: decoding, the index of case R3, encoding.
//!
//! Python defines what it does; each module names its reference. It has no threads, so that a
//! process which uses it may fork, and it never fails for what an input sends.

mod batch;
mod columns;
mod decoded;
mod element;
mod encoded;
mod encoded_rows;
mod fetched;
mod hashing;
mod index;
mod r3;
mod remembered;
mod rows;
mod sealing;
mod table;
mod turns;
mod wire;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use batch::Batch;
use columns::{Builder, Columns};
use decoded::Decoded;
use element::{Kind, Rec};
use encoded::Encoded;
use fetched::{Fetched, Record, Records};
use turns::Turns;
use wire::Rules;

/// How records are decoded: see `wire.Rules`.
#[pyclass(frozen, module = "lmerge_engine")]
struct Decoder {
    rules: Rules,
}

/// The nesting that the reference's own short cut takes; deeper payloads are its matter.
const SHALLOW: u32 = 6;

#[pymethods]
impl Decoder {
    #[new]
    fn new(nfc: bool, drop_nulls: bool, max_depth: u32, max_bytes: usize) -> Self {
        let depth = max_depth.min(SHALLOW);
        Decoder {
            rules: Rules {
                nfc,
                drop_nulls,
                depth,
                max_bytes,
            },
        }
    }

    /// Decodes records from `at` on into `batch`, up to a stable, which is not put into it, or to
    /// a record for the reference: one that is unusual, or has other headers than `headers`.
    /// Returns where it has stopped, and the stable's time where that is why.
    fn take(
        &self,
        records: &Bound<'_, PyAny>,
        at: usize,
        headers: &Bound<'_, PyAny>,
        batch: &mut Batch,
    ) -> PyResult<(usize, Option<i64>)> {
        if let Ok(records) = records.cast::<Records>() {
            return self.fetched(records.get(), at, headers, batch);
        }
        if let Ok(records) = records.cast::<Decoded>() {
            if headers.is_truthy()? {
                return Ok((at, None)); // none of these has any
            }
            return Ok(handed_over(&records.borrow(), at, batch));
        }
        self.listed(records.cast::<PyList>()?, at, headers, batch)
    }

    /// Decodes the lines of a text from `at` on into `batch`, stables as well, up to one for the
    /// reference, or that has no line feed. Returns where it has stopped.
    fn lines(&self, text: &[u8], mut at: usize, batch: &mut Batch) -> usize {
        while let Some(size) = memchr::memchr(b'\n', &text[at..]) {
            match self.decode(&text[at..at + size], batch) {
                Step::Took => {}
                Step::Stable(vc) => batch.elements.add(Rec::stable(vc)),
                Step::Unusual => break,
            }
            at += size + 1;
        }
        at
    }

    /// Decodes values from `at` on into `batch`, stables as well, up to one for the reference.
    /// Returns where it has stopped.
    fn values(
        &self,
        values: &Bound<'_, PyList>,
        mut at: usize,
        batch: &mut Batch,
    ) -> PyResult<usize> {
        while at < values.len() {
            let value = values.get_item(at)?;
            let Ok(value) = value.cast::<PyBytes>() else {
                break;
            };
            match self.decode(value.as_bytes(), batch) {
                Step::Took => {}
                Step::Stable(vc) => batch.elements.add(Rec::stable(vc)),
                Step::Unusual => break,
            }
            at += 1;
        }
        Ok(at)
    }

    /// Decodes the values of an Arrow array, whose `offsets` are given with the bytes from the first
    /// of them on. See `columns`.
    fn columns<'py>(&self, py: Python<'py>, offsets: &[u8], data: &[u8]) -> PyResult<Columns<'py>> {
        let offsets: Vec<i64> = offsets
            .chunks_exact(4)
            .map(|each| i64::from(i32::from_ne_bytes(each.try_into().expect("four bytes"))))
            .collect();
        let first = offsets.first().copied().unwrap_or(0);
        let mut made = Builder::with_room(offsets.len(), data.len());
        for pair in offsets.windows(2) {
            let [from, to] = [pair[0] - first, pair[1] - first].map(usize::try_from);
            let value = data.get(from?..to?);
            let value = value.ok_or_else(|| PyIndexError::new_err("an offset beyond the bytes"))?;
            let found = wire::decode(value, self.rules, &mut made.elements.arena);
            made.add(found);
        }
        Ok(made.done(py))
    }

    /// A batch to decode into.
    fn empty(&self) -> Batch {
        Batch::default()
    }
}

impl Decoder {
    fn fetched(
        &self,
        records: &Records,
        mut at: usize,
        headers: &Bound<'_, PyAny>,
        batch: &mut Batch,
    ) -> PyResult<(usize, Option<i64>)> {
        let py = headers.py();
        let Ok(headers) = headers.extract::<Vec<(String, Vec<u8>)>>() else {
            return Ok((at, None));
        };
        while at < records.len() && records.has_headers(py, at, &headers) {
            let Some(value) = records.value(py, at) else {
                break;
            };
            match self.decode(value, batch) {
                Step::Took => at += 1,
                Step::Stable(vc) => return Ok((at, Some(vc))),
                Step::Unusual => break,
            }
        }
        Ok((at, None))
    }

    fn listed(
        &self,
        records: &Bound<'_, PyList>,
        mut at: usize,
        headers: &Bound<'_, PyAny>,
        batch: &mut Batch,
    ) -> PyResult<(usize, Option<i64>)> {
        let py = records.py();
        let (value_of, headers_of) = (pyo3::intern!(py, "value"), pyo3::intern!(py, "headers"));
        let bare = !headers.is_truthy()?;
        while at < records.len() {
            let record = records.get_item(at)?;
            let its = record.getattr(headers_of)?;
            if if bare {
                its.is_truthy()?
            } else {
                !its.eq(headers)?
            } {
                break;
            }
            let value = record.getattr(value_of)?;
            let Ok(value) = value.cast::<PyBytes>() else {
                break;
            };
            match self.decode(value.as_bytes(), batch) {
                Step::Took => at += 1,
                Step::Stable(vc) => return Ok((at, Some(vc))),
                Step::Unusual => break,
            }
        }
        Ok((at, None))
    }

    fn decode(&self, value: &[u8], batch: &mut Batch) -> Step {
        match wire::decode(value, self.rules, &mut batch.elements.arena) {
            None => Step::Unusual,
            Some(rec) if rec.kind == Kind::Stable => Step::Stable(rec.vs),
            Some(rec) => {
                batch.elements.add(rec);
                Step::Took
            }
        }
    }
}

/// As `Decoder::take`, of records that were decoded.
fn handed_over(records: &Decoded, at: usize, batch: &mut Batch) -> (usize, Option<i64>) {
    let elements = &records.batch.elements;
    let rest = elements.recs().get(at..).unwrap_or_default();
    let stable = rest.iter().position(|rec| rec.kind == Kind::Stable);
    let to = stable.map_or(elements.len(), |behind| at + behind);
    batch.elements.extend(elements, at, to);
    (to, stable.map(|behind| rest[behind].vs))
}

/// What a record was.
enum Step {
    Took,
    Stable(i64),
    Unusual,
}

/// See `hashing::payload_hash`.
#[pyfunction]
fn payload_hash(payload: &[u8]) -> u64 {
    hashing::payload_hash(payload)
}

#[pymodule]
fn lmerge_engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Batch>()?;
    module.add_class::<Decoder>()?;
    module.add_class::<Decoded>()?;
    module.add_class::<Encoded>()?;
    module.add_class::<encoded_rows::EncodedRows>()?;
    module.add_class::<Fetched>()?;
    module.add_class::<Record>()?;
    module.add_class::<Records>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<Turns>()?;
    module.add_class::<index::NativeIndex>()?;
    module.add_class::<remembered::Remembered>()?;
    module.add_function(wrap_pyfunction!(payload_hash, module)?)
}
