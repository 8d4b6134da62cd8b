//! Fetched bytes as records: batches of Kafka's format 2, which are checked, decompressed and
//! indexed here; a record becomes an object of Python's when somebody looks at it.
//!
//! Reference: aiokafka's `PartitionRecords` and `DefaultRecordBatch`, which define what is skipped
//! (markers, aborted transactions, what is before the position) and where one stands afterwards.
//! Whatever is unusual about a batch is a *fault*, and the client reads from that batch on: older
//! formats, a wrong sum, sizes that do not fit, text that is none. So nothing is refused here, and
//! errors are the client's. A batch is indexed as a whole before any of its records is given out.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};

/// Of a batch up to its records.
pub const HEAD: usize = 61;
/// Offset and length, which the length does not count.
pub const OVERHEAD: usize = 12;
pub const MAGIC: usize = 16;
pub const CRC: usize = 17;
/// From here on bytes count for the sum.
pub const ATTRIBUTES: usize = 21;
const CODEC: u16 = 7;
const LOG_APPEND_TIME: u16 = 1 << 3;
pub const TRANSACTIONAL: u16 = 1 << 4;
const CONTROL: u16 = 1 << 5;

/// Bytes of a record, in the bytes of its batch; `None`: null.
type Span = Option<(u32, u32)>;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub offset: i64,
    pub timestamp: i64,
    key: Span,
    value: Span,
    headers_at: u32,
    headers: u32,
    /// Which of the bytes it is in.
    source: u32,
}

// --- reading bytes ------------------------------------------------------------------------------

/// Bytes that are read from the front; `None`: there are fewer, or they are no such value.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A number in zigzag, as Kafka writes lengths and differences.
    fn varint(&mut self) -> Option<i64> {
        let (mut raw, mut shift) = (0u64, 0);
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            raw |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
            }
            shift += 7;
            if shift > 56 {
                return None; // the client's own limit is higher, and no writer gets there
            }
        }
    }

    fn span(&mut self) -> Option<Span> {
        match self.varint()? {
            -1 => Some(None),
            size => {
                let at = u32::try_from(self.at).ok()?;
                let found = self.take(usize::try_from(size).ok()?)?;
                Some(Some((at, u32::try_from(found.len()).ok()?)))
            }
        }
    }
}

/// What is in front of a batch's records.
#[derive(Clone, Copy)]
struct Head {
    base: i64,
    attributes: u16,
    last_delta: i32,
    first_timestamp: i64,
    max_timestamp: i64,
    producer: i64,
    count: i32,
}

impl Head {
    /// Of a whole batch; `None` is a fault.
    fn of(batch: &[u8], check: bool) -> Option<Head> {
        if batch.len() < HEAD || batch[MAGIC] != 2 {
            return None;
        }
        let mut reader = Reader {
            bytes: batch,
            at: CRC,
        };
        let sum = u32::from_be_bytes(reader.array()?);
        if check && sum != crc32c::crc32c(&batch[ATTRIBUTES..]) {
            return None;
        }
        let attributes = u16::from_be_bytes(reader.array()?);
        let last_delta = i32::from_be_bytes(reader.array()?);
        let first_timestamp = i64::from_be_bytes(reader.array()?);
        let max_timestamp = i64::from_be_bytes(reader.array()?);
        let producer = i64::from_be_bytes(reader.array()?);
        reader.take(6)?; // its epoch and sequence
        let count = i32::from_be_bytes(reader.array()?);
        Some(Head {
            base: i64::from_be_bytes(batch[..8].try_into().ok()?),
            attributes,
            last_delta,
            first_timestamp,
            max_timestamp,
            producer,
            count,
        })
    }

    /// The offset behind it, also where its last records were compacted away.
    fn next(&self) -> Option<i64> {
        self.base
            .checked_add(i64::from(self.last_delta))?
            .checked_add(1)
    }

    fn is(&self, flag: u16) -> bool {
        self.attributes & flag != 0
    }
}

