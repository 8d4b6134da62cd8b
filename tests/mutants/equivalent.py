"""Mutants that no test can kill, with the reason why what they change cannot be observed."""

__all__ = ("EQUIVALENT",)

_CORE = "lmerge_service.core."
_FORMATS = "lmerge_service.formats."

EQUIVALENT = {
    f"{_CORE}baselines:_Index.before/boolean/1": "whether a minimum counts, where there is none",
    f"{_CORE}expiry:Expiry.schedule/boundary/1": "a key is scheduled again at the same time",
    f"{_CORE}in2t:In2t._sweep/operand/1": "a node that was let go ended below the stable, and its"
    " entry at that end was taken out then",
    f"{_CORE}in3t:In3t.file/drop/8": "a short cut: equal ends agree, and none is before the first",
    f"{_CORE}inputs:Input.__init__/boolean/1": "whoever makes an input sets it",
    f"{_FORMATS}bulk:Recogniser._look/number/1": "from which share of simple records on it is worth"
    " looking: time alone depends on it",
    f"{_FORMATS}dialects.tables:Facts.saved/drop/1": "facts have no state, so none is looked at",
    f"{_CORE}lmr3:LMR3._freeze/boundary/1": "a short cut: to follow a leader whose end the output"
    " has emits nothing",
}
