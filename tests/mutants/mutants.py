"""The mutants, file by file: the text as it is, a mistake in its place, and what that breaks."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ("MUTANTS", "ROOT", "Mutant")

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake in `lmerge_service/<package>/<file>.py`."""

    id: str
    file: str
    old: str
    new: str
    breaks: str
    package: str = "core"

    @property
    def path(self) -> Path:
        """Its file, from the root."""
        return Path("lmerge_service", self.package, f"{self.file}.py")

    def applied(self) -> str:
        """The text of its file with the mistake in it.

        Raises:
            ValueError: the old text is not there, or more than once.
        """
        text = (ROOT / self.path).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.id}: the old text is there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def _of(
    file: str, *mutants: tuple[str, str, str, str], package: str = "core"
) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(f"{file}-{name}", file, old, new, breaks, package)
        for name, old, new, breaks in mutants
    )


_OPERATOR = _of(
    "base",
    (
        "loaded-stable-joins-nobody",
        "                    self._join(vc)\n",
        "",
        "O2: an input whose joining time a loaded stable reaches is joined",
    ),
    (
        "loaded-is-not-taken-up",
        "                    self._join(vc)\n        self._apply_deferred()\n",
        "                    self._join(vc)\n",
        "K3: what waits of an input that a loaded stable has joined is processed",
    ),
    (
        "accepted-not-taken-up",
        "        source.accept_gap()\n        self._apply_deferred()\n",
        "        source.accept_gap()\n",
        "K3: what waits of an input is processed when its gap is accepted elsewhere",
    ),
    (
        "accepts-any-end",
        "if source is None or source.joining_at != end:",
        "if source is None:",
        "a gap is accepted for the incarnation that joins at its end, and for no other",
    ),
    (
        "recalls-the-detached",
        "if name not in self.inputs and name in self._incarnations:",
        "if False:",
        "a follower reports no breach that the original had not",
    ),
    (
        "loaded-uncounted",
        "                    self._stats.removals += element.ve == element.vs\n",
        "",
        "what the output has carried is counted when it is loaded",
    ),
    (
        "parts-of-two-moments",
        "            if self._head() != head:\n",
        "            if False:\n",
        "parts must be of one state",
    ),
    (
        "insert-at-own-stable",
        "if element.vs < source.stables[partition]:",
        "if element.vs <= source.stables[partition]:",
        "an insert with vs = the input's own stable is legal",
    ),
    (
        "adjust-judged-by-new-end",
        "if min(element.vold, element.ve) < source.stables[partition]:",
        "if element.ve < source.stables[partition]:",
        "an adjust from an end below the input's own stable is a breach and ignored",
    ),
    (
        "judged-by-whole-input",
        "if element.vs < source.stables[partition]:",
        "if element.vs < source.stable:",
        "each element is judged against its own partition's stable",
    ),
    (
        "repeated-stable-blamed",
        "elif element.vc < before:",
        "else:",
        "a stable that does not rise says nothing; only a lower one is a breach",
    ),
    (
        "old-incarnation-stays",
        "            self._forget(before)\n        number",
        "            pass\n        number",
        "O3: of an old incarnation nothing is left",
    ),
    (
        "joined-only-beyond",
        "source.joined = accepted_gap or joining_at <= self.max_stable",
        "source.joined = accepted_gap or joining_at < self.max_stable",
        "O2: an input is joined iff joining_at <= max_stable",
    ),
    (
        "joined-only-beyond-later",
        "if not s.joined and s.joining_at <= t]",
        "if not s.joined and s.joining_at < t]",
        "O2, when the output reaches joining_at itself",
    ),
    (
        "joining-inputs-lead",
        "joined = [source for source in self.inputs.values() if source.joined]\n        if len",
        "joined = list(self.inputs.values())\n        if len",
        "the stables of a joining input do not lead",
    ),
    (
        "settles-once",
        "            self._emit_stable(t, voters[0], out)\n",
        "            self._emit_stable(t, voters[0], out)\n            return\n",
        "O1: an input that is joined by this stable may lead further at once",
    ),
    (
        "lag-from-infinity",
        "behind = self._lag if leader.stable < INFINITY else 0",
        "behind = self._lag",
        "lag(d) stays d behind, INFINITY excepted: the stream would never end",
    ),
    (
        "quorum-follows-the-highest",
        "return voters[-1].stable, voters",
        "return voters[0].stable, voters",
        "quorum(k) goes as far as the k-th furthest",
    ),
    (
        "quorum-goes-on-with-fewer",
        "if len(joined) < self._voters:",
        "if not joined:",
        "with fewer than k joined inputs the output waits",
    ),
    (
        "all-leaders-revise",
        "return source.joined and source is self._leaders()[0]",
        "return source in self._leaders()",
        "among several with the highest stable the one attached first revises",
    ),
    (
        "joining-input-leads-inserts",
        "return [each for each in joined if each.stable == highest]",
        "return [each for each in self.inputs.values() if each.stable >= highest]",
        "insert=leader waits for a joined input with the highest stable",
    ),
    (
        "replay_input-reflects",
        "return not self._replaying and (",
        "return (",
        "what is replayed was emitted before: a revision must not go out twice",
    ),
    (
        "replay_input-inserts-eagerly",
        "return self._first and (self._lazy or not self._replaying)",
        "return self._first",
        "promise 7: under adjust=eager what was withdrawn is not put out again",
    ),
    (
        "gap-accepted-unsettled",
        "        self._advance_stable(out)\n        return gap, out",
        "        return gap, out",
        "O1: the input that the gap is accepted for leads at once",
    ),
    (
        "gap-accepted-unwelcome",
        "        self._on_joined(source, out)\n        self._advance_stable(out)",
        "        self._advance_stable(out)",
        "what an ordered input sent while it was joining is taken up",
    ),
    (
        "gap-to-the-first-attached",
        "first = min(joining, key=lambda source: source.joining_at)",
        "first = joining[0]",
        "a gap ends where the earliest joining input starts",
    ),
    (
        "feedback-to-all",
        "if source.stable < t}",
        "if source.stable <= t}",
        "feedback names the inputs that lag, and no others",
    ),
    (
        "switch-without-change",
        "if self._stats.leader != leader.name:",
        "if True:",
        "a switch is a change from one leader to another",
    ),
    (
        "unexpected_output-insert-loaded",
        "if element.vs < self.max_stable:\n                        raise",
        "if element.vs < self.max_stable - 1:\n                        raise",
        "an output that no merge of ours has written is refused",
    ),
    (
        "unexpected_output-stable-loaded",
        "if vc <= self.max_stable:\n                        raise",
        "if vc < self.max_stable:\n                        raise",
        "the output's stables rise: a repeated one is not ours",
    ),
    (
        "weakened-not-joined",
        "            accepted = source.gap_until > START\n",
        "            accepted = False\n",
        "O2: an input that a gap was accepted for is joined under the weaker case too",
    ),
    (
        "snapshot-forgets-incarnations",
        "        self._incarnations = head.incarnations\n",
        "",
        "a breach after a restore names the incarnation of an input that is gone",
    ),
    (
        "snapshot-forgets-counts",
        "        self._stats = head.stats\n",
        "",
        "a snapshot holds every count",
    ),
    (
        "gap-under-a-quorum-unseen",
        "if joined >= self._voters or len(self.inputs) < self._voters:",
        "if joined or len(self.inputs) < self._voters:",
        "under a quorum there is a gap also where fewer inputs are joined than decide",
    ),
    (
        "weakened-forgets-counts",
        "        self._stats = replace(other._stats)\n",
        "",
        "the weaker operator takes over what the stronger has counted",
    ),
)