/// Indexes the records of a batch, `body` being what is behind its head, decompressed, with `from`
/// bytes before it in `bytes`; `None` is a fault.
fn index(head: &Head, bytes: &[u8], from: usize, source: u32) -> Option<Vec<Entry>> {
    let mut reader = Reader { bytes, at: from };
    let count = usize::try_from(head.count).ok()?;
    // A record has 7 bytes at least: a count that is a lie costs no memory.
    let mut found = Vec::with_capacity(count.min((bytes.len() - from) / 7));
    for _ in 0..count {
        let size = usize::try_from(reader.varint()?).ok()?;
        let end = reader.at.checked_add(size)?;
        if reader.take(1)?[0] >= 0x80 {
            return None;
        }
        let later = reader.varint()?;
        let offset = head.base.checked_add(reader.varint()?)?;
        let (key, value) = (reader.span()?, reader.span()?);
        let headers = u32::try_from(reader.varint()?).ok()?;
        let headers_at = u32::try_from(reader.at).ok()?;
        for _ in 0..headers {
            let (at, size) = reader.span()??;
            std::str::from_utf8(&bytes[at as usize..][..size as usize]).ok()?;
            reader.span()?;
        }
        if reader.at != end {
            return None;
        }
        let timestamp = if head.is(LOG_APPEND_TIME) {
            head.max_timestamp
        } else {
            head.first_timestamp.checked_add(later)?
        };
        found.push(Entry {
            offset,
            timestamp,
            key,
            value,
            headers_at,
            headers,
            source,
        });
    }
    (reader.at == bytes.len()).then_some(found)
}

/// Whether a control batch marks a transaction as aborted; `None` is a fault.
fn aborts(batch: &[u8], entries: &[Entry]) -> Option<bool> {
    let (at, size) = entries.first()?.key?;
    let key = &batch[at as usize..][..size as usize];
    Some(key.get(..4)? == [0, 0, 0, 0])
}

// --- for Python ---------------------------------------------------------------------------------

/// Records that were fetched, in order; slices share what they are made of.
#[pyclass(frozen, sequence, module = "lmerge_engine")]
pub struct Records {
    entries: Arc<Vec<Entry>>,
    sources: Arc<Vec<Py<PyBytes>>>,
    from: usize,
    to: usize,
}

fn part(bytes: &[u8], span: Span) -> Option<&[u8]> {
    span.map(|(at, size)| &bytes[at as usize..][..size as usize])
}

impl Records {
    pub fn len(&self) -> usize {
        self.to - self.from
    }

    fn entry(&self, at: usize) -> &Entry {
        &self.entries[self.from + at]
    }

    fn bytes(&self, py: Python<'_>, entry: &Entry) -> &[u8] {
        self.sources[entry.source as usize].as_bytes(py)
    }

    pub fn value(&self, py: Python<'_>, at: usize) -> Option<&[u8]> {
        let entry = self.entry(at);
        part(self.bytes(py, entry), entry.value)
    }

    /// Whether a record has exactly these headers.
    pub fn has_headers(&self, py: Python<'_>, at: usize, wanted: &[(String, Vec<u8>)]) -> bool {
        let entry = self.entry(at);
        if entry.headers as usize != wanted.len() {
            return false;
        }
        let mut reader = Reader {
            bytes: self.bytes(py, entry),
            at: entry.headers_at as usize,
        };
        wanted.iter().all(|(name, value)| {
            let mut next = || reader.span().map(|span| part(reader.bytes, span));
            next() == Some(Some(name.as_bytes())) && next() == Some(Some(value))
        })
    }

    fn view(&self, from: usize, to: usize) -> Records {
        Records {
            entries: self.entries.clone(),
            sources: self.sources.clone(),
            from: self.from + from,
            to: self.from + to,
        }
    }
}

#[pymethods]
impl Records {
    fn __len__(&self) -> usize {
        self.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, size) = (key.py(), self.len());
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(isize::try_from(size)?)?;
            if range.step == 1 {
                let from = range.start as usize;
                let part = self.view(from, from + range.slicelength);
                return Ok(Bound::new(py, part)?.into_any());
            }
            let found = PyList::empty(py);
            for n in 0..range.slicelength as isize {
                let at = (range.start + n * range.step) as usize;
                found.append(Record::of(self, at))?;
            }
            return Ok(found.into_any());
        }
        let at: isize = key.extract()?;
        let at = if at < 0 {
            at + isize::try_from(size)?
        } else {
            at
        };
        match usize::try_from(at) {
            Ok(at) if at < size => Ok(Bound::new(py, Record::of(self, at))?.into_any()),
            _ => Err(PyIndexError::new_err("there are fewer records")),
        }
    }

    /// Bytes of all values.
    #[getter]
    fn value_bytes(&self) -> usize {
        let entries = &self.entries[self.from..self.to];
        entries
            .iter()
            .map(|each| each.value.map_or(0, |(_, size)| size as usize))
            .sum()
    }

    fn __repr__(&self) -> String {
        format!("Records of {}", self.len())
    }
}

