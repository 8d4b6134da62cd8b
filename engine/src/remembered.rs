//! The keys of what was emitted lately, by which a late event is known or new.
//!
//! Reference: `lmerge_service.merge.findings.losses.Remembered`.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::batch::Batch;
use crate::element::Kind;
use crate::hashing::key_hash;

#[derive(Default)]
struct Generation {
    hashes: HashSet<u64>,
    /// The latest start in it.
    latest: Option<i64>,
}

/// Two generations of keys, of which the older is forgotten when the younger is full.
#[pyclass(module = "lmerge_engine")]
pub struct Remembered {
    young: Generation,
    old: Generation,
    most: usize,
}

#[pymethods]
impl Remembered {
    #[new]
    fn new(most: usize) -> Self {
        Remembered {
            young: Generation::default(),
            old: Generation::default(),
            most,
        }
    }

    fn __len__(&self) -> usize {
        self.young.hashes.len() + self.old.hashes.len()
    }

    /// One event of the output.
    fn add(&mut self, payload: &[u8], vs: i64) {
        self.young.hashes.insert(key_hash(payload, vs));
        self.young.latest = self.young.latest.max(Some(vs));
    }

    /// What the output has emitted. Returns the times of stables, and the latest start of what was
    /// forgotten now, if anything was.
    fn emitted(&mut self, elements: &Bound<'_, PyAny>) -> PyResult<(Vec<i64>, Option<i64>)> {
        Batch::given(elements, |batch| Ok(self.note(batch)))
    }

    /// The inserts with `from` <= vs < `to` that are not remembered, and what removes events.
    fn unknown<'py>(
        &self,
        elements: &Bound<'py, PyAny>,
        from: i64,
        to: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        Batch::given(elements, |batch| {
            self.new_in(elements.py(), batch, from, to)
        })
    }

    /// A hash of an event's key.
    #[staticmethod]
    fn key(payload: &Bound<'_, PyBytes>, vs: i64) -> u64 {
        key_hash(payload.as_bytes(), vs)
    }
}

impl Remembered {
    fn note(&mut self, batch: &Batch) -> (Vec<i64>, Option<i64>) {
        let mut stables = vec![];
        for rec in batch.elements.recs() {
            match rec.kind {
                Kind::Insert => self.add(batch.elements.payload(rec), rec.vs),
                Kind::Adjust if rec.ve == rec.vs => {
                    let key = key_hash(batch.elements.payload(rec), rec.vs);
                    self.young.hashes.remove(&key);
                    self.old.hashes.remove(&key);
                }
                Kind::Adjust => {}
                Kind::Stable => stables.push(rec.vs),
            }
        }
        if self.young.hashes.len() <= self.most {
            return (stables, None);
        }
        let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        (stables, forgotten.latest)
    }

    fn new_in<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        from: i64,
        to: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = PyList::empty(py);
        for (at, rec) in batch.elements.recs().iter().enumerate() {
            let wanted = match rec.kind {
                Kind::Insert => {
                    from <= rec.vs
                        && rec.vs < to
                        && !self.knows(batch.elements.payload(rec), rec.vs)
                }
                Kind::Adjust => rec.ve == rec.vs,
                Kind::Stable => false,
            };
            if wanted {
                found.append(batch.element(py, at)?)?;
            }
        }
        Ok(found)
    }

    fn knows(&self, payload: &[u8], vs: i64) -> bool {
        let key = key_hash(payload, vs);
        self.young.hashes.contains(&key) || self.old.hashes.contains(&key)
    }
}