_LMR3 = _of(
    "lmr3",
    (
        "loaded-removal-drops-inputs",
        "            node.out = None\n            self._index.delete_if_unused(node)\n        elif",
        "            self._index.drop(node)\n        elif",
        "promise 7: what the output took back an input may still hold",
    ),
    (
        "claim-forgotten-when-half-frozen",
        "if held is None:\n                node.claim(",
        "if held is None and not node.half_frozen:\n                node.claim(",
        "a claim does not depend on when the output half froze the event",
    ),
    (
        "loaded-final-frozen",
        "if node.out is not None and node.out >= vc)",
        "if node.out is not None)",
        "L1: what a loaded stable makes final is let go of",
    ),
    (
        "views-of-one",
        "for s in self.inputs.values())\n        self._blame(",
        "for s in [source])\n        self._blame(",
        "a breach about an event holds what every input had contributed to it",
    ),
    (
        "batch-late-at-stable",
        "if vs < max_stable:\n                    node = frozen",
        "if vs <= max_stable:\n                    node = frozen",
        "an insert with vs = max_stable is unfrozen and goes out",
    ),
    (
        "batch-half-frozen-late",
        "node = frozen.get((vs, payload))",
        "node = None",
        "an insert of what is half frozen counts, and is not late",
    ),
    (
        "batch-alone-whatever-its-payload",
        "node = None if found is None or found.payload != payload else found",
        "node = found",
        "2.1: an event is known by its payload as well",
    ),
    (
        "batch-old-index",
        "            nodes, frozen = index.nodes, index.frozen\n        source.inserts",
        "            nodes = index.nodes\n        source.inserts",
        "L4: what the end of the stream has forgotten is not found again in the same batch",
    ),
    (
        "late-at-stable",
        (
            "if vs < self.max_stable:\n                source.late += 1\n                return\n"
            "            node ="
        ),
        (
            "if vs <= self.max_stable:\n                source.late += 1\n                return\n"
            "            node ="
        ),
        "the same, outside the short cut",
    ),
    (
        "batch-old-stable",
        (
            "own_stable, max_stable = source.stables[partition], self.max_stable\n"
            "            nodes, frozen = index.nodes"
        ),
        "own_stable = source.stables[partition]\n            nodes, frozen = index.nodes",
        "promise 2: within a batch each stable counts for what follows",
    ),
    (
        "batch-own-old-stable",
        (
            "own_stable, max_stable = source.stables[partition], self.max_stable\n"
            "            nodes, frozen = index.nodes"
        ),
        "max_stable = self.max_stable\n            nodes, frozen = index.nodes",
        "an insert below the own stable of the same batch is a breach",
    ),
    (
        "batch-loses-claimed",
        "if source not in node.ends and node.out is not None:",
        "if source not in node.ends:",
        "L2: an event that others only claimed goes out with its first insert",
    ),
    (
        "batch-end-unfiled",
        "set_end(node, source, element.ve)",
        "node.ends[source] = element.ve",
        "X2, X3: an end of a half-frozen event is where stables find it",
    ),
    (
        "batch-late-uncounted",
        "source.late += late",
        "source.late += 0",
        "an element about what is final is counted as late",
    ),
    (
        "claim-blamed-as-duplicate",
        "if source in node.ends and not node.withdraw_claim(source):",
        "if source in node.ends:",
        "an insert makes good a claim; only a second insert is a duplicate",
    ),
    (
        "duplicate-unblamed",
        "self._blame_at(source, BreachKind.DUPLICATE_KEY, element, node)",
        "pass",
        "promise 5: a second insert of a key is a breach",
    ),
    (
        "claim-at-stable-late",
        (
            "if vs < self.max_stable:\n                source.late += 1\n                return\n"
            "            if vs < self._own_stable"
        ),
        (
            "if vs <= self.max_stable:\n                source.late += 1\n                return\n"
            "            if vs < self._own_stable"
        ),
        "an unknown adjust with vs = max_stable is a breach and a claim, not late",
    ),
    (
        "wrong-vold-unblamed",
        "self._blame_at(source, BreachKind.WRONG_VOLD, element, node)",
        "pass",
        "promise 5: an old end that the input did not give last is a breach",
    ),
    (
        "claim-counts-as-insert",
        "            if held is None:\n                node.claim(source, ve)\n",
        "",
        "an adjust of an event that its input never inserted is a claim only",
    ),
    (
        "removal-unfiled",
        "self._index.drop_end(node, source)",
        "del node.ends[source]",
        "X3: an input that takes back a half-frozen event lacks it",
    ),
    (
        "unused-stays",
        "        if ve == vs:\n            self._index.delete_if_unused(node)\n",
        "",
        "X1: what nobody has any more is let go",
    ),
    (
        "replay_input-emits",
        "            case _ if self._replaying:\n                return False\n",
        "",
        "promise 7: what a policy held back stays held back while recalling",
    ),
    (
        "claimant-leads",
        "                contributing_inputs = node.contributing_inputs()\n",
        "                contributing_inputs = list(node.ends)\n",
        "a claim alone puts nothing out, not even the leader's",
    ),
    (
        "quorum-counts-claims",
        "return len(node.contributing_inputs()) >= self",
        "return len(node.ends) >= self",
        "insert=quorum(n) waits for n inputs that have the event",
    ),
    (
        "quorum-needs-one-more",
        "return len(node.contributing_inputs()) >= self",
        "return len(node.contributing_inputs()) > self",
        "insert=quorum(n) lets an event out once n inputs have it",
    ),
    (
        "reflects-below-stable",
        "if ve >= self.max_stable:\n                self._emit_adjust",
        "if ve >= node.vs:\n                self._emit_adjust",
        "promise 2: a revision that is final on the output is not reflected",
    ),
    (
        "reflects-beyond-stable-only",
        "if ve >= self.max_stable:\n                self._emit_adjust",
        "if ve > self.max_stable:\n                self._emit_adjust",
        "ve = max_stable is still half frozen: the revision is legal and goes out",
    ),
    (
        "reflected-unfiled",
        "                self._index.set_out(node, ve)\n            return\n",
        "            return\n",
        "X2: a half-frozen event is found by its new end",
    ),
    (
        "withdrawn-still-out",
        "        if ve == node.vs:\n            node.out = None\n",
        "",
        "an event that was withdrawn eagerly is not on the output any more",
    ),
    (
        "missing-unblamed",
        "for node in index.lacking(voter):",
        "for node in ():",
        "promise 5: whoever passes by a half-frozen event that it lacks is to blame",
    ),
    (
        "only-first-voter-blamed",
        "        for voter in voters:\n            for node in index.lacking(voter):",
        "        for voter in voters[:1]:\n            for node in index.lacking(voter):",
        "every voter is held to what is half frozen",
    ),
    (
        "quorum-unasked-half-frozen",
        "disputed = [n for n in due if several or n.out != n.ends.get(leader)]",
        "disputed = [n for n in due if n.out != n.ends.get(leader)]",
        "under a quorum the majority decides, also where the furthest agrees with the output",
    ),
    (
        "quorum-unasked-newly",
        "            if several or node.out != node.ends.get(leader):",
        "            if node.out != node.ends.get(leader):",
        "the same, of what is being half frozen",
    ),
    (
        "newly-final-at-end",
        "if node.out is not None and node.out >= t:",
        "if node.out is not None and node.out > t:",
        "the same, of what is being half frozen",
    ),
    (
        "due-unfiled",
        ("        index.refile(due, t)\n        staying"),
        (
            "        index.refile((n for n in list(due) if n.out is not None and n.out < t), t)\n"
            "        staying"
        ),
        "X2: an event that was due and lives is found again",
    ),
    (
        "end-blames-unfrozen",
        "if node.half_frozen and voter not in node.ends:",
        "if voter not in node.ends:",
        "to lack an unfrozen event at the end of the stream is no breach",
    ),
    (
        "end-unblamed",
        "if node.half_frozen and voter not in node.ends:",
        "if False:",
        "to end the stream without a half-frozen event is a breach",
    ),
    (
        "claim-put-out",
        "if end is not None and node.contributing_inputs():",
        "if end is not None:",
        "a claim alone puts nothing out",
    ),
    (
        "half-frozen-removed",
        "elif end is None and not node.half_frozen:",
        "elif end is None:",
        "promise 2: a removal never touches what the output has half frozen (as printed it does)",
    ),
    (
        "end-at-stable-refused",
        "elif end is not None and end >= self.max_stable:",
        "elif end is not None and end > self.max_stable:",
        "ve = max_stable is still half frozen: the output can follow",
    ),
    (
        "followed-below-stable",
        "elif end is not None and end >= self.max_stable:",
        "elif end is not None:",
        "promise 2: the output cannot follow an end that is final (as printed it does)",
    ),
    (
        "chatty-at-end",
        "if end != node.out and (end < t or node.out < t):",
        "if end != node.out and (end <= t or node.out < t):",
        "promise 3: an end of t is not final yet, so no adjust is forced",
    ),
    (
        "chatty-at-out",
        "if end != node.out and (end < t or node.out < t):",
        "if end != node.out and (end < t or node.out <= t):",
        "promise 3, of the output's end",
    ),
    (
        "never-shortened",
        "if end != node.out and (end < t or node.out < t):",
        "if end != node.out and node.out < t:",
        "promise 1: an end that becomes final by the leader is taken over",
    ),
    (
        "never-extended",
        "if end != node.out and (end < t or node.out < t):",
        "if end != node.out and end < t:",
        "promise 1: the output's end must not become final where the leader's does not",
    ),
    (
        "no-second-opinion",
        "kept = self._second_opinion(node)",
        "kept = node.out",
        "a kept event follows the input that has it and whose stable is the highest",
    ),
    (
        "second-opinion-chatty",
        "if kept != node.out and (kept < t or node.out < t):",
        "if kept != node.out:",
        "promise 3: a kept event is not moved before a stable forces it",
    ),
    (
        "disagreement-unblamed",
        "self._blame_once(leader, BreachKind.FROZEN_END_DISAGREES, node, t)",
        "pass",
        "promise 5: an end that the output cannot follow is a breach",
    ),
    (
        "votes-beyond-t",
        "views = {s: min(node.ends[s], t) for s in having",
        "views = {s: node.ends[s] for s in having",
        "voters that differ beyond t agree that the event is alive",
    ),
    (
        "tie-to-the-furthest",
        "having = [source for source in self.inputs.values() if source in voters]",
        "having = list(voters)",
        "a tie of votes goes to the input attached first",
    ),
    (
        "minority-decides",
        "winner = max(views, key=lambda source: votes[views[source]])",
        "winner = next(iter(views))",
        "the majority of the voters decides about an end",
    ),
    (
        "final-views-vote",
        "if node.ends[s] >= floor}",
        "}",
        "promise 2: a vote for an end that is final on the output does not count",
    ),
    (
        "voters-blamed-for-claims",
        "if node.out is not None or node.contributing_inputs():\n            for source in voters:",
        "if True:\n            for source in voters:",
        "to lack what nobody inserted is no breach",
    ),
    (
        "outvoted-unblamed",
        "elif views.get(source) != views[winner]:",
        "elif source not in views:",
        "a voter that the quorum overrules is to blame",
    ),
    (
        "second-opinion-of-the-first",
        "return node.ends[max(order, key=lambda source: (source.joined, source.stable))]",
        "return node.ends[order[0]]",
        "a kept event follows the highest stable, and only ties go to the first",
    ),
    (
        "second-opinion-at-stable",
        "if end >= (self.max_stable if source.joined else source.joining_at)",
        "if end > (self.max_stable if source.joined else source.joining_at - 1)",
        "a kept event may end at the output's own stable",
    ),
    (
        "gap-excuses-everything",
        "excused = node.vs < source.gap_until and kind is",
        "excused = kind is",
        "only an accepted gap excuses what is missing",
    ),
    (
        "gap-excuses-its-end",
        "excused = node.vs < source.gap_until",
        "excused = node.vs <= source.gap_until",
        "a gap excuses what started before its end, and no more",
    ),
    (
        "gap-excuses-other-ends",
        "excused = node.vs < source.gap_until and kind is BreachKind.HALF_FROZEN_MISSING",
        "excused = node.vs < source.gap_until",
        "a gap excuses what is missing, and not what differs",
    ),
    (
        "removals-uncounted",
        "self._stats.removals += end == node.vs",
        "self._stats.removals += end < node.vs",
        "the output is counted by kind",
    ),
    (
        "double-insert-loaded",
        "elif node.out is not None:\n            raise unexpected_output",
        "elif False:\n            raise unexpected_output",
        "an output that holds an event twice is none of ours",
    ),
    (
        "unexpected_output-adjust-loaded",
        "if node is None or node.out != element.vold:",
        "if node is None:",
        "an output that adjusts from an end it does not hold is none of ours",
    ),
    (
        "loaded-removal-stays",
        "            node.out = None\n            self._index.delete_if_unused(node)\n        elif",
        "            pass\n        elif",
        "promise 7: what the output has withdrawn is not loaded",
    ),
    (
        "loaded-end-unfiled",
        "self._index.set_out(node, element.ve)",
        "node.out = element.ve",
        "X2: a loaded adjust is where later stables find it",
    ),
    (
        "loaded-final-at-end",
        "if node.out is not None and node.out >= vc)",
        "if node.out is not None and node.out > vc)",
        "promise 7: what ends at the stable is half frozen and stays",
    ),
    (
        "snapshot-forgets-blame",
        "for at, node in enumerate(items) if node.blamed],",
        "for at, node in enumerate(items[:0])],",
        "a contradiction is reported once, also across a restore",
    ),
    (
        "snapshot-forgets-claims",
        "for at, node in enumerate(items) if node.claims],",
        "for at, node in enumerate(items[:0])],",
        "what was claimed only is not inserted by a restore",
    ),
    (
        "snapshot-unfiled",
        "        index.freeze(node for node in nodes if node.vs < self.max_stable)\n",
        "        index.newly_half_frozen(self.max_stable)\n",
        "X2 to X4: a restored index finds what stables concern",
    ),
    (
        "due-unordered",
        'for node in sorted(disputed, key=attrgetter("vs", "number")):',
        "for node in disputed:",
        "adjusts before a stable come in the order of start",
    ),
    (
        "second-opinion-of-joiners",
        "return node.ends[max(order, key=lambda source: (source.joined, source.stable))]",
        "return node.ends[max(order, key=lambda source: source.stable)]",
        "a joining input is asked last, however high its stable is",
    ),
    (
        "second-opinion-before-joining",
        "if end >= (self.max_stable if source.joined else source.joining_at)",
        "if end >= self.max_stable",
        "a joining input is asked about ends from its joining time on only",
    ),
    (
        "arrival-forgotten",
        'for node in sorted(disputed, key=attrgetter("vs", "number")):',
        'for node in sorted(disputed, key=attrgetter("vs")):',
        "within one vs adjusts come in the order of arrival, not that of queues",
    ),
)

