"""What holds for every test: one compute thread, no display, and properties that fail the same way twice."""

from __future__ import annotations

import os

from hypothesis import settings

for name, value in {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}.items():
    os.environ.setdefault(name, value)

settings.register_profile("podium", deadline=None, derandomize=True, database=None)
settings.load_profile("podium")
