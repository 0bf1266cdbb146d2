"""``python -m tinygpu`` is ``tinygpu``."""

from __future__ import annotations

from tinygpu.cli import app

if __name__ == "__main__":
    app()
