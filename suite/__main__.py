"""``python -m suite``."""

from suite.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
