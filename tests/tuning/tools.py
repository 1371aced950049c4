"""Small searches: PPO on a toy for a few hundred steps a trial, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "env_args": {"length": 5},
    "envs": 2,
    "fragment": 16,
    "minibatch": 32,
    "epochs": 1,
    "steps": 320,
    "hidden": "8",
    "progress": False,
    "overwrite": True,
}
FLAGS = "--env-arg length=5 --envs 2 --fragment 16 --minibatch 32 --epochs 1 --steps 320 --hidden 8".split()
SEARCH = ("lr=log:1e-4:1e-1", "clip=0.1,0.2,0.3")


def lines(folder: Path, name: str = "trials.jsonl") -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "wall_s"}
