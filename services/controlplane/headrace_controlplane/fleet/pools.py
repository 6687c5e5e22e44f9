"""Section ``pools``: equal replicas of one model, and the settings their workers start with. Knows no launcher."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace_controlplane.fleet.problems import Problem, join
from headrace_controlplane.fleet.scaling import Scaling
from headrace_controlplane.fleet.schema import setting

_MOST = 2**31 - 1


@dataclass(frozen=True)
class Pool:
    """``min`` replicas are kept running; settings left out are the worker's own defaults."""

    NAMES = r"[a-z0-9][a-z0-9-]{0,39}"

    model: str = setting(..., "model that its replicas serve")
    canary: bool = setting(False, "its replicas serve the revision on trial of their model")
    engine: Literal["torch", "scripted"] = setting("torch", "what computes; scripted needs no weights")
    device: Literal["cpu", "cuda"] = setting("cpu", "where it computes")
    card: str = setting(
        "",
        "card that it runs on, by the planner's name, such as h200-141gib; empty: unknown",
        pattern=r"[a-z0-9.-]{0,40}",
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "type of weights, activations and, by default, KV"
    )
    quantization: Literal["auto", "none", "fp8", "int4"] = setting(
        "auto", "what linear weights are kept as; auto: as the checkpoint has them"
    )
    kv_precision: Literal["same", "fp8"] = setting("same", "type of KV pages; fp8: E4M3")
    attention: Literal["auto", "flash_attn", "triton", "torch"] = setting(
        "auto", "what attends; auto: the first that can serve"
    )
    role: Literal["both", "prefill", "decode"] = setting("both", "part of the work that its replicas do")
    kv_transport: Literal["grpc", "shared_memory", "nixl"] = setting(
        "grpc", "how KV comes in from prefill replicas, for the role decode; shared_memory: all on one host"
    )
    launcher: Literal["process", "ray", "external"] = setting(
        "process",
        "process: the control plane starts workers on its host; ray: on a Ray cluster; external: replicas register by "
        "themselves",
    )
    min: int = setting(1, "fewest replicas", minimum=0, maximum=1000)
    max: int | None = setting(None, "most replicas; nothing: as many as min", minimum=0, maximum=1000)
    warm_reserve: int = setting(0, "ready replicas that are kept beyond the predicted load", minimum=0, maximum=1000)
    start_up_s: float | None = setting(
        None, "time from launch to ready; nothing: as measured last", minimum=0.001, maximum=86_400
    )
    scaling: Scaling = setting(Scaling(), "how the number of replicas follows the load, where max is more than min")
    price_per_gpu_hour: float = setting(0.0, "money per hour of one device", minimum=0, maximum=1e6)
    tp: int = setting(1, "tensor-parallel degree", minimum=1, maximum=64)
    pp: int = setting(1, "pipeline-parallel degree", minimum=1, maximum=64)
    span_domains: bool = setting(False, "place a tensor group across fast-link domains, where it fits into none")
    page_tokens: int = setting(16, "tokens per KV page", minimum=16, maximum=4096, multiple_of=16)
    num_pages: int | None = setting(None, "KV pages; nothing: what fits into kv_bytes", minimum=1, maximum=_MOST)
    kv_bytes: int | None = setting(None, "bytes for KV pages; nothing: measured", minimum=1, maximum=2**50)
    max_context_tokens: int | None = setting(
        None, "most tokens of prompt and output that the engine takes; nothing: the model's", minimum=1, maximum=_MOST
    )
    max_sequence_tokens: int | None = setting(
        None,
        "most tokens of prompt and output of one request; nothing: the context",
        minimum=1,
        maximum=_MOST,
    )
    max_waiting: int = setting(256, "room for requests that wait in one replica", minimum=1, maximum=1_000_000)
    max_running: int = setting(256, "most sequences that run at once in one replica", minimum=1, maximum=65_536)
    max_batch_tokens: int = setting(1024, "most tokens in one engine step", minimum=1, maximum=_MOST)
    max_chunk_tokens: int = setting(512, "most prompt tokens in one engine step", minimum=1, maximum=_MOST)
    statistical_overrun: float = setting(
        0.0,
        "chance that statistical requests together outgrow the pages they entered on; 0: promised in full, too",
        minimum=0,
        maximum=0.5,
    )
    deterministic: bool = setting(False, "batch-invariant arithmetic: the same bits alone or in any batch")
    threads: int | None = setting(None, "CPU threads of one engine; nothing: one per core", minimum=1, maximum=4096)
    hold_s: float = setting(
        120.0, "how long a request without a deadline is held while no replica is ready", minimum=0, maximum=86_400
    )
    max_held: int = setting(100, "most requests held at once by one router", minimum=0, maximum=1_000_000)
    classes: tuple[str, ...] = setting((), "SLO classes that it serves; empty: all")

    @property
    def num_devices(self) -> int:
        """Of one replica: each stage has a tensor group of its own."""
        return self.tp * self.pp

    @property
    def most(self) -> int:
        """Upper bound of the number of replicas."""
        return self.min if self.max is None else self.max

    @property
    def is_scaled(self) -> bool:
        """Whether the control plane chooses the number of replicas."""
        return self.most > self.min and self.launcher != "external"

    def check(self, path: str) -> Iterator[Problem]:
        if self.most < self.min:
            yield Problem(join(path, "max"), f"expected an integer >= min ({self.min}), got {self.max}")
        if self.warm_reserve > self.most:
            yield Problem(
                join(path, "warm_reserve"), f"expected an integer <= max ({self.most}), got {self.warm_reserve}"
            )
        if self.engine == "scripted" and self.num_devices > 1:
            yield Problem(join(path, "tp" if self.tp > 1 else "pp"), "the scripted engine is one process: expected 1")
        if self.kv_transport != "grpc" and self.role != "decode":
            yield Problem(join(path, "kv_transport"), "KV comes in where the role is decode only")
        if self.num_pages is not None and self.kv_bytes is not None:
            yield Problem(join(path, "kv_bytes"), "give either num_pages or kv_bytes")
        needed = self.max_running + self.page_tokens
        if self.max_batch_tokens < needed:
            yield Problem(
                join(path, "max_batch_tokens"),
                f"must hold max_running and one page: expected an integer >= {needed}, got {self.max_batch_tokens}",
            )
        context, sequence = self.max_context_tokens, self.max_sequence_tokens
        if context is not None and sequence is not None and sequence > context:
            yield Problem(
                join(path, "max_sequence_tokens"),
                f"expected an integer <= max_context_tokens ({context}), got {sequence}",
            )
