//! The index of case R3, and what elements and stables do to it under the default policy.
//!
//! Reference: `lmerge_service.core.in2t`, `.index` and `.lmr3`, which explain the algorithm; names
//! here are theirs. What differs is how it is kept: nodes are in a slab, and an input is a number,
//! its *slot*; an event's number, in order of arrival, is also what shows that an entry of a queue
//! is stale, since no two nodes ever have the same.
//!
//! Invariants
//!     X1 to X5 of `in2t`.
//!     S1  A slab place that is free is in no table, and its number is 0, which no entry has.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::RandomState;
use hashbrown::{HashSet, HashTable};
use smallvec::SmallVec;

use crate::batch::Elements;
use crate::element::{Kind, Rec, INFINITY, NONE};

/// How many stale entries a queue may hold beyond as many as can count.
const SLACK: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreachKind {
    BrokeOwnStable,
    Malformed,
    DuplicateKey,
    UnknownEvent,
    WrongVold,
    HalfFrozenMissing,
    FrozenEndDisagrees,
}

/// What an input did wrong: about an element of the batch at hand, or about a stable.
pub struct Breach {
    pub slot: usize,
    pub kind: BreachKind,
    /// The element's place in the batch; about a stable it is `None`.
    pub place: Option<usize>,
    /// The output's event: payload, vs and ve.
    pub kept: Option<(Box<[u8]>, i64, i64)>,
    /// The ends that inputs give the event, by slot.
    pub versions: Vec<(usize, i64)>,
}

/// What elements have come to.
#[derive(Default, Clone, Copy)]
pub struct Counts {
    pub inserts: u64,
    pub adjusts: u64,
    pub late: u64,
    /// Inserts that were emitted.
    pub first: u64,
}

/// What a stable had the output emit before it.
#[derive(Default, Clone, Copy)]
pub struct Emitted {
    pub inserts: u64,
    pub adjusts: u64,
    pub removals: u64,
}

impl Emitted {
    fn add(&mut self, more: Emitted) {
        self.inserts += more.inserts;
        self.adjusts += more.adjusts;
        self.removals += more.removals;
    }
}

/// An attached input, as far as a stable needs it.
#[derive(Clone, Copy)]
pub struct Input {
    pub slot: usize,
    pub joined: bool,
    pub stable: i64,
    pub joining_at: i64,
    pub gap_until: i64,
}

/// What stables are decided by while one input sends, as `base.LMerge` has it.
pub struct Standing {
    /// All that are attached, in order.
    pub inputs: Vec<Input>,
    /// Which of them sends.
    pub sender: usize,
    /// The stable of its partition.
    pub own: i64,
    /// The least stable of its other partitions.
    pub others: i64,
    /// The output's stable point, and how far it stays behind.
    pub max_stable: i64,
    pub lag: i64,
    /// Stables that the input has sent.
    pub sent: u64,
    /// Stables of the output, and what they had it emit before them.
    pub stables: u64,
    pub emitted: Emitted,
}

/// What a stable comes to.
enum Outcome {
    /// It moves nothing but its own input.
    Noted(i64),
    /// It moves the input, and then the output to a time.
    Moves(i64, i64),
    /// It breaks a rule, or inputs join, or another one leads: Python decides.
    Unusual,
}

impl Standing {
    fn outcome(&self, vc: i64) -> Outcome {
        if vc < self.own {
            return Outcome::Unusual;
        }
        let stable = vc.min(self.others);
        let mut leader: Option<(usize, i64)> = None;
        for (at, each) in self.inputs.iter().enumerate() {
            let its = if at == self.sender {
                stable
            } else {
                each.stable
            };
            if each.joined && leader.is_none_or(|(_, highest)| its > highest) {
                leader = Some((at, its));
            }
        }
        let Some((leader, highest)) = leader else {
            return Outcome::Noted(stable);
        };
        let behind = if highest < INFINITY { self.lag } else { 0 };
        let t = highest.saturating_sub(behind);
        if t <= self.max_stable {
            return Outcome::Noted(stable);
        }
        let joins = |each: &Input| !each.joined && each.joining_at <= t;
        if leader != self.sender || self.inputs.iter().any(joins) {
            return Outcome::Unusual;
        }
        Outcome::Moves(stable, t)
    }

    fn note(&mut self, vc: i64, stable: i64) {
        self.sent += 1;
        self.own = vc;
        self.inputs[self.sender].stable = stable;
    }
}

