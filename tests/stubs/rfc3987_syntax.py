"""Hide a package of JupyterLab from jsonschema: its import builds 39 parsers, and Ray imports it in every process."""

from __future__ import annotations

raise ImportError("tests leave out the validation of IRIs, which takes 1.6 s of every process of Ray")
