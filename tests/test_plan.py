"""The plan: its arithmetic on given figures, what it refuses and warns of, what it prints, and `--workers auto`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium import algorithms, cli
from podium.algorithms.common.base import RunConfig
from podium.core.errors import ConfigError, UsageError
from podium.engine import plan as resources
from podium.engine.base import Resources
from podium.engine.plan import GIB, Machine, check_device, check_workers, most_workers
from podium.planning import figures, layout, measure, page, suggest
from podium.planning.measure import Measured
from podium.planning.plan import described
from podium.run.folder import RunFolder
from tests.resume_tools import ROOT, environment

TWO_CORES = Machine(cores=2, memory=16 * GIB)
MEASURED = Measured(
    env_s=0.001,
    inference_s=0.002,
    act_s=0.0015,
    wide_act_s=0.003,
    learn_row_s=1e-5,
    env_busy=1.0,
    waits=False,
    gives_state=True,
    parameters=1000,
    weight_bytes=4100,
    optimizer_bytes=8000,
    row_bytes=50,
    edge_bytes=16,
    asked_bytes=40,
    process_bytes=200 << 20,
)
SAMPLE = 8 * (100 * 50 + 16)
WAITING = replace(MEASURED, env_busy=0.01, waits=True, env_s=0.1, inference_s=0.001)
RAY = {"engine": "ray"}
ASLEEP = f"{__name__}:Asleep"


class Asleep(gymnasium.Env):
    """A simulator that computes elsewhere: a step waits `seconds`, and `reset` as long as it is told."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.004, reset_seconds: float = 0.0) -> None:
        self.seconds, self.reset_seconds = seconds, reset_seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        time.sleep(self.reset_seconds)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        time.sleep(self.seconds)
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 50, False, {}


def ppo(**settings: Any) -> RunConfig:
    """8 envs for 100 steps: 800 rows, 10 times over in 10 parts."""
    return algorithms.get("ppo").configure(None, {"envs": 8, "fragment": 100, "minibatch": 80, **settings})


def other(algo: str, **settings: Any) -> RunConfig:
    return algorithms.get(algo).configure(None, {"envs": 8, "fragment": 100, **settings})


def counts(config: RunConfig) -> dict[str, int]:
    return {role.role: role.count for role in layout.roles(config)}


# --- what is asked for, and what there is ---


def test_workers_may_ask_for_all_that_there_is() -> None:
    machine = Machine(8, 64 * GIB, 2)
    check_workers(4, Resources(2, 0.5, 16 * GIB), machine)
    check_workers(100, Resources(), Machine(1, GIB))
    check_workers(2, Resources(gpus=1), machine)


@pytest.mark.parametrize(
    ("workers", "each", "machine", "line"),
    [
        (4, Resources(cpus=2), TWO_CORES, "--workers 4 with --cpus-per-worker 2 asks for 8 CPUs, there are 2"),
        (1, Resources(cpus=1.5), Machine(1, GIB), "--workers 1 with --cpus-per-worker 1.5 asks for 1.5 CPUs, there is 1"),
        (1, Resources(gpus=1), TWO_CORES, "--workers 1 with --gpus-per-worker 1 asks for 1 GPU, there is none"),
        (3, Resources(gpus=0.5), Machine(2, GIB, 1), "--workers 3 with --gpus-per-worker 0.5 asks for 1.5 GPUs, there is 1"),
        (
            2,
            Resources(memory_bytes=64 * GIB),
            Machine(2, int(23.5 * GIB)),
            "--workers 2 with --memory-per-worker 64 asks for 128 GiB, there are 23.5 GiB",
        ),
        (
            1,
            Resources(gpus=1.5),
            Machine(2, GIB, 4),
            "--gpus-per-worker is 1.5, expected a share of one GPU or a whole number",
        ),
    ],
)  # fmt: skip
def test_workers_that_ask_for_more_are_refused(workers: int, each: Resources, machine: Machine, line: str) -> None:
    with pytest.raises(UsageError) as error:
        check_workers(workers, each, machine)
    assert str(error.value) == line