/// One of them.
#[pyclass(frozen, module = "lmerge_engine")]
pub struct Record {
    records: Records,
}

impl Record {
    fn of(records: &Records, at: usize) -> Record {
        Record {
            records: records.view(at, at + 1),
        }
    }

    fn bytes_of<'py>(&self, py: Python<'py>, span: Span) -> Option<Bound<'py, PyBytes>> {
        let bytes = self.records.bytes(py, self.records.entry(0));
        part(bytes, span).map(|found| PyBytes::new(py, found))
    }
}

#[pymethods]
impl Record {
    #[getter]
    fn offset(&self) -> i64 {
        self.records.entry(0).offset
    }

    #[getter]
    fn timestamp(&self) -> i64 {
        self.records.entry(0).timestamp
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.bytes_of(py, self.records.entry(0).key)
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.bytes_of(py, self.records.entry(0).value)
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (entry, found) = (self.records.entry(0), PyList::empty(py));
        let bytes = self.records.bytes(py, entry);
        let mut reader = Reader {
            bytes,
            at: entry.headers_at as usize,
        };
        for _ in 0..entry.headers {
            let both = (reader.span(), reader.span());
            let (Some(Some(name)), Some(value)) = both else {
                return Err(PyValueError::new_err("headers that were read are gone"));
            };
            let name = String::from_utf8_lossy(part(bytes, Some(name)).unwrap_or_default());
            found.append((name, self.bytes_of(py, value)))?;
        }
        Ok(found)
    }

    fn __repr__(&self) -> String {
        format!("Record at offset {}", self.offset())
    }
}

/// A batch whose records are being given out.
struct Current {
    entries: Vec<Entry>,
    at: usize,
    next: i64,
    bytes: Py<PyBytes>,
}

/// What was fetched of one partition, for a consumer that reads committed records.
#[pyclass(module = "lmerge_engine")]
pub struct Fetched {
    data: Py<PyBytes>,
    at: usize,
    /// What is behind this is of another partition.
    end: usize,
    /// How many batches are before that.
    passed: usize,
    /// The offset to go on from.
    next: i64,
    /// Transactions that were aborted, by their first offset; the next one is last.
    aborted: Vec<(i64, i64)>,
    /// The producers of those that have begun.
    aborting: HashSet<i64>,
    check: bool,
    decompressed: Py<PyAny>,
    current: Option<Current>,
    fault: bool,
}

#[pymethods]
impl Fetched {
    /// `aborted` are producers and first offsets; `check`: sums are compared; `decompressed` takes
    /// the number of a codec and bytes, and returns bytes, or None for a fault. Of the `data` those
    /// from `begin` to `end` are the partition's.
    #[new]
    #[pyo3(signature = (data, offset, aborted, check, decompressed, begin = 0, end = None))]
    fn new(
        data: Bound<'_, PyBytes>,
        offset: i64,
        mut aborted: Vec<(i64, i64)>,
        check: bool,
        decompressed: Py<PyAny>,
        begin: usize,
        end: Option<usize>,
    ) -> Self {
        aborted.sort_by_key(|&(_, first)| std::cmp::Reverse(first));
        let size = data.as_bytes().len();
        Fetched {
            data: data.unbind(),
            at: begin,
            end: end.unwrap_or(size).min(size),
            passed: 0,
            next: offset,
            aborted,
            aborting: HashSet::new(),
            check,
            decompressed,
            current: None,
            fault: false,
        }
    }

    /// The offset to go on from.
    #[getter]
    fn next_offset(&self) -> i64 {
        self.next
    }

    /// Behind how many batches the client has to read on: the next one is unusual.
    #[getter]
    fn fault(&self) -> Option<usize> {
        self.fault.then_some(self.passed)
    }

