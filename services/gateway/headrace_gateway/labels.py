"""What a client says beside its question: ids, affinity, lineage and metadata, each within bounds. Pure."""

import re

from headrace.v1 import inference_pb2 as pb
from headrace_kit.errors import HeadraceError

MAX_NAME_CHARS = 256
MAX_METADATA = 16
MAX_METADATA_CHARS = 512
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""What may be echoed of a caller's own id."""


def check_labels(request: pb.GenerateRequest) -> None:
    """Raises invalid_argument that names the field."""
    if request.client_request_id and not REQUEST_ID.fullmatch(request.client_request_id):
        raise _invalid("client_request_id", "expected at most 128 visible ASCII characters")
    for name in ("session_id", "retry_of", "slo_class"):
        check_length(name, getattr(request, name))
    if len(request.metadata) > MAX_METADATA:
        raise _invalid("metadata", f"at most {MAX_METADATA} pairs, got {len(request.metadata)}")
    for key, value in request.metadata.items():
        if not 1 <= len(key) <= MAX_METADATA_CHARS or len(value) > MAX_METADATA_CHARS:
            raise _invalid("metadata", f"keys and values have at most {MAX_METADATA_CHARS} characters")


def check_length(name: str, text: str) -> None:
    """Raises invalid_argument for what is too long to be an id or a name."""
    if len(text) > MAX_NAME_CHARS:
        raise _invalid(name, f"at most {MAX_NAME_CHARS} characters, got {len(text)}")


def _invalid(name: str, problem: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{name}: {problem}", field=name)
