//! Elements as JSON records: decoding, canonical payloads, encoding.
//!
//! Reference: `lmerge_service.formats.wire` and `.payload`, which define what a record means. This
//! module knows the records that writers write, and leaves to the reference whatever is unusual
//! (`None`): escapes, exponents, fractions that end in 0, integers of 19 digits, deep nesting,
//! duplicate keys, anything that is no element. So it never refuses a record, and what it accepts
//! means the same as there.

use crate::element::{Kind, Rec, INFINITY};

const INSERT: &[u8] = b"{\"op\":\"insert\",\"payload\":";
const ADJUST: &[u8] = b"{\"op\":\"adjust\",\"payload\":";
const STABLE: &[u8] = b"{\"op\":\"stable\",\"vc\":";

/// What the reference was configured with.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Strings are normalised (NFC), which only text beyond ASCII needs.
    pub nfc: bool,
    /// Members that are null are left out.
    pub drop_nulls: bool,
    /// Arrays and objects within each other.
    pub depth: u32,
    pub max_bytes: usize,
}

/// The element of a record; its canonical payload is appended to `arena`, at the place that the
/// element names. `None`: the reference has to look; `arena` is then as it was.
pub fn decode(record: &[u8], rules: Rules, arena: &mut Vec<u8>) -> Option<Rec> {
    if record.len() > rules.max_bytes {
        return None;
    }
    let begins = arena.len();
    let found = canonical(record, rules, arena).or_else(|| {
        arena.truncate(begins);
        in_other_words(record, rules, arena)
    });
    match found {
        Some(rec) if is_plain(&arena[begins..], rules) => Some(rec),
        _ => {
            arena.truncate(begins);
            None
        }
    }
}

/// Whether the rules that are not the default change nothing about a payload.
fn is_plain(payload: &[u8], rules: Rules) -> bool {
    (!rules.nfc || payload.is_ascii())
        && (!rules.drop_nulls || !payload.windows(5).any(|part| part == b":null"))
}

/// A record whose text is the canonical one, as nearly all are.
fn canonical(b: &[u8], rules: Rules, arena: &mut Vec<u8>) -> Option<Rec> {
    if let Some(rest) = b.strip_prefix(STABLE) {
        let mut p = 0;
        let vc = time(rest, &mut p)?;
        return (&rest[p..] == b"}").then(|| Rec::stable(vc));
    }
    let kind = if b.starts_with(INSERT) {
        Kind::Insert
    } else if b.starts_with(ADJUST) {
        Kind::Adjust
    } else {
        return None;
    };
    let start = INSERT.len();
    let mut p = start;
    let mut ascii = true;
    value(b, &mut p, rules.depth, &mut ascii)?;
    let end = p;
    if !ascii {
        std::str::from_utf8(&b[start..end]).ok()?;
    }
    word(b, &mut p, b",\"vs\":")?;
    let vs = int(b, &mut p)?;
    let mut vold = INFINITY;
    if kind == Kind::Adjust {
        word(b, &mut p, b",\"vold\":")?;
        vold = time(b, &mut p)?;
    }
    word(b, &mut p, b",\"ve\":")?;
    let ve = time(b, &mut p)?;
    if &b[p..] != b"}" {
        return None;
    }
    sound(kind, vs, vold, ve)?;
    let at = arena.len();
    arena.extend_from_slice(&b[start..end]);
    Rec::of(kind, vs, vold, ve, at, end - start)
}

fn sound(kind: Kind, vs: i64, vold: i64, ve: i64) -> Option<()> {
    match kind {
        Kind::Insert => vs < ve,
        Kind::Adjust => vs < vold && vs <= ve,
        Kind::Stable => true,
    }
    .then_some(())
}

fn word(b: &[u8], p: &mut usize, text: &[u8]) -> Option<()> {
    b[*p..].starts_with(text).then(|| *p += text.len())
}

fn time(b: &[u8], p: &mut usize) -> Option<i64> {
    if word(b, p, b"null").is_some() {
        return Some(INFINITY);
    }
    int(b, p)
}

/// An integer of at most 18 digits, as the canonical text has it.
fn int(b: &[u8], p: &mut usize) -> Option<i64> {
    let negative = *b.get(*p)? == b'-';
    if negative {
        *p += 1;
    }
    let from = *p;
    let mut n: i64 = 0;
    while let Some(&c) = b.get(*p) {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        n = n.wrapping_mul(10).wrapping_add(i64::from(digit));
        *p += 1;
    }
    let digits = *p - from;
    if digits == 0 || digits > 18 || (b[from] == b'0' && (digits > 1 || negative)) {
        return None;
    }
    Some(if negative { -n } else { n })
}

