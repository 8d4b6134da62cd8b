//! Rows of a table, (key, value), with no value where a row is removed, until they are written.
//!
//! Reference: `merge.table.rows.KeyedRows`, `formats.table.RowKeys`.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyTuple};

use crate::batch::Batch;
use crate::element::Kind;
use crate::encoded::Encoded;
use crate::table;
use crate::wire;

/// Where a row's value is.
enum Value {
    Removed,
    /// Behind its key in the arena, up to here.
    UpTo(usize),
    /// In this record of the output, an insert.
    Inserted(usize),
}

/// A row, whose key is in the arena.
struct Place {
    key: usize,
    key_end: usize,
    value: Value,
}

type Row<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

/// A sequence of rows, in the order in which they are to be written.
#[pyclass(sequence, module = "lmerge_engine")]
pub struct Rows {
    arena: Vec<u8>,
    places: Vec<Place>,
    /// What the output's transaction has of records, where there are rows that were made of them.
    output: Option<Py<Encoded>>,
    /// How many have no value.
    #[pyo3(get)]
    removals: usize,
}

/// Rows and the output's records, to be looked at.
pub struct Look<'a> {
    rows: &'a Rows,
    output: Option<PyRef<'a, Encoded>>,
}

impl Look<'_> {
    /// The key and the value of a row, one that there is.
    pub fn pair(&self, at: usize) -> (&[u8], Option<&[u8]>) {
        let place = &self.rows.places[at];
        let arena = &self.rows.arena;
        let value = match place.value {
            Value::Removed => None,
            Value::UpTo(end) => Some(&arena[place.key_end..end]),
            Value::Inserted(record) => {
                let output = self.output.as_ref().expect("the rows are of its records");
                output.pair(record).1
            }
        };
        (&arena[place.key..place.key_end], value)
    }
}

impl Rows {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn look<'py>(&'py self, py: Python<'py>) -> Look<'py> {
        let output = self.output.as_ref().map(|output| output.borrow(py));
        Look { rows: self, output }
    }

    fn row<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyTuple>> {
        let look = self.look(py);
        let (key, value) = look.pair(at);
        let value = value.map(|value| PyBytes::new(py, value));
        (PyBytes::new(py, key), value).into_pyobject(py)
    }

    fn add(&mut self, key: usize, key_end: usize, value: Value) {
        self.removals += usize::from(matches!(value, Value::Removed));
        self.places.push(Place {
            key,
            key_end,
            value,
        });
    }

    /// From now on rows may be of these records.
    fn follow(&mut self, output: &Bound<'_, Encoded>) -> PyResult<()> {
        match &self.output {
            None => self.output = Some(output.clone().unbind()),
            Some(known) if known.is(output) => {}
            Some(_) => return Err(PyValueError::new_err("the rows are of another output's")),
        }
        Ok(())
    }
}

#[pymethods]
impl Rows {
    #[new]
    fn new(rows: Vec<Row<'_>>) -> Self {
        let mut made = Rows {
            arena: vec![],
            places: vec![],
            output: None,
            removals: 0,
        };
        made.__iadd__(rows);
        made
    }

    fn __len__(&self) -> usize {
        self.len()
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
        let key_end = self.arena.len();
        let value = value.map_or(Value::Removed, |value| {
            self.arena.extend_from_slice(value.as_bytes());
            Value::UpTo(self.arena.len())
        });
        self.add(at, key_end, value);
    }

    fn __iadd__(&mut self, rows: Vec<Row<'_>>) {
        rows.into_iter().for_each(|row| self.append(row));
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.places.clear();
        self.output = None;
        self.removals = 0;
    }

    /// What elements change, where (payload, vs) is a key. The records of `output` from `first` on
    /// are theirs; `keyed`: row keys have the logical keys, which are those of the records.
    fn extend(
        &mut self,
        batch: &Batch,
        output: &Bound<'_, Encoded>,
        first: usize,
        keyed: bool,
    ) -> PyResult<()> {
        self.follow(output)?;
        let output = output.borrow();
        let recs = batch.elements.recs();
        if output.len() < first + recs.len() {
            return Err(PyIndexError::new_err("there are fewer records"));
        }
        for (record, rec) in (first..).zip(recs) {
            if rec.kind == Kind::Stable {
                continue;
            }
            let (payload, at) = (batch.elements.payload(rec), self.arena.len());
            let logical = if keyed { output.pair(record).0 } else { None };
            table::put_key(&mut self.arena, logical, rec.vs, payload);
            let key_end = self.arena.len();
            let value = if rec.kind == Kind::Insert {
                Value::Inserted(record)
            } else if rec.ve == rec.vs {
                Value::Removed
            } else {
                wire::encode(&rec.inserting(), payload, &mut self.arena);
                Value::UpTo(self.arena.len())
            };
            self.add(at, key_end, value);
        }
        Ok(())
    }
}
