//! The hot path of the LMerge service: decoding, the index of case R3, encoding.
//!
//! Python defines what it does; each module names its reference. It has no threads, so that a
//! process which uses it may fork, and it never fails for what an input sends.

mod batch;
mod element;
mod encoded;
mod fetched;
mod hashing;
mod index;
mod r3;
mod remembered;
mod table;
mod wire;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use batch::Batch;
use element::Kind;
use encoded::Encoded;
use fetched::{Fetched, Record, Records};
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
        self.listed(records.cast::<PyList>()?, at, headers, batch)
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
    module.add_class::<Encoded>()?;
    module.add_class::<Fetched>()?;
    module.add_class::<Record>()?;
    module.add_class::<Records>()?;
    module.add_class::<index::NativeIndex>()?;
    module.add_class::<remembered::Remembered>()?;
    module.add_function(wrap_pyfunction!(payload_hash, module)?)
}
