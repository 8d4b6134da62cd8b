//! Rows of a table as records, in batches that are made when they are sent: until then the rows
//! are where they were, and need no room of their own.
//!
//! Reference: as `encoded`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::fetched::HEAD;
use crate::rows::{Look, Rows};
use crate::sealing::{batch, headers_as_bytes, sealed, Content, Stamp};

/// The rows that are in a batch, and its bytes.
struct Part {
    first: usize,
    rows: usize,
    size: usize,
}

/// Records which have the same headers; their number is that of the rows.
#[pyclass(frozen, sequence, module = "lmerge_engine")]
pub struct EncodedRows {
    rows: Py<Rows>,
    /// See `headers_as_bytes`.
    headers: Vec<u8>,
    parts: Vec<Part>,
}

fn content<'a>(look: &'a Look<'_>, at: usize, headers: &'a [u8]) -> Content<'a> {
    let (key, value) = look.pair(at);
    Content {
        key: Some(key),
        value,
        headers,
    }
}

/// Batches of fewer bytes than `most`, unless it is a single record, as the client divides them.
fn parted(look: &Look<'_>, rows: usize, headers: &[u8], most: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    for at in 0..rows {
        let content = content(look, at, headers);
        if let Some(part) = parts.last_mut() {
            let size = part.size + content.size(part.rows);
            if size < most {
                (part.rows, part.size) = (part.rows + 1, size);
                continue;
            }
        }
        parts.push(Part {
            first: at,
            rows: 1,
            size: HEAD + content.size(0),
        });
    }
    parts
}

#[pymethods]
impl EncodedRows {
    #[new]
    fn new(
        rows: Bound<'_, Rows>,
        headers: Vec<(String, Option<Vec<u8>>)>,
        most: usize,
    ) -> PyResult<Self> {
        let headers = headers_as_bytes(headers)?;
        let its = rows.borrow();
        let parts = parted(&its.look(rows.py()), its.len(), &headers, most);
        Ok(EncodedRows {
            rows: rows.clone().unbind(),
            headers,
            parts,
        })
    }

    fn __len__(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.rows)
    }

    /// Of each batch how many records it has, and how many bytes.
    fn sizes(&self) -> Vec<(usize, usize)> {
        self.parts
            .iter()
            .map(|part| (part.rows, part.size))
            .collect()
    }

    /// A batch as it is sent, in a transaction.
    fn sealed<'py>(
        &self,
        py: Python<'py>,
        number: usize,
        stamp: Stamp,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = batch(&self.parts, number)?;
        let rows = self.rows.borrow(py);
        let look = rows.look(py);
        sealed(py, part.size, part.rows, stamp, |mut out| {
            for number in 0..part.rows {
                content(&look, part.first + number, &self.headers).put(number, &mut out)?;
            }
            Ok(())
        })
    }
}
