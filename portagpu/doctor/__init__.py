"""What makes collectives hang, crawl or lie: findings from dumps, logs and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.doctor.engine import DoctorOptions as DoctorOptions
    from portagpu.doctor.engine import doctor as doctor
    from portagpu.doctor.findings import Finding as Finding
    from portagpu.doctor.findings import Known as Known
    from portagpu.doctor.findings import known_findings as known_findings
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.doctor.engine": "DoctorOptions doctor",
            "portagpu.doctor.findings": "Finding Known known_findings",
        },
    )
