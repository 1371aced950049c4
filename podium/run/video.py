"""Films what an env shows: frames into a .mp4 or .gif file."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from podium.core.errors import MissingExtra, UsageError

SUFFIXES = (".mp4", ".gif")


class Recorder:
    """Takes a frame at each step. The file is written beside its place, and moves there when it is whole."""

    def __init__(self, path: str | os.PathLike[str], fps: int = 30) -> None:
        self._target = Path(path)
        if self._target.suffix not in SUFFIXES:
            raise UsageError(f"--video is {str(path)!r}, expected a name that ends in {' or '.join(SUFFIXES)}")
        try:
            import imageio.v2 as imageio
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise MissingExtra("filming", "video") from None
        self._beside = self._target.with_name(f".tmp-{os.getpid()}-{self._target.name}")
        for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
            os.environ.setdefault(driver, "dummy")  # envs that draw with SDL draw to memory: no display is asked for
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._beside.touch()
        except OSError as error:
            raise UsageError(f"can't write a video to {self._target}: {error.strerror or error}") from None
        options: dict[str, Any] = {"macro_block_size": 2} if self._target.suffix == ".mp4" else {"loop": 0}
        self._writer = imageio.get_writer(self._beside, fps=fps, **options)

    def frame(self, env: Any) -> None:
        """The env as it looks now."""
        self._writer.append_data(env.render())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.close()
        if error is None:
            os.replace(self._beside, self._target)
        else:
            self._beside.unlink(missing_ok=True)
