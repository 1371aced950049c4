"""MuJoCo's tasks by the names that papers have for them: what can't be made any more is made as today's version."""

from __future__ import annotations

import re

TODAY = 5
BEFORE_4 = ("HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher")
WITH_3 = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
NAME = re.compile(rf"(?P<pool>envpool:)?(?P<task>{'|'.join(BEFORE_4 + WITH_3)})-v(?P<version>\d)")


def todays_name(name: str) -> str | None:
    """Of a version that is gone: gymnasium makes those from 4 on; EnvPool the last one before it as well."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    first = 4 if not found["pool"] else 3 if found["task"] in WITH_3 else 2
    return f"{found['pool'] or ''}{found['task']}-v{TODAY}" if int(found["version"]) < first else None
