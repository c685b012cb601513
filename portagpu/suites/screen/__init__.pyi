"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.screen.options import RUNS as RUNS
from portagpu.suites.screen.options import SUITE as SUITE
from portagpu.suites.screen.options import ScreenOptions as ScreenOptions
from portagpu.suites.screen.runner import ScreenProgress as ScreenProgress
from portagpu.suites.screen.options import UnknownProbe as UnknownProbe
from portagpu.suites.screen.runner import add_results as add_results
from portagpu.suites.screen.runner import run as run
