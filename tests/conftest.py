"""What holds for every test: one compute thread, no display, and properties that fail the same way twice."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Whoever runs the tests in the background may have them ignore Ctrl-C, which what they start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name, value in {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}.items():
    os.environ.setdefault(name, value)

settings.register_profile("podium", deadline=None, derandomize=True, database=None)
settings.load_profile("podium")
