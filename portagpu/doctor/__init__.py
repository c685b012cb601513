"""What makes collectives hang, crawl or lie: findings from dumps, logs and settings."""

from __future__ import annotations

from portagpu.doctor.engine import DoctorOptions, doctor
from portagpu.doctor.findings import Finding, Known, known_findings

__all__ = ["DoctorOptions", "Finding", "Known", "doctor", "known_findings"]