fn string<'a>(b: &'a [u8], p: &mut usize, ascii: &mut bool) -> Option<&'a [u8]> {
    if *b.get(*p)? != b'"' {
        return None;
    }
    let from = *p + 1;
    let mut q = from;
    loop {
        let c = *b.get(q)?;
        if c == b'"' {
            break;
        }
        if c < 0x20 || c == b'\\' {
            return None;
        }
        *ascii &= c < 0x80;
        q += 1;
    }
    *p = q + 1;
    Some(&b[from..q])
}

/// Passes over a number whose text is canonical: up to 15 significant digits the nearest double is
/// the same decimal number, and neither text uses an exponent from 1e-4 up to 1e16.
fn number(b: &[u8], p: &mut usize) -> Option<()> {
    let from = *p;
    let whole = int(b, p)?;
    match b.get(*p) {
        Some(b'.') => {
            let point = *p;
            *p += 1;
            while b.get(*p).is_some_and(u8::is_ascii_digit) {
                *p += 1;
            }
            let fraction = &b[point + 1..*p];
            let small = whole == 0 && fraction.starts_with(b"000");
            if fraction.is_empty() || fraction.ends_with(b"0") || *p - from > 16 || small {
                return None;
            }
            (!matches!(b.get(*p), Some(b'e' | b'E'))).then_some(())
        }
        Some(b'e' | b'E') => None,
        _ => Some(()),
    }
}

/// Passes over a JSON value if its text is the canonical one.
fn value(b: &[u8], p: &mut usize, depth: u32, ascii: &mut bool) -> Option<()> {
    match *b.get(*p)? {
        b'"' => string(b, p, ascii).map(|_| ()),
        b'{' => object(b, p, depth.checked_sub(1)?, ascii),
        b'[' => array(b, p, depth.checked_sub(1)?, ascii),
        b't' => word(b, p, b"true"),
        b'f' => word(b, p, b"false"),
        b'n' => word(b, p, b"null"),
        _ => number(b, p),
    }
}

fn object(b: &[u8], p: &mut usize, depth: u32, ascii: &mut bool) -> Option<()> {
    *p += 1;
    if *b.get(*p)? == b'}' {
        *p += 1;
        return Some(());
    }
    let mut last: Option<&[u8]> = None;
    loop {
        let key = string(b, p, ascii)?;
        if last.is_some_and(|before| before >= key) {
            return None;
        }
        last = Some(key);
        word(b, p, b":")?;
        value(b, p, depth, ascii)?;
        match *b.get(*p)? {
            b',' => *p += 1,
            b'}' => {
                *p += 1;
                return Some(());
            }
            _ => return None,
        }
    }
}

fn array(b: &[u8], p: &mut usize, depth: u32, ascii: &mut bool) -> Option<()> {
    *p += 1;
    if *b.get(*p)? == b']' {
        *p += 1;
        return Some(());
    }
    loop {
        value(b, p, depth, ascii)?;
        match *b.get(*p)? {
            b',' => *p += 1,
            b']' => {
                *p += 1;
                return Some(());
            }
            _ => return None,
        }
    }
}

// --- the same in other words: spaces, fields and keys in any order --------------------------------

#[derive(Default)]
struct Fields {
    kind: Option<Kind>,
    payload: Option<(usize, usize)>,
    vs: Option<i64>,
    vold: Option<i64>,
    ve: Option<i64>,
    vc: Option<i64>,
}

fn in_other_words(b: &[u8], rules: Rules, arena: &mut Vec<u8>) -> Option<Rec> {
    std::str::from_utf8(b).ok()?;
    let mut p = 0;
    let mut found = Fields::default();
    sign(b, &mut p, b'{')?;
    loop {
        skip(b, &mut p);
        let key = plain(b, &mut p)?;
        sign(b, &mut p, b':')?;
        skip(b, &mut p);
        match key {
            b"op" if found.kind.is_none() => found.kind = Some(kind(plain(b, &mut p)?)?),
            b"payload" if found.payload.is_none() => {
                let at = arena.len();
                rewrite(b, &mut p, rules.depth, arena)?;
                found.payload = Some((at, arena.len() - at));
            }
            b"vs" if found.vs.is_none() => found.vs = Some(whole(b, &mut p)?),
            b"vold" if found.vold.is_none() => found.vold = Some(whole_or_null(b, &mut p)?),
            b"ve" if found.ve.is_none() => found.ve = Some(whole_or_null(b, &mut p)?),
            b"vc" if found.vc.is_none() => found.vc = Some(whole_or_null(b, &mut p)?),
            _ => return None,
        }
        skip(b, &mut p);
        match *b.get(p)? {
            b',' => p += 1,
            b'}' => break,
            _ => return None,
        }
    }
    p += 1;
    skip(b, &mut p);
    if p != b.len() {
        return None;
    }
    element(found)
}