    /// Producers whose transactions are being aborted, and transactions that will be.
    fn aborts(&self) -> (Vec<i64>, Vec<(i64, i64)>) {
        let mut coming = self.aborted.clone();
        coming.reverse();
        (self.aborting.iter().copied().collect(), coming)
    }

    /// The next records, `most` of them or all; fewer only where there are no more, or a fault.
    #[pyo3(signature = (most = None))]
    fn take(&mut self, py: Python<'_>, most: Option<usize>) -> PyResult<Records> {
        let most = most.unwrap_or(usize::MAX);
        let (mut entries, mut sources): (Vec<Entry>, Vec<Py<PyBytes>>) = (vec![], vec![]);
        while entries.len() < most {
            if let Some(current) = &mut self.current {
                let source = u32::try_from(sources.len())?;
                let before = entries.len();
                while let Some(entry) = current.entries.get(current.at) {
                    if entries.len() == most {
                        break;
                    }
                    current.at += 1;
                    if entry.offset >= self.next {
                        self.next = entry.offset.saturating_add(1);
                        entries.push(Entry { source, ..*entry });
                    }
                }
                if entries.len() > before {
                    sources.push(current.bytes.clone_ref(py));
                }
                if current.at < current.entries.len() || entries.len() == most {
                    break;
                }
                self.next = current.next;
                self.current = None;
            }
            if self.fault || !self.advance(py)? {
                break;
            }
        }
        let to = entries.len();
        Ok(Records {
            entries: Arc::new(entries),
            sources: Arc::new(sources),
            from: 0,
            to,
        })
    }
}

impl Fetched {
    /// Goes to the next batch; whether there is one, or it has passed one by.
    fn advance(&mut self, py: Python<'_>) -> PyResult<bool> {
        let data = self.data.clone_ref(py);
        let bytes = &data.as_bytes(py)[..self.end];
        let Some(batch) = whole(bytes, self.at) else {
            return Ok(false);
        };
        let (begins, end) = (self.at, self.at + batch.len());
        if self.read(py, begins, end)?.is_none() {
            self.fault = true;
            return Ok(false);
        }
        self.at = end;
        self.passed += 1;
        Ok(true)
    }

    /// Reads the batch that is there; `None` is a fault, and nothing has changed then.
    fn read(&mut self, py: Python<'_>, begins: usize, end: usize) -> PyResult<Option<()>> {
        let data = self.data.clone_ref(py);
        let bytes = &data.as_bytes(py)[..end];
        let batch = &bytes[begins..];
        let Some(head) = Head::of(batch, self.check) else {
            return Ok(None);
        };
        let Some(next) = head.next() else {
            return Ok(None);
        };
        let started: Vec<i64> = self
            .aborted
            .iter()
            .rev()
            .take_while(|&&(_, first)| first <= head.base)
            .map(|&(producer, _)| producer)
            .collect();
        let mut ends = false;
        if head.is(CONTROL) {
            let compressed = head.attributes & CODEC != 0;
            let found = index(&head, bytes, begins + HEAD, 0);
            let Some(aborts) = found.and_then(|entries| aborts(bytes, &entries)) else {
                return Ok(None);
            };
            if compressed {
                return Ok(None);
            }
            ends = aborts;
        }
        let of_aborted = self.aborting.contains(&head.producer) || started.contains(&head.producer);
        let is_aborted = of_aborted && !ends && head.is(TRANSACTIONAL);
        if !is_aborted && !head.is(CONTROL) {
            let Some(current) = self.entries(py, &head, next, begins, end)? else {
                return Ok(None);
            };
            self.current = Some(current);
        } else {
            self.next = next;
        }
        self.aborted.truncate(self.aborted.len() - started.len());
        self.aborting.extend(started);
        if ends {
            self.aborting.remove(&head.producer);
        }
        Ok(Some(()))
    }

    fn entries(
        &self,
        py: Python<'_>,
        head: &Head,
        next: i64,
        begins: usize,
        end: usize,
    ) -> PyResult<Option<Current>> {
        let codec = head.attributes & CODEC;
        let (bytes, from, to) = if codec == 0 {
            (self.data.clone_ref(py), begins + HEAD, end)
        } else {
            let body = PyBytes::new(py, &self.data.as_bytes(py)[begins + HEAD..end]);
            let found = self.decompressed.bind(py).call1((codec, body))?;
            let Ok(found) = found.cast_into::<PyBytes>() else {
                return Ok(None);
            };
            let size = found.as_bytes().len();
            (found.unbind(), 0, size)
        };
        let entries = index(head, &bytes.as_bytes(py)[..to], from, 0);
        Ok(entries.map(|entries| Current {
            entries,
            at: 0,
            next,
            bytes,
        }))
    }
}

