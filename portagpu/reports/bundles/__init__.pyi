"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.reports.bundles.badges import Badge as Badge
from portagpu.reports.bundles.badges import earned_badges as earned_badges
from portagpu.reports.bundles.badges import table as table
from portagpu.reports.bundles.check import parse as parse
from portagpu.reports.bundles.check import read_bundle as read_bundle
from portagpu.reports.bundles.content import make as make
from portagpu.reports.bundles.check import write_bundle as write_bundle
