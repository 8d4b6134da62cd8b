//! Elements in a batch: a sequence that Python sees as one of its own elements, made when somebody
//! looks at them.
//!
//! Reference: `list[Element]`. Whatever takes a sequence of elements takes a `Batch` as well; what
//! is on the hot path asks it for what it needs of all elements at once.

use std::collections::BTreeSet;

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PySlice, PyType};

use crate::decoded::{self, Columns as Packed};
use crate::element::{Kind, Rec, INFINITY};
use crate::hashing::{murmur2, payload_hash};
use crate::wire;

/// Elements and their payloads.
#[derive(Default, Clone)]
pub struct Elements {
    recs: Vec<Rec>,
    pub arena: Vec<u8>,
}

impl Elements {
    pub fn len(&self) -> usize {
        self.recs.len()
    }

    pub fn rec(&self, at: usize) -> Rec {
        self.recs[at]
    }

    pub fn payload(&self, rec: &Rec) -> &[u8] {
        &self.arena[rec.range()]
    }

    /// An element whose payload is in the arena already.
    pub fn add(&mut self, rec: Rec) {
        self.recs.push(rec);
    }

    pub fn push(&mut self, rec: &Rec, payload: &[u8]) {
        self.put(rec.kind, payload, rec.vs, rec.vold, rec.ve);
    }

    pub fn insert(&mut self, payload: &[u8], vs: i64, ve: i64) {
        self.put(Kind::Insert, payload, vs, INFINITY, ve);
    }

    pub fn adjust(&mut self, payload: &[u8], vs: i64, vold: i64, ve: i64) {
        self.put(Kind::Adjust, payload, vs, vold, ve);
    }

    fn put(&mut self, kind: Kind, payload: &[u8], vs: i64, vold: i64, ve: i64) {
        let made = Rec::of(kind, vs, vold, ve, self.arena.len(), payload.len());
        self.arena.extend_from_slice(payload);
        self.recs.push(made.expect("a batch has less than 4 GiB"));
    }

    pub fn extend(&mut self, other: &Elements, from: usize, to: usize) {
        if from == 0 && to == other.len() {
            let by = self.arena.len();
            self.arena.extend_from_slice(&other.arena);
            let moved = other.recs.iter().map(|rec| rec.moved(by));
            self.recs
                .extend(moved.map(|rec| rec.expect("a batch has less than 4 GiB")));
            return;
        }
        for rec in &other.recs[from..to] {
            if rec.kind == Kind::Stable {
                self.recs.push(*rec);
            } else {
                self.push(rec, other.payload(rec));
            }
        }
    }

    pub fn recs(&self) -> &[Rec] {
        &self.recs
    }

    /// The elements with a payload.
    pub fn events(&self) -> impl Iterator<Item = &Rec> {
        self.recs.iter().filter(|rec| rec.kind != Kind::Stable)
    }
}

/// The partition, of so many, that Kafka's producers take for a payload as a key.
fn route(payload: &[u8], partitions: u32) -> usize {
    ((murmur2(payload) & 0x7fff_ffff) % partitions) as usize
}

struct Classes {
    insert: Py<PyType>,
    adjust: Py<PyType>,
    stable: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let module = py.import("lmerge_service.elements")?;
        let class = |name: &str| -> PyResult<Py<PyType>> {
            Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(Classes {
            insert: class("Insert")?,
            adjust: class("Adjust")?,
            stable: class("Stable")?,
        })
    })
}

/// A sequence of elements; payloads are canonical bytes.
#[pyclass(sequence, module = "lmerge_engine")]
#[derive(Default)]
pub struct Batch {
    pub elements: Elements,
}

impl Batch {
    pub fn element<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyAny>> {
        let (rec, known) = (self.elements.rec(at), classes(py)?);
        let payload = || PyBytes::new(py, self.elements.payload(&rec));
        match rec.kind {
            Kind::Insert => known.insert.bind(py).call1((payload(), rec.vs, rec.ve)),
            Kind::Adjust => known
                .adjust
                .bind(py)
                .call1((payload(), rec.vs, rec.vold, rec.ve)),
            Kind::Stable => known.stable.bind(py).call1((rec.vs,)),
        }
    }

