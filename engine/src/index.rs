//! The index of `r3` for Python, which keeps all else of the operator: inputs, stables, blame.
//!
//! Reference: `lmerge_service.core.native`, its only user.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::batch::Batch;
use crate::element::NONE;
use crate::r3::{Breach, BreachKind, Counts, Emitted, Index, Input, Standing};
use crate::turns::{Stop, Turns};

/// (slot, kind, place in the batch, the output's event, the ends that inputs give it by slot).
type Breached<'py> = (
    usize,
    &'static str,
    Option<usize>,
    Option<(Bound<'py, PyBytes>, i64, i64)>,
    Vec<(usize, i64)>,
);

/// An input as stables need it: slot, joined, stable, joining_at, gap_until.
type Attached = (usize, bool, i64, i64, i64);

/// Of a partition's stable, the output's, stables sent, stables emitted, and what was emitted before
/// them: inserts, adjusts, removals.
type Moved = (i64, i64, u64, u64, (u64, u64, u64));

/// vs, payloads, the output's ends, for each slot asked for its ends, and by place the slots that
/// are to blame, and those that only claim.
type Columns<'py> = (
    Vec<i64>,
    Bound<'py, PyList>,
    Vec<Option<i64>>,
    Vec<Vec<Option<i64>>>,
    Vec<(usize, Vec<usize>)>,
    Vec<(usize, Vec<usize>)>,
);

fn name(kind: BreachKind) -> &'static str {
    match kind {
        BreachKind::BrokeOwnStable => "broke_own_stable",
        BreachKind::Malformed => "malformed",
        BreachKind::DuplicateKey => "duplicate_key",
        BreachKind::UnknownEvent => "unknown_event",
        BreachKind::WrongVold => "wrong_vold",
        BreachKind::HalfFrozenMissing => "half_frozen_missing",
        BreachKind::FrozenEndDisagrees => "frozen_end_disagrees",
    }
}

