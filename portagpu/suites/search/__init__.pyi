"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.search.area import Area as Area
from portagpu.suites.search.area import load_area as load_area
from portagpu.suites.search.engine import Failure as Failure
from portagpu.suites.search.engine import Report as Report
from portagpu.suites.search.engine import SearchRequest as SearchRequest
from portagpu.suites.search.engine import search as search
from portagpu.suites.search.area import Call as Call
from portagpu.suites.search.area import Program as Program
from portagpu.suites.search.area import from_text as from_text
from portagpu.suites.search.area import program_line as program_line
from portagpu.suites.search.area import to_text as to_text
