"""A workload by the word a user gives: the name of a preset, a YAML or JSON specification, or a trace file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from headrace_workload.arrival import Arrival
from headrace_workload.errors import WorkloadError
from headrace_workload.generate import generate
from headrace_workload.presets import PRESETS
from headrace_workload.spec import Workload, read_workload
from headrace_workload.traces import TraceOptions, read_trace

_SPEC_SUFFIXES = {".yaml", ".yml", ".json"}


@dataclass(frozen=True)
class Source:
    """Where arrivals come from; `spec` is None for a trace."""

    name: str
    spec: Workload | None
    path: Path | None = None

    def arrivals(self, seed: int, options: TraceOptions) -> Iterator[Arrival]:
        """The arrivals; a trace has no seed. WorkloadError for an option that only traces have, given to another."""
        if self.spec is not None:
            if options.start_s:
                raise WorkloadError(self.name, "has phases: only a trace can be begun later")
            return generate(self.spec, seed)
        assert self.path is not None, "a source is a specification or a file"
        return read_trace(self.path, options)


def open_source(word: str) -> Source:
    """The source that `word` names; WorkloadError says what is wrong with it."""
    if word in PRESETS:
        return Source(word, read_workload(PRESETS[word]))
    path = Path(word)
    if not path.is_file():
        raise WorkloadError(word, f"is neither a file nor one of {', '.join(PRESETS)}")
    if path.suffix not in _SPEC_SUFFIXES:
        return Source(path.name, None, path)
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise WorkloadError(word, f"cannot be read: {' '.join(str(error).split())}") from None
    return Source(path.name, read_workload(value))
