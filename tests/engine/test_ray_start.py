"""A cluster of this machine that does not come up at once."""

from __future__ import annotations

from typing import Any

import pytest
import ray

import podium.engine.ray as engine_module
from podium.core.errors import PodiumError


class NotUp:
    """Stands for `ray.init` where the node doesn't come up the first few times."""

    def __init__(self, times: int) -> None:
        self.left, self.asked = times, 0
        self.init = ray.init

    def __call__(self, **how: Any) -> Any:
        self.asked += 1
        if self.asked <= self.left:
            raise Exception("The current node timed out during startup. This could happen because")
        return self.init(**how)


def test_a_cluster_that_does_not_come_up_is_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    once = NotUp(1)
    monkeypatch.setattr(engine_module.ray, "init", once)
    engine = engine_module.RayEngine(num_cpus=1)
    assert once.asked == 2 and engine.get(engine.put(3)) == 3
    engine.close()
    monkeypatch.setattr(engine_module.ray, "init", never := NotUp(9))
    with pytest.raises(PodiumError, match="Ray did not come up in 2 attempts"):
        engine_module.RayEngine(num_cpus=1)
    assert never.asked == 2
