"""Kernels run under Triton's interpreter here: the switch is read when a kernel's module is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