pub struct Node {
    pub vs: i64,
    pub number: u64,
    pub out: i64,
    pub payload: Box<[u8]>,
    ends: SmallVec<[i64; 4]>,
    hash: u64,
    marks: Option<Box<Marks>>,
    half_frozen: bool,
}

/// What hardly any node has.
#[derive(Default)]
struct Marks {
    /// The inputs that revised the event without ever having inserted it.
    claims: Vec<usize>,
    /// The inputs already reported for contradicting it.
    blamed: Vec<usize>,
}

impl Node {
    pub fn claims(&self) -> &[usize] {
        self.marks.as_ref().map_or(&[], |marks| &marks.claims)
    }

    pub fn blamed(&self) -> &[usize] {
        self.marks.as_ref().map_or(&[], |marks| &marks.blamed)
    }

    fn claim(&mut self, slot: usize) {
        if !self.claims().contains(&slot) {
            self.marks.get_or_insert_default().claims.push(slot);
        }
    }

    /// An input inserts the event after all, or has it no more; whether it had only claimed it.
    fn withdraw_claim(&mut self, slot: usize) -> bool {
        let had = self.claims().contains(&slot);
        if let (true, Some(marks)) = (had, &mut self.marks) {
            marks.claims.retain(|&each| each != slot);
        }
        had
    }

    /// Whether that is new.
    fn blame(&mut self, slot: usize) -> bool {
        let new = !self.blamed().contains(&slot);
        if new {
            self.marks.get_or_insert_default().blamed.push(slot);
        }
        new
    }

    pub fn end(&self, slot: usize) -> i64 {
        self.ends.get(slot).copied().unwrap_or(NONE)
    }

    fn set_end(&mut self, slot: usize, end: i64) {
        if self.ends.len() <= slot {
            self.ends.resize(slot + 1, NONE);
        }
        self.ends[slot] = end;
    }

    fn has_ends(&self) -> bool {
        self.ends.iter().any(|&end| end != NONE)
    }

    /// The ends that inputs give, by slot.
    pub fn versions(&self) -> Vec<(usize, i64)> {
        let ends = self.ends.iter().enumerate();
        ends.filter(|(_, &end)| end != NONE)
            .map(|(slot, &end)| (slot, end))
            .collect()
    }

    fn kept(&self) -> Option<(Box<[u8]>, i64, i64)> {
        (self.out != NONE).then(|| (self.payload.clone(), self.vs, self.out))
    }
}

type Entry = Reverse<(i64, u64, u32)>;

/// Nodes by a time of theirs, the earliest first; it forgets lazily.
#[derive(Default)]
struct Queue(BinaryHeap<Entry>);

impl Queue {
    fn push(&mut self, time: i64, number: u64, id: u32) {
        self.0.push(Reverse((time, number, id)));
    }

    /// The next entry before t.
    fn pop_before(&mut self, t: i64) -> Option<(u64, u32)> {
        let &Reverse((time, number, id)) = self.0.peek()?;
        if time >= t {
            return None;
        }
        self.0.pop();
        Some((number, id))
    }

    fn is_long(&self, most: usize) -> bool {
        self.0.len() > 2 * most + SLACK
    }

    /// Drops entries that do not count, and repeated ones.
    fn sweep(&mut self, counts: impl Fn(i64, u64, u32) -> bool) {
        let mut kept: Vec<Entry> = std::mem::take(&mut self.0).into_vec();
        kept.retain(|&Reverse((time, number, id))| counts(time, number, id));
        kept.sort_unstable();
        kept.dedup();
        self.0 = kept.into();
    }
}

pub struct Index {
    nodes: Vec<Node>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    made: u64,
    frozen: usize,
    coming: Queue,
    by_out: Queue,
    by_end: Vec<Queue>,
    disputed: Queue,
    /// By slot the half-frozen nodes that the input lacks and was not blamed for; `None` where no
    /// input is attached.
    lacking: Vec<Option<HashSet<u32, RandomState>>>,
    pub stable: i64,
    /// Nodes looked at for stables, so that tests can count work.
    pub touched: u64,
}

