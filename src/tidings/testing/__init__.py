"""Tools for testing Tidings and what is built on it.

oracle                 every filter on every event, the plain way
matcher_conformance    the laws that every matcher must keep
placement_conformance  the laws that every placement must keep
random_data            domains, events, XML documents and paths at random
random_cases           filters at random, and cases of a domain, events and filters
strategies             the same for Hypothesis
workloads              bluedove, alerts, strings, mixed: what benchmarks name, defined once
xml_workloads          bibliography, dtd: the same for path queries over XML
real_data              real events, if TIDINGS_DATA names their folder
spark_judge            Spark as an independent judge
agreement              Spark, the interpreter and the matcher compared with each other
fuzz                   the same in bulk: `make fuzz`
"""

from tidings.testing.matcher_conformance import NonConformance, check_matcher
from tidings.testing.oracle import brute_force
from tidings.testing.placement_conformance import check_placement

__all__ = ["NonConformance", "brute_force", "check_matcher", "check_placement"]