_IN2T = _of(
    "in2t",
    (
        "claim-kept",
        "        self.claims.discard(source)\n",
        "",
        "a claim that was made good, or taken back, is none any more",
    ),
    (
        "all-tell",
        "return [source for source in self.ends if source not in claims]",
        "return list(self.ends)",
        "claims are counted from inserts",
    ),
    (
        "let-go-stays",
        "        del self.frozen[node.vs, node.payload]\n",
        "",
        "X5: nothing is kept of what is final, and the bound of the queues is what is half frozen",
    ),
    (
        "let-go-half-frozen",
        "        node.half_frozen = False\n",
        "",
        "promise 2: what is final is over, also where a queue still has it",
    ),
    (
        "let-go-lacked-by-some",
        "if len(node.ends) < len(self._lacking):",
        "if not node.ends:",
        "X3: nobody is blamed for lacking what is final",
    ),
    (
        "freeze-lacked-by-some",
        "if len(ends) < attached:",
        "if not ends:",
        "X3: an input that lacks an event is known also where another has it",
    ),
    (
        "deleted-lacking",
        "                lacks.pop(node, None)\n",
        "                pass\n",
        "X3: nobody is blamed for lacking what is final",
    ),
    (
        "output-deleted",
        "if node.out is None and not node.ends:",
        "if not node.ends:",
        "X1: what is on the output stays, also when no input has it",
    ),
    (
        "set-end-lacking",
        "        self._lacking[source].pop(node, None)\n        node.ends[source] = ve\n",
        "        node.ends[source] = ve\n",
        "X3: an input that has caught up does not lack the event",
    ),
    (
        "set-end-unswept",
        (
            "            if ends.size > 2 * len(self.frozen) + SLACK:\n"
            "                self._sweep()\n"
        ),
        "",
        "X5: a storm of adjusts must not make a queue grow",
    ),
    (
        "drop-end-claims",
        "        del node.ends[source]\n        node.withdraw_claim(source)\n",
        "        del node.ends[source]\n",
        "a claim that was taken back is none: a later insert is no claim",
    ),
    (
        "drop-end-blamed-again",
        "if node.half_frozen and source not in (node.blamed or ()):",
        "if node.half_frozen:",
        "X3: whoever was blamed is not looked for again",
    ),
    (
        "set-out-unqueued",
        "        self._by_out.push(out, node)\n",
        "",
        "X2: a half-frozen event is found by its new end",
    ),
    (
        "set-out-forgets-inputs",
        "if end < out:",
        "if end < node.vs:",
        "X2: where the output's end moves back, inputs that end the event earlier are found",
    ),
    (
        "set-out-unswept",
        ("        self._file(node)\n        self._sweep()\n\n    def _file"),
        ("        self._file(node)\n\n    def _file"),
        "X5: eager revisions must not make the queue grow",
    ),
    (
        "blamed-again",
        "        elif source in node.blamed:\n            return False\n",
        "",
        "a contradiction is reported once",
    ),
    (
        "freeze-lacked-by-none",
        (
            "                    if source not in ends and source not in blamed:\n"
            "                        lacks[node] = None\n"
        ),
        "                    pass\n",
        "X3: inputs that lack a half-frozen event are known",
    ),
    (
        "freeze-unfiled",
        ("lacks[node] = None\n            self._file(node)\n"),
        ("lacks[node] = None\n"),
        "X2: a half-frozen event is found by its ends",
    ),
    (
        "freeze-forgets-blame",
        "if source not in ends and source not in blamed:",
        "if source not in ends:",
        "X3: whom a quorum overruled is not looked for again",
    ),
    (
        "newcomer-lacks-nothing",
        "self._lacking[source] = dict.fromkeys(self.frozen.values())",
        "self._lacking[source] = {}",
        "X3: a new input lacks all that is half frozen",
    ),
    (
        "newcomer-lacks-the-unfrozen",
        "self._lacking[source] = dict.fromkeys(self.frozen.values())",
        "self._lacking[source] = dict.fromkeys(self)",
        "X3: nobody is to blame for lacking what is not half frozen",
    ),
    (
        "forgotten-still-blamed",
        "                node.blamed.discard(source)\n",
        "                pass\n",
        "O3: of a detached input nothing is left",
    ),
    (
        "forgotten-stays",
        (
            "                node.withdraw_claim(source)\n"
            "                self.delete_if_unused(node)\n"
        ),
        "                node.withdraw_claim(source)\n",
        "X1: what only a detached input had, and the output has not, is let go",
    ),
    (
        "forgotten-entries",
        (
            "            if node.ends.pop(source, None) is not None:\n"
            "                node.withdraw_claim(source)\n"
            "                self.delete_if_unused(node)\n"
        ),
        "            node.withdraw_claim(source)\n",
        "L3: every entry belongs to an attached input",
    ),
    (
        "stale-out-counts",
        "if n.half_frozen and n.out < t]",
        "if n.half_frozen]",
        "a stable does not look at an event for an end that was revised",
    ),
    (
        "stale-end-counts",
        "if n.half_frozen and n.ends.get(source, t) < t]",
        "if n.half_frozen]",
        "the same, of an input's end that was revised",
    ),
    (
        "deleted-is-due",
        "if n.half_frozen and n.ends.get(source, t) < t]",
        "if n.ends.get(source, t) < t]",
        "promise 2: what is final is over, also where a queue still has it",
    ),
    (
        "deleted-is-disputed",
        "in self._disputed.pop_before(t) if node.half_frozen]",
        "in self._disputed.pop_before(t)]",
        "promise 2: the same, of a contradicted event",
    ),
    (
        "due-twice",
        "found = list(dict.fromkeys(due))",
        "found = due",
        "an event that several queues give is due once",
    ),
    (
        "lacking-unordered",
        'return sorted(found, key=attrgetter("vs", "number"))',
        "return list(found)",
        "what an input lacks is reported in the order of start",
    ),
    (
        "walks-all",
        "found = list(dict.fromkeys(due))",
        "found = list(dict.fromkeys([*due, *self.frozen.values()]))",
        "cost: a stable looks at no half-frozen event that it does not concern",
    ),
    (
        "compaction-drops-the-live",
        "lambda node, end: node.half_frozen and node.out == end)",
        "lambda node, end: node.half_frozen and node.out != end)",
        "X2: an event is found by its end also after a storm of revisions",
    ),
    (
        "sweep-drops-the-live",
        "return node.half_frozen and node.ends.get(source) == end",
        "return node.half_frozen and node.out == end",
        "X2, of an input's end",
    ),
    (
        "let-go-at-end",
        "if node.out < t:",
        "if node.out <= t:",
        "ve = t is still half frozen: the event may be extended",
    ),
    (
        "refile-forgets-the-stable",
        "        self._stable = t\n",
        "",
        "cost: an end that is final already disputes nothing",
    ),
    (
        "refile-unfiled",
        "            else:\n                self._file(node)\n        self._sweep()\n",
        "        self._sweep()\n",
        "X2: an event that was due and lives is found again",
    ),
    (
        "refile-unswept",
        "                self._file(node)\n        self._sweep()\n",
        "                self._file(node)\n",
        "X5: ends of what is final are let go of",
    ),
    (
        "forgotten-claims",
        (
            "                node.withdraw_claim(source)\n"
            "                self.delete_if_unused(node)\n"
        ),
        "                self.delete_if_unused(node)\n",
        "O3: of a detached input nothing is kept, no claim either",
    ),
    (
        "set-end-unqueued",
        ("            ends.push(ve, node)\n            self._dispute(node)\n"),
        "            self._dispute(node)\n",
        "X2: an end before the output's is found by the stable of its input",
    ),
    (
        "set-end-undisputed",
        ("            ends.push(ve, node)\n            self._dispute(node)\n"),
        "            ends.push(ve, node)\n",
        "X2: a contradicted event follows also an end that is sent later",
    ),
    (
        "blamed-still-lacking",
        ("            self._lacking[source].pop(node, None)\n            self._dispute(node)\n"),
        "            self._dispute(node)\n",
        "X3: whoever was blamed is not looked for again",
    ),
    (
        "blamed-undisputed",
        ("            self._lacking[source].pop(node, None)\n            self._dispute(node)\n"),
        "            self._lacking[source].pop(node, None)\n",
        "X2: an event that its leader contradicts follows the ends of others",
    ),
    (
        "file-undisputed",
        "        if node.blamed:\n            self._dispute(node)\n",
        "",
        "X2: a contradicted event that was due is disputed on",
    ),
    (
        "disputed-at-stable",
        ("if self._stable <= end < node.out:\n                    self._disputed"),
        ("if self._stable < end < node.out:\n                    self._disputed"),
        "an end of max_stable is not final: a contradicted event may follow it",
    ),
    (
        "disputes-forgotten",
        "due += [node for node in self._disputed.pop_before(t) if node.half_frozen]",
        "pass",
        "an event that its leader contradicts follows the others with every stable",
    ),
    (
        "sweep-drops-disputes",
        "return node.half_frozen and end in node.ends.values()",
        "return False",
        "X2: disputes are found also after a storm of revisions",
    ),
)