impl Index {
    pub fn new() -> Index {
        Index {
            nodes: vec![],
            free: vec![],
            table: HashTable::new(),
            hasher: RandomState::new(),
            made: 0,
            frozen: 0,
            coming: Queue::default(),
            by_out: Queue::default(),
            by_end: vec![],
            disputed: Queue::default(),
            lacking: vec![],
            stable: NONE,
            touched: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    /// All nodes by vs, within one vs in order of arrival, half-frozen ones first.
    pub fn in_order(&self) -> Vec<u32> {
        let mut found: Vec<u32> = self.table.iter().copied().collect();
        self.sort(&mut found);
        found
    }

    fn sort(&self, ids: &mut [u32]) {
        ids.sort_unstable_by_key(|&id| {
            let node = self.node(id);
            (!node.half_frozen, node.vs, node.number)
        });
    }

    // --- nodes --------------------------------------------------------------------------------

    fn hash(&self, vs: i64, payload: &[u8]) -> u64 {
        self.hasher.hash_one((vs, payload))
    }

    fn find(&self, hash: u64, vs: i64, payload: &[u8]) -> Option<u32> {
        let is = |&id: &u32| {
            let node = &self.nodes[id as usize];
            node.hash == hash && node.vs == vs && *node.payload == *payload
        };
        self.table.find(hash, is).copied()
    }

    /// Makes a node that waits for its vs to be passed.
    fn add(&mut self, hash: u64, vs: i64, payload: &[u8]) -> u32 {
        let id = self.make(hash, vs, payload);
        self.coming.push(vs, self.made, id);
        if self.coming.is_long(self.table.len() - self.frozen) {
            let nodes = &self.nodes;
            self.coming.sweep(|_, number, id| {
                let node = &nodes[id as usize];
                node.number == number && !node.half_frozen
            });
        }
        id
    }

    fn make(&mut self, hash: u64, vs: i64, payload: &[u8]) -> u32 {
        self.made += 1;
        let node = Node {
            vs,
            number: self.made,
            out: NONE,
            payload: payload.into(),
            ends: SmallVec::new(),
            hash,
            marks: None,
            half_frozen: false,
        };
        let id = if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            id
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2**32 events are live")
        };
        let nodes = &self.nodes;
        self.table
            .insert_unique(hash, id, |&other| nodes[other as usize].hash);
        id
    }

    /// Forgets a node that is not half frozen.
    fn drop_node(&mut self, id: u32) {
        let hash = self.nodes[id as usize].hash;
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        let node = &mut self.nodes[id as usize];
        node.number = 0;
        node.payload = Box::default();
        node.ends = SmallVec::new();
        node.marks = None;
        node.half_frozen = false;
        self.free.push(id);
    }

    fn delete_if_unused(&mut self, id: u32) {
        let node = self.node(id);
        if node.out == NONE && !node.has_ends() {
            self.drop_node(id);
        }
    }

    fn clear(&mut self) {
        let attached: Vec<bool> = self.lacking.iter().map(Option::is_some).collect();
        let (stable, touched, hasher) = (self.stable, self.touched, self.hasher.clone());
        *self = Index::new();
        (self.stable, self.touched, self.hasher) = (stable, touched, hasher);
        for (slot, is) in attached.into_iter().enumerate() {
            if is {
                self.attach(slot);
            }
        }
    }

    // --- inputs -------------------------------------------------------------------------------

    pub fn attach(&mut self, slot: usize) {
        while self.lacking.len() <= slot {
            self.lacking.push(None);
            self.by_end.push(Queue::default());
        }
        let nodes = &self.nodes;
        let half_frozen = self
            .table
            .iter()
            .copied()
            .filter(|&id| nodes[id as usize].half_frozen);
        let mut lacks = HashSet::with_hasher(self.hasher.clone());
        lacks.extend(half_frozen);
        self.lacking[slot] = Some(lacks);
    }

    pub fn forget(&mut self, slot: usize) {
        self.lacking[slot] = None;
        self.by_end[slot] = Queue::default();
        let ids: Vec<u32> = self.table.iter().copied().collect();
        for id in ids {
            let node = &mut self.nodes[id as usize];
            if let Some(marks) = &mut node.marks {
                marks.blamed.retain(|&each| each != slot);
            }
            if node.end(slot) != NONE {
                node.set_end(slot, NONE);
                node.withdraw_claim(slot);
            }
            self.delete_if_unused(id);
        }
    }

    // --- ends ---------------------------------------------------------------------------------

    fn set_end(&mut self, id: u32, slot: usize, ve: i64) {
        let node = &mut self.nodes[id as usize];
        node.set_end(slot, ve);
        if !node.half_frozen {
            return;
        }
        let (out, number) = (node.out, node.number);
        if let Some(lacks) = &mut self.lacking[slot] {
            lacks.remove(&id);
        }
        if ve < out {
            self.by_end[slot].push(ve, number, id);
            self.dispute(id);
            if self.by_end[slot].is_long(self.frozen) {
                self.sweep();
            }
        }
    }

    fn drop_end(&mut self, id: u32, slot: usize) {
        let node = &mut self.nodes[id as usize];
        node.set_end(slot, NONE);
        node.withdraw_claim(slot);
        if node.half_frozen && !node.blamed().contains(&slot) {
            if let Some(lacks) = &mut self.lacking[slot] {
                lacks.insert(id);
            }
        }
    }

    /// Into the queues, by its ends of now (X2).
    fn file_ends(&mut self, id: u32) {
        let node = &self.nodes[id as usize];
        self.by_out.push(node.out, node.number, id);
        for (slot, &end) in node.ends.iter().enumerate() {
            if end != NONE && end < node.out {
                self.by_end[slot].push(end, node.number, id);
            }
        }
        self.dispute(id);
    }

    /// Watches all ends that a contradicted node may follow.
    fn dispute(&mut self, id: u32) {
        let node = &self.nodes[id as usize];
        if node.blamed().is_empty() || node.out == NONE {
            return;
        }
        for &end in &node.ends {
            if end != NONE && self.stable <= end && end < node.out {
                self.disputed.push(end, node.number, id);
            }
        }
    }

    fn sweep(&mut self) {
        let (nodes, most) = (&self.nodes, self.frozen);
        let half = |number: u64, id: u32| {
            let node = &nodes[id as usize];
            (node.number == number && node.half_frozen).then_some(node)
        };
        if self.by_out.is_long(most) {
            self.by_out
                .sweep(|end, number, id| half(number, id).is_some_and(|n| n.out == end));
        }
        for (slot, queue) in self.by_end.iter_mut().enumerate() {
            if queue.is_long(most) {
                queue.sweep(|end, number, id| half(number, id).is_some_and(|n| n.end(slot) == end));
            }
        }
        if self.disputed.is_long(most * (self.lacking.len() + 1)) {
            let any = |end, number, id| half(number, id).is_some_and(|n| n.ends.contains(&end));
            self.disputed.sweep(any);
        }
    }

    /// Notes that an input contradicts an event of the output; whether that is new.
    fn blame(&mut self, id: u32, slot: usize) -> bool {
        let node = &mut self.nodes[id as usize];
        if !node.blame(slot) {
            return false;
        }
        if node.half_frozen {
            if let Some(lacks) = &mut self.lacking[slot] {
                lacks.remove(&id);
            }
            self.dispute(id);
        }
        true
    }

    // --- elements -----------------------------------------------------------------------------

    /// Takes elements of one partition of an input from `at` on, up to a stable or the end; returns
    /// where it has stopped. `own_stable` is the partition's, `max_stable` the output's.
    #[allow(clippy::too_many_arguments)]
    pub fn take(
        &mut self,
        slot: usize,
        given: &Elements,
        mut at: usize,
        own_stable: i64,
        max_stable: i64,
        out: &mut Elements,
        counts: &mut Counts,
        breaches: &mut Vec<Breach>,
    ) -> usize {
        while at < given.len() && given.rec(at).kind != Kind::Stable {
            self.take_one(
                slot, given, at, own_stable, max_stable, out, counts, breaches,
            );
            at += 1;
        }
        at
    }

    /// Takes elements as `take`, and the stables among them, up to the end, to a stable that is
    /// Python's matter, or behind one that has shown a breach; returns where it has stopped.
    pub fn take_on(
        &mut self,
        standing: &mut Standing,
        given: &Elements,
        mut at: usize,
        out: &mut Elements,
        counts: &mut Counts,
        breaches: &mut Vec<Breach>,
    ) -> usize {
        let slot = standing.inputs[standing.sender].slot;
        loop {
            let (own, max_stable) = (standing.own, standing.max_stable);
            at = self.take(slot, given, at, own, max_stable, out, counts, breaches);
            if at == given.len() {
                return at;
            }
            let vc = given.rec(at).vs;
            let t = match standing.outcome(vc) {
                Outcome::Unusual => return at,
                Outcome::Noted(stable) => {
                    standing.note(vc, stable);
                    at += 1;
                    continue;
                }
                Outcome::Moves(stable, t) => {
                    standing.note(vc, stable);
                    t
                }
            };
            let known = breaches.len();
            let done = self.freeze(slot, t, max_stable, &standing.inputs, out, breaches);
            out.add(Rec::stable(t));
            standing.max_stable = t;
            standing.stables += 1;
            standing.emitted.add(done);
            at += 1;
            if breaches.len() > known {
                return at;
            }
        }
    }

    /// Takes the element at a place, which is no stable.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn take_one(
        &mut self,
        slot: usize,
        given: &Elements,
        at: usize,
        own_stable: i64,
        max_stable: i64,
        out: &mut Elements,
        counts: &mut Counts,
        breaches: &mut Vec<Breach>,
    ) {
        let rec = given.rec(at);
        let payload = given.payload(&rec);
        if rec.kind == Kind::Insert {
            counts.inserts += 1;
            if rec.vs < own_stable {
                breaches.push(bare(slot, BreachKind::BrokeOwnStable, at));
            } else if rec.ve <= rec.vs {
                breaches.push(bare(slot, BreachKind::Malformed, at));
            } else {
                self.insert(slot, at, &rec, payload, max_stable, out, counts, breaches);
            }
            return;
        }
        counts.adjusts += 1;
        if rec.vold.min(rec.ve) < own_stable {
            breaches.push(bare(slot, BreachKind::BrokeOwnStable, at));
        } else if rec.vold <= rec.vs || rec.ve < rec.vs {
            breaches.push(bare(slot, BreachKind::Malformed, at));
        } else {
            let kind = self.adjust(slot, &rec, payload, own_stable, max_stable, counts);
            self.note(slot, at, kind, breaches);
            self.revise(slot, &rec, payload, kind);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &mut self,
        slot: usize,
        at: usize,
        rec: &Rec,
        payload: &[u8],
        max_stable: i64,
        out: &mut Elements,
        counts: &mut Counts,
        breaches: &mut Vec<Breach>,
    ) {
        let hash = self.hash(rec.vs, payload);
        let id = match self.find(hash, rec.vs, payload) {
            Some(id) => id,
            None if rec.vs < max_stable => {
                counts.late += 1;
                return;
            }
            None => self.add(hash, rec.vs, payload),
        };
        let node = &mut self.nodes[id as usize];
        if node.end(slot) != NONE && !node.withdraw_claim(slot) {
            breaches.push(about(slot, BreachKind::DuplicateKey, at, node));
        }
        self.set_end(id, slot, rec.ve);
        let node = &mut self.nodes[id as usize];
        if node.out == NONE {
            node.out = rec.ve;
            counts.first += 1;
            out.push(rec, payload);
        }
    }

    /// What an adjust does, before it is done.
    fn adjust(
        &self,
        slot: usize,
        rec: &Rec,
        payload: &[u8],
        own_stable: i64,
        max_stable: i64,
        counts: &mut Counts,
    ) -> Revision {
        let hash = self.hash(rec.vs, payload);
        let Some(id) = self.find(hash, rec.vs, payload) else {
            if rec.vs < max_stable {
                counts.late += 1;
                return Revision::Nothing;
            }
            let broken = rec.vs < own_stable;
            return Revision::Unknown { hash, broken };
        };
        let node = self.node(id);
        let held = node.end(slot);
        let is_final = if held == NONE {
            rec.vs < own_stable && !node.half_frozen
        } else {
            held < own_stable
        };
        Revision::Of {
            id,
            held,
            is_final,
            wrong: held != rec.vold,
        }
    }

    fn note(&self, slot: usize, at: usize, revision: Revision, breaches: &mut Vec<Breach>) {
        match revision {
            Revision::Nothing => {}
            Revision::Unknown { broken, .. } => {
                let kind = if broken {
                    BreachKind::BrokeOwnStable
                } else {
                    BreachKind::UnknownEvent
                };
                breaches.push(bare(slot, kind, at));
            }
            Revision::Of {
                id,
                held,
                is_final,
                wrong,
            } => {
                let kind = match (is_final, held == NONE, wrong) {
                    (true, _, _) => BreachKind::BrokeOwnStable,
                    (_, true, _) => BreachKind::UnknownEvent,
                    (_, _, true) => BreachKind::WrongVold,
                    _ => return,
                };
                breaches.push(about(slot, kind, at, self.node(id)));
            }
        }
    }

    fn revise(&mut self, slot: usize, rec: &Rec, payload: &[u8], revision: Revision) {
        match revision {
            Revision::Unknown {
                hash,
                broken: false,
            } if rec.ve > rec.vs => {
                let id = self.add(hash, rec.vs, payload);
                let node = &mut self.nodes[id as usize];
                node.set_end(slot, rec.ve);
                node.claim(slot);
            }
            Revision::Of {
                id,
                held,
                is_final: false,
                ..
            } => {
                if rec.ve > rec.vs {
                    if held == NONE {
                        self.nodes[id as usize].claim(slot);
                    }
                    self.set_end(id, slot, rec.ve);
                } else {
                    if held != NONE {
                        self.drop_end(id, slot);
                    }
                    self.delete_if_unused(id);
                }
            }
            _ => {}
        }
    }

    // --- stables ------------------------------------------------------------------------------

    /// Makes the output compatible with what it is about to emit: stable(t), as the leader did.
    /// `inputs` are all that are attached, in order; the stable point so far is `max_stable`.
    pub fn freeze(
        &mut self,
        leader: usize,
        t: i64,
        max_stable: i64,
        inputs: &[Input],
        out: &mut Elements,
        breaches: &mut Vec<Breach>,
    ) -> Emitted {
        let mut stable = Stable {
            leader,
            t,
            max_stable,
            inputs,
            out,
            breaches,
            done: Emitted::default(),
        };
        if t == INFINITY {
            let all = self.in_order();
            for &id in &all {
                self.nodes[id as usize].half_frozen = false;
            }
            for id in self.disputed_by(leader, &all) {
                self.follow(id, &mut stable);
            }
            let done = stable.done;
            self.clear();
            return done;
        }
        for id in self.lacked_by(leader) {
            self.blame_once(id, leader, BreachKind::HalfFrozenMissing, &mut stable);
        }
        let mut due = self.due(Some(leader), t);
        let newly = self.newly_half_frozen(t);
        self.sort(&mut due);
        for id in self.disputed_by(leader, &due) {
            self.follow(id, &mut stable);
        }
        for id in self.disputed_by(leader, &newly) {
            self.follow(id, &mut stable);
        }
        let done = stable.done;
        self.file(&due);
        self.file(&newly);
        self.sweep();
        done
    }

    fn disputed_by(&self, leader: usize, ids: &[u32]) -> Vec<u32> {
        let differs = |&id: &u32| self.node(id).end(leader) != self.node(id).out;
        ids.iter().copied().filter(differs).collect()
    }

    fn lacked_by(&mut self, slot: usize) -> Vec<u32> {
        let mut found: Vec<u32> = self.lacking[slot]
            .iter()
            .flat_map(|lacks| lacks.iter().copied())
            .collect();
        self.sort(&mut found);
        self.touched += found.len() as u64;
        found
    }

    /// Takes the half-frozen nodes out that stable(t) concerns, in any order.
    fn due(&mut self, leader: Option<usize>, t: i64) -> Vec<u32> {
        let mut found = vec![];
        while let Some((number, id)) = self.by_out.pop_before(t) {
            let node = &self.nodes[id as usize];
            if node.number == number && node.half_frozen && node.out < t {
                self.take_out(id);
                found.push(id);
            }
        }
        if let Some(slot) = leader {
            while let Some((number, id)) = self.by_end[slot].pop_before(t) {
                let node = &self.nodes[id as usize];
                let end = node.end(slot);
                if node.number == number && node.half_frozen && end != NONE && end < t {
                    self.take_out(id);
                    found.push(id);
                }
            }
        }
        while let Some((number, id)) = self.disputed.pop_before(t) {
            let node = &self.nodes[id as usize];
            if node.number == number && node.half_frozen {
                self.take_out(id);
                found.push(id);
            }
        }
        self.stable = t;
        self.touched += found.len() as u64;
        found
    }

    fn take_out(&mut self, id: u32) {
        self.nodes[id as usize].half_frozen = false;
        self.frozen -= 1;
        let ends = &self.nodes[id as usize];
        for (slot, lacks) in self.lacking.iter_mut().enumerate() {
            if let (Some(lacks), NONE) = (lacks, ends.end(slot)) {
                lacks.remove(&id);
            }
        }
    }

    /// Takes out the nodes with vs < t that are not half frozen yet, in order.
    fn newly_half_frozen(&mut self, t: i64) -> Vec<u32> {
        let mut found = vec![];
        while let Some((number, id)) = self.coming.pop_before(t) {
            if self.nodes[id as usize].number == number {
                found.push(id);
            }
        }
        self.touched += found.len() as u64;
        found
    }

    /// Puts away nodes that were taken out: half frozen from now on, or gone.
    fn file(&mut self, ids: &[u32]) {
        for &id in ids {
            let node = &mut self.nodes[id as usize];
            if node.out == NONE || node.out < self.stable {
                self.drop_node(id);
                continue;
            }
            node.half_frozen = true;
            self.frozen += 1;
            let node = &self.nodes[id as usize];
            for (slot, lacks) in self.lacking.iter_mut().enumerate() {
                if let Some(lacks) = lacks {
                    if node.end(slot) == NONE && !node.blamed().contains(&slot) {
                        lacks.insert(id);
                    }
                }
            }
            self.file_ends(id);
        }
    }

    /// Makes the output's version of a node agree with the leader's, as far as the stable forces
    /// it: the table of `lmr3`.
    fn follow(&mut self, id: u32, stable: &mut Stable) {
        let (leader, t, point) = (stable.leader, stable.t, stable.max_stable);
        let node = &self.nodes[id as usize];
        let (held, vs, half_frozen) = (node.out, node.vs, node.vs < point);
        let mut end = node.end(leader);
        let mut having = (0..node.ends.len()).filter(|&slot| node.ends[slot] != NONE);
        let claimed_only = having.all(|slot| node.claims().contains(&slot));
        if half_frozen && t == INFINITY && end == NONE {
            self.blame_once(id, leader, BreachKind::HalfFrozenMissing, stable);
        }
        if held == NONE {
            if !claimed_only && end != NONE {
                stable.insert(&mut self.nodes[id as usize], end);
            }
            return;
        }
        if half_frozen && (end == NONE || end < point) {
            if end != NONE {
                self.blame_once(id, leader, BreachKind::FrozenEndDisagrees, stable);
            }
            end = self.second_end(id, stable);
        } else if end == NONE {
            stable.adjust(&mut self.nodes[id as usize], vs);
            return;
        }
        if end != NONE && end != held && (end < t || held < t) {
            stable.adjust(&mut self.nodes[id as usize], end);
        }
    }

    /// The end that the second opinion gives, or `NONE`.
    fn second_end(&self, id: u32, stable: &Stable) -> i64 {
        let node = self.node(id);
        let mut best: Option<(bool, i64, i64)> = None;
        for input in stable.inputs {
            let end = node.end(input.slot);
            let from = if input.joined {
                stable.max_stable
            } else {
                input.joining_at
            };
            if end == NONE || end < from {
                continue;
            }
            if best.is_none_or(|(joined, at, _)| (input.joined, input.stable) > (joined, at)) {
                best = Some((input.joined, input.stable, end));
            }
        }
        best.map_or(NONE, |(_, _, end)| end)
    }

    fn blame_once(&mut self, id: u32, slot: usize, kind: BreachKind, stable: &mut Stable) {
        let vs = self.node(id).vs;
        let gap = stable
            .inputs
            .iter()
            .find(|input| input.slot == slot)
            .map_or(NONE, |i| i.gap_until);
        let excused = vs < gap && kind == BreachKind::HalfFrozenMissing;
        if self.blame(id, slot) && !excused {
            let node = self.node(id);
            let (kept, versions) = (node.kept(), node.versions());
            stable.breaches.push(Breach {
                slot,
                kind,
                place: None,
                kept,
                versions,
            });
        }
    }

    // --- replay -------------------------------------------------------------------------------

    /// Takes an insert that the output has emitted; false: it can't have.
    pub fn load_insert(&mut self, payload: &[u8], vs: i64, ve: i64) -> bool {
        let hash = self.hash(vs, payload);
        let id = match self.find(hash, vs, payload) {
            Some(id) if self.node(id).out != NONE => return false,
            Some(id) => id,
            None => self.add(hash, vs, payload),
        };
        self.nodes[id as usize].out = ve;
        true
    }

    /// The same for an adjust.
    pub fn load_adjust(&mut self, payload: &[u8], vs: i64, vold: i64, ve: i64) -> bool {
        let Some(id) = self.find(self.hash(vs, payload), vs, payload) else {
            return false;
        };
        let node = &mut self.nodes[id as usize];
        if node.out != vold {
            return false;
        }
        if ve == vs {
            node.out = NONE;
            self.delete_if_unused(id);
        } else {
            node.out = ve;
            if node.half_frozen {
                self.file_ends(id);
                self.sweep();
            }
        }
        true
    }

    /// The same for a stable.
    pub fn load_stable(&mut self, vc: i64) {
        if vc == INFINITY {
            self.clear();
            return;
        }
        let due = self.due(None, vc);
        let newly = self.newly_half_frozen(vc);
        self.file(&due);
        self.file(&newly);
        self.sweep();
    }

    // --- state --------------------------------------------------------------------------------

    /// The end that the output gives an event, or `NONE`.
    pub fn output_end(&self, payload: &[u8], vs: i64) -> i64 {
        let id = self.find(self.hash(vs, payload), vs, payload);
        id.map_or(NONE, |id| self.node(id).out)
    }

    /// Makes a node as a snapshot has it; those before the stable point are to be filed.
    pub fn restore(&mut self, payload: &[u8], vs: i64, out: i64) -> Option<u32> {
        let hash = self.hash(vs, payload);
        if self.find(hash, vs, payload).is_some() {
            return None;
        }
        let id = if vs < self.stable {
            self.make(hash, vs, payload)
        } else {
            self.add(hash, vs, payload)
        };
        self.nodes[id as usize].out = out;
        Some(id)
    }

    pub fn restore_input(&mut self, id: u32, slot: usize, end: i64, claimed: bool, blamed: bool) {
        let node = &mut self.nodes[id as usize];
        if end != NONE {
            node.set_end(slot, end);
        }
        if claimed {
            node.claim(slot);
        }
        if blamed {
            node.blame(slot);
        }
    }

    /// Files the nodes that are before the stable point; false: one of them is not on the output.
    pub fn restored(&mut self, ids: &[u32]) -> bool {
        let half: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|&id| self.node(id).vs < self.stable)
            .collect();
        let whole = half
            .iter()
            .all(|&id| self.node(id).out != NONE && self.node(id).out >= self.stable);
        if whole {
            self.file(&half);
        }
        whole
    }

