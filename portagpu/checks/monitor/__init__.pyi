"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.checks.monitor.endpoint import Endpoint as Endpoint
from portagpu.checks.monitor.endpoint import EndpointError as EndpointError
from portagpu.checks.monitor.endpoint import parse_address as parse_address
from portagpu.checks.monitor.run import JsonLines as JsonLines
from portagpu.checks.monitor.sample import MAX_INTERVAL_S as MAX_INTERVAL_S
from portagpu.checks.monitor.sample import MIN_INTERVAL_S as MIN_INTERVAL_S
from portagpu.checks.monitor.sample import MonitorOptions as MonitorOptions
from portagpu.checks.monitor.run import Watched as Watched
from portagpu.checks.monitor.run import monitor as monitor
from portagpu.checks.monitor.replay import read_rounds as read_rounds
from portagpu.checks.monitor.sample import Event as Event
from portagpu.checks.monitor.sample import Happening as Happening
from portagpu.checks.monitor.sample import Round as Round
from portagpu.checks.monitor.sample import RunningProcess as RunningProcess
from portagpu.checks.monitor.sample import Sample as Sample