fn kind(text: &[u8]) -> Option<Kind> {
    match text {
        b"insert" => Some(Kind::Insert),
        b"adjust" => Some(Kind::Adjust),
        b"stable" => Some(Kind::Stable),
        _ => None,
    }
}

fn element(found: Fields) -> Option<Rec> {
    match (
        found.kind?,
        found.payload,
        found.vs,
        found.vold,
        found.ve,
        found.vc,
    ) {
        (Kind::Insert, Some((at, size)), Some(vs), None, Some(ve), None) => {
            sound(Kind::Insert, vs, INFINITY, ve)?;
            Rec::of(Kind::Insert, vs, INFINITY, ve, at, size)
        }
        (Kind::Adjust, Some((at, size)), Some(vs), Some(vold), Some(ve), None) => {
            sound(Kind::Adjust, vs, vold, ve)?;
            Rec::of(Kind::Adjust, vs, vold, ve, at, size)
        }
        (Kind::Stable, None, None, None, None, Some(vc)) => Some(Rec::stable(vc)),
        _ => None,
    }
}

fn skip(b: &[u8], p: &mut usize) {
    while matches!(b.get(*p), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        *p += 1;
    }
}

fn sign(b: &[u8], p: &mut usize, c: u8) -> Option<()> {
    skip(b, p);
    (*b.get(*p)? == c).then(|| *p += 1)
}

fn plain<'a>(b: &'a [u8], p: &mut usize) -> Option<&'a [u8]> {
    let mut ascii = true;
    string(b, p, &mut ascii)
}

fn whole(b: &[u8], p: &mut usize) -> Option<i64> {
    let n = int(b, p)?;
    (!matches!(b.get(*p), Some(b'.' | b'e' | b'E'))).then_some(n)
}

fn whole_or_null(b: &[u8], p: &mut usize) -> Option<i64> {
    if word(b, p, b"null").is_some() {
        return Some(INFINITY);
    }
    whole(b, p)
}

/// Writes the canonical text of the value at `p`.
fn rewrite(b: &[u8], p: &mut usize, depth: u32, out: &mut Vec<u8>) -> Option<()> {
    skip(b, p);
    match *b.get(*p)? {
        b'{' => rewrite_object(b, p, depth.checked_sub(1)?, out),
        b'[' => rewrite_array(b, p, depth.checked_sub(1)?, out),
        _ => {
            let from = *p;
            let mut ascii = true;
            value(b, p, 0, &mut ascii)?;
            out.extend_from_slice(&b[from..*p]);
            Some(())
        }
    }
}

fn rewrite_object(b: &[u8], p: &mut usize, depth: u32, out: &mut Vec<u8>) -> Option<()> {
    *p += 1;
    skip(b, p);
    if *b.get(*p)? == b'}' {
        *p += 1;
        out.extend_from_slice(b"{}");
        return Some(());
    }
    let from = out.len();
    let mut members: Vec<(&[u8], usize, usize)> = Vec::with_capacity(8);
    loop {
        skip(b, p);
        let key = plain(b, p)?;
        sign(b, p, b':')?;
        out.push(b',');
        let at = out.len();
        out.push(b'"');
        out.extend_from_slice(key);
        out.extend_from_slice(b"\":");
        rewrite(b, p, depth, out)?;
        members.push((key, at, out.len()));
        skip(b, p);
        match *b.get(*p)? {
            b',' => *p += 1,
            b'}' => break,
            _ => return None,
        }
    }
    *p += 1;
    if !members.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        members.sort_unstable_by_key(|member| member.0);
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let mut sorted = Vec::with_capacity(out.len() - from);
        for &(_, start, end) in &members {
            sorted.push(b',');
            sorted.extend_from_slice(&out[start..end]);
        }
        out.truncate(from);
        out.extend_from_slice(&sorted);
    }
    out[from] = b'{';
    out.push(b'}');
    Some(())
}