def test_devices_are_counted() -> None:
    for device, learners, gpus in (("cpu", 4, 0), ("auto", 1, 0), ("cuda", 1, 1), ("cuda", 4, 4), ("cuda:1", 3, 2)):
        check_device(device, learners, Machine(2, GIB, gpus))
    absent = "is not available here, expected cpu, auto or a present cuda device"
    for device, learners, gpus, line in (
        ("cuda", 1, 0, f"--device cuda {absent}: there is none"),
        ("cuda:1", 1, 1, f"--device cuda:1 {absent}: there is 1"),
        ("cuda", 4, 1, "--learners 4 with --device cuda asks for 4 GPUs, there is 1"),
        ("cuda", 4, 0, "--learners 4 with --device cuda asks for 4 GPUs, there is none"),
    ):
        with pytest.raises(UsageError) as error:
            check_device(device, learners, Machine(2, GIB, gpus))
        assert str(error.value) == line


def test_learners_and_workers_have_gpus_of_their_own_on_ray() -> None:
    one_each = {"device": "cuda", "gpus_per_worker": 1, **RAY}
    layout.refuse(ppo(workers=2, **one_each), Machine(2, GIB, 3))
    line = "learning takes 1 GPU and --gpus-per-worker 2 more in all, there are 2"
    for settings in (one_each, {**one_each, "device": "auto"}):
        with pytest.raises(UsageError, match=line):
            layout.refuse(ppo(workers=2, **settings), Machine(2, GIB, 2))
    with pytest.raises(UsageError, match="--workers 3 with --device cuda asks for 3 GPUs, there are 2"):
        layout.refuse(ppo(workers=3, optimizer="allreduce", device="cuda"), Machine(2, GIB, 2))
    several = ppo(optimizer="multi_device", learners=3, device="cuda", **RAY)
    assert layout.gpus_to_learn(several, 0, Machine(2, GIB, 4)) == 3
    assert layout.gpus_to_learn(ppo(device="auto"), 0, Machine(2, GIB, 4)) == 1
    assert layout.gpus_to_learn(ppo(), 0, Machine(2, GIB, 4)) == 0


def test_workers_that_fit_beside_each_other() -> None:
    machine = Machine(8, 16 * GIB, 1)
    assert most_workers(Resources(), machine) is None
    assert most_workers(Resources(cpus=3), machine) == 2
    assert most_workers(Resources(cpus=1, gpus=0.25, memory_bytes=5 * GIB), machine) == 3


