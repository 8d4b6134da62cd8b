//! Records that were decoded elsewhere: their elements and offsets, and how many of them are packed.
//!
//! Reference: `lmerge_service.spark.merge.chunks`, whose columns these are, in msgpack as msgspec
//! writes it: offsets, kinds, payloads and times. Python sees a sequence of its `DecodedRecord`.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PySlice, PyTuple, PyType};

use crate::batch::Batch;
use crate::element::{Kind, Rec, INFINITY};

/// Offsets, kinds, payloads and times.
pub type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

static RECORD: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn record_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = RECORD.get_or_try_init(py, || -> PyResult<Py<PyType>> {
        let module = py.import("lmerge_service.merge.decoding")?;
        Ok(module
            .getattr("DecodedRecord")?
            .cast_into::<PyType>()?
            .unbind())
    })?;
    Ok(made.bind(py))
}

/// A sequence of records without key, value, headers and time.
#[pyclass(sequence, module = "lmerge_engine")]
#[derive(Default)]
pub struct Decoded {
    pub offsets: Vec<i64>,
    pub batch: Batch,
}

impl Decoded {
    fn part(&self, from: usize, to: usize) -> Decoded {
        let mut part = Decoded {
            offsets: self.offsets[from..to].to_vec(),
            batch: Batch::default(),
        };
        part.batch.elements.extend(&self.batch.elements, from, to);
        part
    }

    fn read(&mut self, offsets: &[u8], kinds: &[u8], payloads: &[u8], times: &[u8]) -> Option<()> {
        let (mut offsets, mut payloads, mut times) =
            (Reader(offsets), Reader(payloads), Reader(times));
        if offsets.array()? != kinds.len() {
            return None;
        }
        payloads.array()?;
        times.array()?;
        for kind in kinds {
            let elements = &mut self.batch.elements;
            match kind {
                b'i' => elements.insert(payloads.bytes()?, times.int()?, times.int()?),
                b'a' => {
                    elements.adjust(payloads.bytes()?, times.int()?, times.int()?, times.int()?);
                }
                b's' => elements.add(Rec::stable(times.int()?)),
                _ => return None,
            }
            self.offsets.push(offsets.int()?);
        }
        [offsets, payloads, times]
            .iter()
            .all(|rest| rest.0.is_empty())
            .then_some(())
    }
}

#[pymethods]
impl Decoded {
    /// What `packed` made, of one bucket.
    #[new]
    fn new(offsets: &[u8], kinds: &[u8], payloads: &[u8], times: &[u8]) -> PyResult<Self> {
        let mut found = Decoded::default();
        match found.read(offsets, kinds, payloads, times) {
            Some(()) => Ok(found),
            None => Err(PyValueError::new_err("columns that do not fit")),
        }
    }

    fn __len__(&self) -> usize {
        self.offsets.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (key.py(), isize::try_from(self.offsets.len())?);
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(size)?;
            if range.step != 1 {
                return Err(PyValueError::new_err("a slice of records has no step"));
            }
            let from = range.start as usize;
            return Ok(Bound::new(py, self.part(from, from + range.slicelength))?.into_any());
        }
        let at: isize = key.extract()?;
        let at = if at < 0 { at + size } else { at };
        if at < 0 || at >= size {
            return Err(PyIndexError::new_err("there are fewer records"));
        }
        let (at, nothing) = (at as usize, py.None());
        let element = self.batch.element(py, at)?;
        let (none, headers) = (nothing.bind(py), PyTuple::empty(py));
        record_class(py)?.call1((self.offsets[at], none, none, headers, -1, element))
    }

    fn __iadd__(&mut self, other: &Decoded) {
        self.offsets.extend_from_slice(&other.offsets);
        let size = other.batch.elements.len();
        self.batch.elements.extend(&other.batch.elements, 0, size);
    }

    /// Takes the first `size` records out.
    fn cut(&mut self, size: usize) -> Decoded {
        let all = self.offsets.len();
        let head = self.part(0, size.min(all));
        *self = self.part(size.min(all), all);
        head
    }
}

/// The elements of a batch, at these offsets, by the bucket of each: columns, or none where a
/// bucket has no element. `routes` are those of the elements with a payload, and stables are for
/// all buckets; without them everything is for the first.
pub fn packed<'py>(
    py: Python<'py>,
    batch: &Batch,
    offsets: &[i64],
    routes: Option<Vec<u32>>,
    buckets: usize,
) -> PyResult<Vec<Option<Columns<'py>>>> {
    let elements = &batch.elements;
    if elements.len() != offsets.len() {
        return Err(PyValueError::new_err("other offsets than elements"));
    }
    let mut parts: Vec<Part> = (0..buckets).map(|_| Part::default()).collect();
    let mut routes = routes.map(Vec::into_iter);
    for (rec, &offset) in elements.recs().iter().zip(offsets) {
        if rec.kind == Kind::Stable {
            parts.iter_mut().for_each(|part| part.put(offset, rec, b""));
            continue;
        }
        let to = match &mut routes {
            None => Some(0),
            Some(routes) => routes.next(),
        };
        let part = to.and_then(|to| parts.get_mut(to as usize));
        let part = part.ok_or_else(|| PyValueError::new_err("the routes do not fit"))?;
        part.put(offset, rec, elements.payload(rec));
    }
    Ok(parts.iter().map(|part| part.columns(py)).collect())
}

