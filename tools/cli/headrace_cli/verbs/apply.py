"""Applying a fleet file: validated by the control plane, stored as the next version."""

from collections.abc import Iterable
from pathlib import Path

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import CommandError, StateDir


async def apply_file(state: StateDir, path: Path, fleet_yaml: str, comment: str) -> pb.ApplyResponse:
    """Applies the content of the file at ``path``; every problem of it is in the error, with its path."""
    async with Admin(state) as admin:
        request = pb.ApplyRequest(fleet_yaml=fleet_yaml, comment=comment)
        answer: pb.ApplyResponse = await admin.call(admin.stub.Apply, request)
    if answer.problems:
        raise refusal(path, answer.problems)
    return answer


def refusal(source: Path | str, problems: Iterable[pb.FleetProblem]) -> CommandError:
    """All problems of a file, one line each."""
    lines = "\n".join(f"  {problem.path}: {problem.message}" for problem in problems)
    return CommandError(f"{source} was refused, nothing changed:\n{lines}")
