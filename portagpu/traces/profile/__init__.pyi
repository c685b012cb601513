"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.traces.profile.engine import Plan as Plan
from portagpu.traces.profile.engine import ProfileOptions as ProfileOptions
from portagpu.traces.profile.engine import make_plan as make_plan
from portagpu.traces.profile.engine import profile as profile
