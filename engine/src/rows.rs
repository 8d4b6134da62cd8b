//! Rows of a table, (key, value), with no value where a row is removed, until they are written.
//!
//! Reference: `merge.table.rows.KeyedRows`, `formats.table.RowKeys`.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyTuple};

use crate::batch::Batch;
use crate::element::Kind;
use crate::table;
use crate::wire;

/// Where a row is in the arena.
struct Place {
    key: usize,
    value: usize,
    end: usize,
    removed: bool,
}

type Row<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

/// A sequence of rows, in the order in which they are to be written.
#[pyclass(sequence, module = "lmerge_engine")]
pub struct Rows {
    arena: Vec<u8>,
    places: Vec<Place>,
    /// How many have no value.
    #[pyo3(get)]
    removals: usize,
}

impl Rows {
    /// Keys and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.places.iter().map(|place| self.pair(place))
    }

    fn pair(&self, place: &Place) -> (&[u8], Option<&[u8]>) {
        let value = &self.arena[place.value..place.end];
        let key = &self.arena[place.key..place.value];
        (key, (!place.removed).then_some(value))
    }

    /// Ends the row whose key is in the arena from `key` to `value`, and its value from there on.
    fn end(&mut self, key: usize, value: usize, removed: bool) {
        self.removals += usize::from(removed);
        self.places.push(Place {
            key,
            value,
            end: self.arena.len(),
            removed,
        });
    }

    fn row<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        let (key, value) = self.pair(&self.places[at]);
        let value = value.map(|value| PyBytes::new(py, value));
        (PyBytes::new(py, key), value).into_pyobject(py)
    }
}

#[pymethods]
impl Rows {
    #[new]
    fn new(rows: Vec<Row<'_>>) -> Self {
        let mut made = Rows {
            arena: vec![],
            places: vec![],
            removals: 0,
        };
        made.__iadd__(rows);
        made
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (key.py(), isize::try_from(self.places.len())?);
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(size)?;
            let found = PyList::empty(py);
            for n in 0..range.slicelength as isize {
                found.append(self.row(py, (range.start + n * range.step) as usize)?)?;
            }
            return Ok(found.into_any());
        }
        let at: isize = key.extract()?;
        let at = if at < 0 { at + size } else { at };
        if at < 0 || at >= size {
            return Err(PyIndexError::new_err("there are fewer rows"));
        }
        Ok(self.row(py, at as usize)?.into_any())
    }

    fn append(&mut self, row: Row<'_>) {
        let (key, value) = row;
        let at = self.arena.len();
        self.arena.extend_from_slice(key.as_bytes());
        let behind = self.arena.len();
        if let Some(value) = &value {
            self.arena.extend_from_slice(value.as_bytes());
        }
        self.end(at, behind, value.is_none());
    }

    fn __iadd__(&mut self, rows: Vec<Row<'_>>) {
        rows.into_iter().for_each(|row| self.append(row));
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.places.clear();
        self.removals = 0;
    }

    /// What elements change, where (payload, vs) is a key; `keys` are the logical keys of those with
    /// a payload, where row keys have them.
    #[pyo3(signature = (batch, keys = None))]
    fn extend(&mut self, batch: &Batch, keys: Option<Vec<Bound<'_, PyBytes>>>) -> PyResult<()> {
        let keyed = keys.is_some();
        let mut keys = keys.unwrap_or_default().into_iter();
        for rec in batch.elements.recs() {
            if rec.kind == Kind::Stable {
                continue;
            }
            let logical = keys.next();
            if keyed && logical.is_none() {
                return Err(PyIndexError::new_err("there are fewer keys"));
            }
            let (payload, at) = (batch.elements.payload(rec), self.arena.len());
            let logical = logical.as_ref().map(|key| key.as_bytes());
            table::put_key(&mut self.arena, logical, rec.vs, payload);
            let behind = self.arena.len();
            let removed = rec.kind == Kind::Adjust && rec.ve == rec.vs;
            if rec.kind == Kind::Insert {
                wire::encode(rec, payload, &mut self.arena);
            } else if !removed {
                wire::encode(&rec.inserting(), payload, &mut self.arena);
            }
            self.end(at, behind, removed);
        }
        Ok(())
    }
}
