"""The worker's one configuration: plain frozen data, checked when it is made. Reads no environment and no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BLOCK_TOKENS = 16
MAX_CHOICES = 128


class ConfigError(ValueError):
    """A setting that cannot be served with; the text names the field."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.field = name


def _help(meaning: str) -> dict[str, str]:
    return {"help": meaning}


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """One model on one replica. A value that cannot work refuses to start and names its field."""

    service_token_file: Path = field(metadata=_help("file with the service token (decision 21)"))
    state_dir: Path = field(metadata=_help("directory for downloads, converted weights and logs"))

    engine: Literal["torch", "scripted"] = field(
        default="torch", metadata=_help("what computes; scripted needs no weights and no torch")
    )
    model: str = field(default="", metadata=_help("name under which the model is served; default: from the source"))
    source: str = field(
        default="",
        metadata=_help("weights: a directory, a .gguf file, hf:ORG/NAME@REV or a name of the built-in models"),
    )
    revision: str = field(default="", metadata=_help("revision that is reported; default: from the source"))
    device: Literal["cpu", "cuda"] = field(default="cpu", metadata=_help("where the engine computes"))
    card: str = field(
        default="",
        metadata=_help(
            "card that it computes on, by the planner's name, for the live roofline; cpu: measured at start, a second; "
            "default: by the device's own name, on CPU none"
        ),
    )
    precision: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=_help("type of weights, activations and, by default, KV")
    )
    quantization: Literal["auto", "none", "fp8", "int4"] = field(
        default="auto",
        metadata=_help("what linear weights are kept as; auto: as the checkpoint has them; fp8, int4: rounded at load"),
    )
    kv_precision: Literal["same", "fp8"] = field(
        default="same", metadata=_help("type of KV pages: fp8 is E4M3, half the bytes of 16 bits")
    )
    attention: Literal["auto", "flash_attn", "triton", "torch"] = field(
        default="auto",
        metadata=_help("what attends, and with torch what else has kernels of ours; auto: the first that can serve"),
    )
    tp: int = field(default=1, metadata=_help("tensor-parallel degree: ranks that share every layer"))
    pp: int = field(default=1, metadata=_help("pipeline-parallel degree: stages of consecutive layers"))
    collective_timeout_s: float = field(
        default=60.0, metadata=_help("longest wait of a rank for the others of its group; then the replica fails")
    )
    page_tokens: int = field(default=16, metadata=_help("tokens per KV page, a multiple of 16"))
    num_pages: int | None = field(
        default=None, metadata=_help("KV pages; default: what fits into kv_bytes (scripted: 4096)")
    )
    kv_bytes: int | None = field(
        default=None, metadata=_help("bytes for KV pages; default: measured (CPU: min(2 GiB, a quarter of RAM))")
    )
    max_context: int | None = field(
        default=None, metadata=_help("most tokens of prompt and output; default: the model's (scripted: 8192)")
    )
    default_output: int = field(
        default=1024, metadata=_help("output limit of a request that names none; written on the model card")
    )
    max_waiting: int = field(
        default=256, metadata=_help("room for requests that wait; one fair_key may fill half of it")
    )
    max_running: int = field(default=256, metadata=_help("most sequences that run at once"))
    max_batch_tokens: int = field(default=1024, metadata=_help("most tokens in one engine step"))
    max_chunk_tokens: int = field(default=512, metadata=_help("most prompt tokens in one engine step"))
    graphs: bool = field(
        default=True,
        metadata=_help("capture steps of decodes as CUDA graphs, on one GPU"),
    )
    overlap: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=_help("plan and launch a step while the one before it runs; auto: on for one GPU, where it gains"),
    )
    statistical_overrun: float = field(
        default=0.0,
        metadata=_help(
            "chance, up to 0.5, that statistical requests together outgrow the pages they were admitted on, "
            "so that some are preempted; 0: their whole future is promised, too"
        ),
    )
    deterministic: bool = field(
        default=False, metadata=_help("batch-invariant arithmetic: the same bits alone or in any batch")
    )
    threads: int | None = field(
        default=None, metadata=_help("CPU threads of each rank; default: the cores, shared by the ranks")
    )
    record: Path | None = field(
        default=None, metadata=_help("file that gets every scheduler input, prompt ids too, for `headrace replay`")
    )

    pool: str = field(default="default", metadata=_help("pool that this replica belongs to"))
    role: Literal["both", "prefill", "decode"] = field(
        default="both", metadata=_help("part of the work that this replica does")
    )
    kv_transport: Literal["grpc", "shared_memory", "nixl"] = field(
        default="grpc",
        metadata=_help("how KV comes in from prefill replicas: shared_memory on one host, nixl needs nixl-cu12"),
    )
    kv_lease_s: float = field(
        default=30.0, metadata=_help("how long a prefill replica keeps pages for this one unless it renews")
    )
    replica_id: str = field(
        default="", metadata=_help("id of this replica, unique in the fleet; default: pool and a random part")
    )
    domains: tuple[str, ...] = field(default=(), metadata=_help("fast-link domains of its devices"))
    controlplane: str | None = field(
        default=None, metadata=_help("gRPC target to register with; none: register nowhere")
    )
    advertise: str | None = field(
        default=None, metadata=_help("gRPC target under which others reach this replica; default: as bound")
    )

    grpc_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the gRPC listener"))
    http_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the internal HTTP listener"))
    announce: Path | None = field(default=None, metadata=_help("file that gets the bound addresses as JSON"))
    drain_s: float = field(default=30.0, metadata=_help("time that running sequences get when the process is stopped"))
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_help("least level that is logged")
    )
    otlp_endpoint: str | None = field(
        default=None, metadata=_help("OTLP/gRPC collector that gets spans beside the control plane; none: no other")
    )
    tls_ca: Path | None = field(default=None, metadata=_help("authority of mutual TLS; ca, cert and key come together"))
    tls_cert: Path | None = field(default=None, metadata=_help("certificate of this replica"))
    tls_key: Path | None = field(default=None, metadata=_help("key of the certificate"))

    def __post_init__(self) -> None:
        for name in (
            *("page_tokens", "num_pages", "kv_bytes", "max_context", "default_output", "max_waiting", "kv_lease_s"),
            *("max_running", "max_batch_tokens", "max_chunk_tokens", "threads", "tp", "pp", "collective_timeout_s"),
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(name, f"must be positive, is {value}")
        if self.page_tokens % BLOCK_TOKENS:
            raise ConfigError("page_tokens", f"must be a multiple of {BLOCK_TOKENS}, is {self.page_tokens}")
        if self.num_pages is not None and self.kv_bytes is not None:
            raise ConfigError("kv_bytes", "give either num_pages or kv_bytes")
        if self.max_batch_tokens < self.max_running + self.page_tokens:
            needed = self.max_running + self.page_tokens
            raise ConfigError("max_batch_tokens", f"must hold max_running and one page ({needed})")
        if not self.drain_s >= 0:
            raise ConfigError("drain_s", f"must not be negative, is {self.drain_s}")
        if self.engine == "torch" and not self.source:
            raise ConfigError("source", "the torch engine needs weights")
        if not 0 <= self.statistical_overrun <= 0.5:
            raise ConfigError("statistical_overrun", f"must be from 0 to 0.5, is {self.statistical_overrun}")
        if self.overlap == "on" and self.engine == "scripted":
            raise ConfigError("overlap", "needs the torch engine: drawn tokens stay on a device")
        if self.overlap == "on" and self.pp > 1:
            detail = "each of its stages has a plan in flight already, and the last one alone has the drawn tokens"
            raise ConfigError("overlap", f"is not there for a pipeline (pp is {self.pp}): {detail}")
        if self.engine == "scripted" and self.tp * self.pp > 1:
            raise ConfigError("tp" if self.tp > 1 else "pp", "the scripted engine is one process: give 1")
        if len({self.tls_ca is None, self.tls_cert is None, self.tls_key is None}) > 1:
            raise ConfigError("tls_ca", "ca, cert and key come together")

    @property
    def overlaps(self) -> bool:
        """Whether the engine has one plan more in flight than its pipeline has stages."""
        alone_on_gpu = self.engine == "torch" and self.device == "cuda" and self.tp * self.pp == 1
        return self.overlap == "on" or (self.overlap == "auto" and alone_on_gpu)
