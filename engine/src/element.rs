//! Elements without Python: kind, times, and where the payload is in an arena of bytes.
//!
//! Reference: `lmerge_service.elements`.

use std::ops::Range;

pub const INFINITY: i64 = i64::MAX;
/// No end: the least int64 is no end of any event, since an event ends behind its start.
pub const NONE: i64 = i64::MIN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Adjust,
    Stable,
}

/// An element; `vs` of a stable is its time.
#[derive(Clone, Copy, Debug)]
pub struct Rec {
    pub kind: Kind,
    pub vs: i64,
    pub vold: i64,
    pub ve: i64,
    start: u32,
    size: u32,
}

impl Rec {
    /// `None`: the arena is too large for it.
    pub fn of(kind: Kind, vs: i64, vold: i64, ve: i64, start: usize, size: usize) -> Option<Rec> {
        let (start, size) = (u32::try_from(start).ok()?, u32::try_from(size).ok()?);
        Some(Rec {
            kind,
            vs,
            vold,
            ve,
            start,
            size,
        })
    }

    pub fn stable(vc: i64) -> Rec {
        Rec {
            kind: Kind::Stable,
            vs: vc,
            vold: 0,
            ve: 0,
            start: 0,
            size: 0,
        }
    }

    /// The insert of the event as this adjust leaves it.
    pub fn inserting(&self) -> Rec {
        Rec {
            kind: Kind::Insert,
            ..*self
        }
    }

    /// Where its payload is.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.size as usize
    }

    /// The same element, whose payload begins so much later.
    pub fn moved(&self, by: usize) -> Option<Rec> {
        if self.kind == Kind::Stable {
            return Some(*self);
        }
        let at = self.start as usize + by;
        Rec::of(
            self.kind,
            self.vs,
            self.vold,
            self.ve,
            at,
            self.size as usize,
        )
    }
}