    fn take(&mut self, element: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = element.py();
        let (kind, known) = (element.get_type(), classes(py)?);
        let time = |name: &str| -> PyResult<i64> { element.getattr(name)?.extract() };
        if kind.is(&known.stable) {
            self.elements.add(Rec::stable(time("vc")?));
            return Ok(());
        }
        if !kind.is(&known.insert) && !kind.is(&known.adjust) {
            return Err(PyTypeError::new_err(format!("not an element: {element}")));
        }
        let payload = element.getattr("payload")?;
        let payload = payload
            .cast::<PyBytes>()
            .map_err(|_| PyTypeError::new_err("the engine takes payloads that are bytes"))?
            .as_bytes();
        if kind.is(&known.insert) {
            self.elements.insert(payload, time("vs")?, time("ve")?);
        } else {
            self.elements
                .adjust(payload, time("vs")?, time("vold")?, time("ve")?);
        }
        Ok(())
    }

    /// What `with` does with the elements, which may be a batch or any others.
    pub fn given<T>(
        elements: &Bound<'_, PyAny>,
        with: impl FnOnce(&Batch) -> PyResult<T>,
    ) -> PyResult<T> {
        if let Ok(batch) = elements.cast::<Batch>() {
            return with(&batch.borrow());
        }
        let mut batch = Batch::default();
        batch.take_all(elements)?;
        with(&batch)
    }

