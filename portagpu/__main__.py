"""``python -m portagpu``: the command line, run by this interpreter."""

from portagpu.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
