"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.checks.collectives_doctor.engine import DoctorOptions as DoctorOptions
from portagpu.checks.collectives_doctor.engine import doctor as doctor
from portagpu.checks.collectives_doctor.findings import Finding as Finding
from portagpu.checks.collectives_doctor.findings import Known as Known
from portagpu.checks.collectives_doctor.findings import known_findings as known_findings