_INDEX = _of(
    "index",
    (
        "freezes-at-vs",
        "while coming and coming[0] < t:",
        "while coming and coming[0] <= t:",
        "an event with vs = t is unfrozen and may vanish",
    ),
    (
        "popped-at-t",
        "while heap and heap[0] < t:",
        "while heap and heap[0] <= t:",
        "cost: a stable does not look at an event that ends at t: it is half frozen, not due",
    ),
    (
        "popped-counted",
        "        self.size -= len(found)\n",
        "",
        "the length of a queue is known, so that it is swept in time",
    ),
    (
        "sweep-keeps-repeats",
        "[node for node in dict.fromkeys(nodes) if counts(node, end)]",
        "[node for node in nodes if counts(node, end)]",
        "X5, Y5: an end that comes and goes must not make a queue grow",
    ),
    (
        "sweep-keeps-the-stale",
        "[node for node in dict.fromkeys(nodes) if counts(node, end)]",
        "list(dict.fromkeys(nodes))",
        "X5, Y5: stale entries are let go",
    ),
    (
        "sweeps-too-late",
        "if self.size <= 2 * most + SLACK:",
        "if self.size <= 20 * most + 10 * SLACK:",
        "X5, Y5: no queue is longer than twice what can count plus a constant",
    ),
    (
        "waits-twice",
        "            self.nodes[node.vs] = {}\n",
        "            del self.nodes[node.vs]\n",
        "X4, Y4: what comes and goes at a vs must not make it wait twice",
    ),
    (
        "alone-whatever-its-payload",
        "return found if found.payload == payload else None",
        "return found",
        "2.1: an event is known by its payload as well",
    ),
    (
        "alone-and-replaced",
        "self.nodes[vs] = {found.payload: found, payload: node}",
        "self.nodes[vs] = {payload: node}",
        "promises 1, 2: a second event at a vs does not take the first one's place",
    ),
    (
        "added-uncounted",
        "        self._made += 1\n        self._waiting += 1\n",
        "        self._made += 1\n",
        "how many events are live is known without counting them",
    ),
    (
        "frozen-still-counted",
        "        self._waiting -= len(found)\n",
        "",
        "the same: what is half frozen does not wait any more",
    ),
    (
        "dropped-still-counted",
        "        self._waiting -= 1\n",
        "",
        "the same: what nobody has is gone",
    ),
    (
        "frozen-not-counted",
        "return self._waiting + len(self.frozen)",
        "return self._waiting",
        "the same: what is half frozen is live",
    ),
    (
        "frozen-not-found",
        "            return self.frozen.get((vs, payload))\n",
        "            return None\n",
        "a half-frozen event is found by its key",
    ),
    (
        "frozen-in-any-order",
        'yield from sorted(self.frozen.values(), key=attrgetter("vs", "number"))',
        "yield from list(self.frozen.values())",
        "promise 7: at the end events come in the order of start, not that of filing",
    ),
    (
        "frozen-by-vs-alone",
        'yield from sorted(self.frozen.values(), key=attrgetter("vs", "number"))',
        'yield from sorted(self.frozen.values(), key=attrgetter("vs"))',
        "promise 7: within one vs it is the order of arrival",
    ),
    (
        "deleted-while-walking",
        "return list(found.values()) if isinstance(found, dict) else [found]",
        "return found.values() if isinstance(found, dict) else [found]",
        "an input that leaves takes its events along while they are walked",
    ),
    (
        "touches-nothing",
        "        self.touched += len(found)\n",
        "",
        "the count of work, on which the cost tests rest, counts what is newly half frozen",
    ),
)