fn breached(py: Python<'_>, breaches: Vec<Breach>) -> Vec<Breached<'_>> {
    let shown = |found: Breach| {
        let kept = found
            .kept
            .map(|(payload, vs, ve)| (PyBytes::new(py, &payload), vs, ve));
        (
            found.slot,
            name(found.kind),
            found.place,
            kept,
            found.versions,
        )
    };
    breaches.into_iter().map(shown).collect()
}

fn known(end: i64) -> Option<i64> {
    (end != NONE).then_some(end)
}

fn attached((slot, joined, stable, joining_at, gap_until): Attached) -> Input {
    Input {
        slot,
        joined,
        stable,
        joining_at,
        gap_until,
    }
}

/// The places of slots in an order.
fn places(slots: &[usize], order: &[usize]) -> Vec<usize> {
    (0..order.len())
        .filter(|&at| slots.contains(&order[at]))
        .collect()
}

#[pyclass(module = "lmerge_engine")]
pub struct NativeIndex {
    index: Index,
}

#[pymethods]
impl NativeIndex {
    #[new]
    fn new() -> Self {
        NativeIndex {
            index: Index::new(),
        }
    }

    fn __len__(&self) -> usize {
        self.index.len()
    }

    fn attach(&mut self, slot: usize) {
        self.index.attach(slot);
    }

    fn forget(&mut self, slot: usize) {
        self.index.forget(slot);
    }

    /// See `r3::Index::take_on`: of `inputs` the one at `sender` sends what is `given`; `stables` are
    /// its partition's, the least of its other partitions, the output's, and how far that stays
    /// behind. Returns where it has stopped, (inserts, adjusts, late, first), how stables have moved,
    /// and breaches.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn take_on<'py>(
        &mut self,
        py: Python<'py>,
        inputs: Vec<Attached>,
        sender: usize,
        stables: (i64, i64, i64, i64),
        given: &Batch,
        at: usize,
        out: &mut Batch,
    ) -> PyResult<(usize, (u64, u64, u64, u64), Moved, Vec<Breached<'py>>)> {
        if sender >= inputs.len() || at > given.elements.len() {
            return Err(PyValueError::new_err("there are fewer inputs, or elements"));
        }
        let (own, others, max_stable, lag) = stables;
        let mut standing = Standing {
            inputs: inputs.into_iter().map(attached).collect(),
            sender,
            own,
            others,
            max_stable,
            lag,
            sent: 0,
            stables: 0,
            emitted: Emitted::default(),
        };
        let (mut counts, mut found) = (Counts::default(), vec![]);
        let elements = &mut out.elements;
        let at = self.index.take_on(
            &mut standing,
            &given.elements,
            at,
            elements,
            &mut counts,
            &mut found,
        );
        let Counts {
            inserts,
            adjusts,
            late,
            first,
        } = counts;
        let done = standing.emitted;
        let moved = (
            standing.own,
            standing.max_stable,
            standing.sent,
            standing.stables,
            (done.inserts, done.adjusts, done.removals),
        );
        Ok((
            at,
            (inserts, adjusts, late, first),
            moved,
            breached(py, found),
        ))
    }

    /// Takes the elements of several inputs in their turns; see `turns`. Returns why it has stopped,
    /// at which input, the stable's time if that is why, and breaches.
    fn take_turns<'py>(
        &mut self,
        py: Python<'py>,
        turns: &mut Turns,
        max_stable: i64,
        out: &mut Batch,
    ) -> (&'static str, usize, i64, Vec<Breached<'py>>) {
        let mut found = vec![];
        let (why, number) = turns.take(&mut self.index, max_stable, &mut out.elements, &mut found);
        match why {
            Stop::Stable(vc) => ("stable", number, vc, vec![]),
            Stop::Breached => ("breached", number, 0, breached(py, found)),
            Stop::Empty => ("empty", number, 0, vec![]),
            Stop::Undrawn => ("undrawn", number, 0, vec![]),
            Stop::Ended => ("ended", number, 0, vec![]),
        }
    }

    /// See `r3::Index::freeze`. Returns (inserts, adjusts, removals) that were emitted, and breaches.
    fn freeze<'py>(
        &mut self,
        py: Python<'py>,
        leader: usize,
        t: i64,
        max_stable: i64,
        inputs: Vec<Attached>,
        out: &mut Batch,
    ) -> ((u64, u64, u64), Vec<Breached<'py>>) {
        let inputs: Vec<Input> = inputs.into_iter().map(attached).collect();
        let mut found = vec![];
        let done = self.index.freeze(
            leader,
            t,
            max_stable,
            &inputs,
            &mut out.elements,
            &mut found,
        );
        (
            (done.inserts, done.adjusts, done.removals),
            breached(py, found),
        )
    }

    fn load_insert(&mut self, payload: &[u8], vs: i64, ve: i64) -> bool {
        self.index.load_insert(payload, vs, ve)
    }

    fn load_adjust(&mut self, payload: &[u8], vs: i64, vold: i64, ve: i64) -> bool {
        self.index.load_adjust(payload, vs, vold, ve)
    }

    fn load_stable(&mut self, vc: i64) {
        self.index.load_stable(vc);
    }

    fn output_end(&self, payload: &[u8], vs: i64) -> Option<i64> {
        known(self.index.output_end(payload, vs))
    }

    /// The output's stable point, when a snapshot is loaded.
    fn begin(&mut self, stable: i64) {
        self.index.stable = stable;
    }

    /// All nodes, by vs and then in order of arrival; valid until the index changes.
    fn ids(&self) -> Vec<u32> {
        self.index.in_order()
    }

    /// The nodes with these ids as columns; `order` are the slots whose ends are wanted.
    fn columns<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        order: Vec<usize>,
    ) -> PyResult<Columns<'py>> {
        let nodes: Vec<_> = ids.iter().map(|&id| self.index.node(id)).collect();
        let payloads = PyList::new(py, nodes.iter().map(|node| PyBytes::new(py, &node.payload)))?;
        let marks = |all: Vec<&[usize]>| {
            let marked = all
                .iter()
                .enumerate()
                .filter(|(_, slots)| !slots.is_empty());
            marked
                .map(|(at, slots)| (at, places(slots, &order)))
                .collect()
        };
        Ok((
            nodes.iter().map(|node| node.vs).collect(),
            payloads,
            nodes.iter().map(|node| known(node.out)).collect(),
            order
                .iter()
                .map(|&slot| nodes.iter().map(|node| known(node.end(slot))).collect())
                .collect(),
            marks(nodes.iter().map(|node| node.blamed()).collect()),
            marks(nodes.iter().map(|node| node.claims()).collect()),
        ))
    }

    /// Makes the nodes of such columns, after `begin` and `attach`.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn load(
        &mut self,
        all_vs: Vec<i64>,
        payloads: Vec<Bound<'_, PyBytes>>,
        outs: Vec<Option<i64>>,
        ends: Vec<Vec<Option<i64>>>,
        blamed: Vec<(usize, Vec<usize>)>,
        claims: Vec<(usize, Vec<usize>)>,
        order: Vec<usize>,
    ) -> PyResult<()> {
        let damaged = |what: &str| PyValueError::new_err(what.to_owned());
        let size = all_vs.len();
        let same = [payloads.len(), outs.len()] == [size, size]
            && ends.len() == order.len()
            && ends.iter().all(|column| column.len() == size);
        if !same {
            return Err(damaged("columns of several lengths"));
        }
        let mut ids = vec![];
        for ((payload, vs), out) in payloads.iter().zip(&all_vs).zip(&outs) {
            let made = self
                .index
                .restore(payload.as_bytes(), *vs, out.unwrap_or(NONE));
            ids.push(made.ok_or_else(|| damaged("an event is there twice"))?);
        }
        for (&slot, column) in order.iter().zip(&ends) {
            for (&id, end) in ids.iter().zip(column) {
                self.index
                    .restore_input(id, slot, end.unwrap_or(NONE), false, false);
            }
        }
        for (marks, claim) in [(&blamed, false), (&claims, true)] {
            for (place, inputs) in marks {
                let id = *ids
                    .get(*place)
                    .ok_or_else(|| damaged("a mark beyond the events"))?;
                for input in inputs {
                    let slot = *order
                        .get(*input)
                        .ok_or_else(|| damaged("an unknown input"))?;
                    self.index.restore_input(id, slot, NONE, claim, !claim);
                }
            }
        }
        if self.index.restored(&ids) {
            return Ok(());
        }
        Err(damaged("a half-frozen event is not on the output"))
    }

    /// Nodes looked at for stables.
    #[getter]
    fn touched(&self) -> u64 {
        self.index.touched
    }

    /// The first invariant that does not hold, in words.
    fn fault(&self) -> Option<String> {
        self.index.fault()
    }
}
