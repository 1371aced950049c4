"""Films what an env shows: frames into a .mp4 or .gif file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from podium.core.errors import MissingExtra, UsageError

SUFFIXES = (".mp4", ".gif")


class Recorder:
    """Takes a frame at each step and writes the file as it goes."""

    def __init__(self, path: str | os.PathLike[str], fps: int = 30) -> None:
        target = Path(path)
        if target.suffix not in SUFFIXES:
            raise UsageError(f"--video is {str(target)!r}, expected a name that ends in {' or '.join(SUFFIXES)}")
        try:
            import imageio.v2 as imageio
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise MissingExtra("filming", "video") from None
        target.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"macro_block_size": 2} if target.suffix == ".mp4" else {"loop": 0}
        self._writer = imageio.get_writer(target, fps=fps, **options)

    def frame(self, env: Any) -> None:
        """The env as it looks now."""
        self._writer.append_data(env.render())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish the file; what failed leaves none."""
        self._writer.close()
        if error is not None:
            self._target.unlink(missing_ok=True)