_LMR4 = _of(
    "lmr4",
    (
        "restored-half-frozen-unfiled",
        "                index.file(node)\n",
        "                index.frozen[node.vs, node.payload] = node\n",
        "Y2 to Y4: a restored index finds what stables concern",
    ),
    (
        "batch-late-at-stable",
        "if vs < max_stable:\n                    node = frozen",
        "if vs <= max_stable:\n                    node = frozen",
        "an insert with vs = max_stable is unfrozen and goes out",
    ),
    (
        "batch-half-frozen-late",
        "node = frozen.get((vs, payload))",
        "node = None",
        "an insert of what is half frozen counts, and is not late",
    ),
    (
        "batch-alone-whatever-its-payload",
        "node = None if found is None or found.payload != payload else found",
        "node = found",
        "2.1: an event is known by its payload as well",
    ),
    (
        "batch-old-index",
        "            nodes, frozen = index.nodes, index.frozen\n        source.inserts",
        "            nodes = index.nodes\n        source.inserts",
        "M4: what the end of the stream has forgotten is not found again in the same batch",
    ),
    (
        "batch-own-stable",
        "own_stable <= (vs := element.vs) < element.ve:",
        "max_stable <= (vs := element.vs) < element.ve:",
        "promise 5: an insert below the input's own stable is a breach",
    ),
    (
        "batch-old-stable",
        ("own_stable, max_stable = source.stables[partition], self.max_stable\n            nodes"),
        ("own_stable = source.stables[partition]\n            nodes"),
        "promise 2: within a batch each stable counts for what follows",
    ),
    (
        "batch-told-uncounted",
        "source.inserts += new + matched + late",
        "source.inserts += new + late",
        "an input is counted whether or not it contributes anything new",
    ),
    (
        "late-at-stable",
        "if vs < self.max_stable:\n                source.late += 1\n                return\n",
        "if vs <= self.max_stable:\n                source.late += 1\n                return\n",
        "an insert with vs = max_stable is unfrozen and goes out",
    ),
    (
        "copies-go-out",
        "if len(ends) > len(node.out):\n                    self._emit",
        "if len(ends) >= len(node.out):\n                    self._emit",
        "line 9: an insert goes out when its input has sent more than the output has",
    ),
    (
        "half-frozen-told-directly",
        "self._index.revise(node, source, None, ve)",
        "node.revise(source, None, ve)",
        "Y3: the count of what an input holds follows its inserts",
    ),
    (
        "unknown-end-adjusted",
        "if ends is None or not has(ends, vold):",
        "if ends is None:",
        "an adjust whose old end its input does not hold is a breach and ignored",
    ),
    (
        "unknown-told-as-wrong",
        "unknown = BreachKind.UNKNOWN_EVENT if ends is None else BreachKind.WRONG_VOLD",
        "unknown = BreachKind.UNKNOWN_EVENT",
        "promise 5: an old end that is not held differs from an event that is not",
    ),
    (
        "removal-counts",
        "left = ve if ve > vs else None",
        "left = ve",
        "a removal takes an event away and no more (line 15 as printed counts it)",
    ),
    (
        "unused-stays",
        (
            "        if left is None and not node.half_frozen:\n"
            "            self._index.delete_if_unused(node)\n"
        ),
        "",
        "Y1: what nobody has any more is let go",
    ),
    (
        "says-one",
        "while len(node.out) < self._awaited(node):",
        "if len(node.out) < self._awaited(node):",
        "what a change of leader lets out goes out at once, however many events",
    ),
    (
        "replay_input-emits",
        "            case _ if self._replaying:\n                return 0\n",
        "",
        "promise 7: what a policy held back stays held back while recalling",
    ),
    (
        "anyone-leads",
        "for leader in self._leaders())",
        "for leader in self.inputs.values())",
        "insert=leader waits for an input with the highest stable",
    ),
    (
        "quorum-needs-one-more",
        "return counts[witnesses - 1] if witnesses <= len(counts) else 0",
        "return counts[witnesses] if witnesses < len(counts) else 0",
        "insert=quorum(n) lets an event out once n inputs have it",
    ),
    (
        "quorum-of-the-most",
        "counts = sorted(map(len, node.ends.values()), reverse=True)",
        "counts = sorted(map(len, node.ends.values()))",
        "insert=quorum(n) lets out as many as n inputs have",
    ),
    (
        "says-what-was-told",
        "if ve in beyond(node.ends[source], node.out):\n            return ve",
        "return ve",
        "what goes out is an end that somebody has more often than the output",
    ),
    (
        "moves-the-first",
        "moved = vold if vold in surplus else surplus[0]",
        "moved = surplus[0]",
        "eagerly the very event that was revised is revised",
    ),
    (
        "removes-too-much",
        "if not node.half_frozen and len(node.out) > len(ends):",
        "if not node.half_frozen:",
        "an eager removal takes no more than the input lacks",
    ),
    (
        "removes-half-frozen",
        "if not node.half_frozen and len(node.out) > len(ends):",
        "if len(node.out) > len(ends):",
        "promise 2: a removal never touches what is half frozen",
    ),
    (
        "reflects-below-stable",
        "elif ve >= self.max_stable and ve in",
        "elif ve in",
        "promise 2: a revision that is final on the output is not reflected",
    ),
    (
        "reflects-beyond-stable-only",
        "elif ve >= self.max_stable and ve in",
        "elif ve > self.max_stable and ve in",
        "ve = max_stable is still half frozen: the revision is legal and goes out",
    ),
    (
        "reflects-twice",
        "and ve in beyond(ends, node.out):",
        "and has(ends, ve):",
        "the output gets no end more often than the input has it",
    ),
    (
        "quorum-unasked",
        "if leader is None or node.ends.get(leader) != node.out:",
        "if node.ends.get(voters[0]) != node.out:",
        "under a quorum the majority decides, also where the furthest agrees with the output",
    ),
    (
        "due-unfiled",
        ("            index.file(node)\n        index.sweep()\n\n    def _follow"),
        (
            "            if not node.half_frozen and node.vs >= self.max_stable:\n"
            "                index.file(node)\n"
            "        index.sweep()\n"
            "\n"
            "    def _follow"
        ),
        "Y2: an event that was due and lives is found again, and a final one let go",
    ),
    (
        "freeze-uncompacted",
        ("            index.file(node)\n        index.sweep()\n\n    def _follow"),
        ("            index.file(node)\n\n    def _follow"),
        "Y5: final nodes are let go",
    ),
    (
        "chatty-at-out",
        "if vold != ve and (vold < t or ve < t):",
        "if vold != ve and (vold <= t or ve < t):",
        "promise 3: an end of t is not final yet, so no adjust is forced",
    ),
    (
        "never-shortened",
        "if vold != ve and (vold < t or ve < t):",
        "if vold != ve and vold < t:",
        "promise 1: an end that becomes final by the leader is taken over",
    ),
    (
        "wants-what-is-final",
        "desired = node.live(leader, self.max_stable)",
        "desired = node.ends.get(leader, [])",
        "promise 2: what a leader has of what is final is not compared",
    ),
    (
        "final-ends-make-up",
        "if not half_frozen or len(node.live(leader, self.max_stable)) == len(node.out):",
        "if not half_frozen or len(node.ends.get(leader, [])) == len(node.out):",
        "what an input has of what is final makes up for nothing",
    ),
    (
        "number-not-compared",
        "if not half_frozen or len(node.live(leader, self.max_stable)) == len(node.out):",
        "if not half_frozen or leader in node.ends:",
        "promise 2: what is half frozen keeps its number of events",
    ),
    (
        "newly-as-many-as-out",
        "count = len(node.out) if half_frozen else max(len(live[s]) for s in voters)",
        "count = len(node.out)",
        "what any of the voters has is kept",
    ),
    (
        "half-frozen-as-many-as-most",
        "count = len(node.out) if half_frozen else max(len(live[s]) for s in voters)",
        "count = max(len(live[s]) for s in voters)",
        "promise 2: a half-frozen key has as many events as the output emitted",
    ),
    (
        "views-at-t",
        "views = {s: tuple(end for end in live[s] if end < t)",
        "views = {s: tuple(end for end in live[s] if end <= t)",
        "voters that differ at t or later agree about what becomes final",
    ),
    (
        "views-beyond-t",
        "views = {s: tuple(end for end in live[s] if end < t)",
        "views = {s: tuple(live[s])",
        "voters that differ beyond t agree about what becomes final",
    ),
    (
        "as-many-blamed",
        "if len(live[source]) < count:",
        "if len(live[source]) <= count:",
        "promise 5: who has as many events but other ends disagrees, and lacks nothing",
    ),
    (
        "outvoted-unblamed",
        "elif source not in views or views[source] != majority:",
        "elif source not in views:",
        "a voter that the quorum overrules is to blame",
    ),
    (
        "surplus-unblamed",
        "elif source not in views or views[source] != majority:",
        "elif source in views and views[source] != majority:",
        "an input with too many events of what is half frozen disagrees",
    ),
    (
        "minority-decides",
        "return next(source for source in views if views[source] == majority)",
        "return next(iter(views))",
        "the majority of the voters decides about ends",
    ),
    (
        "second-opinion-of-the-first",
        "return max(joined, key=lambda source: source.stable, default=None)",
        "return joined[0] if joined else None",
        "a key follows the highest input that has as many events",
    ),
    (
        "no-second-opinion",
        "return max(joined, key=lambda source: source.stable, default=None)",
        "return None",
        "a key follows another input where its leader contradicts what is out",
    ),
    (
        "gap-excuses-everything",
        "excused = node.vs < source.gap_until and kind is",
        "excused = kind is",
        "only an accepted gap excuses what is missing",
    ),
    (
        "gap-excuses-its-end",
        "excused = node.vs < source.gap_until",
        "excused = node.vs <= source.gap_until",
        "a gap excuses what started before its end, and no more",
    ),
    (
        "blamed-again",
        "if self._index.blame(node, source) and not excused:",
        "self._index.blame(node, source)\n        if not excused:",
        "a contradiction is reported once",
    ),
    (
        "kept-event-unnamed",
        "missed = beyond(node.out, node.ends.get(source, [])) or node.out",
        "missed = node.out",
        "a breach names the event that its input contradicts",
    ),
    (
        "unexpected_output-adjust-loaded",
        "if node is None or not has(node.out, element.vold):",
        "if node is None:",
        "an output that adjusts from an end it does not hold is none of ours",
    ),
    (
        "loaded-removal-stays",
        "            self._index.take_out(node, element.vold)\n            self._index.delete",
        "            self._index.delete",
        "promise 7: what the output has withdrawn is not loaded",
    ),
    (
        "snapshot-forgets-blame",
        "for at, node in enumerate(items) if node.blamed],",
        "for at, node in enumerate(items[:0])],",
        "a contradiction is reported once, also across a restore",
    ),
    (
        "snapshot-unfiled",
        "        self._index.stable = head.max_stable\n",
        "",
        "Y2 to Y4: a restored index finds what stables concern",
    ),
    (
        "removes-the-last",
        "*((end, None) for end in surplus[:removed]),",
        "*((end, None) for end in surplus[len(surplus) - removed :]),",
        "the fewest changes: what is removed is what would have to be moved",
    ),
    (
        "adds-the-last",
        "*((None, end) for end in deficit[:added]),",
        "*((None, end) for end in deficit[len(deficit) - added :]),",
        "the fewest changes: what is added is what becomes final first",
    ),
    (
        "moves-what-may-wait",
        "for vold, ve in moved if vold < t or ve < t)",
        "for vold, ve in moved)",
        "promise 3: ends that are not below t wait",
    ),
    (
        "moves-at-t",
        "for vold, ve in moved if vold < t or ve < t)",
        "for vold, ve in moved if vold <= t or ve < t)",
        "promise 3: an end of t is not final yet",
    ),
    (
        "moves-from-below-only",
        "for vold, ve in moved if vold < t or ve < t)",
        "for vold, ve in moved if vold < t)",
        "promise 1: what the leader ends below t, the output must too",
    ),
    (
        "batch-own-old-stable",
        ("own_stable, max_stable = source.stables[partition], self.max_stable\n            nodes"),
        ("max_stable = self.max_stable\n            nodes"),
        "promise 5, of a stable in the same batch",
    ),
    (
        "batch-late-uncounted",
        "source.late += late",
        "source.late += 0",
        "an element about what is final is counted as late",
    ),
    (
        "batch-half-frozen-told-directly",
        "                        add_first(node, source, element.ve)",
        "                        node.ends[source] = [element.ve]",
        "Y2, Y3: an end of a half-frozen event is counted, and where stables find it",
    ),
    (
        "second-opinion-of-joiners",
        "joined = [source for source in right if source.joined]",
        "joined = right",
        "a joining input is not followed",
    ),
)