/// The batch at a place, if all of it is there. One of a negative length is as long as its overhead,
/// which is a fault.
fn whole(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let length = i32::from_be_bytes(rest.get(8..OVERHEAD)?.try_into().ok()?);
    rest.get(..OVERHEAD + usize::try_from(length).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with a record of each kind.
    fn batch() -> Vec<u8> {
        let records = [
            &b"\x10\0\0\0\x01\x02v\0"[..],           // no key, a value, no headers
            b"\x14\0\x03\x02\x02k\x01\x02\x02h\x01", // a key, no value, a header that is null
            b"\x0e\0\0\x08\x01\x01\0",               // behind a gap
        ];
        let mut body = vec![];
        for record in records {
            let size = u8::try_from(record.len() - 1).unwrap() * 2;
            body.push(size);
            body.extend_from_slice(&record[1..]);
        }
        let mut made = vec![0; HEAD];
        made[..8].copy_from_slice(&100i64.to_be_bytes());
        made[MAGIC] = 2;
        made[ATTRIBUTES + 5] = 4; // the last offset's delta
        made[ATTRIBUTES + 2 + 4..][..8].copy_from_slice(&1_000i64.to_be_bytes());
        made[HEAD - 1] = 3;
        made.extend(body);
        sealed(made)
    }

    fn sealed(mut batch: Vec<u8>) -> Vec<u8> {
        let length = u32::try_from(batch.len() - OVERHEAD).unwrap();
        batch[8..OVERHEAD].copy_from_slice(&length.to_be_bytes());
        let sum = crc32c::crc32c(&batch[ATTRIBUTES..]);
        batch[CRC..ATTRIBUTES].copy_from_slice(&sum.to_be_bytes());
        batch
    }

    fn read(bytes: &[u8]) -> Option<Vec<Entry>> {
        let batch = whole(bytes, 0)?;
        let head = Head::of(batch, true)?;
        head.next()?;
        index(&head, batch, HEAD, 0)
    }

    #[test]
    fn records_are_found() {
        let (bytes, found) = (batch(), read(&batch()).unwrap());
        let offsets: Vec<_> = found.iter().map(|each| each.offset).collect();
        assert_eq!(offsets, [100, 101, 104]);
        assert_eq!(part(&bytes, found[0].value), Some(&b"v"[..]));
        assert_eq!(part(&bytes, found[1].key), Some(&b"k"[..]));
        assert_eq!((found[0].key, found[1].value), (None, None));
        assert_eq!((found[0].headers, found[1].headers), (0, 1));
        assert_eq!((found[0].timestamp, found[1].timestamp), (1_000, 998));
    }

    #[test]
    fn a_wrong_sum_and_whatever_is_missing_is_a_fault() {
        let whole = batch();
        for size in 0..whole.len() {
            assert_eq!(read(&whole[..size]), None);
            if size >= HEAD {
                assert_eq!(read(&sealed(whole[..size].to_vec())), None);
            }
        }
        for at in CRC..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert_eq!(read(&changed), None);
        }
    }

    /// Whatever the bytes are under a sum that is right: spans are within them.
    #[test]
    fn any_bytes_are_read_or_are_a_fault() {
        let (whole, mut state, mut taken) = (batch(), 1u64, 0);
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..200_000 {
            let mut changed = whole.clone();
            for _ in 0..=random(4) {
                let at = ATTRIBUTES + random(changed.len() - ATTRIBUTES);
                changed[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            if random(4) == 0 {
                changed.truncate(HEAD + random(changed.len() - HEAD));
            }
            let changed = sealed(changed);
            for each in read(&changed).unwrap_or_default() {
                part(&changed, each.key);
                part(&changed, each.value);
                taken += 1;
            }
            let noise: Vec<u8> = (0..random(100)).map(|_| random(256) as u8).collect();
            assert!(read(&noise).is_none());
        }
        assert!(taken > 10_000);
    }
}