fn rewrite_array(b: &[u8], p: &mut usize, depth: u32, out: &mut Vec<u8>) -> Option<()> {
    *p += 1;
    out.push(b'[');
    skip(b, p);
    if *b.get(*p)? == b']' {
        *p += 1;
        out.push(b']');
        return Some(());
    }
    loop {
        rewrite(b, p, depth, out)?;
        skip(b, p);
        match *b.get(*p)? {
            b',' => {
                *p += 1;
                out.push(b',');
            }
            b']' => {
                *p += 1;
                out.push(b']');
                return Some(());
            }
            _ => return None,
        }
    }
}

// --- encoding ---------------------------------------------------------------------------------

/// Appends the record of an element.
pub fn encode(rec: &Rec, payload: &[u8], out: &mut Vec<u8>) {
    match rec.kind {
        Kind::Stable => {
            out.extend_from_slice(STABLE);
            put_time(out, rec.vs);
        }
        Kind::Insert => {
            out.extend_from_slice(INSERT);
            out.extend_from_slice(payload);
            put(out, b",\"vs\":", rec.vs);
            out.extend_from_slice(b",\"ve\":");
            put_time(out, rec.ve);
        }
        Kind::Adjust => {
            out.extend_from_slice(ADJUST);
            out.extend_from_slice(payload);
            put(out, b",\"vs\":", rec.vs);
            out.extend_from_slice(b",\"vold\":");
            put_time(out, rec.vold);
            out.extend_from_slice(b",\"ve\":");
            put_time(out, rec.ve);
        }
    }
    out.push(b'}');
}

fn put(out: &mut Vec<u8>, name: &[u8], n: i64) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

fn put_time(out: &mut Vec<u8>, t: i64) {
    if t == INFINITY {
        out.extend_from_slice(b"null");
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(t).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        nfc: false,
        drop_nulls: false,
        depth: 6,
        max_bytes: 1 << 20,
    };

    fn again(record: &[u8]) -> Option<Vec<u8>> {
        let mut arena = vec![b'x'];
        let rec = decode(record, RULES, &mut arena)?;
        let mut out = vec![];
        encode(&rec, &arena[rec.range()], &mut out);
        Some(out)
    }

    #[test]
    fn what_is_canonical_comes_back() {
        for record in [
            &b"{\"op\":\"insert\",\"payload\":{\"a\":1.5,\"b\":[null,\"x\"]},\"vs\":-6,\"ve\":null}"[..],
            b"{\"op\":\"adjust\",\"payload\":\"p\",\"vs\":6,\"vold\":null,\"ve\":6}",
            b"{\"op\":\"stable\",\"vc\":null}",
        ] {
            assert_eq!(again(record).as_deref(), Some(record));
        }
    }

    #[test]
    fn other_words_become_canonical() {
        let record = b" { \"ve\" : 9, \"payload\": {\"b\": 1, \"a\" :[ 1 , {} ]},\"vs\":6, \"op\":\"insert\" }\n";
        let wanted = b"{\"op\":\"insert\",\"payload\":{\"a\":[1,{}],\"b\":1},\"vs\":6,\"ve\":9}";
        assert_eq!(again(record).as_deref(), Some(&wanted[..]));
    }

    #[test]
    fn what_is_unusual_is_left_to_the_reference() {
        for record in [
            &b"{\"op\":\"insert\",\"payload\":1.0,\"vs\":6,\"ve\":9}"[..],
            b"{\"op\":\"insert\",\"payload\":1e3,\"vs\":6,\"ve\":9}",
            b"{\"op\":\"insert\",\"payload\":\"\\u0041\",\"vs\":6,\"ve\":9}",
            b"{\"op\":\"insert\",\"payload\":{\"a\":1,\"a\":2},\"vs\":6,\"ve\":9}",
            b"{\"op\":\"insert\",\"payload\":1,\"vs\":6,\"ve\":6}",
            b"{\"op\":\"insert\",\"payload\":1,\"vs\":6,\"vs\":6,\"ve\":9}",
            b"{\"op\":\"insert\",\"payload\":1,\"vs\":9223372036854775807,\"ve\":null}",
            b"{\"op\":\"insert\",\"payload\":\"\xff\",\"vs\":6,\"ve\":9}",
            b"[[[[[[[1]]]]]]]",
            b"",
        ] {
            assert_eq!(again(record), None, "{}", String::from_utf8_lossy(record));
        }
    }
}
