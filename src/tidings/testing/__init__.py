"""Tools to test against, for Tidings and for those who build on it.

oracle       every filter on every event, the plain way
conformance  the laws that every matcher is held to; placement_conformance: every placement
generate     domains and events at random; filter_texts: filters; cases: all three together
strategies   the same for Hypothesis
workloads    bluedove, alerts, strings, mixed: what benchmarks name, defined once
xml_workloads  bibliography, dtd: the same for path queries over XML
data         real events, where there are any
spark        Spark as an independent judge
agreement    Spark, the interpreter and the matcher against each other; fuzz: in bulk, `make fuzz`
"""

from tidings.testing.matcher_conformance import NonConformance, check_matcher
from tidings.testing.oracle import brute_force
from tidings.testing.placement_conformance import check_placement

__all__ = ["NonConformance", "brute_force", "check_matcher", "check_placement"]
