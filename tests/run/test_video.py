"""Films of episodes: what is in the file, and what is left when it can't be made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest

import podium
from podium.cli import main
from podium.core.errors import UsageError
from podium.run.video import Recorder
from tests.resume_tools import ROOT, environment


class Screen:
    """Draws a white column that moves right by eight at each frame."""

    def __init__(self) -> None:
        self.at = 0

    def render(self) -> np.ndarray:
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:, self.at : self.at + 8] = 255
        self.at += 8
        return picture


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_every_frame_is_in_the_file_in_order(tmp_path: Path, name: str) -> None:
    target = tmp_path / "films" / name
    screen = Screen()
    with Recorder(target) as recorder:
        for _ in range(6):
            recorder.frame(screen)
        assert not target.exists(), "half a film has not the name of one"
    frames = [np.asarray(frame)[..., :3] for frame in imageio.mimread(target)]
    assert len(frames) == 6
    for i, frame in enumerate(frames):
        assert frame.shape == (48, 64, 3)
        assert np.argmax(frame.mean(axis=(0, 2))) // 8 == i
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_what_fails_leaves_no_film_and_the_one_before(tmp_path: Path) -> None:
    target = tmp_path / "film.gif"
    target.write_text("the one before")
    with pytest.raises(ZeroDivisionError), Recorder(target) as recorder:
        recorder.frame(Screen())
        raise ZeroDivisionError
    assert target.read_text() == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


@pytest.mark.parametrize("name", ["film.avi", "film", "film.png"])
def test_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"expected a name that ends in \.mp4 or \.gif"):
        Recorder(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "film.mp4", Path("/proc/film.mp4")):
        with pytest.raises(UsageError, match="can't write a video to"):
            Recorder(place)


def blocked(module: str, *words: Any) -> subprocess.CompletedProcess[str]:
    """A podium command in an interpreter that can't import `module`."""
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == sys.argv[1]: raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from podium.cli import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", code, module, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)


def test_a_missing_extra_is_one_line_that_names_it(tmp_path: Path) -> None:
    podium.train("ppo", "CartPole-v1", steps=64, fragment=8, out=tmp_path / "run", progress=False)
    done = blocked("imageio_ffmpeg", "evaluate", tmp_path / "run", "--video", tmp_path / "film.mp4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "podium: filming needs an extra that is not installed: pip install 'podium[video]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    done = blocked("imageio_ffmpeg", "evaluate", tmp_path / "run", "--episodes", 1)
    assert done.returncode == 0, "only filming needs it"


def test_evaluate_films_what_it_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    podium.train("ppo", "CartPole-v1", steps=64, fragment=8, out=tmp_path / "run", progress=False)
    played = podium.evaluate(tmp_path / "run", 2, video=tmp_path / "film.mp4")
    frames = imageio.mimread(tmp_path / "film.mp4")
    steps = played["episodes"] * played["length_mean"]
    assert steps <= len(frames) <= steps + 1, "between the episodes stands the step that begins the second"
    assert frames[0].shape == (400, 600, 3) and frames[0].mean() > 200, "CartPole's sky is white"
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "1", "--video", str(tmp_path / "film.gif")]) == 0
    assert f"video {tmp_path / 'film.gif'}" in capsys.readouterr().out
    assert (tmp_path / "film.gif").read_bytes()[:4] == b"GIF8"


def test_an_env_that_draws_nothing_is_told(tmp_path: Path) -> None:
    podium.train("ppo", "toy:chain", steps=64, fragment=8, out=tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match="draws no picture"):
        podium.evaluate(tmp_path / "run", 2, video=tmp_path / "film.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
