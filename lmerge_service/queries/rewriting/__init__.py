"""Other logical plans of a query: rules by family, and all that they make of a plan.

A rule is of class E if both of its sides have equal TDBs, whatever the input, or of class S if only
their snapshots are equal. Replicas of a query may differ by E-rules freely; by S-rules only below
nodes whose results depend on snapshots alone.
"""

from lmerge_service.queries.rewriting.closure import RULES, Variant, variants
from lmerge_service.queries.rewriting.rules import Rule

__all__ = ("RULES", "Rule", "Variant", "variants")