def test_a_machine_is_read_with_its_containers_limits(tmp_path: Path) -> None:
    physical, allowed = resources.memory(tmp_path), resources.cores(tmp_path)
    assert physical > GIB and allowed >= 1, "no limits there"
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{GIB // 2}\n")
    assert (resources.cores(tmp_path), resources.memory(tmp_path)) == (1, GIB // 2)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (resources.cores(tmp_path), resources.memory(tmp_path)) == (allowed, physical)


def test_a_container_of_the_older_kind_is_read_too(tmp_path: Path) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert (resources.cores(tmp_path), resources.memory(tmp_path)) == (1, GIB)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert resources.cores(tmp_path) >= 1 and resources.memory(tmp_path) > GIB


def test_a_cluster_is_read_from_its_resources() -> None:
    assert Machine.of_cluster({"CPU": 64.0, "GPU": 8.0, "memory": 5e11}) == Machine(64, 500_000_000_000, 8)
    assert Machine.of_cluster({"CPU": 2.0}) == Machine(2, 0, 0)


# --- who takes part ---


def test_roles() -> None:
    assert counts(ppo()) == {"controller": 1, "learner": 1}
    assert counts(ppo(workers=3, env_processes=2, eval_every=100)) == {
        "controller": 1, "learner": 1, "worker": 3, "env": 6, "evaluation env": 2,
    }  # fmt: skip
    assert counts(ppo(env_processes=2)) == {"controller": 1, "learner": 1, "env": 2}, "the learner plays"
    assert counts(ppo(optimizer="allreduce", workers=4)) == {"controller": 1, "worker": 4}
    assert counts(ppo(optimizer="multi_device", learners=3)) == {"controller": 1, "learner": 3}
    server = other("a2c", optimizer="parameter_server", shards=3, workers=2)
    assert counts(server) == {"controller": 1, "learner": 1, "worker": 2, "shard": 3}
    places = {role.role: role.runs_in for role in layout.roles(ppo(workers=1, env_processes=1, **RAY))}
    assert places == {"controller": "own", "learner": "ray", "worker": "ray", "env": "own"}
    assert {role.runs_in for role in layout.roles(ppo(workers=1))} == {"own", "controller"}


def test_more_workers_than_cores_is_a_warning() -> None:
    assert layout.warnings(ppo(workers=2, **RAY), TWO_CORES) == []
    assert layout.warnings(ppo(workers="auto", **RAY), TWO_CORES) == []
    assert layout.warnings(ppo(workers=3, **RAY), TWO_CORES) == [
        "--workers 3 is more than the 2 cores there are: they take turns"
    ]
    assert layout.warnings(ppo(workers=2), Machine(1, GIB)) == [
        "--workers 2 is more than the 1 core there is: engine local has them play one after the other"
    ]


# --- time ---


def test_in_one_process_everything_goes_one_after_the_other() -> None:
    found = figures.predict(ppo(), MEASURED, TWO_CORES)
    assert found.parts == pytest.approx({"env": 0.1, "inference": 0.2, "learning": 0.08, "transport": 0.0})
    assert found.bottleneck == "inference" and found.env_steps_per_s == pytest.approx(800 / 0.38)
    twice = figures.predict(ppo(workers=2), MEASURED, TWO_CORES)
    assert twice.env_steps == 1600 and twice.seconds == pytest.approx(0.76), "workers in one process gain nothing"
    both = figures.predict(ppo(optimizer="multi_device"), MEASURED, TWO_CORES)
    assert both.seconds == pytest.approx(0.38), "nor do learners"


def test_workers_play_side_by_side_as_far_as_there_are_cores() -> None:
    transport = 3 * 0.001 + (2 * SAMPLE + 4100) / 4e8
    found = figures.predict(ppo(workers=2, **RAY), MEASURED, TWO_CORES)
    assert found.parts == pytest.approx({"env": 0.1, "inference": 0.2, "learning": 0.16, "transport": transport})
    assert found.env_steps_per_s == pytest.approx(1600 / (0.46 + transport))
    crowded = figures.predict(ppo(workers=4, **RAY), MEASURED, TWO_CORES)
    assert crowded.parts["env"] == pytest.approx(0.2) and crowded.parts["inference"] == pytest.approx(0.4)
    waiting = figures.predict(ppo(workers=40, **RAY), WAITING, TWO_CORES)
    assert waiting.parts["env"] == pytest.approx(10.0), "40 workers that wait need 0.8 cores"


def test_learners_divide_the_passes() -> None:
    two = ppo(optimizer="multi_device", learners=2, **RAY)
    assert figures.predict(two, MEASURED, TWO_CORES).parts["learning"] == pytest.approx(0.04)
    assert figures.predict(two, MEASURED, Machine(1, GIB)).parts["learning"] == pytest.approx(0.08)
    on_gpus = figures.predict(two.replace(device="cuda"), MEASURED, Machine(1, GIB, 2))
    assert on_gpus.parts["learning"] == pytest.approx(0.04)


def test_allreduce_learns_where_it_plays() -> None:
    found = figures.predict(ppo(optimizer="allreduce", workers=2, **RAY), MEASURED, TWO_CORES)
    assert found.parts == pytest.approx({"env": 0.1, "inference": 0.2, "learning": 0.08, "transport": 0.001})


def test_what_overlaps_goes_as_fast_as_its_slowest() -> None:
    many = Machine(64, 256 * GIB)
    impala = {"workers": 2, **RAY}
    found = figures.predict(other("impala", **impala), MEASURED, many)
    assert found.seconds == pytest.approx(0.301 / 2) and found.bottleneck == "inference", "the workers"
    found = figures.predict(other("impala", **{**impala, "workers": 64}), MEASURED, many)
    assert found.seconds == pytest.approx(0.008) and found.bottleneck == "learning", "the learner"
    found = figures.predict(other("impala", **{**impala, "workers": 64}), MEASURED, TWO_CORES)
    assert found.seconds == pytest.approx((0.3 + 0.008) / 2) and found.bottleneck == "inference", "the cores"
    large = replace(MEASURED, weight_bytes=400_000_000)
    found = figures.predict(other("impala", **impala), large, many)
    assert found.bottleneck == "transport" and found.seconds == pytest.approx(1.0, rel=0.01), "the object store"
    found = figures.predict(other("a3c", **impala), MEASURED, many)
    assert found.env_steps == 800 and found.seconds == pytest.approx((0.3 + 0.008 + 0.001) / 2)


# --- bytes ---


def test_bytes_on_the_way() -> None:
    assert figures.sample_bytes(ppo(), MEASURED) == SAMPLE
    assert figures.traffic(ppo(workers=4), MEASURED) == figures.Traffic(), "in one process nothing is sent"
    found = figures.traffic(ppo(workers=4, **RAY), MEASURED)
    assert (found.samples, found.weights, found.gradients, found.stored) == (4 * SAMPLE, 4100, 0, 4 * SAMPLE + 4100)
    found = figures.traffic(ppo(workers=4, optimizer="allreduce", **RAY), MEASURED)
    assert (found.stored, found.reduced) == (0, 100 * 4000 * 4)
    found = figures.traffic(ppo(optimizer="multi_device", learners=2, **RAY), MEASURED)
    assert (found.samples, found.reduced) == (SAMPLE, 50 * 4000 * 2)
    found = figures.traffic(other("a3c", **RAY), MEASURED)
    assert (found.samples, found.weights, found.gradients) == (0, 4100, 4000)
    server = {"optimizer": "parameter_server", "workers": 3, **RAY}
    found = figures.traffic(other("a2c", **server), MEASURED)
    assert (found.weights, found.gradients) == (4100, 4000)
    found = figures.traffic(other("a2c", synchronous=True, **server), MEASURED)
    assert (found.weights, found.gradients) == (4100, 12000)
    found = figures.traffic(other("impala", samples=2, **RAY), MEASURED)
    assert (found.samples, found.weights) == (2 * SAMPLE, 4100)
    found = figures.traffic(ppo(workers=4, inference="central", **RAY), MEASURED)
    assert (found.asked, found.stored) == (4 * 100 * 8 * 40, 4 * SAMPLE + 4100)


def test_a_server_takes_the_policies_of_all_workers() -> None:
    central = ppo(workers=4, inference="central", **RAY)
    assert counts(central) == {"controller": 1, "learner": 1, "server": 1, "worker": 4}
    assert figures.memory(central, MEASURED).holders == 2
    assert figures.memory(central, MEASURED).processes == (200 + 6 * 260) << 20
    assert figures.checkpoint_bytes(central, MEASURED) == 2 * 12000
    found, own = (figures.predict(config, MEASURED, Machine(64, GIB)) for config in (central, ppo(workers=4, **RAY)))
    wide = 0.0015 + 24 * (0.003 - 0.0015) / 56  # 32 rows in one pass, on the line from 8 to 64
    assert found.parts["inference"] == pytest.approx(100 * (wide + 0.0005 + figures.ASK_S))
    assert found.parts["env"] == own.parts["env"] and found.env_steps == own.env_steps
    auto = suggest.workers(ppo(workers="auto", inference="central"), MEASURED, TWO_CORES)
    assert auto.value == 1, "without a worker nobody would ask"


def test_memory_by_holder() -> None:
    found = figures.memory(ppo(), MEASURED)
    assert (found.parameters, found.optimizer, found.holders, found.queue) == (4000, 8000, 1, 0)
    assert found.total == (200 << 20) + 12000 + 2 * SAMPLE
    found = figures.memory(other("impala", queue=5, env_processes=2, **RAY), MEASURED)
    assert (found.holders, found.queue) == (3, 5 * SAMPLE)
    assert found.processes == (200 + 3 * 260 + 4 * 40) << 20
    found = figures.memory(other("a2c", optimizer="parameter_server", shards=4, workers=2, **RAY), MEASURED)
    assert found.holders == 4, "the learner, two workers, and the shards together"


def test_what_a_checkpoint_holds() -> None:
    assert figures.checkpoint_bytes(ppo(), MEASURED) == 12000
    assert figures.checkpoint_bytes(ppo(workers=3), MEASURED) == 4 * 12000, "the workers' states with it"
    assert figures.checkpoint_bytes(ppo(workers=3, optimizer="allreduce"), MEASURED) == 3 * 12000
    assert figures.checkpoint_bytes(other("impala", workers=3), MEASURED) == 12000


def test_cores_that_have_something_to_do() -> None:
    many = Machine(64, GIB)
    assert figures.busy_cores(ppo(workers=4), MEASURED, many) == 1
    assert figures.busy_cores(ppo(threads=4), MEASURED, many) == 4
    assert figures.busy_cores(ppo(workers=4, **RAY), MEASURED, many) == pytest.approx(4)
    assert figures.busy_cores(other("impala", workers=4, **RAY), MEASURED, many) == pytest.approx(5)
    assert figures.busy_cores(other("impala", workers=4, **RAY), MEASURED, TWO_CORES) == 2


# --- suggestions ---


def test_workers_that_suit_a_machine() -> None:
    def auto(config: RunConfig, measured: Measured = MEASURED, machine: Machine = TWO_CORES) -> int:
        return suggest.workers(config, measured, machine).value

    eight = Machine(8, 64 * GIB)
    assert (auto(ppo(**RAY)), auto(ppo(**RAY), machine=eight), auto(ppo(**RAY), machine=Machine(1, GIB))) == (1, 7, 1)
    assert auto(ppo(threads=4, **RAY), machine=eight) == 4
    assert auto(ppo(optimizer="allreduce", workers=1, **RAY), machine=eight) == 8, "no learner beside them"
    assert (auto(ppo()), auto(ppo(optimizer="allreduce", workers="auto"))) == (0, 2)
    assert (auto(other("impala")), auto(other("a3c", workers="auto"))) == (1, 1)
    assert auto(other("a2c", optimizer="parameter_server", synchronous=True, workers="auto")) == 2
    assert auto(ppo(**RAY), replace(WAITING, env_busy=0.19), eight) == 35, "7 cores, a fifth of one each"
    assert auto(ppo(**RAY), WAITING, TWO_CORES) == 16, "at most so many on a core"
    assert auto(ppo(**RAY), replace(MEASURED, env_busy=10.0), eight) == 1, "an env with threads of its own"
    assert auto(ppo(cpus_per_worker=4, **RAY), machine=eight) == 2
    assert auto(ppo(memory_per_worker=30, **RAY), machine=eight) == 2
    assert auto(ppo(**RAY), replace(MEASURED, process_bytes=10 * GIB), eight) == 4, "what memory holds"
    gpus = Machine(8, 64 * GIB, 3)
    assert auto(ppo(gpus_per_worker=1, device="cuda", **RAY), machine=gpus) == 2, "the learner has the third"
    assert auto(ppo(optimizer="allreduce", workers="auto", device="cuda", **RAY), machine=gpus) == 3
    assert suggest.workers(ppo(**RAY), MEASURED, TWO_CORES).reason == "2 cores, 1 of them for the learner"


def test_envs_that_fill_the_policys_calls() -> None:
    slow_calls = replace(MEASURED, env_s=1e-5, inference_s=0.002, act_s=0.002, wide_act_s=0.003, learn_row_s=1e-6)
    found = suggest.envs(ppo(), slow_calls, TWO_CORES)
    # 0.00201 s for 8 env steps, and for 64: 0.00308 s; learning 1e-5 s each.
    gain = (64 / (0.00308 + 64e-5)) / (8 / (0.00201 + 8e-5))
    assert found.value == 64 and f"{gain:.1f} times the steps/s" in found.reason
    slow_env = replace(slow_calls, env_s=0.1)
    assert suggest.envs(ppo(), slow_env, TWO_CORES).value == 8
    assert "--env-processes" in suggest.envs(ppo(), replace(slow_env, waits=True), TWO_CORES).reason
    assert suggest.envs(ppo(envs=100), slow_calls, TWO_CORES).value == 100


# --- the whole plan ---


def test_what_is_said_of_resuming() -> None:
    def resume(config: RunConfig, measured: Measured = MEASURED) -> dict[str, Any]:
        return described("x", "y", config, measured, TWO_CORES)["resume"]

    assert resume(ppo())["exact"] and resume(ppo(workers=2, **RAY))["exact"]
    found = resume(other("impala"))
    assert not found["exact"] and "async_samples goes by what comes first" in found["reason"]
    found = resume(ppo(), replace(MEASURED, gives_state=False))
    assert not found["exact"] and "can't give its state" in found["reason"]
    assert resume(other("a2c", optimizer="parameter_server", synchronous=True, workers=2))["exact"]
    assert not resume(other("a2c", optimizer="parameter_server", workers=2))["exact"]
    stateless = described("x", "y", ppo(), replace(MEASURED, gives_state=False), TWO_CORES)
    assert stateless["checkpoints"]["restart_episodes"] and "begins the episodes anew" in "\n".join(
        page.lines(stateless)
    )


def test_a_plan_is_one_screen() -> None:
    plan = described("impala", "Some-v1", other("impala", queue=4, **RAY), MEASURED, TWO_CORES)
    shown = page.lines(plan)
    assert len(shown) <= 20 and max(map(len, shown)) <= 130
    text = "\n".join(shown)
    for part in ("2 workers", "2 cores, 16 GiB, 0 GPUs", "on Ray 1 learner, 2 workers", "its queue", "bottleneck"):
        assert part in text
    assert [page.size(number) for number in (0, 512, 1536, 3 << 20, 10 * GIB)] == [
        "0 B", "512 B", "1.5 KiB", "3 MiB", "10 GiB",
    ]  # fmt: skip
    assert json.loads(json.dumps(plan)) == plan


def test_a_plan_that_takes_more_memory_than_there_is_says_so() -> None:
    plan = described("ppo", "y", ppo(workers=2, **RAY), MEASURED, Machine(2, GIB // 2))
    assert plan["warnings"] == ["it takes about 1 GiB of memory, and there are 0.5 GiB"]


# --- the measurement ---


def measured(env: Any, **settings: Any) -> Measured:
    from podium.api import env_spec
    from podium.envs.make import spaces_of

    config = ppo(**settings)
    spec = env_spec(env, config)
    return measure.measure(algorithms.get("ppo"), spec, config, spaces_of(spec))


def test_the_measurement_counts_bytes_as_they_are() -> None:
    found = measured("toy:match")
    sample = podium_sample("toy:match", 100)
    assert found.gives_state and not found.waits and found.env_busy >= 1
    assert figures.sample_bytes(ppo(), found) <= sample <= figures.sample_bytes(ppo(), found) + 8 * 10 * 16, "finals"
    assert found.weight_bytes == 4 * found.parameters and found.optimizer_bytes == 8 * found.parameters
    assert found.process_bytes > 50 << 20


def podium_sample(env: str, steps: int) -> int:
    """The bytes of one sample that was really played."""
    from podium.envs.make import EnvSpec, make, spaces_of
    from podium.evaluation.evaluator import Evaluator

    spaces = spaces_of(EnvSpec(env))
    evaluator = Evaluator(lambda: algorithms.get("ppo").policy(ppo(), *spaces, 0), lambda: make(EnvSpec(env), 8))
    return evaluator.sample(steps).nbytes


def test_an_env_that_waits_is_told_from_one_that_computes() -> None:
    began = time.perf_counter()
    found = measured(ASLEEP, envs=2)
    assert found.waits and found.busy < 0.5 and 0.008 <= found.env_s < 0.05 and not found.gives_state
    assert time.perf_counter() - began < 6, "it is bounded however slow the env is"
    assert measured(ASLEEP, envs=2, env_processes=2).env_s == pytest.approx(found.env_s / 2, rel=0.5)


def test_envs_that_take_long_to_begin_are_measured_by_some_of_them() -> None:
    found = measured(ASLEEP, envs=64, env_args={}, time_limit=None)
    assert found.env_s >= 64 * 0.004
    began = time.perf_counter()
    found = measured(lambda: Asleep(0.001, 0.2), envs=64)
    assert 64 * 0.001 <= found.env_s < 64 * 0.01 and time.perf_counter() - began < 6


# --- the command ---


class Called:
    """What the command gave back."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: Any) -> None:
        capsys.readouterr()
        layout.warn.cache_clear()
        self.code = cli.main([*map(str, words)])
        self.out, self.err = capsys.readouterr()


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of known size."""
    monkeypatch.setattr(layout, "this_machine", lambda: TWO_CORES)


PLAN = ("plan", "ppo", "CartPole-v1")
REFUSED = [
    (("--workers", 4, "--engine", "ray", "--cpus-per-worker", 2), "asks for 8 CPUs, there are 2"),
    (("--workers", 1, "--engine", "ray", "--gpus-per-worker", 1), "asks for 1 GPU, there is none"),
    (("--workers", 2, "--engine", "ray", "--memory-per-worker", 64), "asks for 128 GiB, there are 16 GiB"),
    (("--device", "cuda"), "--device cuda is not available here"),
    (("--device", "cudda"), "--device cudda is not available here"),
    (("--device", "cuda", "--optimizer", "multi_device", "--learners", 4), "asks for 4 GPUs, there is none"),
    (("--workers", "auto", "--engine", "ray", "--cpus-per-worker", 3), "asks for 3 CPUs, there are 2"),
    (
        ("--optimizer", "multi_device", "--device-memory", 1e-5),
        "a device's share of a sample is 24,640 bytes, and --device-memory 1e-05 leaves room for 10,737",
    ),
    (("--wokers", 2), "unknown setting --wokers; did you mean '--workers'?"),
    (("--jsn",), "unknown setting --jsn; did you mean '--json'?"),
    (("--gamma", 2), "--gamma is '2', expected a number from 0 to 1"),
]


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize(("words", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str],
    two_cores: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: tuple[Any, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = Called(capsys, command, *PLAN[1:], *words)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("podium: ") and line in done.err and done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_python_api_refuses_the_same(two_cores: None, tmp_path: Path) -> None:
    for function in (podium.plan, podium.train):
        with pytest.raises(UsageError, match="asks for 8 CPUs, there are 2"):
            function("ppo", "CartPole-v1", engine="ray", workers=4, cpus_per_worker=2)
    with pytest.raises(ConfigError, match="unknown setting --wokers"):
        podium.plan("ppo", "CartPole-v1", wokers=1)


def test_a_share_of_a_sample_that_just_fits_is_let_pass(two_cores: None, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": "multi_device", "progress": False, "steps": 1000, "epochs": 1}
    with pytest.raises(UsageError, match="share of a sample is 24,640 bytes"):
        podium.train("ppo", "CartPole-v1", device_memory=24_600 / GIB, out=tmp_path / "a", **settings)
    podium.train("ppo", "CartPole-v1", device_memory=30_000 / GIB, out=tmp_path / "b", **settings)


TOP = {
    "algo", "env", "engine", "optimizer", "workers", "envs", "fragment", "machine", "processes", "cores", "gpus",
    "memory", "transport", "prediction", "resume", "checkpoints", "suggested", "warnings",
}  # fmt: skip
INSIDE = {
    "machine": {"cores", "gpus", "memory_bytes"},
    "cores": {"reserved", "busy"},
    "gpus": {"reserved", "used"},
    "memory": {
        "holders", "parameters_bytes", "optimizer_bytes", "sample_bytes", "samples_bytes", "queue_bytes", "replay_bytes",
        "table_bytes", "shards", "processes_bytes", "total_bytes", "reserved_bytes",
    },
    "transport": {
        "samples_bytes_per_s", "weights_bytes_per_s", "gradients_bytes_per_s", "reduced_bytes_per_s",
        "asked_bytes_per_s", "drawn_bytes_per_s", "object_store_bytes_per_s",
    },
    "prediction": {
        "env_steps_per_s", "iterations_per_s", "env_steps_per_iteration", "bottleneck", "env_s", "inference_s",
        "learning_s", "transport_s",
    },
    "resume": {"exact", "env_gives_state", "ordered", "reason"},
    "checkpoints": {"every", "keep", "bytes", "restart_episodes"},
    "suggested": {"workers", "envs"},
}  # fmt: skip


def test_json_has_its_keys_and_stands_alone(capsys: pytest.CaptureFixture[str], two_cores: None) -> None:
    done = Called(capsys, *PLAN, "--json", "--engine", "ray", "--workers", 8)
    assert done.code == 0 and done.out.count("\n") == 1
    plan = json.loads(done.out)
    assert set(plan) == TOP and {name: set(plan[name]) for name in INSIDE} == INSIDE
    assert done.err == "podium: warning: --workers 8 is more than the 2 cores there are: they take turns\n"
    assert plan["warnings"] == [done.err.removeprefix("podium: warning: ").strip()]
    assert plan["prediction"]["bottleneck"] in figures.STAGES and plan["prediction"]["env_steps_per_s"] > 100
    assert plan["transport"]["object_store_bytes_per_s"] > 0 and plan["resume"]["exact"]
    assert plan["processes"][2] == {"role": "worker", "count": 8, "runs_in": "ray"}
    assert all(found["reason"] for found in plan["suggested"].values())


def test_people_get_a_page(capsys: pytest.CaptureFixture[str], two_cores: None) -> None:
    done = Called(capsys, *PLAN, "--preset", "pendulum", "--env-arg", "sutton_barto_reward=true", "--workers", "auto")
    assert (done.code, done.err) == (0, "")
    assert "engine local, optimizer sync_samples, 0 workers, 16 envs each, fragments of 64 steps" in done.out
    assert "object store  0 B/s" in done.out and "--workers     0: " in done.out
    done = Called(capsys, "plan", "--help")
    assert done.code == 0 and "podium plan ALGO ENV" in done.out
    assert "podium plan" in Called(capsys, "--help").out
    done = Called(capsys, "plan", "ppo")
    assert done.code == 2 and "expected `podium plan ALGO ENV`" in done.err
    done = Called(capsys, *PLAN, "extra")
    assert done.code == 2 and "unexpected argument 'extra', expected `podium plan ALGO ENV`" in done.err


def test_training_warns_once(capsys: pytest.CaptureFixture[str], two_cores: None, tmp_path: Path) -> None:
    quick = ("--steps", 10, "--fragment", 4, "--envs", 1, "--quiet", "--workers", 3)
    done = Called(capsys, "train", "pg", "toy:chain", *quick, "--seeds", "1-2", "--out", tmp_path / "runs")
    line = "podium: warning: --workers 3 is more than the 2 cores there are: engine local has them play one after the other"
    assert done.code == 0 and done.err.count(line) == 1


# --- `--workers auto` ---


def test_auto_becomes_a_number_in_the_runs_config(two_cores: None, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": "auto", "steps": 200, "fragment": 8, "envs": 2, "progress": False}
    for algo, more, workers in (
        ("pg", {}, 0),
        ("impala", {}, 1),
        ("a2c", {"optimizer": "allreduce"}, 2),
    ):
        out = tmp_path / algo
        podium.train(algo, "toy:chain", out=out, **settings, **more)
        assert RunFolder(out).config["workers"] == workers
        assert podium.resume(out, 300, progress=False)["env_steps"] >= 300
        assert RunFolder(out).config["workers"] == workers


@pytest.fixture
def four_logical_cores() -> Iterator[None]:
    """A cluster that this process is part of, and that says something else than the machine."""
    from podium.engine.ray import RayEngine

    engine = RayEngine(num_cpus=4)
    yield
    engine.close()


def test_a_running_cluster_is_asked_what_it_has(
    four_logical_cores: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = podium.plan("ppo", "toy:chain", engine="ray", workers="auto")
    assert plan["machine"]["cores"] == 4 and plan["workers"] == 3 and plan["warnings"] == []
    for function in (podium.plan, podium.train):
        with pytest.raises(UsageError, match="--workers 5 with --cpus-per-worker 1 asks for 5 CPUs, there are 4"):
            function("ppo", "toy:chain", engine="ray", workers=5, cpus_per_worker=1)
    out = tmp_path / "run"
    settings: dict[str, Any] = {"steps": 100, "fragment": 8, "envs": 1, "epochs": 1, "progress": False}
    podium.train("ppo", "toy:chain", engine="ray", workers="auto", cpus_per_worker=2, out=out, **settings)
    assert RunFolder(out).config["workers"] == 2
    layout.warn.cache_clear()
    podium.train("ppo", "toy:chain", engine="ray", workers=5, out=tmp_path / "crowded", **settings)
    assert "--workers 5 is more than the 4 cores there are" in capsys.readouterr().err


# --- time to a refusal ---


def wall(*arguments: str) -> tuple[float, int]:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment(), capture_output=True, check=False)
    return time.perf_counter() - began, done.returncode


def test_a_refusal_comes_within_two_seconds() -> None:
    """An env that never begins and a Ray that takes five seconds to start would show; where other work keeps the
    machine busy, loading torch takes longer by itself, and so may this."""
    words = f"train ppo {ASLEEP} --env-arg reset_seconds=60 --engine ray --workers 2 --cpus-per-worker 10000"
    walls, loading = [], []
    for _ in range(3):
        seconds, code = wall("-m", "podium.cli", *words.split())
        assert code == 2
        walls.append(seconds)
        loading.append(wall("-c", "import podium.driver, podium.policies.torch")[0])
    assert min(walls) < max(2.0, 1.5 * min(loading)), (walls, loading)
