"""Processes that end with the one that started them: when it says so, and when it can't say anything any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from podium.engine.groups import Groups
from tests.processes import Process, descendants, left
from tests.resume_tools import ROOT

FAMILY = ["sh", "-c", "sleep 300 & sleep 300"]


def members(of: int, count: int) -> list[Process]:
    """That many descendants of a process, once they are there."""
    limit = time.monotonic() + 10
    while len(found := descendants(of)) < count:
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


def test_end_ends_all_of_them_also_those_whose_head_is_gone() -> None:
    others = descendants(os.getpid())
    groups = Groups()
    heads = [groups.start(FAMILY), groups.start(FAMILY), groups.start(["sh", "-c", "trap '' TERM; sleep 300"])]
    started = [one for one in members(os.getpid(), len(others) + 9) if one not in others]
    heads[0].kill()
    heads[0].wait()
    groups.end()
    groups.end()
    assert left(started, 0.5) == []


def test_a_signal_to_the_own_group_or_held_back_here_changes_nothing_for_them() -> None:
    groups = Groups()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = groups.start(["sleep", "300"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    process.terminate()
    assert process.wait(5) == -signal.SIGTERM
    groups.end()


def test_a_killed_process_takes_its_groups_along() -> None:
    """Also where the head of a group was killed before, and with it whoever might have ended the rest."""
    code = (
        "import time\nfrom podium.engine.groups import Groups\n"
        f"groups = Groups()\ngroups.start({FAMILY})\ngroups.start({FAMILY})\ntime.sleep(300)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    started = members(process.pid, 7)
    head = next(pid for pid, _ in started if os.getpgid(pid) == pid and os.getsid(pid) != pid)
    os.kill(head, signal.SIGKILL)
    process.kill()
    process.wait()
    assert left(started, 2.0) == []