_IN3T = _of(
    "in3t",
    (
        "live-beyond-stable",
        "return ends[bisect_left(ends, t) :]",
        "return ends[bisect_right(ends, t) :]",
        "an end of max_stable is live: it may be extended",
    ),
    (
        "empty-entry-stays",
        "        elif not ends:\n            del self.ends[source]\n",
        "",
        "Y1: an input without events has no entry",
    ),
    (
        "output-deleted",
        "if not node.out and not node.ends:",
        "if not node.ends:",
        "Y1: what is on the output stays, also when no input has it",
    ),
    (
        "final-at-end",
        "final = bisect_left(out, t)",
        "final = bisect_right(out, t)",
        "an end of t is half frozen: the output must not forget it",
    ),
    (
        "final-stays",
        "if out and out[0] < t:",
        "if len(out) > 1 and out[0] < t:",
        "Y1: what is final is let go, also the last event of a key",
    ),
    (
        "doubles-of-the-last",
        "self._doubles -= min(final, len(out) - 1)",
        "self._doubles -= final",
        "the number of live events is that of the output's",
    ),
    (
        "file-unqueued",
        "if end is not None and end < first:",
        "if False:",
        "Y2: where an input ends an event before the output does, its stable finds it",
    ),
    (
        "taken-out-stays",
        "        del self.frozen[node.vs, node.payload]\n",
        "",
        "Y1: nothing is kept of a key when all its events are final",
    ),
    (
        "forgotten-still-blamed",
        "                node.blamed.discard(source)\n",
        "                pass\n",
        "O3: of a detached input nothing is left",
    ),
    (
        "forgotten-stays",
        (
            "            if node.ends.pop(source, None) is not None:\n"
            "                self.delete_if_unused(node)\n"
        ),
        "            node.ends.pop(source, None)\n",
        "Y1: what only a detached input had, and the output has not, is let go",
    ),
    (
        "forgotten-records",
        "        self._by_end.pop(source, None)\n",
        "",
        "what only a detached input ended early is no stable's concern",
    ),
    (
        "revision-unqueued",
        "        self._watch(node, source)\n\n    def add_first",
        "\n    def add_first",
        "Y2: an end before the output's is found by the stable of its input",
    ),
    (
        "put-out-unordered",
        "            self._doubles += 1\n            insort(node.out, ve)\n",
        "            self._doubles += 1\n            node.out.append(ve)\n",
        "Y1: ends are sorted",
    ),
    (
        "move-later-unqueued",
        "if node.half_frozen and node.out[0] != first:",
        "if node.half_frozen and node.out[0] < first:",
        "Y2: where the output's first end moves back, it is found there",
    ),
    (
        "move-forgets-inputs",
        "            for source in node.ends:\n                self._watch(node, source)\n",
        "",
        "Y2: where the output's end moves back, inputs that end the event earlier are found",
    ),
    (
        "take-out-uncounted",
        "        self._doubles -= bool(node.out)\n",
        "",
        "the number of live events is that of the output's",
    ),
    (
        "blame-is-always-new",
        "return not known",
        "return True",
        "a contradiction is reported once",
    ),
    (
        "counts-final-ends",
        "len(ends) - bisect_left(ends, self.stable) == len(node.out)",
        "len(ends) == len(node.out)",
        "Y3: what an input has of what is final makes up for nothing",
    ),
    (
        "contradictions-forgotten",
        "found = {node: None for source in sources for node in self._differing[source]}",
        "found: dict[Node, None] = {}",
        "promise 5: whoever lacks a half-frozen event is to blame",
    ),
    (
        "stale-out-counts",
        "if n.half_frozen and n.out[0] < t)",
        "if n.half_frozen)",
        "cost: a stable does not look at an event for an end that was revised",
    ),
    (
        "stale-end-counts",
        "return node.half_frozen and end is not None and end < t",
        "return node.half_frozen",
        "cost: the same, of an input's end that was revised",
    ),
    (
        "deleted-is-due",
        "return node.half_frozen and end is not None and end < t",
        "return end is not None and end < t",
        "promise 2: what is final is over, also where a queue still has it",
    ),
    (
        "sweep-keeps-revised-outs",
        "return node.half_frozen and node.out[0] == end",
        "return node.half_frozen",
        "Y5: ends that the output has revised are let go of",
    ),
    (
        "sweep-keeps-revised-ends",
        "return node.half_frozen and self._first_end(node, source) == end",
        "return node.half_frozen",
        "Y5: ends that an input has revised are let go of",
    ),
    (
        "live-is-old",
        "        self.stable = t\n        return sorted",
        "        return sorted",
        "Y1: from a stable on what is below it is final",
    ),
    (
        "due-unordered",
        'return sorted(found, key=attrgetter("vs", "number"))',
        "return list(found)",
        "changes before a stable come in the order of start",
    ),
    (
        "arrival-forgotten",
        'return sorted(found, key=attrgetter("vs", "number"))',
        'return sorted(found, key=attrgetter("vs"))',
        "promise 7: within one vs it is the order of arrival, not that of heaps",
    ),
    (
        "first-end-beyond-stable",
        "first = bisect_left(ends, self.stable)",
        "first = bisect_right(ends, self.stable)",
        "Y2: an end of max_stable is live",
    ),
    (
        "watches-too-late",
        ("if end is not None and end < node.out[0]:\n            queue"),
        ("if end is not None and end < node.out[0] - 1:\n            queue"),
        "Y2: an end just before the output's is found",
    ),
    (
        "compaction-drops-the-live",
        "queue.sweep(len(self.frozen), partial(self._is_first_of, source))",
        "queue.sweep(len(self.frozen), lambda node, end: _is_first_of_output(node, end))",
        "Y2: an input's early end is found also after a storm of revisions",
    ),
    (
        "counted-once",
        "            position += 1\n        else:\n            found.append(end)",
        "            pass\n        else:\n            found.append(end)",
        "an event given twice counts twice",
    ),
    (
        "removes-all-equal",
        "    del ends[bisect_right(ends, end) - 1]\n",
        "    del ends[bisect_left(ends, end) : bisect_right(ends, end)]\n",
        "a revision of one of two equal events leaves the other",
    ),
    (
        "differing-unfiled",
        (
            "            if not self._agrees(node, source):\n"
            "                differing[node] = None\n"
        ),
        "",
        "Y3: an input with another number of events than the output is found",
    ),
    (
        "blamed-differs",
        ("        if node.blamed and source in node.blamed:\n            return True\n"),
        "",
        "cost: what an input lacks is looked for once",
    ),
    (
        "taken-out-differs",
        "            differing.pop(node, None)\n",
        "            pass\n",
        "Y3: what is final, or agrees again, is not looked at",
    ),
    (
        "taken-out-half-frozen",
        "        node.half_frozen = False\n        for differing",
        "        for differing",
        "promise 2: what is final is over, also where a queue still has it",
    ),
    (
        "newcomer-agrees",
        "self._differing[source] = dict.fromkeys(self.frozen.values())",
        "self._differing[source] = {}",
        "Y3: a new input lacks all that is half frozen",
    ),
    (
        "revision-agrees-not",
        ("            self._differing[source].pop(node, None)\n        else:"),
        "            pass\n        else:",
        "Y3: an input that has caught up does not differ",
    ),
    (
        "first-word-agrees-not",
        ("            self._differing[source].pop(node, None)\n        if ve"),
        "            pass\n        if ve",
        "Y3: an input that has caught up does not differ",
    ),
    (
        "first-word-of-several-agrees",
        "        if len(node.out) == 1:\n            self._differing",
        "        if node.out:\n            self._differing",
        "Y3: an input with one of two events lacks one",
    ),
    (
        "first-word-unwatched",
        "        if ve < node.out[0]:\n            self._watch(node, source)\n\n    def put_out",
        "\n    def put_out",
        "Y2: an end before the output's is found by the stable of its input",
    ),
    (
        "first-word-final-counts",
        "        if ve < self.stable:\n            return",
        "        if False:\n            return",
        "Y3: an event that is final already is no live one",
    ),
    (
        "revision-differs-not",
        ("            self._differing[source][node] = None\n        self._watch"),
        ("            pass\n        self._watch"),
        "Y3: an input that takes back a half-frozen event lacks it",
    ),
    (
        "walks-all",
        "found = {node: None for source in sources for node in self._differing[source]}",
        "found = {node: None for node in self if node.half_frozen}",
        "cost: a stable looks at no half-frozen key that it does not concern",
    ),
    (
        "only-the-sources-queues",
        "        for source, queue in self._by_end.items():\n            ending",
        "        for source, queue in ((s, self._by_end[s]) for s in sources):\n            ending",
        "Y3: an input's end that is passed changes how many live events it has",
    ),
    (
        "revision-unswept",
        (
            "            if queue.size > 2 * len(self.frozen) + SLACK:\n"
            "                self.sweep()\n"
        ),
        "",
        "Y5: a storm of adjusts must not make a queue grow",
    ),
    (
        "output-unswept",
        (
            "            if self._by_out.size > 2 * len(self.frozen) + SLACK:\n"
            "                self.sweep()\n"
        ),
        "",
        "Y5: eager revisions must not make the queue grow",
    ),
)

