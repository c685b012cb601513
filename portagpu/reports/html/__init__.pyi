"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.reports.html.matrix_page import render_runs as render_runs
from portagpu.reports.html.run_page import render as render
from portagpu.reports.html.run_page import write_report as write_report
