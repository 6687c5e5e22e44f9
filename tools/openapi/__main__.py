"""Writes docs/openapi.json: `python -m tools.openapi`."""

from tools.openapi.document import PATH, render

if __name__ == "__main__":
    PATH.write_text(render(), "utf-8")