_ORDERED = (
    *_of(
        "ordered",
        (
            "joining-at-itself-dropped",
            "        if element.vs < source.joining_at:",
            "        if element.vs <= source.joining_at:",
            "what begins at joining_at counts",
        ),
        (
            "joiner-does-not-wait",
            "        elif not source.joined:\n",
            "        elif False:\n",
            "a joiner that is ahead must not make the output lose what others have yet to say",
        ),
        (
            "state-after-the-end",
            "        if t == INFINITY:\n            self._clear()\n",
            "        pass\n",
            "Stable(INFINITY) ends the stream: all state goes",
        ),
        (
            "leaver-still-waits",
            "        self._waiting.pop(source, None)\n\n    def _emit",
            "        pass\n\n    def _emit",
            "O3: of a detached input nothing is left",
        ),
        (
            "takes-up-too-much",
            "            while waiting and not self._goes_out(source, waiting[0]):\n",
            "            while waiting:\n",
            "what the output has not emitted yet waits",
        ),
        (
            "takes-up-joining-inputs",
            "for source in [source for source in self._waiting if source.joined]:",
            "for source in list(self._waiting):",
            "a joiner that is ahead must not make the output lose what others have yet to say",
        ),
        (
            "cut-off-stays-unsaid",
            "        if source is not None and source.joined:  # what waits",
            "        if False and source:  # what waits",
            "what was cut off the output is emitted",
        ),
        (
            "restored-without-max-vs",
            "                self.max_vs = vs\n",
            "",
            "a restored operator knows the latest vs",
        ),
        (
            "snapshot-forgets-waiting",
            "        for source, inserts in self._waiting.items():\n",
            "        for source, inserts in ():\n",
            "a snapshot holds what joining inputs have waiting",
        ),
        (
            "ties-in-r0",
            "if step < 0 or (step == 0 and self.case is Case.R0):",
            "if step < 0:",
            "in R0 vs is strictly increasing, under every policy",
        ),
        (
            "below-stable",
            "if element.vs < self.max_vs or element.vs < self.max_stable:",
            "if element.vs < self.max_vs:",
            "promise 2: an insert below max_stable is dropped (as printed it goes out)",
        ),
        (
            "late-at-stable",
            "if element.vs < self.max_vs or element.vs < self.max_stable:",
            "if element.vs < self.max_vs or element.vs <= self.max_stable:",
            "an insert with vs = max_stable is legal and goes out",
        ),
        (
            "ties-dropped",
            "if element.vs < self.max_vs or element.vs < self.max_stable:",
            "if element.vs <= self.max_vs or element.vs < self.max_stable:",
            "events with the latest vs may come in any order",
        ),
        (
            "place-kept",
            "            source.front = element.vs\n            source.at_front = 0\n",
            "            source.front = element.vs\n",
            "in R1 a higher vs starts the counts anew",
        ),
        (
            "advanced-over-the-old",
            "        self.max_vs = vs\n        self._clear()\n",
            "        self.max_vs = vs\n",
            "a higher vs forgets the events at the one before",
        ),
        (
            "short-cut-past-the-order",
            "    process_batch = LMerge.process_batch  # no short cut past `_insert`\n",
            "",
            "inputs are held to their order also in batches",
        ),
    ),
    *_of(
        "lmr0",
        (
            "other-event-unseen",
            "            self._blame(source, BreachKind.BROKE_CASE, element)\n\n    def _clear",
            "            pass\n\n    def _clear",
            "an input that has another event at the latest vs is detected",
        ),
    ),
    *_of(
        "lmr1",
        (
            "breach-counts",
            (
                "            self._blame(source, BreachKind.BROKE_CASE, element)\n"
                "            return\n        source.at_front = place + 1"
            ),
            (
                "            self._blame(source, BreachKind.BROKE_CASE, element)\n"
                "        source.at_front = place + 1"
            ),
            "another event than the others have at that place does not count",
        ),
    ),
    *_of(
        "lmr2",
        (
            "teller-forgotten",
            "        tie.contributing_inputs.append(source)\n",
            "",
            "a second insert by one input is detected, whoever was first",
        ),
        (
            "other-end-unseen",
            "if element.ve != tie.ve:",
            "if False:",
            "an insert with another end than is out is detected",
        ),
        (
            "leaver-still-tells",
            "                tie.contributing_inputs.remove(source)\n",
            "                pass\n",
            "T3: every contributing input is attached",
        ),
        (
            "loaded-tie-refused",
            "return element.payload in self._tied",
            "return True",
            "an output with several events at one vs is ours",
        ),
    ),
)

