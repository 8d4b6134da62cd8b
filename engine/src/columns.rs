//! Records in an Arrow array to elements in columns.
//!
//! Reference: `lmerge_service.spark.io.decoding`, which makes arrays of these bytes.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Elements;
use crate::element::{Kind, Rec, NONE};

/// What a record is for which the reference has to look.
const UNUSUAL: u8 = 3;

/// Of each record: what it is (0 an insert, 1 an adjust, 2 a stable, 3 unusual), where its payload
/// ends, and its times; and all payloads one behind the other. Numbers are as the machine has them.
pub type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

#[derive(Default)]
pub struct Builder {
    pub elements: Elements,
    kinds: Vec<u8>,
    ends: Vec<u8>,
    vs: Vec<u8>,
    vold: Vec<u8>,
    ve: Vec<u8>,
}

impl Builder {
    pub fn with_room(count: usize, bytes: usize) -> Builder {
        let mut made = Builder::default();
        made.elements.arena.reserve(bytes);
        made.kinds.reserve(count);
        made.ends.reserve(4 * (count + 1));
        made.ends.extend(0i32.to_ne_bytes());
        for times in [&mut made.vs, &mut made.vold, &mut made.ve] {
            times.reserve(8 * count);
        }
        made
    }

    /// The next record; its payload has been added to the arena.
    pub fn add(&mut self, found: Option<Rec>) {
        let rec = found.unwrap_or(Rec::stable(NONE));
        self.kinds.push(match found.map(|rec| rec.kind) {
            Some(Kind::Insert) => 0,
            Some(Kind::Adjust) => 1,
            Some(Kind::Stable) => 2,
            None => UNUSUAL,
        });
        // A payload is never longer than its record, and an Arrow array has less than 2 GiB.
        let end = i32::try_from(self.elements.arena.len()).unwrap_or(i32::MAX);
        self.ends.extend(end.to_ne_bytes());
        self.vs.extend(rec.vs.to_ne_bytes());
        self.vold.extend(rec.vold.to_ne_bytes());
        self.ve.extend(rec.ve.to_ne_bytes());
    }

    pub fn done<'py>(&self, py: Python<'py>) -> Columns<'py> {
        (
            PyBytes::new(py, &self.kinds),
            PyBytes::new(py, &self.ends),
            PyBytes::new(py, &self.elements.arena),
            PyBytes::new(py, &self.vs),
            PyBytes::new(py, &self.vold),
            PyBytes::new(py, &self.ve),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_has_a_place_in_each_column() {
        let mut made = Builder::with_room(2, 0);
        made.add(Some(Rec::stable(7)));
        made.add(None);
        assert_eq!(made.kinds, [2, UNUSUAL]);
        assert_eq!((made.ends.len(), made.vs.len()), (12, 16));
    }
}