    /// Every invariant, in words; `None`: they hold.
    pub fn fault(&self) -> Option<String> {
        let mut frozen = 0;
        for &id in self.table.iter() {
            let node = self.node(id);
            let at = format!("the event at {} with number {}", node.vs, node.number);
            if node.number == 0 {
                return Some(format!("S1: {at} is free"));
            }
            if node.out == NONE && !node.has_ends() {
                return Some(format!("X1: nobody has {at}"));
            }
            if node.half_frozen != (node.vs < self.stable) {
                return Some(format!("X4: {at} is half frozen: {}", node.half_frozen));
            }
            if node.half_frozen && node.out < self.stable {
                return Some(format!("W1: {at} ends at {}", node.out));
            }
            frozen += usize::from(node.half_frozen);
            for (slot, lacks) in self.lacking.iter().enumerate() {
                let Some(lacks) = lacks else {
                    if node.end(slot) != NONE {
                        return Some(format!("W2: {at} has an end of slot {slot}, which is free"));
                    }
                    continue;
                };
                let should =
                    node.half_frozen && node.end(slot) == NONE && !node.blamed().contains(&slot);
                if lacks.contains(&id) != should {
                    return Some(format!("X3: slot {slot} lacks {at}: {should}"));
                }
            }
        }
        if frozen != self.frozen {
            return Some(format!(
                "{} are counted half frozen, not {frozen}",
                self.frozen
            ));
        }
        let queues = std::iter::once(&self.by_out).chain(&self.by_end);
        for queue in queues {
            // A queue may get a few entries longer between two looks.
            if queue.0.len() > 2 * self.frozen + SLACK + 1 {
                return Some(format!(
                    "X5: a queue of {} for {}",
                    queue.0.len(),
                    self.frozen
                ));
            }
        }
        None
    }
}