_POLICY = (
    *_of(
        "policy",
        (
            "share-rounded-down",
            "return ceil(Fraction(share) * attached)",
            "return int(Fraction(share) * attached)",
            "a fraction of the attached inputs is rounded up",
        ),
        (
            "quorum-needs-no-index",
            'return self.insert != "first" or self.stable.startswith("quorum")',
            'return self.insert != "first"',
            "inputs that vote on what is frozen need an index",
        ),
        (
            "whole-share-refused",
            "0 < float(argument) <= 1",
            "0 < float(argument) < 1",
            "quorum(1.0) is all of the attached inputs",
        ),
        (
            "quorum-of-none",
            "return int(argument) >= 1",
            "return int(argument) >= 0",
            "a quorum has at least one input",
        ),
        (
            "fractional-stable-quorum",
            'return where == "insert" and 0 <',
            "return 0 <",
            "stable=quorum(k) counts inputs",
        ),
        (
            "share-of-a-binary-fraction",
            "return ceil(Fraction(share) * attached)",
            "return ceil(float(share) * attached)",
            "a share is the decimal fraction that was written: 0.07 of 100 inputs are 7",
        ),
    ),
    *_of(
        "factory",
        (
            "restricted-is-keyed",
            "class _IndexedR1(Restricted, LMR4):",
            "class _IndexedR1(Restricted, LMR3):",
            "R1 has no key: under a policy that remembers it is a multiset",
        ),
        (
            "lean-for-all",
            "classes = _INDEXED if policy.remembers else _LEAN",
            "classes = _LEAN",
            "R0 to R2 keep no events that a policy could hold back",
        ),
        (
            "missed-is-lost",
            "        missed += weaker.replay_input(name, (element,), partition)\n",
            "        weaker.replay_input(name, (element,), partition)\n",
            "`weakened` gives what the stronger case had missed",
        ),
        (
            "incarnations-lost",
            "    weaker.attach_like(merge)\n",
            (
                "    for name, source in merge.inputs.items():\n"
                "        weaker.attach(name, source.joining_at, len(source.stables))\n"
            ),
            "O2, O3: the weaker operator has the same inputs, their incarnations and gaps",
        ),
    ),
)

_FORMATS = (
    *_of(
        "wire",
        (
            "stable-kept",
            "            if type(element) is Stable:\n                return element\n",
            "",
            "W4: no stable is kept",
        ),
        (
            "kept-beyond-the-records",
            "or len(self.seen) >= self._entries:",
            "or len(self.seen) > self._entries:",
            "W4: no more records are kept than the limit",
        ),
        (
            "records-kept-twice-over",
            "kept_records // 2, kept_bytes // 2",
            "kept_records, kept_bytes // 2",
            "W4: the limits are those of both generations",
        ),
        (
            "bytes-kept-twice-over",
            "kept_records // 2, kept_bytes // 2",
            "kept_records // 2, kept_bytes",
            "W4: the limits are those of both generations",
        ),
        (
            "kept-beyond-the-bytes",
            "if self._held + size > self._kept_bytes or len",
            "if self._held > self._kept_bytes or len",
            "W4: no more bytes are kept than the limit",
        ),
        (
            "generation-not-filled",
            "if self._held + size > self._kept_bytes or len",
            "if self._held + size >= self._kept_bytes or len",
            "what the limit allows is kept",
        ),
        (
            "oversized-kept",
            "if size > self._kept_bytes or not self._entries:",
            "if not self._entries:",
            "W4: a record that is larger than a generation is not kept, and drives nothing out",
        ),
        (
            "kept-without-room",
            "if size > self._kept_bytes or not self._entries:",
            "if size > self._kept_bytes:",
            "W4: a decoder may keep nothing",
        ),
        (
            "generation-lost",
            "self._old, self.seen, self._held = self.seen, Generation(self._meet), 0",
            "self._old, self.seen, self._held = {}, Generation(self._meet), 0",
            "what was decoded lately is kept when a generation is full",
        ),
        (
            "generation-kept",
            "self._old, self.seen, self._held = self.seen, Generation(self._meet), 0",
            "self._old |= self.seen\n            self.seen, self._held = Generation(self._meet), 0",
            "W4: what nobody says any more is forgotten",
        ),
        (
            "new-generation-charged",
            "self._old, self.seen, self._held = self.seen, Generation(self._meet), 0",
            "self._old, self.seen = self.seen, Generation(self._meet)",
            "a new generation holds no bytes yet",
        ),
        (
            "bytes-uncounted",
            "        self._held += size\n",
            "",
            "W4: no more bytes are kept than the limit",
        ),
        (
            "entry-uncharged",
            "size = len(record) + _ENTRY_BYTES",
            "size = len(record)",
            "W4: an entry takes more than the text of its record",
        ),
        (
            "old-not-asked",
            "element = self._old.get(record)",
            "element = None",
            "W4: while a record is kept it gives the object that it gave before",
        ),
        (
            "old-not-renewed",
            "                return element\n        size =",
            (
                "                return element\n        else:\n            return element\n"
                "        size ="
            ),
            "what is asked for again and again is kept",
        ),
        (
            "kept-for-all",
            "        self.seen = Generation(self._meet)\n",
            '        self.seen = globals().setdefault("kept", Generation(self._meet))\n',
            "W4: no decoder says what another one has read, by its own rule and limits",
        ),
        package="formats",
    ),
    *_of(
        "payload",
        (
            "written-otherwise-kept-as-read",
            "if text is raw and held",
            "if held",
            "P1: what was not canonical is not when it comes again, either",
        ),
        (
            "kept-beyond-the-bytes",
            "held <= self._bytes and ",
            "",
            "P4: no more bytes are kept than the limit",
        ),
        (
            "kept-beyond-the-entries",
            " and len(self.young) < self._entries:",
            ":",
            "P4: no more entries are kept than the limit",
        ),
        (
            "kept-one-too-many",
            "and len(self.young) < self._entries:",
            "and len(self.young) <= self._entries:",
            "P4: no more entries are kept than the limit",
        ),
        (
            "kept-uncounted",
            "            self._held = held\n",
            "",
            "P4: no more bytes are kept than the limit",
        ),
        package="formats",
    ),
)

MUTANTS = (*_OPERATOR, *_LMR3, *_IN2T, *_INDEX, *_LMR4, *_IN3T, *_ORDERED, *_POLICY, *_FORMATS)
"""All of them, in the order in which they run."""
