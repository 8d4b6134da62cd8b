//! Several inputs whose elements are taken in turn, one at a time.
//!
//! Reference: `lmerge_service.offline.merge`, its interleavings. Whose turn it is depends on how
//! many elements were taken, and on which inputs have ended; so an input whose batch is used up
//! keeps its turn until it has been given another, or has ended.

use std::collections::VecDeque;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::batch::{Batch, Elements};
use crate::element::{Kind, NONE};
use crate::r3::{Breach, Counts, Index};

/// (inserts, adjusts, late, first).
type Taken = (u64, u64, u64, u64);

enum Order {
    RoundRobin,
    Sequential,
    /// Each turn is drawn, by a number from 0 to 1.
    Random(VecDeque<f64>),
}

struct Source {
    slot: usize,
    batch: Batch,
    at: usize,
    ended: bool,
    own_stable: i64,
    counts: Counts,
    /// Elements in all, stables as well.
    taken: u64,
}

/// Why taking has stopped.
pub enum Stop {
    /// The input's next element is a stable of this time, which is left to the caller.
    Stable(i64),
    /// The input's last element was a breach.
    Breached,
    /// The input has no elements left here: it needs a batch, or to be ended.
    Empty,
    /// Numbers are needed, to draw whose turn it is.
    Undrawn,
    /// All inputs have ended.
    Ended,
}

/// Inputs, numbered as they are given.
#[pyclass(module = "lmerge_engine")]
pub struct Turns {
    order: Order,
    sources: Vec<Source>,
    /// Those that have not ended, as far as their turns have shown it.
    live: Vec<usize>,
    /// Whose turn it is, as a place in `live`; `None`: that has to be found first.
    place: Option<usize>,
    /// Under round robin, whose turn is next.
    next: usize,
}

impl Turns {
    /// Has the index take elements until something is up; and at which input it is.
    pub fn take(
        &mut self,
        index: &mut Index,
        max_stable: i64,
        out: &mut Elements,
        breaches: &mut Vec<Breach>,
    ) -> (Stop, usize) {
        while !self.live.is_empty() {
            let Some(place) = self.place.or_else(|| self.turn()) else {
                return (Stop::Undrawn, 0);
            };
            let number = self.live[place];
            let source = &mut self.sources[number];
            let elements = &source.batch.elements;
            if source.at == elements.len() {
                if !source.ended {
                    self.place = Some(place);
                    return (Stop::Empty, number);
                }
                self.live.remove(place);
                self.place = None;
                continue;
            }
            self.place = None;
            self.next = place + 1;
            let at = source.at;
            source.at += 1;
            source.taken += 1;
            let rec = elements.rec(at);
            if rec.kind == Kind::Stable {
                return (Stop::Stable(rec.vs), number);
            }
            index.take_one(
                source.slot,
                elements,
                at,
                source.own_stable,
                max_stable,
                out,
                &mut source.counts,
                breaches,
            );
            if !breaches.is_empty() {
                return (Stop::Breached, number);
            }
        }
        (Stop::Ended, 0)
    }

    /// Whose turn it is, as a place in `live`, which is not empty.
    fn turn(&mut self) -> Option<usize> {
        let live = self.live.len();
        match &mut self.order {
            Order::RoundRobin if self.next < live => Some(self.next),
            Order::RoundRobin | Order::Sequential => Some(0),
            Order::Random(drawn) => drawn
                .pop_front()
                .map(|number| ((number * live as f64) as usize).min(live - 1)),
        }
    }

    fn source(&mut self, number: usize) -> PyResult<&mut Source> {
        let found = self.sources.get_mut(number);
        found.ok_or_else(|| PyIndexError::new_err("there are fewer inputs"))
    }
}

#[pymethods]
impl Turns {
    /// `slots` are those of the inputs.
    #[new]
    fn new(order: &str, slots: Vec<usize>) -> PyResult<Self> {
        let order = match order {
            "round-robin" => Order::RoundRobin,
            "sequential" => Order::Sequential,
            "random" => Order::Random(VecDeque::new()),
            other => return Err(PyValueError::new_err(format!("no order {other:?}"))),
        };
        let live = (0..slots.len()).collect();
        let source = |slot| Source {
            slot,
            batch: Batch::default(),
            at: 0,
            ended: false,
            own_stable: NONE,
            counts: Counts::default(),
            taken: 0,
        };
        Ok(Turns {
            order,
            sources: slots.into_iter().map(source).collect(),
            live,
            place: None,
            next: 0,
        })
    }

    /// Gives an input its next elements, which `batch` then has no more.
    fn give(&mut self, number: usize, batch: &mut Batch) -> PyResult<()> {
        let source = self.source(number)?;
        if source.at < source.batch.elements.len() {
            return Err(PyValueError::new_err("the input has elements left"));
        }
        source.batch = std::mem::take(batch);
        source.at = 0;
        Ok(())
    }

    /// An input has no more elements than it has been given.
    fn end(&mut self, number: usize) -> PyResult<()> {
        self.source(number)?.ended = true;
        Ok(())
    }

    /// Numbers from 0 to 1, by which turns are drawn.
    fn draw(&mut self, numbers: Vec<f64>) {
        if let Order::Random(drawn) = &mut self.order {
            drawn.extend(numbers);
        }
    }

    /// An input is stable up to `vc`.
    fn stable(&mut self, number: usize, vc: i64) -> PyResult<()> {
        self.source(number)?.own_stable = vc;
        Ok(())
    }

    /// The element that was taken last of an input.
    fn last<'py>(&mut self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let source = self.source(number)?;
        match source.at.checked_sub(1) {
            Some(at) => source.batch.element(py, at),
            None => Err(PyIndexError::new_err("nothing was taken of the batch")),
        }
    }

    /// How many elements of an input were taken.
    fn taken(&mut self, number: usize) -> PyResult<u64> {
        Ok(self.source(number)?.taken)
    }

    /// What the elements of an input have come to since the last call.
    fn counts(&mut self, number: usize) -> PyResult<Taken> {
        let counts = std::mem::take(&mut self.source(number)?.counts);
        Ok((counts.inserts, counts.adjusts, counts.late, counts.first))
    }
}
