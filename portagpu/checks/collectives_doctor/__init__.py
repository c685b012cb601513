"""What makes collectives hang, crawl or lie: findings from dumps, logs and settings."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