    fn take_all(&mut self, elements: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(other) = elements.cast::<Batch>() {
            if let Ok(other) = other.try_borrow() {
                self.elements
                    .extend(&other.elements, 0, other.elements.len());
                return Ok(());
            }
            let own = self.elements.clone(); // `batch += batch`
            self.elements.extend(&own, 0, own.len());
            return Ok(());
        }
        for element in elements.try_iter()? {
            self.take(&element?)?;
        }
        Ok(())
    }
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (elements = None))]
    fn new(elements: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let mut batch = Batch::default();
        if let Some(elements) = elements {
            batch.take_all(elements)?;
        }
        Ok(batch)
    }

    fn __len__(&self) -> usize {
        self.elements.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let size = self.elements.len();
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(isize::try_from(size)?)?;
            if range.step != 1 {
                return Err(PyValueError::new_err("a slice of a batch has no step"));
            }
            let (from, to) = (
                range.start as usize,
                (range.start + range.slicelength as isize) as usize,
            );
            let mut part = Batch::default();
            part.elements.extend(&self.elements, from, to);
            return Ok(Bound::new(py, part)?.into_any());
        }
        let at: isize = key.extract()?;
        let at = if at < 0 {
            at + isize::try_from(size)?
        } else {
            at
        };
        match usize::try_from(at) {
            Ok(at) if at < size => self.element(py, at),
            _ => Err(PyIndexError::new_err("there are fewer elements")),
        }
    }

    fn __iadd__(&mut self, elements: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take_all(elements)
    }

    fn append(&mut self, element: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take(element)
    }

    fn __repr__(&self) -> String {
        format!("Batch of {} elements", self.elements.len())
    }

    /// The records of the elements, each as a line.
    fn lines<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let elements = &self.elements;
        let mut out = Vec::with_capacity(elements.arena.len() + 72 * elements.len());
        for rec in &elements.recs {
            wire::encode(rec, elements.payload(rec), &mut out);
            out.push(b'\n');
        }
        PyBytes::new(py, &out)
    }

    /// The record of each element.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        let mut value = Vec::with_capacity(256);
        for rec in &self.elements.recs {
            value.clear();
            wire::encode(rec, self.elements.payload(rec), &mut value);
            values.append(PyBytes::new(py, &value))?;
        }
        Ok(values)
    }

    /// The payload of each element, `None` for a stable.
    fn payloads_or_none<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let of = |rec: &Rec| {
            (rec.kind != Kind::Stable).then(|| PyBytes::new(py, self.elements.payload(rec)))
        };
        PyList::new(py, self.elements.recs.iter().map(of))
    }

    /// See `decoded::packed`.
    #[pyo3(signature = (offsets, routes = None, buckets = 1))]
    fn packed<'py>(
        &self,
        py: Python<'py>,
        offsets: Vec<i64>,
        routes: Option<Vec<u32>>,
        buckets: usize,
    ) -> PyResult<Vec<Option<Packed<'py>>>> {
        decoded::packed(py, self, &offsets, routes, buckets)
    }

    /// The elements whose payloads' hashes have none of the bits of `mask`, stables among them;
    /// and the times, shifted right, at which the others begin or end.
    fn sampled<'py>(
        &self,
        py: Python<'py>,
        mask: u64,
        shift: u32,
    ) -> PyResult<(Bound<'py, PyList>, BTreeSet<i64>)> {
        let sample = PyList::empty(py);
        let mut bins = BTreeSet::new();
        let mut last = (None, None);
        for (at, rec) in self.elements.recs.iter().enumerate() {
            if rec.kind == Kind::Stable || payload_hash(self.elements.payload(rec)) & mask == 0 {
                sample.append(self.element(py, at)?)?;
                continue;
            }
            let now = (Some(rec.vs >> shift), Some(rec.ve >> shift));
            if now != last {
                bins.extend([rec.vs >> shift, rec.ve >> shift]);
                last = now;
            }
        }
        Ok((sample, bins))
    }

    /// The payloads of all elements that have one.
    fn payloads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let of = |rec| PyBytes::new(py, self.elements.payload(rec));
        let all: Vec<_> = self.elements.events().map(of).collect();
        PyList::new(py, all)
    }

    /// Of each element with a payload the partition that Kafka's producers take for it as a key.
    fn routes(&self, partitions: u32) -> Vec<u32> {
        let route = |rec| route(self.elements.payload(rec), partitions) as u32;
        self.elements.events().map(route).collect()
    }

    /// The elements for one partition, `routes` being that of each with a payload, and all stables;
    /// and the latest vs of the rest.
    fn owned(&self, routes: Vec<u32>, partition: u32) -> PyResult<(Batch, Option<i64>)> {
        let (mut kept, mut elsewhere) = (Batch::default(), None);
        let mut next = routes.into_iter();
        for rec in &self.elements.recs {
            if rec.kind == Kind::Stable {
                kept.elements.add(*rec);
                continue;
            }
            match next.next() {
                Some(route) if route == partition => {
                    kept.elements.push(rec, self.elements.payload(rec));
                }
                Some(_) => elsewhere = elsewhere.max(Some(rec.vs)),
                None => return Err(PyValueError::new_err("there are too few routes")),
            }
        }
        Ok((kept, elsewhere))
    }

    /// By partition the elements for it, and all stables.
    fn divided(&self, routes: Vec<u32>, partitions: usize) -> PyResult<Vec<Batch>> {
        let mut parts: Vec<Batch> = (0..partitions).map(|_| Batch::default()).collect();
        let mut next = routes.into_iter();
        for rec in &self.elements.recs {
            if rec.kind == Kind::Stable {
                parts.iter_mut().for_each(|part| part.elements.add(*rec));
                continue;
            }
            let part = next.next().and_then(|route| parts.get_mut(route as usize));
            let part = part.ok_or_else(|| PyValueError::new_err("the routes do not fit"))?;
            part.elements.push(rec, self.elements.payload(rec));
        }
        Ok(parts)
    }

    /// `divided` by `routes`.
    fn parted(&self, partitions: u32) -> Vec<Batch> {
        let mut parts: Vec<Batch> = (0..partitions).map(|_| Batch::default()).collect();
        for rec in &self.elements.recs {
            if rec.kind == Kind::Stable {
                parts.iter_mut().for_each(|part| part.elements.add(*rec));
                continue;
            }
            let payload = self.elements.payload(rec);
            parts[route(payload, partitions)]
                .elements
                .push(rec, payload);
        }
        parts
    }

    /// The latest vs of elements for other partitions; the least time where there are none.
    fn latest_elsewhere(&self, routes: Vec<u32>, partition: u32) -> i64 {
        let all = self.elements.events().zip(routes);
        let others = all.filter(|(_, route)| *route != partition);
        others.map(|(rec, _)| rec.vs).max().unwrap_or(i64::MIN)
    }
}
