"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.conformance.cases import AREAS as AREAS
from portagpu.suites.conformance.cases import Case as Case
from portagpu.suites.conformance.cases import NotClaimed as NotClaimed
from portagpu.suites.conformance.cases import NotHere as NotHere
from portagpu.suites.conformance.cases import Search as Search
from portagpu.suites.conformance.cases import case as case
from portagpu.suites.conformance.cases import refused as refused
from portagpu.suites.conformance.options import ConformOptions as ConformOptions
from portagpu.suites.conformance.engine import conform as conform
from portagpu.suites.conformance.engine import list_cases as list_cases
from portagpu.suites.conformance.options import Selection as Selection