#[derive(Clone, Copy)]
enum Revision {
    Nothing,
    Unknown {
        hash: u64,
        broken: bool,
    },
    Of {
        id: u32,
        held: i64,
        is_final: bool,
        wrong: bool,
    },
}

/// A stable under way.
struct Stable<'a> {
    leader: usize,
    t: i64,
    max_stable: i64,
    inputs: &'a [Input],
    out: &'a mut Elements,
    breaches: &'a mut Vec<Breach>,
    done: Emitted,
}

impl Stable<'_> {
    fn insert(&mut self, node: &mut Node, ve: i64) {
        self.out.insert(&node.payload, node.vs, ve);
        node.out = ve;
        self.done.inserts += 1;
    }

    /// Moves the output's end of an event to ve; its start removes it.
    fn adjust(&mut self, node: &mut Node, ve: i64) {
        self.out.adjust(&node.payload, node.vs, node.out, ve);
        let removed = ve == node.vs;
        node.out = if removed { NONE } else { ve };
        self.done.adjusts += 1;
        self.done.removals += u64::from(removed);
    }
}

fn bare(slot: usize, kind: BreachKind, place: usize) -> Breach {
    Breach {
        slot,
        kind,
        place: Some(place),
        kept: None,
        versions: vec![],
    }
}

fn about(slot: usize, kind: BreachKind, place: usize, node: &Node) -> Breach {
    Breach {
        slot,
        kind,
        place: Some(place),
        kept: node.kept(),
        versions: node.versions(),
    }
}