#[derive(Default)]
struct Part {
    offsets: Column,
    kinds: Vec<u8>,
    payloads: Column,
    times: Column,
}

#[derive(Default)]
struct Column {
    count: usize,
    bytes: Vec<u8>,
}

impl Column {
    fn int(&mut self, n: i64) {
        self.count += 1;
        put_int(&mut self.bytes, n);
    }

    fn done<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut whole = Vec::with_capacity(self.bytes.len() + 5);
        match self.count {
            n @ 0..=15 => whole.push(0x90 | n as u8),
            n @ 16..=0xffff => {
                whole.push(0xdc);
                whole.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                whole.push(0xdd);
                whole.extend_from_slice(&(n as u32).to_be_bytes());
            }
        }
        whole.extend_from_slice(&self.bytes);
        PyBytes::new(py, &whole)
    }
}

impl Part {
    fn put(&mut self, offset: i64, rec: &Rec, payload: &[u8]) {
        self.offsets.int(offset);
        if rec.kind == Kind::Stable {
            self.kinds.push(b's');
            self.times.int(rec.vs);
            return;
        }
        self.payloads.count += 1;
        put_bytes(&mut self.payloads.bytes, payload);
        self.times.int(rec.vs);
        if rec.kind == Kind::Adjust {
            self.kinds.push(b'a');
            self.times.int(rec.vold);
        } else {
            self.kinds.push(b'i');
        }
        self.times.int(rec.ve);
    }

    fn columns<'py>(&self, py: Python<'py>) -> Option<Columns<'py>> {
        if self.kinds.is_empty() {
            return None;
        }
        Some((
            self.offsets.done(py),
            PyBytes::new(py, &self.kinds),
            self.payloads.done(py),
            self.times.done(py),
        ))
    }
}

// --- msgpack ----------------------------------------------------------------------------------

fn put_int(out: &mut Vec<u8>, n: i64) {
    match n {
        -32..=0x7f => out.push(n as u8),
        0x80..=0xff => out.extend([0xcc, n as u8]),
        0x100..=0xffff => put(out, 0xcd, &(n as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => put(out, 0xce, &(n as u32).to_be_bytes()),
        0x1_0000_0000..=INFINITY => put(out, 0xcf, &(n as u64).to_be_bytes()),
        -0x80..=-33 => out.extend([0xd0, n as u8]),
        -0x8000..=-0x81 => put(out, 0xd1, &(n as i16).to_be_bytes()),
        -0x8000_0000..=-0x8001 => put(out, 0xd2, &(n as i32).to_be_bytes()),
        _ => put(out, 0xd3, &n.to_be_bytes()),
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        n @ 0..=0xff => out.extend([0xc4, n as u8]),
        n @ 0x100..=0xffff => put(out, 0xc5, &(n as u16).to_be_bytes()),
        n => put(out, 0xc6, &(n as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

/// `None` from each: it is none.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn unsigned(&mut self, size: usize) -> Option<u64> {
        let bytes = self.take(size)?;
        Some(bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// How many items the array has that begins here.
    fn array(&mut self) -> Option<usize> {
        let n = match self.unsigned(1)? {
            tag @ 0x90..=0x9f => tag & 0x0f,
            0xdc => self.unsigned(2)?,
            0xdd => self.unsigned(4)?,
            _ => return None,
        };
        usize::try_from(n).ok()
    }

    fn int(&mut self) -> Option<i64> {
        let tag = self.take(1)?[0];
        match tag {
            0..=0x7f | 0xe0..=0xff => Some(i64::from(tag as i8)),
            0xcc..=0xcf => i64::try_from(self.unsigned(1 << (tag - 0xcc))?).ok(),
            0xd0 => Some(i64::from(self.unsigned(1)? as i8)),
            0xd1 => Some(i64::from(self.unsigned(2)? as i16)),
            0xd2 => Some(i64::from(self.unsigned(4)? as i32)),
            0xd3 => Some(self.unsigned(8)? as i64),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = match self.unsigned(1)? {
            0xc4 => self.unsigned(1)?,
            0xc5 => self.unsigned(2)?,
            0xc6 => self.unsigned(4)?,
            _ => return None,
        };
        self.take(usize::try_from(size).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        let edges = [0, 7, 8, 15, 16, 31, 32, 62, 63];
        let around = edges
            .iter()
            .flat_map(|&bits| [-1, 0, 1].map(|by| (1i64 << bits).wrapping_add(by)));
        for n in around.flat_map(|n| [n, n.wrapping_neg()]) {
            let mut out = vec![];
            put_int(&mut out, n);
            let mut reader = Reader(&out);
            assert_eq!(reader.int(), Some(n));
            assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn bytes_come_back_and_a_cut_is_noticed() {
        for size in [0, 1, 255, 256, 65_535, 65_536] {
            let mut out = vec![];
            put_bytes(&mut out, &vec![7; size]);
            assert_eq!(Reader(&out).bytes(), Some(&vec![7; size][..]));
            out.pop();
            assert_eq!(Reader(&out).bytes(), None);
        }
    }
}
