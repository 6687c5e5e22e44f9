"""Applying a fleet file: validated by the control plane, stored as the next version."""

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
        lines = "\n".join(f"  {problem.path}: {problem.message}" for problem in answer.problems)
        raise CommandError(f"{path} was refused, nothing changed:\n{lines}")
    return answer
